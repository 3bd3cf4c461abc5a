"""`python -m bench.model --measure`: measure every constant of the model on this machine."""

import os
import platform
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from bench.model.constants import Constants
from bench.model.measure_calls import measure_calls
from bench.model.measure_readers import make_model_history, measure_readers
from bench.model.measure_rows import measure_rows
from bench.model.measure_store import MANY, measure_store


def measure_constants(folder: Path, console: Console) -> Constants:
    """Measure on real processes and, for GitHub's calls, in simulated time; everything stays on loopback."""
    folder.mkdir(exist_ok=True)
    console.print("calls for each head, in simulated time")
    calls = measure_calls(folder / "calls")
    console.print("webhooks, dispatches, checks and callbacks on SQLite")
    sqlite = measure_store(folder / "sqlite", on_postgres=False)
    console.print("the same on PostgreSQL")
    postgres = measure_store(folder / "postgres", on_postgres=True)
    console.print("rows, statements, pages and streams")
    history = make_model_history(folder / "history", console)
    return Constants(
        measured_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        machine=f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
        python=platform.python_version(),
        sqlite=sqlite,
        postgres=postgres,
        readers=measure_readers(folder / "readers", history),
        rows=measure_rows(history, folder / "sqlite" / f"{MANY}" / "crcr.db", folder / "rows"),
        calls=calls,
    )
