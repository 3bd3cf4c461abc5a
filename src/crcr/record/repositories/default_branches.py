"""Default branches of downstreams: requested from GitHub where unknown, and again when a webhook names another.

The branch that a webhook names is not recorded: webhooks are unordered, and an old one names an old branch.
"""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.events import DownstreamEvent
from crcr.decide.model import RepoName
from crcr.record.outbox.effects import add_effects
from crcr.record.repositories.downstreams import identify_effect
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

RETRY_AFTER = timedelta(minutes=10)
"""After a refusal by GitHub, reports request the branch again only after this time."""

_IS_REQUESTED = Statement(
    text(
        "SELECT 1 FROM effects WHERE upstream = :upstream AND target = :downstream AND lane = 'identity'"
        " AND state IN ('waiting', 'claimed') UNION ALL SELECT 1 FROM effects WHERE upstream = :upstream"
        " AND finished_at > :recent AND target = :downstream AND lane = 'identity' AND state = 'parked' LIMIT 1"
    )
)
_OTHER_BRANCH = Statement(
    text(
        "SELECT upstream FROM repositories WHERE downstream = :downstream AND repository_id = :repository_id"
        " AND coalesce(default_branch, '') <> :default_branch"
    )
)


async def ask_default_branch(tx: Tx, upstream: RepoName, downstream: RepoName, now: datetime) -> None:
    """Queue a request for the repository's facts, unless one is open or has just been refused."""
    key = {"upstream": upstream.key, "downstream": downstream.key}
    if await tx.one(_IS_REQUESTED, recent=to_us(now - RETRY_AFTER), **key) is None:
        await add_effects(tx, [identify_effect(upstream, downstream.key, now)])


async def compare_default_branch(tx: Tx, event: DownstreamEvent, now: datetime) -> None:
    """Queue a request where a webhook names another default branch than the recorded one."""
    if event.default_branch is None:
        return
    named = {"repository_id": event.repository_id, "default_branch": event.default_branch}
    for row in await tx.all(_OTHER_BRANCH, downstream=event.repository.key, **named):
        await ask_default_branch(tx, RepoName(row["upstream"]), event.repository, now)
