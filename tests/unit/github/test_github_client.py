"""The client against a fake GitHub: the requests, their tokens, and the error for every failure."""

import asyncio
import json
import traceback

import httpx
import pytest

from crcr import __version__
from crcr.decide.github.requests_and_answers import FileLocation, FileText, PullFacts, RepositoryFacts, Target
from crcr.decide.model import RepoName
from crcr.errors import (
    HeldBy,
    LeaseLost,
    OutsideFault,
    OutsideLimited,
    OutsideRefused,
    OutsideUnreachable,
    OutsideUnsure,
)
from crcr.github.api.request_response import MAX_ANSWER_BYTES
from crcr.github.client import GitHubClient
from crcr.ports import check_lease
from support.clock import ManualClock
from support.github.fake_github import FakeGitHub, connect

REPO = RepoName("org/backend")
TARGET = Target(REPO, 9, 5)
BODY = '{"event_type":"push","client_payload":{"é":1}}'.encode()
DISPATCHES = "/repos/org/backend/dispatches"
MINT = "/app/installations/5/access_tokens"


async def test_the_client_keeps_its_tokens_out_of_its_repr(github: GitHubClient) -> None:
    await github.repositories.dispatch(TARGET, BODY)
    assert "ghs_" not in repr((github, vars(github)))


async def test_a_dispatch_is_one_request_when_its_token_is_cached(
    github: GitHubClient, server: FakeGitHub
) -> None:
    for _ in range(3):
        await github.repositories.dispatch(TARGET, BODY)
    assert server.paths() == [MINT, DISPATCHES, DISPATCHES, DISPATCHES]
    assert server.asked[1].content == BODY


async def test_a_hundred_concurrent_dispatches_mint_one_token(
    github: GitHubClient, server: FakeGitHub
) -> None:
    await asyncio.gather(*(github.repositories.dispatch(TARGET, BODY) for _ in range(100)))
    assert server.paths().count(MINT) == 1
    assert server.paths().count(DISPATCHES) == 100


async def test_every_request_has_user_agent_version_and_timeouts(
    github: GitHubClient, server: FakeGitHub
) -> None:
    await github.repositories.dispatch(TARGET, BODY)
    for request in server.asked:
        assert request.headers["user-agent"] == f"crcr/{__version__}"
        assert request.headers["x-github-api-version"] == "2022-11-28"
        assert request.headers["accept"] == "application/vnd.github+json"
        assert request.headers["content-type"] == "application/json"
        assert request.extensions["timeout"] == {"connect": 3.0, "read": 10.0, "write": 10.0, "pool": 3.0}
    assert server.bearers(MINT)[0].startswith("Bearer eyJ")
    assert server.bearers(DISPATCHES) == ["Bearer ghs_1_x.y-z"]


async def test_tokens_are_minted_for_one_permission_only(github: GitHubClient, server: FakeGitHub) -> None:
    server.will(
        "/repos/org/backend", httpx.Response(200, json={"id": 9, "full_name": "a/b", "owner": {"id": 2}})
    )
    pull = {
        "state": "closed",
        "head": {"sha": "abc"},
        "base": {"ref": "main"},
        "updated_at": "2026-01-01T00:00:00Z",
    }
    server.will("/repos/org/backend/pulls/7", httpx.Response(200, json=pull))
    await github.repositories.dispatch(TARGET, BODY)
    await github.repositories.dispatch(Target(REPO, None, 5), BODY)
    assert await github.repositories.read(REPO, 5) == RepositoryFacts(9, 2, "a/b")
    expected = PullFacts("abc", "main", is_open=False, updated_at=server.clock.now())
    assert await github.pull_requests.read(REPO, 7, 5) == expected
    assert [json.loads(r.content) for r in server.asked if r.url.path == MINT] == [
        {"permissions": {"contents": "write"}, "repository_ids": [9]},
        {"permissions": {"contents": "write"}, "repositories": ["backend"]},
        {"permissions": {"metadata": "read"}},
        {"permissions": {"pull_requests": "read"}},
    ]


async def test_a_token_is_renewed_before_it_expires(
    github: GitHubClient, server: FakeGitHub, clock: ManualClock
) -> None:
    await github.repositories.dispatch(TARGET, BODY)
    clock.advance(3400)
    await github.repositories.dispatch(TARGET, BODY)
    assert server.bearers(DISPATCHES) == ["Bearer ghs_1_x.y-z", "Bearer ghs_2_x.y-z"]


async def test_a_revoked_token_is_replaced_once(github: GitHubClient, server: FakeGitHub) -> None:
    server.will(DISPATCHES, httpx.Response(401), httpx.Response(204))
    await github.repositories.dispatch(TARGET, BODY)
    assert server.paths() == [MINT, DISPATCHES, MINT, DISPATCHES]
    assert server.bearers(DISPATCHES) == ["Bearer ghs_1_x.y-z", "Bearer ghs_2_x.y-z"]


@pytest.mark.parametrize("path", [MINT, DISPATCHES])
async def test_a_second_401_is_a_refusal(github: GitHubClient, server: FakeGitHub, path: str) -> None:
    server.will(path, httpx.Response(401, json={"message": "Bad credentials"}))
    with pytest.raises(OutsideRefused, match="Bad credentials") as caught:
        await github.repositories.dispatch(TARGET, BODY)
    assert caught.value.status == 401
    assert server.paths().count(path) == 2


@pytest.mark.parametrize("status", [400, 403, 404, 422, 500, 502, 503])
async def test_only_a_401_is_retried(github: GitHubClient, server: FakeGitHub, status: int) -> None:
    server.will(DISPATCHES, httpx.Response(status))
    with pytest.raises(OutsideUnsure if status >= 500 else OutsideRefused):
        await github.repositories.dispatch(TARGET, BODY)
    assert server.paths() == [MINT, DISPATCHES]


NEVER_SENT = [httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError]
UNKNOWN = [
    httpx.ReadTimeout,
    httpx.WriteTimeout,
    httpx.ReadError,
    httpx.WriteError,
    httpx.CloseError,
    httpx.RemoteProtocolError,
    httpx.LocalProtocolError,
]


@pytest.mark.parametrize(
    ("error", "kind"),
    [*((error, OutsideUnreachable) for error in NEVER_SENT), *((error, OutsideUnsure) for error in UNKNOWN)],
)
async def test_fault_31_a_connection_error_is_named_without_a_token(
    github: GitHubClient, server: FakeGitHub, error: type[httpx.TransportError], kind: type[OutsideFault]
) -> None:
    server.will(DISPATCHES, error("Illegal header value b'Bearer ghs_1_x.y-z'"))
    with pytest.raises(kind) as caught:
        await github.repositories.dispatch(TARGET, BODY)
    assert type(caught.value) is kind
    shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
    assert "ghs_" not in shown
    assert error.__name__ in str(caught.value)


async def test_a_request_without_a_response_times_out(clock: ManualClock) -> None:
    never = asyncio.Event()

    async def silent(_: httpx.Request) -> httpx.Response:
        await never.wait()
        raise AssertionError

    with pytest.raises(OutsideUnsure, match="TimeoutError"):
        await connect(silent, clock, total_s=0.001).repositories.dispatch(TARGET, BODY)


async def test_a_rate_limit_blocks_the_installation_without_another_request(
    github: GitHubClient, server: FakeGitHub, clock: ManualClock
) -> None:
    server.will(DISPATCHES, httpx.Response(429, headers={"Retry-After": "30"}), httpx.Response(204))
    other = Target(RepoName("org/other"), 10, 6)
    with pytest.raises(OutsideLimited) as caught:
        await github.repositories.dispatch(TARGET, BODY)
    clock.advance(10)
    with pytest.raises(OutsideLimited) as again:
        await github.repositories.dispatch(TARGET, BODY)
    await github.repositories.dispatch(other, BODY)
    assert (caught.value.retry_after_s, again.value.retry_after_s) == (30, 20)
    assert (caught.value.held_by, again.value.held_by) == (HeldBy.SECONDARY, HeldBy.SECONDARY)
    assert "held back until 00:00:30 UTC" in caught.value.detail
    assert again.value.detail == "GitHub's secondary limit of installation 5: held back until 00:00:30 UTC."
    clock.advance(20)
    await github.repositories.dispatch(TARGET, BODY)
    assert server.paths().count(DISPATCHES) == 2


async def test_rate_limits_without_a_time_double_the_wait(
    github: GitHubClient, server: FakeGitHub, clock: ManualClock
) -> None:
    server.will(
        DISPATCHES, httpx.Response(403, json={"message": "You have exceeded a secondary rate limit."})
    )
    waits = []
    for _ in range(3):
        with pytest.raises(OutsideLimited) as caught:
            await github.repositories.dispatch(TARGET, BODY)
        waits.append(caught.value.retry_after_s)
        clock.advance(waits[-1])
    assert waits == [60, 120, 240]


async def test_the_181st_write_of_a_minute_is_not_sent(
    github: GitHubClient, server: FakeGitHub, clock: ManualClock
) -> None:
    outcomes = await asyncio.gather(
        *(github.repositories.dispatch(TARGET, BODY) for _ in range(200)), return_exceptions=True
    )
    limited = [outcome for outcome in outcomes if isinstance(outcome, OutsideLimited)]
    assert server.paths().count(DISPATCHES) == 180
    assert [(fault.retry_after_s, fault.held_by) for fault in limited] == [(60, HeldBy.MINUTE)] * 20
    clock.advance(60)
    await github.repositories.dispatch(TARGET, BODY)


async def test_an_exhausted_hourly_limit_is_not_overdrawn(github: GitHubClient, server: FakeGitHub) -> None:
    reset = str(int(server.clock.now().timestamp()) + 90)
    used_up = {"x-ratelimit-remaining": "0", "x-ratelimit-reset": reset}
    server.will(DISPATCHES, httpx.Response(204, headers=used_up))
    await github.repositories.dispatch(TARGET, BODY)
    with pytest.raises(OutsideLimited) as caught:
        await github.repositories.dispatch(TARGET, BODY)
    assert (caught.value.retry_after_s, caught.value.held_by) == (90, HeldBy.HOUR)
    assert server.paths().count(DISPATCHES) == 1


async def test_a_cold_start_dispatches_to_a_thousand_installations(
    github: GitHubClient, server: FakeGitHub
) -> None:
    targets = [Target(RepoName(f"org/r{i}"), i, i) for i in range(1, 1001)]
    await asyncio.gather(*(github.repositories.dispatch(target, BODY) for target in targets))
    assert len(server.asked) == 2000


async def test_a_read_of_a_moved_repository_follows_the_redirect(
    github: GitHubClient, server: FakeGitHub
) -> None:
    new_url = "https://api.github.test/repositories/9"
    server.will("/repos/org/backend", httpx.Response(301, headers={"Location": new_url}))
    facts = {"id": 9, "full_name": "new/name", "owner": {"id": 2}}
    server.will("/repositories/9", httpx.Response(200, json=facts))
    assert await github.repositories.read(REPO, 5) == RepositoryFacts(9, 2, "new/name")


async def test_a_second_redirect_is_not_followed(github: GitHubClient, server: FakeGitHub) -> None:
    redirect = httpx.Response(301, headers={"Location": "/repos/org/backend"})
    server.will("/repos/org/backend", redirect)
    with pytest.raises(OutsideRefused, match="the repository has moved"):
        await github.repositories.read(REPO, 5)
    assert server.paths().count("/repos/org/backend") == 2


@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_no_token_is_sent_to_another_host(
    github: GitHubClient, server: FakeGitHub, status: int
) -> None:
    elsewhere = httpx.Response(status, headers={"Location": "https://evil.test/repositories/9"})
    server.will("/repos/org/backend", elsewhere)
    server.will(DISPATCHES, elsewhere)
    with pytest.raises(OutsideRefused):
        await github.repositories.read(REPO, 5)
    with pytest.raises(OutsideRefused):
        await github.repositories.dispatch(TARGET, BODY)
    assert {request.url.host for request in server.asked} == {"api.github.test"}


async def test_a_dispatch_to_a_moved_repository_is_refused(github: GitHubClient, server: FakeGitHub) -> None:
    server.will(DISPATCHES, httpx.Response(307, headers={"Location": "/repositories/9/dispatches"}))
    with pytest.raises(OutsideRefused, match="the repository has moved") as caught:
        await github.repositories.dispatch(TARGET, BODY)
    assert caught.value.status == 307
    assert server.paths() == [MINT, DISPATCHES]


INSTALLATION = "/repos/org/backend/installation"
FILE = "/repos/org/backend/contents/allow.yml"
ALLOWLIST_FILE = FileLocation(REPO, "main", "allow.yml")


async def test_fault_9_a_missing_installation_is_named_in_the_error(
    github: GitHubClient, server: FakeGitHub
) -> None:
    server.will(INSTALLATION, httpx.Response(404))
    with pytest.raises(OutsideRefused, match="The App is not installed on org/backend") as caught:
        await github.repositories.find_installation(REPO)
    assert caught.value.status == 404


async def test_a_file_is_read_raw_and_revalidated_by_its_etag(
    github: GitHubClient, server: FakeGitHub
) -> None:
    server.will(INSTALLATION, httpx.Response(200, json={"id": 5}))
    server.will(FILE, httpx.Response(200, text="L1: [ü/x]", headers={"ETag": '"e1"'}), httpx.Response(304))
    assert await github.repositories.read_file(ALLOWLIST_FILE, etag=None) == FileText("L1: [ü/x]", '"e1"')
    assert await github.repositories.read_file(ALLOWLIST_FILE, etag='"e1"') is None
    assert server.paths() == [INSTALLATION, MINT, FILE, FILE]
    first, second = server.asked[2:]
    assert first.headers["accept"] == "application/vnd.github.raw+json"
    assert "if-none-match" not in first.headers
    assert second.headers["if-none-match"] == '"e1"'
    assert second.url.params["ref"] == "main"


async def test_a_refused_file_triggers_a_new_lookup_of_the_installation(
    github: GitHubClient, server: FakeGitHub
) -> None:
    server.will(INSTALLATION, httpx.Response(200, json={"id": 5}), httpx.Response(200, json={"id": 6}))
    server.will(MINT, httpx.Response(404))
    server.will(FILE, httpx.Response(200, text="L1: []"))
    with pytest.raises(OutsideRefused):
        await github.repositories.read_file(ALLOWLIST_FILE, etag=None)
    assert await github.repositories.read_file(ALLOWLIST_FILE, etag=None) == FileText("L1: []", None)


async def test_a_response_over_the_size_limit_is_cut_off(github: GitHubClient, server: FakeGitHub) -> None:
    server.will("/repos/org/backend", httpx.Response(200, content=b" " * (MAX_ANSWER_BYTES + 1)))
    with pytest.raises(OutsideUnsure, match="larger than"):
        await github.repositories.read(REPO, 5)


async def test_a_failed_mint_leaves_the_dispatch_unsent(github: GitHubClient, server: FakeGitHub) -> None:
    server.will(MINT, httpx.Response(502), server.mint())
    with pytest.raises(OutsideUnsure):
        await github.repositories.dispatch(TARGET, BODY)
    assert DISPATCHES not in server.paths()
    await github.repositories.dispatch(TARGET, BODY)


@pytest.mark.parametrize(("passes", "sent"), [(0, 0), (1, 1)])
async def test_fault_72_a_lost_lease_sends_nothing_and_drops_a_late_response(
    github: GitHubClient, server: FakeGitHub, passes: int, sent: int
) -> None:
    checks = 0

    async def check() -> None:
        nonlocal checks
        checks += 1
        if checks > passes:
            raise LeaseLost

    token = check_lease.set(check)
    with pytest.raises(LeaseLost):
        await github.repositories.dispatch(TARGET, BODY)
    check_lease.reset(token)
    assert server.paths().count(DISPATCHES) == sent
    await github.repositories.dispatch(TARGET, BODY)
    assert server.paths().count(MINT) == 1, "a token is for all, whoever first needed it"
