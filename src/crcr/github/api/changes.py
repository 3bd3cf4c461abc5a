"""What changed: the files of a pull request, what lies between two commits, a commit's tree and pull requests.

GitHub ends its lists of files without a word (3,000 of a pull request, 300 of a comparison), and a page of large
patches may be larger than what we read; both are said in `complete`, never guessed over.
https://docs.github.com/en/rest/pulls/pulls, https://docs.github.com/en/rest/commits/commits
"""

import re
from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from crcr.decide.github.values import ChangedFiles, Comparison, Target
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused
from crcr.github.api.core import Id, Request, Response, decode, listing, next_link, segment

MOST_PULL_FILES = 3000
MOST_COMPARED_FILES = 300
# Git allows none of these in a name. In a comparison `..` would move the border between its two sides, and a colon
# would ask about another repository.
_NO_REVISION = re.compile(r"\.\.|[\x00-\x20:?*\[\\^~\x7f]")

# Requests


def pull_files(repo: RepoName, number: int) -> Request:
    return listing(f"/repos/{repo}/pulls/{number:d}/files")


def compare(repo: RepoName, base: str, head: str) -> Request:
    for revision in (base, head):
        if _NO_REVISION.search(revision):
            raise OutsideRefused(f"{revision!r} does not name a commit.", status=400)
    return listing(f"/repos/{repo}/compare/{segment(base)}...{segment(head)}")


def commit_tree(repo: RepoName, sha: str) -> Request:
    return Request("GET", f"/repos/{repo}/git/commits/{segment(sha)}")


def commit_pulls(repo: RepoName, sha: str) -> Request:
    return listing(f"/repos/{repo}/commits/{segment(sha)}/pulls")


# Answers


class _File(msgspec.Struct):
    filename: str
    previous_filename: str | None = None


class _Commit(msgspec.Struct):
    sha: str


class _Comparison(msgspec.Struct):
    total_commits: int
    commits: list[_Commit]
    files: list[_File] | None = None
    """On the first page only."""


class _WithTree(msgspec.Struct):
    tree: _Commit


class _Repository(msgspec.Struct):
    id: Id
    full_name: str


class _Base(msgspec.Struct):
    repo: _Repository


class _Pull(msgspec.Struct):
    number: Id
    state: str
    base: _Base


def changed_files(pages: Sequence[Response]) -> ChangedFiles:
    files = list(chain.from_iterable(decode(page, list[_File]) for page in _whole(pages)))
    return ChangedFiles(_paths(files), complete=_ended(pages) and len(files) < MOST_PULL_FILES)


def comparison(pages: Sequence[Response]) -> Comparison:
    parts = [decode(page, _Comparison) for page in _whole(pages)]
    commits = tuple(commit.sha for part in parts for commit in part.commits)
    files = parts[0].files if parts else None
    return Comparison(
        commits=commits,
        files=ChangedFiles(
            _paths(files or ()), complete=files is not None and len(files) < MOST_COMPARED_FILES
        ),
        complete=bool(parts) and parts[0].total_commits <= len(commits),
    )


def tree_sha(response: Response) -> str:
    return decode(response, _WithTree).tree.sha


def open_pulls(response: Response, where: Target) -> tuple[int, ...]:
    """Return the open pull requests into this repository; a fork's commit also lists the fork's own."""
    found = decode(response, list[_Pull])
    return tuple(pull.number for pull in found if pull.state == "open" and _is_at(pull.base.repo, where))


def _is_at(found: _Repository, where: Target) -> bool:
    if where.repository_id is not None:
        return found.id == where.repository_id
    return found.full_name.lower() == where.repository.key


def _whole(pages: Sequence[Response]) -> list[Response]:
    return [page for page in pages if not page.cut]


def _ended(pages: Sequence[Response]) -> bool:
    """Whether the last page that was read is the list's last."""
    return not pages[-1].cut and next_link(pages[-1]) is None


def _paths(files: Iterable[_File]) -> tuple[str, ...]:
    """Both names of what was renamed: it left one place and came to another."""
    names = (name for file in files for name in (file.previous_filename, file.filename) if name)
    return tuple(dict.fromkeys(names))
