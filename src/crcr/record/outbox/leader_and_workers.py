"""Leases of processes: names of lease owners, leader election, and the registry of live workers.

A lease ends by itself when its time is over. A process of the same machine that has ended loses its leases at once;
one of another machine when the registry finds that its row no longer changes. Every change here is one conditional
write, so of two processes that try at the same time one succeeds. Times are those of the processes' own clocks: clocks
that differ by more than a lease make two processes take turns, which costs work and breaks nothing, since everything
that a leader does is conditional too.
"""

import os
import random
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import text

from crcr.decide.outbox.worker_presence import GONE_AFTER, Sightings, WorkerRoll
from crcr.record.store.database import Database, Tx
from crcr.record.store.signals import EFFECTS
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_HOLDERS = Statement(
    text(
        "SELECT DISTINCT lease_owner FROM effects"
        " WHERE upstream = :upstream AND state = 'claimed' AND lease_owner IS NOT NULL"
    )
)
_FREE = Statement(
    text(
        "UPDATE effects SET lease_owner = NULL, lease_until = :now WHERE upstream = :upstream"
        " AND state = 'claimed' AND lease_owner = :owner"
    )
)
"""The last owner can no longer finish these effects. The next claim marks them unsure."""


def new_owner() -> str:
    """A name for this process as a lease owner: machine, process id, and a number that no later process has."""
    return f"{_machine()} {os.getpid()} {random.getrandbits(32):08x}"


def _machine() -> str:
    """The scope in which a process id is unique.

    Two containers may share a host name but not a process namespace; two machines may share both but not a boot.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{socket.gethostname()}/{boot}/{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def is_gone(owner: str) -> bool:
    """Whether the owner was a process of this machine that no longer runs; False whenever that is unknown."""
    host, _, rest = owner.partition(" ")
    pid = rest.partition(" ")[0]
    if host != _machine() or not pid.isdigit():
        return False
    with suppress(PermissionError):
        try:
            os.kill(int(pid), 0)
        except ProcessLookupError:
            return True
    return False


async def free_leases(
    database: Database, upstreams: tuple[str, ...], now: datetime, gone: Callable[[str], bool] = is_gone
) -> int:
    """End the leases of processes that have ended; return how many effects become free, each marked unsure."""

    async def unit(tx: Tx) -> int:
        freed = 0
        for upstream in upstreams:
            for row in await tx.all(_HOLDERS, upstream=upstream):
                if gone(row["lease_owner"]):
                    freed += await tx.run(_FREE, upstream=upstream, owner=row["lease_owner"], now=to_us(now))
        tx.signal(EFFECTS)
        return freed

    return await database.write(unit)


_TAKE = Statement(
    text(
        "INSERT INTO leaders (duty, holder, since_at, until_at) VALUES (:duty, :holder, :now, :until)"
        " ON CONFLICT (duty) DO UPDATE SET holder = excluded.holder, until_at = excluded.until_at,"
        " since_at = CASE WHEN leaders.holder = excluded.holder THEN leaders.since_at ELSE excluded.since_at END"
        " WHERE leaders.holder = excluded.holder OR leaders.until_at <= excluded.since_at"
    )
)
_HOLDER = Statement(text("SELECT holder FROM leaders WHERE duty = :duty"))
_GIVE_UP = Statement(text("DELETE FROM leaders WHERE duty = :duty AND holder = :holder"))

_LANE = "leaders"
"""The table `leaders` is written by nothing else: no result waits for elections and heartbeats."""


class LeaderElection:
    """Leader election for one process, which is named by `new_owner`: at most one process leads a duty."""

    def __init__(
        self, database: Database, holder: str, lease: timedelta, gone: Callable[[str], bool] = is_gone
    ) -> None:
        self._database = database
        self._holder = holder
        self._lease = lease
        self._gone = gone

    async def take(self, duty: str, now: datetime) -> bool:
        """Become the leader, or renew the lease; False while another process leads."""

        async def unit(tx: Tx) -> bool:
            if await self._take(tx, duty, now):
                return True
            row = await tx.one(_HOLDER, duty=duty)
            if row is None or not self._gone(row["holder"]):
                return False
            await tx.run(_GIVE_UP, duty=duty, holder=row["holder"])
            return await self._take(tx, duty, now)

        return await self._database.write(unit, lane=_LANE)

    async def release(self, duty: str) -> None:
        """Resign, if this process leads, so that another one leads at its next try."""
        await self._database.write(lambda tx: tx.run(_GIVE_UP, duty=duty, holder=self._holder), lane=_LANE)

    async def _take(self, tx: Tx, duty: str, now: datetime) -> bool:
        until = to_us(now + self._lease)
        return bool(await tx.run(_TAKE, duty=duty, holder=self._holder, now=to_us(now), until=until))


_WORKER = "present "
"""Prefix of a worker's name in the column `duty`: a duty that no other worker can take."""
_DELETE_OLD = Statement(text("DELETE FROM leaders WHERE duty LIKE 'worker %' AND until_at <= :now"))
"""Rows of workers of earlier releases, whose heartbeats were less frequent."""
_BEAT = Statement(text("UPDATE leaders SET until_at = :heartbeat WHERE duty = :duty"))
_REGISTER = Statement(
    text(
        "INSERT INTO leaders (duty, holder, since_at, until_at) VALUES (:duty, :holder, :now, :heartbeat)"
        " ON CONFLICT (duty) DO UPDATE SET until_at = excluded.until_at"
    )
)
_HEARTBEATS = Statement(
    text(f"SELECT holder, until_at FROM leaders WHERE duty LIKE '{_WORKER}%'")  # noqa: S608  our own prefix
)
_REMOVE = Statement(text("DELETE FROM leaders WHERE duty = :duty AND until_at = :heartbeat"))
_UNREGISTER = Statement(text("DELETE FROM leaders WHERE duty = :duty"))
_END_LEADERSHIP = Statement(text("UPDATE leaders SET until_at = 0 WHERE holder = :holder"))

_TAKE_OVER_LANE = "roll call"
"""A lane of its own: freeing claims may wait for row locks, and no heartbeat waits with it."""


class WorkerRegistry:
    """The live workers as one of them sees it: each has a row in `leaders`, changes it every few seconds, and watches the others.

    The worker that finds another one gone removes its row and frees its claims and its leadership, in one conditional
    write. A worker that was only frozen finds its row missing at its next round, before it acts on an earlier claim.
    """

    def __init__(
        self,
        database: Database,
        holder: str,
        upstreams: tuple[str, ...],
        gone: Callable[[str], bool] = is_gone,
    ) -> None:
        """`gone` tells at once that a process of this machine has ended."""
        self._database = database
        self._holder = holder
        self._upstreams = upstreams
        self._gone = gone
        self._sightings = Sightings()

    async def attend(self, now: datetime) -> WorkerRoll:
        """Write this worker's heartbeat, and read those of the others."""
        duty, heartbeat = f"{_WORKER}{self._holder}", to_us(now + GONE_AFTER)

        async def unit(tx: Tx) -> tuple[bool, dict[str, int]]:
            was_listed = bool(await tx.run(_BEAT, duty=duty, heartbeat=heartbeat))
            if not was_listed:
                await tx.run(_REGISTER, duty=duty, holder=self._holder, now=to_us(now), heartbeat=heartbeat)
                await tx.run(_DELETE_OLD, now=to_us(now))
            return was_listed, {row["holder"]: row["until_at"] for row in await tx.all(_HEARTBEATS)}

        was_listed, heartbeats = await self._database.write(unit, lane=_LANE)
        others = {name: beat for name, beat in heartbeats.items() if name != self._holder}
        self._sightings = self._sightings.after_round(others, now)
        ended = {*self._sightings.find_gone(now), *filter(self._gone, others)}
        return WorkerRoll(
            workers=len(heartbeats) - len(ended),
            was_listed=was_listed,
            gone={name: beat for name, beat in others.items() if name in ended},
        )

    async def take_over(self, gone: Mapping[str, int], now: datetime) -> int:
        """Free the leases of these workers, except those with a newer heartbeat; return how many effects become free."""

        async def unit(tx: Tx) -> int:
            freed = 0
            for holder, heartbeat in gone.items():
                if not await tx.run(_REMOVE, duty=f"{_WORKER}{holder}", heartbeat=heartbeat):
                    continue
                await tx.run(_END_LEADERSHIP, holder=holder)
                for upstream in self._upstreams:
                    freed += await tx.run(_FREE, upstream=upstream, owner=holder, now=to_us(now))
            tx.signal(EFFECTS)
            return freed

        return await self._database.write(unit, lane=_TAKE_OVER_LANE)

    async def leave(self) -> None:
        await self._database.write(
            lambda tx: tx.run(_UNREGISTER, duty=f"{_WORKER}{self._holder}"), lane=_LANE
        )
