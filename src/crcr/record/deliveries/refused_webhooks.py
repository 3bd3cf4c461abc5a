"""How many webhooks were refused for their signature, in the present spell, of all processes together."""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us

SPELL_ENDS_AFTER = timedelta(hours=1)
"""After so long without one, the next begins a new count."""

_ADD = Statement(
    text(
        "INSERT INTO refused_webhooks (reason, number, since_at, last_at)"
        " VALUES ('bad_signature', :number, :since, :now) ON CONFLICT (reason) DO UPDATE SET"
        " number = excluded.number + CASE WHEN refused_webhooks.last_at < :spell THEN 0 ELSE refused_webhooks.number END,"
        " since_at = CASE WHEN refused_webhooks.last_at < :spell THEN excluded.since_at"
        " ELSE refused_webhooks.since_at END, last_at = excluded.last_at RETURNING number, since_at"
    )
)


class RefusalCounts:
    """Serves the webhook's `RefusalCounts`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def add(self, number: int, *, since: datetime, now: datetime) -> tuple[int, datetime]:
        async def unit(tx: Tx) -> tuple[int, datetime]:
            spell = to_us(now - SPELL_ENDS_AFTER)
            [row] = await tx.all(_ADD, number=number, since=to_us(since), now=to_us(now), spell=spell)
            return row["number"], from_us(row["since_at"])

        return await self._database.write(unit)
