"""The grids of pull requests and of commits, laid out for their pages: heads by level, and the cells of each row as markup.

A cell shows the worst state of one backend, and how many of its jobs failed. On the grid of commits an open backend shows its
jobs in place of that, as the matrix of its own page does, with shards folded. A page has thousands of cells: each is an f-string.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from markupsafe import Markup

from crcr.decide.model import RepoName
from crcr.decide.views.backend import Matrix
from crcr.decide.views.commit import BackendState
from crcr.decide.views.grids import BackendCell, CommitLine, CommitList, GridColumn, InTreeCell, PullLine
from crcr.show.render.markup import escape_link, escape_text, make_id
from crcr.show.render.matrix import Grid, GridCell, GridChoices, GridHead, draw_cells, lay_out
from crcr.show.render.status import BACKENDS, LEVELS, Status
from crcr.show.urls.location import PageLinks, PageLocation

_LONGEST_LABEL = 60
_KEPT_CELLS = 8_192
GRID_LEGEND = (
    *(BACKENDS[state] for state in (BackendState.PASSED, BackendState.FAILED)),
    Status("M", "no result came", "bad"),
    BACKENDS[BackendState.PARKED],
    BACKENDS[BackendState.RUNNING],
    Status("Q", "waiting", "wait"),
    *(BACKENDS[state] for state in (BackendState.HELD, BackendState.INCONCLUSIVE, BackendState.CANCELLED)),
    BACKENDS[BackendState.NOT_CONCERNED],
    Status("·", "not sent, or nothing recorded", "off"),
)
"""The meaning of the letters of a grid; an empty cell, which the style sheet draws as a dot, comes last."""


@dataclass(frozen=True, slots=True)
class ColumnSpan:
    """What stands over several columns: a level, or an open backend."""

    label: str
    title: str
    width: int
    link: str | None = None
    """Folds the backend."""


@dataclass(frozen=True, slots=True)
class ColumnHead:
    label: str
    title: str
    link: str | None
    first: bool = False
    """Begins a span."""
    look: str = ""
    shards: int = 0


@dataclass(frozen=True, slots=True)
class GridHeads:
    spans: tuple[ColumnSpan, ...]
    heads: tuple[ColumnHead, ...]


def lay_out_pulls(columns: Sequence[GridColumn], location: PageLocation) -> GridHeads:
    spans: list[ColumnSpan] = []
    heads = []
    for column in columns:
        is_first = _add_to_level(spans, column)
        name = str(column.backend)
        heads.append(ColumnHead(name[:_LONGEST_LABEL], name, location.backend(column.backend), is_first))
    return GridHeads(tuple(spans), tuple(heads))


def _add_to_level(spans: list[ColumnSpan], column: GridColumn) -> bool:
    """Add a column to the span of its level; return whether it begins it."""
    label = column.level.name
    if spans and spans[-1].label == label and spans[-1].link is None:
        spans[-1] = replace(spans[-1], width=spans[-1].width + 1)
        return False
    spans.append(ColumnSpan(label, f"{label}: {LEVELS[column.level]}", 1))
    return True


def draw_pull_cells(line: PullLine, columns: Sequence[GridColumn], location: PageLocation) -> Markup:
    """The cells of a pull request; each links to the backend on its page."""
    by_key = {cell.backend.key: cell for cell in line.backends}
    page = escape_link(location.pull(line.number))
    drawn = [
        _draw_backend(cell, page, line.delivery, count=str(cell.failed) if cell and cell.failed > 1 else "")
        for column in columns
        for cell in (by_key.get(column.backend.key),)
    ]
    return Markup("".join(drawn))  # noqa: S704  every piece of it is escaped


def _draw_backend(
    cell: BackendCell | None, page: str, delivery: str | None, *, count: str, width: int = 1
) -> str:
    if cell is None:
        return "<td></td>" if width == 1 else f'<td colspan="{width}"></td>'
    counts = cell.failed, cell.running, cell.passed, cell.other
    return _draw_counted(cell.backend.full_name, (cell.state, counts), (page, delivery), (count, width))


_Counts = tuple[int, int, int, int]
"""Failed, running, passed and other jobs."""


@lru_cache(_KEPT_CELLS)
def _draw_counted(
    backend: str,
    result: tuple[BackendState, _Counts],
    address: tuple[str, str | None],
    look: tuple[str, int],
) -> str:
    """Most cells are the same on the next rendering: a change concerns one of them."""
    (state, counts), (page, delivery), (count, width) = result, address, look
    span = "" if width == 1 else f' colspan="{width}"'
    status = BACKENDS[state]
    number = f"<i>{count}</i>" if count else ""
    title = escape_text(f"{backend}: {_describe(state, counts, status.word)}")
    link = f"{page}#unit-{make_id(backend, delivery)}"
    return (
        f'<td{span} class="{status.tone}"><a href="{link}" title="{title}">{status.letter}{number}</a></td>'
    )


def _describe(state: BackendState, counts: _Counts, word: str) -> str:
    said = [
        f"{number} {what}"
        for number, what in zip(counts, ("failed", "running", "passed", "other"), strict=True)
        if number
    ]
    if not said or (len(said) == 1 and state is not BackendState.INCONCLUSIVE):
        jobs = sum(counts)
        return word if jobs < 2 else f"{word}, {jobs} jobs"
    return f"{word}: {', '.join(said)}"


def draw_in_tree(counts: InTreeCell | None, page: str) -> Markup:
    """The cell of the upstream's own CI; its page has the names of the checks."""
    if counts is None:
        return Markup("<td></td>")
    total = counts.passed + counts.failed + counts.running
    tone, letter, word = (
        ("bad", "X", "failed")
        if counts.failed
        else ("run", "?", "running")
        if counts.running
        else ("ok", "O", "passed")
    )
    shown = f"<i>{counts.failed}/{total}</i>" if counts.failed else ""
    title = f"in-tree checks {word}: {counts.failed} failed, {counts.running} running, {counts.passed} passed"
    link = f"{escape_link(page)}#in-tree"
    return Markup(f'<td class="{tone}"><a href="{link}" title="{title}">{letter}{shown}</a></td>')  # noqa: S704


@dataclass(frozen=True, slots=True)
class OpenBackends:
    """The open backends of the grid of commits, and its open groups of shards, as its address has them."""

    backends: tuple[RepoName, ...]
    groups: frozenset[str]
    links: PageLinks
    job: str = ""
    """The token of the open job."""

    def toggle(self, backend: RepoName) -> str:
        """The page with the backend folded, or opened."""
        others = [each for each in self.backends if each != backend]
        chosen = others if backend in self.backends else [*others, backend]
        return self.links.url(open=",".join(map(str, chosen)) or None) + "#matrix"


@dataclass(frozen=True, slots=True)
class CommitGrid:
    heads: GridHeads
    cells: tuple[Markup, ...]
    """Of each commit."""


@dataclass(frozen=True, slots=True)
class _CommitDrawer:
    page: CommitList
    opened: OpenBackends
    location: PageLocation
    grids: Mapping[str, Grid]
    """The jobs of the open backends that have any, by key."""

    def draw_heads(self) -> GridHeads:
        spans: list[ColumnSpan] = []
        heads: list[ColumnHead] = []
        shards = self.opened.links.query_prefix("shards")
        for column in self.page.columns:
            name, link = str(column.backend), self.opened.toggle(column.backend)
            jobs = self.grids[column.backend.key].heads if column.backend.key in self.grids else ()
            if jobs:
                spans.append(ColumnSpan(name, f"{name}: fold its jobs", len(jobs), link))
                heads += [_job_head(head, shards, first=not index) for index, head in enumerate(jobs)]
            else:
                is_first = _add_to_level(spans, column)
                title = f"{name}: show its jobs"
                heads.append(ColumnHead(name[:_LONGEST_LABEL], title, link, is_first, "backend"))
        return GridHeads(tuple(spans), tuple(heads))

    def draw_row(self, index: int, line: CommitLine) -> Markup:
        by_key = {cell.backend.key: cell for cell in line.backends}
        page = escape_link(self.location.commit(line.sha, line.delivery))
        links = self.opened.links
        drawn = []
        for column in self.page.columns:
            key = column.backend.key
            row = self.grids[key].lines[index] if key in self.grids else None
            if row is not None and row.cells:
                drawn.append(
                    str(draw_cells(row, links.job_prefix, links.query_prefix("shards"), self.opened.job))
                )
            else:
                width = len(self.grids[key].heads) if key in self.grids else 1
                cell = by_key.get(key)
                count = f"{cell.failed}/{cell.jobs}" if cell and cell.failed and cell.jobs > 1 else ""
                drawn.append(_draw_backend(cell, page, line.delivery, count=count, width=width))
        return Markup("".join(drawn))  # noqa: S704  every piece of it is escaped


def lay_out_commits(page: CommitList, opened: OpenBackends, location: PageLocation) -> CommitGrid:
    grids = {key: _lay_out_jobs(matrix, opened) for key, matrix in page.opened.items() if matrix.columns}
    drawer = _CommitDrawer(page, opened, location, grids)
    cells = tuple(drawer.draw_row(index, line) for index, line in enumerate(page.items))
    return CommitGrid(drawer.draw_heads(), cells)


def _lay_out_jobs(matrix: Matrix, opened: OpenBackends) -> Grid:
    """The jobs of an open backend; their tokens name it, and folding its shards keeps the groups of other backends."""
    grid = lay_out(matrix, GridChoices(opened.groups), reports=True, shared=True)
    own = {group for head in grid.heads for group in (head.toggle or "").split(",")}
    others = opened.groups - own - {""}

    def keep_others(toggle: str) -> str:
        return ",".join(sorted({*filter(None, toggle.split(",")), *others}))

    def complete(cell: GridCell | None) -> GridCell | None:
        """Folded shards link to a job only where a single one failed."""
        if cell is None or cell.toggle is None:
            return cell
        token = "" if " " in cell.token else cell.token
        return replace(cell, token=token, toggle=keep_others(cell.toggle))

    heads = tuple(
        head if head.toggle is None else replace(head, toggle=keep_others(head.toggle)) for head in grid.heads
    )
    lines = tuple(replace(line, cells=tuple(map(complete, line.cells))) for line in grid.lines)
    return replace(grid, heads=heads, lines=lines)


def _job_head(head: GridHead, prefix: str, *, first: bool) -> ColumnHead:
    link = None if head.toggle is None else f"{prefix}{head.toggle}#matrix"
    look = "opened" if head.opened else "shards" if head.shards else ""
    return ColumnHead(head.label, head.title, link, first, look, head.shards)
