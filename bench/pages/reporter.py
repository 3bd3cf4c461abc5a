"""A downstream that sends callbacks: it opens and closes jobs of a new pull request."""

import asyncio
import json
import time
from typing import Any

from bench.relay_process.load_client import connect, post_bytes, send_all
from bench.relay_process.relay_setup import RelaySetup, report_body, signed_webhook

FIRST_NUMBER = 900_000
"""Pull requests from this number on belong to the run, not to the history."""
_DISPATCHED_WITHIN_S = 20


class Reporter:
    def __init__(self, setup: RelaySetup, name: str) -> None:
        self._setup = setup
        self._name = name
        self._run = int(time.time() * 1000)
        self._job = 0
        self.number = FIRST_NUMBER + self._run % 90_000
        self._body, self._headers, self._guid = signed_webhook(self.number)
        self._payload: Any = json.loads(self._body)

    async def open_pull(self) -> None:
        """Send the webhook of a new pull request, and wait until its dispatch has arrived."""
        before = self._count_dispatches()
        await send_all(self._setup.relay_port, [post_bytes("/github/webhook", self._body, self._headers)], 1)
        until = time.monotonic() + _DISPATCHED_WITHIN_S
        while self._count_dispatches() == before:
            if time.monotonic() > until:
                raise SystemExit(f"no dispatch reached {self._name}")
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # The stub answers after 0.1 s; then the relay commits.

    def _count_dispatches(self) -> int:
        arrivals = self._setup.request_stub("/arrivals")["arrivals"]
        return sum(f"/{self._name}/" in path for _, path in arrivals)

    def next_job(self) -> tuple[str, list[bytes]]:
        """The name of a new job, and the two reports that open and close it."""
        self._job += 1
        job = self._job
        token = self._setup.token(self._name, self._run, 70_000_000 + job)
        headers = {"Authorization": f"Bearer {token}"}
        bodies = [
            report_body(self._guid, self._payload, self._run, job, status)
            for status in ("in_progress", "completed")
        ]
        return f"job {job}", [post_bytes("/github/callback", body, headers) for body in bodies]

    async def report_until_cancelled(self, per_second: float) -> None:
        """Send reports, each after the response to the one before."""
        connection = await connect(self._setup.relay_port)
        try:
            while True:
                for data in self.next_job()[1]:
                    status, answer = await connection.send(data)
                    if status != 200:
                        raise SystemExit(f"a callback was answered {status}: {answer[:200]!r}")
                    await asyncio.sleep(1 / per_second)
        finally:
            connection.close()
