"""The set-up of one measured relay (folder, ports, keys, environment), and the signed requests to send to it."""

import asyncio
import copy
import hashlib
import hmac
import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import httpx
import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.responses import PlainTextResponse

from github_sim.github import GitHub

AUDIENCE = "crcr-bench"
UPSTREAM = "bench/upstream"
SECRET = uuid.uuid4().hex

Row = tuple[str, str, str, bool]
"""What was measured, the figure, its bar, and whether the bar was reached."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(slots=True)
class RelaySetup:
    folder: Path
    targets: int
    stub_port: int = field(default_factory=free_port)
    relay_port: int = field(default_factory=free_port)
    database: Path | None = None
    """A SQLite file with a history; None for an empty one."""
    url: str | None = None
    """The URL of a PostgreSQL database; None for SQLite."""
    allowlist: str | None = None
    """None for an allowlist with every target at L2."""
    repositories: dict[str, Any] = field(default_factory=dict)
    process_id: int = 0
    """Of `crcr serve`, while it runs."""
    key: rsa.RSAPrivateKey = field(default_factory=lambda: rsa.generate_private_key(65537, 2048))

    @property
    def issuer(self) -> str:
        return f"http://127.0.0.1:{self.stub_port}/issuer"

    def public_jwk(self) -> dict[str, Any]:
        jwk = json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(self.key.public_key()))
        return {**jwk, "kid": "bench", "use": "sig", "alg": "RS256"}

    def names(self) -> list[str]:
        return [f"owner{number}/backend{number}" for number in range(self.targets)]

    def environment(self) -> dict[str, str]:
        allowlist = self.folder / "allowlist.yml"
        entries = "".join(f"  - {name}\n" for name in self.names())
        allowlist.write_text(self.allowlist or f"L2:\n{entries}")
        pem = self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        issuer = [{"issuer": self.issuer, "kind": "github", "jwks_url": f"{self.issuer}/jwks"}]
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith("CRCR_")},
            "CRCR_UPSTREAM": UPSTREAM,
            "CRCR_ALLOWLIST": str(allowlist),
            "CRCR_GITHUB_APP_ID": "1",
            "CRCR_GITHUB_APP_PRIVATE_KEY": pem.decode(),
            "CRCR_GITHUB_WEBHOOK_SECRET": SECRET,
            "CRCR_GITHUB_API_URL": f"http://127.0.0.1:{self.stub_port}",
            "CRCR_PUBLIC_URL": f"http://127.0.0.1:{self.relay_port}",
            "CRCR_DATABASE_URL": self.url or f"sqlite:///{self.database or self.folder / 'crcr.db'}",
            "CRCR_OIDC_AUDIENCE": AUDIENCE,
            "CRCR_OIDC_ISSUERS": json.dumps(issuer),
            "CRCR_RATE_LIMIT_PER_MIN": "1000000",
            "CRCR_HUD_STREAMS_PER_ADDRESS": "2000",
            "CRCR_LOG_LEVEL": "warning",
        }

    def token(self, repository: str, run: int, check_run: int) -> str:
        owner = repository.partition("/")[0]
        now = int(time.time())
        ids = self.repositories.get(repository) or self.repositories.setdefault(
            repository, self.request_stub(f"/repos/{repository}")
        )
        claims = {
            "iss": self.issuer, "aud": AUDIENCE, "sub": f"repo:{repository}", "iat": now, "nbf": now, "exp": now + 300,
            "jti": uuid.uuid4().hex, "repository": repository, "repository_id": str(ids["id"]),
            "repository_owner": owner, "repository_owner_id": str(ids["owner"]["id"]), "run_id": str(run),
            "run_attempt": "1", "run_number": "1", "check_run_id": str(check_run), "event_name": "repository_dispatch",
            "workflow": "CI", "workflow_ref": f"{repository}/.github/workflows/ci.yml@refs/heads/main",
        }  # fmt: skip
        return jwt.encode(claims, self.key, algorithm="RS256", headers={"kid": "bench"})

    def request_stub(self, path: str, body: bytes | None = None) -> Any:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{self.stub_port}{path}", data=body, timeout=10
        ) as answer:
            return json.load(answer)

    def wait_for(self, path: str) -> float:
        """Wait until the relay answers; return how long that took."""
        began = time.perf_counter()
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.relay_port}{path}", timeout=1):
                    return time.perf_counter() - began
            except OSError:
                if time.perf_counter() - began > 30:
                    raise
                time.sleep(0.01)


@contextmanager
def start_process(
    *command: str, environment: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    child = subprocess.Popen([sys.executable, *command], env=environment)
    try:
        yield child
    finally:
        child.terminate()
        child.wait(20)


@cache
def _pull_request_payload() -> dict[str, Any]:
    """A `pull_request` body as the simulator builds it: full GitHub shape, some 25 KB."""

    async def accept(scope: Any, receive: Any, send: Any) -> None:
        await PlainTextResponse("")(scope, receive, send)

    async def build() -> dict[str, Any]:
        transport = httpx.ASGITransport(accept)
        async with GitHub(seed=1, webhook_url="http://bench/", transport=transport) as github:
            github.create_repository(UPSTREAM)
            pull = await github.open_pr(UPSTREAM, title="A change", body="What it does, and why.\n" * 100)
            payload: dict[str, Any] = (
                json.loads(github.deliveries(pull.last_delivery.guid)[0].payload)
                if pull.last_delivery
                else {}
            )
            return payload

    return asyncio.run(build())


def signed_webhook(number: int) -> tuple[bytes, dict[str, str], str]:
    """A `pull_request.opened` of realistic size and shape, signed."""
    event = copy.deepcopy(_pull_request_payload())
    pull = event["pull_request"]
    event["number"] = pull["number"] = number
    pull["head"]["sha"] = hashlib.sha1(f"{number}".encode(), usedforsecurity=False).hexdigest()
    body = json.dumps(event).encode()
    guid = str(uuid.uuid4())
    signature = hmac.new(SECRET.encode(), body, hashlib.sha256).hexdigest()
    headers = {
        "X-GitHub-Event": "pull_request",
        "X-GitHub-Delivery": guid,
        "X-Hub-Signature-256": f"sha256={signature}",
    }
    return body, headers, guid


def report_body(guid: str, payload: Any, run: int, job: int, status: str) -> bytes:
    workflow = {
        "status": status, "conclusion": "success", "name": "CI", "run_id": str(run), "run_attempt": "1",
        "job_name": f"job {job}", "url": "https://example.org/run", "test_results": {"passed": 42, "failed": 0},
    }  # fmt: skip
    return json.dumps(
        {"event_type": "pull_request", "delivery_id": guid, "payload": payload, "workflow": workflow}
    ).encode()
