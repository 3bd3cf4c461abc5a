"""Where a commit stands in a repository: its default branch, branches by how their names begin, and ancestry.

A comparison's first page brings all changed files with it, the others do not: only the word for how the two sides
stand is wanted, so the second page is asked for. https://docs.github.com/en/rest/commits/commits#compare-two-commits
"""

import msgspec

from crcr.decide.model import RepoName
from crcr.decide.outbox.urgency import Urgency
from crcr.github.api import changes
from crcr.github.api.core import MAX_LIST_BYTES, Request, Response, decode, segment

"""Points of a minute that such questions leave to the gate. The checks of jobs leave more, so these never starve."""
_HEADS = "refs/heads/"
_HAS_BEHIND = frozenset({"behind", "identical"})
"""How a commit stands to a branch that has it in its history."""

# Requests


def repository(repo: RepoName) -> Request:
    return Request("GET", f"/repos/{repo}", urgency=Urgency.DETAILS)


def matching_branches(repo: RepoName, prefix: str) -> Request:
    name = "/".join(segment(part) for part in f"heads/{prefix.rstrip('/')}".split("/"))
    return Request(
        "GET", f"/repos/{repo}/git/matching-refs/{name}", urgency=Urgency.DETAILS, most_bytes=MAX_LIST_BYTES
    )


def ancestry(repo: RepoName, branch: str, sha: str) -> Request:
    path = changes.compare(repo, branch, sha).path.partition("?")[0]
    return Request("GET", f"{path}?per_page=1&page=2", urgency=Urgency.DETAILS)


def commit(repo: RepoName, sha: str) -> Request:
    return Request("GET", f"/repos/{repo}/git/commits/{segment(sha)}", urgency=Urgency.DETAILS)


# Answers


class _Repository(msgspec.Struct):
    default_branch: str


class _Ref(msgspec.Struct):
    ref: str


class _Comparison(msgspec.Struct):
    status: str


def default_branch(response: Response) -> str:
    return decode(response, _Repository).default_branch


def branches(response: Response, prefix: str) -> tuple[str, ...]:
    """GitHub matches the beginning of the name without its slash: `release` finds `release-notes` too."""
    names = (found.ref.removeprefix(_HEADS) for found in decode(response, list[_Ref]))
    return tuple(name for name in names if name.startswith(prefix))


def is_ancestor(response: Response) -> bool:
    return decode(response, _Comparison).status in _HAS_BEHIND
