"""`make bench`: the bars of docs/performance.md, measured in one run on this machine, as a table.

Every load is bounded and stops by itself; everything stays on loopback.
"""

import json
import os
import platform
import statistics
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import uvloop
from rich.console import Console
from rich.table import Table

from bench.client import percentile, request, send_all, send_steadily
from bench.demo_life import demo_run
from bench.github_calls import github_calls
from bench.many_backends import many_backends
from bench.pages import page_run
from bench.peak import peak_run
from bench.replicas import replicas
from bench.running import bare_app, running, wait_until_idle
from bench.world import Row, World, report, webhook

CALLBACKS = 4_000
ROUNDS = 5
CLIENTS = 32
RUN = 17_000_000_000


def _post(world: World, number: int) -> tuple[float, float]:
    """Send one webhook; return when it was sent and how long its acknowledgement took."""
    body, headers, _ = webhook(number)
    began, tick = time.time(), time.perf_counter()
    uvloop.run(send_all(world.relay, [request("/github/webhook", body, headers)], 1))
    return began, time.perf_counter() - tick


def _arrivals(world: World, count: int) -> list[float]:
    while True:
        arrivals = world.ask_outside("/arrivals")["arrivals"]
        if len(arrivals) >= count:
            return sorted(at for at, _ in arrivals)
        time.sleep(0.02)


def fan_out(targets: int, bar_s: float, folder: Path) -> list[Row]:
    with running(targets, folder) as (world, ready_s):
        _post(world, 1)  # tokens are minted once an hour; this is the once
        _arrivals(world, targets)
        wait_until_idle(world, 5 * targets)
        world.ask_outside("/reset")
        began, answered_s = _post(world, 2)
        last = _arrivals(world, targets)[-1] - began
        time.sleep(0.3)
        calls = world.ask_outside("/arrivals")["calls"]
        rows = [
            (f"last of {targets:,} targets reached", f"{last:.2f} s", f"< {bar_s} s", last < bar_s),
            (f"API calls for {targets:,} dispatches", str(calls), str(targets), calls == targets),
        ]
        if targets == 1000:
            text = f"{answered_s * 1000:.0f} ms"
            rows.append(("its webhook answered: connection, 1,000 dispatches, commit", text, "", True))
        if targets == 100:
            rows += [
                *_acknowledged(world),
                ("start on an empty folder → ready", f"{ready_s:.2f} s", "< 2 s", ready_s < 2),
            ]
        return rows


def _acknowledged(world: World) -> list[Row]:
    """A webhook every fifth of a second, so that 100 targets are being fanned out all the time."""
    prepared = [webhook(number) for number in range(10, 60)]
    requests = [request("/github/webhook", body, headers) for body, headers, _ in prepared]
    latencies, statuses = uvloop.run(send_steadily(world.relay, requests, every_s=0.2))
    p99 = percentile(latencies, 0.99) * 1000
    text = f"P50 {percentile(latencies, 0.5) * 1000:.1f} ms, P99 {p99:.1f} ms ({statuses})"
    return [("webhook acknowledged while 100 targets are fanned out", text, "P99 < 50 ms", p99 < 50)]


def callbacks(folder: Path) -> list[Row]:
    """Relay and bare app side by side, round about, so that both see the same moods of the machine."""
    with running(1, folder) as (world, _), bare_app(world, str(folder / "bare.db")) as port:
        idle_mb, relay, bare = _resident_mb(world), [], []
        for number in range(1, ROUNDS + 1):
            body, headers, guid = webhook(number)
            uvloop.run(send_all(world.relay, [request("/github/webhook", body, headers)], 1))
            _arrivals(world, number)
            time.sleep(0.3)
            requests = _reports(world, guid, json.loads(body), RUN + number)
            relay.append(_callback_run(world.relay, requests))
            bare.append(_callback_run(port, requests))
        memory = _resident_mb(world)
    ratio = statistics.median(mine[0] / its[0] for mine, its in zip(relay, bare, strict=True))
    p50, p99 = (statistics.median(each[which] for each in relay) for which in (1, 2))
    rates = [statistics.median(each[0] for each in runs) for runs in (relay, bare)]
    return [
        ("callbacks, 25 KB, durable, 32 clients", f"{rates[0]:,.0f}/s", "", True),
        ("the bare app, round about with it", f"{rates[1]:,.0f}/s", "", True),
        (f"ratio, median of {ROUNDS} rounds", f"{ratio:.2f}", "≥ 0.80", ratio >= 0.8),
        ("callback latency", f"P50 {p50:.1f} ms, P99 {p99:.1f} ms", "P99 < 40 ms", p99 < 40),
        ("memory when idle, before the run", f"{idle_mb:.0f} MB", "< 150 MB", idle_mb < 150),
        ("memory after the run", f"{memory:.0f} MB", "", True),
    ]


def _reports(world: World, guid: str, payload: object, run: int) -> list[bytes]:
    """Reports that open and then close half as many jobs, each with a token of its own."""
    [name] = world.names()
    half = CALLBACKS // 2
    return [
        request(
            "/github/callback",
            report(guid, payload, run, number % half, "in_progress" if number < half else "completed"),
            {"Authorization": f"Bearer {world.token(name, run, 40_000 + number % half)}"},
        )
        for number in range(CALLBACKS)
    ]


def _callback_run(port: int, requests: list[bytes]) -> tuple[float, float, float]:
    """Send them, all starts before all ends; return the rate, P50 and P99 in ms."""
    half = len(requests) // 2
    first_s, first, statuses = uvloop.run(send_all(port, requests[:half], CLIENTS))
    second_s, second, more = uvloop.run(send_all(port, requests[half:], CLIENTS))
    if set(statuses) | set(more) != {200}:
        raise SystemExit(f"not every callback was taken: {statuses} {more}")
    latencies = first + second
    rate = len(requests) / (first_s + second_s)
    return rate, percentile(latencies, 0.5) * 1000, percentile(latencies, 0.99) * 1000


def _resident_mb(world: World) -> float:
    with urlopen(f"http://127.0.0.1:{world.relay}/metrics", timeout=10) as answer:
        for line in answer.read().decode().splitlines():
            if line.startswith("process_resident_memory_bytes"):
                return float(line.split()[1]) / 1e6
    raise SystemExit("the relay does not tell how much memory it has")


@dataclass(frozen=True, slots=True)
class Asked:
    only: tuple[str, ...]
    jobs: int
    cache: Path | None
    hours: float


def _parts(asked: Asked, folder: Path, console: Console) -> dict[str, Callable[[], Iterable[Row]]]:
    return {
        "fan-out-100": partial(fan_out, 100, 0.5, folder / "hundred"),
        "fan-out-1000": partial(fan_out, 1000, 3.0, folder / "thousand"),
        "callbacks": partial(callbacks, folder / "callbacks"),
        "github-calls": partial(github_calls, folder),
        "replicas": partial(replicas, folder),
        "many-backends": partial(many_backends, folder),
        "pages": partial(page_run, folder, asked.cache, asked.jobs, console),
        "peak": partial(peak_run, folder / "peak", asked.hours),
        "demo": partial(demo_run, folder / "demo", asked.hours),
    }


def _asked() -> Asked:
    parser = ArgumentParser(prog="python -m bench", description=__doc__)
    names = (
        *("fan-out-100", "fan-out-1000", "callbacks", "github-calls", "replicas", "many-backends"),
        *("pages", "peak", "demo"),
    )
    parser.add_argument("--only", action="append", choices=names, help="run this part; may be repeated")
    parser.add_argument("--jobs", type=int, default=5_000_000, help="rows of jobs behind the pages")
    parser.add_argument(
        "--cache", type=Path, help="folder that keeps the pages' database (some 9 GB) for the next run"
    )
    parser.add_argument("--hours", type=float, default=2.0, help="simulated hours of `peak` and `demo`")
    given = parser.parse_args()
    return Asked(tuple(given.only or names), given.jobs, given.cache, given.hours)


def main() -> None:
    asked, console = _asked(), Console()
    table = Table(
        "what",
        "measured",
        "bar",
        "",
        title=f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}",
    )
    missed = 0
    with tempfile.TemporaryDirectory(prefix="crcr-bench-") as folder:
        parts = _parts(asked, Path(folder), console)
        for name in asked.only:
            for what, measured, bar, reached in parts[name]():
                console.print(f"{what}: {measured}")
                table.add_row(what, measured, bar, "ok" if reached else "missed")
                missed += not reached
    console.print(table)
    raise SystemExit(1 if missed else 0)


if __name__ == "__main__":
    main()
