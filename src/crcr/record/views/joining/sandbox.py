"""The sandbox for its page and the API: what was reported last stands first, and nothing that is too old.

A private repository is shown by its id alone, and found by it: what its workflows and jobs are called is its own. Whoever came to an allowlist since is shown as far
as its entry lets it be. Places in the list are a time and a number, so that they tell nothing of who is not shown.
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
    """Who has since come to an allowlist and does not want to be seen."""
    found: set[str] = set()
    for upstream in upstreams:
        try:
            entries = (await lists.in_force(tx, upstream)).entries
        except NoAllowlist:
            continue
        found |= {entry.name.key for entry in entries if entry.visibility is not Visibility.PUBLIC}
    return frozenset(found)


async def sandbox_page(
    tx: Tx, query: SandboxQuery, hidden: frozenset[str], now: datetime, *, everything: bool
) -> SandboxPage:
    """For an administrator `everything` is shown, with its name."""
    begin = _place(query.after)
    shown: list[Row] = []
    last = begin
    for row, place in _placed(await _rows(tx, query, now, begin, whole=bool(hidden))):
        if place[0] == begin[0] and place[1] <= begin[1]:
            continue  # on the page before
        if not _is_wanted(row, query.repository, hidden, everything=everything):
            continue
        if len(shown) == query.limit:
            return SandboxPage(await _views(tx, shown, everything=everything), last)
        shown.append(row)
        last = place
    return SandboxPage(await _views(tx, shown, everything=everything), None)


def _place(after: tuple[str | int, ...] | None) -> tuple[int, int]:
    """A time, and how many of those reported at that very time stand before."""
    match after:
        case None:
            return _END_OF_TIME, 0
        case (int(at), int(passed)) if 0 <= at <= _END_OF_TIME and 0 < passed <= MOST:
            return at, passed
    raise bad_cursor()


async def _rows(
    tx: Tx, query: SandboxQuery, now: datetime, begin: tuple[int, int], *, whole: bool
) -> list[Row]:
    at, passed = begin
    when = {"since": to_us(now - KEPT_FOR), "at": at}
    repository_id = _id(query.repository)
    if repository_id is not None:
        return await tx.all(_OF_ONE, **when, repository_id=repository_id, limit=MOST)
    whole = whole or query.repository is not None
    return await tx.all(_NEWEST, **when, limit=MOST if whole else query.limit + passed + 1)


def _placed(rows: list[Row]) -> Iterator[tuple[Row, tuple[int, int]]]:
    at, number = -1, 0
    for row in rows:
        number = number + 1 if row["reported_at"] == at else 1
        at = row["reported_at"]
        yield row, (at, number)


def _id(repository: str | None) -> int | None:
    text = repository or ""
    if not (text.isascii() and text.isdigit()) or len(text) > _MOST_DIGITS:
        return None
    return int(text)


def _is_wanted(row: Row, repository: str | None, hidden: frozenset[str], *, everything: bool) -> bool:
    if not everything and row["name"].lower() in hidden:
        return False
    if repository is None or _id(repository) is not None:
        return True
    # The name of a private repository must not be found out by guessing.
    named = everything or not row["private"]
    return named and repository.casefold() in row["name"].casefold()


async def _views(tx: Tx, rows: list[Row], *, everything: bool) -> tuple[SandboxJob, ...]:
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
