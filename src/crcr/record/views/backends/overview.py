"""The views that are mostly numbers: all backends of an upstream, one backend's page, and how they did over time."""

from dataclasses import replace
from datetime import datetime

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.model import Level, RepoName
from crcr.decide.statistics.figures import Figures, LastResult, Part, is_stale
from crcr.decide.statistics.window import ResultKind, Span
from crcr.decide.views.backend import (
    BackendMetrics,
    BackendPage,
    BackendQuery,
    JobDetail,
    JobFigures,
    Matrix,
    MetricsView,
)
from crcr.decide.views.overview import BackendSummary, ChooseRows, Probe, RelayHealth, Summary
from crcr.errors import NotFound
from crcr.record.repositories.downstreams import level_history
from crcr.record.views.backends.backend_rows import (
    OWN_KINDS,
    BackendReader,
    BackendStates,
    Overview,
    line,
    read_all_figures,
    read_overview,
    read_standing,
)
from crcr.record.views.backends.figures import read_last
from crcr.record.views.backends.jobs import job_detail, jobs_by_name, worst_first
from crcr.record.views.backends.matrix import MatrixReader, read_failures
from crcr.record.views.joining.setup import refusals_of
from crcr.record.views.relay.state import relay_health
from crcr.record.views.visibility import allowlist_state

_MOST_IN_FULL = 100
"""Of more backends the total's percentiles are read from their sums alone, whichever of them the page shows."""


async def summary(
    reader: BackendReader, span: Span, *, ingests: bool, pick: ChooseRows[BackendSummary] | None
) -> Summary:
    standing = await read_standing(reader.tx, reader.upstream)
    overview = await read_overview(reader, standing)
    backends = [line(reader, entry, standing, overview) for entry in reader.visible.shown.values()]
    chosen = backends if pick is None else pick(backends)
    rows = [await reader.summary(reader.visible.entry(backend.name), standing) for backend in chosen]
    if pick is None:
        backends = rows
    return Summary(
        upstream=reader.upstream,
        span=span,
        kind=reader.kind,
        at=reader.now,
        cursor=await reader.cursor(),
        history=reader.told.state,
        ingests=ingests,
        health=await _health(reader, backends, overview),
        allowlist=await allowlist_state(reader.tx, reader.upstream, reader.visible),
        levels=_by_level(backends),
        rows=tuple(rows),
    )


async def backend_page(reader: BackendReader, query: BackendQuery, *, ingests: bool) -> BackendPage:
    entry = reader.visible.entry(query.downstream)
    tx, upstream = reader.tx, reader.upstream
    public, reporting = entry.name.key in reader.visible.public, entry.name.key in reader.visible.reporting
    matrix = await MatrixReader(reader, query).read() if public else Matrix()
    by_name, more = await _by_name(reader, entry.name) if reporting else ((), 0)
    return BackendPage(
        query=replace(query, downstream=entry.name),
        at=reader.now,
        cursor=await reader.cursor(),
        history=reader.told.state,
        ingests=ingests,
        summary=await reader.summary(entry, await read_standing(tx, upstream), parts=True),
        matrix=matrix,
        jobs=by_name,
        jobs_left_out=more,
        failures=await read_failures(reader, matrix.rows),
        levels=await level_history(tx, upstream, entry.name) if public else (),
        detail=await _detail(reader, query),
        refusals=await refusals_of(tx, upstream, entry.name, reader.visible, reader.now),
    )


async def metrics_view(
    reader: BackendReader, span: Span, *, ingests: bool, pick: ChooseRows[BackendMetrics] | None
) -> MetricsView:
    standing = await read_standing(reader.tx, reader.upstream)
    overview = await read_all_figures(reader, standing)
    backends = [_metrics(entry, reader.kind, overview) for entry in reader.visible.public.values()]
    counted = [backend for backend in backends if _is_counted(backend, overview)]
    chosen = backends if pick is None else pick(backends)
    rows = [await _read_in_full(reader, backend, standing) for backend in chosen]
    if sum(map(_has_durations, counted)) <= _MOST_IN_FULL:
        read = {row.name: row for row in rows}
        counted = [
            read.get(backend.name) or await _read_in_full(reader, backend, standing) for backend in counted
        ]
    total = sum((backend.figures for backend in counted), overview.empty)
    return MetricsView(
        upstream=reader.upstream,
        span=span,
        kind=reader.kind,
        at=reader.now,
        cursor=await reader.cursor(),
        history=reader.told.state,
        ingests=ingests,
        total=replace(total, last_result=await _newest_of(reader, counted)),
        backends=tuple(rows if pick is None else backends),
        rows=tuple(rows),
    )


def _metrics(entry: AllowlistEntry, kind: ResultKind, overview: Overview) -> BackendMetrics:
    return BackendMetrics(
        name=entry.name,
        level=entry.level,
        probe=bool(entry.expect),
        figures=_recorded(entry.level, overview.figures_of(entry.name.key, kind)),
        silent=overview.silent(entry),
    )


def _is_counted(backend: BackendMetrics, overview: Overview) -> bool:
    if backend.probe or backend.level < Level.L2:
        return False
    key = backend.name.key
    return key in overview.figures or key in overview.running or backend.figures.last_result is not None


async def _read_in_full(
    reader: BackendReader, backend: BackendMetrics, standing: BackendStates
) -> BackendMetrics:
    """A backend with its last result, and with the durations themselves where they are few."""
    if _has_durations(backend):
        figures = _recorded(backend.level, await reader.figures(backend.name.key, standing, parts=True))
        return replace(backend, figures=figures)
    if backend.figures.last_result is None:
        return backend
    last = await read_last(reader.tx, reader.upstream.key, backend.name.key, reader.kind)
    return replace(backend, figures=replace(backend.figures, last_result=last))


def _has_durations(backend: BackendMetrics) -> bool:
    return bool(backend.figures.queue.known or backend.figures.execution.known)


async def _newest_of(reader: BackendReader, backends: list[BackendMetrics]) -> LastResult | None:
    ended = [
        (backend.figures.last_result.at, backend.name) for backend in backends if backend.figures.last_result
    ]
    if not ended:
        return None
    _, name = max(ended)
    return await read_last(reader.tx, reader.upstream.key, name.key, reader.kind)


def _recorded(level: Level, figures: Figures) -> Figures:
    """Of who is only notified just what was sent: nobody shows results of its better days as its own."""
    if level >= Level.L2:
        return figures
    return Figures(
        parts=tuple(Part(at=part.at, sent=part.sent, delay_s=part.delay_s) for part in figures.parts)
    )


async def _by_name(reader: BackendReader, name: RepoName) -> tuple[tuple[JobFigures, ...], int]:
    told = reader.told.by_name_of(name.key)
    if told is not None:
        return worst_first(told)
    return await jobs_by_name(reader.tx, reader.upstream, name, reader.kind, reader.window)


async def _detail(reader: BackendReader, query: BackendQuery) -> JobDetail | None:
    if query.detail is None:
        return None
    try:
        return await job_detail(reader.tx, reader.upstream, query.downstream, query.detail, reader.visible)
    except NotFound:
        return None


async def _health(reader: BackendReader, backends: list[BackendSummary], overview: Overview) -> RelayHealth:
    """The relay's own state, which is the same whatever kind of event the reader looks at."""
    health = await relay_health(reader.tx, reader.upstream, reader.window.since, reader.now)
    ended = (overview.last_at(backend.name.key, *OWN_KINDS) for backend in backends if backend.figures)
    newest: datetime | None = max((at for at in ended if at is not None), default=None)
    probes = [backend for backend in backends if backend.probe and not backend.name_only]
    return replace(
        health,
        last_result_at=newest,
        probes=tuple([await _probe(reader, probe) for probe in probes]),
    )


async def _probe(reader: BackendReader, backend: BackendSummary) -> Probe:
    where = (reader.tx, reader.upstream.key, backend.name.key)
    last = await read_last(*where, *OWN_KINDS) if backend.figures else None
    return Probe(backend.name, last, is_stale(last, reader.now, silent=backend.silent))


def _by_level(backends: list[BackendSummary]) -> tuple[tuple[Level, tuple[BackendSummary, ...]], ...]:
    """L4 first, and in each level the worst first."""
    grouped = ((level, sorted((b for b in backends if b.level is level), key=_worst)) for level in Level)
    return tuple((level, tuple(group)) for level, group in reversed([*grouped]) if group)


def _worst(backend: BackendSummary) -> tuple[bool, float, RepoName]:
    rate = backend.figures.tally.pass_rate if backend.figures else None
    troubled = backend.silent or backend.suspended or backend.alarm is not None
    return not troubled, 2.0 if rate is None else rate, backend.name
