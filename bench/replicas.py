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
from uuid import uuid4

import uvloop

from bench.client import percentile, request, send_all, send_spread
from bench.running import bare_app, outside, wait_until_idle
from bench.world import Row, World, free_port, process, report, webhook

sys.path.append(
    str(Path(__file__).parents[1] / "tests")
)  # its PostgreSQL in a temporary folder serves here too
if TYPE_CHECKING:
    from support.services.postgres import Cluster

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
    on_postgres: bool = False
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


def replicas(folder: Path) -> Iterator[Row]:
    from support.services.postgres import Cluster  # noqa: PLC0415  see above

    cluster = Cluster.make(durable=True)
    try:
        yield from _callbacks(cluster, folder)
        yield from _fan_out(cluster, folder)
    finally:
        cluster.remove()


def _callbacks(cluster: "Cluster", folder: Path) -> Iterator[Row]:
    settings = [
        Setting("SQLite, 1 process", 1),
        *(Setting(f"PostgreSQL, {n} process{'es' if n > 1 else ''}", n, on_postgres=True) for n in (1, 2, 4)),
    ]
    bare: list[float] = []
    for number in range(1, ROUNDS + 1):
        for setting in settings:
            place = folder / f"callbacks-{number}-{setting.serving}-{setting.on_postgres}"
            with _running(setting, place, BACKENDS, cluster) as (world, ports):
                requests = _prepared(world, ports[0], number)
                rate, latencies = _callback_round(ports, requests)
                setting.rates.append(rate)
                setting.latencies += latencies
                if setting.on_postgres and setting.serving == 1:
                    with bare_app(world, _database(cluster)) as port:
                        bare.append(_callback_round([port], requests)[0])
    base, alone = settings[:2]
    for setting in settings:
        ratio = statistics.median(mine / its for mine, its in zip(setting.rates, base.rates, strict=True))
        p50, p99 = (percentile(setting.latencies, share) * 1000 for share in (0.5, 0.99))
        text = f"{statistics.median(setting.rates):,.0f}/s ({ratio:.2f} of SQLite's), P50 {p50:.0f} ms, P99 {p99:.0f} ms"
        yield f"callbacks of {BACKENDS} backends, {setting.name}", text, "", True
    yield "the bare app on PostgreSQL, the same callbacks", f"{statistics.median(bare):,.0f}/s", "", True
    ratio = statistics.median(mine / its for mine, its in zip(alone.rates, bare, strict=True))
    yield "one relay on PostgreSQL beside it", f"{ratio:.2f}", "≥ 0.70", ratio >= 0.7


def _prepared(world: World, port: int, number: int) -> list[bytes]:
    """A pull request that everybody has been told of, and what they have to say about it."""
    body, headers, guid = webhook(number)
    uvloop.run(send_all(port, [request("/github/webhook", body, headers)], 1))
    _arrived(world, BACKENDS)
    time.sleep(0.5)
    payload, half = json.loads(body), CALLBACKS // 2
    return [
        _report(world, guid, payload, each, half=half, first_run=RUN + number * 1000)
        for each in range(CALLBACKS)
    ]


def _callback_round(ports: list[int], requests: list[bytes]) -> tuple[float, list[float]]:
    took, half = 0.0, len(requests) // 2
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
        Setting("PostgreSQL, 1 process", 1, on_postgres=True),
        Setting("PostgreSQL, 2 workers beside it", 1, workers=2, on_postgres=True),
    ):
        place = folder / f"fan-out-{setting.workers}-{setting.on_postgres}"
        with _running(setting, place, TARGETS, cluster) as (world, ports):
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
        # Each process mints its own tokens; whom another one served the first time costs a second one a token.
        yield (
            f"last of {TARGETS:,} targets reached, {setting.name}",
            text,
            "",
            calls <= TARGETS * max(1, setting.workers),
        )


def _arrived(world: World, targets: int) -> float:
    deadline = time.monotonic() + ARRIVE_WITHIN_S
    while time.monotonic() < deadline:
        arrivals = world.ask_outside("/arrivals")["arrivals"]
        if len(arrivals) >= targets:
            return float(max(at for at, _ in arrivals))
        time.sleep(0.02)
    raise SystemExit(f"only {len(arrivals)} of {targets} dispatches arrived within {ARRIVE_WITHIN_S} s")


@contextmanager
def _running(
    setting: Setting, folder: Path, targets: int, cluster: "Cluster"
) -> Iterator[tuple[World, list[int]]]:
    folder.mkdir()
    world = World(folder, targets, url=_database(cluster) if setting.on_postgres else None)
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


def _database(cluster: "Cluster") -> str:
    """A new one, as a new installation has."""
    from support.services.postgres import run_on  # noqa: PLC0415  see above

    name = f"bench_{uuid4().hex}"
    run_on(cluster.admin_url, f"CREATE DATABASE {name}")
    return cluster.url(name)
