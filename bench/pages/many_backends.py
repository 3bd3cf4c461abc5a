"""Size and latency of pages and API responses with 10,000 entries in the allowlist.

The relay identifies the new entries at the same time, so the latency has no bar.
"""

import time
from collections.abc import Iterator
from pathlib import Path

import uvloop

from bench.relay_process.load_client import connect, get_bytes
from bench.relay_process.processes import run_relay
from bench.relay_process.relay_setup import RelaySetup, Row

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


def measure_many_backends(folder: Path) -> Iterator[Row]:
    run_folder = folder / "many"
    run_folder.mkdir()
    entries = "".join(f"  - owner{number % 97}/backend{number:05}\n" for number in range(ENTRIES))
    setup = RelaySetup(run_folder, 1, allowlist=f"L2:\n{entries}")
    with run_relay(setup):
        setup.wait_for("/crcr")  # the page process starts after the intake
        for path in PATHS:
            size, took_s = uvloop.run(_read(setup, path))
            text = f"{size / 1000:,.0f} KB in {took_s:.2f} s, cold"
            bar = f"< {BAR_BYTES / 1000:.0f} KB"
            yield f"{path}, {ENTRIES:,} entries", text, bar, size < BAR_BYTES


async def _read(setup: RelaySetup, path: str) -> tuple[int, float]:
    """Return the size of the first response, and its latency: later ones are kept pages."""
    connection = await connect(setup.relay_port)
    began = time.perf_counter()
    status, body = await connection.send(get_bytes(path))
    took_s = time.perf_counter() - began
    connection.close()
    if status != 200:
        raise SystemExit(f"{path} answered {status}")
    return len(body), took_s
