"""Upstreams in their table: whose events are believed, and through which installation they are asked."""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.events import DownstreamEvent
from crcr.decide.model import RepoName
from crcr.record.outbox.effects import add_effects
from crcr.record.repositories.downstreams import identify
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

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


# Default branches of downstreams: asked of GitHub where they are not known, and again when a webhook names another.
#
# A webhook's own word is not written down: webhooks are unordered, and an old one names an old branch.

ASKED_AGAIN_AFTER = timedelta(minutes=10)
"""GitHub refused to tell: the next report has it asked again, not each of them."""

_IS_ASKED = Statement(
    text(
        "SELECT 1 FROM effects WHERE upstream = :upstream AND target = :downstream AND lane = 'identity'"
        " AND state IN ('waiting', 'claimed') UNION ALL SELECT 1 FROM effects WHERE upstream = :upstream"
        " AND finished_at > :recent AND target = :downstream AND lane = 'identity' AND state = 'parked' LIMIT 1"
    )
)
_OTHERWISE = Statement(
    text(
        "SELECT upstream FROM repositories WHERE downstream = :downstream AND repository_id = :repository_id"
        " AND coalesce(default_branch, '') <> :default_branch"
    )
)


async def ask_default_branch(tx: Tx, upstream: RepoName, downstream: RepoName, now: datetime) -> None:
    """Have GitHub asked about the repository, unless it is being asked or has just refused."""
    of = {"upstream": upstream.key, "downstream": downstream.key}
    if await tx.one(_IS_ASKED, recent=to_us(now - ASKED_AGAIN_AFTER), **of) is None:
        await add_effects(tx, [identify(upstream, downstream.key, now)])


async def compare_default_branch(tx: Tx, event: DownstreamEvent, now: datetime) -> None:
    """Have GitHub asked where a webhook names another default branch than is on record."""
    if event.default_branch is None:
        return
    said = {"repository_id": event.repository_id, "default_branch": event.default_branch}
    for row in await tx.all(_OTHERWISE, downstream=event.repository.key, **said):
        await ask_default_branch(tx, RepoName(row["upstream"]), event.repository, now)
