"""Callbacks per second and their latency: the relay and the bare app in turn, on SQLite."""

import json
import statistics
import time
from dataclasses import dataclass, field
from pathlib import Path

import uvloop

from bench.relay_process.load_client import percentile, post_bytes, send_all
from bench.relay_process.process_usage import Memory, cpu_seconds, memory, resident_mb
from bench.relay_process.processes import run_bare_app, run_idle_relay, wait_for_dispatches
from bench.relay_process.relay_setup import RelaySetup, Row, report_body, signed_webhook

CALLBACKS = 4_000
ROUNDS = 5
CLIENTS = 32
RUN = 17_000_000_000


@dataclass(slots=True)
class Side:
    """The relay or the bare app, with the figures of its rounds."""

    process_id: int
    rates: list[float] = field(default_factory=list)
    p50_ms: list[float] = field(default_factory=list)
    p99_ms: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)

    def send_round(self, port: int, requests: list[bytes]) -> None:
        began_s = cpu_seconds(self.process_id)
        rate, p50_ms, p99_ms = _send_round(port, requests)
        self.cpu_us.append((cpu_seconds(self.process_id) - began_s) / len(requests) * 1e6)
        self.rates.append(rate)
        self.p50_ms.append(p50_ms)
        self.p99_ms.append(p99_ms)


def measure_callbacks(folder: Path) -> list[Row]:
    """Measure the relay and the bare app in alternate rounds, so that both run under the same load of the machine."""
    with (
        run_idle_relay(1, folder) as (setup, _),
        run_bare_app(setup, str(folder / "bare.db")) as (bare_port, bare_id),
    ):
        relay, bare = Side(setup.process_id), Side(bare_id)
        idle_mb = resident_mb(setup.process_id)
        for number in range(1, ROUNDS + 1):
            body, headers, guid = signed_webhook(number)
            uvloop.run(send_all(setup.relay_port, [post_bytes("/github/webhook", body, headers)], 1))
            wait_for_dispatches(setup, number)
            time.sleep(0.3)
            requests = _report_requests(setup, guid, json.loads(body), RUN + number)
            relay.send_round(setup.relay_port, requests)
            bare.send_round(bare_port, requests)
        after_mb, both = resident_mb(setup.process_id), memory(setup.process_id)
    return [*_compare(relay, bare), *_memory_rows(idle_mb, after_mb, both)]


def _compare(relay: Side, bare: Side) -> list[Row]:
    median = statistics.median
    ratio = median(one / other for one, other in zip(relay.rates, bare.rates, strict=True))
    cpu = median(other / one for one, other in zip(relay.cpu_us, bare.cpu_us, strict=True))
    p50, p99 = median(relay.p50_ms), median(relay.p99_ms)
    return [
        ("callbacks, 25 KB, durable, 32 clients", f"{median(relay.rates):,.0f}/s", "", True),
        ("the bare app, in alternate rounds", f"{median(bare.rates):,.0f}/s", "", True),
        (f"ratio, median of {ROUNDS} rounds", f"{ratio:.2f}", "≥ 0.80", ratio >= 0.8),
        (
            "processor time of a callback: the relay, the bare app, ratio",
            f"{median(relay.cpu_us):.0f} µs, {median(bare.cpu_us):.0f} µs, {cpu:.2f}",
            "",
            True,
        ),
        ("callback latency", f"P50 {p50:.1f} ms, P99 {p99:.1f} ms", "P99 < 40 ms", p99 < 40),
    ]


def _memory_rows(idle_mb: float, after_mb: float, both: Memory) -> list[Row]:
    shared, callbacks = both.proportional_mb, ROUNDS * CALLBACKS
    return [
        ("memory of the intake when idle", f"{idle_mb:.0f} MB", "< 150 MB", idle_mb < 150),
        (
            f"memory of the intake after {callbacks:,} callbacks",
            f"{after_mb:.0f} MB",
            "< 150 MB",
            after_mb < 150,
        ),
        ("with the pages' process, PSS", f"{shared:.0f} MB", "< 260 MB", shared < 260),
    ]


def _report_requests(setup: RelaySetup, guid: str, payload: object, run: int) -> list[bytes]:
    """Requests that open and then close half as many jobs, each with its own token."""
    [name] = setup.names()
    half = CALLBACKS // 2
    return [
        post_bytes(
            "/github/callback",
            report_body(guid, payload, run, number % half, "in_progress" if number < half else "completed"),
            {"Authorization": f"Bearer {setup.token(name, run, 40_000 + number % half)}"},
        )
        for number in range(CALLBACKS)
    ]


def _send_round(port: int, requests: list[bytes]) -> tuple[float, float, float]:
    """Send every `in_progress` report, then every `completed` one; return the rate, P50 and P99 in ms."""
    half = len(requests) // 2
    start_s, start_latencies, start_statuses = uvloop.run(send_all(port, requests[:half], CLIENTS))
    end_s, end_latencies, end_statuses = uvloop.run(send_all(port, requests[half:], CLIENTS))
    if set(start_statuses) | set(end_statuses) != {200}:
        raise SystemExit(f"not every callback was accepted: {start_statuses} {end_statuses}")
    latencies = start_latencies + end_latencies
    rate = len(requests) / (start_s + end_s)
    return rate, percentile(latencies, 0.5) * 1000, percentile(latencies, 0.99) * 1000
