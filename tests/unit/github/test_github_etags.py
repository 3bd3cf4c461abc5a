"""Conditional requests: a 304 costs nothing of the hourly limit, and responses are never mixed up."""

import json

import httpx
import pytest

from crcr.decide.github.requests_and_answers import Role, Target
from crcr.decide.model import RepoName
from crcr.github.api.request_response import Request, Response
from crcr.github.app_auth import TokenScope
from crcr.github.client import GitHubClient
from crcr.github.http.transport import EtagCache, conditional
from support.clock import ManualClock
from support.github.fake_github import connect

TARGET = Target(RepoName("org/up"), 9, 5)
READS = (("contents", "read"),)
TARGET_SCOPE = TokenScope(5, 9, READS)


class TaggingGitHub:
    """Sends an ETag with every response, answers 304 when the client's ETag matches, and counts the hour as GitHub does."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.role = "write"
        self.remaining = 100
        self.statuses: list[int] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            body = {"token": "ghs_x", "expires_at": "2027-01-01T00:00:00Z"}
            return httpx.Response(201, json=body)
        etag = f'W/"{self.role}"'
        same = request.headers.get("if-none-match") == etag
        self.remaining -= not same
        reset = str(int(self.clock.now().timestamp()) + 600)
        headers = {"etag": etag, "x-ratelimit-remaining": str(self.remaining), "x-ratelimit-reset": reset}
        self.statuses.append(304 if same else 200)
        content = b"" if same else json.dumps({"permission": "x", "role_name": self.role}).encode()
        return httpx.Response(self.statuses[-1], headers=headers, content=content)


@pytest.fixture
def server() -> TaggingGitHub:
    return TaggingGitHub(ManualClock())


@pytest.fixture
def github(server: TaggingGitHub) -> GitHubClient:
    return connect(server, server.clock)


async def test_a_repeated_read_is_served_from_the_cache_until_it_changes(
    github: GitHubClient, server: TaggingGitHub
) -> None:
    assert [await github.comments.read_role(TARGET, "ann") for _ in range(3)] == [Role.WRITE] * 3
    server.role = "admin"
    assert [await github.comments.read_role(TARGET, "ann") for _ in range(2)] == [Role.ADMIN] * 2
    assert server.statuses == [200, 304, 304, 200, 304]


async def test_a_304_costs_nothing_of_the_hourly_limit(github: GitHubClient, server: TaggingGitHub) -> None:
    server.remaining = 2
    for _ in range(10):
        assert await github.comments.read_role(TARGET, "ann") is Role.WRITE
    assert server.statuses == [200, *[304] * 9]


def answer(text: str, *, status: int = 200, etag: str | None = '"1"') -> Response:
    return Response(status, {"etag": etag} if etag else {}, text.encode())


def keep(answers: EtagCache, path: str, text: str) -> None:
    request = Request("GET", path)
    answers.resolve(request, TARGET_SCOPE, answer(text), answers.find(request, TARGET_SCOPE))


OTHERS = {
    "another page": (Request("GET", "/files?page=2"), TARGET_SCOPE),
    "another form": (Request("GET", "/files", accept="application/vnd.github.raw+json"), TARGET_SCOPE),
    "a write": (Request("POST", "/files", writes=True), TARGET_SCOPE),
    "a read that names its own answer": (Request("GET", "/files", etag='"mine"'), TARGET_SCOPE),
    "another repository": (Request("GET", "/files"), TokenScope(5, 10, READS)),
    "another installation": (Request("GET", "/files"), TokenScope(6, 9, READS)),
    "another permission": (Request("GET", "/files"), TokenScope(5, 9, (("checks", "read"),))),
}


@pytest.mark.parametrize(("request_", "scope"), OTHERS.values(), ids=OTHERS)
def test_another_request_never_gets_the_cached_response(request_: Request, scope: TokenScope) -> None:
    answers = EtagCache()
    keep(answers, "/files", "a")
    assert answers.find(request_, scope) is None
    assert conditional(request_, None) is request_


@pytest.mark.parametrize(
    "not_kept",
    [
        answer("a", etag=None),
        answer("a", status=202),
        answer("a" * 11),
        Response(200, {"etag": "1"}, b"a", cut=True),
    ],
)
def test_a_response_that_cannot_be_revalidated_is_not_cached(not_kept: Response) -> None:
    answers, request = EtagCache(largest_bytes=10), Request("GET", "/files")
    keep(answers, "/files", "old")
    assert answers.resolve(request, TARGET_SCOPE, not_kept, None) is not_kept
    assert answers.find(request, TARGET_SCOPE) is None


def test_the_least_recently_used_responses_are_evicted() -> None:
    answers = EtagCache(most_bytes=3 * 1100)
    for path in ("/a", "/b", "/c"):
        keep(answers, path, "x")
    answers.find(Request("GET", "/a"), TARGET_SCOPE)
    keep(answers, "/d", "x")
    cached = [path for path in ("/a", "/b", "/c", "/d") if answers.find(Request("GET", path), TARGET_SCOPE)]
    assert cached == ["/a", "/c", "/d"]


def test_a_response_evicted_during_its_revalidation_is_still_used() -> None:
    answers, request = EtagCache(most_bytes=1100), Request("GET", "/a")
    keep(answers, "/a", "x")
    kept = answers.find(request, TARGET_SCOPE)
    keep(answers, "/b", "x")
    assert answers.resolve(request, TARGET_SCOPE, answer("", status=304), kept) is kept
