"""Upstreams in their table: whose events are believed, and through which installation they are asked."""

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement

_OTHER_ID = Statement(
    text(
        "SELECT 1 FROM upstreams WHERE upstream = :upstream"
        " AND repository_id IS NOT NULL AND repository_id <> :repository_id"
    )
)


async def is_someone_else(tx: Tx, upstream: RepoName, repository_id: int) -> bool:
    """Whether another repository than the bound one has come to own the upstream's name."""
    found = await tx.one(_OTHER_ID, upstream=upstream.key, repository_id=repository_id)
    return found is not None
