"""Pages over millions of jobs: how long they take over HTTP while results keep arriving.

The relay is the real `crcr serve` on a database with a long past. Readers ask over kept connections, each for one
page after the other; a writer opens and closes jobs of a new pull request all the while.
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

from bench.client import connect, get, percentile
from bench.history_world import BIG, SMALL, allowlist, backends, make_past
from bench.live import visible
from bench.reporter import FIRST_NUMBER, Reporter
from bench.running import serving
from bench.world import Row, World

BAR_MS = 150
_EACH, _READERS, _WARM = 60, 4, 6
_CALLBACKS_A_SECOND = 10


@dataclass(frozen=True, slots=True)
class Page:
    name: str
    paths: tuple[str, ...]
    """Asked for in turn."""
    barred: bool = False


def pages(database: Path) -> list[Page]:
    with sqlite3.connect(database) as known:
        newest = known.execute(
            "SELECT number, head_sha FROM pulls WHERE number < ? ORDER BY number DESC LIMIT 30",
            (FIRST_NUMBER,),
        ).fetchall()
    return [
        Page("summary, 14 days", ("/crcr",), barred=True),
        Page("summary, 30 days", ("/crcr?range=30d",), barred=True),
        Page("summary as JSON", ("/api/v1/summary",)),
        Page("backend with 5 jobs", (f"/crcr/{SMALL}",), barred=True),
        Page("backend with 80 jobs", (f"/crcr/{BIG}",), barred=True),
        Page("backend with 80 jobs, nightly", (f"/crcr/{BIG}?kind=nightly",)),
        Page("pull request", tuple(f"/crcr/pr/{number}" for number, _ in newest), barred=True),
        Page("commit", tuple(f"/crcr/commit/{sha}" for _, sha in newest)),
        Page("metrics, 90 days", ("/crcr/metrics?range=90d",)),
        Page("deliveries", ("/crcr/deliveries",)),
        Page(
            "search", tuple(f"/crcr/search?q={each}" for each in ("scatter", "mira-holt", "test-ops", "lint"))
        ),
        Page("badge", (f"/badge/{BIG}.svg", f"/badge/{SMALL}.svg")),
    ]


def page_run(folder: Path, cache: Path | None, jobs: int, console: Console) -> Iterator[Row]:
    """Yields rows as they are measured."""
    past = make_past(cache or folder, jobs, console)
    rate = f" in {past.made_in_s:.0f} s" if past.made_in_s else ", kept from before"
    yield "history made, with its sums", f"{past.jobs:,} jobs{rate}", "", True
    place = folder / "pages"
    place.mkdir()
    world = World(place, len(backends()), database=past.database, allowlist=allowlist())
    with serving(world) as ready_s:
        yield "start on it → ready", f"{ready_s:.2f} s", "", True
        all_pages = pages(past.database)
        for page in all_pages:  # once around, so that what is measured is not a start
            uvloop.run(_read(world, page, _WARM, readers=1))
        for page in all_pages:
            yield from _rows(page, *uvloop.run(_measure(world, Reporter(world, BIG), page)))
        yield from visible(world, Reporter(world, BIG))


def _rows(page: Page, alone: list[float], together: list[float]) -> Iterator[Row]:
    reached = percentile(alone, 0.95) * 1000 < BAR_MS
    bar = f"P95 < {BAR_MS} ms" if page.barred else ""
    yield f"{page.name}, 1 reader", _words(alone), bar, reached or not page.barred
    yield f"{page.name}, {_READERS} readers", _words(together), "", True


def _words(latencies: list[float]) -> str:
    marks = (f"P{share} {percentile(latencies, share / 100) * 1000:.0f}" for share in (50, 95, 99))
    return f"{', '.join(marks)} ms"


async def _measure(world: World, reporter: Reporter, page: Page) -> tuple[list[float], list[float]]:
    await reporter.open_pull()
    arriving = asyncio.create_task(reporter.go_on(_CALLBACKS_A_SECOND))
    try:
        await _read(world, page, _WARM, readers=1)
        return await _read(world, page, _EACH, readers=1), await _read(world, page, _EACH, readers=_READERS)
    finally:
        arriving.cancel()
        await asyncio.wait([arriving])


async def _read(world: World, page: Page, number: int, *, readers: int) -> list[float]:
    """Ask so often in all, by so many readers at once; return how long each answer took."""
    waiting = islice(cycle(page.paths), number)
    latencies: list[float] = []

    async def read() -> None:
        connection = await connect(world.relay)
        for path in waiting:
            began = time.perf_counter()
            status, _ = await connection.ask(get(path))
            latencies.append(time.perf_counter() - began)
            if status != 200:
                raise SystemExit(f"{path} answered {status}")
        connection.close()

    await asyncio.gather(*(read() for _ in range(readers)))
    return latencies
