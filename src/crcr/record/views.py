"""The read models behind pages, JSON API, live events and probes: each view is one snapshot of the store.

Nothing here writes. What may be seen is decided by the allowlist in force (`views_listed`), what counts by
`decide.numbers`; the questions themselves stand in the `views_*` modules beside this one.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from crcr.decide.gate import Policy
from crcr.decide.model import Level, RepoName
from crcr.decide.views import (
    AllowlistView,
    BackendPage,
    BackendSummary,
    Changes,
    DeliveryPage,
    DeliveryView,
    EffectsView,
    JobPage,
    JobQuery,
    Span,
    Summary,
    Vitals,
)
from crcr.decide.views_commit import CommitView, PullView, WaiverPage
from crcr.record.database import Database, Tx, Unit
from crcr.record.views_backends import BackendReader, read_standing
from crcr.record.views_commit import CommitReader, commit_reader
from crcr.record.views_deliveries import delivery_page, one_delivery
from crcr.record.views_jobs import job_page
from crcr.record.views_listed import ListReader, allowlist_state, allowlist_view, who_is_seen
from crcr.record.views_matrix import Matrix, read_failures, read_matrix
from crcr.record.views_pull import commit_view, pull_view
from crcr.record.views_relay import (
    changes_after,
    effects_view,
    newest_change,
    open_gates,
    relay_health,
    vitals_of,
)
from crcr.record.views_waivers import waiver_page

T = TypeVar("T")

DEFAULT_TIMEOUTS = Policy(gate_timeout=timedelta(hours=8), job_timeout=timedelta(hours=6))
"""What the settings say when nobody has set them."""


class SqlViews:
    """Serves the show room's `Views`, `ChangeLog` and `Pulse`."""

    def __init__(
        self,
        database: Database,
        lists: ListReader,
        upstreams: tuple[RepoName, ...],
        timeouts: Policy = DEFAULT_TIMEOUTS,
    ) -> None:
        self._database = database
        self._lists = lists
        self._upstreams = upstreams
        self._timeouts = timeouts

    async def summary(self, upstream: RepoName, span: Span, now: datetime) -> Summary:
        async def unit(tx: Tx) -> Summary:
            reader = await self._reader(tx, upstream, span, now)
            standing = await read_standing(tx, upstream)
            backends = [await reader.summary(each, standing) for each in reader.seen.shown.values()]
            health = await relay_health(tx, upstream, reader.since, now)
            return Summary(
                upstream=upstream,
                span=span,
                at=now,
                cursor=await newest_change(tx),
                health=replace(health, last_result_at=_last_result_at(backends)),
                allowlist=await allowlist_state(tx, upstream, reader.seen),
                levels=_by_level(backends),
            )

        return await self._read(unit)

    async def backend(
        self, upstream: RepoName, downstream: RepoName, span: Span, now: datetime
    ) -> BackendPage:
        async def unit(tx: Tx) -> BackendPage:
            reader = await self._reader(tx, upstream, span, now)
            entry = reader.seen.entry(downstream)
            public = downstream.key in reader.seen.public
            matrix = await read_matrix(reader, entry.name) if public else Matrix()
            return BackendPage(
                upstream=upstream,
                span=span,
                at=now,
                cursor=await newest_change(tx),
                summary=await reader.summary(entry, await read_standing(tx, upstream)),
                columns=matrix.columns,
                columns_left_out=matrix.left_out,
                rows=matrix.rows,
                failures=await read_failures(tx, upstream, reader.seen, matrix.rows),
            )

        return await self._read(unit)

    async def pull(self, upstream: RepoName, number: int, now: datetime) -> PullView:
        async def unit(tx: Tx) -> PullView:
            return await pull_view(await self._commits(tx, upstream, now), number)

        return await self._read(unit)

    async def commit(
        self, upstream: RepoName, head_sha: str, now: datetime, *, delivery: str | None = None
    ) -> CommitView:
        async def unit(tx: Tx) -> CommitView:
            return await commit_view(await self._commits(tx, upstream, now), head_sha, delivery)

        return await self._read(unit)

    async def waivers(
        self, upstream: RepoName, now: datetime, *, after: tuple[str | int, ...] | None, limit: int
    ) -> WaiverPage:
        async def unit(tx: Tx) -> WaiverPage:
            seen = await who_is_seen(tx, self._lists, upstream)
            return await waiver_page(tx, upstream, seen, now, after=after, limit=limit)

        return await self._read(unit)

    async def jobs(self, query: JobQuery) -> JobPage:
        async def unit(tx: Tx) -> JobPage:
            seen = await who_is_seen(tx, self._lists, query.upstream)
            if query.downstream is not None:
                seen.entry(query.downstream)
            return await job_page(tx, query, seen)

        return await self._read(unit)

    async def deliveries(
        self, upstream: RepoName, *, after: tuple[str | int, ...] | None, limit: int
    ) -> DeliveryPage:
        async def unit(tx: Tx) -> DeliveryPage:
            seen = await who_is_seen(tx, self._lists, upstream)
            return await delivery_page(tx, upstream, seen, after=after, limit=limit)

        return await self._read(unit)

    async def delivery(self, upstream: RepoName, guid: str) -> DeliveryView:
        async def unit(tx: Tx) -> DeliveryView:
            return await one_delivery(tx, upstream, guid, await who_is_seen(tx, self._lists, upstream))

        return await self._read(unit)

    async def effects(self, upstream: RepoName, now: datetime) -> EffectsView:
        async def unit(tx: Tx) -> EffectsView:
            return await effects_view(tx, upstream, await who_is_seen(tx, self._lists, upstream), now)

        return await self._read(unit)

    async def allowlist(self, upstream: RepoName) -> AllowlistView:
        return await self._read(lambda tx: allowlist_view(tx, self._lists, upstream))

    async def changes(self, after: int | None, limit: int) -> Changes:
        return await self._read(lambda tx: changes_after(tx, self._lists, self._upstreams, after, limit))

    async def vitals(self, now: datetime) -> list[Vitals]:
        async def unit(tx: Tx) -> list[Vitals]:
            return [
                replace(await vitals_of(tx, each, now), open_gates=await open_gates(tx, each))
                for each in self._upstreams
            ]

        return await self._read(unit)

    async def _reader(self, tx: Tx, upstream: RepoName, span: Span, now: datetime) -> BackendReader:
        seen = await who_is_seen(tx, self._lists, upstream)
        return BackendReader(tx, upstream, seen, now - span.length, now)

    async def _commits(self, tx: Tx, upstream: RepoName, now: datetime) -> CommitReader:
        return await commit_reader(tx, self._lists, upstream, self._timeouts, now)

    async def _read(self, unit: Unit[T]) -> T:
        return await self._database.read(unit)


def _by_level(backends: list[BackendSummary]) -> tuple[tuple[Level, tuple[BackendSummary, ...]], ...]:
    """L4 first, and in each level the worst first."""
    grouped = ((level, sorted((b for b in backends if b.level is level), key=_worst)) for level in Level)
    return tuple((level, tuple(group)) for level, group in reversed([*grouped]) if group)


def _worst(backend: BackendSummary) -> tuple[bool, float, RepoName]:
    rate = backend.figures.tally.pass_rate if backend.figures else None
    troubled = backend.silent or backend.suspended or backend.alarm is not None
    return not troubled, 2.0 if rate is None else rate, backend.name


def _last_result_at(backends: list[BackendSummary]) -> datetime | None:
    results = (each.figures.last_result for each in backends if each.figures)
    return max((each.at for each in results if each), default=None)
