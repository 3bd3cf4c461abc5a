"""Other relays' results kept: one statement merges a report into its job's row, and the sums follow in its commit.

A row's values are those of the report that stands highest (`decide.jobs.ingested`), filled up with what only the others
said. So no report erases what another set, and the order in which they come does not matter: but to when a job was
first seen, to its upstream, and, where the highest report is silent and two others contradict each other, to which
of these two fills the gap. Nothing else in the relay reads these rows but the pages.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, bindparam, case, func, or_, select, tuple_, update

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
from crcr.record.jobs.outcomes import failed_tests_text
from crcr.record.schema.statistics import ingested
from crcr.record.statistics import sums
from crcr.record.statistics.sums import Share
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.views.visibility import AllowlistReader, VisibleBackends, visible_backends

_JOB = ("delivery", "downstream", "workflow_name", "job_name")
_KEY = (*_JOB, "check_run")
_FIRST = ("upstream", "name", "expected", "seen_at", "delivery_at")
"""What the first report leaves for good."""
_WHOLE = ("rank", "state", "conclusion", "run_id", "attempt", "origin", "untrusted")
"""What is taken from the highest report as it is."""
_FILLED = (
    *("event", "level", "action", "number", "head_sha", "ref", "title", "author", "url", "artifact_url"),
    *(
        "started_at",
        "completed_at",
        "queue_s",
        "execution_s",
        "environment",
        "failed_tests",
        "failed_tests_cut",
    ),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)
"""What is taken from it where it says something, else from the others."""
_COMPARED = (*_KEY, *_FIRST, *_WHOLE[:-2], *_FILLED, "disputed_conclusion", "ended_as")
"""By what a change is told from a repeat: not by who brought it."""


def _standing(of: Any) -> ColumnElement[Any]:
    """Two reports that stand alike are the same report; numbers first, then their very bytes."""
    seconds = (func.coalesce(duration, -1.0) for duration in (of.queue_s, of.execution_s))
    return tuple_(of.rank, of.attempt, of.run_id, *seconds, of.untrusted)


def _merging() -> Statement:
    insert = inserting(ingested, *_KEY, *_FIRST, *_WHOLE, *_FILLED, "updated_at")
    old, new = ingested.c, insert.excluded
    outranked = _standing(new) > _standing(old)

    def filled(name: str) -> ColumnElement[Any]:
        mine, other = (
            func.nullif(version[name], "") if name == "event" else version[name] for version in (new, old)
        )
        return case((outranked, func.coalesce(mine, old[name])), else_=func.coalesce(other, new[name]))

    # A relay that counts the outcomes of a job says itself whether the later one corrects or contradicts the other.
    uncounted = or_(old.rank < NUMBERED_RANK, new.rank < NUMBERED_RANK, bindparam("says_disputed") == 1)
    contradicted = and_(old.rank > 0, new.rank > 0, old.rank != new.rank, uncounted)
    loser = case((outranked, old.conclusion), else_=new.conclusion)
    # Of several the first by name: so it is the same whichever came last.
    stays = and_(contradicted, or_(old.disputed_conclusion.is_(None), old.disputed_conclusion > loser))
    merged = {
        **{name: case((outranked, new[name]), else_=old[name]) for name in _WHOLE},
        **{name: filled(name) for name in _FILLED},
        "disputed_conclusion": case((stays, loser), else_=old.disputed_conclusion),
        "updated_at": new.updated_at,
    }
    return Statement(insert.on_conflict_do_update(index_elements=list(_KEY), set_=merged))


_MERGE = _merging()
_OF_JOB = Statement(
    select(*(ingested.c[name] for name in _COMPARED)).where(
        *(ingested.c[name] == bindparam(name) for name in _JOB)
    )
)
_DELIVERY_AT = Statement(
    select(func.min(ingested.c.delivery_at).label("at")).where(
        ingested.c.delivery == bindparam("delivery"), ingested.c.downstream == bindparam("downstream")
    )
)
_COUNTED = Statement(
    update(ingested)
    .where(*(ingested.c[name] == bindparam(f"the_{name}") for name in _KEY))
    .values(ended_as=bindparam("ended_as"))
)


class IngestedResults:
    def __init__(self, database: Database, lists: AllowlistReader, upstreams: tuple[RepoName, ...]) -> None:
        self._database = database
        self._lists = lists
        self._upstreams = upstreams

    async def take(self, told: IngestedResult, origin: str, now: datetime) -> IngestReceipt:
        """Merge a result in; `origin` is the address that it came from."""

        async def unit(tx: Tx) -> IngestReceipt:
            seen = {
                upstream: await visible_backends(tx, self._lists, upstream) for upstream in self._upstreams
            }
            key = told.repository.key
            listing = [upstream for upstream in self._upstreams if key in seen[upstream].reporting]
            upstream = choose_ingest_upstream(told.about, self._upstreams, listing)
            entry = seen[upstream].reporting.get(key)
            expected = entry.expected(told.report.job_name) if entry else None
            first = await tx.one(_DELIVERY_AT, delivery=told.report.delivery_id, downstream=key)
            row = {
                **_told(told, now),
                "upstream": upstream.key,
                "origin": origin,
                "expected": expected.value if expected else None,
                "delivery_at": first["at"] if first and first["at"] is not None else to_us(now),
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
            return IngestReceipt(changed is None, _hint(told.repository, upstream, seen[upstream]))

        return await self._database.write(unit)


async def _merge(tx: Tx, row: dict[str, Any], now: datetime) -> Row | None:
    """The row that was made or changed, with its sums put right; None when all of it was known."""
    job = {name: row[name] for name in _JOB}
    before = {row["check_run"]: row for row in await tx.all(_OF_JOB, **job)}
    await tx.run(_MERGE, **row)
    after = await tx.all(_OF_JOB, **job)
    await _recount(tx, before, after, now)
    now_is = next(merged for merged in after if merged["check_run"] == row["check_run"])
    was = before.get(row["check_run"])
    same = was is not None and all(was[name] == now_is[name] for name in _COMPARED)
    if same:
        return None
    note_ingested(tx, now_is, now, was_us=_at_us(was) if was else None)
    return now_is


async def _recount(tx: Tx, before: dict[str, Row], after: list[Row], now: datetime) -> None:
    """Move what a report has moved: its own share, and those of attempts that it makes earlier ones.

    A delivery's name may be known to two upstreams; what one of them ran says nothing about the other's.
    """
    moves: list[tuple[Share, int]] = []
    for row in after:
        turn = RunAttempt(row["run_id"], row["attempt"])
        turns = [
            RunAttempt(other["run_id"], other["attempt"])
            for other in after
            if other["upstream"] == row["upstream"]
        ]
        was = before.get(row["check_run"])
        ended = _belongs(row, superseded=is_superseded(turn, turns), earlier=has_later_attempt(turn, turns))
        old = _share(was, EndedAs(was["ended_as"])) if was is not None and was["ended_as"] else None
        new = _share(row, ended) if ended else None
        if old == new:
            continue
        moves += [(old, -1)] if old else []
        moves += [(new, 1)] if new else []
        note_ingested(tx, row, now, was_us=_at_us(was) if was else None)
        await tx.run(
            _COUNTED, ended_as=ended.value if ended else None, **{f"the_{name}": row[name] for name in _KEY}
        )
    sums.move(tx, moves)


def _belongs(row: Row, *, superseded: bool, earlier: bool) -> EndedAs | None:
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
        at_us=_at_us(row),
        workflow=row["workflow_name"],
        workflow_name=row["workflow_name"],
        job_name=row["job_name"],
        ended=ended,
        queue_s=row["queue_s"],
        execution_s=row["execution_s"],
    )


def _at_us(row: Row) -> int:
    at_us: int = row["seen_at"] if row["started_at"] is None else row["started_at"]
    return at_us


def _told(told: IngestedResult, now: datetime) -> dict[str, Any]:
    report, about, tests = told.report, told.about, told.report.tests
    is_result = report.status is ReportStatus.COMPLETED
    started, completed = plausible_time(report.started_at, now), plausible_time(report.completed_at, now)
    return {
        "delivery": report.delivery_id,
        "downstream": told.repository.key,
        "workflow_name": report.workflow_name,
        "job_name": report.job_name,
        "check_run": told.check_run,
        "name": told.repository.full_name,
        "seen_at": to_us(now),
        "rank": result_rank(report, told.outcome_number),
        "says_disputed": int(told.disputed),
        "state": report.status.value,
        "conclusion": report.conclusion.value if report.conclusion else None,
        "event": report.event_type,
        "run_id": report.run_id,
        "attempt": report.run_attempt,
        "untrusted": report.untrusted,
        "level": told.level,
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
        "queue_s": told.queue_s,
        "execution_s": told.execution_s if is_result else None,
        "environment": report.environment,
        "failed_tests": failed_tests_text(report),
        "failed_tests_cut": report.failed_tests_cut or None,
        "tests_passed": tests.passed if tests else None,
        "tests_failed": tests.failed if tests else None,
        "tests_skipped": tests.skipped if tests else None,
        "tests_total": tests.total if tests else None,
        "updated_at": to_us(now),
    }


def _hint(repository: RepoName, upstream: RepoName, seen: VisibleBackends) -> str | None:
    if repository.key in seen.reporting:
        return None
    if repository.key in seen.shown:
        return f"the allowlist of {upstream} lists {repository} without showing its results"
    return f"{repository} is not on the allowlist of {upstream}: its results are kept, and shown once it is"
