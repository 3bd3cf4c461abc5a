"""Several processes on PostgreSQL beside one on SQLite: callbacks and fan-out, in one run, round about.

All share the machine with PostgreSQL, the client and what stands for GitHub; with few cores more processes cannot be
much faster, and the figures say what the sharing costs.
"""

import json
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import URLError
from urllib.request import urlopen

import uvloop

from bench.client import percentile, request, send_all, send_spread
from bench.running import outside, wait_until_idle
from bench.world import Row, World, free_port, process, report, webhook

sys.path.append(
    str(Path(__file__).parents[1] / "tests")
)  # its PostgreSQL in a temporary folder serves here too
if TYPE_CHECKING:
    from services.postgres import Cluster

CALLBACKS = 3_000
ROUNDS = 3
CLIENTS = 32
BACKENDS = 32
TARGETS = 1_000
ARRIVE_WITHIN_S = 120
RUN = 18_000_000_000


@dataclass(slots=True)
class Setting:
    """One way to run the relay: how many processes take requests, and how many only work."""

    name: str
    serving: int
    workers: int = 0
    url: str | None = None
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


def replicas(folder: Path) -> Iterator[Row]:
    from services.postgres import Cluster  # noqa: PLC0415  see above

    cluster = Cluster.make(durable=True)
    try:
        yield from _callbacks(cluster, folder)
        yield from _fan_out(cluster, folder)
    finally:
        cluster.remove()


def _callbacks(cluster: "Cluster", folder: Path) -> Iterator[Row]:
    settings = [
        Setting("SQLite, 1 process", 1),
        *(
            Setting(
                f"PostgreSQL, {n} process{'es' if n > 1 else ''}", n, url=_database(cluster, f"callbacks{n}")
            )
            for n in (1, 2, 4)
        ),
    ]
    for number in range(1, ROUNDS + 1):
        for setting in settings:
            with _running(
                setting, folder / f"callbacks-{number}-{setting.serving}-{setting.url is None}", BACKENDS
            ) as (world, ports):
                rate, latencies = _callback_round(world, ports, number)
                setting.rates.append(rate)
                setting.latencies += latencies
    base = settings[0]
    for setting in settings:
        ratio = statistics.median(mine / its for mine, its in zip(setting.rates, base.rates, strict=True))
        p50, p99 = (percentile(setting.latencies, share) * 1000 for share in (0.5, 0.99))
        text = f"{statistics.median(setting.rates):,.0f}/s ({ratio:.2f} of SQLite's), P50 {p50:.0f} ms, P99 {p99:.0f} ms"
        yield f"callbacks of {BACKENDS} backends, {setting.name}", text, "", True


def _callback_round(world: World, ports: list[int], number: int) -> tuple[float, list[float]]:
    body, headers, guid = webhook(number)
    uvloop.run(send_all(ports[0], [request("/github/webhook", body, headers)], 1))
    _arrived(world, BACKENDS)
    time.sleep(0.5)
    payload, half = json.loads(body), CALLBACKS // 2
    requests = [
        _report(world, guid, payload, each, half=half, first_run=RUN + number * 1000)
        for each in range(CALLBACKS)
    ]
    took = 0.0
    latencies: list[float] = []
    for part in (requests[:half], requests[half:]):
        seconds, found, statuses = uvloop.run(send_spread(ports, part, CLIENTS))
        if set(statuses) != {200}:
            raise SystemExit(f"not every callback was taken: {statuses}")
        took, latencies = took + seconds, latencies + found
    return CALLBACKS / took, latencies


def _report(world: World, guid: str, payload: object, number: int, *, half: int, first_run: int) -> bytes:
    """Starts first, then ends; of many backends in turn, each in a run of its own."""
    which = number % half
    name = world.names()[which % BACKENDS]
    run = first_run + which % BACKENDS
    status = "in_progress" if number < half else "completed"
    body = report(guid, payload, run, which, status)
    return request(
        "/github/callback", body, {"Authorization": f"Bearer {world.token(name, run, 50_000 + which)}"}
    )


def _fan_out(cluster: "Cluster", folder: Path) -> Iterator[Row]:
    for setting in (
        Setting("SQLite, 1 process", 1),
        Setting("PostgreSQL, 1 process", 1, url=_database(cluster, "fanout1")),
        Setting("PostgreSQL, 2 workers beside it", 1, workers=2, url=_database(cluster, "fanout2")),
    ):
        with _running(setting, folder / f"fan-out-{setting.workers}-{setting.url is None}", TARGETS) as (
            world,
            ports,
        ):
            body, headers, _ = webhook(1)
            uvloop.run(send_all(ports[0], [request("/github/webhook", body, headers)], 1))
            _arrived(world, TARGETS)  # tokens are minted once an hour; this is the once
            wait_until_idle(world, 5 * TARGETS)
            world.ask_outside("/reset")
            body, headers, _ = webhook(2)
            began, tick = time.time(), time.perf_counter()
            uvloop.run(send_all(ports[0], [request("/github/webhook", body, headers)], 1))
            answered = time.perf_counter() - tick
            last = _arrived(world, TARGETS) - began
            time.sleep(0.5)
            calls = world.ask_outside("/arrivals")["calls"]
        text = f"{last:.2f} s, {calls:,} calls, webhook answered in {answered * 1000:.0f} ms"
        yield f"last of {TARGETS:,} targets reached, {setting.name}", text, "", calls == TARGETS


def _arrived(world: World, targets: int) -> float:
    deadline = time.monotonic() + ARRIVE_WITHIN_S
    while time.monotonic() < deadline:
        arrivals = world.ask_outside("/arrivals")["arrivals"]
        if len(arrivals) >= targets:
            return float(max(at for at, _ in arrivals))
        time.sleep(0.02)
    raise SystemExit(f"only {len(arrivals)} of {targets} dispatches arrived within {ARRIVE_WITHIN_S} s")


@contextmanager
def _running(setting: Setting, folder: Path, targets: int) -> Iterator[tuple[World, list[int]]]:
    folder.mkdir()
    world = World(folder, targets, url=setting.url)
    ports = [world.relay, *(free_port() for _ in range(setting.serving - 1))]
    environment, alone = world.environment(), ["--no-worker"] if setting.workers else []
    with ExitStack() as stack:
        stack.enter_context(outside(world))
        for port in ports:
            stack.enter_context(
                process("-m", "crcr", "serve", "--port", str(port), *alone, environment=environment)
            )
            _wait_for(port)
        for _ in range(setting.workers):
            stack.enter_context(process("-m", "crcr", "worker", environment=environment))
        wait_until_idle(world, 3 * targets)
        yield world, ports


def _wait_for(port: int) -> None:
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.05)
    raise SystemExit("a relay did not start")


def _database(cluster: "Cluster", name: str) -> str:
    from services.postgres import run_on  # noqa: PLC0415  see above

    run_on(cluster.admin_url, f"CREATE DATABASE {name}")
    return cluster.url(name)
