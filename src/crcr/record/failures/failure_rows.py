"""The rows of failures: written with a failed result, and read back as the values that `decide.failures` judges."""

# ruff: noqa: S608 - every name in these statements is our own

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text

from crcr.decide.checks.check_run import Tier
from crcr.decide.dispatch.plan import base_branch
from crcr.decide.failures.fingerprint import (
    RULES,
    FailureFingerprint,
    LogFingerprint,
    fingerprint_failure,
    fingerprint_log,
    name_tests,
    sample_messages,
)
from crcr.decide.failures.history import TRUSTED_ASSOCIATIONS, FailedAs, RecordedFailure
from crcr.decide.failures.verdict import JobVerdict, VerdictKind
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import EffectKind, RepoName
from crcr.decide.statistics.window import ResultKind, result_kind
from crcr.record.checks.refresh import tier_queue
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.schema.failures import failed_tests, failure_fingerprints, failure_groups, failures
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, SumUpsert, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us

_ENCODE = msgspec.json.Encoder().encode
JOB_KEY = ("delivery", "upstream", "downstream", "workflow", "run_id", "attempt", "job_name")
_JOB_OF_DELIVERY = ("delivery", "upstream", "downstream", "workflow", "run_id", "job_name")
_COLUMNS = (
    *JOB_KEY,
    *("kind", "event", "number", "head_sha", "base_ref", "built_on", "built_on_exact", "author", "trusted"),
    *("at", "ended", "fingerprint", "rules", "sample", "fingerprints", "log_fingerprint"),
)
_ADD = Statement(inserting(failures, *_COLUMNS).on_conflict_do_nothing().returning(failures.c.failure_id))
_ADD_FINGERPRINT = Statement(
    inserting(failure_fingerprints, "fingerprint", "upstream", "failure_id").on_conflict_do_nothing()
)
_GROUP = SumUpsert.to(failure_groups, ("number",), lows=("first_at",), highs=("last_at",))
_TEST = SumUpsert.to(failed_tests, ("number",), highs=("last_at",))
_PULL = Statement(
    text(
        "SELECT head_sha, base_ref, base_sha, merge_base, author, author_association FROM pulls"
        " WHERE upstream = :upstream AND number = :number"
    )
)
_BASE_AT = Statement(
    text(
        "SELECT sha FROM base_commits WHERE upstream = :upstream AND ref = :ref AND pushed_at <= :at"
        " ORDER BY position DESC LIMIT 1"
    )
)
_GROUP_BASE = Statement(
    text("SELECT base_sha, base_ref FROM merge_groups WHERE head_sha = :head_sha AND upstream = :upstream")
)
_PLACED = Statement(
    text("SELECT 1 FROM base_commits WHERE sha = :sha AND upstream = :upstream AND ref = :ref")
)
_RECEIVED = Statement(
    text("SELECT received_at, ref FROM deliveries WHERE guid = :delivery AND upstream = :upstream")
)
_DEFAULT_BRANCH = Statement(text("SELECT default_branch FROM upstreams WHERE upstream = :upstream"))
_JUDGED = Statement(
    text(
        "UPDATE failures SET verdict = :verdict, confidence = :confidence, sentence = :sentence, evidence = :evidence,"
        " test_verdicts = :test_verdicts, judged_at = :at, verdict_before = :verdict_before,"
        " excused_at = CASE WHEN verdict = :verdict AND confidence = :confidence THEN excused_at END"
        " WHERE failure_id = :failure_id"
    )
)
# The delivery stands for the commit; nights of an unknown commit have none, and only runs of one night are the same.
_ON_COMMIT = (
    "{0}delivery = :delivery AND {0}upstream = :upstream AND {0}downstream = :downstream AND {0}workflow = :workflow"
    " AND {0}job_name = :job_name AND ({0}delivery <> '' OR {0}run_id = :run_id)"
)
# A reported pass that turned out to be a failure is no pass of the earlier ones either.
_PASSED_BEFORE = Statement(
    text(
        f"UPDATE failures SET passed_at = CASE WHEN EXISTS (SELECT 1 FROM jobs j WHERE {_ON_COMMIT.format('j.')}"
        f" AND j.conclusion = 'success' AND j.imported = 0) THEN coalesce(passed_at, :at) END WHERE {_ON_COMMIT.format('')}"
    )
)
_LIVE_GROUP = Statement(
    text(
        "SELECT m.upstream, m.head_sha FROM failures f JOIN merge_groups m ON m.head_sha = f.head_sha"
        " AND m.upstream = f.upstream WHERE f.failure_id = :failure_id AND m.destroyed_at IS NULL"
    )
)
_PASSED = Statement(
    text(f"UPDATE failures SET passed_at = :at WHERE {_ON_COMMIT.format('')} AND passed_at IS NULL")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedJob:
    """A result that failed, before it is recorded as a failure."""

    key: Mapping[str, Any]
    event: str
    number: int | None
    head_sha: str | None
    ended: FailedAs
    tests: tuple[FailedTest, ...]
    log_excerpt: LogExcerpt | None = None
    at: datetime
    tests_merged: bool = False
    """The backend tests the head merged into the base, not the head itself."""


async def add_failure(tx: Tx, job: FailedJob) -> int | None:
    """Write the failure with its fingerprints and groups; None when it is recorded already, or of no kind that counts."""
    kind = result_kind(job.event)
    if kind is None:
        return None
    marks, log_mark = fingerprint_failure(job.tests), find_log_mark(job.tests, job.log_excerpt)
    rows = await tx.all(
        _ADD,
        **{name: job.key[name] for name in JOB_KEY},
        kind=kind.value,
        event=job.event,
        number=job.number,
        head_sha=job.head_sha,
        **await _read_base(tx, job, kind),
        at=to_us(job.at),
        ended=job.ended.value,
        **fingerprint_columns(marks, log_mark),
    )
    if not rows:
        return None
    failure_id: int = rows[0]["failure_id"]
    groups = find_groups(job.tests, marks, log_mark)
    await add_fingerprints(tx, failure_id, job.key, groups, at=job.at)
    named = {name: job.key[name] for name in _JOB_OF_DELIVERY}
    await tx.run(_PASSED_BEFORE, at=to_us(job.at), **named)
    return failure_id


def find_log_mark(tests: Sequence[FailedTest], excerpt: LogExcerpt | None) -> LogFingerprint | None:
    """The log counts only where no failed test was reported."""
    return fingerprint_log(excerpt.first_error) if excerpt and not tests else None


def fingerprint_columns(marks: FailureFingerprint, log_mark: LogFingerprint | None) -> dict[str, Any]:
    return {
        "fingerprint": marks.fingerprint,
        "rules": RULES,
        "sample": log_mark.sample if log_mark else marks.sample,
        "fingerprints": " ".join(marks.distinct) or None,
        "log_fingerprint": log_mark.fingerprint if log_mark else None,
    }


@dataclass(frozen=True, slots=True)
class GroupsOfFailure:
    samples: Mapping[str, str]
    """The fingerprint of each group, with a readable line."""
    test_names: Sequence[tuple[str, str]] = ()
    """Fingerprints and names of the failed tests, for the search."""


def find_groups(
    tests: Sequence[FailedTest], marks: FailureFingerprint, log_mark: LogFingerprint | None
) -> GroupsOfFailure:
    """The groups that a failure belongs to."""
    if log_mark:
        return GroupsOfFailure({log_mark.fingerprint: log_mark.sample})
    samples = sample_messages(tests, marks)
    return GroupsOfFailure(
        {fingerprint: samples[fingerprint] for fingerprint in marks.distinct}, name_tests(tests, marks)
    )


async def add_fingerprints(
    tx: Tx,
    failure_id: int,
    names: Mapping[str, Any],
    groups: GroupsOfFailure,
    *,
    at: datetime,
) -> None:
    """Make the failure a member of the group of each of its fingerprints; `names` has its upstream and downstream."""
    upstream = names["upstream"]
    for fingerprint, sample in groups.samples.items():
        tx.add_up(
            _GROUP,
            (fingerprint, upstream, names["downstream"], sample),
            {"number": 1, "first_at": to_us(at), "last_at": to_us(at)},
        )
    for fingerprint, test in groups.test_names:
        key = (fingerprint, upstream, names["downstream"], test)
        tx.add_up(_TEST, key, {"number": 1, "last_at": to_us(at)})
    await tx.many(
        _ADD_FINGERPRINT,
        [
            {"fingerprint": fingerprint, "upstream": upstream, "failure_id": failure_id}
            for fingerprint in groups.samples
        ],
    )


async def _read_base(tx: Tx, job: FailedJob, kind: ResultKind) -> dict[str, Any]:
    """The base branch and the commit of it that the tested commit contains, and the author of the change."""
    upstream, none = job.key["upstream"], {"author": None, "trusted": 0}
    if job.event == "merge_group":
        return {**await _read_group_base(tx, job), **none}
    if kind is not ResultKind.PULLS or job.number is None:
        return {
            "base_ref": await _read_branch(tx, job),
            "built_on": job.head_sha,
            "built_on_exact": 1,
            **none,
        }
    pull = await tx.one(_PULL, upstream=upstream, number=job.number)
    if pull is None:
        return {"base_ref": None, "built_on": None, "built_on_exact": 0, **none}
    author = {
        "author": pull["author"].lower(),
        "trusted": int(pull["author_association"] in TRUSTED_ASSOCIATIONS),
    }
    ref = pull["base_ref"]
    if job.tests_merged:
        received = await tx.one(_RECEIVED, delivery=job.key["delivery"], upstream=upstream)
        newest = (
            await tx.one(_BASE_AT, upstream=upstream, ref=ref, at=received["received_at"])
            if received
            else None
        )
        built_on, exact = (newest["sha"] if newest else None), True
    elif pull["head_sha"] != job.head_sha:
        built_on, exact = None, False
    else:
        built_on, exact = pull["merge_base"] or pull["base_sha"], pull["merge_base"] is not None
    return {"base_ref": ref, "built_on": built_on, "built_on_exact": int(exact), **author}


async def _read_group_base(tx: Tx, job: FailedJob) -> dict[str, Any]:
    """The base commit that a merge group was built on; exact unless that is another group's, which the base does not have."""
    upstream = job.key["upstream"]
    group = await tx.one(_GROUP_BASE, head_sha=job.head_sha, upstream=upstream)
    if group is None:
        return {"base_ref": await _read_branch(tx, job), "built_on": None, "built_on_exact": 0}
    ref, base_sha = base_branch(group["base_ref"]), group["base_sha"]
    placed = await tx.one(_PLACED, upstream=upstream, ref=ref, sha=base_sha)
    return {"base_ref": ref, "built_on": base_sha, "built_on_exact": int(placed is not None)}


async def _read_branch(tx: Tx, job: FailedJob) -> str | None:
    """The branch that a push was to; else the default branch."""
    if job.event == "push":
        row = await tx.one(_RECEIVED, delivery=job.key["delivery"], upstream=job.key["upstream"])
        if row is not None and row["ref"]:
            return str(row["ref"]).removeprefix("refs/heads/")
    row = await tx.one(_DEFAULT_BRANCH, upstream=job.key["upstream"])
    return row["default_branch"] if row else None


async def note_pass(tx: Tx, key: Mapping[str, Any], now: datetime) -> bool:
    """The job passed on the same commit; False when it had not failed there."""
    named = {name: key[name] for name in _JOB_OF_DELIVERY}
    return bool(await tx.run(_PASSED, at=to_us(now), **named))


async def write_verdict(tx: Tx, row: Row, judged: JobVerdict, now: datetime) -> bool:
    """Record the verdict if its kind or confidence differs from the recorded one; return whether it was recorded.

    Evidence that only grows is not worth a write for each of its failures: the sentence says what decided. A verdict by other
    fingerprints than the present ones is always written anew.
    """
    verdict = judged.verdict
    is_same = (row["verdict"], row["confidence"]) == (verdict.kind.value, verdict.confidence.value)
    if is_same and row["judged_at"] is not None:
        return False
    await tx.run(
        _JUDGED,
        failure_id=row["failure_id"],
        verdict=verdict.kind.value,
        confidence=verdict.confidence.value,
        sentence=verdict.sentence,
        evidence=_ENCODE(verdict.evidence) if verdict.evidence else None,
        test_verdicts=_ENCODE(judged.by_fingerprint) if judged.by_fingerprint else None,
        at=to_us(now),
        verdict_before=row["verdict"]
        if row["verdict"] not in (None, verdict.kind.value)
        else row["verdict_before"],
    )
    if row["event"] == "merge_group":
        await _refresh_group(tx, row["failure_id"], now)
    return True


async def _refresh_group(tx: Tx, failure_id: int, now: datetime) -> None:
    """Judge the gate of a live merge group again: an excuse in it may have come or gone."""
    group = await tx.one(_LIVE_GROUP, failure_id=failure_id)
    if group is not None:
        refresh = effect_row(
            RepoName(group["upstream"]),
            EffectKind.PUBLISH_CHECKS,
            target=tier_queue(Tier.GATE),
            lane=group["head_sha"],
            now=now,
        )
        await add_once(tx, refresh)


def read_failure(row: Row) -> RecordedFailure:
    """Needs the columns of `failures`, `position` of its `built_on`, `landed` and `stacked_on` of its pull request.

    The results of a push and of a night are built on their own commit.
    """
    return RecordedFailure(
        failure_id=row["failure_id"],
        kind=ResultKind(row["kind"]),
        number=row["number"],
        head_sha=row["head_sha"],
        base_ref=row["base_ref"],
        position=row["position"],
        exact=bool(row["built_on_exact"]),
        author=row["author"],
        trusted=bool(row["trusted"]),
        at=from_us(row["at"]),
        ended=FailedAs(row["ended"]),
        fingerprints=frozenset((row["fingerprints"] or "").split()),
        passed_at=from_us_or_none(row["passed_at"]),
        workflow=row["workflow"],
        attempt=row["attempt"],
        run_id=row["run_id"],
        on_branch=row["position"] is not None and row["built_on"] == row["head_sha"],
        landed=bool(row["landed"]),
        infrastructure=row["verdict"] == VerdictKind.INFRASTRUCTURE.value,
        stacked_on=frozenset(json.loads(row["stacked_on"] or "[]")),
    )


def history_start(now: datetime, window: timedelta) -> int:
    return to_us(now - window)
