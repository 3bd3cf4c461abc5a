"""Callbacks per second and their latency: the relay and the bare app in turn, on SQLite."""

import json
import statistics
import time
from pathlib import Path

import uvloop

from bench.relay_process.load_client import percentile, post_bytes, send_all
from bench.relay_process.processes import run_bare_app, run_idle_relay, wait_for_dispatches
from bench.relay_process.relay_setup import RelaySetup, Row, report_body, signed_webhook

CALLBACKS = 4_000
ROUNDS = 5
CLIENTS = 32
RUN = 17_000_000_000


def measure_callbacks(folder: Path) -> list[Row]:
    """Measure the relay and the bare app in alternate rounds, so that both run under the same load of the machine."""
    with run_idle_relay(1, folder) as (setup, _), run_bare_app(setup, str(folder / "bare.db")) as port:
        idle_mb, relay, bare = setup.resident_mb(), [], []
        for number in range(1, ROUNDS + 1):
            body, headers, guid = signed_webhook(number)
            uvloop.run(send_all(setup.relay_port, [post_bytes("/github/webhook", body, headers)], 1))
            wait_for_dispatches(setup, number)
            time.sleep(0.3)
            requests = _report_requests(setup, guid, json.loads(body), RUN + number)
            relay.append(_send_round(setup.relay_port, requests))
            bare.append(_send_round(port, requests))
        memory = setup.resident_mb()
    ratio = statistics.median(
        relay_round[0] / bare_round[0] for relay_round, bare_round in zip(relay, bare, strict=True)
    )
    p50, p99 = (statistics.median(figures[index] for figures in relay) for index in (1, 2))
    rates = [statistics.median(figures[0] for figures in rounds) for rounds in (relay, bare)]
    return [
        ("callbacks, 25 KB, durable, 32 clients", f"{rates[0]:,.0f}/s", "", True),
        ("the bare app, in alternate rounds", f"{rates[1]:,.0f}/s", "", True),
        (f"ratio, median of {ROUNDS} rounds", f"{ratio:.2f}", "≥ 0.80", ratio >= 0.8),
        ("callback latency", f"P50 {p50:.1f} ms, P99 {p99:.1f} ms", "P99 < 40 ms", p99 < 40),
        ("memory when idle, before the run", f"{idle_mb:.0f} MB", "< 150 MB", idle_mb < 150),
        ("memory after the run", f"{memory:.0f} MB", "", True),
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
