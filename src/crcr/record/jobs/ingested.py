"""Results of other relays: one statement merges a report into its job's row, and the sums follow in the same commit.

A row has the values of the report with the highest rank (`decide.jobs.ingested`), and takes values that this report lacks
from the others. So no report erases what another set, and their order does not matter, with three exceptions: when a job
was first seen, its upstream, and which of two contradicting reports fills a value that the highest one lacks. Only pages
read these rows.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, func, or_, select, text, tuple_, update

from crcr.decide.jobs.ingested import (
    NUMBERED_RANK,
    IngestedResult,
    IngestReceipt,
    RunAttempt,
    choose_ingest_upstream,
    has_later_attempt,
    is_superseded,
    plausible_time,
    result_rank,
)
from crcr.decide.jobs.report import ReportStatus
from crcr.decide.model import Conclusion, JobState, RepoName
from crcr.decide.statistics.figures import EndedAs, ended_as
from crcr.decide.statistics.window import ResultKind
from crcr.record.change_and_audit_log import note_change
from crcr.record.clickhouse.feed_queue import note_ingested
from crcr.record.jobs.outcomes import failed_tests_text, log_excerpt_text
from crcr.record.schema.statistics import ingested
from crcr.record.statistics import sums
from crcr.record.statistics.sums import Share
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.views.visibility import AllowlistReader, VisibleBackends, visible_backends

_JOB = ("delivery", "downstream", "workflow_name", "job_name")
_KEY = (*_JOB, "check_run")
_FROM_FIRST = ("upstream", "name", "expected", "seen_at", "delivery_at")
"""Columns that the first report sets for good."""
_FROM_HIGHEST = ("rank", "state", "conclusion", "run_id", "attempt", "origin", "untrusted")
"""Columns that are taken from the highest report as they are."""
_FROM_ANY = (
    *("event", "level", "action", "number", "head_sha", "ref", "title", "author", "url", "artifact_url"),
    *(
        "started_at",
        "completed_at",
        "queue_s",
        "execution_s",
        "environment",
        "failed_tests",
        "failed_tests_cut",
        "log_excerpt",
    ),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)
"""Columns that are taken from the highest report where it has a value, else from the others."""
_COMPARED = (*_KEY, *_FROM_FIRST, *_FROM_HIGHEST[:-2], *_FROM_ANY, "disputed_conclusion", "ended_as")
"""Columns whose change makes a report more than a repeat; `origin` is not among them."""


def _rank_key(row: Any) -> ColumnElement[Any]:
    """The sort key of a report. Two reports with the same key are the same report; the bytes decide last."""
    seconds = (func.coalesce(duration, -1.0) for duration in (row.queue_s, row.execution_s))
    return tuple_(row.rank, row.attempt, row.run_id, *seconds, row.untrusted)


def _merge_statement() -> Statement:
    insert = inserting(ingested, *_KEY, *_FROM_FIRST, *_FROM_HIGHEST, *_FROM_ANY, "updated_at")
    old, new = ingested.c, insert.excluded
    new_is_higher = _rank_key(new) > _rank_key(old)

    def filled(name: str) -> ColumnElement[Any]:
        new_value, old_value = (
            func.nullif(version[name], "") if name == "event" else version[name] for version in (new, old)
        )
        return case(
            (new_is_higher, func.coalesce(new_value, old[name])), else_=func.coalesce(old_value, new[name])
        )

    # A relay that counts the outcomes of a job says itself whether the later one corrects or contradicts the other.
    uncounted = or_(old.rank < NUMBERED_RANK, new.rank < NUMBERED_RANK, bindparam("says_disputed") == 1)
    contradicted = and_(old.rank > 0, new.rank > 0, old.rank != new.rank, uncounted)
    loser = case((new_is_higher, old.conclusion), else_=new.conclusion)
    # Of several contradicting conclusions the first by name: so the order of arrival does not matter.
    is_disputed = and_(contradicted, or_(old.disputed_conclusion.is_(None), old.disputed_conclusion > loser))
    merged = {
        **{name: case((new_is_higher, new[name]), else_=old[name]) for name in _FROM_HIGHEST},
        **{name: filled(name) for name in _FROM_ANY},
        "disputed_conclusion": case((is_disputed, loser), else_=old.disputed_conclusion),
        "updated_at": new.updated_at,
    }
    return Statement(insert.on_conflict_do_update(index_elements=list(_KEY), set_=merged))


_MERGE = _merge_statement()
_JOB_ROWS = Statement(
    select(*(ingested.c[name] for name in _COMPARED)).where(
        *(ingested.c[name] == bindparam(name) for name in _JOB)
    )
)
_DELIVERY_AT = Statement(
    select(func.min(ingested.c.delivery_at).label("at")).where(
        ingested.c.delivery == bindparam("delivery"), ingested.c.downstream == bindparam("downstream")
    )
)
_REPORTED_HERE = Statement(
    text(
        "SELECT 1 FROM jobs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND run_id = :run_id AND imported = 0 LIMIT 1"
    )
)
_SET_ENDED_AS = Statement(
    update(ingested)
    .where(*(ingested.c[name] == bindparam(f"the_{name}") for name in _KEY))
    .values(ended_as=bindparam("ended_as"))
)


class IngestedResults:
    def __init__(self, database: Database, lists: AllowlistReader, upstreams: tuple[RepoName, ...]) -> None:
        self._database = database
        self._lists = lists
        self._upstreams = upstreams

    async def take(
        self, result: IngestedResult, origin: str, now: datetime, *, unless_reported: bool = False
    ) -> IngestReceipt:
        """Merge a result in; `origin` is the address that it came from.

        With `unless_reported` a run that reported to this relay itself is left out: it is shown already.
        """

        async def unit(tx: Tx) -> IngestReceipt:
            visible = {
                upstream: await visible_backends(tx, self._lists, upstream) for upstream in self._upstreams
            }
            key = result.repository.key
            listing = [upstream for upstream in self._upstreams if key in visible[upstream].reporting]
            upstream = choose_ingest_upstream(result.about, self._upstreams, listing)
            if unless_reported and await _is_reported(tx, result, upstream):
                return IngestReceipt(repeat=True, hint=None)
            entry = visible[upstream].reporting.get(key)
            expected = entry.expected(result.report.job_name) if entry else None
            first_seen = await tx.one(_DELIVERY_AT, delivery=result.report.delivery_id, downstream=key)
            row = {
                **_result_row(result, now),
                "upstream": upstream.key,
                "origin": origin,
                "expected": expected.value if expected else None,
                "delivery_at": (first_seen["at"] if first_seen else None) or to_us(now),
            }
            changed = await _merge(tx, row, now)
            if changed is not None:
                await note_change(
                    tx,
                    RepoName(changed["upstream"]),
                    "ingested",
                    downstream=changed["downstream"],
                    delivery=changed["delivery"],
                    number=changed["number"],
                    now=now,
                )
            return IngestReceipt(changed is None, _hint(result.repository, upstream, visible[upstream]))

        return await self._database.write(unit)


async def _is_reported(tx: Tx, result: IngestedResult, upstream: RepoName) -> bool:
    run = {"delivery": result.report.delivery_id, "run_id": result.report.run_id}
    names = {"upstream": upstream.key, "downstream": result.repository.key}
    return await tx.one(_REPORTED_HERE, **run, **names) is not None


async def _merge(tx: Tx, row: dict[str, Any], now: datetime) -> Row | None:
    """Insert or change the row and its sums, and return it; None when nothing changed."""
    job = {name: row[name] for name in _JOB}
    before = {stored["check_run"]: stored for stored in await tx.all(_JOB_ROWS, **job)}
    await tx.run(_MERGE, **row)
    after = await tx.all(_JOB_ROWS, **job)
    await _recount(tx, before, after, now)
    new = next(merged for merged in after if merged["check_run"] == row["check_run"])
    old = before.get(row["check_run"])
    same = old is not None and all(old[name] == new[name] for name in _COMPARED)
    if same:
        return None
    note_ingested(tx, new, now, was_us=_counted_at_us(old) if old else None)
    return new


async def _recount(tx: Tx, before: dict[str, Row], after: list[Row], now: datetime) -> None:
    """Correct the sums after a report: its own share, and those of attempts that are now earlier ones.

    Two upstreams may know the same delivery id; the attempts of one say nothing about the other's.
    """
    moves: list[tuple[Share, int]] = []
    for row in after:
        attempt = RunAttempt(row["run_id"], row["attempt"])
        attempts = [
            RunAttempt(other["run_id"], other["attempt"])
            for other in after
            if other["upstream"] == row["upstream"]
        ]
        old_row = before.get(row["check_run"])
        ended = _counted_as(
            row, superseded=is_superseded(attempt, attempts), earlier=has_later_attempt(attempt, attempts)
        )
        old = (
            _share(old_row, EndedAs(old_row["ended_as"]))
            if old_row is not None and old_row["ended_as"]
            else None
        )
        new = _share(row, ended) if ended else None
        if old == new:
            continue
        moves += [(old, -1)] if old else []
        moves += [(new, 1)] if new else []
        note_ingested(tx, row, now, was_us=_counted_at_us(old_row) if old_row else None)
        await tx.run(
            _SET_ENDED_AS,
            ended_as=ended.value if ended else None,
            **{f"the_{name}": row[name] for name in _KEY},
        )
    sums.move(tx, moves)


def _counted_as(row: Row, *, superseded: bool, earlier: bool) -> EndedAs | None:
    return ended_as(
        JobState(row["state"]),
        Conclusion(row["conclusion"]) if row["conclusion"] else None,
        Conclusion(row["expected"]) if row["expected"] else None,
        superseded=superseded,
        earlier=earlier,
    )


def _share(row: Row, ended: EndedAs) -> Share:
    return Share(
        upstream=row["upstream"],
        downstream=row["downstream"],
        kind=ResultKind.INGESTED,
        at_us=_counted_at_us(row),
        workflow=row["workflow_name"],
        workflow_name=row["workflow_name"],
        job_name=row["job_name"],
        ended=ended,
        queue_s=row["queue_s"],
        execution_s=row["execution_s"],
    )


def _counted_at_us(row: Row) -> int:
    at_us: int = row["seen_at"] if row["started_at"] is None else row["started_at"]
    return at_us


def _result_row(result: IngestedResult, now: datetime) -> dict[str, Any]:
    report, about, tests = result.report, result.about, result.report.tests
    is_result = report.status is ReportStatus.COMPLETED
    started, completed = plausible_time(report.started_at, now), plausible_time(report.completed_at, now)
    return {
        "delivery": report.delivery_id,
        "downstream": result.repository.key,
        "workflow_name": report.workflow_name,
        "job_name": report.job_name,
        "check_run": result.check_run,
        "name": result.repository.full_name,
        "seen_at": to_us(now),
        "rank": result_rank(report, result.outcome_number),
        "says_disputed": int(result.disputed),
        "state": report.status.value,
        "conclusion": report.conclusion.value if report.conclusion else None,
        "event": report.event_type,
        "run_id": report.run_id,
        "attempt": report.run_attempt,
        "untrusted": report.untrusted,
        "level": result.level,
        "action": about.action,
        "number": about.number,
        "head_sha": about.head_sha,
        "ref": about.ref,
        "title": about.title,
        "author": about.author,
        "url": report.url,
        "artifact_url": report.artifact_url,
        "started_at": to_us(started) if started else None,
        "completed_at": to_us(completed or now) if is_result else None,
        "queue_s": result.queue_s,
        "execution_s": result.execution_s if is_result else None,
        "environment": report.environment,
        "failed_tests": failed_tests_text(report),
        "failed_tests_cut": report.failed_tests_cut or None,
        "log_excerpt": log_excerpt_text(report),
        "tests_passed": tests.passed if tests else None,
        "tests_failed": tests.failed if tests else None,
        "tests_skipped": tests.skipped if tests else None,
        "tests_total": tests.total if tests else None,
        "updated_at": to_us(now),
    }


def _hint(repository: RepoName, upstream: RepoName, backends: VisibleBackends) -> str | None:
    if repository.key in backends.reporting:
        return None
    if repository.key in backends.shown:
        return f"the allowlist of {upstream} lists {repository} without showing its results"
    return f"{repository} is not on the allowlist of {upstream}: its results are kept, and shown once it is"
