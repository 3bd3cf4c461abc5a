"""Branches, files written to them, and pull requests from them: what a proposed edit of one file needs.

A file is read at a commit with the hash that git gives its content: GitHub replaces a file only when it still has that hash.
https://docs.github.com/en/rest/git/refs, https://docs.github.com/en/rest/repos/contents, https://docs.github.com/en/rest/pulls/pulls
"""

import hashlib
from base64 import b64encode

import msgspec

from crcr.decide.github.requests_and_answers import FileLocation, FileVersion
from crcr.decide.model import RepoName
from crcr.github.api.comments_and_roles import MOST_COMMENT, MOST_TITLE
from crcr.github.api.request_response import (
    Id,
    Request,
    Response,
    cut_line,
    cut_text,
    decode,
    encode_json,
    list_first_page,
    parse_file,
    quote_segment,
    read_file,
)

# Requests


def read_branch(repo: RepoName, branch: str) -> Request:
    name = "/".join(quote_segment(part) for part in branch.split("/"))
    return Request("GET", f"/repos/{repo}/git/ref/heads/{name}")


def create_branch(repo: RepoName, branch: str, sha: str) -> Request:
    body = encode_json(ref=f"refs/heads/{branch}", sha=sha)
    return Request("POST", f"/repos/{repo}/git/refs", body=body, writes=True)


def write_file(file: FileLocation, text: str, *, replaces: str, message: str) -> Request:
    """Replace a file on the branch `file.ref`; `replaces` is the hash of its present content."""
    body = encode_json(
        message=message, content=b64encode(text.encode()).decode(), sha=replaces, branch=file.ref
    )
    path = read_file(file, None).path.partition("?")[0]
    return Request("PUT", path, body=body, writes=True, creates_content=True)


def create_pull(repo: RepoName, *, head: str, base: str, title: str, body: str) -> Request:
    sent = encode_json(
        head=head, base=base, title=cut_line(title, MOST_TITLE), body=cut_text(body, MOST_COMMENT)
    )
    return Request("POST", f"/repos/{repo}/pulls", body=sent, writes=True, creates_content=True)


def list_pulls_of_branch(repo: RepoName, branch: str) -> Request:
    """Open and closed pull requests from a branch of the same repository."""
    return list_first_page(f"/repos/{repo}/pulls", state="all", head=f"{repo.owner}:{branch}")


# Responses


class _Object(msgspec.Struct):
    type: str
    sha: str


class _Ref(msgspec.Struct):
    object: _Object


class _Repository(msgspec.Struct):
    full_name: str


class _Head(msgspec.Struct):
    ref: str
    repo: _Repository | None = None
    """None when the fork that it came from is gone."""


class _Base(msgspec.Struct):
    ref: str
    repo: _Repository


class _Pull(msgspec.Struct):
    number: Id
    head: _Head
    base: _Base


class _Created(msgspec.Struct):
    number: Id


def parse_branch_sha(response: Response) -> str:
    return decode(response, _Ref).object.sha


def parse_file_version(response: Response) -> FileVersion:
    file = parse_file(response)
    text = file.text if file is not None else ""
    header = b"blob %d\0" % len(response.body)
    return FileVersion(text, hashlib.sha1(header + response.body, usedforsecurity=False).hexdigest())


def parse_pull_number(response: Response) -> int:
    return decode(response, _Created).number


def find_pull_of_branch(response: Response, branch: str, base: str) -> int | None:
    """The newest pull request from the branch into `base`. A fork of the same owner has the same `owner:branch`."""
    numbers = [
        pull.number
        for pull in decode(response, list[_Pull])
        if (pull.head.ref, pull.base.ref) == (branch, base)
        and pull.head.repo is not None
        and pull.head.repo.full_name == pull.base.repo.full_name
    ]
    return max(numbers, default=None)
