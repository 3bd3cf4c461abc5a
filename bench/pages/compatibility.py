"""The newest common green commit over millions of jobs: how long an answer takes, and whether an oracle agrees with it.

The database of the pages is only read. Its generator orders the pushes of the last two weeks; here all pushes of its 120 days
are one branch, in a table of this connection alone, so that a search may go back as far as it ever does. The oracle is plain Python over
rows that are read plainly, from the first to the last.
"""

import asyncio
import sqlite3
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar, cast

import httpx
from fastapi import FastAPI
from rich.console import Console

from bench.history.history_database import allowlist, make_history, open_read_only
from bench.relay_process.load_client import percentile
from bench.relay_process.relay_setup import UPSTREAM, Row
from crcr.app import error_handlers
from crcr.clock import SystemClock
from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.compatibility import MOST_SEARCHED
from crcr.decide.model import RepoName
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.store.database import Database, Tx, Unit
from crcr.record.store.sqlite.database import SqliteTx
from crcr.record.views.sql_views import SqlViews
from crcr.show.api.routes import routes

T = TypeVar("T")
LATEST_MS = 50
_ROUNDS, _WARM = 4, 1
_DAY_S = 86_400
_SETS = 12
"""Random sets of backends, besides the levels."""
_CREATE_BRANCH = (
    "CREATE TEMP TABLE base_commits (sha TEXT, upstream TEXT, ref TEXT, position INTEGER, before TEXT, pushed_at INTEGER,"
    " title TEXT, number INTEGER, reverts TEXT, paths TEXT, path_count INTEGER, PRIMARY KEY (sha, upstream, ref)) WITHOUT ROWID"
)
_FILL_BRANCH = (
    "INSERT INTO temp.base_commits (sha, upstream, ref, position, pushed_at) SELECT head_sha, upstream, 'main',"
    " row_number() OVER (ORDER BY received_at), received_at FROM deliveries WHERE event = 'push'"
)
_BRANCH = (
    _CREATE_BRANCH,
    "CREATE INDEX temp.ix_base_commits_order ON base_commits (upstream, ref, position)",
    "CREATE TEMP TABLE upstream_tags (upstream TEXT, name TEXT, sha TEXT, object_sha TEXT, pushed_at INTEGER)",
    _FILL_BRANCH,
)


def measure_compatibility(folder: Path, cache: Path | None, jobs: int, console: Console) -> Iterator[Row]:
    history = make_history(cache or folder, jobs, console)
    connection = open_read_only(history.database)
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA cache_size=-32000")
    for statement in _BRANCH:
        connection.execute(statement)
    listed = read_allowlist(allowlist()).allowlist
    if listed is None:
        raise SystemExit("the allowlist of the benchmark is wrong")
    requests = _list_requests(listed)
    answers, latest, whole = asyncio.run(_measure(connection, listed, requests))
    reached = percentile(latest.passed_ms, 0.95) < LATEST_MS
    yield "latest-green, cold, 1 reader", _describe(latest.passed_ms), f"P95 < {LATEST_MS} ms", reached
    yield "latest-green, processor time", _describe(latest.cpu_ms), "", True
    yield "compatibility as JSON, 20 commits and more, cold", _describe(whole.passed_ms), "", True
    yield "compatibility as JSON, processor time", _describe(whole.cpu_ms), "", True
    began = time.perf_counter()
    oracle = Oracle.over(connection)
    wrong = [
        request.path
        for request in requests
        if answers[request.path] != oracle.find(request.backends, between=request.between)
    ]
    read_s = time.perf_counter() - began
    found = sum(answer is not None for answer in answers.values())
    agreed = f"{len(requests) - len(wrong)} of {len(requests)} ({found} with a commit), {oracle.rows:,} jobs read in {read_s:.0f} s"
    yield "the oracle agrees", agreed, "all", not wrong
    for path in wrong:
        console.print(f"differs: {path}: {answers[path]}")


def _describe(times: Sequence[float]) -> str:
    return ", ".join(f"P{share} {percentile([*times], share / 100):.1f}" for share in (50, 95, 99)) + " ms"


@dataclass(frozen=True, slots=True)
class _Request:
    path: str
    backends: tuple[str, ...]
    between: bool


def _list_requests(listed: Allowlist) -> list[_Request]:
    reporting = [entry for entry in listed.entries if entry.level >= 2]
    names = [entry.name.key for entry in reporting]
    chance = Random(7)  # noqa: S311  the same sets each time
    sets = [tuple(sorted(chance.sample(names, chance.choice((1, 1, 2, 3, 4))))) for _ in range(_SETS)]
    choices = {f"backends={','.join(names)}": names for names in sets}
    for level in (2, 3, 4):
        choices[f"level=L{level}"] = tuple(entry.name.key for entry in reporting if entry.level >= level)
    return [
        _Request(f"/api/v1/compat/latest-green?{choice}&match={match}", backends, match == "between")
        for choice, backends in choices.items()
        for match in ("exact", "between")
    ]


class _ReadOnly:
    """The database of the views, on one connection that only reads."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    async def read(self, unit: Unit[T]) -> T:
        return await unit(SqliteTx(self._connection))


@dataclass(frozen=True, slots=True)
class _Listed:
    allowlist: Allowlist

    async def in_force(self, _tx: Tx, _upstream: RepoName) -> Allowlist:
        return self.allowlist


@asynccontextmanager
async def _client(connection: sqlite3.Connection, listed: Allowlist) -> AsyncIterator[httpx.AsyncClient]:
    upstreams = (RepoName(UPSTREAM),)
    views = SqlViews(cast("Database", _ReadOnly(connection)), _Listed(listed), upstreams)
    app = FastAPI(
        routes=routes(views, upstreams=upstreams, clock=SystemClock()),
        exception_handlers=cast("Any", error_handlers()),
    )
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url="http://relay") as client:
        yield client


@dataclass(frozen=True, slots=True)
class _Times:
    """Of single requests, in ms; on a busy machine only the processor time means something."""

    passed_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    async def get(self, client: httpx.AsyncClient, path: str, *, is_kept: bool) -> httpx.Response:
        began, used = time.perf_counter(), time.process_time()
        answer = await client.get(path)
        if is_kept:
            self.passed_ms.append((time.perf_counter() - began) * 1000)
            self.cpu_ms.append((time.process_time() - used) * 1000)
        return answer


async def _measure(
    connection: sqlite3.Connection, listed: Allowlist, requests: Sequence[_Request]
) -> tuple[dict[str, str | None], _Times, _Times]:
    """The answers, and the times of single requests and of the whole matrix; no cache of pages is between."""
    answers: dict[str, str | None] = {}
    latest, whole = _Times(), _Times()
    async with _client(connection, listed) as client:
        for round_number in range(_WARM + _ROUNDS):
            for request in requests:
                answer = await latest.get(client, request.path, is_kept=round_number >= _WARM)
                answers[request.path] = answer.json()["sha"] if answer.status_code == 200 else None
            for level in ("L2", "L3"):
                path = f"/api/v1/compat?level={level}"
                (await whole.get(client, path, is_kept=round_number >= _WARM)).raise_for_status()
    return answers, latest, whole


@dataclass
class Oracle:
    """Judges each commit by all its jobs; it shares no code with the relay."""

    states: dict[tuple[str, str], str]
    """By commit and backend: green, failed, running or unclear."""
    line: list[str]
    """The newest commits, newest first."""
    rows: int

    @classmethod
    def over(cls, connection: sqlite3.Connection) -> "Oracle":
        pushes = connection.execute(
            "SELECT head_sha FROM deliveries WHERE event = 'push' ORDER BY received_at DESC LIMIT ?",
            (MOST_SEARCHED,),
        )
        line = [row["head_sha"] for row in pushes]
        searched, commit_of = set(line), {}
        for row in connection.execute("SELECT guid, head_sha, event, received_at FROM deliveries"):
            if row["head_sha"] in searched and row["event"] in {"push", "merge_group"}:
                commit_of[row["guid"]] = (row["head_sha"], (row["received_at"], row["guid"]))
        jobs: dict[Any, dict[Any, Any]] = defaultdict(dict)
        read = 0
        for job in connection.execute(
            "SELECT delivery, downstream, workflow, run_id, attempt, job_name, state, conclusion, expected, superseded,"
            " in_progress_at FROM jobs"
        ):
            read += 1
            delivery, downstream, workflow, run_id, attempt, name, *result, superseded, began = job
            if superseded or (delivery not in commit_of and delivery not in searched):
                continue
            is_night = delivery in searched
            # Of several deliveries the newest counts, of several nightly runs the one that began last.
            commit, age = (delivery, (began, "")) if is_night else commit_of[delivery]
            of_job = jobs[commit, downstream].setdefault((is_night, workflow, name), {})
            before = of_job.get(run_id, (age, 0, ""))
            if before[1] < attempt:
                of_job[run_id] = (max(age, before[0]), attempt, _word(*result))
        states = {key: _judge(of_jobs) for key, of_jobs in jobs.items()}
        for delivery, downstream in _read_open_runs(connection):
            key = commit_of.get(delivery, ("", ()))[0], downstream
            # A night alone has no run of a delivery.
            if any(not is_night for is_night, *_ in jobs.get(key, ())) and states[key] != "failed":
                states[key] = "running"
        return cls(states, line, read)

    def find(self, backends: Sequence[str], *, between: bool) -> str | None:
        lines = [[self.states.get((sha, backend)) for sha in self.line] for backend in backends]
        accepted = [[_accepts(line, index, between=between) for index in range(len(line))] for line in lines]
        return next(
            (sha for index, sha in enumerate(self.line) if all(line[index] for line in accepted)), None
        )


def _read_open_runs(connection: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """The deliveries of the last day and backends, from L3 on, whose run GitHub has not called over."""
    since = (time.time() - _DAY_S) * 1_000_000
    recent = {
        row["guid"]
        for row in connection.execute("SELECT guid, received_at FROM deliveries")
        if row["received_at"] >= since
    }
    readable = {
        row["downstream"]
        for row in connection.execute("SELECT downstream, reads_actions FROM repositories")
        if row["reads_actions"] == 1
    }
    watched = {
        (row["delivery"], row["downstream"])
        for row in connection.execute("SELECT delivery, downstream, level, reads_actions FROM dispatches")
        if row["delivery"] in recent
        and row["level"] >= 3
        and (row["reads_actions"] == 1 or (row["reads_actions"] is None and row["downstream"] in readable))
    }
    for run in connection.execute(
        "SELECT delivery, downstream, issuer, superseded, attempt, over_attempt FROM runs"
    ):
        is_open = (run["over_attempt"] or 0) < run["attempt"] and not run["superseded"]
        if is_open and run["issuer"] == "github" and (run["delivery"], run["downstream"]) in watched:
            yield run["delivery"], run["downstream"]


def _word(state: str, conclusion: str | None, expected: str | None) -> str:
    if state == "in_progress":
        return "running"
    if expected is not None:
        return "passed" if state == "completed" and conclusion == expected else "failed"
    if state != "completed":
        return "failed"
    return {"success": "passed", "cancelled": "cancelled", "skipped": "skipped", "neutral": "skipped"}.get(
        conclusion or "", "failed"
    )


def _judge(of_jobs: dict[Any, dict[str, tuple[Any, int, str]]]) -> str:
    words = set()
    for runs in of_jobs.values():
        newest = max(age for age, _, _ in runs.values())
        words |= {word for age, _, word in runs.values() if age == newest}
    for word, state in (
        ("failed", "failed"),
        ("running", "running"),
        ("cancelled", "unclear"),
        ("passed", "green"),
    ):
        if word in words:
            return state
    return "unclear"


def _accepts(states: list[str | None], index: int, *, between: bool) -> bool:
    state = states[index]
    if state == "green" or not between or state in {"failed", "running"}:
        return state == "green"
    decided = ("green", "failed")
    before = next((state for state in states[index:] if state in decided), None)
    after = next((state for state in reversed(states[:index]) if state in decided), None)
    return before == after == "green"
