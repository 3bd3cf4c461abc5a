"""Latency of pages over HTTP with millions of jobs in the database, while callbacks keep arriving.

The relay is `crcr serve` on a database with a long history. Readers request one page after the other over keep-alive
connections; meanwhile a writer opens and closes jobs of a new pull request.
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

import uvloop
from rich.console import Console

from bench.history.history_database import BIG, SMALL, allowlist, backends, make_history
from bench.pages.live_update import measure_live_update
from bench.pages.reporter import FIRST_NUMBER, Reporter
from bench.relay_process.load_client import connect, get_bytes, percentile
from bench.relay_process.processes import run_relay
from bench.relay_process.relay_setup import RelaySetup, Row

BAR_MS = 150
_REQUESTS, _READERS, _WARM = 60, 4, 6
_CALLBACKS_A_SECOND = 10


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    paths: tuple[str, ...]
    """Requested in turn."""
    has_bar: bool = False


def list_pages(database: Path) -> list[Page]:
    with sqlite3.connect(database) as connection:
        newest = connection.execute(
            "SELECT number, head_sha FROM pulls WHERE number < ? ORDER BY number DESC LIMIT 30",
            (FIRST_NUMBER,),
        ).fetchall()
    return [
        Page("summary, 14 days", ("/crcr",), has_bar=True),
        Page("summary, 30 days", ("/crcr?range=30d",), has_bar=True),
        Page("summary as JSON", ("/api/v1/summary",)),
        Page("backend with 5 jobs", (f"/crcr/{SMALL}",), has_bar=True),
        Page("backend with 80 jobs", (f"/crcr/{BIG}",), has_bar=True),
        Page("backend with 80 jobs, nightly", (f"/crcr/{BIG}?kind=nightly",)),
        Page("pull request", tuple(f"/crcr/pr/{number}" for number, _ in newest), has_bar=True),
        Page("commit", tuple(f"/crcr/commit/{sha}" for _, sha in newest)),
        Page("metrics, 90 days", ("/crcr/metrics?range=90d",)),
        Page("deliveries", ("/crcr/deliveries",)),
        Page(
            "search",
            tuple(f"/crcr/search?q={words}" for words in ("scatter", "mira-holt", "test-ops", "lint")),
        ),
        Page("badge", (f"/badge/{BIG}.svg", f"/badge/{SMALL}.svg")),
    ]


def measure_pages(folder: Path, cache: Path | None, jobs: int, console: Console) -> Iterator[Row]:
    """Yield each row as soon as it is measured."""
    history = make_history(cache or folder, jobs, console)
    rate = f" in {history.made_in_s:.0f} s" if history.made_in_s else ", from the cache"
    yield "history made, with its sums", f"{history.jobs:,} jobs{rate}", "", True
    run_folder = folder / "pages"
    run_folder.mkdir()
    setup = RelaySetup(run_folder, len(backends()), database=history.database, allowlist=allowlist())
    with run_relay(setup) as ready_s:
        yield "start on it → ready", f"{ready_s:.2f} s", "", True
        all_pages = list_pages(history.database)
        for page in all_pages:  # warm up: the first request of a page is not measured
            uvloop.run(_read(setup, page, _WARM, readers=1))
        for page in all_pages:
            yield from _rows(page, *uvloop.run(_measure(setup, Reporter(setup, BIG), page)))
        yield from measure_live_update(setup, Reporter(setup, BIG))


def _rows(page: Page, one_reader: list[float], several_readers: list[float]) -> Iterator[Row]:
    reached = percentile(one_reader, 0.95) * 1000 < BAR_MS
    bar = f"P95 < {BAR_MS} ms" if page.has_bar else ""
    yield f"{page.name}, 1 reader", _percentiles(one_reader), bar, reached or not page.has_bar
    yield f"{page.name}, {_READERS} readers", _percentiles(several_readers), "", True


def _percentiles(latencies: list[float]) -> str:
    marks = (f"P{share} {percentile(latencies, share / 100) * 1000:.0f}" for share in (50, 95, 99))
    return f"{', '.join(marks)} ms"


async def _measure(setup: RelaySetup, reporter: Reporter, page: Page) -> tuple[list[float], list[float]]:
    await reporter.open_pull()
    callbacks = asyncio.create_task(reporter.report_until_cancelled(_CALLBACKS_A_SECOND))
    try:
        await _read(setup, page, _WARM, readers=1)
        return await _read(setup, page, _REQUESTS, readers=1), await _read(
            setup, page, _REQUESTS, readers=_READERS
        )
    finally:
        callbacks.cancel()
        await asyncio.wait([callbacks])


async def _read(setup: RelaySetup, page: Page, number: int, *, readers: int) -> list[float]:
    """Send `number` requests in all, from so many readers at once; return the latencies."""
    waiting = islice(cycle(page.paths), number)
    latencies: list[float] = []

    async def read() -> None:
        connection = await connect(setup.relay_port)
        for path in waiting:
            began = time.perf_counter()
            status, _ = await connection.send(get_bytes(path))
            latencies.append(time.perf_counter() - began)
            if status != 200:
                raise SystemExit(f"{path} answered {status}")
        connection.close()

    await asyncio.gather(*(read() for _ in range(readers)))
    return latencies
