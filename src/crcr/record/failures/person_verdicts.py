"""The table of people's verdicts: what a maintainer says against a verdict of the rules.

They are shown, and counted against the rules. Nothing reads them to judge a gate.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import RepoName
from crcr.decide.views.failures import ContradictedVerdicts
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

CONTRADICTED_SPAN = timedelta(days=30)
_ADD = Statement(
    text(
        "INSERT INTO person_verdicts (upstream, number, head_sha, downstream, job, verdict, rules_verdict, who, reason, at)"
        " VALUES (:upstream, :number, :head_sha, :downstream, :job, :verdict, :rules_verdict, :who, :reason, :at)"
    )
)
_FAILED_JOBS = Statement(
    text(
        "SELECT job_name, verdict FROM failures WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream ORDER BY failure_id"
    )
)
_OF_HEAD = Statement(
    text(
        "SELECT downstream, job, verdict, who, reason FROM person_verdicts WHERE head_sha = :head_sha"
        " AND upstream = :upstream ORDER BY person_verdict_id"
    )
)
_CONTRADICTED = Statement(
    text(
        "SELECT count(*) AS number FROM (SELECT DISTINCT head_sha, downstream, job FROM person_verdicts"
        " WHERE upstream = :upstream AND at >= :since AND verdict <> coalesce(rules_verdict, '')) AS contradicted"
    )
)
_JUDGED = Statement(
    text(
        "SELECT count(*) AS number FROM failures WHERE upstream = :upstream AND at >= :since AND verdict IS NOT NULL"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PersonVerdict:
    number: int
    head_sha: str
    downstream: RepoName
    job: str
    kind: VerdictKind
    who: str
    reason: str


async def load_failed_jobs(
    tx: Tx, upstream: RepoName, delivery: str, downstream: RepoName
) -> dict[str, str | None]:
    """The rules' newest verdict on each failed job of a backend, by the job's name."""
    rows = await tx.all(_FAILED_JOBS, delivery=delivery, upstream=upstream.key, downstream=downstream.key)
    return {row["job_name"]: row["verdict"] for row in rows}


async def add_person_verdict(
    tx: Tx, upstream: RepoName, verdict: PersonVerdict, rules_verdict: str | None, now: datetime
) -> None:
    """Record it with the verdict that the rules gave at this time."""
    await tx.run(
        _ADD,
        upstream=upstream.key,
        number=verdict.number,
        head_sha=verdict.head_sha,
        downstream=verdict.downstream.key,
        job=verdict.job,
        verdict=verdict.kind.value,
        rules_verdict=rules_verdict,
        who=verdict.who,
        reason=verdict.reason,
        at=to_us(now),
    )


async def load_person_verdicts(tx: Tx, upstream: RepoName, head_sha: str) -> dict[tuple[str, str], Row]:
    """The newest verdict of a person by backend and job."""
    rows = await tx.all(_OF_HEAD, head_sha=head_sha, upstream=upstream.key)
    return {(row["downstream"], row["job"]): row for row in rows}


async def count_contradicted(tx: Tx, upstream: RepoName, now: datetime) -> int:
    """How many verdicts people contradicted in the last 30 days."""
    row = await tx.one(_CONTRADICTED, upstream=upstream.key, since=to_us(now - CONTRADICTED_SPAN))
    return row["number"] if row else 0


async def load_contradicted(tx: Tx, upstream: RepoName, now: datetime) -> ContradictedVerdicts:
    """The same beside the number of verdicts; counting these reads all failures of the time."""
    row = await tx.one(_JUDGED, upstream=upstream.key, since=to_us(now - CONTRADICTED_SPAN))
    return ContradictedVerdicts(
        contradicted=await count_contradicted(tx, upstream, now), of=row["number"] if row else 0
    )
