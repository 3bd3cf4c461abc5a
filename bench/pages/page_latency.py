"""Latency of pages over HTTP with millions of jobs in the database: rendered while callbacks arrive, and from the cache.

The relay is `crcr serve` on a database with a long history. Readers request one page after the other over keep-alive
connections. A *cold* request has an address that nobody requested before; meanwhile a writer opens and closes jobs of a new
pull request. *Kept* ones repeat an address while nothing changes.
"""

import asyncio
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, cycle, islice
from pathlib import Path

import uvloop
from rich.console import Console

from bench.history.history_database import BIG, SMALL, allowlist, backends, make_history
from bench.pages.live_update import measure_live_update
from bench.pages.reporter import FIRST_NUMBER, Reporter
from bench.relay_process.load_client import connect, get_bytes, percentile
from bench.relay_process.process_usage import cpu_seconds
from bench.relay_process.processes import run_relay
from bench.relay_process.relay_setup import RelaySetup, Row

COLD_MS, KEPT_MS, METRICS_MS, SUMMARY_CPU_MS = 50, 5, 150, 25
_REQUESTS, _READERS, _WARM = 60, 4, 6
_QUIET_S = 1.5
_CALLBACKS_A_SECOND = 10


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    paths: tuple[str, ...]
    """Requested in turn."""
    cold_ms: int | None = None
    """The bar for a cold request."""
    is_kept: bool = True


@dataclass(frozen=True, slots=True)
class PageTimes:
    cold: list[float]
    cold_together: list[float]
    """Of several readers at once."""
    kept: list[float]
    cpu_ms: float
    """Processor time of the relay for each cold request, without callbacks."""


def list_pages(database: Path) -> list[Page]:
    with sqlite3.connect(database) as connection:
        newest = connection.execute(
            "SELECT number, head_sha FROM pulls WHERE number < ? ORDER BY number DESC LIMIT 30",
            (FIRST_NUMBER,),
        ).fetchall()
    return [
        Page("summary, 14 days", ("/crcr",), COLD_MS),
        Page("summary, 30 days", ("/crcr?range=30d",), COLD_MS),
        Page("summary as JSON", ("/api/v1/summary",)),
        Page("backend with 5 jobs", (f"/crcr/{SMALL}",), COLD_MS),
        Page("backend with 80 jobs", (f"/crcr/{BIG}",), COLD_MS),
        Page("backend with 80 jobs, nightly", (f"/crcr/{BIG}?kind=nightly",)),
        Page("pull request", tuple(f"/crcr/pr/{number}" for number, _ in newest), COLD_MS),
        Page("commit", tuple(f"/crcr/commit/{sha}" for _, sha in newest)),
        Page("failing jobs", ("/crcr/failing",), COLD_MS),
        Page("failing jobs as JSON", ("/api/v1/failing",), COLD_MS),
        Page("failing jobs, nightly", ("/crcr/failing?kind=nightly",), COLD_MS),
        Page("failures", ("/crcr/failures",), COLD_MS),
        Page("pull requests", ("/crcr/pulls",)),
        Page("commits of the base branch", ("/crcr/commits",)),
        Page("metrics, 90 days", ("/crcr/metrics?range=90d",), METRICS_MS),
        Page("deliveries", ("/crcr/deliveries",), is_kept=False),
        Page(
            "search",
            tuple(f"/crcr/search?q={words}" for words in ("scatter", "mira-holt", "test-ops", "lint")),
            is_kept=False,
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
        setup.wait_for("/crcr")  # the intake is ready before the page process
        all_pages = list_pages(history.database)
        for page in all_pages:  # warm up: the first request of a page is not measured
            uvloop.run(_read(setup, page, _WARM, readers=1, cold=True))
        for page in all_pages:
            yield from describe_times(page, uvloop.run(measure_page(setup, Reporter(setup, BIG), page)))
        yield from measure_live_update(setup, Reporter(setup, BIG))


def describe_times(page: Page, times: PageTimes) -> Iterator[Row]:
    reached = page.cold_ms is None or percentile(times.cold, 0.95) * 1000 < page.cold_ms
    bar = f"P95 < {page.cold_ms} ms" if page.cold_ms else ""
    yield f"{page.name}, cold, 1 reader", _percentiles(times.cold), bar, reached
    yield f"{page.name}, cold, {_READERS} readers", _percentiles(times.cold_together), "", True
    if page.is_kept:
        has_bar = page.cold_ms is not None
        reached = percentile(times.kept, 0.95) * 1000 < KEPT_MS or not has_bar
        bar = f"P95 < {KEPT_MS} ms" if has_bar else ""
        yield f"{page.name}, kept", _percentiles(times.kept), bar, reached
    has_bar = page.paths == ("/crcr",)
    reached = times.cpu_ms < SUMMARY_CPU_MS or not has_bar
    bar = f"< {SUMMARY_CPU_MS} ms" if has_bar else ""
    yield f"{page.name}, processor time", f"{times.cpu_ms:.1f} ms", bar, reached


def _percentiles(latencies: list[float]) -> str:
    marks = (f"P{share} {percentile(latencies, share / 100) * 1000:.1f}" for share in (50, 95, 99))
    return f"{', '.join(marks)} ms"


async def measure_page(setup: RelaySetup, reporter: Reporter, page: Page) -> PageTimes:
    await reporter.open_pull()
    callbacks = asyncio.create_task(reporter.report_until_cancelled(_CALLBACKS_A_SECOND))
    try:
        await _read(setup, page, _WARM, readers=1, cold=True)
        cold = await _read(setup, page, _REQUESTS, readers=1, cold=True)
        together = await _read(setup, page, _REQUESTS, readers=_READERS, cold=True)
    finally:
        callbacks.cancel()
        await asyncio.wait([callbacks])
    await asyncio.sleep(_QUIET_S)
    cpu_ms = await _measure_cpu(setup, page)
    one_address = replace(page, paths=page.paths[:1])  # it is kept for a second
    await _read(setup, one_address, 1, readers=1, cold=False)
    kept = await _read(setup, one_address, _REQUESTS, readers=1, cold=False)
    return PageTimes(cold, together, kept, cpu_ms)


async def _measure_cpu(setup: RelaySetup, page: Page) -> float:
    """Processor time of one cold request in ms, without what the relay uses when nobody asks."""
    idle_s, began = cpu_seconds(setup.process_id), time.monotonic()
    await asyncio.sleep(_QUIET_S)
    idle_share = (cpu_seconds(setup.process_id) - idle_s) / (time.monotonic() - began)
    used_s, began = cpu_seconds(setup.process_id), time.monotonic()
    await _read(setup, page, _REQUESTS, readers=1, cold=True)
    used_s = cpu_seconds(setup.process_id) - used_s - idle_share * (time.monotonic() - began)
    return 1000 * used_s / _REQUESTS


_serial = count()


async def _read(setup: RelaySetup, page: Page, number: int, *, readers: int, cold: bool) -> list[float]:
    """Send `number` requests in all, from so many readers at once; return the latencies."""
    waiting = islice(cycle(page.paths), number)
    latencies: list[float] = []

    async def read() -> None:
        connection = await connect(setup.relay_port)
        for path in waiting:
            address = f"{path}{'&' if '?' in path else '?'}x={next(_serial)}" if cold else path
            began = time.perf_counter()
            status, _ = await connection.send(get_bytes(address))
            latencies.append(time.perf_counter() - began)
            if status != 200:
                raise SystemExit(f"{address} answered {status}")
        connection.close()

    await asyncio.gather(*(read() for _ in range(readers)))
    return latencies
