"""All backends of an upstream: the summary and the metrics page.

All of them are counted, filtered and sorted by a few statements (`Overview`); the rows of a page are then read in full
(`BackendReader.summary`). Each statement jumps along an index from one backend that has rows to the next, so its cost
follows the backends with something to show, not the whole allowlist.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.model import JobState, Level, RepoName
from crcr.decide.statistics.figures import (
    ANSWER_WITHIN,
    SILENT_WITHIN,
    Figures,
    LastResult,
    Part,
    is_silent,
    is_stale,
)
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.attention import Attention, list_attention
from crcr.decide.views.backend import (
    BackendMetrics,
    MetricsView,
)
from crcr.decide.views.in_tree import InTreeTrend
from crcr.decide.views.overview import BackendSummary, ChooseRows, Probe, RelayHealth, Summary
from crcr.record.store.database import Row
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.backends.backend_reader import (
    AWAITED,
    IS_UPSTREAM_EVENT,
    BackendReader,
    BackendStates,
    make_name_only_summary,
    make_summary,
    read_backend_states,
)
from crcr.record.views.backends.figures import (
    PART_COLUMNS,
    PART_SUMS,
    count_ingested_running,
    make_figures,
    read_last,
)
from crcr.record.views.commits.in_tree import read_in_tree_trend
from crcr.record.views.relay.attention import TroubleMarks, read_attention_facts
from crcr.record.views.relay.state import relay_health
from crcr.record.views.visibility import allowlist_state

OWN_KINDS = (ResultKind.PULLS, ResultKind.PUSH, ResultKind.NIGHTLY)
"""The kinds of results that arrive by callback."""


def _names_in(table: str, where: str = "upstream = :upstream") -> str:
    """A common table expression `known` with the backends that have rows in a table, and a NULL at its end."""
    return (
        f"WITH RECURSIVE known(downstream) AS (SELECT min(downstream) FROM {table} WHERE {where} AND downstream > ''"  # noqa: S608  our own names
        f" UNION ALL SELECT (SELECT min(downstream) FROM {table} WHERE {where} AND downstream > known.downstream)"
        " FROM known WHERE known.downstream IS NOT NULL)"
    )


def _select_sums(table: str, at: str, columns: str, group: str = "") -> Statement:
    return Statement(
        text(
            f"{_names_in(table)} SELECT known.downstream, {columns} FROM known CROSS JOIN {table} s"  # noqa: S608  our own names
            " WHERE s.upstream = :upstream AND s.downstream = known.downstream AND s.kind = :kind"
            f" AND s.{at} >= :since AND s.{at} < :until{group}"
        )
    )


def _select_whole(table: str, at: str) -> Statement:
    return _select_sums(table, at, f"0 AS part, {PART_SUMS}", " GROUP BY known.downstream")


def _select_parts(table: str, at: str) -> Statement:
    """A part of a window is one row of its table: grouping would sort all rows with their sixty columns."""
    return _select_sums(table, at, f"(s.{at} - :since) / :width AS part, {', '.join(PART_COLUMNS)}")


_WHOLE_BY_HOURS, _WHOLE_BY_DAYS = _select_whole("hours", "hour_at"), _select_whole("days", "day_at")
_PARTS_BY_HOURS, _PARTS_BY_DAYS = _select_parts("hours", "hour_at"), _select_parts("days", "day_at")
_UNANSWERED_OF_ALL = Statement(
    text(
        f"{_names_in('dispatches')} SELECT found.downstream, found.reported_at, (SELECT count(*) FROM (SELECT 1"  # noqa: S608  our own names
        " FROM dispatches d WHERE d.upstream = :upstream AND d.downstream = found.downstream"
        " AND d.created_at > CASE WHEN found.reported_at > :since THEN found.reported_at ELSE :since END"
        f" AND {AWAITED} LIMIT 10) AS few) AS unanswered"
        " FROM (SELECT known.downstream, (SELECT j.in_progress_at FROM jobs j WHERE j.upstream = :upstream"
        f" AND j.downstream = known.downstream AND {IS_UPSTREAM_EVENT} ORDER BY j.in_progress_at DESC LIMIT 1) AS reported_at FROM known WHERE known.downstream IS NOT NULL) AS found"
    )
)
_EVENTS = " UNION ALL ".join(f"SELECT '{event}' AS event" for kind in OWN_KINDS for event in kind.events)
_LAST_ENDED = Statement(
    text(
        f"{_names_in('jobs')} SELECT known.downstream, e.event, (SELECT j.completed_at FROM jobs j"  # noqa: S608  our own names
        " WHERE j.upstream = :upstream AND j.downstream = known.downstream AND j.event = e.event"
        " AND j.ended_as IN ('success', 'failure', 'timed_out', 'other') ORDER BY j.completed_at DESC LIMIT 1) AS at"
        f" FROM known CROSS JOIN ({_EVENTS}) AS e WHERE known.downstream IS NOT NULL"
    )
)
_LAST_INGESTED = Statement(
    text(
        f"{_names_in('ingested')} SELECT known.downstream, 'ingested' AS event, (SELECT i.completed_at FROM ingested i"  # noqa: S608  our own names
        " WHERE i.upstream = :upstream AND i.downstream = known.downstream"
        " AND i.ended_as IN ('success', 'failure', 'timed_out', 'other') ORDER BY i.completed_at DESC LIMIT 1) AS at"
        " FROM known WHERE known.downstream IS NOT NULL"
    )
)
_RUNS = "upstream = :upstream AND state = 'in_progress'"
_INGESTED_BEGUN = Statement(
    text(
        f"{_names_in('ingested', _RUNS)} SELECT downstream FROM known WHERE downstream IS NOT NULL"  # noqa: S608  our own names
    )
)


@dataclass(frozen=True, slots=True)
class Overview:
    """Facts of all backends over one window and kind. A backend without rows is in none of the mappings."""

    figures: dict[str, Figures]
    """Sums over the whole window as a single part."""
    running: dict[str, int]
    silences: dict[str, tuple[bool, int]] = field(default_factory=dict)
    """Whether it ever reported, and how many dispatches it has not answered since."""
    ended_at: dict[tuple[str, str], datetime] = field(default_factory=dict)
    """When the newest result of a backend and an event ended."""
    empty: Figures = field(default_factory=lambda: Figures(parts=()))
    """The figures of a backend without rows."""

    def sums(self, key: str) -> Figures:
        """A backend's figures without running jobs and without the last result."""
        return self.figures.get(key, self.empty)

    def backend_figures(self, key: str, kind: ResultKind) -> Figures:
        """A backend's figures; of its last result only the time is known."""
        at = self.last_result_time(key, kind)
        last = LastResult(JobState.COMPLETED, None, "", at) if at else None
        return self.sums(key).with_latest(running=self.running.get(key, 0), last_result=last)

    def is_silent(self, entry: AllowlistEntry) -> bool:
        ever_reported, unanswered = self.silences.get(entry.name.key, (False, 0))
        return is_silent(entry.level, ever_reported=ever_reported, unanswered=unanswered)

    def has_never_reported(self, entry: AllowlistEntry) -> bool:
        """Whether nothing has ever arrived from a backend that should report."""
        key = entry.name.key
        ever_reported, _ = self.silences.get(key, (False, 0))
        known = ever_reported or self.running.get(key) or self.last_result_time(key, *ResultKind)
        return entry.level >= Level.L2 and not known

    def last_result_time(self, key: str, *kinds: ResultKind) -> datetime | None:
        ends = (self.ended_at.get((key, event)) for kind in kinds for event in kind.events)
        return max((at for at in ends if at is not None), default=None)


async def read_overview(reader: BackendReader, states: BackendStates) -> Overview:
    return Overview(
        await _read_figures(reader),
        await _count_running(reader, states),
        await _read_silences(reader),
        await _read_last_ends(reader),
    )


async def _read_last_ends(reader: BackendReader) -> dict[tuple[str, str], datetime]:
    rows = await reader.tx.all(_LAST_ENDED, upstream=reader.upstream.key)
    if reader.kind is ResultKind.INGESTED:
        rows = [*rows, *await reader.tx.all(_LAST_INGESTED, upstream=reader.upstream.key)]
    return {(row["downstream"], row["event"]): from_us(row["at"]) for row in rows if row["at"] is not None}


async def _read_silences(reader: BackendReader) -> dict[str, tuple[bool, int]]:
    since, before = reader.now - SILENT_WITHIN, reader.now - ANSWER_WITHIN
    times = {"since": to_us(since), "before": to_us(before)}
    rows = await reader.tx.all(_UNANSWERED_OF_ALL, upstream=reader.upstream.key, **times)
    return {row["downstream"]: (row["reported_at"] is not None, row["unanswered"]) for row in rows}


async def read_all_figures(reader: BackendReader, states: BackendStates) -> Overview:
    """The same facts with figures for each part of the window."""
    width = reader.window.width // timedelta(microseconds=1)
    statement = _PARTS_BY_DAYS if reader.window.whole_days else _PARTS_BY_HOURS
    by_backend: defaultdict[str, list[Row]] = defaultdict(list)
    for row in await reader.tx.all(statement, width=width, **_window_parameters(reader)):
        by_backend[row["downstream"]].append(row)
    figures = {key: make_figures(rows, reader.window) for key, rows in by_backend.items()}
    return Overview(
        _with_history_figures(reader, figures, reader.window),
        await _count_running(reader, states),
        await _read_silences(reader),
        await _read_last_ends(reader),
        empty=make_figures((), reader.window),
    )


def make_overview_row(
    reader: BackendReader, entry: AllowlistEntry, states: BackendStates, overview: Overview
) -> BackendSummary:
    """A backend's row as far as counting and sorting need it."""
    if entry.name.key not in reader.visible.public:
        return make_name_only_summary(entry)
    figures = overview.backend_figures(entry.name.key, reader.kind)
    summary_row = make_summary(entry, figures, states, silent=overview.is_silent(entry))
    return replace(summary_row, never_reported=overview.has_never_reported(entry))


async def _read_figures(reader: BackendReader) -> dict[str, Figures]:
    statement = _WHOLE_BY_DAYS if reader.window.whole_days else _WHOLE_BY_HOURS
    whole = replace(reader.window, parts=1)
    rows = await reader.tx.all(statement, **_window_parameters(reader))
    figures = {row["downstream"]: make_figures((row,), whole) for row in rows}
    return _with_history_figures(reader, figures, reader.window)


def _with_history_figures(
    reader: BackendReader, figures: dict[str, Figures], window: Window
) -> dict[str, Figures]:
    """The figures of the main store, replaced by ClickHouse's where it is used."""
    if reader.history.figures is None:
        return figures
    from_history = {
        key: make_figures(rows, window)
        for key, rows in reader.history.figures.items()
        if key not in reader.history.unfed
    }
    return {**{key: kept for key, kept in figures.items() if key in reader.history.unfed}, **from_history}


async def _count_running(reader: BackendReader, states: BackendStates) -> dict[str, int]:
    if reader.kind is not ResultKind.INGESTED:
        counts: defaultdict[str, int] = defaultdict(int)
        for (key, event), number in states.running.by_event.items():
            counts[key] += number if event in reader.kind.events else 0
        return counts
    rows = await reader.tx.all(_INGESTED_BEGUN, upstream=reader.upstream.key)
    tx, upstream = reader.tx, reader.upstream.key
    return {
        row["downstream"]: await count_ingested_running(
            tx, upstream, row["downstream"], reader.window, reader.now
        )
        for row in rows
    }


def _window_parameters(reader: BackendReader) -> dict[str, str | int]:
    times = {"since": to_us(reader.window.since), "until": to_us(reader.window.until)}
    return {"upstream": reader.upstream.key, "kind": reader.kind.value, **times}


_MOST_IN_FULL = 100
"""With more backends the total's percentiles are computed from sums alone, whichever backends the page shows; and the
summary reads the parts of the backends on its page only."""


async def summary(
    reader: BackendReader, span: Span, *, ingests: bool, pick: ChooseRows[BackendSummary] | None
) -> Summary:
    states = await reader.read_states()
    at_once = reader.has_parts_of_all and len(reader.visible.public) <= _MOST_IN_FULL
    overview = await (read_all_figures if at_once else read_overview)(reader, states)
    backends = [make_overview_row(reader, entry, states, overview) for entry in reader.visible.shown.values()]
    chosen = backends if pick is None else pick(backends)
    rows = [
        await reader.summary(
            reader.visible.entry(backend.name),
            states,
            counted=overview.sums(backend.name.key) if at_once else None,
            silent=backend.silent,
            never_reported=backend.never_reported,
        )
        for backend in chosen
    ]
    if pick is None:
        backends = rows
    in_tree = await read_in_tree_trend(reader.tx, reader.upstream)
    return Summary(
        upstream=reader.upstream,
        span=span,
        kind=reader.kind,
        at=reader.now,
        cursor=await reader.cursor(),
        history=reader.history.state,
        ingests=ingests,
        health=await _read_health(reader, backends, overview),
        allowlist=await allowlist_state(reader.tx, reader.upstream, reader.visible),
        levels=_group_by_level(backends),
        rows=tuple(rows),
        in_tree=in_tree,
        attention=await _read_attention(reader, backends, states, in_tree),
    )


async def _read_attention(
    reader: BackendReader, backends: list[BackendSummary], states: BackendStates, in_tree: InTreeTrend | None
) -> Attention:
    """What needs attention, whatever kind and range the page shows."""
    silent = [backend.name.key for backend in backends if backend.silent and not backend.suspended]
    marks = TroubleMarks(silent, states.suspended, in_tree, states.demotions)
    facts = await read_attention_facts(reader.tx, reader.upstream, reader.visible, marks, reader.now)
    return list_attention(facts, reader.now)


async def metrics_view(
    reader: BackendReader, span: Span, *, ingests: bool, pick: ChooseRows[BackendMetrics] | None
) -> MetricsView:
    states = await read_backend_states(reader.tx, reader.upstream)
    overview = await read_all_figures(reader, states)
    backends = [_make_metrics(entry, reader.kind, overview) for entry in reader.visible.public.values()]
    counted = [backend for backend in backends if _is_counted(backend, overview)]
    chosen = backends if pick is None else pick(backends)
    rows = [await _read_in_full(reader, backend, states, overview) for backend in chosen]
    if sum(map(_has_durations, counted)) <= _MOST_IN_FULL:
        read = {row.name: row for row in rows}
        counted = [
            read.get(backend.name) or await _read_in_full(reader, backend, states, overview)
            for backend in counted
        ]
    total = Figures.sum_up([overview.empty, *(backend.figures for backend in counted)])
    return MetricsView(
        upstream=reader.upstream,
        span=span,
        kind=reader.kind,
        at=reader.now,
        cursor=await reader.cursor(),
        history=reader.history.state,
        ingests=ingests,
        total=replace(total, last_result=await _read_newest_result(reader, counted)),
        backends=tuple(rows if pick is None else backends),
        rows=tuple(rows),
    )


def _make_metrics(entry: AllowlistEntry, kind: ResultKind, overview: Overview) -> BackendMetrics:
    return BackendMetrics(
        name=entry.name,
        level=entry.level,
        probe=bool(entry.expect),
        figures=_without_results_below_l2(entry.level, overview.backend_figures(entry.name.key, kind)),
        silent=overview.is_silent(entry),
    )


def _is_counted(backend: BackendMetrics, overview: Overview) -> bool:
    if backend.probe or backend.level < Level.L2:
        return False
    key = backend.name.key
    return key in overview.figures or key in overview.running or backend.figures.last_result is not None


async def _read_in_full(
    reader: BackendReader, backend: BackendMetrics, states: BackendStates, overview: Overview
) -> BackendMetrics:
    """A backend with its last result, and with exact durations where they are few."""
    if _has_durations(backend):
        key = backend.name.key
        counted = overview.sums(key) if reader.has_parts_of_all else None
        figures = await reader.figures(key, states, parts=True, counted=counted)
        return replace(backend, figures=_without_results_below_l2(backend.level, figures))
    if backend.figures.last_result is None:
        return backend
    last = await read_last(reader.tx, reader.upstream.key, backend.name.key, reader.kind)
    return replace(backend, figures=replace(backend.figures, last_result=last))


def _has_durations(backend: BackendMetrics) -> bool:
    return bool(backend.figures.queue.known or backend.figures.execution.known)


async def _read_newest_result(reader: BackendReader, backends: list[BackendMetrics]) -> LastResult | None:
    ended = [
        (backend.figures.last_result.at, backend.name) for backend in backends if backend.figures.last_result
    ]
    if not ended:
        return None
    _, name = max(ended)
    return await read_last(reader.tx, reader.upstream.key, name.key, reader.kind)


def _without_results_below_l2(level: Level, figures: Figures) -> Figures:
    """Below L2 only dispatches count: results of a time at a higher level are not shown as present ones."""
    if level >= Level.L2:
        return figures
    return Figures(
        parts=tuple(Part(at=part.at, sent=part.sent, delay_s=part.delay_s) for part in figures.parts)
    )


async def _read_health(
    reader: BackendReader, backends: list[BackendSummary], overview: Overview
) -> RelayHealth:
    """The relay's own state, which does not depend on the selected kind of event."""
    health = await relay_health(reader.tx, reader.upstream, reader.window.since, reader.now)
    ended = (
        overview.last_result_time(backend.name.key, *OWN_KINDS) for backend in backends if backend.figures
    )
    newest: datetime | None = max((at for at in ended if at is not None), default=None)
    probes = [backend for backend in backends if backend.probe and not backend.name_only]
    return replace(
        health,
        last_result_at=newest,
        probes=tuple([await _read_probe(reader, probe) for probe in probes]),
    )


async def _read_probe(reader: BackendReader, backend: BackendSummary) -> Probe:
    backend_key = (reader.tx, reader.upstream.key, backend.name.key)
    last = await read_last(*backend_key, *OWN_KINDS) if backend.figures else None
    return Probe(backend.name, last, is_stale(last, reader.now, silent=backend.silent))


def _group_by_level(backends: list[BackendSummary]) -> tuple[tuple[Level, tuple[BackendSummary, ...]], ...]:
    """L4 first, and in each level the worst first."""
    grouped = (
        (level, sorted((b for b in backends if b.level is level), key=_trouble_key)) for level in Level
    )
    return tuple((level, tuple(group)) for level, group in reversed([*grouped]) if group)


def _trouble_key(backend: BackendSummary) -> tuple[bool, float, RepoName]:
    rate = backend.figures.tally.pass_rate if backend.figures else None
    troubled = backend.silent or backend.suspended or backend.alarm is not None
    troubled = troubled or (backend.never_reported and backend.level is Level.L4)
    return not troubled, 2.0 if rate is None else rate, backend.name
