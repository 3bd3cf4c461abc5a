"""Fault 5: the process dies after its response and before, during or after a dispatch.

A real relay process is killed repeatedly with SIGKILL, at points spread over intake, commit and dispatch, while the
simulated GitHub continues. In the end every acknowledged event has reached every target, a repeated webhook is
recognised, and every dispatch that arrived twice is marked as such in the relay's records.
"""

import asyncio
import contextlib
import os
import random
import signal
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from github_sim.github import GitHub
from github_sim.rest.server import serve
from github_sim.world.faults import Match
from support.forked_process import ForkedProcess, fork_crcr
from support.process import free_port
from support.running_relay import AUDIENCE, UPSTREAM, environment

PULLS_A_ROUND = 3
TARGETS = tuple(f"owner{number}/backend" for number in range(5))
POINTS = (
    "before the answer",
    "after an answer",
    "during a dispatch",
    "after a dispatch acted",
    "while dispatching",
    "later",
)
ROUNDS = 4 * len(POINTS)


class Relay:
    def __init__(self, folder: Path, github: GitHub, listed: str) -> None:
        self.folder, self.port = folder, free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        allowlist = folder / "allowlist.yml"
        allowlist.write_text(listed)
        self.database = folder / "crcr.db"
        own = {"CRCR_PUBLIC_URL": self.url, "CRCR_LOG_LEVEL": "error"}
        self._environment = {**os.environ, **environment(folder, github, allowlist), **own}
        self._process: ForkedProcess | None = None

    async def start(self, *, pages: bool) -> None:
        role = "all" if pages else "intake"
        words = ("serve", "--role", role, "--port", str(self.port))
        self._process = await fork_crcr(words, self.folder, self._environment, stdout=1, stderr=2)
        async with httpx.AsyncClient() as http:
            while True:
                with contextlib.suppress(httpx.TransportError):
                    await http.get(f"{self.url}/healthz")
                    return
                await asyncio.sleep(0.05)  # a real process starts in real time

    async def kill(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGKILL)
        assert await self._process.wait() == -signal.SIGKILL

    async def stop(self) -> None:
        assert self._process is not None
        self._process.terminate()
        assert await self._process.wait() == 0

    def rows(self, sql: str) -> list[tuple[object, ...]]:
        with contextlib.closing(sqlite3.connect(self.database)) as connection:
            return connection.execute(sql).fetchall()


async def kill_at_point(relay: Relay, github: GitHub, point: str, chance: random.Random) -> None:
    """Open pull requests and kill the relay at `point` of their processing."""
    dispatches = Match(method="POST", path="*/dispatches")
    gate = None
    if point == "during a dispatch":
        gate = github.faults.hang(on=dispatches, times=2)
    if point == "after a dispatch acted":
        gate = github.faults.hang(on=dispatches, times=2, after_acting=True)
    opening = [asyncio.create_task(github.open_pr(UPSTREAM, title=point)) for _ in range(PULLS_A_ROUND)]
    if point == "before the answer":
        await asyncio.sleep(chance.random() * 0.01)
    elif gate is not None:
        await asyncio.wait_for(gate.reached.wait(), 30)
    else:
        await asyncio.wait(opening, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.sleep(
            {"after an answer": 0.0, "while dispatching": 0.02}.get(point, 0.3) * chance.random()
        )
    await relay.kill()
    await asyncio.gather(*opening)
    if gate is not None:
        gate.release()
    github.faults.clear()


async def redeliver_unacknowledged(github: GitHub) -> None:
    """Redeliver all unacknowledged webhooks of GitHub's delivery log, and a few acknowledged ones."""
    log = github.deliveries()
    answered = {delivery.guid for delivery in log if delivery.ok}
    for guid in {delivery.guid for delivery in log} - answered:
        await github.redeliver(guid)
    for guid in sorted(answered)[::20]:
        repeated = await github.redeliver(guid)
        assert '"repeat":true' in repeated.answer_body


async def until_idle(relay: Relay) -> None:
    open_effects = "SELECT count(*) FROM effects WHERE state IN ('waiting', 'claimed')"
    while relay.rows(open_effects) != [(0,)]:
        await asyncio.sleep(0.05)


@asynccontextmanager
async def world(folder: Path, seed: int) -> AsyncIterator[tuple[GitHub, Relay]]:
    async with GitHub(seed=seed) as github, serve(github):
        # So many restarts in a minute exceed GitHub's limits of one installation.
        github.limits.points_per_minute = 1_000_000
        github.ci.audience = AUDIENCE
        github.create_repository(UPSTREAM)
        for name in TARGETS:
            github.create_repository(name)
        relay = Relay(folder, github, "L2:\n" + "".join(f"  - {name}\n" for name in TARGETS))
        github.webhook_url = f"{relay.url}/github/webhook"
        yield github, relay


@pytest.mark.slow
@pytest.mark.timeout(400)
async def test_fault_05_a_relay_killed_at_any_point_loses_no_acknowledged_event(tmp_path: Path) -> None:
    seed = int(os.environ.get("CRCR_CHAOS_SEED", random.SystemRandom().randrange(10**6)))
    print(f"CRCR_CHAOS_SEED={seed}")  # noqa: T201  to repeat this run
    chance = random.Random(seed)
    async with world(tmp_path, seed) as (github, relay):
        for number in range(ROUNDS):
            await relay.start(pages=number < len(POINTS))  # once at each point
            await kill_at_point(relay, github, POINTS[number % len(POINTS)], chance)
        await relay.start(pages=True)
        await redeliver_unacknowledged(github)
        await until_idle(relay)
        await relay.stop()

        acknowledged = {item.guid for item in github.deliveries() if item.ok}
        arrived = Counter((item.delivery_id, name) for name in TARGETS for item in github.dispatches(name))
        lost = [(guid, name) for guid in acknowledged for name in TARGETS if not arrived[guid, name]]
        unsure = set(relay.rows("SELECT delivery, downstream FROM dispatches WHERE unsure = 1"))
        doubled_unknown = [key for key, count in arrived.items() if count > 1 and key not in unsure]
        assert len(acknowledged) == ROUNDS * PULLS_A_ROUND
        assert unsure  # otherwise no kill happened between a dispatch and its record
        assert lost == []
        assert doubled_unknown == []
        assert relay.rows("SELECT count(*) FROM effects WHERE state = 'parked'") == [(0,)]
