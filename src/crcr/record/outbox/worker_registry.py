"""The roll of workers: each worker updates its row in `leaders` every few seconds, and watches the other workers' rows.

A worker that finds another one gone deletes its row and frees its claims and its lead in one conditional write; the
claims come back marked unsure. A worker that was only frozen finds its row missing at its next round, before it acts
on any earlier claim.
"""

from collections.abc import Callable, Mapping
from datetime import datetime

from sqlalchemy import text

from crcr.decide.outbox.worker_presence import GONE_AFTER, Sightings, WorkerRoll
from crcr.record.outbox.leases import FREE, is_gone
from crcr.record.store.database import Database, Tx
from crcr.record.store.signals import EFFECTS
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_WORKER = "present "
"""Before a worker's own name, as the duty of its row: a duty that no other worker can take."""
_FORGET_OLD = Statement(text("DELETE FROM leaders WHERE duty LIKE 'worker %' AND until_at <= :now"))
"""Rows of workers of earlier releases, which gave their signs less often."""
_SIGN = Statement(text("UPDATE leaders SET until_at = :sign WHERE duty = :duty"))
_ENTER = Statement(
    text(
        "INSERT INTO leaders (duty, holder, since_at, until_at) VALUES (:duty, :holder, :now, :sign)"
        " ON CONFLICT (duty) DO UPDATE SET until_at = excluded.until_at"
    )
)
_SIGNS = Statement(
    text(f"SELECT holder, until_at FROM leaders WHERE duty LIKE '{_WORKER}%'")  # noqa: S608  our own prefix
)
_STRIKE = Statement(text("DELETE FROM leaders WHERE duty = :duty AND until_at = :sign"))
_LEAVE = Statement(text("DELETE FROM leaders WHERE duty = :duty"))
_END_LEAD = Statement(text("UPDATE leaders SET until_at = 0 WHERE holder = :holder"))

_LANE = "leaders"
"""Only `leaders` is written in this lane, so no result waits for a sign of life."""
_TAKE_OVER_LANE = "roll call"
"""A lane of its own: freeing claims may wait for their rows, and no sign of life must wait with it."""


class RollCall:
    """The roll as one worker sees it, by its name as a holder (`leases.new_owner`)."""

    def __init__(
        self,
        database: Database,
        holder: str,
        upstreams: tuple[str, ...],
        gone: Callable[[str], bool] = is_gone,
    ) -> None:
        """`gone` sees at once that a process of this machine has ended."""
        self._database = database
        self._holder = holder
        self._upstreams = upstreams
        self._gone = gone
        self._sightings = Sightings()

    async def attend(self, now: datetime) -> WorkerRoll:
        """Give a sign of life, and look at those of the others."""
        duty, sign = f"{_WORKER}{self._holder}", to_us(now + GONE_AFTER)

        async def unit(tx: Tx) -> tuple[bool, dict[str, int]]:
            was_listed = bool(await tx.run(_SIGN, duty=duty, sign=sign))
            if not was_listed:
                await tx.run(_ENTER, duty=duty, holder=self._holder, now=to_us(now), sign=sign)
                await tx.run(_FORGET_OLD, now=to_us(now))
            return was_listed, {row["holder"]: row["until_at"] for row in await tx.all(_SIGNS)}

        was_listed, signs = await self._database.write(unit, lane=_LANE)
        others = {name: seen for name, seen in signs.items() if name != self._holder}
        self._sightings = self._sightings.after_round(others, now)
        ended = {*self._sightings.gone(now), *filter(self._gone, others)}
        return WorkerRoll(
            workers=len(signs) - len(ended),
            was_listed=was_listed,
            gone={name: sign for name, sign in others.items() if name in ended},
        )

    async def take_over(self, gone: Mapping[str, int], now: datetime) -> int:
        """Free what these workers hold, unless one has given another sign; return how many effects come back."""

        async def unit(tx: Tx) -> int:
            freed = 0
            for holder, sign in gone.items():
                if not await tx.run(_STRIKE, duty=f"{_WORKER}{holder}", sign=sign):
                    continue
                await tx.run(_END_LEAD, holder=holder)
                for upstream in self._upstreams:
                    freed += await tx.run(FREE, upstream=upstream, owner=holder, now=to_us(now))
            tx.signal(EFFECTS)
            return freed

        return await self._database.write(unit, lane=_TAKE_OVER_LANE)

    async def leave(self) -> None:
        await self._database.write(lambda tx: tx.run(_LEAVE, duty=f"{_WORKER}{self._holder}"), lane=_LANE)
