"""The closed set of webhook events that the relay knows; everything else is `UnusedEvent` with a reason.

Only the fields that decisions need; the raw body is kept beside them for the dispatch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType

from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun
from crcr.decide.in_tree.checks import InTreeCheck
from crcr.decide.model import RepoName
from crcr.decide.pairs.depends_on import PullReference


@dataclass(frozen=True, slots=True)
class PullRequestEvent:
    upstream: RepoName
    repository_id: int
    action: str
    number: int
    head_sha: str
    before: str | None
    """The previous head of a `synchronize`; None for other actions."""
    base_ref: str
    updated_at: datetime
    is_open: bool
    merged: bool
    draft: bool
    labels: tuple[str, ...]
    title: str
    author: str
    author_association: str
    installation_id: int | None
    default_branch: str | None = None
    """The repository's default branch, where the webhook contains it."""
    base_sha: str | None = None
    """The base branch's commit that the webhook names: its newest one when GitHub last compared both."""
    changes_base: bool = False
    """An `edited` event whose `changes` contain the base."""
    merge_commit_sha: str | None = None
    """The base branch's commit that a merged pull request became; None for others."""
    opened_at: datetime | None = None
    """When it was opened, where the webhook contains it."""
    downstream_note: str | None = None
    """The paragraph for downstreams in its text, cut; None where it has none."""
    depends_on: tuple[PullReference, ...] = ()
    """The pull requests that its text depends on."""


@dataclass(frozen=True, slots=True)
class PushedCommit:
    """A commit of a push, as far as its payload describes it."""

    sha: str
    title: str = ""
    """The first line of its message, cut."""
    number: int | None = None
    """The pull request that its message says it merges."""
    reverts: str | None = None
    """The commit that its message says it reverts."""
    paths: tuple[str, ...] = ()
    """The files that it adds, changes or removes."""


@dataclass(frozen=True, slots=True)
class PushEvent:
    upstream: RepoName
    repository_id: int
    ref: str
    before: str
    after: str
    deleted: bool
    changed_paths: frozenset[str]
    """Paths named in the payload's commits (GitHub lists at most 2,048 commits)."""
    installation_id: int | None
    default_branch: str | None = None
    pushed_at: datetime | None = None
    commits: tuple[PushedCommit, ...] = ()
    """Its commits, oldest first, as far as the payload lists them."""
    head_commit: str | None = None
    """The commit that `ref` names after the push; `after` of an annotated tag is the tag object."""


@dataclass(frozen=True, slots=True)
class InstalledRepository:
    repository_id: int
    name: RepoName


@dataclass(frozen=True, slots=True)
class InstallationEvent:
    """`installation` (created, deleted, suspend, unsuspend, new_permissions_accepted)."""

    action: str
    installation_id: int
    account: str
    repositories: tuple[InstalledRepository, ...]
    reads_actions: bool | None = None
    """Whether the installation's permissions include reading Actions; None where the webhook has none."""


@dataclass(frozen=True, slots=True)
class InstallationRepositoriesEvent:
    action: str
    installation_id: int
    account: str
    added: tuple[InstalledRepository, ...]
    removed: tuple[InstalledRepository, ...]
    reads_actions: bool | None = None


@dataclass(frozen=True, slots=True)
class RepositoryEvent:
    """`repository` renamed or transferred: the same id under a new name; or edited: the current name."""

    action: str
    repository_id: int
    old_name: RepoName | None
    new_name: RepoName
    installation_id: int | None
    default_branch: str | None = None

    @property
    def repository(self) -> RepoName:
        return self.new_name


@dataclass(frozen=True, slots=True)
class MergeGroupEvent:
    """`merge_group` (checks_requested, destroyed): a commit made by the merge queue that needs checks."""

    upstream: RepoName
    repository_id: int
    action: str
    head_sha: str
    head_ref: str
    base_sha: str
    base_ref: str
    installation_id: int | None
    default_branch: str | None = None
    merged: bool = False
    """`destroyed` after a merge; the other reasons are `invalidated` and `dequeued`."""


@dataclass(frozen=True, slots=True)
class CheckRunEvent:
    """`check_run` rerequested (Re-run of one check) or requested_action (one of its buttons, by `identifier`)."""

    upstream: RepoName
    repository_id: int
    action: str
    head_sha: str
    name: str
    check_run_id: int
    external_id: str | None
    identifier: str | None
    app_id: int | None
    sender: str
    installation_id: int | None


@dataclass(frozen=True, slots=True)
class CheckSuiteEvent:
    """`check_suite` rerequested: Re-run all checks of a commit."""

    upstream: RepoName
    repository_id: int
    head_sha: str
    app_id: int | None
    sender: str
    installation_id: int | None


@dataclass(frozen=True, slots=True)
class IssueCommentEvent:
    """`issue_comment` created on a pull request, with at least one line that begins with `/crcr`."""

    upstream: RepoName
    repository_id: int
    number: int
    comment_id: int
    author: str
    author_is_person: bool
    """False for bots, Apps and deleted accounts, whose commands are ignored."""
    body: str
    created_at: datetime
    installation_id: int | None


@dataclass(frozen=True, slots=True)
class IssueClosedEvent:
    """`issues` closed, in any repository where the App is installed."""

    repository: RepoName
    repository_id: int
    number: int
    closed_at: datetime | None
    installation_id: int | None


@dataclass(frozen=True, slots=True)
class WorkflowRunEvent:
    """`workflow_run` of a downstream where the App is installed: GitHub's own view of a run."""

    repository: RepoName
    repository_id: int
    run: ActionsRun
    installation_id: int | None
    default_branch: str | None = None


@dataclass(frozen=True, slots=True)
class WorkflowJobEvent:
    """`workflow_job` of a downstream where the App is installed: GitHub's own view of a job."""

    repository: RepoName
    repository_id: int
    run_id: int
    job: ActionsJob
    installation_id: int | None
    default_branch: str | None = None


@dataclass(frozen=True, slots=True)
class InTreeCheckEvent:
    """`check_run` created or completed, by any App, or a commit's `status`: a result of a repository's own CI."""

    upstream: RepoName
    repository_id: int
    head_sha: str
    check: InTreeCheck
    client_id: str | None
    """The App's other id, where the webhook has it."""
    installation_id: int | None

    def is_made_by(self, app: str) -> bool:
        """Whether the App with this id, or client id, made it."""
        return app in {str(self.check.app_id), self.client_id}


@dataclass(frozen=True, slots=True)
class PingEvent:
    zen: str


@dataclass(frozen=True, slots=True)
class UnusedEvent:
    """Authentic and well-formed, but the relay does nothing with it."""

    reason: str


DispatchedEvent = PullRequestEvent | PushEvent | MergeGroupEvent
"""Events that are dispatched to downstreams."""
PeopleRequest = CheckRunEvent | CheckSuiteEvent | IssueCommentEvent
"""What people request from the relay on GitHub: a re-run, a button, a comment."""
WorkflowEvent = WorkflowRunEvent | WorkflowJobEvent
"""Webhooks about a downstream's workflow runs and jobs."""
DownstreamEvent = WorkflowRunEvent | WorkflowJobEvent | RepositoryEvent
"""Webhooks that also contain a downstream's default branch."""
Event = (
    DispatchedEvent
    | PeopleRequest
    | WorkflowEvent
    | InTreeCheckEvent
    | InstallationEvent
    | InstallationRepositoriesEvent
    | RepositoryEvent
    | IssueClosedEvent
    | PingEvent
    | UnusedEvent
)

USED_ACTIONS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "pull_request": frozenset(
            {
                "opened",
                "reopened",
                "synchronize",
                "closed",
                "labeled",
                "unlabeled",
                "ready_for_review",
                "converted_to_draft",
                "edited",
            }
        ),
        "merge_group": frozenset({"checks_requested", "destroyed"}),
        "check_run": frozenset({"created", "completed", "rerequested", "requested_action"}),
        "check_suite": frozenset({"rerequested"}),
        "issue_comment": frozenset({"created"}),
        "issues": frozenset({"closed"}),
        "workflow_run": frozenset({"requested", "in_progress", "completed"}),
        "workflow_job": frozenset({"queued", "in_progress", "completed"}),
        "installation": frozenset({"created", "deleted", "suspend", "unsuspend", "new_permissions_accepted"}),
        "installation_repositories": frozenset({"added", "removed"}),
        "repository": frozenset({"renamed", "transferred", "edited"}),
    }
)
"""For events that have actions, the actions that the relay handles."""
