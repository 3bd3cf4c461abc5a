"""`FakeGitHub`: scripted answers behind httpx's mock transport, and a GitHub client that uses it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta

import httpx
from cryptography.hazmat.primitives.asymmetric.rsa import generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from crcr.github.app_auth import AppAuth, TokenCache
from crcr.github.client import GitHubClient
from crcr.github.http.rate_limiter import GitHubRateLimiter
from crcr.github.http.transport import GitHubTransport
from support.clock import ManualClock

PEM = (
    generate_private_key(65537, 2048)
    .private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    .decode()
)
Answer = httpx.Response | Exception


@dataclass
class FakeGitHub:
    """Answers each path from a queue, then with the last answer; mints tokens; records all requests."""

    clock: ManualClock
    answers: dict[str, list[Answer]] = field(default_factory=dict)
    asked: list[httpx.Request] = field(default_factory=list)
    minted: int = 0

    def will(self, path: str, *answers: Answer) -> None:
        self.answers[path] = list(answers)

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        self.asked.append(request)
        await asyncio.sleep(0)
        queue = self.answers.get(request.url.path)
        if queue is None:
            return self.mint() if request.url.path.endswith("/access_tokens") else httpx.Response(204)
        answer = queue.pop(0) if len(queue) > 1 else queue[0]
        if isinstance(answer, Exception):
            raise answer
        return answer

    def mint(self) -> httpx.Response:
        self.minted += 1
        expires_at = (self.clock.now() + timedelta(hours=1)).isoformat()
        return httpx.Response(201, json={"token": f"ghs_{self.minted}_x.y-z", "expires_at": expires_at})

    def paths(self) -> list[str]:
        return [request.url.path for request in self.asked]

    def bearers(self, path: str) -> list[str]:
        return [r.headers["authorization"] for r in self.asked if r.url.path == path]


def connect(
    server: Callable[[httpx.Request], object], clock: ManualClock, *, total_s: float = 10.0
) -> GitHubClient:
    transport = GitHubTransport(
        httpx.AsyncClient(transport=httpx.MockTransport(server)),  # type: ignore[arg-type]
        api_url="https://api.github.test/",
        auth=AppAuth("1234", PEM, clock),
        tokens=TokenCache(clock),
        limiter=GitHubRateLimiter(),
        clock=clock,
        total_s=total_s,
    )
    return GitHubClient(transport)
