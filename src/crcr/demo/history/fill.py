"""Fills a database with generated history: rows from the generator, then the sums by the store's own rules."""

import asyncio
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from sqlalchemy import create_engine, text
from sqlalchemy.pool import NullPool

from crcr.cli.printing import console, print_line
from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.model import RepoName
from crcr.demo.history.backends import BackendSpec, JobPace, Pace, Range
from crcr.demo.history.generate import GeneratedCounts, HistoryPlan, count_pulls, generate_history
from crcr.demo.opening_failures import SICK
from crcr.demo.traffic import NIGHTLY, NIGHTLY_BACKENDS, NIGHTLY_FAILING, NIGHTLY_FAILURE
from crcr.demo.world import ALLOWLIST, BACKENDS, UPSTREAM
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.levels.evaluations import Levels
from crcr.record.migrations.run import migrate
from crcr.record.statistics.rebuild_all_sums import rebuild_extremes, rebuild_sums
from crcr.record.store.database import Tx
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.database import SqliteDatabase
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from github_sim.ci.autoplay import FAILING_TESTS
from github_sim.world.actions import Behaviour, Workflow

_OF_SUMS = 0.25
"""Share of the time spent on the sums."""
_ENDS_BEFORE = timedelta(hours=1)
"""Verdicts about the first simulated failures look back for most of an hour: generated passes would be evidence in them."""
_LISTED_BEFORE = timedelta(days=60)
_MOST_EVALUATIONS = 13
_ADD_LEVEL = Statement(
    text(
        "INSERT INTO levels (upstream, downstream, version, level, at) VALUES (:upstream, :downstream, 0, :level, :at)"
    )
)
_ROUND = 1000
"""The numbers of generated pull requests end with a multiple of this."""


def fill_database(
    path: Path, plan: HistoryPlan, progress: Callable[[float], None] = lambda _: None
) -> GeneratedCounts:
    """Migrate a database and fill it. It must not be in use, and must not hold sums."""
    migrate(path)
    connection = sqlite3.connect(path)
    try:
        filled = generate_history(connection, plan, lambda share: progress(share * (1 - _OF_SUMS)))
    finally:
        connection.close()
    engine = create_engine(f"sqlite:///{path}", poolclass=NullPool)
    with engine.begin() as sums:
        for pragma in ("cache_size=-500000", "mmap_size=34359738368", "temp_store=MEMORY"):
            sums.exec_driver_sql(f"PRAGMA {pragma}")
        for table in ("hours", "job_days"):
            sums.exec_driver_sql(f"DELETE FROM {table}")  # noqa: S608  our own two
        rebuild_sums(sums)
        rebuild_extremes(sums)
    engine.dispose()
    progress(1.0)
    return filled


def fill_demo(
    folder: Path,
    *,
    length: timedelta,
    jobs_an_hour: int,
    seed: int,
    speed: float,
    links: str,
    now: datetime | None = None,
) -> GeneratedCounts:
    """Generate the demo's history. Nothing in it is still running: the simulated GitHub starts now.

    Its times are those of the simulation, which is much faster than real CI: otherwise every chart would fall on its last
    day. Its numbers end so that the first pull request of the simulation is always the same, 1001 by default.
    """
    hours = length / timedelta(hours=1)
    plan = HistoryPlan(
        upstream=UPSTREAM,
        backends=_demo_backends(speed),
        until=to_us((now or datetime.now(UTC)) - _ENDS_BEFORE),
        days=hours / 24,
        jobs=int(hours * jobs_an_hour),
        seed=seed,
        links=links,
    )
    pulls = count_pulls(plan)
    plan = replace(plan, first_number=(pulls // _ROUND + 1) * _ROUND - pulls + 1)
    columns = (TextColumn("generating history"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        filled = fill_database(folder / "crcr.db", plan, lambda share: bar.update(task, completed=share))
    evaluated = evaluate_levels(folder / "crcr.db", now or datetime.now(UTC), length)
    with ThreadPoolExecutor(1) as thread:  # the demo's own event loop runs already
        thread.submit(asyncio.run, evaluated).result()
    print_line(f"generated {filled.jobs:,} jobs of {filled.pulls:,} pull requests over {hours / 24:g} days")
    return filled


async def evaluate_levels(path: Path, now: datetime, length: timedelta) -> None:
    """Evaluate the generated history day by day, as a relay would have done, with the backends at their levels for long."""
    upstream, checked = RepoName(UPSTREAM), read_allowlist(ALLOWLIST).allowlist
    if checked is None:
        return
    database = SqliteDatabase(path, Signals())
    levels = Levels(database, _Listed(checked), CheckRefresher({}), (upstream,))
    listed_at = to_us(now - _LISTED_BEFORE)
    try:
        rows = [
            {
                "downstream": entry.name.key,
                "level": int(entry.level),
                "upstream": upstream.key,
                "at": listed_at,
            }
            for entry in checked.entries
        ]
        await database.write(lambda tx: tx.many(_ADD_LEVEL, rows))
        for day in range(min(length.days, _MOST_EVALUATIONS), -1, -1):
            await levels.evaluate_now(upstream, now - _ENDS_BEFORE - timedelta(days=day))
    finally:
        await database.close()


@dataclass(frozen=True, slots=True)
class _Listed:
    """The demo's allowlist, which the relay has not read yet."""

    allowlist: Allowlist

    async def in_force(self, _tx: Tx, _upstream: RepoName) -> Allowlist:
        return self.allowlist


def _demo_backends(speed: float) -> list[BackendSpec]:
    allowlist = read_allowlist(ALLOWLIST).allowlist
    entries = allowlist.entries if allowlist else ()
    backends = []
    for entry in entries:
        name = entry.name.full_name
        _, workflow = BACKENDS[name]
        backends.append(
            BackendSpec(
                name,
                int(entry.level),
                [job for spec in workflow.jobs for job in spec.names()],
                silent=workflow.behaviour.silent,
                probe=bool(entry.expect),
                pace=_pace(name, workflow, speed),
            )
        )
    return backends


def _pace(backend: str, workflow: Workflow, speed: float) -> Pace:
    """Return how the simulation runs the backend's workflow, and its nightly one."""

    def faster(seconds: Range) -> Range:
        return seconds[0] / speed, seconds[1] / speed

    behaviour = workflow.behaviour
    # What a backend fails with once it is broken was not there before.
    breaks_later = behaviour.broken_after_runs is not None
    message = Behaviour.failure if breaks_later else behaviour.failure
    return Pace(
        queue_s=faster(behaviour.queue_s),
        jobs=tuple(
            JobPace(
                name,
                faster(spec.duration_s),
                spec.tests,
                behaviour.fail_rate if spec.fails is None else 0.0,
                message,
                FAILING_TESTS,
            )
            for spec in workflow.jobs
            for name in spec.names()
        ),
        nightly=tuple(
            JobPace(
                name,
                faster(spec.duration_s),
                spec.tests,
                NIGHTLY_FAILING,
                NIGHTLY_FAILURE["message"],
                ((NIGHTLY_FAILURE["name"], NIGHTLY_FAILURE["file"]),),
            )
            for spec in (NIGHTLY.jobs if backend in NIGHTLY_BACKENDS else ())
            for name in spec.names()
        ),
        nightly_workflow=(NIGHTLY.path, NIGHTLY.name),
        # A fleet that falls sick must have been well before: otherwise a commit may be to blame.
        steady=any(backend == name for name, _ in SICK),
    )
