"""Measure what a fact takes in the database: bytes of its rows with their index entries, and statements.

Bytes are those of SQLite's pages (`dbstat`): of facts that are kept in a generated history, of the others in a small
relay's own database. Statements are counted in the relay in
process with the simulated GitHub, in simulated time; `BEGIN` and `COMMIT` are left out.
"""

import asyncio
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

from bench.github_budget.relay_in_process import SimulatedRelay, run_simulated_relay
from bench.github_budget.simulated_time import run_simulated
from bench.model.constants import RowBytes
from crcr.demo.run import simulated_settings
from crcr.record.store.sqlite.database import SqliteDatabase
from github_sim.github import GitHub, JobSpec, Workflow

UPSTREAM = "model/upstream"
_FEW, _MANY = 1, 11
_UNTIL_SENT_S = 0.7
_JOBS = tuple(f"job {number}" for number in range(10))
_KEPT = {
    "delivery": ("deliveries", "pulls"),
    "dispatch": ("dispatches",),
    "job": ("jobs", "runs", "hours", "days", "job_days"),
}
"""For each fact, the table whose rows are counted and those that are written with it."""
_DELETED_SOON = {"effect": ("effects",), "change": ("changes",)}


def measure_rows(history: Path, database: Path, folder: Path) -> RowBytes:
    """Bytes in a database with a long history and in that of a relay that has run; statements of one in the folder."""
    with closing(sqlite3.connect(database)) as connection:
        [[body]] = connection.execute("SELECT coalesce(avg(length(body)), 0) FROM deliveries")
    facts = {**_row_bytes(history, _KEPT), **_row_bytes(database, _DELETED_SOON)}
    return RowBytes(body=float(body), statements=_statements(folder), **facts)


def _row_bytes(database: Path, facts: Mapping[str, Sequence[str]]) -> dict[str, float]:
    with closing(sqlite3.connect(database)) as connection:
        sizes = dict(connection.execute("SELECT name, sum(pgsize) FROM dbstat GROUP BY name"))
        tables = dict(connection.execute("SELECT name, tbl_name FROM sqlite_master"))
        result = {}
        for fact, names in facts.items():
            [[rows]] = connection.execute(f"SELECT count(*) FROM {names[0]}")  # noqa: S608  a name from above
            result[fact] = sum(size for name, size in sizes.items() if tables.get(name) in names) / max(
                rows, 1
            )
    return result


def _statements(folder: Path) -> dict[str, float]:
    folder.mkdir()
    counts = {}
    for number in (_FEW, _MANY):
        run_folder = folder / f"{number}"
        run_folder.mkdir()
        counts[number] = run_simulated(_count_statements(run_folder, number))
    dispatch = (counts[_MANY][0] - counts[_FEW][0]) / (_MANY - _FEW)
    return {"webhook": counts[_FEW][0] - dispatch, "dispatch": dispatch, "callback": counts[_FEW][1]}


async def _count_statements(folder: Path, downstreams: int) -> tuple[float, float]:
    """Statements of a webhook until all its dispatches are sent, and of a callback."""
    names = [f"backend{number}/backend" for number in range(downstreams)]
    async with run_simulated_relay(
        folder,
        seed=1,
        make_world=partial(_make_world, names=names),
        settings_for=partial(simulated_settings, upstream=UPSTREAM),
    ) as relay:
        for _ in range(2):  # The first one mints the tokens.
            with _traced(relay) as of_webhook:
                await relay.github.open_pr(UPSTREAM, title="A change", author_association="MEMBER")
                await asyncio.sleep(_UNTIL_SENT_S)
        run = relay.github.runs(names[0])[-1]
        with _traced(relay) as of_callbacks:
            for job in _JOBS:
                await relay.github.start_job(run, job)
                await relay.github.complete_job(run, job, "success")
        relay.check()
    return float(len(of_webhook)), len(of_callbacks) / (2 * len(_JOBS))


def _make_world(github: GitHub, names: list[str]) -> None:
    lines = ["L2:", *(f"  - {name}" for name in names), ""]
    github.create_repository(UPSTREAM, files={".github/crcr-allowlist.yml": "\n".join(lines)})
    workflow = Workflow(jobs=tuple(JobSpec(job) for job in _JOBS), run_name="CI {delivery_id}")
    for name in names:
        github.create_repository(name, workflows=[workflow])


@contextmanager
def _traced(relay: SimulatedRelay) -> Iterator[list[str]]:
    """Every statement that SQLite executes, each row of a batch as one."""
    database = relay.services.database
    if not isinstance(database, SqliteDatabase):
        raise TypeError("statements are counted on SQLite")
    statements: list[str] = []

    def note(sql: str) -> None:
        if not sql.startswith(("BEGIN", "COMMIT")):
            statements.append(sql)

    connections = (database._writing, database._key_reader)  # noqa: SLF001  only they execute statements
    for connection in connections:
        connection.set_trace_callback(note)
    yield statements
    for connection in connections:
        connection.set_trace_callback(None)
