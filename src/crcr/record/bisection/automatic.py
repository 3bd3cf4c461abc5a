"""Which bisection the relay begins by itself, for a backend with `bisect: auto`."""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.bisection.request import AUTOMATIC, BisectionRequest, may_begin_automatically
from crcr.decide.model import RepoName
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.culprits.evidence import RedJob
from crcr.record.views.culprits.job_culprits import read_history
from crcr.record.views.failures.failing_jobs import HISTORY, find_red_jobs, read_base_branch

_MOST_A_DAY = 4
"""Automatic bisections of one backend."""
_MOST_JOBS = 20

_BEGUN = Statement(
    text(
        "SELECT count(*) AS begun, coalesce(sum(CASE WHEN state = 'running' THEN 1 ELSE 0 END), 0) AS running"
        " FROM bisections WHERE upstream = :upstream AND downstream = :downstream AND who = :who"
        " AND (created_at > :since OR state = 'running')"
    )
)
_BISECTED = Statement(
    text(
        "SELECT 1 FROM bisections WHERE upstream = :upstream AND downstream = :downstream AND job_name = :job_name"
        " AND workflow = :workflow AND created_at >= :since LIMIT 1"
    )
)


async def find_automatic(
    tx: Tx, upstream: RepoName, entry: AllowlistEntry, now: datetime
) -> list[BisectionRequest]:
    """The bisections of which one may begin now: one of a backend at a time, a few a day, one for each breakage."""
    backend = {"upstream": upstream.key, "downstream": entry.name.key}
    branch = await read_base_branch(tx, upstream)
    count = await tx.one(_BEGUN, **backend, who=AUTOMATIC, since=to_us(now - timedelta(days=1)))
    if branch is None or count is None or count["running"] or count["begun"] >= _MOST_A_DAY:
        return []
    requests = []
    for row in (await find_red_jobs(tx, upstream, branch, now, entry.name))[:_MOST_JOBS]:
        job = RedJob(upstream.key, branch, row["downstream"], row["workflow"], row["job_name"])
        for breakage in (await read_history(tx, job, now - HISTORY)).breakages:
            since = to_us(breakage.first_bad.at)
            if not may_begin_automatically(breakage, now) or await tx.one(
                _BISECTED, **job.names, since=since
            ):
                continue
            requests.append(
                BisectionRequest(
                    downstream=entry.name,
                    job=job.job_name,
                    workflow=job.workflow,
                    good=breakage.good.sha if breakage.good else None,
                    bad=breakage.bad.sha,
                    who=AUTOMATIC,
                )
            )
    return requests
