"""Records of the simulated GitHub: accounts, repositories, commits, pull requests, issues, comments, merge groups,
installations, check runs, webhook deliveries, dispatches and API calls; and the roles of people in a repository.

Plain data; `world.World` holds them. Workflow runs are in `actions.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any

from github_sim.world.actions import Workflow
from github_sim.world.git_content import tree_sha

Json = dict[str, Any]
NO_COMMIT = "0" * 40
# What the App has subscribed to; installation events come to every App.
APP_EVENTS = (
    "check_run", "check_suite", "issue_comment", "issues", "merge_group", "pull_request",
    "push", "repository", "status", "workflow_job", "workflow_run",
)  # fmt: skip


@dataclass
class Account:
    id: int
    login: str
    type: str = "User"


@dataclass(frozen=True)
class GitCommit:
    sha: str
    message: str
    author: Account
    committed_at: datetime
    parents: tuple[str, ...]
    tree: Mapping[str, bytes]
    added: tuple[str, ...] = ()
    modified: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()

    @cached_property
    def tree_sha(self) -> str:
        return tree_sha(self.tree)


@dataclass
class Repository:
    id: int
    owner: Account
    name: str
    created_at: datetime
    updated_at: datetime
    private: bool = False
    default_branch: str = "main"
    description: str = ""
    parent_id: int | None = None
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, GitCommit] = field(default_factory=dict)
    workflows: list[Workflow] = field(default_factory=list)
    # Paths of workflows that somebody has disabled.
    disabled_workflows: set[str] = field(default_factory=set)
    # Logins in lower case, with their role.
    roles: dict[str, str] = field(default_factory=dict)
    required_checks: tuple[str, ...] = ()
    # Whether the App hears of runs and jobs here by itself.
    sends_run_webhooks: bool = False
    next_number: int = 1
    next_run_number: int = 1

    @property
    def full_name(self) -> str:
        return f"{self.owner.login}/{self.name}"

    @property
    def head_sha(self) -> str:
        return self.branches[self.default_branch]


@dataclass
class Installation:
    id: int
    account: Account
    permissions: dict[str, str]
    created_at: datetime
    updated_at: datetime
    repository_ids: set[int] = field(default_factory=set)
    suspended_at: datetime | None = None
    events: tuple[str, ...] = APP_EVENTS


@dataclass(frozen=True)
class InstallationToken:
    """A token as GitHub remembers it; its text is the key it is found by."""

    token: str
    installation_id: int
    expires_at: datetime
    repository_ids: frozenset[int] | None
    permissions: Mapping[str, str]


@dataclass
class WebhookDelivery:
    """One attempt to deliver a webhook: a line of the App's delivery log. A redelivery shares the GUID."""

    id: int
    guid: str
    event: str
    action: str | None
    delivered_at: datetime
    payload: bytes
    headers: dict[str, str]
    installation_id: int | None
    repository_id: int | None
    redelivery: bool = False
    duration_s: float = 0.0
    status: str = "pending"
    status_code: int = 0
    answer_headers: dict[str, str] = field(default_factory=dict)
    answer_body: str = ""

    @property
    def ok(self) -> bool:
        return 200 <= self.status_code < 300


@dataclass(frozen=True)
class Review:
    """Somebody's review of a pull request's head; `state` is APPROVED, CHANGES_REQUESTED or COMMENTED."""

    id: int
    author: Account
    state: str
    commit_id: str
    submitted_at: datetime


@dataclass
class PullRequest:
    id: int
    number: int
    repository_id: int
    title: str
    body: str | None
    author: Account
    author_association: str
    head_repository_id: int
    head_ref: str
    head_sha: str
    base_ref: str
    base_sha: str
    created_at: datetime
    updated_at: datetime
    draft: bool = False
    state: str = "open"
    merged: bool = False
    merge_commit_sha: str | None = None
    closed_at: datetime | None = None
    labels: list[str] = field(default_factory=list)
    files: tuple[str, ...] = ()
    commits: int = 0
    reviews: list[Review] = field(default_factory=list)
    last_delivery: WebhookDelivery | None = None


@dataclass(frozen=True)
class Reaction:
    id: int
    content: str
    user: Account
    created_at: datetime


@dataclass
class Comment:
    id: int
    repository_id: int
    number: int
    body: str
    author: Account
    author_association: str
    created_at: datetime
    updated_at: datetime
    by_app: bool = False
    reactions: list[Reaction] = field(default_factory=list)
    last_delivery: WebhookDelivery | None = None


@dataclass
class Issue:
    id: int
    number: int
    repository_id: int
    title: str
    author: Account
    created_at: datetime
    updated_at: datetime
    state: str = "open"
    closed_at: datetime | None = None
    body: str | None = None
    by_app: bool = False
    last_delivery: WebhookDelivery | None = None


@dataclass
class MergeGroup:
    """A pull request in the merge queue; `state` is queued, merged, invalidated or dequeued."""

    repository_id: int
    number: int
    pull_sha: str
    head_sha: str
    head_ref: str
    base_sha: str
    base_ref: str
    created_at: datetime
    state: str = "queued"
    last_delivery: WebhookDelivery | None = None


@dataclass(frozen=True)
class RepositoryDispatch:
    """A `repository_dispatch` that was accepted with 204."""

    repository_id: int
    event_type: str
    client_payload: Json
    received_at: datetime
    installation_id: int | None
    size_bytes: int

    @property
    def delivery_id(self) -> str | None:
        found = self.client_payload.get("delivery_id")
        return found if isinstance(found, str) else None


@dataclass(frozen=True)
class OtherApp:
    """An App that is not the one under test."""

    id: int
    slug: str
    name: str


GITHUB_ACTIONS = OtherApp(15_368, "github-actions", "GitHub Actions")


@dataclass
class CheckRun:
    id: int
    repository_id: int
    head_sha: str
    name: str
    status: str = "queued"
    conclusion: str | None = None
    details_url: str | None = None
    external_id: str | None = None
    started_at: str | None = None
    completed_at: str | None = None
    output: Json = field(default_factory=dict)
    annotations: list[Json] = field(default_factory=list)
    actions: list[Json] = field(default_factory=list)
    # None for the App under test.
    app: OtherApp | None = None


@dataclass(frozen=True)
class Call:
    """One request to the simulated API, as it was answered (status 0: the answer was lost)."""

    method: str
    path: str
    route: str | None
    status: int
    installation_id: int | None
    body: bytes
    at: datetime


@dataclass(frozen=True)
class CallbackAnswer:
    """What the relay answered to one report of a simulated job (status 0: it did not answer)."""

    repository: str
    run_id: int
    attempt: int
    job: str
    report: str
    status: int
    code: str | None
    at: datetime


# Each role with the legacy permission that stands for it.
LEGACY_PERMISSIONS = {
    "none": "none",
    "read": "read",
    "triage": "read",
    "write": "write",
    "maintain": "write",
    "admin": "admin",
}


def role_of(repository: Repository, account: Account) -> str:
    if account is repository.owner:
        return "admin"
    everybody = "none" if repository.private else "read"
    return repository.roles.get(account.login.lower(), everybody)


def association_by_role(repository: Repository, account: Account) -> str:
    """The `author_association` that goes with a role."""
    if account is repository.owner:
        return "OWNER"
    given = repository.roles.get(account.login.lower(), "none")
    return {"none": "NONE", "read": "COLLABORATOR", "triage": "COLLABORATOR"}.get(given, "MEMBER")
