"""The client's calls by subject against a small GitHub: tokens, pages, limits, refusals, large answers."""

import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import httpx
import pytest

from crcr.decide.checks.check_run import CheckContent, CheckStatus
from crcr.decide.github.requests_and_answers import (
    DeliveryLogPage,
    ListedCheck,
    PostedComment,
    Role,
    Target,
    Urgency,
)
from crcr.decide.model import Conclusion, RepoName
from crcr.errors import HeldBy, OutsideLimited, OutsideRefused, OutsideUnsure
from crcr.github.api.request_response import MAX_LIST_BYTES
from crcr.github.client import GitHubClient
from support.clock import ManualClock
from support.github.fake_github import FakeGitHub

NOW = datetime(2026, 1, 1, tzinfo=UTC)
REPO = RepoName("org/up")
TARGET = Target(REPO, 9, 5)
MINT = "/app/installations/5/access_tokens"
CHECKS = "/repos/org/up/check-runs"
FOUND = "/repos/org/up/commits/abc/check-runs"
COMMENTS = "/repos/org/up/issues/7/comments"
ROLE = "/repos/org/up/collaborators/a%5Bbot%5D/permission"
LOG = "/app/hook/deliveries"
SHOWN = CheckContent(
    status=CheckStatus.COMPLETED, conclusion=Conclusion.SUCCESS, title="All passed", summary="Fine."
)
RUN = {"id": 3, "event": "push", "created_at": "2026-01-01T00:00:00Z"}
Call = Callable[[GitHubClient], Awaitable[object]]


def page(body: object, *, more: bool = False) -> httpx.Response:
    # An address on another host: it must never be requested.
    headers = {"Link": '<https://evil.test/?page=2>; rel="next"'} if more else {}
    return httpx.Response(200, json=body, headers=headers)


def requested_pages(server: FakeGitHub, path: str) -> list[str]:
    return [str(r.url.params.get("page", "1")) for r in server.asked if r.url.path == path]


async def create(github: GitHubClient, urgency: Urgency = Urgency.FIRST) -> int:
    return await github.checks.create(
        TARGET, head_sha="abc", name="crcr/gate", external_id="g/1", content=SHOWN, urgency=urgency
    )


PERMISSIONS: list[tuple[Call, str, object, dict[str, str]]] = [
    (create, CHECKS, {"id": 4}, {"checks": "write"}),
    (lambda g: g.checks.update(TARGET, 4, SHOWN), f"{CHECKS}/4", {"id": 4}, {"checks": "write"}),
    (lambda g: g.checks.find(TARGET, "abc", "x"), FOUND, {"check_runs": []}, {"checks": "read"}),
    (
        lambda g: g.pull_requests.list_files(TARGET, 7),
        "/repos/org/up/pulls/7/files",
        [],
        {"pull_requests": "read"},
    ),
    (
        lambda g: g.pull_requests.find_from_branch(TARGET, "b", "main"),
        "/repos/org/up/pulls",
        [],
        {"pull_requests": "read"},
    ),
    (
        lambda g: g.pull_requests.create(TARGET, head="b", base="main", title="t", body=""),
        "/repos/org/up/pulls",
        {"number": 3},
        {"pull_requests": "write"},
    ),
    (
        lambda g: g.branches.read_sha(TARGET, "a/b"),
        "/repos/org/up/git/ref/heads/a/b",
        {"object": {"type": "commit", "sha": "d"}},
        {"contents": "read"},
    ),
    (lambda g: g.branches.create(TARGET, "b", "d"), "/repos/org/up/git/refs", {}, {"contents": "write"}),
    (
        lambda g: g.branches.read_file(TARGET, "a/b.yml", "main"),
        "/repos/org/up/contents/a/b.yml",
        {},
        {"contents": "read"},
    ),
    (
        lambda g: g.branches.write_file(TARGET, "a/b.yml", "", branch="b", replaces="d", message="m"),
        "/repos/org/up/contents/a/b.yml",
        {},
        {"contents": "write"},
    ),
    (
        lambda g: g.commits.compare(TARGET, "a", "b"),
        "/repos/org/up/compare/a...b",
        {"total_commits": 0, "commits": []},
        {"contents": "read"},
    ),
    (
        lambda g: g.commits.read_tree_sha(TARGET, "abc"),
        "/repos/org/up/git/commits/abc",
        {"tree": {"sha": "d"}},
        {"contents": "read"},
    ),
    (
        lambda g: g.commits.list_open_pulls(TARGET, "abc"),
        "/repos/org/up/commits/abc/pulls",
        [],
        {"pull_requests": "read"},
    ),
    (
        lambda g: g.comments.read_role(TARGET, "me"),
        "/repos/org/up/collaborators/me/permission",
        {"permission": "read"},
        {"metadata": "read"},
    ),
    (lambda g: g.comments.create(TARGET, 7, "x"), COMMENTS, {"id": 8}, {"pull_requests": "write"}),
    (lambda g: g.comments.list_since(TARGET, 7, NOW), COMMENTS, [], {"pull_requests": "read"}),
    (
        lambda g: g.comments.react(TARGET, 8, "eyes"),
        "/repos/org/up/issues/comments/8/reactions",
        {},
        {"pull_requests": "write"},
    ),
    (
        lambda g: g.actions.rerun(TARGET, 3, failed_only=True),
        "/repos/org/up/actions/runs/3/rerun-failed-jobs",
        {},
        {"actions": "write"},
    ),
    (lambda g: g.actions.read_run(TARGET, 3), "/repos/org/up/actions/runs/3", RUN, {"actions": "read"}),
    (
        lambda g: g.actions.list_runs(TARGET, event="push", since=NOW, until=NOW),
        "/repos/org/up/actions/runs",
        {"workflow_runs": [RUN]},
        {"actions": "read"},
    ),
    (
        lambda g: g.actions.list_jobs(TARGET, 3, 1),
        "/repos/org/up/actions/runs/3/attempts/1/jobs",
        {"jobs": []},
        {"actions": "read"},
    ),
]


@pytest.mark.parametrize(("call", "path", "body", "permissions"), PERMISSIONS)
async def test_a_token_is_minted_for_one_repository_and_one_permission(
    github: GitHubClient,
    server: FakeGitHub,
    call: Call,
    path: str,
    body: object,
    permissions: dict[str, str],
) -> None:
    server.will(path, httpx.Response(201, json=body))
    await call(github)
    assert server.paths() == [MINT, path]
    assert json.loads(server.asked[0].content) == {"permissions": permissions, "repository_ids": [9]}


@pytest.mark.parametrize(("call", "path", "body", "permissions"), PERMISSIONS)
async def test_a_refusal_keeps_githubs_message_and_status(
    github: GitHubClient,
    server: FakeGitHub,
    call: Call,
    path: str,
    body: object,
    permissions: dict[str, str],
) -> None:
    server.will(path, httpx.Response(403, json={"message": "This workflow is already running"}))
    with pytest.raises(OutsideRefused) as caught:
        await call(github)
    assert caught.value.status == 403
    assert "This workflow is already running" in str(caught.value)


async def test_a_token_for_a_repository_of_unknown_id_is_requested_by_name(
    github: GitHubClient, server: FakeGitHub
) -> None:
    server.will("/repos/org/up/actions/runs/3", httpx.Response(200, json=RUN))
    await github.actions.read_run(Target(REPO, None, 5), 3)
    assert json.loads(server.asked[0].content)["repositories"] == ["up"]


async def test_a_created_check_returns_its_id(github: GitHubClient, server: FakeGitHub) -> None:
    server.will(CHECKS, httpx.Response(201, json={"id": 44}))
    assert await create(github) == 44
    await github.checks.update(TARGET, 44, SHOWN)
    assert [request.method for request in server.asked] == ["POST", "POST", "PATCH"]


async def test_all_pages_of_a_list_are_read(github: GitHubClient, server: FakeGitHub) -> None:
    pages = [page({"check_runs": [{"id": n, "external_id": "e"}]}, more=n < 3) for n in (1, 2, 3)]
    server.will(FOUND, *pages)
    assert await github.checks.find(TARGET, "abc", "crcr/gate") == tuple(
        ListedCheck(n, "e") for n in (1, 2, 3)
    )
    assert requested_pages(server, FOUND) == ["1", "2", "3"]
    assert {request.url.host for request in server.asked} == {"api.github.test"}
    assert server.asked[-1].url.params["check_name"] == "crcr/gate"


ENDLESS: list[tuple[Call, str, object, int]] = [
    (lambda g: g.checks.find(TARGET, "abc", "x"), FOUND, {"check_runs": []}, 5),
    (lambda g: g.pull_requests.list_files(TARGET, 7), "/repos/org/up/pulls/7/files", [], 30),
    (
        lambda g: g.commits.compare(TARGET, "a", "b"),
        "/repos/org/up/compare/a...b",
        {"total_commits": 1, "commits": []},
        10,
    ),
    (lambda g: g.commits.list_open_pulls(TARGET, "abc"), "/repos/org/up/commits/abc/pulls", [], 10),
    (lambda g: g.comments.list_since(TARGET, 7, NOW), COMMENTS, [], 10),
    (
        lambda g: g.actions.list_runs(TARGET, event="push", since=NOW, until=NOW),
        "/repos/org/up/actions/runs",
        {"workflow_runs": []},
        10,
    ),
    (
        lambda g: g.actions.list_jobs(TARGET, 3, 1),
        "/repos/org/up/actions/runs/3/attempts/1/jobs",
        {"jobs": []},
        10,
    ),
]


@pytest.mark.parametrize(("call", "path", "body", "most"), ENDLESS)
async def test_an_endless_list_is_read_up_to_its_page_limit(
    github: GitHubClient, server: FakeGitHub, call: Call, path: str, body: object, most: int
) -> None:
    server.will(path, page(body, more=True))
    await call(github)
    assert requested_pages(server, path) == [str(number) for number in range(1, most + 1)]


async def test_an_error_on_a_later_page_fails_the_call(github: GitHubClient, server: FakeGitHub) -> None:
    server.will(COMMENTS, page([{"id": 1, "body": "a"}], more=True), httpx.Response(502))
    with pytest.raises(OutsideUnsure):
        await github.comments.list_since(TARGET, 7, NOW)


async def test_changes_too_large_to_read_are_marked_incomplete(
    github: GitHubClient, server: FakeGitHub
) -> None:
    files = "/repos/org/up/pulls/7/files"
    large = httpx.Response(200, content=b" " * (MAX_LIST_BYTES + 1), headers={"Link": '<x>; rel="next"'})
    server.will(files, page([{"filename": "a"}], more=True), large)
    server.will("/repos/org/up/compare/a...b", large)
    changed = await github.pull_requests.list_files(TARGET, 7)
    between = await github.commits.compare(TARGET, "a", "b")
    assert (changed.paths, changed.complete) == (("a",), False)
    assert (between.files.complete, between.complete) == (False, False)
    assert requested_pages(server, files) == ["1", "2"]


async def test_a_too_large_list_of_checks_raises_outside_unsure(
    github: GitHubClient, server: FakeGitHub
) -> None:
    server.will(FOUND, httpx.Response(200, content=b" " * (MAX_LIST_BYTES + 1)))
    with pytest.raises(OutsideUnsure, match="larger than"):
        await github.checks.find(TARGET, "abc", "x")


async def test_a_login_is_sent_as_one_path_segment(github: GitHubClient, server: FakeGitHub) -> None:
    server.will("/repos/org/up/collaborators/a[bot]/permission", page({"permission": "write"}))
    assert await github.comments.read_role(TARGET, "a[bot]") is Role.WRITE
    assert server.asked[-1].url.raw_path.decode() == ROLE


async def test_a_login_unknown_to_github_has_no_role(github: GitHubClient, server: FakeGitHub) -> None:
    path = "/repos/org/up/collaborators/ghost/permission"
    server.will(path, httpx.Response(404), httpx.Response(500))
    assert await github.comments.read_role(TARGET, "ghost") is Role.NONE
    with pytest.raises(OutsideUnsure):
        await github.comments.read_role(TARGET, "ghost")


async def test_comments_are_created_listed_and_reacted_to(github: GitHubClient, server: FakeGitHub) -> None:
    server.will(COMMENTS, httpx.Response(201, json={"id": 8}), page([{"id": 8, "body": "Done."}]))
    assert await github.comments.create(TARGET, 7, "Done.") == 8
    assert await github.comments.list_since(TARGET, 7, NOW) == (PostedComment(8, "Done."),)
    assert server.asked[-1].url.params["since"] == "2026-01-01T00:00:00Z"
    for status in (200, 201):
        server.will("/repos/org/up/issues/comments/8/reactions", httpx.Response(status, json={"id": 1}))
        await github.comments.react(TARGET, 8, "eyes")


async def test_a_rerun_has_no_body(github: GitHubClient, server: FakeGitHub) -> None:
    server.will("/repos/org/up/actions/runs/3/rerun", httpx.Response(201, json={}))
    await github.actions.rerun(TARGET, 3, failed_only=False)
    assert server.asked[-1].content == b""
    assert server.asked[-1].headers["content-length"] == "0"


async def test_checks_are_sent_while_lower_urgencies_are_held_back(
    github: GitHubClient, server: FakeGitHub
) -> None:
    server.will(CHECKS, httpx.Response(201, json={"id": 4}))
    for _ in range(108):
        await create(github, urgency=Urgency.DETAILS)
    with pytest.raises(OutsideLimited) as caught:
        await create(github, urgency=Urgency.DETAILS)
    assert caught.value.retry_after_s == 60
    await create(github, urgency=Urgency.CHECKS)
    with pytest.raises(OutsideLimited):
        await github.checks.update(TARGET, 4, SHOWN, urgency=Urgency.DETAILS)
    await github.checks.update(TARGET, 4, SHOWN)


async def test_the_81st_comment_of_a_minute_is_held_back_and_checks_are_not(
    github: GitHubClient, server: FakeGitHub, clock: ManualClock
) -> None:
    server.will(COMMENTS, httpx.Response(201, json={"id": 8}))
    server.will(CHECKS, httpx.Response(201, json={"id": 4}))
    for _ in range(80):
        await github.comments.create(TARGET, 7, "x")
    with pytest.raises(OutsideLimited) as caught:
        await github.comments.create(TARGET, 7, "x")
    assert caught.value.held_by is HeldBy.CONTENT
    await create(github)
    clock.advance(60)
    await github.comments.create(TARGET, 7, "x")
    assert server.paths().count(COMMENTS) == 81


async def test_the_delivery_log_is_read_with_the_apps_jwt(github: GitHubClient, server: FakeGitHub) -> None:
    following = {"Link": '<https://api.github.test/app/hook/deliveries?cursor=v1_7>; rel="next"'}
    server.will(LOG, httpx.Response(200, json=[], headers=following), page([]))
    assert await github.delivery_log.read_page(None) == DeliveryLogPage((), "v1_7")
    assert await github.delivery_log.read_page("v1_7") == DeliveryLogPage((), None)
    assert server.asked[-1].url.params["cursor"] == "v1_7"
    assert server.minted == 0
    assert all(bearer.startswith("Bearer eyJ") for bearer in server.bearers(LOG))


async def test_a_logged_delivery_may_be_as_large_as_a_webhook(
    github: GitHubClient, server: FakeGitHub
) -> None:
    payload = {"a": "x" * (25 << 20)}
    body = {"guid": "g", "event": "push", "request": {"payload": payload}}
    server.will(f"{LOG}/7", httpx.Response(200, json=body))
    guid, event, data = await github.delivery_log.read_delivery(7)
    assert (guid, event, json.loads(data)) == ("g", "push", payload)


async def test_a_delivery_that_is_no_longer_in_the_log_is_refused(
    github: GitHubClient, server: FakeGitHub
) -> None:
    server.will(f"{LOG}/7", httpx.Response(404, json={"message": "Not Found"}))
    with pytest.raises(OutsideRefused) as caught:
        await github.delivery_log.read_delivery(7)
    assert caught.value.status == 404
