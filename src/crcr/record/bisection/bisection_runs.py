"""The runs of a bisection as they are recorded: what each reported about the job, and the results that are new."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.bisection.run_results import BisectedJob, choose_target, classify_run
from crcr.decide.bisection.search import RunResult, SearchRun
from crcr.decide.failures.fingerprint import fingerprint_failure
from crcr.decide.model import BISECTION_EVENT, Conclusion, DispatchState, EffectKind, JobState, RepoName
from crcr.record.deliveries.dispatches import drop_delivery
from crcr.record.failures.recorder import read_failed_tests
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us_or_none, to_us

_LOOK_UP_TIME = timedelta(hours=1)
"""A silent job is looked up at GitHub before it has timed out."""
_MOST_SAMPLE = 300
_FAILURES = frozenset({RunResult.FAILED, RunResult.FAILED_OTHERWISE})

# All attempts of the job in each run of the bisection; a run without any has one row.
_RUNS = Statement(
    text(
        "SELECT r.number, r.delivery, r.position, r.result, r.sample, r.url, r.failed_run, r.fingerprints,"
        " d.state AS dispatch_state, d.sent_at, j.state, j.conclusion, j.expected, j.superseded, j.tests_total,"
        " j.url AS job_url, j.run_id, j.attempt"
        " FROM bisection_runs r LEFT JOIN dispatches d ON d.delivery = r.delivery AND d.upstream = r.upstream"
        " AND d.downstream = :downstream LEFT JOIN jobs j ON j.delivery = r.delivery AND j.upstream = r.upstream"
        " AND j.downstream = :downstream AND j.workflow = :workflow AND j.job_name = :job_name"
        " WHERE r.bisection_id = :bisection_id AND r.upstream = :upstream ORDER BY r.number, j.attempt, j.run_id"
    )
)
_FAILED_TESTS = Statement(
    text(
        "SELECT failed_tests FROM jobs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND workflow = :workflow AND run_id = :run_id AND attempt = :attempt AND job_name = :job_name"
    )
)
_NOTE_FAILURE = Statement(
    text(
        "UPDATE bisection_runs SET failed_run = :failed_run, fingerprints = :fingerprints, sample = :sample"
        " WHERE bisection_id = :bisection_id AND number = :number AND upstream = :upstream"
    )
)
_SET_RESULT = Statement(
    text(
        "UPDATE bisection_runs SET result = :result, sample = :sample, url = :url, finished_at = :finished_at"
        " WHERE bisection_id = :bisection_id AND number = :number AND upstream = :upstream"
    )
)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """One run with the job that it reported, if it did."""

    row: Row
    job: BisectedJob | None = None
    sample: str | None = None
    job_url: str | None = None

    @property
    def position(self) -> int:
        return int(self.row["position"])

    def is_over(self, timeout: timedelta, now: datetime) -> bool:
        """Whether nothing is waited for: its dispatch will not be sent, or was answered by silence."""
        if self.row["dispatch_state"] not in (DispatchState.WAITING.value, DispatchState.SENT.value):
            return True
        sent_at = from_us_or_none(self.row["sent_at"])
        return sent_at is not None and now >= sent_at + timeout + _LOOK_UP_TIME


async def request_advance(tx: Tx, dispatch: Mapping[str, Any], now: datetime) -> None:
    """Have the bisection advanced that a dispatch is a run of, after a result of it was recorded; no other dispatch."""
    if dispatch["event"] == BISECTION_EVENT:
        upstream, delivery = dispatch["upstream"], dispatch["delivery"]
        effect = effect_row(
            upstream,
            EffectKind.ADVANCE_BISECTION,
            # With the backend's name: the list of effects shows those of hidden backends to administrators only.
            target=f"bisections {dispatch['downstream']}",
            lane=delivery,
            delivery=delivery,
            now=now,
        )
        await add_once(tx, effect)


async def read_runs(tx: Tx, bisection: Row) -> list[RecordedRun]:
    """The runs in their order, each with the attempt of its job that counts."""
    names = ("bisection_id", "upstream", "downstream", "workflow", "job_name")
    by_number: dict[int, list[Row]] = {}
    for row in await tx.all(_RUNS, **{name: bisection[name] for name in names}):
        by_number.setdefault(row["number"], []).append(row)
    runs = [_choose_attempt(attempts) for attempts in by_number.values()]
    return [await _add_failure(tx, bisection, run) for run in runs]


async def _add_failure(tx: Tx, bisection: Row, run: RecordedRun) -> RecordedRun:
    """A failed run with its fingerprints.

    A job that fails a thousand tests takes a fifth of a second to fingerprint, and each step reads all runs: it is done once.
    """
    if run.job is None or not run.job.has_failed:
        return run
    failed_run = f"{run.row['run_id']}/{run.row['attempt']}"
    if run.row["failed_run"] == failed_run:
        marks, sample = (run.row["fingerprints"] or "").split(), run.row["sample"]
    else:
        marks, sample = await _fingerprint(tx, bisection, run)
        noted = {"failed_run": failed_run, "fingerprints": " ".join(marks) or None, "sample": sample}
        key = {"bisection_id": bisection["bisection_id"], "upstream": bisection["upstream"]}
        await tx.run(_NOTE_FAILURE, number=run.row["number"], **key, **noted)
    return replace(run, job=replace(run.job, fingerprints=frozenset(marks)), sample=sample)


async def _fingerprint(tx: Tx, bisection: Row, run: RecordedRun) -> tuple[list[str], str | None]:
    names = {name: bisection[name] for name in ("upstream", "downstream", "workflow", "job_name")}
    place = {name: run.row[name] for name in ("delivery", "run_id", "attempt")}
    row = await tx.one(_FAILED_TESTS, **names, **place)
    marks = fingerprint_failure(read_failed_tests(row["failed_tests"] if row else None))
    return sorted(marks.distinct), marks.sample[:_MOST_SAMPLE] if marks.sample else None


async def take_results(
    tx: Tx, bisection: Row, *, bad_end: int, timeout: timedelta, now: datetime
) -> tuple[list[SearchRun], bool]:
    """Judge the runs by what they reported, and write the results that are new; return whether there are any."""
    runs = await read_runs(tx, bisection)
    recorded = frozenset((bisection["fingerprints"] or "").split())
    target = choose_target(recorded, (run.job for run in runs if run.job and run.position == bad_end))
    judged, has_new = [], False
    for run in runs:
        result = classify_run(run.job, target, is_over=run.is_over(timeout, now))
        judged.append(SearchRun(run.position, result))
        if result is not None and result.value != run.row["result"]:
            await tx.run(_SET_RESULT, **_result_columns(bisection, run, result, now))
            has_new = True
            if run.row["dispatch_state"] == DispatchState.PARKED.value:
                # Otherwise whoever retries parked effects later would send it beside the run that repeats it.
                await drop_delivery(
                    tx, RepoName(bisection["upstream"]), run.row["delivery"], "it could not be sent", now
                )
    return judged, has_new


def _result_columns(bisection: Row, run: RecordedRun, result: RunResult, now: datetime) -> dict[str, Any]:
    return {
        "bisection_id": bisection["bisection_id"],
        "upstream": bisection["upstream"],
        "number": run.row["number"],
        "result": result.value,
        "sample": run.sample if result in _FAILURES else None,
        "url": run.job_url,
        "finished_at": to_us(now),
    }


def _choose_attempt(attempts: Sequence[Row]) -> RecordedRun:
    """A pass counts whenever it came, also in a run that was replaced; then the newest failure: an attempt that runs again, or
    was cancelled, takes neither back.
    """
    reported = [(row, _reported_job(row)) for row in attempts if row["state"] is not None]
    current = [(row, job) for row, job in reported if not job.superseded] or reported
    if not current:
        return RecordedRun(attempts[0])
    passed = [(row, job) for row, job in reported if job.has_passed]
    failed = [(row, job) for row, job in current if job.has_failed]
    row, job = (passed or failed or current)[-1]
    return RecordedRun(row, job, job_url=row["job_url"])


def _reported_job(row: Row) -> BisectedJob:
    return BisectedJob(
        state=JobState(row["state"]),
        conclusion=Conclusion(row["conclusion"]) if row["conclusion"] else None,
        expected=Conclusion(row["expected"]) if row["expected"] else None,
        superseded=bool(row["superseded"]),
        tests=row["tests_total"],
    )
