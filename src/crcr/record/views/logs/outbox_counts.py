"""How much is owed, counted along the indexes of what is open: pages ask for it with every list of the log."""

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.overview import OutboxState
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us_or_none

# States are written out, not bound: SQLite uses a partial index only when it can see its condition.
_OPEN = Statement(
    text(
        "SELECT count(*) AS number, min(due_at) AS oldest FROM effects"
        " WHERE upstream = :upstream AND state IN ('waiting', 'claimed')"
    )
)
_CLAIMED = Statement(
    text("SELECT count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'claimed'")
)
_PARKED = Statement(
    text("SELECT count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'parked'")
)
_PAUSED = Statement(text("SELECT paused_at FROM upstreams WHERE upstream = :upstream"))


async def outbox_of(tx: Tx, upstream: RepoName) -> OutboxState:
    owed = await tx.one(_OPEN, upstream=upstream.key)
    claimed = await tx.one(_CLAIMED, upstream=upstream.key)
    parked = await tx.one(_PARKED, upstream=upstream.key)
    known = await tx.one(_PAUSED, upstream=upstream.key)
    begun = claimed["number"] if claimed else 0
    return OutboxState(
        waiting=(owed["number"] if owed else 0) - begun,
        claimed=begun,
        parked=parked["number"] if parked else 0,
        oldest_due_at=from_us_or_none(owed["oldest"]) if owed else None,
        paused_at=from_us_or_none(known["paused_at"]) if known else None,
    )
