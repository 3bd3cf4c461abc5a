"""Fan-out: the time from one webhook to the last of 100 or 1,000 dispatches, and the webhook's own latency."""

import time
from pathlib import Path

import uvloop

from bench.relay_process.load_client import percentile, post_bytes, send_all, send_steadily
from bench.relay_process.processes import run_idle_relay, wait_for_dispatches, wait_until_idle
from bench.relay_process.relay_setup import RelaySetup, Row, signed_webhook


def send_webhook(setup: RelaySetup, number: int) -> tuple[float, float]:
    """Send one webhook; return when it was sent and how long its acknowledgement took."""
    body, headers, _ = signed_webhook(number)
    began, tick = time.time(), time.perf_counter()
    uvloop.run(send_all(setup.relay_port, [post_bytes("/github/webhook", body, headers)], 1))
    return began, time.perf_counter() - tick


def measure_fan_out(targets: int, bar_s: float, folder: Path) -> list[Row]:
    with run_idle_relay(targets, folder) as (setup, ready_s):
        send_webhook(setup, 1)  # The first webhook mints the tokens, which last an hour.
        wait_for_dispatches(setup, targets)
        wait_until_idle(setup, 5 * targets)
        setup.request_stub("/reset")
        began, answered_s = send_webhook(setup, 2)
        last = wait_for_dispatches(setup, targets) - began
        time.sleep(0.3)
        calls = setup.request_stub("/arrivals")["calls"]
        rows = [
            (f"last of {targets:,} targets reached", f"{last:.2f} s", f"< {bar_s} s", last < bar_s),
            (f"API calls for {targets:,} dispatches", str(calls), str(targets), calls == targets),
        ]
        if targets == 1000:
            text = f"{answered_s * 1000:.0f} ms"
            rows.append(("its webhook answered: connection, 1,000 dispatches, commit", text, "", True))
        if targets == 100:
            rows += [
                *_webhook_latency(setup),
                ("start on an empty folder → ready", f"{ready_s:.2f} s", "< 1.5 s", ready_s < 1.5),
            ]
        return rows


def _webhook_latency(setup: RelaySetup) -> list[Row]:
    """Send a webhook every 0.2 s, so that a fan-out to 100 targets is always under way."""
    prepared = [signed_webhook(number) for number in range(10, 60)]
    requests = [post_bytes("/github/webhook", body, headers) for body, headers, _ in prepared]
    latencies, statuses = uvloop.run(send_steadily(setup.relay_port, requests, every_s=0.2))
    p99 = percentile(latencies, 0.99) * 1000
    text = f"P50 {percentile(latencies, 0.5) * 1000:.1f} ms, P99 {p99:.1f} ms ({statuses})"
    return [("webhook acknowledged while 100 targets are fanned out", text, "P99 < 50 ms", p99 < 50)]
