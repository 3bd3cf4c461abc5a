"""What the rooms need from each other, as narrow interfaces.

Each consumer declares only the calls it makes; `wiring.py` decides who answers them. Method names are
transitions of the domain, not operations on tables.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

from crcr.decide.checks.check_run import CheckContent
from crcr.decide.github.inspection import BranchFacts, InstallationFacts, ListedFile
from crcr.decide.github.values import (
    ActionsJob,
    ActionsRun,
    ChangedFiles,
    Comparison,
    FilePlace,
    FileText,
    FoundCheck,
    LogPage,
    PostedComment,
    PullFacts,
    RepositoryFacts,
    Role,
    Target,
)
from crcr.decide.model import RepoName
from crcr.decide.outbox.urgency import Urgency
from crcr.decide.report.identity import Identity
from crcr.decide.trace_steps import TraceStep


class Clock(Protocol):
    """Time as the relay sees it; tests move it by hand."""

    def now(self) -> datetime:
        """Return the present as an aware UTC time."""
        ...

    async def sleep(self, seconds: float) -> None: ...


async def no_lease() -> None:
    """Not under a lease: a page, a command or a duty calls."""


still_held: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("still_held", default=no_lease)
"""Raises `LeaseLost` when the effect that the current task works on has been taken over by another worker.

Awaited right before and right after each call to GitHub and each forward. A worker that was frozen just between this and the sending may
still send: a check that it wrote so is read again (`deliver.handlers.publish_checks`).
"""


class Trace(Protocol):
    """Follows a delivery from its webhook to the pages that are told of it."""

    def note(
        self,
        step: TraceStep,
        delivery: str,
        began_at: datetime,
        ended_at: datetime,
        *,
        downstream: str | None = None,
        **facts: str | int,
    ) -> None:
        """Note a step that is over. Never waits, never fails; `facts` are words of ours and ids, never others' text."""
        ...

    async def close(self) -> None: ...


class Untraced:
    """The trace that nobody asked for."""

    def note(
        self,
        step: TraceStep,
        delivery: str,
        began_at: datetime,
        ended_at: datetime,
        *,
        downstream: str | None = None,
        **facts: str | int,
    ) -> None: ...

    async def close(self) -> None: ...


class Verifier(Protocol):
    """Turns a bearer token into a proved identity, or raises `NotAuthentic`, `NotRegistered`, `KeysUnavailable`."""

    async def verify(self, unverified_token: str) -> Identity: ...


class Limits(Protocol):
    """Sliding windows. `take` counts one and raises `RateLimited` when the window is full."""

    async def take(self, scope: str, subject: str) -> None: ...

    async def check(self, scope: str, subject: str) -> None:
        """Raise `RateLimited` if the window is full, without counting."""
        ...


class GitHub(Protocol):
    """The calls that effects make. Failures are the `Outside…` errors of `errors.py`."""

    async def find_installation(self, repo: RepoName) -> int: ...

    async def read_repository(self, repo: RepoName, installation_id: int) -> RepositoryFacts: ...

    async def dispatch(self, target: Target, body: bytes) -> None: ...

    async def read_pull(self, repo: RepoName, number: int, installation_id: int) -> PullFacts: ...

    async def read_file(self, place: FilePlace, *, etag: str | None) -> FileText | None:
        """Return the file's text, or None when it still is what `etag` names."""
        ...


class Checks(Protocol):
    """An upstream's check runs; `urgency` says which calls go before while GitHub's limits leave too few."""

    async def create_check(
        self,
        where: Target,
        *,
        head_sha: str,
        name: str,
        external_id: str,
        shown: CheckContent,
        urgency: Urgency = Urgency.FIRST,
    ) -> int:
        """Return the check run's id; doing it twice makes two of the same name."""
        ...

    async def update_check(
        self, where: Target, check_run_id: int, shown: CheckContent, *, urgency: Urgency = Urgency.FIRST
    ) -> None:
        """Show something else; annotations are added to those that the check already has."""
        ...

    async def find_checks(
        self, where: Target, head_sha: str, name: str, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[FoundCheck, ...]:
        """Return the check runs of that name, other Apps' too."""
        ...


class Changes(Protocol):
    """What an upstream's pull requests and commits hold."""

    async def pull_files(self, where: Target, number: int) -> ChangedFiles: ...

    async def compare(self, where: Target, base: str, head: str) -> Comparison: ...

    async def commit_tree(self, where: Target, sha: str) -> str: ...

    async def commit_pulls(self, where: Target, sha: str) -> tuple[int, ...]:
        """Return the numbers of the open pull requests into this repository that the commit is part of."""
        ...


class History(Protocol):
    """Where commits stand in an upstream."""

    async def default_branch(self, where: Target) -> str: ...

    async def branches(self, where: Target, prefix: str) -> tuple[str, ...]:
        """Return the names of the branches that begin so."""
        ...

    async def knows_commit(self, where: Target, sha: str) -> bool:
        """Say whether GitHub has it, be it a fork's."""
        ...

    async def has_behind(self, where: Target, branch: str, sha: str) -> bool:
        """Say whether the branch is there and has the commit in its history."""
        ...


class People(Protocol):
    """Who may do what in an upstream, and answers to them."""

    async def permission(self, where: Target, login: str) -> Role: ...

    async def comment(self, where: Target, number: int, body: str) -> int:
        """Return the comment's id."""
        ...

    async def comments(self, where: Target, number: int, since: datetime) -> tuple[PostedComment, ...]:
        """Return what was written or changed since then, by anybody."""
        ...

    async def react(self, where: Target, comment_id: int, content: str) -> None:
        """React to a comment; doing it twice leaves one reaction."""
        ...


class Actions(Protocol):
    """A downstream's workflow runs."""

    async def rerun(self, where: Target, run_id: int, *, failed_only: bool) -> None: ...

    async def read_run(
        self, where: Target, run_id: int, *, urgency: Urgency = Urgency.FIRST
    ) -> ActionsRun: ...

    async def list_runs(
        self,
        where: Target,
        *,
        event: str,
        since: datetime,
        until: datetime,
        urgency: Urgency = Urgency.FIRST,
    ) -> tuple[ActionsRun, ...]: ...

    async def run_jobs(
        self, where: Target, run_id: int, attempt: int, *, urgency: Urgency = Urgency.FIRST
    ) -> tuple[ActionsJob, ...]: ...


class Setup(Protocol):
    """How the App stands in a repository, and what workflows are there."""

    async def read_installation(self, repo: RepoName) -> InstallationFacts | None:
        """Return the App's installation, or None where it is not installed."""
        ...

    async def read_branch(self, where: Target) -> BranchFacts: ...

    async def workflow_files(self, where: Target, ref: str) -> tuple[ListedFile, ...]: ...

    async def workflow_text(self, where: Target, path: str, ref: str) -> str: ...

    async def workflow_states(self, where: Target) -> dict[str, str]:
        """Return GitHub's word for each workflow, by its path."""
        ...


class DeliveryLog(Protocol):
    """The App's webhooks as GitHub logged them, the newest first."""

    async def delivery_log(self, cursor: str | None) -> LogPage: ...

    async def logged_delivery(self, log_id: int) -> tuple[str, str, bytes]:
        """Return the GUID, the event's name and the payload."""
        ...
