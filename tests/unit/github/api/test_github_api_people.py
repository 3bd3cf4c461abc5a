"""Requests for roles, comments and reactions, and the role that a response gives."""

import json
from datetime import UTC, datetime

import pytest

from crcr.decide.github.requests_and_answers import PostedComment, Role
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused, OutsideUnsure
from crcr.github.api import comments_and_roles
from crcr.github.api.request_response import MAX_LARGE_BYTES, Response

REPO = RepoName("Org/Up")
SINCE = datetime(2026, 1, 1, 0, 0, 0, 5, tzinfo=UTC)


def answer(body: object) -> Response:
    return Response(200, {}, json.dumps(body).encode())


def test_every_call_has_its_method_path_and_points() -> None:
    requests = [
        comments_and_roles.read_permission(REPO, "dependabot[bot]/../x"),
        comments_and_roles.create_comment(REPO, 7, "Hello"),
        comments_and_roles.list_comments(REPO, 7, SINCE),
        comments_and_roles.add_reaction(REPO, 8, "+1"),
    ]
    assert [(request.method, request.path, request.points) for request in requests] == [
        ("GET", "/repos/Org/Up/collaborators/dependabot%5Bbot%5D%2F..%2Fx/permission", 1),
        ("POST", "/repos/Org/Up/issues/7/comments", 5),
        ("GET", "/repos/Org/Up/issues/7/comments?since=2026-01-01T00%3A00%3A00Z&per_page=100", 1),
        ("POST", "/repos/Org/Up/issues/comments/8/reactions", 5),
    ]
    assert [json.loads(requests[at].body or b"") for at in (1, 3)] == [{"body": "Hello"}, {"content": "+1"}]
    assert requests[2].most_bytes == MAX_LARGE_BYTES


def test_a_comment_counts_as_content_and_a_reaction_does_not() -> None:
    assert comments_and_roles.create_comment(REPO, 7, "Hello").creates_content
    assert not comments_and_roles.add_reaction(REPO, 8, "+1").creates_content


@pytest.mark.parametrize("login", ["", ".", ".."])
def test_a_login_that_would_change_the_path_is_refused(login: str) -> None:
    with pytest.raises(OutsideRefused):
        comments_and_roles.read_permission(REPO, login)


def test_a_lone_surrogate_in_a_login_is_replaced() -> None:
    assert comments_and_roles.read_permission(REPO, "a\ud800").path.endswith("/a%3F/permission")


def test_a_comment_over_githubs_limit_is_truncated_with_a_visible_mark() -> None:
    body = json.loads(comments_and_roles.create_comment(REPO, 7, "x" * 70_000).body or b"")["body"]
    assert len(body) == 65_536
    assert body.endswith("x\n\n… cut")


ROLES: list[tuple[dict[str, object], Role]] = [
    ({"permission": "admin", "role_name": "admin"}, Role.ADMIN),
    ({"permission": "write", "role_name": "maintain"}, Role.MAINTAIN),
    ({"permission": "write", "role_name": "write"}, Role.WRITE),
    ({"permission": "read", "role_name": "triage"}, Role.TRIAGE),
    ({"permission": "read", "role_name": "read"}, Role.READ),
    ({"permission": "none", "role_name": "none"}, Role.NONE),
    ({"permission": "write", "role_name": "release captain"}, Role.WRITE),
    ({"permission": "read", "role_name": "ADMIN"}, Role.READ),
    ({"permission": "admin"}, Role.ADMIN),
    ({"permission": "write", "role_name": None}, Role.WRITE),
    ({"permission": "emperor", "role_name": ""}, Role.NONE),
]


@pytest.mark.parametrize(("body", "role"), ROLES)
def test_a_role_is_read_from_its_name_and_otherwise_from_its_permission(
    body: dict[str, object], role: Role
) -> None:
    assert comments_and_roles.parse_role(answer(body)) is role


def test_comments_are_parsed_into_values() -> None:
    listed = answer([{"id": 1, "body": "/crcr rerun", "user": None}, {"id": 2}, {"id": 3, "body": None}])
    assert comments_and_roles.parse_comments(listed) == (
        PostedComment(1, "/crcr rerun"),
        PostedComment(2, ""),
        PostedComment(3, ""),
    )
    assert comments_and_roles.parse_comment_id(answer({"id": 4, "body": "x"})) == 4


@pytest.mark.parametrize("body", [None, {}, [{}], {"role_name": "admin"}, {"permission": 5}, {"id": "x"}])
def test_an_unreadable_response_raises_outside_unsure(body: object) -> None:
    for reader in (
        comments_and_roles.parse_role,
        comments_and_roles.parse_comment_id,
        comments_and_roles.parse_comments,
    ):
        with pytest.raises(OutsideUnsure):
            reader(answer(body))
