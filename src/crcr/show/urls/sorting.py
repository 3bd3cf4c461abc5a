"""Sorting, filtering and paging of tables of backends: pure functions of the rows and the query string.

Unknown values come last in either direction: they are neither best nor worst. The default order is by level, the worst
first, and is the only one that groups by level.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import Any, Generic, Protocol, TypeVar

from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import Figures
from crcr.decide.views.backend import BackendMetrics
from crcr.decide.views.overview import BackendSummary
from crcr.errors import NotFound

BY_LEVEL = "level"
ROWS_A_PAGE = 100
_MOST_TEXT = 100
_MOST_PAGES = 10_000


class SortableRow(Protocol):
    @property
    def name(self) -> RepoName: ...
    @property
    def level(self) -> Level: ...
    @property
    def figures(self) -> Figures | None: ...


R = TypeVar("R", bound=SortableRow)

NUMBERS: Mapping[str, Callable[[Figures], Any]] = {
    "rate": lambda figures: figures.tally.pass_rate,
    "success": lambda figures: figures.tally.success,
    "failure": lambda figures: figures.tally.failure,
    "total": lambda figures: figures.tally.total,
    "timeouts": lambda figures: figures.tally.timed_out,
    "queue": lambda figures: figures.queue.average_s,
    "queue-p50": lambda figures: figures.queue.p50_s,
    "queue-p95": lambda figures: figures.queue.p95_s,
    "run": lambda figures: figures.execution.average_s,
    "run-p50": lambda figures: figures.execution.p50_s,
    "run-p95": lambda figures: figures.execution.p95_s,
    "last": lambda figures: figures.last_result.at if figures.last_result else None,
    "sent": lambda figures: figures.sent,
    "delay": lambda figures: figures.average_delay_s,
}
_LOW_FIRST = frozenset({"name", "rate"})
"""Columns whose first click sorts the lowest first; all others sort the highest first."""


@dataclass(frozen=True, slots=True)
class SortOrder:
    column: str = BY_LEVEL
    down: bool = True

    @property
    def text(self) -> str:
        """The value of `?sort=`; empty for the default."""
        if self.column == BY_LEVEL:
            return ""
        return f"-{self.column}" if self.down else self.column

    def after_click(self, column: str) -> "SortOrder":
        """Return the order after a click on a column's header."""
        if column == self.column:
            return replace(self, down=not self.down)
        return SortOrder(column, column not in _LOW_FIRST)


def pick_order(requested: str | None) -> SortOrder:
    """Return the requested order; the default for an invalid one."""
    down, column = (requested or "").startswith("-"), (requested or "").removeprefix("-")
    return SortOrder(column, down) if column == "name" or column in NUMBERS else SortOrder()


def pick_level(requested: str | None) -> Level | None:
    return next(
        (level for level in Level if requested and requested.upper() in {level.name, str(level.value)}), None
    )


def pick_page(requested: str | None) -> int:
    """Return the requested page; the first for an invalid number."""
    if not requested or not requested.isascii() or not requested.isdigit():
        return 1
    return min(max(int(requested[:6]), 1), _MOST_PAGES)


def pick_backend(backends: Iterable[BackendMetrics], requested: str | None) -> BackendMetrics | None:
    """Return the requested backend; None for all together."""
    if not requested:
        return None
    for backend in backends:
        if backend.name.key == requested.lower():
            return backend
    raise NotFound(f"{requested[:150]} is not a backend of this upstream", hint="it may record no results")


@dataclass(frozen=True, slots=True)
class TableFilters:
    """Filters, order and page of a table, from the address."""

    order: SortOrder = SortOrder()
    text: str = ""
    level: Level | None = None
    page: int = 1

    @classmethod
    def from_query(cls, query: Mapping[str, str]) -> "TableFilters":
        return cls(
            pick_order(query.get("sort")),
            query.get("q", "").strip()[:_MOST_TEXT],
            pick_level(query.get("level")),
            pick_page(query.get("page")),
        )

    @property
    def narrows(self) -> bool:
        return bool(self.text) or self.level is not None

    def query(self, **changes: str) -> dict[str, str]:
        """The parameters of a link that changes some and keeps the rest; defaults are left out.

        The page is not kept: another order or another filter begins on the first.
        """
        current = {"sort": self.order.text, "q": self.text, "level": self.level.name if self.level else ""}
        parameters = {**current, **changes}
        return {name: value for name, value in parameters.items() if value}

    def sorted_by(self, column: str) -> dict[str, str]:
        return self.query(sort=self.order.after_click(column).text)


@dataclass(frozen=True, slots=True)
class TablePage(Generic[R]):
    """The rows of one page of a table, with its number and the total."""

    rows: tuple[R, ...]
    total: int
    """How many rows all pages have."""
    number: int = 1
    size: int = ROWS_A_PAGE

    @property
    def pages(self) -> int:
        return max(1, -(-self.total // self.size))

    @property
    def first(self) -> int:
        return (self.number - 1) * self.size + 1

    @property
    def last(self) -> int:
        return self.first + len(self.rows) - 1


def cut_page(rows: Sequence[R], requested: int, size: int = ROWS_A_PAGE) -> TablePage[R]:
    """Return the requested page; the last one for a number past the end."""
    page = TablePage(tuple(rows[:size]), len(rows), size=size)
    if requested == 1 or page.pages == 1:
        return page
    number = min(requested, page.pages)
    return TablePage(tuple(rows[(number - 1) * size : number * size]), len(rows), number, size)


@dataclass(frozen=True, slots=True)
class BackendTable:
    """Rows in groups as they are shown; the level of a group is None where the order mixes levels."""

    groups: tuple[tuple[Level | None, tuple[BackendSummary, ...]], ...]
    shown: int
    total: int

    @property
    def sizes(self) -> dict[Level | None, int]:
        """How many rows each group has on all pages."""
        return {level: len(group) for level, group in self.groups}

    def on_page(self, rows: Iterable[BackendSummary]) -> "BackendTable":
        """Return the table with the rows of one page, in its order."""
        chosen = tuple(rows)
        groups = (
            (level, tuple(row for row in chosen if level is None or row.level is level))
            for level, _ in self.groups
        )
        return replace(self, groups=tuple((level, group) for level, group in groups if group))

    @property
    def rows(self) -> tuple[BackendSummary, ...]:
        return tuple(row for _, group in self.groups for row in group)


def tabulate(backends: Iterable[BackendSummary], choice: TableFilters) -> BackendTable:
    all_backends = tuple(backends)
    rows = [backend for backend in all_backends if matches_filters(backend, choice)]
    if choice.order.column != BY_LEVEL:
        groups: list[tuple[Level | None, tuple[BackendSummary, ...]]] = [(None, arrange(rows, choice.order))]
    else:
        levels = sorted({row.level for row in rows}, reverse=True)
        groups = [
            (level, tuple(sorted((row for row in rows if row.level is level), key=_worst_first)))
            for level in levels
        ]
    return BackendTable(tuple(groups) if rows else (), len(rows), len(all_backends))


def matches_filters(backend: BackendSummary, choice: TableFilters) -> bool:
    """Return whether a backend matches; the text filter searches name, hardware and on-calls."""
    if choice.level is not None and backend.level is not choice.level:
        return False
    texts = (str(backend.name), backend.device or "", backend.hardware or "", *backend.oncalls)
    return choice.text.casefold() in "\n".join(texts).casefold()


def arrange(rows: Iterable[R], order: SortOrder) -> tuple[R, ...]:
    by_name = sorted(rows, key=lambda row: row.name.key)
    if order.column not in NUMBERS:
        return tuple(reversed(by_name)) if order.down else tuple(by_name)
    number = NUMBERS[order.column]
    values: list[tuple[Any, R]] = [(number(row.figures) if row.figures else None, row) for row in by_name]
    known = sorted((pair for pair in values if pair[0] is not None), key=itemgetter(0), reverse=order.down)
    unknown = [pair for pair in values if pair[0] is None]
    return tuple(row for _, row in (*known, *unknown))


def _worst_first(backend: BackendSummary) -> tuple[Any, ...]:
    """Backends that need attention first, then the lowest rate, then those without results, then those that never show one."""
    mute = backend.never_reported and backend.level is Level.L4
    troubled = bool(backend.alarm or backend.suspended or backend.silent or backend.parked or mute)
    tally = backend.figures.tally if backend.figures else None
    rate = tally.pass_rate if tally else None
    failures = tally.failure if tally else 0
    return (
        not troubled,
        tally is None,
        rate is None,
        rate if rate is not None else 0.0,
        -failures,
        backend.name.key,
    )
