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

HERE = Target(RepoName("org/up"), 9, 5)
READS = (("contents", "read"),)
HERE_READS = TokenScope(5, 9, READS)


class TaggingGitHub:
    """Gives every answer an ETag, answers 304 to whom it has that already, and counts the hour as GitHub does."""

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


async def test_a_repeated_read_is_answered_from_memory_until_it_changes(
    github: GitHubClient, server: TaggingGitHub
) -> None:
    assert [await github.comments.read_role(HERE, "ann") for _ in range(3)] == [Role.WRITE] * 3
    server.role = "admin"
    assert [await github.comments.read_role(HERE, "ann") for _ in range(2)] == [Role.ADMIN] * 2
    assert server.statuses == [200, 304, 304, 200, 304]


async def test_an_unchanged_answer_takes_nothing_of_the_hour(
    github: GitHubClient, server: TaggingGitHub
) -> None:
    server.remaining = 2
    for _ in range(10):
        assert await github.comments.read_role(HERE, "ann") is Role.WRITE
    assert server.statuses == [200, *[304] * 9]


def answer(text: str, *, status: int = 200, etag: str | None = '"1"') -> Response:
    return Response(status, {"etag": etag} if etag else {}, text.encode())


def keep(answers: EtagCache, path: str, text: str) -> None:
    request = Request("GET", path)
    answers.resolve(request, HERE_READS, answer(text), answers.find(request, HERE_READS))


OTHERS = {
    "another page": (Request("GET", "/files?page=2"), HERE_READS),
    "another form": (Request("GET", "/files", accept="application/vnd.github.raw+json"), HERE_READS),
    "a write": (Request("POST", "/files", writes=True), HERE_READS),
    "a read that names its own answer": (Request("GET", "/files", etag='"mine"'), HERE_READS),
    "another repository": (Request("GET", "/files"), TokenScope(5, 10, READS)),
    "another installation": (Request("GET", "/files"), TokenScope(6, 9, READS)),
    "another permission": (Request("GET", "/files"), TokenScope(5, 9, (("checks", "read"),))),
}


@pytest.mark.parametrize(("request_", "scope"), OTHERS.values(), ids=OTHERS)
def test_no_other_request_gets_the_answer(request_: Request, scope: TokenScope) -> None:
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
def test_what_cannot_be_asked_for_again_is_not_kept(not_kept: Response) -> None:
    answers, request = EtagCache(largest_bytes=10), Request("GET", "/files")
    keep(answers, "/files", "old")
    assert answers.resolve(request, HERE_READS, not_kept, None) is not_kept
    assert answers.find(request, HERE_READS) is None


def test_the_least_recently_used_answers_make_room() -> None:
    answers = EtagCache(most_bytes=3 * 1100)
    for path in ("/a", "/b", "/c"):
        keep(answers, path, "x")
    answers.find(Request("GET", "/a"), HERE_READS)
    keep(answers, "/d", "x")
    found = [path for path in ("/a", "/b", "/c", "/d") if answers.find(Request("GET", path), HERE_READS)]
    assert found == ["/a", "/c", "/d"]


def test_an_answer_that_made_room_while_github_was_asked_still_counts() -> None:
    answers, request = EtagCache(most_bytes=1100), Request("GET", "/a")
    keep(answers, "/a", "x")
    kept = answers.find(request, HERE_READS)
    keep(answers, "/b", "x")
    assert answers.resolve(request, HERE_READS, answer("", status=304), kept) is kept
