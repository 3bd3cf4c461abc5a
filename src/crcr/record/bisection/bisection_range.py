"""Reads what a bisection begins with: the job, its range of base commits, and how often it fails by chance."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text

from crcr.decide.bisection.request import MOST_COMMITS, BisectionRequest, RangeCommit
from crcr.decide.bisection.search import measure_flake_rate
from crcr.decide.culprits.commit_range import BreakageRange
from crcr.decide.model import RepoName
from crcr.errors import BadRequest, NotFound, NotPossible
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views.culprits.evidence import RedJob, read_commits_between
from crcr.record.views.culprits.job_culprits import RedJobHistory, read_history
from crcr.record.views.failures.failing_jobs import HISTORY, read_base_branch

_MOST_TITLE = 120
_MOST_WORKFLOWS = 10

_WORKFLOWS = Statement(
    text(
        "SELECT workflow, max(workflow_name) AS name FROM jobs WHERE upstream = :upstream AND downstream = :downstream"
        " AND job_name = :job_name AND in_progress_at >= :since AND ended_as IS NOT NULL AND imported = 0"
        " AND event <> 'pull_request'"
        " AND event IN ('push', 'merge_group') GROUP BY workflow ORDER BY workflow LIMIT :most"
    )
)
_COMMITS_BY_PREFIX = Statement(
    text(
        "SELECT sha, position FROM base_commits WHERE sha >= :prefix AND sha < :beyond AND upstream = :upstream"
        " AND ref = :ref LIMIT 2"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class BisectionRange:
    job: RedJob
    commits: tuple[RangeCommit, ...]
    """The good end first, the bad end last."""
    fingerprints: frozenset[str]
    """Of the recorded failure; empty where it has no details, or none is recorded."""
    flake_rate: float


async def read_bisection_range(
    tx: Tx, upstream: RepoName, request: BisectionRequest, now: datetime
) -> BisectionRange:
    """Raise an error that says what is missing where the range cannot be told."""
    branch = await read_base_branch(tx, upstream)
    if branch is None:
        raise NotPossible(f"no push to {upstream} is recorded yet")
    workflow = await _find_workflow(tx, upstream, request, now)
    job = RedJob(upstream.key, branch, request.downstream.key, workflow, request.job)
    history = await read_history(tx, job, now - HISTORY)
    breakage = _choose_breakage(history, request)
    good, bad = await _find_ends(tx, job, breakage, request)
    chance = breakage.chance if breakage else 0.0
    return BisectionRange(
        job=job,
        commits=await _read_range(tx, job, good, bad),
        fingerprints=frozenset(mark for mark in breakage.fingerprints if mark) if breakage else frozenset(),
        flake_rate=measure_flake_rate(flaky=history.chance_failures, passed=history.passes, chance=chance),
    )


async def _find_workflow(tx: Tx, upstream: RepoName, request: BisectionRequest, now: datetime) -> str:
    rows = await tx.all(
        _WORKFLOWS,
        upstream=upstream.key,
        downstream=request.downstream.key,
        job_name=request.job,
        since=to_us(now - HISTORY),
        most=_MOST_WORKFLOWS,
    )
    if request.workflow is not None:
        rows = [row for row in rows if request.workflow in (row["workflow"], row["name"])]
    if not rows:
        where = f" in the workflow {request.workflow!r}" if request.workflow is not None else ""
        raise NotFound(
            f"{request.downstream} has no recorded result of the job {request.job!r}{where} on the base branch",
            hint="give the job's name as its page on the HUD shows it",
        )
    if len(rows) > 1:
        raise BadRequest(
            f"several workflows of {request.downstream} have a job {request.job!r}",
            hint="name the workflow, which a comment cannot do and `crcr bisect --workflow` does: "
            + ", ".join(repr(row["workflow"]) for row in rows),
        )
    workflow: str = rows[0]["workflow"]
    return workflow


def _choose_breakage(history: RedJobHistory, request: BisectionRequest) -> BreakageRange | None:
    """The newest breakage; with a given bad end, the one that it shows."""
    if request.bad is None:
        return history.breakages[-1] if history.breakages else None
    shown = (one for one in history.breakages if one.bad.sha.startswith(request.bad))
    return next(shown, None)


async def _find_ends(
    tx: Tx, job: RedJob, breakage: BreakageRange | None, request: BisectionRequest
) -> tuple[Row, Row]:
    bad_sha = request.bad or (breakage.bad.sha if breakage else None)
    if bad_sha is None:
        raise NotPossible(
            f"the job {request.job!r} of {request.downstream} has no lasting failure on {job.ref}",
            hint="give both ends of the range to bisect it all the same",
        )
    good_sha = request.good or (breakage.good.sha if breakage and breakage.good else None)
    if good_sha is None:
        raise NotPossible(
            f"no pass of the job {request.job!r} is recorded before {bad_sha[:12]}",
            hint="give a commit where it passed: good",
        )
    good, bad = await _find_commit(tx, job, good_sha), await _find_commit(tx, job, bad_sha)
    if good["position"] >= bad["position"]:
        raise BadRequest(f"the good commit {good['sha'][:12]} does not come before the bad one on {job.ref}")
    return good, bad


async def _find_commit(tx: Tx, job: RedJob, prefix: str) -> Row:
    place = {"upstream": job.upstream, "ref": job.ref}
    rows = await tx.all(_COMMITS_BY_PREFIX, prefix=prefix, beyond=f"{prefix}g", **place)
    if not rows:
        raise NotFound(
            f"the commit {prefix[:12]} is not among the recorded commits of {job.ref}",
            hint="commits are recorded with the pushes that the relay received",
        )
    if len(rows) > 1:
        raise BadRequest(f"several commits of {job.ref} begin with {prefix}", hint="give more digits")
    return rows[0]


async def _read_range(tx: Tx, job: RedJob, good: Row, bad: Row) -> tuple[RangeCommit, ...]:
    """The commits of the range, both ends included."""
    commits = await read_commits_between(
        tx, job.branch, good["position"] - 1, bad["position"], most=MOST_COMMITS + 1
    )
    if commits[0].sha != good["sha"]:
        raise NotPossible(
            f"more than {MOST_COMMITS:,} commits are between {good['sha'][:12]} and {bad['sha'][:12]}",
            hint="give a later good commit, or an earlier bad one",
        )
    return tuple(RangeCommit(commit.sha, commit.number, commit.title[:_MOST_TITLE]) for commit in commits)
