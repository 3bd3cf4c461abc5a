"""Approvals: a person with write rights let downstreams run one head of a pull request on one base.

Of one head the newest approval counts: after another base was approved, the one before must be approved again.
"""

from datetime import datetime

from sqlalchemy import bindparam, select

from crcr.decide.model import KnownPull, RepoName
from crcr.record.schema.checks import approvals
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_INSERT = inserting(approvals, "head_sha", "upstream", "number", "who", "at", "base_ref")
_APPROVE = Statement(
    _INSERT.on_conflict_do_update(
        index_elements=["head_sha", "upstream", "number"],
        set_={name: _INSERT.excluded[name] for name in ("who", "at", "base_ref")},
    )
)
_IS_APPROVED = Statement(
    select(approvals.c.who).where(
        approvals.c.head_sha == bindparam("head_sha"),
        approvals.c.upstream == bindparam("upstream"),
        approvals.c.number == bindparam("number"),
        approvals.c.base_ref == bindparam("base_ref"),
    )
)


async def approve(tx: Tx, upstream: RepoName, pull: KnownPull, *, who: str, now: datetime) -> None:
    """Approve the pull request's head on its base, as both are known."""
    where = {"head_sha": pull.head_sha, "base_ref": pull.base_ref, "number": pull.number}
    await tx.run(_APPROVE, upstream=upstream.key, who=who, at=to_us(now), **where)


async def is_approved(
    tx: Tx, upstream: RepoName, number: int, *, head_sha: str, base_ref: str | None
) -> bool:
    where = {"head_sha": head_sha, "base_ref": base_ref, "number": number}
    return await tx.one(_IS_APPROVED, upstream=upstream.key, **where) is not None
