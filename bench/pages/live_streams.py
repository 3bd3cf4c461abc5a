"""Two thousand live streams: the memory of the relay's two processes, and how long a change takes to reach the last of them."""

import asyncio
import time
from pathlib import Path

from bench.relay_process.load_client import get_bytes, percentile, post_bytes, send_all
from bench.relay_process.process_usage import memory
from bench.relay_process.processes import run_idle_relay
from bench.relay_process.relay_setup import RelaySetup, Row, signed_webhook

STREAMS = 2_000
BAR_MB = 100
BAR_S = 1.0
_AT_ONCE = 50
_CHANGES = 5


def measure_live_streams(folder: Path) -> list[Row]:
    with run_idle_relay(1, folder) as (setup, _):
        setup.wait_for("/crcr")  # the page process, which holds the streams, starts after the intake
        before_mb = memory(setup.process_id).proportional_mb
        webhooks = [signed_webhook(number) for number in range(1, _CHANGES + 1)]
        requests = [post_bytes("/github/webhook", body, headers) for body, headers, _ in webhooks]
        delays, after_mb = asyncio.run(_follow(setup, requests))
    more_mb, p95 = after_mb - before_mb, percentile(delays, 0.95)
    return [
        (
            f"memory of {STREAMS:,} live streams",
            f"{more_mb:.0f} MB more ({1000 * more_mb / STREAMS:.0f} KB each)",
            f"< {BAR_MB} MB",
            more_mb < BAR_MB,
        ),
        (
            f"webhook accepted → event on {STREAMS:,} streams",
            f"P50 {percentile(delays, 0.5) * 1000:.0f}, P95 {p95 * 1000:.0f} ms",
            f"P95 < {BAR_S:.0f} s",
            p95 < BAR_S,
        ),
    ]


async def _follow(setup: RelaySetup, requests: list[bytes]) -> tuple[list[float], float]:
    streams = []
    for _ in range(STREAMS // _AT_ONCE):
        streams += await asyncio.gather(*(_open(setup.relay_port) for _ in range(_AT_ONCE)))
    delays = []
    for request in requests:
        waiting = asyncio.gather(*(_read_event(reader) for reader, _ in streams))
        await asyncio.sleep(0)
        await send_all(setup.relay_port, [request], 1)
        accepted = time.monotonic()
        delays += [max(0.0, at - accepted) for at in await waiting]
        await asyncio.sleep(1)
        await asyncio.gather(*(_skip(reader) for reader, _ in streams))
    after_mb = memory(setup.process_id).proportional_mb
    for _, writer in streams:
        writer.close()
    return delays, after_mb


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(get_bytes("/api/v1/events"))
    head = await reader.readuntil(b"retry: 2000\n\n")
    if not head.startswith(b"HTTP/1.1 200"):
        raise SystemExit(f"a stream was refused: {head[:100]!r}")
    return reader, writer


async def _read_event(reader: asyncio.StreamReader) -> float:
    await reader.readuntil(b"event: change")
    return time.monotonic()


async def _skip(reader: asyncio.StreamReader) -> None:
    """Read what else has come, so that the next change is seen by itself."""
    while True:
        try:
            async with asyncio.timeout(0.05):
                await reader.read(65_536)
        except TimeoutError:
            return
