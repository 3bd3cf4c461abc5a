"""Comments on pull requests, reactions to them, the role of a person in a repository, and issues.

Comments of a pull request go through the issues API, which also accepts the permission for pull requests.
https://docs.github.com/en/rest/collaborators/collaborators, https://docs.github.com/en/rest/issues/comments
"""

from datetime import datetime

import msgspec

from crcr.decide.github.requests_and_answers import PostedComment, Role, Urgency
from crcr.decide.model import RepoName
from crcr.github.api.request_response import (
    MAX_LARGE_BYTES,
    Id,
    Request,
    Response,
    cut_text,
    decode,
    encode_json,
    format_time,
    list_first_page,
    quote_segment,
)

MOST_COMMENT = 65_536
MOST_TITLE = 256
_ROLES = {role.name.lower(): role for role in Role}

# Requests


def read_permission(repo: RepoName, login: str) -> Request:
    return Request("GET", f"/repos/{repo}/collaborators/{quote_segment(login)}/permission")


def create_comment(repo: RepoName, number: int, body: str) -> Request:
    path = f"/repos/{repo}/issues/{number:d}/comments"
    sent = encode_json(body=cut_text(body, MOST_COMMENT))
    return Request("POST", path, body=sent, writes=True, creates_content=True)


def update_comment(repo: RepoName, comment_id: int, body: str) -> Request:
    path = f"/repos/{repo}/issues/comments/{comment_id:d}"
    sent = encode_json(body=cut_text(body, MOST_COMMENT))
    return Request("PATCH", path, body=sent, writes=True, urgency=Urgency.DETAILS)


def list_comments(repo: RepoName, number: int, since: datetime) -> Request:
    # Anyone may write comments of full length: together they must not exceed what we read.
    path = f"/repos/{repo}/issues/{number:d}/comments"
    return list_first_page(path, since=format_time(since), most_bytes=MAX_LARGE_BYTES)


def add_reaction(repo: RepoName, comment_id: int, content: str) -> Request:
    path = f"/repos/{repo}/issues/comments/{comment_id:d}/reactions"
    return Request("POST", path, body=encode_json(content=content), writes=True)


def read_issue(repo: RepoName, number: int) -> Request:
    return Request("GET", f"/repos/{repo}/issues/{number:d}", urgency=Urgency.DETAILS)


def create_issue(repo: RepoName, title: str, body: str) -> Request:
    sent = encode_json(title=cut_text(title, MOST_TITLE), body=cut_text(body, MOST_COMMENT))
    path = f"/repos/{repo}/issues"
    return Request("POST", path, body=sent, writes=True, creates_content=True, urgency=Urgency.DETAILS)


def update_issue(repo: RepoName, number: int, *, title: str, body: str, is_open: bool) -> Request:
    state = {"state": "open"} if is_open else {"state": "closed", "state_reason": "completed"}
    sent = encode_json(title=cut_text(title, MOST_TITLE), body=cut_text(body, MOST_COMMENT), **state)
    path = f"/repos/{repo}/issues/{number:d}"
    return Request("PATCH", path, body=sent, writes=True, urgency=Urgency.DETAILS)


def list_issues(repo: RepoName, since: datetime) -> Request:
    path = f"/repos/{repo}/issues"
    return list_first_page(path, state="all", since=format_time(since), most_bytes=MAX_LARGE_BYTES)


# Responses


class _Permission(msgspec.Struct):
    permission: str
    role_name: str | None = None


class _Comment(msgspec.Struct):
    id: Id
    body: str | None = None


class _Issue(msgspec.Struct):
    state: str
    number: Id = 0
    body: str | None = None


def parse_is_closed(response: Response) -> bool:
    return decode(response, _Issue).state == "closed"


def parse_issue_number(response: Response) -> int:
    return decode(response, _Issue).number


def parse_issues(response: Response) -> tuple[PostedComment, ...]:
    """The issues by their numbers, with their bodies."""
    return tuple(PostedComment(item.number, item.body or "") for item in decode(response, list[_Issue]))


def parse_role(response: Response) -> Role:
    """Return the role; a custom role of an organisation counts as the `permission` that it is based on.

    An unknown word grants nothing.
    """
    answer = decode(response, _Permission)
    known_role = _ROLES.get(answer.role_name or "")
    return _ROLES.get(answer.permission, Role.NONE) if known_role is None else known_role


def parse_comment_id(response: Response) -> int:
    return decode(response, _Comment).id


def parse_comments(response: Response) -> tuple[PostedComment, ...]:
    return tuple(PostedComment(item.id, item.body or "") for item in decode(response, list[_Comment]))
