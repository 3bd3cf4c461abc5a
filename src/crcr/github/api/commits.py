"""Commits: comparisons, changed files, trees, the pull requests that contain one, branches and ancestry.

GitHub truncates its lists of files silently (3,000 of a pull request, 300 of a comparison), and a page of large patches
may be larger than what we read; `complete` is False in both cases.
https://docs.github.com/en/rest/pulls/pulls, https://docs.github.com/en/rest/commits/commits
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from crcr.decide.github.requests_and_answers import ChangedFiles, Comparison, Target, Urgency
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused
from crcr.github.api.request_response import (
    MAX_LIST_BYTES,
    Id,
    Request,
    Response,
    decode,
    find_next_link,
    list_first_page,
    quote_segment,
)

MOST_PULL_FILES = 3000
MOST_COMPARED_FILES = 300
# Git allows none of these in a name. In a comparison `..` would move the border between its two sides, and a colon
# would ask about another repository.
_NO_REVISION = re.compile(r"\.\.|[\x00-\x20:?*\[\\^~\x7f]")
_BRANCH_PREFIX = "refs/heads/"
_IN_HISTORY = frozenset({"behind", "identical"})
"""The comparison's status for a commit that the branch has in its history."""

# Requests


def list_pull_files(repo: RepoName, number: int) -> Request:
    return list_first_page(f"/repos/{repo}/pulls/{number:d}/files")


def compare(repo: RepoName, base: str, head: str) -> Request:
    for revision in (base, head):
        if _NO_REVISION.search(revision):
            raise OutsideRefused(f"{revision!r} does not name a commit.", status=400)
    return list_first_page(f"/repos/{repo}/compare/{quote_segment(base)}...{quote_segment(head)}")


def read_commit_tree(repo: RepoName, sha: str) -> Request:
    return Request("GET", f"/repos/{repo}/git/commits/{quote_segment(sha)}")


def list_commit_pulls(repo: RepoName, sha: str) -> Request:
    return list_first_page(f"/repos/{repo}/commits/{quote_segment(sha)}/pulls")


def read_repository(repo: RepoName) -> Request:
    return Request("GET", f"/repos/{repo}", urgency=Urgency.DETAILS)


def list_matching_branches(repo: RepoName, prefix: str) -> Request:
    name = "/".join(quote_segment(part) for part in f"heads/{prefix.rstrip('/')}".split("/"))
    return Request(
        "GET", f"/repos/{repo}/git/matching-refs/{name}", urgency=Urgency.DETAILS, most_bytes=MAX_LIST_BYTES
    )


def compare_ancestry(repo: RepoName, branch: str, sha: str) -> Request:
    """Compare for the status only: the first page brings all changed files, so the second one is requested."""
    path = compare(repo, branch, sha).path.partition("?")[0]
    return Request("GET", f"{path}?per_page=1&page=2", urgency=Urgency.DETAILS)


def read_commit(repo: RepoName, sha: str) -> Request:
    return Request("GET", f"/repos/{repo}/git/commits/{quote_segment(sha)}", urgency=Urgency.DETAILS)


# Responses


class _File(msgspec.Struct):
    filename: str
    previous_filename: str | None = None


class _Commit(msgspec.Struct):
    sha: str


class _Comparison(msgspec.Struct):
    total_commits: int
    commits: list[_Commit]
    merge_base_commit: _Commit | None = None
    files: list[_File] | None = None
    """On the first page only."""


class _ComparisonStatus(msgspec.Struct):
    status: str


class _WithTree(msgspec.Struct):
    tree: _Commit


class _BaseRepository(msgspec.Struct):
    id: Id
    full_name: str


class _Base(msgspec.Struct):
    repo: _BaseRepository


class _Pull(msgspec.Struct):
    number: Id
    state: str
    base: _Base


class _Repository(msgspec.Struct):
    default_branch: str


class _Ref(msgspec.Struct):
    ref: str


def parse_changed_files(pages: Sequence[Response]) -> ChangedFiles:
    files = list(chain.from_iterable(decode(page, list[_File]) for page in _uncut(pages)))
    return ChangedFiles(_paths(files), complete=_is_read_to_end(pages) and len(files) < MOST_PULL_FILES)


def parse_comparison(pages: Sequence[Response]) -> Comparison:
    parts = [decode(page, _Comparison) for page in _uncut(pages)]
    commits = tuple(commit.sha for part in parts for commit in part.commits)
    files = parts[0].files if parts else None
    return Comparison(
        commits=commits,
        files=ChangedFiles(
            _paths(files or ()), complete=files is not None and len(files) < MOST_COMPARED_FILES
        ),
        complete=bool(parts) and parts[0].total_commits <= len(commits),
        merge_base=parts[0].merge_base_commit.sha if parts and parts[0].merge_base_commit else None,
    )


def parse_tree_sha(response: Response) -> str:
    return decode(response, _WithTree).tree.sha


def parse_open_pulls(response: Response, where: Target) -> tuple[int, ...]:
    """Return the open pull requests into this repository; a fork's commit also lists the fork's own."""
    pulls = decode(response, list[_Pull])
    return tuple(pull.number for pull in pulls if pull.state == "open" and _is_target(pull.base.repo, where))


def parse_default_branch(response: Response) -> str:
    return decode(response, _Repository).default_branch


def parse_branches(response: Response, prefix: str) -> tuple[str, ...]:
    """GitHub matches the prefix without its trailing slash: `release` also finds `release-notes`."""
    names = (ref.ref.removeprefix(_BRANCH_PREFIX) for ref in decode(response, list[_Ref]))
    return tuple(name for name in names if name.startswith(prefix))


def is_ancestor(response: Response) -> bool:
    return decode(response, _ComparisonStatus).status in _IN_HISTORY


def _is_target(repo: _BaseRepository, where: Target) -> bool:
    if where.repository_id is not None:
        return repo.id == where.repository_id
    return repo.full_name.lower() == where.repository.key


def _uncut(pages: Sequence[Response]) -> list[Response]:
    return [page for page in pages if not page.cut]


def _is_read_to_end(pages: Sequence[Response]) -> bool:
    """Whether the last page that was read is the list's last."""
    return not pages[-1].cut and find_next_link(pages[-1]) is None


def _paths(files: Iterable[_File]) -> tuple[str, ...]:
    """Return both names of a renamed file: it changed both paths."""
    names = (name for file in files for name in (file.previous_filename, file.filename) if name)
    return tuple(dict.fromkeys(names))
