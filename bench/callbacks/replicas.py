"""Callbacks on PostgreSQL beside the bare app; callbacks and fan-out with several processes, and with one on SQLite.

All are alternate rounds of one run.

PostgreSQL, the load client and the GitHub stub share the machine with them: with few cores more processes cannot be
much faster, and the figures show what the sharing costs.
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

from bench.relay_process.load_client import percentile, post_bytes, send_all, send_spread
from bench.relay_process.process_usage import cpu_seconds
from bench.relay_process.processes import run_bare_app, run_github_stub, wait_for_dispatches, wait_until_idle
from bench.relay_process.relay_setup import (
    RelaySetup,
    Row,
    free_port,
    report_body,
    signed_webhook,
    start_process,
)

sys.path.append(
    str(Path(__file__).parents[2] / "tests")
)  # support.services.postgres starts the PostgreSQL cluster
if TYPE_CHECKING:
    from support.services.postgres import Cluster

CALLBACKS = 3_000
ROUNDS = 3
ROUNDS_BESIDE_BARE_APP = 5
CLIENTS = 32
BACKENDS = 32
TARGETS = 1_000
RUN = 18_000_000_000


@dataclass(slots=True)
class Deployment:
    """How many processes serve requests, and how many run only the worker."""

    name: str
    servers: int
    workers: int = 0
    on_postgres: bool = False
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Side:
    """The relay or the bare app, with the figures of its rounds; PostgreSQL's processor time while it was measured."""

    process_id: int
    port: int
    server_id: int
    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)

    def send_round(self, requests: list[bytes]) -> None:
        own, server = cpu_seconds(self.process_id), cpu_seconds(self.server_id)
        rate, latencies = _send_round([self.port], requests)
        self.rates.append(rate)
        self.latencies += latencies
        self.cpu_us.append((cpu_seconds(self.process_id) - own) / CALLBACKS * 1e6)
        self.server_us.append((cpu_seconds(self.server_id) - server) / CALLBACKS * 1e6)

    def forget_rounds(self) -> None:
        for figures in (self.rates, self.latencies, self.cpu_us, self.server_us):
            figures.clear()

    @property
    def times(self) -> str:
        return f"{statistics.median(self.cpu_us):.0f} + {statistics.median(self.server_us):.0f} µs"


def measure_postgres_callbacks(folder: Path) -> Iterator[Row]:
    """One relay on PostgreSQL and the bare app in alternate rounds, each with the same processes throughout.

    The first round is not counted: it fills the tables, of which PostgreSQL then collects statistics, as it does by itself
    within a minute. Without them it finds a job by the index of its backend, and reads all jobs of that backend.
    """
    from support.services.postgres import Cluster, run_on  # noqa: PLC0415  sys.path has it only from here on

    cluster = Cluster.make(durable=True)
    try:
        deployment, bare_url = (
            Deployment("PostgreSQL, 1 process", 1, on_postgres=True),
            _create_database(cluster),
        )
        with (
            _run_deployment(deployment, folder, BACKENDS, cluster) as (setup, ports),
            run_bare_app(setup, bare_url) as (bare_port, bare_id),
        ):
            server_id = cluster.process_id
            relay, bare = Side(setup.process_id, ports[0], server_id), Side(bare_id, bare_port, server_id)
            for number in range(ROUNDS_BESIDE_BARE_APP + 1):
                setup.request_stub("/reset")
                requests = _callback_requests(setup, ports[0], number + 1)
                relay.send_round(requests)
                bare.send_round(requests)
                if number == 0:
                    for side, url in ((relay, setup.url), (bare, bare_url)):
                        run_on(url or "", "ANALYZE")
                        side.forget_rounds()
        yield from _compare(relay, bare)
    finally:
        cluster.remove()


def _compare(relay: Side, bare: Side) -> Iterator[Row]:
    ratio = statistics.median(one / other for one, other in zip(relay.rates, bare.rates, strict=True))
    both = ([sum(times) for times in zip(side.cpu_us, side.server_us, strict=True)] for side in (relay, bare))
    cpu = statistics.median(other / one for one, other in zip(*both, strict=True))
    p50, p99 = (percentile(relay.latencies, share) * 1000 for share in (0.5, 0.99))
    rate = f"{statistics.median(relay.rates):,.0f}/s, P50 {p50:.0f} ms, P99 {p99:.0f} ms"
    yield f"callbacks of {BACKENDS} backends, one relay on PostgreSQL", rate, "", True
    bare_rate = f"{statistics.median(bare.rates):,.0f}/s"
    yield "the bare app on PostgreSQL, in alternate rounds", bare_rate, "", True
    yield f"ratio, median of {ROUNDS_BESIDE_BARE_APP} rounds", f"{ratio:.2f}", "≥ 0.70", ratio >= 0.7
    times = f"{relay.times}; {bare.times}; {cpu:.2f}"
    yield "processor time of a callback, own + PostgreSQL: the relay, the bare app, ratio", times, "", True


def measure_replicas(folder: Path) -> Iterator[Row]:
    from support.services.postgres import Cluster  # noqa: PLC0415  sys.path has it only from here on

    cluster = Cluster.make(durable=True)
    try:
        yield from _measure_callbacks(cluster, folder)
        yield from _measure_fan_out(cluster, folder)
    finally:
        cluster.remove()


def _measure_callbacks(cluster: "Cluster", folder: Path) -> Iterator[Row]:
    deployments = [
        Deployment("SQLite, 1 process", 1),
        *(
            Deployment(f"PostgreSQL, {n} process{'es' if n > 1 else ''}", n, on_postgres=True)
            for n in (1, 2, 4)
        ),
    ]
    for number in range(1, ROUNDS + 1):
        for deployment in deployments:
            run_folder = folder / f"callbacks-{number}-{deployment.servers}-{deployment.on_postgres}"
            with _run_deployment(deployment, run_folder, BACKENDS, cluster) as (setup, ports):
                requests = _callback_requests(setup, ports[0], number)
                rate, latencies = _send_round(ports, requests)
                deployment.rates.append(rate)
                deployment.latencies += latencies
    base = deployments[0]
    for deployment in deployments:
        ratio = statistics.median(
            rate / base_rate for rate, base_rate in zip(deployment.rates, base.rates, strict=True)
        )
        p50, p99 = (percentile(deployment.latencies, share) * 1000 for share in (0.5, 0.99))
        text = f"{statistics.median(deployment.rates):,.0f}/s ({ratio:.2f} of SQLite's), P50 {p50:.0f} ms, P99 {p99:.0f} ms"
        yield f"callbacks of {BACKENDS} backends, {deployment.name}", text, "", True


def _callback_requests(setup: RelaySetup, port: int, number: int) -> list[bytes]:
    """Open a pull request, wait for its dispatches, and return the callbacks of all backends."""
    body, headers, guid = signed_webhook(number)
    uvloop.run(send_all(port, [post_bytes("/github/webhook", body, headers)], 1))
    wait_for_dispatches(setup, BACKENDS)
    time.sleep(0.5)
    payload, half = json.loads(body), CALLBACKS // 2
    return [
        _callback_request(setup, guid, payload, index, half=half, first_run=RUN + number * 1000)
        for index in range(CALLBACKS)
    ]


def _send_round(ports: list[int], requests: list[bytes]) -> tuple[float, list[float]]:
    took, half = 0.0, len(requests) // 2
    latencies: list[float] = []
    for part in (requests[:half], requests[half:]):
        seconds, part_latencies, statuses = uvloop.run(send_spread(ports, part, CLIENTS))
        if set(statuses) != {200}:
            raise SystemExit(f"not every callback was accepted: {statuses}")
        took, latencies = took + seconds, latencies + part_latencies
    return CALLBACKS / took, latencies


def _callback_request(
    setup: RelaySetup, guid: str, payload: object, number: int, *, half: int, first_run: int
) -> bytes:
    """One request: first the `in_progress` reports, then the `completed` ones, of all backends in turn."""
    job = number % half
    name = setup.names()[job % BACKENDS]
    run = first_run + job % BACKENDS
    status = "in_progress" if number < half else "completed"
    body = report_body(guid, payload, run, job, status)
    return post_bytes(
        "/github/callback", body, {"Authorization": f"Bearer {setup.token(name, run, 50_000 + job)}"}
    )


def _measure_fan_out(cluster: "Cluster", folder: Path) -> Iterator[Row]:
    for deployment in (
        Deployment("SQLite, 1 process", 1),
        Deployment("PostgreSQL, 1 process", 1, on_postgres=True),
        Deployment("PostgreSQL, 2 workers beside it", 1, workers=2, on_postgres=True),
    ):
        run_folder = folder / f"fan-out-{deployment.workers}-{deployment.on_postgres}"
        with _run_deployment(deployment, run_folder, TARGETS, cluster) as (setup, ports):
            body, headers, _ = signed_webhook(1)
            uvloop.run(send_all(ports[0], [post_bytes("/github/webhook", body, headers)], 1))
            wait_for_dispatches(setup, TARGETS)  # The first webhook mints the tokens, which last an hour.
            wait_until_idle(setup, 5 * TARGETS)
            setup.request_stub("/reset")
            body, headers, _ = signed_webhook(2)
            began, tick = time.time(), time.perf_counter()
            uvloop.run(send_all(ports[0], [post_bytes("/github/webhook", body, headers)], 1))
            answered = time.perf_counter() - tick
            last = wait_for_dispatches(setup, TARGETS) - began
            time.sleep(0.5)
            calls = setup.request_stub("/arrivals")["calls"]
        text = f"{last:.2f} s, {calls:,} calls, webhook answered in {answered * 1000:.0f} ms"
        # Each process mints its own tokens: a target that another process served before costs one call more.
        yield (
            f"last of {TARGETS:,} targets reached, {deployment.name}",
            text,
            "",
            calls <= TARGETS * max(1, deployment.workers),
        )


@contextmanager
def _run_deployment(
    deployment: Deployment, folder: Path, targets: int, cluster: "Cluster"
) -> Iterator[tuple[RelaySetup, list[int]]]:
    folder.mkdir()
    setup = RelaySetup(folder, targets, url=_create_database(cluster) if deployment.on_postgres else None)
    ports = [setup.relay_port, *(free_port() for _ in range(deployment.servers - 1))]
    environment, options = setup.environment(), ["--no-worker"] if deployment.workers else []
    with ExitStack() as stack:
        stack.enter_context(run_github_stub(setup))
        for port in reversed(ports):
            relay = stack.enter_context(
                start_process("-m", "crcr", "serve", "--port", str(port), *options, environment=environment)
            )
            setup.process_id = relay.pid
            _wait_until_healthy(port)
        for _ in range(deployment.workers):
            stack.enter_context(start_process("-m", "crcr", "worker", environment=environment))
        wait_until_idle(setup, 3 * targets)
        yield setup, ports


def _wait_until_healthy(port: int) -> None:
    for _ in range(600):
        try:
            with urlopen(f"http://127.0.0.1:{port}/healthz", timeout=1):
                return
        except (URLError, OSError):
            time.sleep(0.05)
    raise SystemExit("a relay did not start")


def _create_database(cluster: "Cluster") -> str:
    """Create an empty database."""
    from support.services.postgres import run_on  # noqa: PLC0415  sys.path has it only from here on

    name = f"bench_{uuid4().hex}"
    run_on(cluster.admin_url, f"CREATE DATABASE {name}")
    return cluster.url(name)
