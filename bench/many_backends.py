"""Pages and API answers of an upstream with 10,000 entries on its allowlist: bytes and seconds over HTTP.

The relay looks up its new entries at the same time, so the seconds have no bar.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from bench.client import connect, get
from bench.running import serving
from bench.world import Row, World

ENTRIES = 10_000
PATHS = (
    "/crcr",
    "/crcr?sort=-failure",
    "/crcr?page=50",
    "/crcr/metrics",
    "/api/v1/summary",
    "/api/v1/metrics",
)
BAR_BYTES = 500_000


def many_backends(folder: Path) -> Iterator[Row]:
    place = folder / "many"
    place.mkdir()
    entries = "".join(f"  - owner{number % 97}/backend{number:05}\n" for number in range(ENTRIES))
    world = World(place, 1, allowlist=f"L2:\n{entries}")
    with serving(world):
        for path in PATHS:
            size, took_s = uvloop.run(_read(world, path))
            text = f"{size / 1000:,.0f} KB in {took_s:.2f} s"
            bar = f"< {BAR_BYTES / 1000:.0f} KB"
            yield f"{path}, {ENTRIES:,} entries", text, bar, size < BAR_BYTES


async def _read(world: World, path: str) -> tuple[int, float]:
    """The size of the answer, and the shortest of three times: the first reads the allowlist."""
    connection = await connect(world.relay)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        status, body = await connection.ask(get(path))
        times.append(time.perf_counter() - began)
        if status != 200:
            raise SystemExit(f"{path} answered {status}")
    connection.close()
    return len(body), min(times)
