import json
from collections.abc import Awaitable, Callable

import httpx
import pytest

from github_sim.clock import ManualClock
from github_sim.github import GitHub

TokenFor = Callable[..., Awaitable[dict[str, str]]]
ROOT = "/repos/org/upstream"
COMMENTS = f"{ROOT}/issues/1/comments"


def received_events(received_requests: list[httpx.Request]) -> list[tuple[str, str | None]]:
    return [
        (each.headers["x-github-event"], json.loads(each.content).get("action")) for each in received_requests
    ]


async def test_a_comment_is_sent_to_the_app_with_its_author(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    github.set_permission("org/upstream", "mira", "maintain")
    pull = await github.open_pr("org/upstream")
    comment = await github.comment_pr(pull, "/crcr status", author="mira")
    body = json.loads(received_requests[-1].content)
    assert (body["action"], body["comment"]["id"], body["comment"]["body"]) == (
        "created",
        comment.id,
        "/crcr status",
    )
    assert body["issue"]["number"] == pull.number
    assert body["issue"]["pull_request"]["url"].endswith(f"{ROOT}/pulls/1")
    assert (body["comment"]["user"]["login"], body["comment"]["user"]["type"]) == ("mira", "User")
    assert body["comment"]["author_association"] == "MEMBER"
    assert body["comment"]["performed_via_github_app"] is None
    assert body["sender"]["login"] == "mira"


async def test_the_comment_of_a_bot_has_the_author_type_bot(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    pull = await github.open_pr("org/upstream")
    await github.comment_pr(pull, "/crcr approve", author="helper[bot]", author_type="Bot")
    assert json.loads(received_requests[-1].content)["comment"]["user"]["type"] == "Bot"


async def test_the_authors_own_comment_has_the_association_of_the_pull_request(github: GitHub) -> None:
    pull = await github.open_pr(
        "org/upstream", author="newcomer", author_association="FIRST_TIME_CONTRIBUTOR"
    )
    assert (
        await github.comment_pr(pull, "please", author="newcomer")
    ).author_association == "FIRST_TIME_CONTRIBUTOR"
    assert (await github.comment_pr(pull, "please", author="stranger")).author_association == "NONE"


async def test_editing_and_deleting_a_comment_send_webhooks(
    github: GitHub, received_requests: list[httpx.Request], clock: ManualClock
) -> None:
    pull = await github.open_pr("org/upstream")
    comment = await github.comment_pr(pull, "first")
    clock.advance(60)
    await github.edit_comment(comment, "second")
    assert json.loads(received_requests[-1].content)["changes"] == {"body": {"from": "first"}}
    assert (comment.body, comment.updated_at) == ("second", clock.now())
    await github.delete_comment(comment)
    assert received_events(received_requests)[1:] == [
        ("issue_comment", "created"),
        ("issue_comment", "edited"),
        ("issue_comment", "deleted"),
    ]
    assert github.comments(pull) == []


async def test_the_apps_comment_is_a_bots_and_sends_a_webhook(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, received_requests: list[httpx.Request]
) -> None:
    pull = await github.open_pr("org/upstream")
    answer = await api.post(COMMENTS, json={"body": "Refused."}, headers=await token_for("org/upstream"))
    assert answer.status_code == 201
    assert answer.json()["user"]["type"] == "Bot"
    assert answer.json()["performed_via_github_app"]["id"] == github.app_id
    assert received_events(received_requests)[-1] == ("issue_comment", "created")
    assert [(comment.body, comment.by_app) for comment in github.comments(pull)] == [("Refused.", True)]


async def test_the_app_can_edit_only_its_own_comments(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    pull = await github.open_pr("org/upstream")
    auth = await token_for("org/upstream")
    theirs = await github.comment_pr(pull, "mine")
    own = (await api.post(COMMENTS, json={"body": "1"}, headers=auth)).json()["id"]
    root = f"{ROOT}/issues/comments"
    assert (await api.patch(f"{root}/{own}", json={"body": "2"}, headers=auth)).json()["body"] == "2"
    assert (await api.patch(f"{root}/{theirs.id}", json={"body": "2"}, headers=auth)).status_code == 403
    assert (await api.patch(f"{root}/1", json={"body": "2"}, headers=auth)).status_code == 404


@pytest.mark.parametrize("body", [{}, {"body": " "}, {"body": "x" * 65_537}])
async def test_a_comment_over_githubs_limits_is_refused(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, body: dict[str, str]
) -> None:
    pull = await github.open_pr("org/upstream")
    answer = await api.post(COMMENTS, json=body, headers=await token_for("org/upstream"))
    assert answer.status_code == 422
    assert github.comments(pull) == []


@pytest.mark.parametrize(
    ("permissions", "status"),
    [({"issues": "write"}, 201), ({"pull_requests": "write"}, 201), ({"contents": "write"}, 403)],
)
async def test_commenting_needs_one_of_two_permissions(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor, permissions: dict[str, str], status: int
) -> None:
    await github.open_pr("org/upstream")
    auth = await token_for("org/upstream", permissions=permissions)
    assert (await api.post(COMMENTS, json={"body": "x"}, headers=auth)).status_code == status


async def test_comments_are_listed_in_pages_and_since_a_time(
    github: GitHub, api: httpx.AsyncClient, clock: ManualClock
) -> None:
    pull = await github.open_pr("org/upstream")
    for number in range(3):
        await github.comment_pr(pull, f"comment {number}")
        clock.advance(60)
    first = await api.get(COMMENTS, params={"per_page": 2})
    second = await api.get(first.links["next"]["url"])
    bodies = [each["body"] for page in (first, second) for each in page.json()]
    assert bodies == ["comment 0", "comment 1", "comment 2"]
    since = (await api.get(COMMENTS, params={"since": "2026-08-03T09:02:00Z"})).json()
    assert [each["body"] for each in since] == ["comment 2"]
    assert (await api.get(COMMENTS, params={"since": "yesterday"})).status_code == 422


async def test_a_reaction_counts_once_for_each_person_and_kind(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    pull = await github.open_pr("org/upstream")
    comment = await github.comment_pr(pull, "/crcr retry")
    auth = await token_for("org/upstream")
    path = f"{ROOT}/issues/comments/{comment.id}/reactions"
    contents = ("eyes", "eyes", "+1", "tea")
    statuses = [(await api.post(path, json={"content": each}, headers=auth)).status_code for each in contents]
    assert statuses == [201, 200, 201, 422]
    assert [reaction.content for reaction in comment.reactions] == ["eyes", "+1"]
    shown = (await api.get(COMMENTS)).json()[0]["reactions"]
    assert (shown["eyes"], shown["+1"], shown["total_count"]) == (1, 1, 2)


@pytest.mark.parametrize(
    ("role", "permission"),
    [
        ("none", "none"),
        ("read", "read"),
        ("triage", "read"),
        ("write", "write"),
        ("maintain", "write"),
        ("admin", "admin"),
    ],
)
async def test_a_permission_has_its_legacy_name(
    github: GitHub, api: httpx.AsyncClient, role: str, permission: str
) -> None:
    github.set_permission("org/upstream", "Mira", role)
    body = (await api.get(f"{ROOT}/collaborators/mira/permission")).json()
    assert (body["permission"], body["role_name"], body["user"]["login"]) == (permission, role, "Mira")


async def test_people_without_a_role_may_read_public_repositories(
    github: GitHub, api: httpx.AsyncClient, token_for: TokenFor
) -> None:
    await github.open_pr("org/upstream", author="stranger")
    path = "collaborators/stranger/permission"
    assert (await api.get(f"{ROOT}/{path}")).json()["permission"] == "read"
    github.create_repository("org/secret", private=True)
    auth = await token_for("org/secret")
    assert (await api.get(f"/repos/org/secret/{path}", headers=auth)).json()["permission"] == "none"
    assert (await api.get(f"{ROOT}/collaborators/nobody/permission")).status_code == 404


def test_an_unknown_role_is_an_error_of_the_test(github: GitHub) -> None:
    with pytest.raises(ValueError, match="no role 'boss'"):
        github.set_permission("org/upstream", "mira", "boss")


async def test_an_issue_is_read_and_closing_it_sends_a_webhook(
    github: GitHub,
    api: httpx.AsyncClient,
    token_for: TokenFor,
    received_requests: list[httpx.Request],
    clock: ManualClock,
) -> None:
    issue = await github.open_issue("org/upstream", title="No kernel")
    address, token = f"{ROOT}/issues/{issue.number}", await token_for("org/upstream")
    first = await api.get(address, headers=token)
    assert (first.json()["state"], first.json()["title"]) == ("open", "No kernel")
    assert first.json()["html_url"] == github.issue_url(issue)
    unchanged = await api.get(address, headers={**token, "if-none-match": first.headers["etag"]})
    assert unchanged.status_code == 304
    clock.advance(60)
    await github.close_issue(issue)
    assert received_events(received_requests) == [("issues", "opened"), ("issues", "closed")]
    second = await api.get(address, headers={**token, "if-none-match": first.headers["etag"]})
    assert (second.status_code, second.json()["state"]) == (200, "closed")
    pull = await github.open_pr("org/upstream")
    assert (await api.get(f"{ROOT}/issues/{pull.number}", headers=token)).json()["pull_request"]
    assert (await api.get(f"{ROOT}/issues/99", headers=token)).status_code == 404
