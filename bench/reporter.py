"""A downstream that goes on reporting: it opens jobs of a new pull request and closes them."""

import asyncio
import json
import time
from typing import Any

from bench.client import connect, request, send_all
from bench.world import World, report, webhook

FIRST_NUMBER = 900_000
"""Pull requests from here on are those of a run, not of its past."""
_SETTLED_S = 20


class Reporter:
    def __init__(self, world: World, name: str) -> None:
        self._world = world
        self._name = name
        self._run = int(time.time() * 1000)
        self._job = 0
        self.number = FIRST_NUMBER + self._run % 90_000
        self._body, self._headers, self._guid = webhook(self.number)
        self._payload: Any = json.loads(self._body)

    async def open_pull(self) -> None:
        """Let a pull request open, and wait until its dispatch has reached us."""
        before = self._arrived()
        await send_all(self._world.relay, [request("/github/webhook", self._body, self._headers)], 1)
        until = time.monotonic() + _SETTLED_S
        while self._arrived() == before:
            if time.monotonic() > until:
                raise SystemExit(f"{self._name} was not told of the pull request")
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.3)  # GitHub's answer takes a tenth of a second, and is then written down

    def _arrived(self) -> int:
        arrivals = self._world.ask_outside("/arrivals")["arrivals"]
        return sum(f"/{self._name}/" in path for _, path in arrivals)

    def next_job(self) -> tuple[str, list[bytes]]:
        """The name of a new job, and the two reports that open and close it."""
        self._job += 1
        job = self._job
        token = self._world.token(self._name, self._run, 70_000_000 + job)
        headers = {"Authorization": f"Bearer {token}"}
        bodies = [
            report(self._guid, self._payload, self._run, job, status)
            for status in ("in_progress", "completed")
        ]
        return f"job {job}", [request("/github/callback", body, headers) for body in bodies]

    async def go_on(self, a_second: float) -> None:
        """Report until cancelled; each report is taken before the next is sent."""
        connection = await connect(self._world.relay)
        try:
            while True:
                for data in self.next_job()[1]:
                    status, answer = await connection.ask(data)
                    if status != 200:
                        raise SystemExit(f"a callback was answered {status}: {answer[:200]!r}")
                    await asyncio.sleep(1 / a_second)
        finally:
            connection.close()
