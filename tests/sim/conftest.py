"""A simulated GitHub with a manual clock, and a relay that only records requests."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import jwt
import pytest

from github_sim.clock import ManualClock
from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.oidc.signing import rsa_key

TokenFor = Callable[..., Awaitable[dict[str, str]]]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def received_requests() -> list[httpx.Request]:
    """The requests that reached the relay."""
    return []


@pytest.fixture
def answers() -> list[httpx.Response]:
    """The relay's next responses; 202 when the list is empty."""
    return []


@pytest.fixture
async def github(
    clock: ManualClock, received_requests: list[httpx.Request], answers: list[httpx.Response]
) -> AsyncIterator[GitHub]:
    def record(request: httpx.Request) -> httpx.Response:
        received_requests.append(request)
        return answers.pop(0) if answers else httpx.Response(202, json={"ok": True})

    made = GitHub(
        clock=clock,
        seed=7,
        webhook_url="http://relay.test/github/webhook",
        webhook_secret="It's a Secret to Everybody",
        transport=httpx.MockTransport(record),
    )
    made.create_repository("org/upstream", files={"allow/list.yml": "L1: []\n"})
    jobs = [JobSpec("build", matrix=("cuda", "cpu")), JobSpec("lint")]
    made.create_repository("acme/backend", workflows=[Workflow(jobs=jobs)])
    async with made:
        yield made


@pytest.fixture
async def api(github: GitHub) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(github.app)
    async with httpx.AsyncClient(transport=transport, base_url=github.base_url) as client:
        yield client


@pytest.fixture
def app_auth(github: GitHub, clock: ManualClock) -> Callable[..., dict[str, str]]:
    """The header with an App JWT; claims can be replaced."""

    def header(**claims: Any) -> dict[str, str]:
        now = int(clock.now().timestamp())
        full = {"iat": now - 60, "exp": now + 540, "iss": str(github.app_id), **claims}
        return {"authorization": f"Bearer {jwt.encode(full, rsa_key('app'), algorithm='RS256')}"}

    return header


@pytest.fixture
def token_for(
    github: GitHub, api: httpx.AsyncClient, app_auth: Callable[..., dict[str, str]]
) -> Callable[..., Awaitable[dict[str, str]]]:
    """The header with a fresh installation token for a repository's installation."""

    async def header(full_name: str, **body: Any) -> dict[str, str]:
        number = github.installation(full_name).id
        answer = await api.post(f"/app/installations/{number}/access_tokens", json=body, headers=app_auth())
        assert answer.status_code == 201, answer.text
        return {"authorization": f"Bearer {answer.json()['token']}"}

    return header
