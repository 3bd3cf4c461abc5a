"""GitHub's REST calls as data: how each request is built, and what a successful response to it says.

This module has what all calls share, and the calls about installations and repositories; the modules beside it have the
others by subject. No IO and no clock: `github.http.transport` sends a `Request` and returns a `Response`, and
`github.http.errors` says what an unsuccessful status means. Bodies are untrusted: only named fields are read, by type, and
anything else is `OutsideUnsure`. No outside text can change a path: numbers are formatted as numbers, and a name is one
quoted segment.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Annotated, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import msgspec

from crcr.decide.allowlist.entries import AllowlistProblem, decode_text
from crcr.decide.github.requests_and_answers import (
    FileLocation,
    FileText,
    PullFacts,
    RepositoryFacts,
    Urgency,
)
from crcr.decide.model import RepoName
from crcr.errors import FileNotText, OutsideRefused, OutsideUnsure

JSON_TYPE = "application/vnd.github+json"
RAW_TYPE = "application/vnd.github.raw+json"
MAX_ANSWER_BYTES = 1 << 20
MAX_LIST_BYTES = 8 << 20
MAX_LARGE_BYTES = 40 << 20
"""A webhook has up to 25 MB, and GitHub escapes some characters to six; a hundred comments come to as much."""
READ_POINTS = 1
WRITE_POINTS = 5

Permissions = tuple[tuple[str, str], ...]
METADATA_READ: Permissions = (("metadata", "read"),)
CONTENTS_READ: Permissions = (("contents", "read"),)
CONTENTS_WRITE: Permissions = (("contents", "write"),)
PULLS_READ: Permissions = (("pull_requests", "read"),)
PULLS_WRITE: Permissions = (("pull_requests", "write"),)
CHECKS_READ: Permissions = (("checks", "read"),)
CHECKS_WRITE: Permissions = (("checks", "write"),)
ISSUES_READ: Permissions = (("issues", "read"),)
ISSUES_WRITE: Permissions = (("issues", "write"),)
ACTIONS_READ: Permissions = (("actions", "read"),)
ACTIONS_WRITE: Permissions = (("actions", "write"),)


@dataclass(frozen=True, slots=True)
class Request:
    """One call; `path` is relative to the API's address, and `writes` decides its points and whether a redirect is followed."""

    method: str
    path: str
    body: bytes | None = field(default=None, repr=False)
    accept: str = JSON_TYPE
    etag: str | None = None
    writes: bool = False
    most_bytes: int = MAX_ANSWER_BYTES
    """How much of the response is read."""
    urgency: Urgency = Urgency.FIRST
    """The class of calls that it belongs to while GitHub's limits leave too few."""
    creates_content: bool = False
    """Whether it notifies people; GitHub limits such requests more strictly."""

    @property
    def points(self) -> int:
        return WRITE_POINTS if self.writes else READ_POINTS


@dataclass(frozen=True, slots=True)
class Response:
    """One response; header names are lower case, `cut` says that the body was longer than the request's `most_bytes`."""

    status: int
    headers: Mapping[str, str]
    body: bytes = field(repr=False)
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token, the App's own or an installation's; its value never shows in a repr."""

    value: str = field(repr=False)
    expires_at: datetime


# How requests are built


def quote_segment(text: str) -> str:
    """Return `text` as one segment of a path; refuse what a URL parser would resolve away."""
    if text in {"", ".", ".."}:
        raise OutsideRefused(f"{text!r} cannot be part of an address.", status=400)
    # Lone surrogates have no UTF-8; a name with one names nothing.
    return quote(text, safe="", errors="replace")


def list_first_page(
    path: str, *, size: int = 100, most_bytes: int = MAX_LIST_BYTES, **parameters: str
) -> Request:
    """Request the first page of a list; `with_page` requests the others."""
    query = urlencode({**parameters, "per_page": size}, quote_via=quote, safe="", errors="replace")
    return Request("GET", f"{path}?{query}", most_bytes=most_bytes)


def with_page(request: Request, page: int) -> Request:
    return request if page == 1 else replace(request, path=f"{request.path}&page={page:d}")


_LINK = re.compile(r"<([^<>]*)>([^<]*)")
_NEXT = re.compile(r';\s*rel="?next"?\s*(?:[;,]|\Z)')


def find_next_link(response: Response) -> str | None:
    """Return the address of the list's next page. It only says that there is one; it is never requested."""
    for link in _LINK.finditer(response.headers.get("link", "")):
        if _NEXT.search(link[2]):
            return link[1]
    return None


def encode_json(**fields: object) -> bytes:
    return json.dumps(fields).encode()


def format_time(at: datetime) -> str:
    """Return a time as GitHub writes it: UTC, whole seconds, Z."""
    return f"{at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='seconds')}Z"


# Texts, truncated visibly to GitHub's limits

CUT_END = "\n\n… cut"


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, which JSON can carry and UTF-8 cannot."""
    return text.encode("utf-8", "replace").decode()


def cut_line(text: str, most: int) -> str:
    return replace_surrogates(text if len(text) <= most else text[: most - 1] + "…")


def cut_text(text: str, most: int) -> str:
    return replace_surrogates(text if len(text) <= most else text[: most - len(CUT_END)] + CUT_END)


def cut_bytes(text: str, most: int) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= most:
        return data.decode()
    return data[: most - len(CUT_END.encode())].decode(errors="ignore") + CUT_END


# Requests


def find_installation(repo: RepoName) -> Request:
    return Request("GET", f"/repos/{repo}/installation")


def create_installation_token(
    installation_id: int,
    repository_ids: Sequence[int],
    permissions: Permissions,
    *,
    repositories: Sequence[str] = (),
) -> Request:
    """Request a token for these repositories and permissions; without ids or names it covers the installation."""
    fields: dict[str, object] = {"permissions": dict(permissions)}
    if repository_ids:
        fields["repository_ids"] = list(repository_ids)
    elif repositories:
        fields["repositories"] = list(repositories)
    path = f"/app/installations/{installation_id:d}/access_tokens"
    return Request("POST", path, body=encode_json(**fields), writes=True)


def read_repository(repo: RepoName) -> Request:
    return Request("GET", f"/repos/{repo}")


def create_dispatch(repo: RepoName, body: bytes) -> Request:
    return Request("POST", f"/repos/{repo}/dispatches", body=body, writes=True)


def read_pull(repo: RepoName, number: int) -> Request:
    return Request("GET", f"/repos/{repo}/pulls/{number:d}")


def read_file(file: FileLocation, etag: str | None) -> Request:
    segments = file.path.strip("/").split("/")
    # A URL with `..` would be normalized on its way and reach another endpoint.
    if not {"", ".", ".."}.isdisjoint(segments):
        raise OutsideRefused(f"{file.path!r} is not the path of a file.", status=400)
    path = "/".join(quote(segment, safe="") for segment in segments)
    url = f"/repos/{file.repository}/contents/{path}?ref={quote(file.ref, safe='')}"
    return Request("GET", url, accept=RAW_TYPE, etag=etag)


# Moved repositories

_MOVED = frozenset({301, 302, 307, 308})
_PLAIN_ADDRESS = re.compile(
    r"[!-\[\]-~]+"
)  # printable ASCII without a backslash, which parsers read two ways


def follow_redirect(request: Request, response: Response, api_url: str) -> Request | None:
    """Return the same read at a moved repository's new address: GitHub answers 301 after a rename or a transfer.

    None for a write, and for an address that is not below the API's own: the token must never reach another host.
    """
    if request.writes or response.status not in _MOVED:
        return None
    path = _path_within(api_url, response.headers.get("location", ""))
    return None if path is None else replace(request, path=path)


def _path_within(api_url: str, location: str) -> str | None:
    if not _PLAIN_ADDRESS.fullmatch(location):
        return None
    api = urlsplit(api_url)
    try:
        target = urlsplit(location if "://" in location else f"{api.scheme}://{api.netloc}{location}")
        same_host = (target.scheme, target.netloc.lower()) == (api.scheme, api.netloc.lower())
    except ValueError:
        return None
    base = api.path.rstrip("/") + "/"
    if not same_host or not target.path.startswith(base) or ".." in target.path:
        return None
    path = target.path[len(base) - 1 :]
    return f"{path}?{target.query}" if target.query else path


# Responses

Id = Annotated[int, msgspec.Meta(ge=1)]
Time = Annotated[datetime, msgspec.Meta(tz=True)]
# A token becomes a header: no blanks, no line ends. Its format is not checked further.
_HeaderText = Annotated[str, msgspec.Meta(pattern=r"\A[!-~]+\Z")]


class _Installation(msgspec.Struct):
    id: Id


class _MintedToken(msgspec.Struct):
    token: _HeaderText
    expires_at: Time


class _Repository(msgspec.Struct):
    id: Id
    full_name: str
    owner: _Installation
    default_branch: str | None = None


class _Head(msgspec.Struct):
    sha: str


class _BaseRef(msgspec.Struct):
    ref: str


class _Pull(msgspec.Struct):
    state: str
    head: _Head
    base: _BaseRef
    updated_at: Time
    merged: bool = False


def parse_installation_id(response: Response) -> int:
    return decode(response, _Installation).id


def parse_token(response: Response) -> Token:
    minted = decode(response, _MintedToken)
    return Token(minted.token, minted.expires_at.astimezone(UTC))


def parse_repository(response: Response) -> RepositoryFacts:
    repo = decode(response, _Repository)
    return RepositoryFacts(repo.id, repo.owner.id, repo.full_name, repo.default_branch)


def parse_pull(response: Response) -> PullFacts:
    pull = decode(response, _Pull)
    return PullFacts(
        head_sha=pull.head.sha,
        base_ref=pull.base.ref,
        is_open=pull.state == "open",
        updated_at=pull.updated_at.astimezone(UTC),
        merged=pull.merged,
    )


def parse_file(response: Response) -> FileText | None:
    if response.status == 304:
        return None
    # The file itself is at fault, so repeating the request would not help.
    if response.cut:
        raise OutsideRefused(f"The file is larger than {MAX_ANSWER_BYTES:,} bytes.", status=response.status)
    text = decode_text(response.body)
    if isinstance(text, AllowlistProblem):
        raise FileNotText(text.message, status=response.status, line=text.line, hint=text.hint)
    return FileText(text=text, etag=response.headers.get("etag"))


_Kind = TypeVar("_Kind")


def decode(response: Response, kind: type[_Kind]) -> _Kind:
    if response.cut:
        raise OutsideUnsure(
            f"GitHub's answer is larger than what we read of it, {len(response.body):,} bytes."
        )
    try:
        return msgspec.json.decode(response.body, type=kind)
    except (ValueError, RecursionError) as error:
        # `from None`: a decoding error holds the body, and the body may hold a token.
        raise OutsideUnsure(f"GitHub's answer cannot be read: {error}") from None
