"""The world of the page runs: an upstream with two dozen backends of all sizes, and millions of jobs in its past."""

import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from bench.world import UPSTREAM
from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan

SIZES = (80, 5, 64, 48, 40, 36, 32, 28, 24, 24, 20, 20, 16, 16, 12, 12, 12, 10, 10, 8, 8, 6, 5, 5)
BIG, SMALL = "owner0/backend0", "owner1/backend1"
DAYS = 120
_STALE_S = 36 * 3600
_GATING, _SPEAKING, _TOLD, _PROBE = {2, 5}, {3, 8, 14}, {22, 23}, 21


def backends() -> list[BackendSpec]:
    return [
        BackendSpec(f"owner{place}/backend{place}", _level(place), size, probe=place == _PROBE)
        for place, size in enumerate(SIZES)
    ]


def allowlist() -> str:
    lines: dict[int, list[str]] = {1: [], 2: [], 3: [], 4: []}
    for place, each in enumerate(backends()):
        entry = f"  - {each.name}\n"
        if each.probe:
            entry = f"  - {each.name}:\n      expect:\n        '*': success\n"
        if each.level == 3:
            entry = f"  device{place}:\n    {each.name}: [oncall{place}]\n"
        if each.level == 4:
            entry = f"  {each.name}:\n    oncalls: [oncall{place}]\n    jobs: [lint]\n"
        lines[each.level].append(entry)
    return "".join(f"L{level}:\n{''.join(entries)}" for level, entries in lines.items())


def _level(place: int) -> int:
    return 4 if place in _GATING else 3 if place in _SPEAKING else 1 if place in _TOLD else 2


@dataclass(frozen=True, slots=True)
class Past:
    database: Path
    jobs: int
    made_in_s: float | None
    """None for one that was kept from an earlier run."""


def make_past(folder: Path, jobs: int, console: Console) -> Past:
    """A database with about so many jobs, kept in the folder for the next run of the day."""
    path = folder / f"pages-{jobs}.db"
    if path.exists() and time.time() - path.stat().st_ctime < _STALE_S:
        with sqlite3.connect(path) as known:
            return Past(path, known.execute("SELECT max(rowid) FROM jobs").fetchone()[0], None)
    folder.mkdir(parents=True, exist_ok=True)
    half_made = path.with_suffix(".part")
    for each in (path, half_made):
        for suffix in ("", "-wal", "-shm"):
            Path(f"{each}{suffix}").unlink(missing_ok=True)
    plan = HistoryPlan(
        upstream=UPSTREAM,
        backends=backends(),
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
    return Past(path, filled.jobs, time.perf_counter() - began)
