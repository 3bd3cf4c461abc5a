"""The App's installation on a repository, its branch and workflow files; and the App itself with its webhook.

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
from crcr.decide.github.requests_and_answers import Urgency
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused
from crcr.github.api.request_response import (
    RAW_TYPE,
    Id,
    Request,
    Response,
    Time,
    decode,
    list_first_page,
    quote_segment,
)

WORKFLOWS = ".github/workflows"
MAX_FILE_BYTES = 256 * 1024

# Requests


def read_branch(repo: RepoName) -> Request:
    return Request("GET", f"/repos/{repo}", urgency=Urgency.DETAILS)


def list_workflow_files(repo: RepoName, ref: str) -> Request:
    return Request(
        "GET", f"/repos/{repo}/contents/{WORKFLOWS}?ref={quote(ref, safe='')}", urgency=Urgency.DETAILS
    )


def read_workflow_file(repo: RepoName, path: str, ref: str) -> Request:
    name = quote_segment(path.rpartition("/")[2])
    url = f"/repos/{repo}/contents/{WORKFLOWS}/{name}?ref={quote(ref, safe='')}"
    return Request("GET", url, accept=RAW_TYPE, most_bytes=MAX_FILE_BYTES, urgency=Urgency.DETAILS)


def list_workflows(repo: RepoName) -> Request:
    return replace(list_first_page(f"/repos/{repo}/actions/workflows"), urgency=Urgency.DETAILS)


def read_app() -> Request:
    return Request("GET", "/app")


def read_hook() -> Request:
    return Request("GET", "/app/hook/config")


# Responses


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


def parse_installation(response: Response) -> InstallationFacts:
    installed = decode(response, _Installation)
    return InstallationFacts(
        installation_id=installed.id,
        suspended=installed.suspended_at is not None,
        permissions=installed.permissions,
        events=tuple(installed.events),
    )


def parse_branch(response: Response) -> BranchFacts:
    repo = decode(response, _Repository)
    return BranchFacts(
        repository_id=repo.id,
        full_name=repo.full_name,
        default_branch=repo.default_branch,
        archived=repo.archived,
        private=repo.private,
    )


def parse_files(response: Response) -> tuple[ListedFile, ...]:
    """Return the workflow files of the folder; GitHub ignores its subfolders and other extensions."""
    entries = decode(response, list[_File])
    workflows = (file for file in entries if file.type == "file" and file.path.endswith((".yml", ".yaml")))
    return tuple(ListedFile(file.path, file.sha, file.size) for file in workflows)


def parse_text(response: Response) -> str:
    if response.cut:
        raise OutsideRefused(f"the file is larger than {MAX_FILE_BYTES // 1024} KiB", status=413)
    return response.body.decode("utf-8", "replace")


def parse_states(response: Response) -> dict[str, str]:
    return {workflow.path: workflow.state for workflow in decode(response, _Workflows).workflows}


def parse_app(response: Response) -> AppFacts:
    app = decode(response, _App)
    return AppFacts(
        app_id=app.id,
        client_id=app.client_id,
        slug=app.slug,
        html_url=app.html_url,
        permissions=app.permissions,
        events=tuple(app.events),
        server_time=github_time(response),
    )


def parse_hook(response: Response) -> HookFacts:
    config = decode(response, _Hook)
    return HookFacts(
        url=config.url or "",
        content_type=config.content_type or "form",
        checks_tls=str(config.insecure_ssl or "0") in {"0", "0.0"},
    )


def github_time(response: Response) -> datetime | None:
    """Return the time of GitHub's clock, to the second."""
    try:
        return parsedate_to_datetime(response.headers.get("date", "")).astimezone(UTC)
    except ValueError:
        return None
