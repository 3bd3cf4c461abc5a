"""What GitHub said of a downstream's set-up when it was asked: installation, rights, default branch, workflows.

Only what findings are made from is kept: no file's content. None always means that it could not be found out.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from crcr.decide.github.relay_pins import Pinning

RIGHTS_IN_ORDER = ("read", "write", "admin")


def grants(permissions: Mapping[str, str], name: str, right: str) -> bool:
    """Whether an installation's permissions hold this right, or one that includes it."""
    given = permissions.get(name)
    return given in RIGHTS_IN_ORDER and RIGHTS_IN_ORDER.index(given) >= RIGHTS_IN_ORDER.index(right)


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallationFacts:
    """The App's installation on one repository."""

    installation_id: int
    suspended: bool = False
    permissions: Mapping[str, str] = field(default_factory=dict)
    events: tuple[str, ...] = ()

    def grants(self, name: str, right: str) -> bool:
        return grants(self.permissions, name, right)

    @property
    def reads_actions(self) -> bool:
        return not self.suspended and self.grants("actions", "read")


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchFacts:
    """A repository and the branch whose workflows GitHub runs for a dispatch."""

    repository_id: int
    full_name: str
    default_branch: str
    archived: bool = False
    private: bool = False


@dataclass(frozen=True, slots=True)
class ListedFile:
    path: str
    sha: str
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowFacts:
    """One workflow file; `dispatch_types` is None where it does not listen, and empty where it takes every type."""

    path: str
    sha: str
    dispatch_types: tuple[str, ...] | None = None
    id_token: bool = False
    """Some job, or the whole workflow, may ask for an OIDC token."""
    calls_others: bool = False
    """It hands on to reusable workflows, which were not read."""
    reports: bool = False
    """It seems to use the reporter or an action around it."""
    bridge_to: str | None = None
    """The CI whose builds it starts and which then reports, in the file's own word; empty where it is no bridge."""
    pinning: Pinning | None = None
    """How its reporting steps pin their relays; None where an earlier release did not look for that."""
    pins: tuple[str, ...] = ()
    """Each `address audience`, as `decide.github.relay_pins` writes them."""
    state: str | None = None
    """GitHub's word: active, disabled_manually, disabled_inactivity…"""
    problem: str | None = None
    """Why nothing could be read from it."""

    def takes(self, event_type: str) -> bool:
        return self.dispatch_types is not None and (
            not self.dispatch_types or event_type in self.dispatch_types
        )

    @property
    def listens(self) -> bool:
        return self.dispatch_types is not None

    @property
    def runs(self) -> bool:
        """Whether GitHub starts it, as far as is known."""
        return self.state in {None, "active"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """`installed` is None where GitHub could not be asked, which `trouble` explains."""

    installed: bool | None
    installation: InstallationFacts | None = None
    branch: BranchFacts | None = None
    workflows: tuple[WorkflowFacts, ...] | None = None
    files_left: int = 0
    """Workflow files beyond those that were read."""
    trouble: str | None = None
    other_id: int | None = None
    """The id of the repository that has the name now, where it is not the bound one: nothing else of it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    """The App as GitHub knows it; `said_at` is the time on GitHub's clock when it said so."""

    app_id: int
    client_id: str | None
    slug: str
    html_url: str
    permissions: Mapping[str, str]
    events: tuple[str, ...]
    said_at: datetime | None


@dataclass(frozen=True, slots=True)
class HookFacts:
    url: str
    content_type: str
    checks_tls: bool
