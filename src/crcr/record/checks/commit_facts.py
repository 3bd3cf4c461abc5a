"""A commit's recorded facts, gathered in one transaction for `decide.checks.gate` and `decide.checks.wanted_checks`.

For a pull request's head on its base the newest delivery counts; older ones of the same head (it was closed and reopened,
or pushed back to), and those of another base, do not. While it is unknown whether a commit is the head again, the commit
is judged as a head in doubt: its earlier results must not let it merge.
"""

import json
from collections import defaultdict
from dataclasses import replace
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import bindparam, select, text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.checks.commit import (
    BackendPair,
    BackendResults,
    CommitFacts,
    DispatchRun,
    FailedTestExcerpt,
    GrantedWaiver,
    JobResult,
    MergeSubject,
    Verification,
)
from crcr.decide.dispatch.ordering import has_landed
from crcr.decide.dispatch.plan import base_branch
from crcr.decide.failures.verdict import Confidence, Evidence, EvidenceKind, Verdict, VerdictKind
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.oidc.identity import IssuerKind
from crcr.decide.pairs.depends_on import PullReference
from crcr.decide.pairs.pair import DependencyState, Refusal
from crcr.record.checks.waivers import waivers_in_force
from crcr.record.deliveries.merge_groups import load_group
from crcr.record.deliveries.pull_requests import find_newest_delivery
from crcr.record.repositories.renames import Listing, find_listings
from crcr.record.schema.main_tables import jobs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us

_FIRST_FAILURES = 50

# `upstream || ''` is in no index: SQLite would read all pull requests of the upstream in place of the index of open heads.
_PULLS = Statement(
    text(
        "SELECT number, labels, updated_at, base_ref FROM pulls"
        " WHERE head_sha = :head_sha AND upstream || '' = :upstream AND is_open = 1"
        " UNION SELECT p.number, p.labels, p.updated_at, p.base_ref FROM effects e"
        " JOIN deliveries v ON v.guid = e.delivery AND v.upstream = e.upstream"
        " JOIN pulls p ON p.upstream = v.upstream AND p.number = v.number"
        " WHERE e.upstream = :upstream AND e.target = :upstream AND e.state IN ('waiting', 'claimed')"
        " AND e.kind = 'confirm_head' AND v.state = 'in_doubt' AND v.action <> 'closed' AND v.head_sha = :head_sha"
        " ORDER BY number"
    )
)
_OPEN_PULL = Statement(
    text(
        "SELECT number, head_sha, base_ref, labels, updated_at FROM pulls WHERE upstream = :upstream"
        " AND number = :number AND is_open = 1"
    )
)
# Found by the deliveries of the head: closed pull requests have no index by their head. A delivery without a number matches
# none of them; a condition about it would make SQLite read the deliveries of all pull requests.
_CLOSED_PULLS = Statement(
    text(
        "SELECT merged, labels FROM pulls p WHERE p.upstream = :upstream AND p.is_open = 0 AND p.head_sha = :head_sha"
        " AND p.number IN (SELECT v.number FROM deliveries v WHERE v.head_sha = :head_sha AND v.upstream = :upstream)"
    )
)
_DISPATCHES = Statement(
    text(
        "SELECT d.delivery, d.downstream, d.level, d.state, d.reason, d.created_at, d.sent_at, d.listed_at,"
        " d.repository_id, d.downgraded, r.repository_id AS bound_id, r.name,"
        # The permission at the time of the dispatch counts: revoking it later must not let anything pass.
        " coalesce(d.reads_actions, r.reads_actions) AS reads_actions"
        " FROM dispatches d LEFT JOIN repositories r ON r.upstream = d.upstream AND r.downstream = d.downstream"
        " WHERE d.delivery = :delivery AND d.upstream = :upstream AND d.level >= 3 AND d.imported = 0 ORDER BY d.downstream"
    )
)
_PAIRS = Statement(
    text(
        "SELECT downstream, dependency, name, state, refusal, head_sha, delivery, plain, tested_sha, round, tested_round"
        " FROM pairs"
        " WHERE upstream = :upstream AND number = :number ORDER BY in_text DESC, place, created_at, downstream, dependency"
    )
)
_RUNS = Statement(
    text(
        "SELECT downstream, run_id, workflow, superseded, first_seen_at, attempt, attempt_at, over_attempt, rerun_from,"
        " rerun_at, conclusion, issuer FROM runs WHERE delivery = :delivery AND upstream = :upstream ORDER BY first_seen_at, run_id"
    )
)
_JOB_COLUMNS = (
    *("downstream", "workflow", "workflow_name", "run_id", "attempt", "job_name", "state", "conclusion"),
    *("verification", "superseded", "github_conclusion", "environment", "url", "artifact_url"),
    *("in_progress_at", "completed_at", "swept_at", "tests_passed", "tests_failed", "tests_skipped"),
    *("failed_tests", "failed_tests_cut", "log_excerpt"),
)
_JOBS = Statement(
    select(*(jobs.c[name] for name in _JOB_COLUMNS))
    .where(
        jobs.c.delivery == bindparam("delivery"),
        jobs.c.upstream == bindparam("upstream"),
        jobs.c.level >= 3,
        jobs.c.imported == 0,
    )
    .order_by(jobs.c.downstream, jobs.c.workflow, jobs.c.run_id, jobs.c.attempt, jobs.c.job_name)
)


_EVIDENCE = msgspec.json.Decoder(list[Evidence])
_LOG_EXCERPT = msgspec.json.Decoder(LogExcerpt)
_VERDICTS = Statement(
    text(
        "SELECT downstream, workflow, run_id, attempt, job_name, verdict, confidence, sentence, evidence FROM failures"
        " WHERE delivery = :delivery AND upstream = :upstream AND verdict IS NOT NULL"
    )
)
# A merge group's commit counts once it is on the branch.
_BASE_TESTS = Statement(
    text(
        "SELECT j.failed_tests FROM failures f JOIN base_commits c ON c.sha = f.head_sha AND c.upstream = f.upstream"
        " AND c.ref = f.base_ref JOIN jobs j ON j.delivery = f.delivery AND j.upstream = f.upstream"
        " AND j.downstream = f.downstream AND j.workflow = f.workflow AND j.run_id = f.run_id AND j.attempt = f.attempt"
        " AND j.job_name = f.job_name WHERE f.upstream = :upstream AND f.kind <> 'pull_request'"
        " AND f.kind IN ('push', 'nightly') AND f.downstream = :downstream AND f.workflow = :workflow"
        " AND f.job_name = :job_name AND f.head_sha = :sha"
    )
)
_JobKey = tuple[str, str, str, int, str]


async def load_commit(
    tx: Tx, upstream: RepoName, head_sha: str, allowlist: Allowlist, now: datetime
) -> CommitFacts:
    """Everything recorded about the commit; no subjects when no open pull request or merge group has this head."""
    subjects = [
        *await _pull_subjects(tx, upstream, head_sha, allowlist, now),
        *await _group_subject(tx, upstream, head_sha, allowlist, now),
    ]
    landed = not subjects and await _has_landed(tx, upstream, head_sha)
    return CommitFacts(upstream=upstream, head_sha=head_sha, subjects=tuple(subjects), landed=landed)


async def _has_landed(tx: Tx, upstream: RepoName, head_sha: str) -> bool:
    """Whether a pull request or merge group with this head was merged."""
    key = {"head_sha": head_sha, "upstream": upstream.key}
    group = await load_group(tx, upstream, head_sha)
    if group is not None and group["merged"]:
        return True
    closed = await tx.all(_CLOSED_PULLS, **key)
    return any(has_landed(json.loads(row["labels"]), merged=bool(row["merged"])) for row in closed)


async def _pull_subjects(
    tx: Tx, upstream: RepoName, head_sha: str, allowlist: Allowlist, now: datetime
) -> list[MergeSubject]:
    pulls = await tx.all(_PULLS, head_sha=head_sha, upstream=upstream.key)
    return [await _pull_subject(tx, upstream, pull, head_sha, allowlist, now=now) for pull in pulls]


async def _pull_subject(
    tx: Tx, upstream: RepoName, pull: Row, head_sha: str, allowlist: Allowlist, *, now: datetime
) -> MergeSubject:
    number = pull["number"]
    where = {"head_sha": head_sha, "base_ref": pull["base_ref"]}
    delivery = await find_newest_delivery(tx, upstream, number, **where)
    if delivery is None:
        return _unheard(pull)
    return MergeSubject(
        number=number,
        base_ref=pull["base_ref"],
        delivery=delivery["guid"],
        in_doubt=delivery["state"] == "in_doubt",
        received_at=from_us(delivery["received_at"]),
        labels=tuple(json.loads(pull["labels"])),
        backends=await _backends(tx, upstream, delivery["guid"], allowlist),
        waivers=await waivers_in_force(tx, upstream, (number,), to_us(now), **where),
        pairs=await _pairs(tx, upstream, number, delivery["guid"], allowlist),
    )


async def _pairs(
    tx: Tx, upstream: RepoName, number: int, delivery: str, allowlist: Allowlist
) -> tuple[BackendPair, ...]:
    """The pull requests that this one depends on, with the results for the heads that both have now."""
    rows = await tx.all(_PAIRS, upstream=upstream.key, number=number)
    return tuple([await _pair(tx, upstream, row, delivery, allowlist) for row in rows])


async def _pair(tx: Tx, upstream: RepoName, row: Row, delivery: str, allowlist: Allowlist) -> BackendPair:
    tested = (row["plain"], row["tested_sha"], row["tested_round"])
    is_current = tested == (delivery, row["head_sha"], row["round"])
    state, refusal = DependencyState(row["state"]), Refusal(row["refusal"]) if row["refusal"] else None
    results: tuple[BackendResults, ...] = ()
    if row["delivery"] is not None and is_current and state is DependencyState.OPEN and refusal is None:
        results = await _backends(tx, upstream, row["delivery"], allowlist)
    return BackendPair(
        downstream=row["downstream"],
        reference=PullReference(RepoName(row["name"]), row["dependency"]),
        state=state,
        refusal=refusal,
        results=next(iter(results), None),
    )


def _unheard(pull: Row) -> MergeSubject:
    """An open pull request whose event has not arrived: its backends are not known yet."""
    return MergeSubject(
        number=pull["number"],
        base_ref=pull["base_ref"],
        delivery="",
        in_doubt=True,
        received_at=from_us(pull["updated_at"]),
        labels=tuple(json.loads(pull["labels"])),
    )


async def _group_subject(
    tx: Tx, upstream: RepoName, head_sha: str, allowlist: Allowlist, now: datetime
) -> list[MergeSubject]:
    group = await load_group(tx, upstream, head_sha)
    if group is None or group["destroyed_at"] is not None:
        return []
    numbers = None if group["numbers"] is None else tuple(json.loads(group["numbers"]))
    base_ref = base_branch(group["base_ref"])
    waivers: tuple[GrantedWaiver, ...] = ()
    if numbers:
        waivers = await waivers_in_force(tx, upstream, numbers, to_us(now), base_ref=base_ref)
    subject = MergeSubject(
        number=None,
        base_ref=base_ref,
        numbers=numbers,
        delivery=group["delivery"],
        received_at=from_us(group["created_at"]),
        backends=await _backends(tx, upstream, group["delivery"], allowlist),
        waivers=waivers,
        reused_from=group["reused_from"],
        own_heads=await _own_heads(tx, upstream, group, allowlist, now) if waivers else (),
    )
    return [subject]


async def _own_heads(
    tx: Tx, upstream: RepoName, group: Row, allowlist: Allowlist, now: datetime
) -> tuple[MergeSubject, ...]:
    """The open pull requests of a group at their own heads, without those pushed to since the group was created."""
    heads = []
    for number in json.loads(group["numbers"] or "[]"):
        pull = await tx.one(_OPEN_PULL, upstream=upstream.key, number=number)
        if pull is not None:
            own = await _pull_subject(tx, upstream, pull, pull["head_sha"], allowlist, now=now)
            heads.append(own)
    created_at = from_us(group["created_at"])
    return tuple(own for own in heads if own.received_at <= created_at)


async def _backends(
    tx: Tx, upstream: RepoName, delivery: str, allowlist: Allowlist
) -> tuple[BackendResults, ...]:
    key = {"delivery": delivery, "upstream": upstream.key}
    dispatches = await tx.all(_DISPATCHES, **key)
    if not dispatches:
        return ()
    runs: dict[str, list[DispatchRun]] = defaultdict(list)
    for row in await tx.all(_RUNS, **key):
        runs[row["downstream"]].append(_run(row))
    job_rows = await tx.all(_JOBS, **key)
    verdicts = await _verdicts(tx, key) if any(map(_may_have_failed, job_rows)) else {}
    jobs_by_backend: dict[str, list[JobResult]] = defaultdict(list)
    for row in job_rows:
        job = _job(row, verdicts.get(_job_key(row)))
        if job.verdict is not None and job.verdict.confidence is Confidence.HIGH:
            job = replace(job, unseen_failures=await _count_unseen(tx, upstream, row, job.verdict))
        jobs_by_backend[row["downstream"]].append(job)
    listings = await find_listings(tx, upstream, allowlist, dispatches)
    return tuple(
        _backend(
            row, listings[row["downstream"]], runs[row["downstream"]], jobs_by_backend[row["downstream"]]
        )
        for row in dispatches
    )


def _backend(row: Row, listing: Listing, runs: list[DispatchRun], jobs: list[JobResult]) -> BackendResults:
    recorded = RepoName(row["name"] or row["downstream"])
    renamed = listing.entry is not None and listing.entry.name != recorded
    name = listing.entry.name if listing.entry and renamed else recorded
    return BackendResults(
        name=name,
        entry=listing.entry,
        repository_id=listing.repository_id,
        dispatched_as=recorded if renamed else None,
        possible_renames=listing.unread,
        level=Level(row["level"]),
        downgraded=bool(row["downgraded"]),
        state=DispatchState(row["state"]),
        reason=row["reason"],
        created_at=from_us(row["created_at"]),
        sent_at=from_us_or_none(row["sent_at"]),
        listed_at=from_us_or_none(row["listed_at"]),
        readable=None if row["reads_actions"] is None else bool(row["reads_actions"]),
        runs=tuple(runs),
        jobs=tuple(jobs),
    )


def _run(row: Row) -> DispatchRun:
    return DispatchRun(
        run_id=row["run_id"],
        workflow=row["workflow"],
        attempt=row["attempt"],
        attempt_at=from_us(row["attempt_at"] or row["first_seen_at"]),
        first_seen_at=from_us(row["first_seen_at"]),
        superseded=bool(row["superseded"]),
        over=(row["over_attempt"] or 0) >= row["attempt"],
        conclusion=Conclusion(row["conclusion"]) if row["conclusion"] else None,
        on_github=row["issuer"] == IssuerKind.GITHUB.value,
        rerun_from=row["rerun_from"],
        rerun_at=from_us_or_none(row["rerun_at"]),
    )


def _may_have_failed(row: Row) -> bool:
    has_ended: bool = row["state"] != JobState.IN_PROGRESS.value
    return has_ended and row["conclusion"] != Conclusion.SUCCESS.value


def _job_key(row: Row) -> _JobKey:
    return row["downstream"], row["workflow"], row["run_id"], row["attempt"], row["job_name"]


async def _verdicts(tx: Tx, key: dict[str, str]) -> dict[_JobKey, Verdict]:
    """The verdicts of the rules on the delivery's failed jobs."""
    return {
        _job_key(row): Verdict(
            kind=VerdictKind(row["verdict"]),
            confidence=Confidence(row["confidence"]),
            sentence=row["sentence"],
            evidence=tuple(_EVIDENCE.decode(row["evidence"] or b"[]")),
        )
        for row in await tx.all(_VERDICTS, **key)
    }


async def _count_unseen(tx: Tx, upstream: RepoName, row: Row, verdict: Verdict) -> int:
    """How many of the job's failed tests failed in none of the base's results that the verdict cites."""
    names = {name: row[name] for name in ("downstream", "workflow", "job_name")}
    shas = {one.sha for one in verdict.evidence if one.kind is EvidenceKind.BASE and one.sha is not None}
    seen: set[tuple[str, str | None]] = set()
    for sha in sorted(shas):
        for base in await tx.all(_BASE_TESTS, upstream=upstream.key, sha=sha, **names):
            seen |= _test_names(base)
    return len(_test_names(row) - seen)


def _test_names(row: Row) -> set[tuple[str, str | None]]:
    return {(test["name"], test.get("file")) for test in json.loads(row["failed_tests"] or "[]")}


def _job(row: Row, verdict: Verdict | None) -> JobResult:
    conclusion = row["conclusion"]
    listed_tests = json.loads(row["failed_tests"] or "[]")
    return JobResult(
        workflow=row["workflow"],
        workflow_name=row["workflow_name"],
        run_id=row["run_id"],
        attempt=row["attempt"],
        name=row["job_name"],
        state=JobState(row["state"]),
        conclusion=Conclusion(conclusion) if conclusion else None,
        verification=Verification(row["verification"]),
        superseded=bool(row["superseded"]),
        unreported=row["state"] == JobState.TIMED_OUT.value and row["github_conclusion"] == "success",
        device=_device(row["environment"]),
        url=row["url"],
        artifact_url=row["artifact_url"],
        began_at=from_us(row["in_progress_at"]),
        ended_at=from_us_or_none(row["completed_at"] or row["swept_at"]),
        tests=(row["tests_passed"], row["tests_failed"], row["tests_skipped"]),
        verdict=verdict,
        failed_tests=_failed_tests(listed_tests),
        failed_tests_cut=row["failed_tests_cut"],
        log_excerpt=_LOG_EXCERPT.decode(row["log_excerpt"]) if row["log_excerpt"] else None,
        unlisted_failures=max(row["failed_tests_cut"], (row["tests_failed"] or 0) - len(listed_tests), 0),
    )


def _device(environment: str | None) -> str | None:
    """The device that the report names, if it is a string."""
    try:
        parsed: Any = json.loads(environment) if environment else None
    except ValueError:
        return None
    device = parsed.get("device") if isinstance(parsed, dict) else None
    return device if isinstance(device, str) else None


def _failed_tests(listed_tests: list[dict[str, Any]]) -> tuple[FailedTestExcerpt, ...]:
    return tuple(
        FailedTestExcerpt(name=test["name"], file=test.get("file"), message=test.get("message"))
        for test in listed_tests[:_FIRST_FAILURES]
    )
