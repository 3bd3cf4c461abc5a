"""Fault injection: a fixed set of faults in random order and at random times."""

import asyncio
import signal
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random

from chaos.installation import Installation, Member
from github_sim.github import Match
from github_sim.world.faults import JWKS_PATH

DISPATCHES = Match(method="POST", path="*/dispatches")
CHECKS = Match(path="*/check-runs*")
ANY = Match()
ROUND_S = 24.0
_STARTS_FAIL_S = 15.0
"""How long after PostgreSQL's return the start of a process may still fail because of the outage."""


class Storm:
    def __init__(self, installation: Installation, chance: Random) -> None:
        self._installation = installation
        self._chance = chance
        self.counts: Counter[str] = Counter()
        self._outage_timer: asyncio.TimerHandle | None = None
        self._planned_faults: tuple[tuple[int, Callable[[], Awaitable[None]]], ...] = (
            (2, lambda: self._signal_one(installation.relays, signal.SIGKILL, "relay killed")),
            (2, lambda: self._signal_one(installation.workers, signal.SIGKILL, "worker killed")),
            (1, lambda: self._signal_one(installation.relays, signal.SIGTERM, "relay stopped")),
            (2, self._redis),
            (1, lambda: self._postgres("fast")),
            (1, lambda: self._postgres("immediate")),
            (10, self._github_fault),
        )

    async def inject_faults(self, seconds: float) -> None:
        """Inject every planned fault once per `ROUND_S` seconds."""
        for _ in range(max(1, round(seconds / ROUND_S))):
            faults_of_round = [act for count, act in self._planned_faults for _ in range(count)]
            self._chance.shuffle(faults_of_round)
            for act in faults_of_round:
                await asyncio.sleep(ROUND_S / len(faults_of_round) * 1.5 * self._chance.random())
                await act()

    async def recover(self) -> None:
        """Clear all faults and wait until every process is ready."""
        self._installation.github.faults.clear()
        await self._installation.until_ready()

    async def _signal_one(self, members: list[Member], by: signal.Signals, name: str) -> None:
        """Send a signal to one member once all are ready: a slow machine makes a longer storm, not a heavier one."""
        await self._installation.until_ready(*members)
        if self._chance.choice(members).send(by, back_after_s=self._chance.uniform(0.1, 2.0)):
            self.counts[name] += 1

    async def _redis(self) -> None:
        redis, away_s = self._installation.redis, self._chance.uniform(0.3, 2.5)
        await asyncio.to_thread(redis.kill if self._chance.random() < 0.5 else redis.stop)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(redis.start)
        self.counts["Redis away"] += 1

    async def _postgres(self, how: str) -> None:
        self._installation.store_was_away = True
        if self._outage_timer is not None:
            self._outage_timer.cancel()  # an outage right after another one extends the time
        away_s = self._chance.uniform(0.0, 1.5)
        await asyncio.to_thread(self._installation.postgres.stop, how)
        await asyncio.sleep(away_s)
        await asyncio.to_thread(self._installation.postgres.start)
        self._outage_timer = asyncio.get_running_loop().call_later(_STARTS_FAIL_S, self._back)
        self.counts["PostgreSQL crashed" if how == "immediate" else "PostgreSQL restarted"] += 1

    def _back(self) -> None:
        self._installation.store_was_away = False

    async def _github_fault(self) -> None:
        """Inject one fault of GitHub, shorter than the relay's retries of a minute."""
        faults, chance = self._installation.github.faults, self._chance
        on, times = chance.choice([DISPATCHES, DISPATCHES, CHECKS, ANY]), chance.randint(1, 3)
        kinds: tuple[tuple[str, Callable[[], object]], ...] = (
            ("5xx", lambda: faults.answer(chance.choice([500, 502, 503]), on=on, times=times)),
            ("Retry-After", lambda: faults.answer(503, on=on, times=1, retry_after_s=2)),
            ("429", lambda: faults.answer(429, on=on, times=1, message="slow down", retry_after_s=1)),
            ("secondary limit", lambda: faults.secondary_limit(on=on, times=1, retry_after_s=2)),
            ("primary limit", lambda: faults.primary_limit(on=on, times=1, reset_in_s=3)),
            ("answer lost", lambda: faults.lose_answer(on=on, times=times)),
            ("request lost", lambda: faults.lose_request(on=on, times=times)),
            ("slow", lambda: faults.latency(chance.uniform(0.5, 3), on=on, times=times)),
            ("malformed", lambda: faults.malformed(on=on, times=1)),
            ("hangs after acting", self._hang),
            ("keys away", lambda: faults.answer(503, on=Match(path=JWKS_PATH), times=2)),
            ("webhook twice", lambda: faults.webhooks.duplicate(times=2)),
            ("webhook lost", lambda: faults.webhooks.lose(times=1)),
        )
        name, act = chance.choice(kinds)
        act()
        self.counts[f"GitHub: {name}"] += 1

    def _hang(self) -> None:
        """GitHub executes a dispatch but its response hangs; the worker may be killed meanwhile."""
        gate = self._installation.github.faults.hang(on=DISPATCHES, times=2, after_acting=True)
        asyncio.get_running_loop().call_later(self._chance.uniform(1, 4), gate.release)
