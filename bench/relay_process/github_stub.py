"""A stub of GitHub's API: it answers token requests at once and dispatches after a fixed time.

Unlike the simulator it checks nothing, so that it takes little of the machine's time. It keeps the time of each dispatch;
benchmarks read them over HTTP.
"""

import asyncio
import hashlib
import json
import sys
import time
from typing import Any

import uvicorn

LATENCY_S = 0.1
_EMPTY_LISTS: dict[str, Any] = {"total_count": 0, "workflow_runs": [], "jobs": [], "check_runs": []}
_RUN = {"event": "repository_dispatch", "created_at": "2026-01-01T00:00:00Z", "status": "in_progress"}
"""The relay looks up runs of a history whose jobs are late; an answer that it cannot read would hold back its dispatches."""


class GithubStub:
    def __init__(self) -> None:
        self.arrivals: list[tuple[float, str]] = []
        self.calls = 0
        self.jwks = b"{}"

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        status, answer = await self._answer(scope["path"], body)
        await send(
            {
                "type": "http.response.start",
                "status": status,
                "headers": [(b"content-type", b"application/json")],
            }
        )
        await send({"type": "http.response.body", "body": answer})

    async def _answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        if path == "/arrivals":
            return 200, json.dumps({"arrivals": self.arrivals, "calls": self.calls}).encode()
        if path == "/reset":
            self.arrivals, self.calls = [], 0
            return 200, b"{}"
        if path.endswith("/jwks"):
            self.jwks = body or self.jwks
            return 200, self.jwks
        self.calls += 1
        if path.endswith("/dispatches"):
            self.arrivals.append((time.time(), path))
            await asyncio.sleep(LATENCY_S)
            return 204, b""
        return self._answer_lookup(path)

    def _answer_lookup(self, path: str) -> tuple[int, bytes]:
        if path.endswith("/installation"):
            return 200, json.dumps({"id": self._id(path)}).encode()
        if path.endswith("/access_tokens"):
            expires = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
            return 201, json.dumps({"token": f"ghs_{self._id(path)}", "expires_at": expires}).encode()
        if path.endswith("/hook/deliveries"):
            return 200, b"[]"
        if "/actions/runs" in path or path.endswith("/check-runs"):
            return 200, json.dumps({"id": self._id(path), **_RUN, **_EMPTY_LISTS}).encode()
        name = "/".join(path.split("/")[2:4])
        owner = {"id": self._id(name.split("/")[0]), "login": name.split("/")[0]}
        return 200, json.dumps({"id": self._id(name), "full_name": name, "owner": owner}).encode()

    def _id(self, name: str) -> int:
        """The same id in every run, because a cached database refers to repositories by id."""
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:6]) + 1000


if __name__ == "__main__":
    uvicorn.run(GithubStub(), host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False)
