"""The few fields of GitHub's webhook bodies that we read, as msgspec structs.

Narrow on purpose: a sixth of GitHub's own published examples break their own schema, and new fields appear without notice.
Fields that may be absent or null in real deliveries have a default; all others are required.
"""

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct, field

Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Sha = Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")]
# Git allows neither control characters nor spaces in a ref's name.
Ref = Annotated[str, Meta(pattern=r"\A[^\x00-\x20\x7f]{1,1024}\Z")]
Time = datetime | int


class ActionBody(Struct):
    """Any event; `action` may be absent (`push`) or, in an unknown event, of any type."""

    action: object = None


class RepositoryPart(Struct):
    id: Id
    full_name: str
    default_branch: object = None
    """Of any type: no event is refused because of it."""


class IdPart(Struct):
    """An installation or an App, of which only the id is read."""

    id: Id


class PresentPart(Struct):
    """An object of which only the presence matters."""


class AccountPart(Struct):
    """A user or organization has a login, an enterprise a slug."""

    login: str | None = None
    slug: str | None = None


class LabelPart(Struct):
    name: str


class HeadPart(Struct):
    sha: Sha


class BasePart(Struct):
    ref: Ref
    sha: object = None
    """Of any type: no event is refused because of it."""


class PullPart(Struct):
    number: Number
    state: str
    title: str
    updated_at: Time
    head: HeadPart
    base: BasePart
    user: AccountPart | None = None
    draft: bool | None = None
    merged: bool | None = None
    merge_commit_sha: object = None
    """Of any type: no event is refused because of it."""
    labels: list[LabelPart] | None = None
    author_association: str | None = None
    created_at: object = None
    body: object = None
    """Of any type, as the other."""


class PullChanges(Struct):
    """The changes of an `edited`."""

    base: object = None
    """Only its presence matters; the new base is in the pull request itself."""


class PullRequestBody(Struct):
    action: str
    pull_request: PullPart
    repository: RepositoryPart
    before: Sha | None = None
    changes: PullChanges | None = None
    installation: IdPart | None = None


class CommitPart(Struct):
    id: object = None
    message: object = None
    """Of any type, as the id: no push is refused because of them."""
    added: list[str] | None = None
    removed: list[str] | None = None
    modified: list[str] | None = None


class PushedRepositoryPart(RepositoryPart):
    pushed_at: object = None
    """A number of seconds in this event, text elsewhere; of any type, as above."""


class PushBody(Struct):
    ref: Ref
    before: Sha
    after: Sha
    repository: PushedRepositoryPart
    deleted: bool = False
    commits: list[CommitPart] | None = None
    installation: IdPart | None = None


class MergeGroupPart(Struct):
    head_sha: Sha
    head_ref: Ref
    base_sha: Sha
    base_ref: Ref


class MergeGroupBody(Struct):
    action: str
    merge_group: MergeGroupPart
    repository: RepositoryPart
    reason: str | None = None
    installation: IdPart | None = None


class AppPart(IdPart):
    client_id: object = None
    """Of any type: no event is refused because of it."""


class CheckRunPart(Struct):
    """The fields of any type are read for in-tree checks only: no re-run or button is refused because of them."""

    id: Id
    head_sha: Sha
    name: str
    external_id: str | None = None
    app: AppPart | None = None
    status: object = None
    conclusion: object = None
    completed_at: object = None
    html_url: object = None
    details_url: object = None


class ButtonPart(Struct):
    identifier: str | None = None


class CheckRunBody(Struct):
    action: str
    check_run: CheckRunPart
    repository: RepositoryPart
    requested_action: ButtonPart | None = None
    sender: AccountPart | None = None
    installation: IdPart | None = None


class StatusBody(Struct):
    id: Id
    sha: Sha
    context: str
    state: str
    repository: RepositoryPart
    target_url: object = None
    created_at: object = None
    installation: IdPart | None = None


class CheckSuitePart(Struct):
    head_sha: Sha
    app: IdPart | None = None


class CheckSuiteBody(Struct):
    action: str
    check_suite: CheckSuitePart
    repository: RepositoryPart
    sender: AccountPart | None = None
    installation: IdPart | None = None


class IssuePart(Struct):
    """An issue; GitHub's pull requests are issues with a `pull_request`."""

    number: Number
    pull_request: PresentPart | None = None


class CommenterPart(AccountPart):
    type: str | None = None


class CommentPart(Struct):
    id: Id
    created_at: Time
    body: str | None = None
    user: CommenterPart | None = None
    performed_via_github_app: PresentPart | None = None


class IssueCommentBody(Struct):
    action: str
    issue: IssuePart
    comment: CommentPart
    repository: RepositoryPart
    installation: IdPart | None = None


class ClosedIssuePart(Struct):
    number: Number
    closed_at: Time | None = None


class IssuesBody(Struct):
    action: str
    issue: ClosedIssuePart
    repository: RepositoryPart
    installation: IdPart | None = None


class WorkflowPart(Struct):
    name: str | None = None
    path: str | None = None


class RunPart(Struct):
    id: Id
    status: str
    event: str
    created_at: Time
    run_attempt: Number | None = None
    conclusion: str | None = None
    display_title: str | None = None
    name: str | None = None
    path: str | None = None


class WorkflowRunBody(Struct):
    action: str
    workflow_run: RunPart
    repository: RepositoryPart
    workflow: WorkflowPart | None = None
    installation: IdPart | None = None


class JobPart(Struct):
    id: Id
    run_id: Id
    name: str
    status: str
    run_attempt: Number | None = None
    conclusion: str | None = None
    started_at: Time | None = None
    completed_at: Time | None = None
    check_run_url: str | None = None


class WorkflowJobBody(Struct):
    action: str
    workflow_job: JobPart
    repository: RepositoryPart
    installation: IdPart | None = None


class InstallationPart(Struct):
    id: Id
    account: AccountPart | None = None
    permissions: dict[str, str] | None = None


class InstallationBody(Struct):
    action: str
    installation: InstallationPart
    repositories: list[RepositoryPart] | None = None


class InstallationRepositoriesBody(Struct):
    action: str
    installation: InstallationPart
    repositories_added: list[RepositoryPart] | None = None
    repositories_removed: list[RepositoryPart] | None = None


class OldName(Struct):
    old: str = field(name="from")


class RenamedPart(Struct):
    name: OldName | None = None


class OldOwner(Struct):
    user: AccountPart | None = None
    organization: AccountPart | None = None


class OwnerPart(Struct):
    old: OldOwner | None = field(name="from", default=None)


class ChangesPart(Struct):
    repository: RenamedPart | None = None
    owner: OwnerPart | None = None


class RepositoryBody(Struct):
    action: str
    repository: RepositoryPart
    changes: ChangesPart | None = None
    installation: IdPart | None = None


class PingBody(Struct):
    zen: str = ""
