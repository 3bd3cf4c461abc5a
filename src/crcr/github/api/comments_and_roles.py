"""People: which role somebody has in a repository, and comments and reactions that answer them.

Comments of a pull request go by the issues API, which takes the permission for pull requests as well.
https://docs.github.com/en/rest/collaborators/collaborators, https://docs.github.com/en/rest/issues/comments
"""

from datetime import datetime

import msgspec

from crcr.decide.github.values import PostedComment, Role
from crcr.decide.model import RepoName
from crcr.github.api.core import (
    MAX_LARGE_BYTES,
    Id,
    Request,
    Response,
    decode,
    json_body,
    listing,
    long,
    moment,
    segment,
)

MOST_COMMENT = 65_536
_ROLES = {role.name.lower(): role for role in Role}

# Requests


def permission(repo: RepoName, login: str) -> Request:
    return Request("GET", f"/repos/{repo}/collaborators/{segment(login)}/permission")


def comment(repo: RepoName, number: int, body: str) -> Request:
    path = f"/repos/{repo}/issues/{number:d}/comments"
    sent = json_body(body=long(body, MOST_COMMENT))
    return Request("POST", path, body=sent, writes=True, creates_content=True)


def comments(repo: RepoName, number: int, since: datetime) -> Request:
    # Anyone may write comments of full length: their sum must not keep us from reading on.
    path = f"/repos/{repo}/issues/{number:d}/comments"
    return listing(path, since=moment(since), most_bytes=MAX_LARGE_BYTES)


def react(repo: RepoName, comment_id: int, content: str) -> Request:
    path = f"/repos/{repo}/issues/comments/{comment_id:d}/reactions"
    return Request("POST", path, body=json_body(content=content), writes=True)


# Answers


class _Permission(msgspec.Struct):
    permission: str
    role_name: str | None = None


class _Comment(msgspec.Struct):
    id: Id
    body: str | None = None


def role(response: Response) -> Role:
    """Return the role; one that an organisation made counts as the `permission` it stands on.

    A word that we do not know gives no right.
    """
    found = decode(response, _Permission)
    named = _ROLES.get(found.role_name or "")
    return _ROLES.get(found.permission, Role.NONE) if named is None else named


def comment_id(response: Response) -> int:
    return decode(response, _Comment).id


def posted_comments(response: Response) -> tuple[PostedComment, ...]:
    return tuple(PostedComment(each.id, each.body or "") for each in decode(response, list[_Comment]))
