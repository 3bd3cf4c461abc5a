"""A flood of anonymous page requests that no cache can answer, while webhooks and callbacks go on.

Every request has other parameters: ranges, sorts, filters, numbers that no pull request has, words to search for. wrk sends
them over 64 connections for a minute where it is installed (Debian's package `wrk`), else a client of our own.
"""

import asyncio
import random
import re
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console

from bench.history.history_database import make_history
from bench.relay_process.load_client import Connection, connect, get_bytes, percentile
from bench.relay_process.process_usage import Memory, cpu_seconds, memory
from bench.relay_process.processes import run_relay, wait_for_dispatches
from bench.relay_process.relay_setup import RelaySetup, Row
from bench.relay_process.steady_traffic import Answers, WatchedPull, send_at_rate, webhook_requests

TARGETS = 20
HISTORY_JOBS = 200_000
CONNECTIONS = 64
FLOOD_S = 60
CALLBACKS_A_SECOND, WEBHOOKS_A_SECOND = 20, 2
WEBHOOK_BAR_MS, CALLBACK_BAR_MS = 50, 60
MOST_MORE_MB = 30
_ALONE_S, _WARM_S = 15, 4
_LOOK_EVERY_S = 1.0
_REQUESTS = 20_000


@dataclass(slots=True)
class FloodAnswers:
    by: str
    statuses: Counter[int] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    callbacks: Answers
    webhooks: Answers
    flood: FloodAnswers | None
    sizes: list[Memory]
    relay_cpu_share: float


def cold_paths(number: int, seed: int) -> list[str]:
    """Addresses that differ in each request, as a crawler or an attacker would make them."""
    chance = random.Random(seed)  # noqa: S311  addresses of a benchmark
    sorts = ("failure", "-failure", "rate", "-rate", "name", "-name", "running", "duration", "level")
    kinds = ("pulls", "push", "nightly")

    def any_path() -> str:
        backend, token = chance.randrange(TARGETS), chance.randrange(10**9)
        span, sort, kind = (
            chance.choice(("7d", "14d", "30d", "90d")),
            chance.choice(sorts),
            chance.choice(kinds),
        )
        return chance.choice(
            (
                f"/crcr?range={span}&sort={sort}&kind={kind}&q=b{token}",
                f"/crcr?range={span}&sort={sort}&kind={kind}&x={token}",
                f"/crcr/metrics?range={span}&sort={sort}&x={token}",
                f"/crcr/owner{backend}/backend{backend}?range={span}&kind={kind}&q={token}",
                f"/crcr/pr/{token}",
                f"/crcr/commit/{token:040x}",
                f"/crcr/search?q=test+{token}",
                f"/api/v1/summary?range={span}&x={token}",
                f"/api/v1/jobs?downstream=owner{backend}/backend{backend}&x={token}",
            )
        )

    return [any_path() for _ in range(number)]


def measure_flood(folder: Path, console: Console) -> Iterator[Row]:
    run_folder = folder / "flood"
    run_folder.mkdir()
    history = make_history(run_folder, HISTORY_JOBS, console, targets=TARGETS)
    setup = RelaySetup(run_folder, TARGETS, database=history.database)
    with run_relay(setup):
        time.sleep(_WARM_S)
        _measure_phase(setup, _WARM_S, None)
        alone = _measure_phase(setup, _ALONE_S, None)
        flooded = _measure_phase(setup, FLOOD_S, run_folder)
        after = _measure_phase(setup, _ALONE_S, None)
    yield from _describe_traffic("without a flood", alone, has_bar=False)
    yield from _describe_traffic(f"in a flood of {FLOOD_S} s", flooded, has_bar=True)
    if flooded.flood is not None:
        yield (
            f"pages of the flood, {CONNECTIONS} connections ({flooded.flood.by})",
            flooded.flood.summary,
            "",
            True,
        )
    yield "CPU of the relay in the flood", f"{flooded.relay_cpu_share * 60:.0f} s a minute", "", True
    yield from _describe_memory(alone, flooded, after)


def _describe_traffic(when: str, measured: Measured, *, has_bar: bool) -> Iterator[Row]:
    for what, answers, bar_ms in (
        ("webhook", measured.webhooks, WEBHOOK_BAR_MS),
        ("callback", measured.callbacks, CALLBACK_BAR_MS),
    ):
        reached = answers.p99_ms() < bar_ms or not has_bar
        yield f"{what} {when}", str(answers), f"P99 < {bar_ms} ms" if has_bar else "", reached
        words = f"{answers.retries} sent again, {answers.lost} lost"
        yield f"{what}s {when}", words, "0 lost", not answers.lost


def _describe_memory(alone: Measured, flooded: Measured, after: Measured) -> Iterator[Row]:
    """Caches fill up first; memory that is bounded does not grow in the second half of the flood."""
    sizes = [size.proportional_mb for size in flooded.sizes]
    before_mb, half_mb = alone.sizes[-1].proportional_mb, max(sizes[: len(sizes) // 2])
    most_mb, after_mb = max(sizes), after.sizes[-1].proportional_mb
    words = f"PSS {before_mb:.0f} before, {half_mb:.0f} in the first half, {most_mb:.0f} at most, {after_mb:.0f} MB after"
    bounded = most_mb - half_mb < MOST_MORE_MB
    yield "memory of the relay in the flood", words, f"second half < {MOST_MORE_MB} MB more", bounded


def _measure_phase(setup: RelaySetup, seconds: float, flood_folder: Path | None) -> Measured:
    pull = WatchedPull(setup)
    webhooks = webhook_requests(int(seconds * WEBHOOKS_A_SECOND))
    before = len(setup.request_stub("/arrivals")["arrivals"])
    measured = uvloop.run(_send_traffic(setup, pull, webhooks, seconds, flood_folder))
    accepted = 1 + len(webhooks) - measured.webhooks.lost
    wait_for_dispatches(setup, before + accepted * TARGETS)
    return measured


async def _send_traffic(
    setup: RelaySetup, pull: WatchedPull, webhooks: list[bytes], seconds: float, flood_folder: Path | None
) -> Measured:
    await pull.open()
    reports = pull.reports(0, int(seconds * CALLBACKS_A_SECOND))
    sizes: list[Memory] = []
    watching = asyncio.create_task(_watch_memory(setup, sizes))
    flooding = asyncio.create_task(_flood(setup, seconds, flood_folder)) if flood_folder else None
    cpu_s, began = cpu_seconds(setup.process_id), time.monotonic()
    callbacks, answered_webhooks = await asyncio.gather(
        send_at_rate(setup, reports, CALLBACKS_A_SECOND), send_at_rate(setup, webhooks, WEBHOOKS_A_SECOND)
    )
    share = (cpu_seconds(setup.process_id) - cpu_s) / (time.monotonic() - began)
    flood = await flooding if flooding else None
    watching.cancel()
    return Measured(callbacks, answered_webhooks, flood, sizes, share)


async def _watch_memory(setup: RelaySetup, sizes: list[Memory]) -> None:
    while True:
        sizes.append(memory(setup.process_id))
        await asyncio.sleep(_LOOK_EVERY_S)


async def _flood(setup: RelaySetup, seconds: float, folder: Path) -> FloodAnswers:
    paths = cold_paths(_REQUESTS, seed=setup.relay_port)
    if wrk := shutil.which("wrk"):
        return await _flood_with_wrk(wrk, setup, seconds, folder, paths)
    return await _flood_with_own_client(setup, seconds, paths)


async def _flood_with_wrk(
    wrk: str, setup: RelaySetup, seconds: float, folder: Path, paths: list[str]
) -> FloodAnswers:
    script = folder / "flood.lua"
    quoted = ",\n".join(f'"{path}"' for path in paths)
    script.write_text(
        f"local paths = {{\n{quoted}\n}}\nlocal at = 0\n"
        "request = function()\n  at = at % #paths + 1\n"
        '  return wrk.format("GET", paths[at], { ["Accept"] = "text/html, application/json",'
        ' ["Accept-Encoding"] = "gzip" })\nend\n'
    )
    address = f"http://127.0.0.1:{setup.relay_port}"
    options = ("-t1", f"-c{CONNECTIONS}", f"-d{seconds:.0f}s", "--timeout", "30s", "--latency")
    process = await asyncio.create_subprocess_exec(
        wrk, *options, "-s", str(script), address, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await process.communicate()
    return FloodAnswers("wrk", summary=_read_wrk(out.decode()))


def _read_wrk(text: str) -> str:
    found = dict(re.findall(r"(Requests/sec|50%|99%|Non-2xx or 3xx responses):?\s+([\d.]+\w*)", text))
    errors = re.search(r"Socket errors: (.*)", text)
    words = [f"{found.get('Requests/sec')}/s", f"P50 {found.get('50%')}, P99 {found.get('99%')}"]
    words += [f"{found.get('Non-2xx or 3xx responses', 0)} not 2xx or 3xx"]
    return ", ".join([*words, *([f"socket errors: {errors[1]}"] if errors else [])])


async def _flood_with_own_client(setup: RelaySetup, seconds: float, paths: list[str]) -> FloodAnswers:
    found = FloodAnswers("our own client; `apt-get install wrk` for wrk")
    until = time.monotonic() + seconds
    waiting = iter(paths)

    async def send() -> None:
        connection: Connection | None = None
        while time.monotonic() < until and (path := next(waiting, None)):
            began = time.monotonic()
            try:
                if connection is None or connection.is_closed:
                    connection = await connect(setup.relay_port)
                status, _ = await connection.send(get_bytes(path))
            except OSError:
                status = 0
            found.statuses[status] += 1
            found.latencies.append(time.monotonic() - began)

    await asyncio.gather(*(send() for _ in range(CONNECTIONS)))
    p50, p99 = (percentile(found.latencies, share) * 1000 for share in (0.5, 0.99))
    found.summary = (
        f"{len(found.latencies) / seconds:.0f}/s, P50 {p50:.0f}, P99 {p99:.0f} ms, {dict(found.statuses)}"
    )
    return found
