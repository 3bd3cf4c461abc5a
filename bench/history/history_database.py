"""A database for the benchmarks of pages and queries: an upstream with 24 backends and millions of past jobs."""

import sqlite3
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from bench.relay_process.relay_setup import UPSTREAM
from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan

SIZES = (80, 5, 64, 48, 40, 36, 32, 28, 24, 24, 20, 20, 16, 16, 12, 12, 12, 10, 10, 8, 8, 6, 5, 5)
BIG, SMALL = "owner0/backend0", "owner1/backend1"
DAYS = 120
_STALE_S = 36 * 3600
_L4, _L3, _L1, _PROBE = {2, 5}, {3, 8, 14}, {22, 23}, 21


def backends() -> list[BackendSpec]:
    return [
        BackendSpec(f"owner{index}/backend{index}", _level(index), size, probe=index == _PROBE)
        for index, size in enumerate(SIZES)
    ]


def allowlist() -> str:
    lines: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}
    for index, backend in enumerate(backends()):
        entry = f"  - {backend.name}\n"
        if backend.probe:
            entry = f"  - {backend.name}:\n      expect:\n        '*': success\n"
        if backend.level == 3:
            entry = f"  device{index}:\n    {backend.name}: [oncall{index}]\n"
        if backend.level == 4:
            entry = f"  {backend.name}:\n    oncalls: [oncall{index}]\n    jobs: [lint]\n"
        lines[backend.level].append(entry)
    return "".join(f"L{level}:\n{''.join(entries)}" for level, entries in lines.items())


def _level(index: int) -> int:
    return 4 if index in _L4 else 3 if index in _L3 else 1 if index in _L1 else 2


@dataclass(frozen=True, slots=True)
class HistoryDatabase:
    database: Path
    jobs: int
    made_in_s: float | None
    """None for a database from the cache."""


def open_read_only(path: Path) -> sqlite3.Connection:
    """Others may share the file: nothing is written to it, and nothing beside it unless a relay left its log there."""
    log = Path(f"{path}-wal")
    is_whole = not log.exists() or not log.stat().st_size
    options = "immutable=1" if is_whole else "mode=ro"
    return sqlite3.connect(f"file:{path}?{options}", uri=True, isolation_level=None)


def make_history(folder: Path, jobs: int, console: Console, *, targets: int = len(SIZES)) -> HistoryDatabase:
    """Make a database with about so many jobs, or reuse the one that an earlier run of the day left in the folder."""
    path = folder / f"pages-{jobs}-of-{targets}.db"
    if path.exists() and time.time() - path.stat().st_ctime < _STALE_S:
        with closing(open_read_only(path)) as connection:
            return HistoryDatabase(
                path, connection.execute("SELECT max(rowid) FROM jobs").fetchone()[0], None
            )
    folder.mkdir(parents=True, exist_ok=True)
    half_made = path.with_suffix(".part")
    for database in (path, half_made):
        for suffix in ("", "-wal", "-shm"):
            Path(f"{database}{suffix}").unlink(missing_ok=True)
    plan = HistoryPlan(
        upstream=UPSTREAM,
        backends=backends()[:targets],
        until=int(time.time() * 1e6),
        days=DAYS,
        jobs=jobs,
        all_end=False,
    )
    began = time.perf_counter()
    columns = (TextColumn(f"{jobs:,} jobs"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=1.0)
        filled = fill_database(half_made, plan, lambda share: bar.update(task, completed=share))
    half_made.replace(path)
    return HistoryDatabase(path, filled.jobs, time.perf_counter() - began)
