"""Fills a database with generated history: rows from the generator, then the sums by the store's own rules."""

import sqlite3
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from crcr.cli.printing import console, print_line
from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.generate import GeneratedCounts, HistoryPlan, generate_history
from crcr.demo.world import ALLOWLIST, BACKENDS, UPSTREAM
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.migrations.run import migrate
from crcr.record.statistics.rebuild_all_sums import rebuild_extremes, rebuild_sums
from crcr.record.store.times import to_us

_OF_SUMS = 0.25
"""Share of the time spent on the sums."""
_ENDS_BEFORE = timedelta(minutes=1)


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
    folder: Path, *, length: timedelta, jobs_an_hour: int, seed: int, links: str, now: datetime | None = None
) -> GeneratedCounts:
    """Generate the demo's history. Nothing in it is still running: the simulated GitHub starts now."""
    hours = length / timedelta(hours=1)
    plan = HistoryPlan(
        upstream=UPSTREAM,
        backends=_demo_backends(),
        until=to_us((now or datetime.now(UTC)) - _ENDS_BEFORE),
        days=hours / 24,
        jobs=int(hours * jobs_an_hour),
        seed=seed,
        links=links,
    )
    columns = (TextColumn("generating history"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console(), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        filled = fill_database(folder / "crcr.db", plan, lambda share: bar.update(task, completed=share))
    print_line(f"generated {filled.jobs:,} jobs of {filled.pulls:,} pull requests over {hours / 24:g} days")
    return filled


def _demo_backends() -> list[BackendSpec]:
    allowlist = read_allowlist(ALLOWLIST).allowlist
    entries = allowlist.entries if allowlist else ()
    backends = []
    for entry in entries:
        _, workflow = BACKENDS[entry.name.full_name]
        names = [name for spec in workflow.jobs for name in spec.names()]
        backends.append(
            BackendSpec(
                entry.name.full_name,
                int(entry.level),
                names,
                silent=workflow.behaviour.silent,
                probe=bool(entry.expect),
            )
        )
    return backends
