"""The few fields of GitHub's webhook bodies that we read, as msgspec structs.

Narrow on purpose: a sixth of GitHub's own published examples break their own schema, and new fields appear
without notice. What may be absent or null in real deliveries has a default here; the rest is required.
"""

from datetime import datetime
from typing import Annotated

from msgspec import Meta, Struct, field

Id = Annotated[int, Meta(ge=1, le=2**63 - 1)]
Number = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Sha = Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}(?:[0-9a-f]{24})?\Z")]
# Git allows neither control characters nor spaces in a ref's name.
Ref = Annotated[str, Meta(pattern=r"\A[^\x00-\x20\x7f]{1,1024}\Z")]


class ActionBody(Struct):
    """Any event at all; `action` may be absent (`push`) or, in a stranger's body, anything."""

    action: object = None


class RepositoryPart(Struct):
    id: Id
    full_name: str


class InstallationId(Struct):
    id: Id


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


class PullPart(Struct):
    number: Number
    state: str
    title: str
    updated_at: datetime | int
    head: HeadPart
    base: BasePart
    user: AccountPart | None = None
    draft: bool | None = None
    merged: bool | None = None
    labels: list[LabelPart] | None = None
    author_association: str | None = None


class PullRequestBody(Struct):
    action: str
    pull_request: PullPart
    repository: RepositoryPart
    before: Sha | None = None
    installation: InstallationId | None = None


class CommitPart(Struct):
    added: list[str] | None = None
    removed: list[str] | None = None
    modified: list[str] | None = None


class PushBody(Struct):
    ref: Ref
    before: Sha
    after: Sha
    repository: RepositoryPart
    deleted: bool = False
    commits: list[CommitPart] | None = None
    installation: InstallationId | None = None


class InstallationPart(Struct):
    id: Id
    account: AccountPart | None = None


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
    installation: InstallationId | None = None


class PingBody(Struct):
    zen: str = ""
