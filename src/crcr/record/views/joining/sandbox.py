"""The sandbox for its page and the API: the newest reports first, without those that are too old.

A private repository is shown, and found, by its id only; the names of its workflows and jobs are left out. A repository
that has joined an allowlist since is shown as far as its entry's visibility allows. A cursor is a time and a number, so
that it reveals no hidden repository.
"""

import json
from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import text

from crcr.decide.allowlist.entries import Visibility
from crcr.decide.jobs.report import FailedTest
from crcr.decide.model import Conclusion, JobState, RepoName
from crcr.decide.views.joining import SandboxJob, SandboxPage, SandboxQuery
from crcr.errors import NoAllowlist
from crcr.record.jobs.sandbox import KEPT_FOR, MOST
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.paging import bad_cursor
from crcr.record.views.visibility import AllowlistReader

_END_OF_TIME = 2**62
_MOST_DIGITS = 18
_ALL_BUT_TESTS = (
    "SELECT repository_id, workflow, run_id, attempt, job_name, name, private, event_type, workflow_name, state,"
    " conclusion, late, in_progress_at, completed_at, reported_at, tests_passed, tests_failed, tests_skipped,"
    " tests_total, failed_tests IS NOT NULL AS listed, failed_tests_cut FROM sandbox_jobs"
)
_IN_TIME = "reported_at > :since AND reported_at <= :at"
_ORDER = (
    "ORDER BY reported_at DESC, repository_id DESC, workflow DESC, run_id DESC, attempt DESC, job_name DESC"
)
_NEWEST = Statement(text(f"{_ALL_BUT_TESTS} WHERE {_IN_TIME} {_ORDER} LIMIT :limit"))
_OF_ONE = Statement(
    text(f"{_ALL_BUT_TESTS} WHERE repository_id = :repository_id AND {_IN_TIME} {_ORDER} LIMIT :limit")
)
_TESTS = Statement(
    text(
        "SELECT failed_tests FROM sandbox_jobs WHERE repository_id = :repository_id AND workflow = :workflow"
        " AND run_id = :run_id AND attempt = :attempt AND job_name = :job_name"
    )
)
_KEY = ("repository_id", "workflow", "run_id", "attempt", "job_name")
_AS_STORED = (
    *("repository_id", "event_type", "run_id", "attempt"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)


async def find_hidden_names(
    tx: Tx, lists: AllowlistReader, upstreams: tuple[RepoName, ...]
) -> frozenset[str]:
    """The repositories on any allowlist whose entries are not public."""
    hidden: set[str] = set()
    for upstream in upstreams:
        try:
            entries = (await lists.in_force(tx, upstream)).entries
        except NoAllowlist:
            continue
        hidden |= {entry.name.key for entry in entries if entry.visibility is not Visibility.PUBLIC}
    return frozenset(hidden)


async def sandbox_page(
    tx: Tx, query: SandboxQuery, hidden: frozenset[str], now: datetime, *, everything: bool
) -> SandboxPage:
    """With `everything`, for an administrator, hidden and private repositories are shown with their names."""
    start = _cursor_start(query.after)
    shown: list[Row] = []
    last = start
    for row, position in _with_positions(await _read_rows(tx, query, now, start, whole=bool(hidden))):
        if position[0] == start[0] and position[1] <= start[1]:
            continue  # on the page before
        if not _matches(row, query.repository, hidden, everything=everything):
            continue
        if len(shown) == query.limit:
            return SandboxPage(await _make_views(tx, shown, everything=everything), last)
        shown.append(row)
        last = position
    return SandboxPage(await _make_views(tx, shown, everything=everything), None)


def _cursor_start(after: tuple[str | int, ...] | None) -> tuple[int, int]:
    """The cursor as a time, and a number of rows with exactly that time which come before."""
    match after:
        case None:
            return _END_OF_TIME, 0
        case (int(at), int(passed)) if 0 <= at <= _END_OF_TIME and 0 < passed <= MOST:
            return at, passed
    raise bad_cursor()


async def _read_rows(
    tx: Tx, query: SandboxQuery, now: datetime, start: tuple[int, int], *, whole: bool
) -> list[Row]:
    at, passed = start
    times = {"since": to_us(now - KEPT_FOR), "at": at}
    repository_id = _parse_repository_id(query.repository)
    if repository_id is not None:
        return await tx.all(_OF_ONE, **times, repository_id=repository_id, limit=MOST)
    whole = whole or query.repository is not None
    return await tx.all(_NEWEST, **times, limit=MOST if whole else query.limit + passed + 1)


def _with_positions(rows: list[Row]) -> Iterator[tuple[Row, tuple[int, int]]]:
    at, number = -1, 0
    for row in rows:
        number = number + 1 if row["reported_at"] == at else 1
        at = row["reported_at"]
        yield row, (at, number)


def _parse_repository_id(repository: str | None) -> int | None:
    text = repository or ""
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        return None
    return int(text)


def _matches(row: Row, repository: str | None, hidden: frozenset[str], *, everything: bool) -> bool:
    if not everything and row["name"].lower() in hidden:
        return False
    if repository is None or _parse_repository_id(repository) is not None:
        return True
    # A search must not confirm a guessed name of a private repository.
    named = everything or not row["private"]
    return named and repository.casefold() in row["name"].casefold()


async def _make_views(tx: Tx, rows: list[Row], *, everything: bool) -> tuple[SandboxJob, ...]:
    return tuple([await _view(tx, row, everything=everything) for row in rows])


async def _view(tx: Tx, row: Row, *, everything: bool) -> SandboxJob:
    named = everything or not row["private"]
    tests = await tx.one(_TESTS, **{name: row[name] for name in _KEY}) if named and row["listed"] else None
    failed = json.loads(tests["failed_tests"]) if tests else []
    ended = row["conclusion"]
    return SandboxJob(
        repository=row["name"] if named else None,
        workflow_name=row["workflow_name"] if named else None,
        job_name=row["job_name"] if named else None,
        private=bool(row["private"]),
        state=JobState(row["state"]),
        conclusion=Conclusion(ended) if ended is not None else None,
        late=bool(row["late"]),
        started_at=from_us(row["in_progress_at"]),
        completed_at=from_us_or_none(row["completed_at"]),
        reported_at=from_us(row["reported_at"]),
        failed_tests=tuple(FailedTest(**test) for test in failed),
        failed_tests_more=row["failed_tests_cut"],
        **{name: row[name] for name in _AS_STORED},
    )
