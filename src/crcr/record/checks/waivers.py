"""The table of waivers: added, revoked, in force.

Bound to a pull request on its base, and to its head of that moment unless it was given `until` a time: a waiver is
about merging into one branch, and does not follow the pull request to another.
"""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from crcr.decide.checks.commit import GrantedWaiver
from crcr.decide.model import RepoName
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us_or_none, to_us

_GIVE = Statement(
    text(
        "INSERT INTO waivers (upstream, number, head_sha, base_ref, until_at, downstream, job, who, reason, created_at,"
        " repository_id) VALUES (:upstream, :number, :head_sha, :base_ref, :until_at, :downstream, :job, :who, :reason,"
        " :created_at, (SELECT r.repository_id FROM repositories r WHERE r.upstream = :upstream"
        " AND r.downstream = :downstream))"
    )
)
# Without a head (for a merge group) the pull request's present head must match; the base always must.
_IN_FORCE = Statement(
    text(
        "SELECT w.waiver_id, w.number, w.downstream, w.job, w.who, w.reason, w.until_at, w.repository_id FROM waivers w"
        " WHERE w.upstream = :upstream AND w.number = :number AND w.ended_at IS NULL AND w.created_at <= :now"
        " AND w.base_ref = :base_ref AND w.base_ref = (SELECT p.base_ref FROM pulls p WHERE p.upstream = w.upstream"
        " AND p.number = w.number)"
        " AND CASE WHEN w.until_at IS NOT NULL THEN w.until_at > :now ELSE w.head_sha = coalesce(:head_sha,"
        " (SELECT p.head_sha FROM pulls p WHERE p.upstream = w.upstream AND p.number = w.number)) END"
        " ORDER BY w.waiver_id"
    )
)
_TAKE_BACK = Statement(
    text(
        "UPDATE waivers SET ended_at = :at, ended_by = :who WHERE upstream = :upstream AND number = :number"
        " AND (downstream = :downstream OR repository_id = (SELECT r.repository_id FROM repositories r"
        " WHERE r.upstream = :upstream AND r.downstream = :downstream))"
        " AND (job = :job OR (job IS NULL AND :job IS NULL)) AND ended_at IS NULL"
        " AND (until_at IS NULL OR until_at > :at)"
    )
)
_USED = Statement(
    text(
        "UPDATE waivers SET used_at = :at WHERE upstream = :upstream AND number = :number AND downstream = :downstream"
        " AND (job = :job OR (job IS NULL AND :job IS NULL)) AND who = :who AND used_at IS NULL AND ended_at IS NULL"
        " AND base_ref = (SELECT p.base_ref FROM pulls p WHERE p.upstream = waivers.upstream"
        " AND p.number = waivers.number)"
        " AND CASE WHEN until_at IS NOT NULL THEN until_at > :at ELSE head_sha = (SELECT p.head_sha FROM pulls p"
        " WHERE p.upstream = waivers.upstream AND p.number = waivers.number) END"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewWaiver:
    number: int
    head_sha: str
    base_ref: str
    downstream: RepoName
    job: str | None
    until_at: datetime | None
    who: str
    reason: str


async def add_waiver(tx: Tx, upstream: RepoName, waiver: NewWaiver, now: datetime) -> None:
    await tx.run(
        _GIVE,
        upstream=upstream.key,
        number=waiver.number,
        head_sha=waiver.head_sha,
        base_ref=waiver.base_ref,
        until_at=to_us(waiver.until_at) if waiver.until_at else None,
        downstream=waiver.downstream.key,
        job=waiver.job,
        who=waiver.who,
        reason=waiver.reason,
        created_at=to_us(now),
    )


async def revoke_waivers(
    tx: Tx, upstream: RepoName, number: int, downstream: RepoName, job: str | None, *, who: str, now: datetime
) -> int:
    """End the waivers of this backend or job; return how many there were."""
    return await tx.run(
        _TAKE_BACK,
        upstream=upstream.key,
        number=number,
        downstream=downstream.key,
        job=job,
        who=who,
        at=to_us(now),
    )


async def waivers_in_force(
    tx: Tx,
    upstream: RepoName,
    numbers: tuple[int, ...],
    now_us: int,
    *,
    base_ref: str,
    head_sha: str | None = None,
) -> tuple[GrantedWaiver, ...]:
    waivers: list[GrantedWaiver] = []
    for number in numbers:
        where = {"upstream": upstream.key, "number": number, "base_ref": base_ref, "head_sha": head_sha}
        rows = await tx.all(_IN_FORCE, now=now_us, **where)
        waivers += (
            GrantedWaiver(
                downstream=RepoName(row["downstream"]),
                job=row["job"],
                who=row["who"],
                reason=row["reason"],
                number=row["number"],
                until_at=from_us_or_none(row["until_at"]),
                repository_id=row["repository_id"],
            )
            for row in rows
        )
    return tuple(waivers)


async def record_waiver_use(tx: Tx, upstream: RepoName, waiver: GrantedWaiver, now: datetime) -> bool:
    """Record that a waiver let a gate pass; True the first time."""
    changed = await tx.run(
        _USED,
        upstream=upstream.key,
        number=waiver.number,
        downstream=waiver.downstream.key,
        job=waiver.job,
        who=waiver.who,
        at=to_us(now),
    )
    return bool(changed)
