"""Callbacks and webhooks at a steady rate, whatever the relay's latency: each is sent when it is due.

All callbacks are reports of one new pull request, from every backend that its dispatch reached. A refused or broken-off
callback is sent again, as a reporter does.
"""

import asyncio
import json
import time
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from bench.relay_process.load_client import Connection, connect, percentile, post_bytes
from bench.relay_process.relay_setup import RelaySetup, report_body, signed_webhook

FIRST_PULL = 800_000
_RUNNING_JOBS = 20
"""How many jobs run at a time: a job ends after so many others have begun."""
_RETRY_S = (1.0, 2.0, 4.0, 8.0)
_DISPATCHED_WITHIN_S = 30
_SETTLE_S = 0.3
_numbers = count(FIRST_PULL + int(time.time()) % 10_000 * 9)


@dataclass(slots=True)
class Answers:
    """Of one kind of request: how long each took, when it was answered, and what went wrong."""

    latencies: list[float] = field(default_factory=list)
    answered: list[tuple[float, int]] = field(default_factory=list)
    """When, on the monotonic clock that all processes of a machine share, and which request."""
    retries: int = 0
    lost: int = 0

    def extend(self, other: "Answers") -> None:
        self.latencies += other.latencies
        self.answered += other.answered
        self.retries += other.retries
        self.lost += other.lost

    def p99_ms(self) -> float:
        return percentile(self.latencies, 0.99) * 1000

    def __str__(self) -> str:
        p50, p95, p99 = (percentile(self.latencies, share) * 1000 for share in (0.5, 0.95, 0.99))
        return f"P50 {p50:.1f}, P95 {p95:.1f}, P99 {p99:.1f} ms of {len(self.latencies):,}"


class WatchedPull:
    """A pull request whose dispatches have arrived, and the reports of its jobs."""

    def __init__(self, setup: RelaySetup) -> None:
        self._setup = setup
        self.number = next(_numbers)
        self._body, self._headers, self._guid = signed_webhook(self.number)
        self._payload: Any = json.loads(self._body)
        self._backends: list[str] = []

    async def open(self) -> int:
        """Send its webhook, wait until the dispatches have stopped arriving, and return their number."""
        before = len(_arrivals(self._setup))
        connection = await connect(self._setup.relay_port)
        await connection.send(post_bytes("/github/webhook", self._body, self._headers))
        connection.close()
        arrived, newer = 0, 0
        until = time.monotonic() + _DISPATCHED_WITHIN_S
        while not arrived or newer > arrived:
            if time.monotonic() > until:
                raise SystemExit(f"the dispatches of pull request {self.number} did not arrive")
            arrived = newer
            await asyncio.sleep(_SETTLE_S)
            newer = len(_arrivals(self._setup)) - before
        self._backends = sorted({"/".join(path.split("/")[2:4]) for path in _arrivals(self._setup)[before:]})
        return arrived

    def reports(self, first: int, number: int) -> list[bytes]:
        """Requests that begin jobs of all backends in turn, and end each a while later; `first` were made before."""
        return [self._report(index) for index in range(first, first + number)]

    def _report(self, index: int) -> bytes:
        job = begun_job(index)
        status = "completed" if job is None else "in_progress"
        job = (index - _RUNNING_JOBS) // 2 if job is None else job
        backend = self._backends[job % len(self._backends)]
        run = self.number * 1000 + job % len(self._backends)
        token = self._setup.token(backend, run, self.number * 10_000 + job)
        body = report_body(self._guid, self._payload, run, job, status)
        return post_bytes("/github/callback", body, {"Authorization": f"Bearer {token}"})


def begun_job(index: int) -> int | None:
    """The job that the report of this index begins; None for a report that ends one."""
    if index < _RUNNING_JOBS:
        return index
    return (index + _RUNNING_JOBS) // 2 if index % 2 == 0 else None


def _arrivals(setup: RelaySetup) -> list[str]:
    return [path for _, path in setup.request_stub("/arrivals")["arrivals"]]


def webhook_requests(number: int) -> list[bytes]:
    webhooks = (signed_webhook(next(_numbers)) for _ in range(number))
    return [post_bytes("/github/webhook", body, headers) for body, headers, _ in webhooks]


async def send_at_rate(
    setup: RelaySetup, requests: list[bytes], per_second: float, *, first: int = 0
) -> Answers:
    """Send each request at its time, over as many connections as are needed; indices count from `first`."""
    answers = Answers()
    idle: list[Connection] = []
    began = time.monotonic()
    sending = []
    for index, request in enumerate(requests):
        await asyncio.sleep(began + index / per_second - time.monotonic())
        sending.append(asyncio.create_task(_send(setup, first + index, request, idle, answers)))
    await asyncio.gather(*sending)
    for connection in idle:
        connection.close()
    return answers


async def _send(
    setup: RelaySetup, index: int, request: bytes, idle: list[Connection], answers: Answers
) -> None:
    """Send until the answer is 2xx; the latency is counted from the first attempt."""
    began = time.monotonic()
    for pause_s in (*_RETRY_S, None):
        while idle and idle[-1].is_closed:
            idle.pop()
        try:
            connection = idle.pop() if idle else await connect(setup.relay_port)
            status, _ = await connection.send(request)
        except OSError:
            status = 0
        else:
            idle.append(connection)
        now = time.monotonic()
        if 200 <= status < 300:
            answers.latencies.append(now - began)
            answers.answered.append((now, index))
            return
        if pause_s is not None:
            answers.retries += 1
            await asyncio.sleep(pause_s)
    answers.lost += 1
