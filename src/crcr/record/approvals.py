"""Approvals: a person with write rights let downstreams run one head of a pull request."""

from datetime import datetime

from sqlalchemy import bindparam, select

from crcr.decide.model import RepoName
from crcr.record.database import Tx
from crcr.record.schema_gate import approvals
from crcr.record.statement import Statement, inserting
from crcr.record.times import to_us

_APPROVE = Statement(
    inserting(approvals, "head_sha", "upstream", "number", "who", "at").on_conflict_do_nothing()
)
_IS_APPROVED = Statement(
    select(approvals.c.who).where(
        approvals.c.head_sha == bindparam("head_sha"),
        approvals.c.upstream == bindparam("upstream"),
        approvals.c.number == bindparam("number"),
    )
)


async def approve(tx: Tx, upstream: RepoName, number: int, head_sha: str, *, who: str, now: datetime) -> None:
    await tx.run(_APPROVE, head_sha=head_sha, upstream=upstream.key, number=number, who=who, at=to_us(now))


async def is_approved(tx: Tx, upstream: RepoName, number: int, head_sha: str) -> bool:
    found = await tx.one(_IS_APPROVED, head_sha=head_sha, upstream=upstream.key, number=number)
    return found is not None
