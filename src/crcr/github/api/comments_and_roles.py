"""Comments on pull requests, reactions to them, the role of a person in a repository, and the state of an issue.

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
_ROLES = {role.name.lower(): role for role in Role}

# Requests


def read_permission(repo: RepoName, login: str) -> Request:
    return Request("GET", f"/repos/{repo}/collaborators/{quote_segment(login)}/permission")


def create_comment(repo: RepoName, number: int, body: str) -> Request:
    path = f"/repos/{repo}/issues/{number:d}/comments"
    sent = encode_json(body=cut_text(body, MOST_COMMENT))
    return Request("POST", path, body=sent, writes=True, creates_content=True)


def list_comments(repo: RepoName, number: int, since: datetime) -> Request:
    # Anyone may write comments of full length: together they must not exceed what we read.
    path = f"/repos/{repo}/issues/{number:d}/comments"
    return list_first_page(path, since=format_time(since), most_bytes=MAX_LARGE_BYTES)


def add_reaction(repo: RepoName, comment_id: int, content: str) -> Request:
    path = f"/repos/{repo}/issues/comments/{comment_id:d}/reactions"
    return Request("POST", path, body=encode_json(content=content), writes=True)


def read_issue(repo: RepoName, number: int) -> Request:
    return Request("GET", f"/repos/{repo}/issues/{number:d}", urgency=Urgency.DETAILS)


# Responses


class _Permission(msgspec.Struct):
    permission: str
    role_name: str | None = None


class _Comment(msgspec.Struct):
    id: Id
    body: str | None = None


class _Issue(msgspec.Struct):
    state: str


def parse_is_closed(response: Response) -> bool:
    return decode(response, _Issue).state == "closed"


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
