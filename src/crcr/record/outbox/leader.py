"""Who leads: what only one process may do at a time belongs to the one that holds its lease.

Taking, renewing and giving up are one conditional write each, so of two processes that try at once one leads. A
leader that died loses the lease when its time is over, at once to a process of the same machine, which can see that
it is gone, or when the roll call finds it gone (`roll_call`). Times are those of the processes' own clocks: clocks that
differ by more than a lease make two processes take turns, which costs work and breaks nothing, since whatever a leader
does is conditional too.
"""

from collections.abc import Callable
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.record.outbox.leases import is_gone
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

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
"""Only `leaders` is written in this lane, so no result waits for the lead."""


class Leaders:
    """The leads of one process, by its name as a holder (`leases.new_owner`)."""

    def __init__(
        self, database: Database, holder: str, lease: timedelta, gone: Callable[[str], bool] = is_gone
    ) -> None:
        self._database = database
        self._holder = holder
        self._lease = lease
        self._gone = gone

    async def take(self, duty: str, now: datetime) -> bool:
        """Take the lead, or renew it; False while another process holds it."""

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
        """Give up the lead, if it is ours, so that another process takes it at its next try."""
        await self._database.write(lambda tx: tx.run(_GIVE_UP, duty=duty, holder=self._holder), lane=_LANE)

    async def _take(self, tx: Tx, duty: str, now: datetime) -> bool:
        until = to_us(now + self._lease)
        return bool(await tx.run(_TAKE, duty=duty, holder=self._holder, now=to_us(now), until=until))
