"""A pull request that another one depends on: its head and text, and the reviews that approve a head.

Nothing waits for these reads but an additional test, so they are in the last class of calls.
https://docs.github.com/en/rest/pulls/pulls, https://docs.github.com/en/rest/pulls/reviews
"""

import re
from dataclasses import replace

import msgspec

from crcr.decide.github.requests_and_answers import Urgency
from crcr.decide.model import RepoName
from crcr.decide.pairs.pair import HeadReview, LinkedPull
from crcr.github.api.request_response import Id, Request, Response, decode, list_first_page

# Sent to the backend, where a workflow may pass it to git.
_CLONE_URL = re.compile(r"https?://[A-Za-z0-9.:-]{1,255}/[A-Za-z0-9._/-]{1,300}")
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_MOST_LOGIN = 100
_PERSON = "User"
_DECIDING = frozenset({"APPROVED", "CHANGES_REQUESTED", "DISMISSED"})
"""A comment changes nothing about an earlier approval."""


def read_linked_pull(repo: RepoName, number: int) -> Request:
    return Request("GET", f"/repos/{repo}/pulls/{number:d}", urgency=Urgency.DETAILS)


def list_reviews(repo: RepoName, number: int) -> Request:
    return replace(list_first_page(f"/repos/{repo}/pulls/{number:d}/reviews"), urgency=Urgency.DETAILS)


class _Account(msgspec.Struct):
    login: str
    type: str = _PERSON


class _SideRepository(msgspec.Struct):
    id: Id
    clone_url: str | None = None


class _Side(msgspec.Struct):
    sha: str
    repo: _SideRepository | None = None
    """None for the head of a deleted fork."""


class _Base(msgspec.Struct):
    repo: _SideRepository


class _LinkedPull(msgspec.Struct):
    state: str
    head: _Side
    base: _Base
    merged: bool = False
    body: str | None = None
    user: _Account | None = None


class _Review(msgspec.Struct):
    state: str
    commit_id: str | None = None
    user: _Account | None = None


def parse_linked_pull(response: Response) -> LinkedPull | None:
    """Return the pull request; None where its head is no commit's hash."""
    pull = decode(response, _LinkedPull)
    head, base = pull.head.repo, pull.base.repo
    if not _SHA.fullmatch(pull.head.sha):
        return None
    address = head.clone_url if head is not None else None
    return LinkedPull(
        head_sha=pull.head.sha,
        clone_url=address if address and _CLONE_URL.fullmatch(address) else None,
        repository_id=base.id,
        is_own_head=head is not None and head.id == base.id,
        is_open=pull.state == "open",
        merged=pull.merged,
        author=pull.user.login[:_MOST_LOGIN] if pull.user else "",
        body=pull.body or "",
    )


def parse_reviews(response: Response) -> tuple[HeadReview, ...]:
    """Return the reviews that approve, reject or were dismissed, the oldest first."""
    return tuple(
        HeadReview(
            who=review.user.login[:_MOST_LOGIN],
            is_person=review.user.type == _PERSON,
            approves=review.state == "APPROVED",
            commit=review.commit_id,
        )
        for review in decode(response, list[_Review])
        if review.user is not None and review.state in _DECIDING
    )
