"""The grids of pull requests and of base commits as pages, JSON API and CSV show them: one row each, one cell a backend.

A cell has the state that the page of the pull request or commit shows for that backend, and how many of its jobs that count
have each result. Titles and authors are unescaped here.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from crcr.decide.checks.gate import HELD_FOR
from crcr.decide.dispatch.selection import APPROVAL, DRAFT
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.model import Level, RepoName
from crcr.decide.views.backend import Matrix
from crcr.decide.views.commit import BackendState, GateShown, PullState


class PullScope(StrEnum):
    OPEN = "open"
    CLOSED = "closed"
    ALL = "all"


class PullFilter(StrEnum):
    BLOCKED = "blocked"
    """Its gate failed: a person must act before it can be merged."""
    FAILING = "failing"
    """A job that counts failed in a backend that the reader sees."""
    WAITING = "waiting"
    """A backend is held until the draft is ready for review, or a maintainer approves the author's change."""
    BREAKING = "breaking"
    """Its label announces a breakage to the backends that it concerns."""


class PullSort(StrEnum):
    UPDATED = "updated"
    NUMBER = "number"
    AGE = "age"
    GATE = "gate"
    FAILURES = "failures"


GATE_ORDER = (GateShown.FAILED, GateShown.PENDING, GateShown.PASSED, GateShown.OVER, GateShown.NONE)
"""By `PullSort.GATE`; those without a judged gate follow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullListQuery:
    upstream: RepoName
    scope: PullScope = PullScope.OPEN
    only: PullFilter | None = None
    author: str | None = None
    """A login, ignoring case."""
    text: str | None = None
    """Part of the title or the author, or the first digits of the number."""
    sort: PullSort = PullSort.UPDATED
    down: bool = True
    after: tuple[str | int, ...] | None = None
    limit: int = 50

    @property
    def is_filtered(self) -> bool:
        return bool(self.only or self.author or self.text)


@dataclass(frozen=True, slots=True)
class GridColumn:
    backend: RepoName
    level: Level
    """Its level now."""


@dataclass(slots=True)
class BackendCell:
    """One backend's results for a pull request's head or a base commit. Not frozen: a page has thousands."""

    backend: RepoName
    level: Level
    """When the delivery was recorded."""
    state: BackendState
    failed: int = 0
    running: int = 0
    passed: int = 0
    other: int = 0

    @property
    def jobs(self) -> int:
        return self.failed + self.running + self.passed + self.other


@dataclass(frozen=True, slots=True, kw_only=True)
class PullLine:
    number: int
    title: str
    author: str
    draft: bool
    state: PullState
    opened_at: datetime | None
    """None where no webhook since the upgrade named it."""
    updated_at: datetime
    base_ref: str
    head_sha: str
    delivery: str | None
    """The delivery that backends test; None where nothing was dispatched."""
    gate: GateShown | None
    """As it was last judged; None before that."""
    verdict: VerdictKind | None
    """The worst verdict on its failed jobs; None where none failed or has a verdict yet."""
    waits_for: str | None
    backends: tuple[BackendCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PullList:
    items: tuple[PullLine, ...]
    next: tuple[str | int, ...] | None
    cursor: int
    columns: tuple[GridColumn, ...]
    """The backends with a cell on this page, L4 first."""
    has_gate: bool
    """Whether any of the rows has a gate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitListQuery:
    upstream: RepoName
    branch: str | None = None
    """None for the upstream's default branch."""
    opened: tuple[RepoName, ...] = ()
    """The backends whose jobs are shown one by one."""
    after: tuple[str | int, ...] | None = None
    limit: int = 50


@dataclass(frozen=True, slots=True)
class InTreeCell:
    """How many of the upstream's own checks of a commit passed, failed and run."""

    passed: int
    failed: int
    running: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitLine:
    sha: str
    title: str | None
    number: int | None
    """The pull request that its message says it merges."""
    author: str | None
    pushed_at: datetime
    delivery: str | None
    """None for a commit that was not tested: of a push, the last one is."""
    in_tree: InTreeCell | None
    backends: tuple[BackendCell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitList:
    items: tuple[CommitLine, ...]
    next: tuple[str | int, ...] | None
    cursor: int
    branch: str | None
    columns: tuple[GridColumn, ...]
    opened: Mapping[str, Matrix] = field(default_factory=dict)
    """By the key of the backend; each has a row for every commit of `items`, in their order."""


def find_columns(
    rows: Iterable[Iterable[BackendCell]], levels: Mapping[str, Level]
) -> tuple[GridColumn, ...]:
    """The backends that have a cell in any of the rows; `levels` are today's, by their keys."""
    shown = {cell.backend.key: cell.backend for cells in rows for cell in cells}
    columns = [GridColumn(backend, levels[key]) for key, backend in shown.items()]
    return tuple(sorted(columns, key=lambda column: (-column.level, column.backend)))


_WORST_VERDICTS = (
    *(VerdictKind.NEW, VerdictKind.UNKNOWN, VerdictKind.MISSING),
    *(VerdictKind.INFRASTRUCTURE, VerdictKind.FLAKY, VerdictKind.PRE_EXISTING),
)


def pick_worst_verdict(kinds: Collection[VerdictKind]) -> VerdictKind | None:
    """A new failure concerns the author most, one that the base has too the least."""
    return next((kind for kind in _WORST_VERDICTS if kind in kinds), None)


_FOR_PEOPLE = {
    APPROVAL: "a maintainer's approval of the author's change",
    DRAFT: "the draft to be marked ready for review",
}
_NOT_OVER = frozenset(
    {
        *(BackendState.RUNNING, BackendState.STARTED, BackendState.NO_REPORT),
        *(BackendState.WAITING, BackendState.HELD),
    }
)


def describe_wait(
    gate: GateShown | None, title: str | None, cells: Collection[BackendCell], reasons: Collection[str]
) -> str | None:
    """What an open pull request waits for; `reasons` are those of its held backends, `title` that of its gate, if visible."""
    for reason in (APPROVAL, DRAFT):
        if reason in reasons and reason in HELD_FOR:
            return _FOR_PEOPLE[reason]
    if gate in (GateShown.FAILED, GateShown.PENDING):
        return title or ("a gating backend to be fixed or waived" if gate is GateShown.FAILED else "the gate")
    running = sum(cell.state in _NOT_OVER for cell in cells)
    return f"{running} backend{'' if running == 1 else 's'} to finish" if running else None
