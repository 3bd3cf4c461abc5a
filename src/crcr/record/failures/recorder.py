"""Follows each counted result: records a failure, judges it, and judges others anew whose history it changes.

Runs in the transaction of the result. All facts that a verdict rests on belong to one backend and are written in its lane,
so no other report can change them meanwhile; the order of the base's commits is written by webhooks, which run alone.

- A failure is recorded and judged; other failures of the same job are judged again, since it may explain them.
- A pass on a commit where the job had failed, and every result of the base, does the same for the job's failures.
- When a backend turns out to be sick, all its failures of the hour are judged again.
- So are the failures of a delivery when its merge base becomes known, and those whose fingerprints were computed again.
- A passing first run on a pull request changes nothing, and costs nothing.
"""

import json
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import text

from crcr.decide.failures.history import BackendHour, FailedAs, RecordedFailure
from crcr.decide.failures.judge import judge_failure
from crcr.decide.failures.sick_fleet import is_contradicted
from crcr.decide.failures.verdict import Confidence, JobVerdict, VerdictKind, VerdictPolicy
from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import Conclusion, RepoName
from crcr.decide.statistics.figures import EndedAs
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.failures.failure_rows import JOB_KEY, FailedJob, add_failure, note_pass, write_verdict
from crcr.record.failures.job_history import LoadedHistory, load_history, load_hour
from crcr.record.notices.threads import mark_backend
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us

_MOST_JUDGED_AGAIN = 20
_JUDGED_AGAIN_FOR = timedelta(days=1)
"""How long the verdict on a failure may change; longer on a pull request that is open."""
_MOST_SICK_JOBS = 20
_SICK_AGAIN = timedelta(days=1)
_JOB = Statement(
    text(
        "SELECT j.event, j.number, j.head_sha, j.conclusion, j.ended_as, j.superseded, j.failed_tests, j.log_excerpt, j.completed_at,"
        " j.swept_at, j.in_progress_at, coalesce(d.test, 0) AS test, coalesce(d.tests_merged, 0) AS tests_merged,"
        " d.superseded_at FROM jobs j LEFT JOIN dispatches d ON d.delivery = j.delivery AND d.upstream = j.upstream"
        " AND d.downstream = j.downstream WHERE j.delivery = :delivery AND j.upstream = :upstream"
        " AND j.downstream = :downstream AND j.workflow = :workflow AND j.run_id = :run_id AND j.attempt = :attempt"
        " AND j.job_name = :job_name"
    )
)
_BASES = Statement(
    text(
        "SELECT DISTINCT f.base_ref, f.workflow FROM failures f LEFT JOIN pulls p ON p.upstream = f.upstream"
        " AND p.number = f.number WHERE f.upstream = :upstream AND f.downstream = :downstream AND f.job_name = :job_name"
        " AND f.at >= :since AND (f.workflow = :workflow OR :nightly = 1) AND (f.at >= :recent OR p.is_open = 1)"
    )
)
_FAILED_JOBS = Statement(
    text(
        "SELECT DISTINCT upstream, downstream, workflow, job_name, base_ref FROM failures WHERE delivery = :delivery"
        " AND upstream = :upstream LIMIT :most"
    )
)
_UNJUDGED_JOBS = Statement(
    text(
        "SELECT DISTINCT upstream, downstream, workflow, job_name, base_ref FROM failures WHERE judged_at IS NULL"
        " AND at >= :since LIMIT :most"
    )
)
_MARK_JUDGED = Statement(
    text(
        "UPDATE failures SET judged_at = :at WHERE upstream = :upstream AND downstream = :downstream"
        " AND job_name = :job_name AND workflow = :workflow AND judged_at IS NULL"
    )
)
_LOG_EXCERPT = msgspec.json.Decoder(LogExcerpt)
_BASE_REF = Statement(text("SELECT base_ref FROM failures WHERE failure_id = :failure_id"))
_NIGHTLY = frozenset({"nightly", "periodic"})
_EXCUSABLE = frozenset({VerdictKind.PRE_EXISTING.value, VerdictKind.FLAKY.value})
_NAMES = ("upstream", "downstream", "workflow", "job_name")
_FAILED_AS = {
    EndedAs.FAILURE.value: FailedAs.FAILURE,
    EndedAs.TIMED_OUT.value: FailedAs.TIMED_OUT,
    EndedAs.SILENT.value: FailedAs.SILENT,
}


class FailureRecorder:
    def __init__(
        self, refresher: CheckRefresher, policies: Mapping[str, VerdictPolicy] | None = None
    ) -> None:
        """`policies` are by upstream; the others have the defaults."""
        self._refresher = refresher
        self._policies = policies or {}

    async def follow(self, tx: Tx, key: Mapping[str, Any], now: datetime) -> None:
        """Follow one job whose category in the sums was just written."""
        job = {name: key[name] for name in JOB_KEY}
        row = await tx.one(_JOB, **job)
        if row is None or row["test"]:
            return
        failed_as = _failed_as(row)
        if failed_as is not None:
            await self._follow_failure(tx, job, row, failed_as, now)
        elif row["ended_as"] == EndedAs.SUCCESS.value:
            flipped = await note_pass(tx, job, now)
            if flipped or row["event"] != "pull_request":
                await self._judge_job(tx, job, now, nightly=row["event"] in _NIGHTLY)

    async def judge_delivery(self, tx: Tx, upstream: RepoName, delivery: str, now: datetime) -> None:
        """Judge the failures of a delivery again: the base commit that its head was built on became known."""
        rows = await tx.all(_FAILED_JOBS, upstream=upstream.key, delivery=delivery, most=_MOST_JUDGED_AGAIN)
        for row in rows:
            await self._judge_row(tx, row, now)

    async def judge_unjudged(self, tx: Tx, now: datetime, most: int) -> int:
        """Judge the failures of some jobs that have no verdict by their present fingerprints; return how many jobs."""
        longest = max(policy.window for policy in (*self._policies.values(), VerdictPolicy()))
        rows = await tx.all(_UNJUDGED_JOBS, since=to_us(now - longest), most=most)
        for row in rows:
            await self._judge_row(tx, row, now)
        for row in rows:
            # Those that are too many or too old for a verdict are not looked at again.
            await tx.run(_MARK_JUDGED, at=to_us(now), **{name: row[name] for name in _NAMES})
        return len(rows)

    async def _judge_row(self, tx: Tx, row: Row | dict[str, Any], now: datetime) -> None:
        names = {name: row[name] for name in _NAMES}
        loaded = await load_history(tx, names, row["base_ref"], now, self._policy(names["upstream"]))
        await self._judge_others(tx, names, loaded, row["base_ref"], now, because_of=None)

    async def _follow_failure(
        self, tx: Tx, job: dict[str, Any], row: Row, failed_as: FailedAs, now: datetime
    ) -> None:
        failure_id = await add_failure(
            tx,
            FailedJob(
                key=job,
                event=row["event"],
                number=row["number"],
                head_sha=row["head_sha"],
                ended=failed_as,
                tests=read_failed_tests(row["failed_tests"]),
                log_excerpt=read_log_excerpt(row["log_excerpt"]),
                at=from_us(row["completed_at"] or row["swept_at"] or row["in_progress_at"]),
                tests_merged=bool(row["tests_merged"]),
            ),
        )
        if failure_id is not None:
            await self._judge_newest(tx, {name: job[name] for name in _NAMES}, failure_id, now)
            if row["event"] != "pull_request":
                await self._judge_job(tx, job, now, nightly=row["event"] in _NIGHTLY)
                await mark_backend(tx, job["upstream"], job["downstream"], now)

    async def _judge_job(self, tx: Tx, job: Mapping[str, Any], now: datetime, *, nightly: bool) -> None:
        """Judge the job's failures of the window again: the base has a new result, or a commit passed after all.

        A nightly result concerns the job of that name in every workflow.
        """
        names = {name: job[name] for name in _NAMES}
        times = {"since": to_us(now - self._policy(names["upstream"]).window)}
        times["recent"] = to_us(now - _JUDGED_AGAIN_FOR)
        for row in await tx.all(_BASES, nightly=int(nightly), **times, **names):
            await self._judge_row(
                tx, {**names, "workflow": row["workflow"], "base_ref": row["base_ref"]}, now
            )

    async def _judge_newest(self, tx: Tx, names: dict[str, Any], failure_id: int, now: datetime) -> None:
        """Judge a failure that was just recorded, and those that it may explain."""
        row = await tx.one(_BASE_REF, failure_id=failure_id)
        ref = row["base_ref"] if row else None
        loaded = await load_history(tx, names, ref, now, self._policy(names["upstream"]))
        failure = loaded.find(failure_id)
        if failure is not None:
            await self._judge_with_hour(tx, names, failure, loaded, now)
            await self._judge_others(tx, names, loaded, ref, now, because_of=failure)

    async def _judge_with_hour(
        self, tx: Tx, names: dict[str, Any], failure: RecordedFailure, loaded: LoadedHistory, now: datetime
    ) -> None:
        policy = self._policy(names["upstream"])
        hour, rows = await load_hour(tx, names, failure, policy)
        judged = judge_failure(failure, loaded.history, hour, policy)
        await write_verdict(tx, loaded.rows[failure.failure_id], judged, now)
        is_sick = judged.verdict.kind is VerdictKind.INFRASTRUCTURE and failure.ended is FailedAs.FAILURE
        if is_sick:
            await self._judge_sick_hour(tx, names, hour, rows, now)

    async def _judge_sick_hour(
        self, tx: Tx, names: dict[str, Any], hour: BackendHour, rows: list[Row], now: datetime
    ) -> None:
        """Judge the backend's other failures of the hour again, job by job."""
        policy = self._policy(names["upstream"])
        waiting = [row for row in rows if row["verdict"] not in (VerdictKind.INFRASTRUCTURE.value, None)]
        jobs = {(row["workflow"], row["job_name"], row["base_ref"]) for row in waiting}
        for workflow, job_name, ref in sorted(jobs, key=str)[:_MOST_SICK_JOBS]:
            job = {**names, "workflow": workflow, "job_name": job_name}
            loaded = await load_history(tx, job, ref, now, policy)
            for row in waiting:
                failure = loaded.find(row["failure_id"])
                if failure is not None:
                    judged = judge_failure(failure, loaded.history, hour, policy)
                    await self._write(tx, names, loaded.rows[failure.failure_id], judged, now)

    async def _judge_others(
        self,
        tx: Tx,
        names: dict[str, Any],
        loaded: LoadedHistory,
        ref: str | None,
        now: datetime,
        *,
        because_of: RecordedFailure | None,
    ) -> None:
        """Judge the job's newest failures again, and all that a gate may excuse; a new one changes those that it is like."""
        policy = self._policy(names["upstream"])
        concerned = [
            failure
            for failure in loaded.history.failures
            if failure.base_ref == ref
            and _may_change(failure, loaded.rows[failure.failure_id], now)
            and (because_of is None or _is_alike(failure, because_of))
        ]
        excusable = [one for one in concerned if _is_excusable(loaded.rows[one.failure_id])]
        others = [one for one in concerned if not _is_excusable(loaded.rows[one.failure_id])]
        for failure in (*excusable, *others[:_MOST_JUDGED_AGAIN]):
            row = loaded.rows[failure.failure_id]
            was_sick = failure.infrastructure and failure.ended is FailedAs.FAILURE
            hour = BackendHour()
            if because_of is None and now - failure.at <= _SICK_AGAIN and not was_sick:
                # Passes that came since may show that the machines were to blame.
                hour, _ = await load_hour(tx, names, failure, policy)
            judged = judge_failure(failure, loaded.history, hour, policy)
            if not was_sick or is_contradicted(failure, judged.verdict, loaded.history):
                await self._write(tx, names, row, judged, now)

    async def _write(
        self, tx: Tx, names: dict[str, Any], row: Row, judged: JobVerdict, now: datetime
    ) -> None:
        """Record a changed verdict, and publish it where the pull request is open."""
        if not await write_verdict(tx, row, judged, now) or row["number"] is None or not row["is_open"]:
            return
        upstream = RepoName(names["upstream"])
        await note_change(
            tx,
            upstream,
            "job",
            downstream=names["downstream"],
            delivery=row["delivery"],
            number=row["number"],
            now=now,
        )
        if row["head_sha"]:
            await self._refresher.request_refresh_if_shown(tx, upstream, (row["head_sha"],), now)

    def _policy(self, upstream: str) -> VerdictPolicy:
        return self._policies.get(upstream) or VerdictPolicy()


def _may_change(failure: RecordedFailure, row: Row, now: datetime) -> bool:
    """Whether anybody still acts on the verdict, or it has none by the present fingerprints."""
    return bool(row["is_open"]) or row["judged_at"] is None or now - failure.at <= _JUDGED_AGAIN_FOR


def _is_excusable(row: Row) -> bool:
    """Whether the gate of an open pull request may rest on the verdict."""
    return (
        bool(row["is_open"]) and row["confidence"] == Confidence.HIGH.value and row["verdict"] in _EXCUSABLE
    )


def _is_alike(failure: RecordedFailure, newest: RecordedFailure) -> bool:
    if failure.failure_id == newest.failure_id:
        return False
    return bool(failure.fingerprints & newest.fingerprints) or failure.fingerprints == newest.fingerprints


def _failed_as(row: Row) -> FailedAs | None:
    """How the job failed; None for a pass, a result that no longer counts, and one that is neither."""
    if (
        row["conclusion"] == Conclusion.CANCELLED.value
        and not row["superseded"]
        and row["superseded_at"] is None
    ):
        return FailedAs.CANCELLED if row["ended_as"] == EndedAs.OTHER.value else None
    return _FAILED_AS.get(row["ended_as"])


def read_log_excerpt(column: str | None) -> LogExcerpt | None:
    return _LOG_EXCERPT.decode(column) if column else None


def read_failed_tests(column: str | None) -> tuple[FailedTest, ...]:
    return tuple(
        FailedTest(test["name"], test.get("file"), test.get("message")) for test in json.loads(column or "[]")
    )
