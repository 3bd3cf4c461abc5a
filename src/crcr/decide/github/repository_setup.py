"""How a downstream repository is set up: the App's installation and permissions, its workflows and their relay pins.

Only what findings are made from is kept: no file contents. None always means that the fact could not be read.

Workflows pin the relays that they report to, one per line: callback address, a space, audience. The reporter requests
tokens for pinned audiences only and sends them to their addresses only, because everyone with write access to a
repository can send it a dispatch. Pins are parsed here by the reporter's rules.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import MappingProxyType

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.model import Conclusion, DispatchState, JobState, Level, RepoName
from crcr.decide.views.overview import DispatchAnswer


class Pinning(StrEnum):
    """How the reporting steps of one file pin their relays; the worst of them counts, the last member is the worst."""

    NONE = "none"
    """No step of the file reports."""
    PINNED = "pinned"
    UNKNOWN = "unknown"
    """By an expression, which is not evaluated."""
    FOREIGN = "foreign"
    """A third-party action reports, which may ignore pins."""
    MISSING = "missing"
    EVENT = "event"
    """By an expression over the event: the dispatch itself would choose its relay."""

    @classmethod
    def worst(cls, pinnings: "Iterable[Pinning]") -> "Pinning":
        return max(pinnings, key=list(cls).index, default=cls.NONE)


def callback_address(address: str) -> str:
    """Return the address for comparison: without a trailing slash, and with the path added to a bare host."""
    plain = address.removesuffix("/")
    return f"{plain}/github/callback" if re.fullmatch(r"https?://[^/?#]+", plain) else plain


def read_pins(text: str) -> tuple[str, ...]:
    """Return each pair as `address audience`; a line that is no pair pins nothing."""
    pairs = [line.split(None, 1) for line in text.splitlines()]
    pins = (f"{callback_address(pair[0])} {pair[1].strip()}" for pair in pairs if len(pair) == 2)
    return tuple(dict.fromkeys(pins))


def relay_pin(public_url: str, audience: str) -> str:
    """Return the relay as workflows pin it."""
    return f"{public_url.rstrip('/')}/github/callback {audience}"


RIGHTS_IN_ORDER = ("read", "write", "admin")


def grants(permissions: Mapping[str, str], name: str, right: str) -> bool:
    """Whether an installation's permissions include this right."""
    granted = permissions.get(name)
    return granted in RIGHTS_IN_ORDER and RIGHTS_IN_ORDER.index(granted) >= RIGHTS_IN_ORDER.index(right)


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
    """A repository and its default branch, whose workflows GitHub runs for a dispatch."""

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
    """One workflow file; `dispatch_types` is None without a `repository_dispatch` trigger, and empty for every type."""

    path: str
    sha: str
    dispatch_types: tuple[str, ...] | None = None
    id_token: bool = False
    """A job, or the whole workflow, may request an OIDC token."""
    calls_others: bool = False
    """It calls reusable workflows, which were not read."""
    reports: bool = False
    """It seems to use the reporter, or an action that contains it."""
    requests_tests: bool | None = None
    """A person can start it in the Actions tab, and it then requests a test dispatch; None in rows of an earlier release."""
    bridge_to: str | None = None
    """The CI whose builds it starts and which then reports, as the file names it; empty where it is no bridge."""
    pinning: Pinning | None = None
    """How its reporting steps pin their relays; None in rows of an earlier release."""
    pins: tuple[str, ...] = ()
    """Each as `address audience`."""
    state: str | None = None
    """GitHub's state: active, disabled_manually, disabled_inactivity…"""
    problem: str | None = None
    """Why it could not be read."""

    def takes(self, event_type: str) -> bool:
        return self.dispatch_types is not None and (
            not self.dispatch_types or event_type in self.dispatch_types
        )

    @property
    def listens(self) -> bool:
        return self.dispatch_types is not None

    @property
    def runs(self) -> bool:
        """Whether GitHub runs it, as far as is known."""
        return self.state in {None, "active"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """`installed` is None where GitHub could not be read, which `trouble` explains."""

    installed: bool | None
    installation: InstallationFacts | None = None
    branch: BranchFacts | None = None
    workflows: tuple[WorkflowFacts, ...] | None = None
    files_left: int = 0
    """Workflow files beyond those that were read."""
    trouble: str | None = None
    other_id: int | None = None
    """The id of the repository that has the name now, where it is not the bound one; nothing else of it is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppFacts:
    """The App as read from GitHub; `server_time` is GitHub's time of the answer."""

    app_id: int
    client_id: str | None
    slug: str
    html_url: str
    permissions: Mapping[str, str]
    events: tuple[str, ...]
    server_time: datetime | None


@dataclass(frozen=True, slots=True)
class HookFacts:
    url: str
    content_type: str
    checks_tls: bool


PERMISSIONS_ALWAYS: Mapping[str, str] = MappingProxyType(
    {"metadata": "read", "contents": "write", "pull_requests": "write"}
)
PERMISSIONS_FOR_CHECKS: Mapping[str, str] = MappingProxyType(
    {"checks": "write", "statuses": "write", "actions": "write", "merge_queues": "read"}
)
"""Needed once an entry is at L3 or L4."""
PERMISSIONS_FOR_KNOWN_FAILURES: Mapping[str, str] = MappingProxyType({"issues": "read"})
"""Without it a known failure ends by its time only."""
EVENTS_ALWAYS = ("pull_request", "push", "repository")
EVENTS_FOR_CHECKS = (
    "merge_group", "check_run", "check_suite", "issue_comment", "workflow_run", "workflow_job",
)  # fmt: skip
EVENTS_FOR_KNOWN_FAILURES = ("issues",)
"""Without it a closed issue is noticed within an hour."""
EVENTS_FOR_IN_TREE = ("status",)
"""Without it in-tree results are the check runs alone, which come by `check_run`."""
MOST_NAME_CHARACTERS = 34
"""Of an App's name at GitHub."""


def app_manifest(*, name: str, public_url: str, redirect_url: str, public: bool = True) -> dict[str, object]:
    """Return the manifest from which GitHub creates the relay's App: every permission and event that it may need.

    A public App can be installed by the downstreams' owners, too. `docs/examples/app-manifest.json` is made by this.
    """
    address = public_url.rstrip("/")
    return {
        "name": name,
        "url": f"{address}/crcr",
        "hook_attributes": {"url": f"{address}/github/webhook", "active": True},
        "redirect_url": redirect_url,
        "public": public,
        "default_permissions": {
            **PERMISSIONS_ALWAYS,
            **PERMISSIONS_FOR_CHECKS,
            **PERMISSIONS_FOR_KNOWN_FAILURES,
        },
        "default_events": [
            *EVENTS_ALWAYS,
            *EVENTS_FOR_CHECKS,
            *EVENTS_FOR_KNOWN_FAILURES,
            *EVENTS_FOR_IN_TREE,
        ],
    }


def missing_permissions(granted: Mapping[str, str], required: Mapping[str, str]) -> tuple[str, ...]:
    """Return `name: right` for each permission that is missing or too weak."""
    rank = {name: index for index, name in enumerate(RIGHTS_IN_ORDER)}
    return tuple(
        f"{name}: {right}"
        for name, right in required.items()
        if rank.get(granted.get(name, ""), -1) < rank[right]
    )


@dataclass(frozen=True, slots=True)
class Shortfall:
    """The permissions that an installation lacks, and the consequence."""

    missing: tuple[str, ...]
    meaning: str
    is_fatal: bool
    """Nothing can be sent, or the gate cannot be judged; otherwise the relay works with less."""


def downstream_shortfall(granted: Mapping[str, str], entry: AllowlistEntry) -> Shortfall | None:
    """Compare the App's permissions on a downstream with those that its level needs; None where nothing is missing."""
    actions = {"actions": "write"} if entry.level >= Level.L3 else {}
    missing = missing_permissions(granted, {"contents": "write", **actions})
    if not missing:
        return None
    if missing_permissions(granted, {"contents": "write"}):
        text = "The App may not write Contents there, without which GitHub takes no repository_dispatch."
        return Shortfall(missing, text, is_fatal=True)
    if missing_permissions(granted, {"actions": "read"}):
        text = "The App may not read Actions there, so results cannot be held against GitHub's own view"
        if entry.level >= Level.L4 and not entry.names_jobs:
            advice = "name its `jobs` literally, or grant Actions: read"
            return Shortfall(
                missing, f"{text}, and the gate cannot know when all jobs are over: {advice}.", is_fatal=True
            )
        return Shortfall(missing, f"{text}.", is_fatal=False)
    text = "The App may not write Actions there: re-runs become fresh dispatches."
    return Shortfall(missing, text, is_fatal=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class LastDispatch:
    delivery: str
    event: str
    state: DispatchState
    created_at: datetime
    sent_at: datetime | None = None
    answer: DispatchAnswer | None = None
    reason: str | None = None
    error: str | None = None
    """The error of the last attempt to send it, which only administrators see in full."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastCallback:
    """The most recently reported job."""

    at: datetime
    job_name: str
    event: str
    state: JobState
    conclusion: Conclusion | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LastRefusal:
    """`run_id` and `job_name` are text of the caller's."""

    at: datetime
    code: str
    detail: str
    hint: str | None = None
    run_id: str | None = None
    job_name: str | None = None
    settled: bool = False
    """A later report of the same job was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupFacts:
    """Facts about one downstream's setup with one upstream. `entry` is None for unlisted and for hidden backends alike."""

    upstream: RepoName
    repository: RepoName
    entry: AllowlistEntry | None = None
    has_allowlist: bool = True
    allowlist_source: str | None = None
    for_admin: bool = False
    paused_at: datetime | None = None
    suspended_at: datetime | None = None
    repository_id: int | None = None
    confirmed: bool = False
    """The id was read from GitHub, not from a first caller's token."""
    alarm: str | None = None
    asked_at: datetime | None = None
    inspected_at: datetime | None = None
    inspection: Inspection | None = None
    last_dispatch: LastDispatch | None = None
    """The newest dispatch that is no test."""
    last_test: LastDispatch | None = None
    waiting: int = 0
    parked: int = 0
    first_sent_at: datetime | None = None
    """When the first dispatch that is no test was sent; None once there is a report."""
    first_run_at: datetime | None = None
    """When its run began, if GitHub has shown an unfinished one; None once there is a report."""
    last_callback: LastCallback | None = None
    last_refusal: LastRefusal | None = None
    """The newest unsettled refusal, else the newest."""
    silent: bool = False
    """It did not answer dispatches that it should have answered."""
    last_nightly: LastCallback | None = None

    @property
    def is_being_inspected(self) -> bool:
        return self.asked_at is not None and (self.inspected_at is None or self.inspected_at < self.asked_at)
