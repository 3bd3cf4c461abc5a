"""The matrix of a backend, laid out for the page: columns by workflow, shards folded or open, a state for each row.

A shard is recognised by its number: `test (default, 2, 5)`, `shard 3/10`, `part-07`. A bare number counts only where the
numbers of its group run from 0 or 1 without a gap, so that versions (`py 3.10`, `node (18)`) stay separate jobs. A page has
thousands of cells, so each is minimal: a letter, a tone, a title and the token of its details. Columns with a failed job come
first, unless the reader wants them by name.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from hashlib import sha256

from markupsafe import Markup

from crcr.decide.checks.status import left_out_words
from crcr.decide.jobs.short_address import JobKeyParts
from crcr.decide.model import DispatchState, Level
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.backend import Column, FailureLine, Matrix, MatrixRow
from crcr.decide.views.commit import BackendState, backend_state
from crcr.decide.views.overview import DispatchView, JobCell
from crcr.show.render.markup import escape_link, escape_name, escape_text
from crcr.show.render.status import ANSWERS, BACKENDS, Status, duration, job_status
from crcr.show.urls.job_tokens import job_token

_GAP = "…"
_LONGEST = 300
_LONGEST_NAME = 120
_LONGEST_LINE = 200
_KEPT_SHARDS = 4_096
_WORD = r"(?:shard|part|partition|chunk|split|slice|bucket|batch|group)"
_OF_TOTAL = (
    re.compile(r"(?<![\w.])(?P<number>\d{1,4})(?P<rest>\s*(?:/|of)\s*(?P<total>\d{1,4}))(?![\w.])"),
    re.compile(r"(?<=[(,\s])(?P<number>\d{1,4})(?P<rest>\s*,\s*(?P<total>\d{1,4}))(?=\s*[,)])"),
)
_AFTER_WORD = re.compile(rf"(?<![a-z]){_WORD}[\s_:#-]*(?P<number>\d{{1,4}})(?![\w.])", re.IGNORECASE)
_BARE = (re.compile(r"\(\s*(?P<number>\d{1,4})\s*\)$"), re.compile(r"(?<=[\s_#-])(?P<number>\d{1,4})$"))


@dataclass(frozen=True, slots=True)
class Shard:
    """A job's name split at its number; `sure` when the name itself says that it is a shard."""

    before: str
    number: int
    after: str
    sure: bool

    @property
    def family(self) -> str:
        return f"{self.before}{_GAP}{self.after}"


@dataclass(frozen=True, slots=True)
class ColumnGroup:
    """Columns under one header: a single job, or the shards of one; `indexes` are those in the matrix."""

    key: str
    label: str
    indexes: tuple[int, ...]

    @property
    def is_shards(self) -> bool:
        return len(self.indexes) > 1


@dataclass(frozen=True, slots=True)
class WorkflowColumns:
    """The groups of one workflow."""

    workflow: str
    name: str
    groups: tuple[ColumnGroup, ...]


@lru_cache(_KEPT_SHARDS)
def parse_shard(name: str) -> Shard | None:
    """Return the shard that a job's name describes, if any."""
    if len(name) > _LONGEST:
        return None
    for pattern in _OF_TOTAL:
        for match in reversed([*pattern.finditer(name)]):
            if int(match["number"]) <= int(match["total"]):
                return _shard(name, match, sure=True)
    if labelled := _AFTER_WORD.search(name):
        return _shard(name, labelled, sure=True)
    bare = next((candidate for pattern in _BARE if (candidate := pattern.search(name))), None)
    return _shard(name, bare, sure=False) if bare else None


def _shard(name: str, match: re.Match[str], *, sure: bool) -> Shard:
    start, end = match.span("number")
    return Shard(name[:start], int(match["number"]), name[end:], sure)


def group_columns(columns: Sequence[Column]) -> tuple[WorkflowColumns, ...]:
    """Group the columns by workflow, in the order of first appearance; every column is in exactly one group."""
    by_workflow: dict[str, list[int]] = {}
    for index, column in enumerate(columns):
        by_workflow.setdefault(column.workflow, []).append(index)
    return tuple(
        WorkflowColumns(
            workflow, columns[indexes[0]].workflow_name, _group_shards(workflow, columns, indexes)
        )
        for workflow, indexes in by_workflow.items()
    )


def _group_shards(workflow: str, columns: Sequence[Column], indexes: list[int]) -> tuple[ColumnGroup, ...]:
    families: dict[str, list[tuple[Shard, int]]] = {}
    for index in indexes:
        if shard := parse_shard(columns[index].job_name):
            families.setdefault(shard.family, []).append((shard, index))
    family_of = {
        index: family
        for family, members in families.items()
        if _are_shards([shard for shard, _ in members])
        for _, index in members
    }
    groups: dict[str, ColumnGroup] = {}
    for index in indexes:
        name, family = columns[index].job_name, family_of.get(index)
        key = _key(workflow, family or name, shards=family is not None)
        if key in groups:
            continue
        members = (
            tuple(member for _, member in sorted(families[family], key=_by_number)) if family else (index,)
        )
        groups[key] = ColumnGroup(key, family or name, members)
    return tuple(groups.values())


def _are_shards(members: list[Shard]) -> bool:
    if len(members) == 1:
        return False
    numbers = sorted(member.number for member in members)
    whole = numbers[0] in {0, 1} and numbers == [*range(numbers[0], numbers[0] + len(numbers))]
    return whole or all(member.sure for member in members)


def _by_number(member: tuple[Shard, int]) -> tuple[int, int]:
    shard, index = member
    return shard.number, index


def _key(workflow: str, name: str, *, shards: bool) -> str:
    return sha256(f"{workflow}\0{name}\0{shards}".encode("utf-8", "replace")).hexdigest()[:10]


_Outcomes = Sequence[CountedAs | None]
"""What the cells of a row count as; None where no job has reported."""
WORST_FIRST = (CountedAs.FAILURE, CountedAs.RUNNING, CountedAs.OTHER, CountedAs.SUCCESS)


@dataclass(frozen=True, slots=True)
class CombinedJobs:
    """Several jobs in one cell: the worst, how many have its result, how many reported, and how many there are."""

    worst: JobCell
    alike: int
    present: int
    total: int

    @property
    def all_passed(self) -> bool:
        """Whether all jobs reported and passed."""
        return self.worst.counted is CountedAs.SUCCESS and self.present == self.total

    @property
    def text(self) -> str:
        return f"{self.alike}/{self.total}" if self.alike != self.total else str(self.total)


def combine_jobs(cells: Iterable[JobCell | None], total: int) -> CombinedJobs | None:
    """Combine jobs into one cell; None when none has reported."""
    jobs = [cell for cell in cells if cell is not None]
    return _combine_counted(jobs, [job.counted for job in jobs], total)


def _combine_counted(cells: Sequence[JobCell | None], outcomes: _Outcomes, total: int) -> CombinedJobs | None:
    """Combine jobs that have been counted: `outcomes` are those of the cells."""
    reported = set(outcomes)
    grade = next((outcome for outcome in WORST_FIRST if outcome in reported), None)
    worst = None if grade is None else cells[outcomes.index(grade)]
    if worst is None:
        return None
    return CombinedJobs(worst, outcomes.count(grade), len(outcomes) - outcomes.count(None), total)


ROOM = 36
"""The longest label of a column."""
_LEAST_SHARED = 12
_START = 12
_CUT = "…"
_EDGES = frozenset("/(:,_-")


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return a short form of each job name of a workflow; unchanged if all of them fit."""
    if all(len(name) <= ROOM for name in names):
        return list(names)
    shared = _shared_prefix_length(names)
    return [_fit(f"{_CUT}{name[shared:]}" if shared else name) for name in names]


def _shared_prefix_length(names: Sequence[str]) -> int:
    """Return the length of the shared prefix, up to the end of a word; 0 if it is too short to matter."""
    if len(set(names)) < 2:
        return 0
    first, last = min(names), max(names)  # names between these two share at least their prefix
    pairs = zip(first, last, strict=False)
    same = next((index for index, (left, right) in enumerate(pairs) if left != right), len(first))
    edge = next((index for index in range(same, 0, -1) if _is_edge(first[index - 1])), 0)
    return edge if edge >= _LEAST_SHARED else 0


def _is_edge(character: str) -> bool:
    return character in _EDGES or character.isspace()


def _fit(name: str) -> str:
    """Cut a name in its middle: names differ at their ends more often than at their beginnings."""
    if len(name) <= ROOM:
        return name
    end = ROOM - _START - len(_CUT)
    return f"{name[:_START].rstrip()}{_CUT}{name[-end:].lstrip()}"


NOTHING = Status("—", "no jobs", "off")
OTHERS = Status("—", "no such job", "off")
_NO_COMMIT = "0" * 40
_WORDS = {
    CountedAs.FAILURE: "failed",
    CountedAs.RUNNING: "running",
    CountedAs.SUCCESS: "passed",
    CountedAs.OTHER: "inconclusive",
}
ALL = "all"
"""In place of a group's key: all groups are open."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridHead:
    """A column's header. `toggle` is the value of `?open=` that a click on it leads to; None for a single job."""

    label: str
    """Its name, shortened to the part that differs from its neighbours."""
    title: str
    shards: int = 0
    toggle: str | None = None
    opened: bool = False
    first: bool = False
    """Begins a workflow."""


@dataclass(frozen=True, slots=True)
class WorkflowSpan:
    """A workflow over its columns."""

    name: str
    path: str
    width: int


@dataclass(frozen=True, slots=True)
class GridCell:
    tone: str
    letter: str
    title: str
    """Markup: job, result, duration and the first line of a failure."""
    token: str
    """Of its job; of folded shards, those of all that failed, separated by blanks."""
    count: str = ""
    toggle: str | None = None
    """For folded shards: what `?open=` becomes when they unfold."""


@dataclass(frozen=True, slots=True)
class GridRow:
    row: MatrixRow
    state: Status
    text: str
    why: str
    cells: tuple[GridCell | None, ...]
    """Empty when it has no job at all: then `text` is shown in their place."""


@dataclass(frozen=True, slots=True)
class Grid:
    spans: tuple[WorkflowSpan, ...]
    heads: tuple[GridHead, ...]
    lines: tuple[GridRow, ...]
    shards: int
    """How many groups of shards there are."""
    opened: int


@dataclass(frozen=True, slots=True)
class GridChoices:
    """What the reader chose: the keys of open groups of shards, and whether columns are in the order of their names."""

    opened: frozenset[str] = frozenset()
    by_name: bool = False


def lay_out(
    matrix: Matrix,
    choices: GridChoices,
    *,
    reports: bool,
    whole: bool = True,
    lines: Mapping[JobKeyParts, FailureLine] | None = None,
    shared: bool = False,
) -> Grid:
    """Lay the matrix out; `lines` are the causes of failed jobs.

    `reports` says whether results are expected at all, `whole` whether every job has a column: if not, an event
    without a cell may have reported in another column. `shared` is for a page with jobs of several backends.
    """
    cut = matrix.columns_left_out > 0
    whole = whole and not cut
    # Each cell is counted once: a page has thousands.
    counted = [[None if cell is None else cell.counted for cell in row.cells] for row in matrix.rows]
    plan = group_columns(matrix.columns)
    if not choices.by_name:
        plan = put_failing_first(plan, counted)
    folding = [group for section in plan for group in section.groups if group.is_shards]
    open_now = {group.key for group in folding if ALL in choices.opened or group.key in choices.opened}
    spans, heads = _make_header(matrix.columns, plan, open_now)
    toggles = {group.key: _toggle(group.key, open_now) for group in folding if group.key not in open_now}
    cells = _CellMaker(matrix.columns, plan, toggles, lines or {}, shared=shared)
    rows = tuple(
        GridRow(
            row,
            *row_state(row, outcomes, reports=reports, whole=whole, cut=cut),
            cells.make_cells(row, outcomes),
        )
        for row, outcomes in zip(matrix.rows, counted, strict=True)
    )
    return Grid(spans, heads, rows, len(folding), len(open_now))


def put_failing_first(
    plan: tuple[WorkflowColumns, ...], counted: Sequence[_Outcomes]
) -> tuple[WorkflowColumns, ...]:
    """Columns with a failed job before the others, those that failed last first; each part by workflow.

    `counted` are the outcomes of the rows, the newest first. A workflow may then appear in both parts.
    """
    newest: dict[int, int] = {}
    for row, outcomes in enumerate(counted):
        if CountedAs.FAILURE in outcomes:
            for index, outcome in enumerate(outcomes):
                if outcome is CountedAs.FAILURE:
                    newest.setdefault(index, row)

    def rank(group: ColumnGroup) -> int | None:
        return min((newest[index] for index in group.indexes if index in newest), default=None)

    ranked = [(section, [(rank(group), group) for group in section.groups]) for section in plan]
    failing: list[tuple[int, WorkflowColumns]] = []
    passing: list[WorkflowColumns] = []
    for section, groups in ranked:
        failed = sorted([(at, place) for place, (at, _) in enumerate(groups) if at is not None])
        if failed:
            columns = tuple(groups[place][1] for _, place in failed)
            failing.append((failed[0][0], replace(section, groups=columns)))
        if rest := tuple(group for at, group in groups if at is None):
            passing.append(replace(section, groups=rest))
    failing.sort(key=lambda pair: pair[0])
    return (*(section for _, section in failing), *passing)


def _make_header(
    columns: Sequence[Column], plan: tuple[WorkflowColumns, ...], open_now: set[str]
) -> tuple[tuple[WorkflowSpan, ...], tuple[GridHead, ...]]:
    heads: list[GridHead] = []
    spans: list[WorkflowSpan] = []
    for section in plan:
        before = len(heads)
        for group in section.groups:
            toggle = _toggle(group.key, open_now) if group.is_shards else None
            heads += _make_heads(
                columns, group, toggle, opened=group.key in open_now, first=len(heads) == before
            )
        heads[before:] = _with_short_labels(heads[before:])
        spans.append(WorkflowSpan(section.name, section.workflow, len(heads) - before))
    return tuple(spans), tuple(heads)


def _toggle(key: str, open_now: set[str]) -> str:
    return ",".join(sorted(open_now ^ {key}))


def _make_heads(
    columns: Sequence[Column], group: ColumnGroup, toggle: str | None, *, opened: bool, first: bool
) -> list[GridHead]:
    if toggle is None or opened:
        names = [columns[index].job_name for index in group.indexes]
        return [
            GridHead(label=name, title=name, toggle=toggle, opened=opened, first=first and not number)
            for number, name in enumerate(names)
        ]
    title = f"{group.label}: {len(group.indexes):,} shards"
    return [GridHead(label=group.label, title=title, shards=len(group.indexes), toggle=toggle, first=first)]


def _with_short_labels(heads: list[GridHead]) -> list[GridHead]:
    """The heads of one workflow, with labels that fit."""
    labels = shorten_names([head.label for head in heads])
    return [replace(head, label=label) for head, label in zip(heads, labels, strict=True)]


class _CellMaker:
    """Makes the cells of rows. What is the same for all cells of a column is made once."""

    def __init__(
        self,
        columns: Sequence[Column],
        plan: tuple[WorkflowColumns, ...],
        toggles: Mapping[str, str],
        lines: Mapping[JobKeyParts, FailureLine],
        *,
        shared: bool,
    ) -> None:
        """`toggles` holds the keys of folded groups, each with what `?open=` becomes when it unfolds."""
        self._names = [escape_name(column.job_name, _LONGEST_NAME) for column in columns]
        self._groups = [group for section in plan for group in section.groups]
        self._toggles = toggles
        self._lines = lines
        self._shared = shared
        self._all_passed: dict[tuple[str, Status], GridCell] = {}

    def make_cells(self, row: MatrixRow, outcomes: _Outcomes) -> tuple[GridCell | None, ...]:
        if not any(outcomes):
            return ()
        cells: list[GridCell | None] = []
        for group in self._groups:
            if group.key in self._toggles:
                cells.append(self._make_folded(row, outcomes, group))
            else:
                cells += [self._make_cell(row.cells[index], self._names[index]) for index in group.indexes]
        return tuple(cells)

    def _make_cell(self, job: JobCell | None, name: str) -> GridCell | None:
        if job is None:
            return None
        status = job_status(job)
        took = "" if job.execution_s is None else f", {duration(job.execution_s).replace('<', '&lt;')}"
        disputed = ", disputed" if job.disputed_conclusion else ""
        line = self._line(job) if status.tone == "bad" else ""
        title = f"{name}: {status.word}{took}{disputed}{line}"
        return GridCell(
            status.tone, status.letter, title, job_token(job, shared=self._shared), "!" * bool(disputed)
        )

    def _line(self, job: JobCell) -> str:
        """The first line of a failure, as another line of the title."""
        known = self._lines.get((job.delivery, job.workflow, job.run_id, job.attempt, job.job_name))
        return f"\n{escape_text(known.line, _LONGEST_LINE)}" if known and known.line else ""

    def _make_folded(self, row: MatrixRow, outcomes: _Outcomes, group: ColumnGroup) -> GridCell | None:
        indexes = group.indexes
        cells, counted = [row.cells[index] for index in indexes], [outcomes[index] for index in indexes]
        if counted.count(CountedAs.SUCCESS) == len(counted) > 1 and cells[0] is not None:
            return self._make_all_passed(group, job_status(cells[0]))
        combined = _combine_counted(cells, counted, len(indexes))
        if combined is None:
            return None
        if combined.total == combined.present == 1:
            return self._make_cell(combined.worst, escape_name(group.label, _LONGEST_NAME))
        has_failed = combined.worst.counted is CountedAs.FAILURE
        # Green only when every shard reported: some shards are no proof.
        quiet = combined.worst.counted is CountedAs.SUCCESS and not combined.all_passed
        status = job_status(combined.worst)
        return GridCell(
            "off" if quiet else status.tone,
            status.letter,
            f"{escape_name(group.label, _LONGEST_NAME)}: {_describe_shards(combined)}"
            f"{self._line(combined.worst) if has_failed else ''}",
            " ".join(self._failed_tokens(cells, counted)) if has_failed else "",
            combined.text,
            self._toggles[group.key],
        )

    def _make_all_passed(self, group: ColumnGroup, status: Status) -> GridCell:
        """Most folded cells look alike: a group has one for all its rows."""
        cell = self._all_passed.get((group.key, status))
        if cell is None:
            total = len(group.indexes)
            title = f"{escape_name(group.label, _LONGEST_NAME)}: {total:,} of {total:,} {_WORDS[CountedAs.SUCCESS]}"
            cell = GridCell(status.tone, status.letter, title, "", str(total), self._toggles[group.key])
            self._all_passed[group.key, status] = cell
        return cell

    def _failed_tokens(self, cells: Sequence[JobCell | None], outcomes: _Outcomes) -> list[str]:
        pairs = zip(cells, outcomes, strict=True)
        failed = (cell for cell, outcome in pairs if cell and outcome is CountedAs.FAILURE)
        return [job_token(cell, shared=self._shared) for cell in failed]


def _describe_shards(combined: CombinedJobs) -> str:
    text = f"{combined.alike:,} of {combined.total:,} {_WORDS[combined.worst.counted]}"
    missing = combined.total - combined.present
    return f"{text}, {missing} without a report" if missing else text


def row_state(
    row: MatrixRow, outcomes: _Outcomes, *, reports: bool, whole: bool = True, cut: bool = False
) -> tuple[Status, str, str]:
    """Return the state of an event: its status, a short text for the row, and an explanation.

    `outcomes` are those of its cells. `cut` says that some jobs have no column: then the event is not shown as passed.
    """
    combined = _combine_counted(row.cells, outcomes, len(outcomes) - outcomes.count(None))
    if combined is not None:
        status = job_status(combined.worst)
        word = _WORDS[combined.worst.counted]
        text = (
            f"{combined.total:,} {word}"
            if combined.alike == combined.total
            else f"{combined.alike:,} of {combined.total:,} {word}"
        )
        quiet = cut and combined.worst.counted is CountedAs.SUCCESS
        dimmed = Status(status.letter, status.word, "off") if quiet else status
        return dimmed, text, f"{text} of the jobs shown"
    if row.dispatch is None:
        return NOTHING, "no jobs", "Nothing was reported"
    if not whole and row.dispatch.state is DispatchState.SENT:
        return OTHERS, OTHERS.word, "None of the jobs shown has reported for this event"
    state = backend_state(row.dispatch, (), reports=reports and _is_answered(row.dispatch))
    return BACKENDS[state], BACKENDS[state].word, _explain(row.dispatch, state)


def _is_answered(dispatch: DispatchView) -> bool:
    """No report is expected for a closed pull request, a deleted branch, or a backend that is only notified."""
    return dispatch.level >= Level.L2 and dispatch.action != "closed" and dispatch.head_sha != _NO_COMMIT


def _explain(dispatch: DispatchView, state: BackendState) -> str:
    parts = [
        _reason(dispatch),
        ANSWERS[dispatch.answer] if dispatch.answer else "",
        "an earlier attempt may have been delivered too" if dispatch.unsure else "",
        "nothing is expected in return" if state is BackendState.NOTIFIED else "",
    ]
    return " · ".join(part for part in parts if part)


def _reason(dispatch: DispatchView) -> str:
    if dispatch.state is DispatchState.LEFT_OUT:
        return left_out_words(dispatch.reason).replace("`", "")
    return dispatch.reason or ""


def draw_cells(line: GridRow, details: str, opening: str, open_token: str) -> Markup:
    """Return all cells of a row as markup: a page has thousands, too many for a template's loop.

    `details` and `opening` are the links up to a token and up to the value of `?open=`; `open_token` is the open job.
    """
    before, unfold = escape_link(details), escape_link(opening)
    drawn = "".join([_draw_cell(cell, before, unfold, open_token) for cell in line.cells])
    return Markup(drawn)  # noqa: S704  every piece of it is escaped


def _draw_cell(cell: GridCell | None, details: str, opening: str, open_token: str) -> str:
    """Tones, letters, counts and tokens are made of plain characters, and titles are markup."""
    if cell is None:
        return "<td></td>"
    tone, letter, count = cell.tone, cell.letter, cell.count
    if cell.toggle is not None:
        jobs = f' data-jobs="{cell.token}"' if cell.token else ""
        link = f'href="{opening}{escape_link(cell.toggle)}#matrix" data-in-place title="{cell.title}"{jobs}'
        return f'<td class="{tone}"><a {link}>{letter}<i>{count}</i></a></td>'
    if not cell.token:
        return f'<td class="{tone}" title="{cell.title}">{letter}</td>'
    current = ' aria-current="true"' if cell.token == open_token else ""
    link = f'href="{details}{cell.token}" title="{cell.title}"{current}'
    return f'<td class="{tone}"><a {link}>{letter}{count}</a></td>'
