"""How a repository is set up for the App, and the App itself: installation, branch, workflow files, webhook.

https://docs.github.com/en/rest/apps/apps, https://docs.github.com/en/rest/repos/contents,
https://docs.github.com/en/rest/actions/workflows
"""

from dataclasses import replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

import msgspec

from crcr.decide.github.repository_setup import (
    AppFacts,
    BranchFacts,
    HookFacts,
    InstallationFacts,
    ListedFile,
)
from crcr.decide.github.values import Urgency
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused
from crcr.github.api.core import RAW_TYPE, Id, Request, Response, Time, decode, listing, segment

WORKFLOWS = ".github/workflows"
MAX_FILE_BYTES = 256 * 1024

# Requests


def read_branch(repo: RepoName) -> Request:
    return Request("GET", f"/repos/{repo}", urgency=Urgency.DETAILS)


def workflow_files(repo: RepoName, ref: str) -> Request:
    return Request(
        "GET", f"/repos/{repo}/contents/{WORKFLOWS}?ref={quote(ref, safe='')}", urgency=Urgency.DETAILS
    )


def workflow_file(repo: RepoName, path: str, ref: str) -> Request:
    name = segment(path.rpartition("/")[2])
    url = f"/repos/{repo}/contents/{WORKFLOWS}/{name}?ref={quote(ref, safe='')}"
    return Request("GET", url, accept=RAW_TYPE, most_bytes=MAX_FILE_BYTES, urgency=Urgency.DETAILS)


def workflow_states(repo: RepoName) -> Request:
    return replace(listing(f"/repos/{repo}/actions/workflows"), urgency=Urgency.DETAILS)


def read_app() -> Request:
    return Request("GET", "/app")


def read_hook() -> Request:
    return Request("GET", "/app/hook/config")


# Answers


class _Installation(msgspec.Struct):
    id: Id
    permissions: dict[str, str] = {}
    events: list[str] = []
    suspended_at: Time | None = None


class _Repository(msgspec.Struct):
    id: Id
    full_name: str
    default_branch: str
    archived: bool = False
    private: bool = False


class _File(msgspec.Struct):
    type: str
    path: str
    sha: str
    size: int = 0


class _Workflow(msgspec.Struct):
    path: str
    state: str


class _Workflows(msgspec.Struct):
    workflows: list[_Workflow]


class _App(msgspec.Struct):
    id: Id
    slug: str = ""
    html_url: str = ""
    client_id: str | None = None
    permissions: dict[str, str] = {}
    events: list[str] = []


class _Hook(msgspec.Struct):
    url: str | None = None
    content_type: str | None = None
    insecure_ssl: str | float | None = None


def installation(response: Response) -> InstallationFacts:
    found = decode(response, _Installation)
    return InstallationFacts(
        installation_id=found.id,
        suspended=found.suspended_at is not None,
        permissions=found.permissions,
        events=tuple(found.events),
    )


def branch(response: Response) -> BranchFacts:
    found = decode(response, _Repository)
    return BranchFacts(
        repository_id=found.id,
        full_name=found.full_name,
        default_branch=found.default_branch,
        archived=found.archived,
        private=found.private,
    )


def files(response: Response) -> tuple[ListedFile, ...]:
    """The workflow files of a folder; GitHub looks only right in it, for these two endings."""
    found = decode(response, list[_File])
    wanted = (each for each in found if each.type == "file" and each.path.endswith((".yml", ".yaml")))
    return tuple(ListedFile(each.path, each.sha, each.size) for each in wanted)


def text(response: Response) -> str:
    if response.cut:
        raise OutsideRefused(f"the file is larger than {MAX_FILE_BYTES // 1024} KiB", status=413)
    return response.body.decode("utf-8", "replace")


def states(response: Response) -> dict[str, str]:
    return {each.path: each.state for each in decode(response, _Workflows).workflows}


def app(response: Response) -> AppFacts:
    found = decode(response, _App)
    return AppFacts(
        app_id=found.id,
        client_id=found.client_id,
        slug=found.slug,
        html_url=found.html_url,
        permissions=found.permissions,
        events=tuple(found.events),
        said_at=said_at(response),
    )


def hook(response: Response) -> HookFacts:
    found = decode(response, _Hook)
    return HookFacts(
        url=found.url or "",
        content_type=found.content_type or "form",
        checks_tls=str(found.insecure_ssl or "0") in {"0", "0.0"},
    )


def said_at(response: Response) -> datetime | None:
    """The time on the other side's clock, to the second."""
    try:
        return parsedate_to_datetime(response.headers.get("date", "")).astimezone(UTC)
    except ValueError:
        return None
