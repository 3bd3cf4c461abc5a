"""The read models behind pages, JSON API, live events and probes: each view is one snapshot of the store.

Nothing here writes. What may be seen is decided by the allowlist in force (`views_listed`), what counts by
`decide.statistics.figures`; the questions themselves stand in the `views_*` modules beside this one.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from crcr.decide.checks.gate import GatePolicy
from crcr.decide.github.repository_setup import SetupFacts
from crcr.decide.health.relay import Health
from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.backend import (
    BackendMetrics,
    BackendPage,
    BackendQuery,
    BadgeView,
    JobDetail,
    JobKey,
    MetricsView,
)
from crcr.decide.views.commit import CommitView, PullView, WaiverPage
from crcr.decide.views.joining import RefusalList, SandboxPage, SandboxQuery
from crcr.decide.views.logs import (
    AuditPage,
    AuditQuery,
    DeliveryQuery,
    EffectPage,
    EffectQuery,
    SearchView,
    WaiverQuery,
)
from crcr.decide.views.overview import (
    AllowlistView,
    BackendSummary,
    Changes,
    ChooseRows,
    DeliveryPage,
    DeliveryView,
    EffectsView,
    JobPage,
    JobQuery,
    Summary,
    Vitals,
)
from crcr.errors import NotFound
from crcr.record.clickhouse.history import NO_ANSWER, HistoryAnswer, HistoryReader
from crcr.record.store.database import Database, Tx, Unit
from crcr.record.views.backends.backend_rows import BackendReader
from crcr.record.views.backends.badge import badge_view
from crcr.record.views.backends.jobs import job_detail, job_page
from crcr.record.views.backends.overview import backend_page, metrics_view, summary
from crcr.record.views.commits.commit_backends import CommitReader, commit_reader
from crcr.record.views.commits.pull_and_commit import commit_view, pull_view
from crcr.record.views.commits.waivers import waiver_list, waiver_page
from crcr.record.views.joining.sandbox import not_shown, sandbox_page
from crcr.record.views.joining.setup import refusal_list, setup_facts
from crcr.record.views.logs.audit import audit_page
from crcr.record.views.logs.deliveries import delivery_page, one_delivery
from crcr.record.views.logs.effects import effect_page
from crcr.record.views.logs.search import JOBS_BACK, MOST, asked_of_history, search
from crcr.record.views.relay.health import HealthViews
from crcr.record.views.relay.metrics import queues_of, watched_of
from crcr.record.views.relay.state import changes_after, effects_view, open_gates, vitals_of
from crcr.record.views.visibility import ListReader, Seen, allowlist_view, who_is_seen

T = TypeVar("T")

DEFAULT_TIMEOUTS = GatePolicy(gate_timeout=timedelta(hours=8), job_timeout=timedelta(hours=6))
"""What the settings say when nobody has set them."""

SANDBOX_OFF = (
    "its operator can turn it on with CRCR_SANDBOX=on; reports of allowlisted repositories need no sandbox"
)


class SqlViews:
    """Serves the show room's `Views`, `ChangeLog` and `Pulse`."""

    def __init__(
        self,
        database: Database,
        lists: ListReader,
        upstreams: tuple[RepoName, ...],
        timeouts: GatePolicy = DEFAULT_TIMEOUTS,
        *,
        ingests: bool = False,
        sandbox: bool = False,
        everything: bool = False,
        history: HistoryReader | None = None,
    ) -> None:
        self._database = database
        self._history = history or HistoryReader(database)
        self._lists = lists
        self._upstreams = upstreams
        self._timeouts = timeouts
        self._ingests = ingests
        self._sandbox = sandbox
        self._everything = everything

    def for_admins(self) -> "SqlViews":
        return SqlViews(
            self._database,
            self._lists,
            self._upstreams,
            self._timeouts,
            ingests=self._ingests,
            sandbox=self._sandbox,
            everything=True,
            history=self._history,
        )

    async def summary(
        self,
        upstream: RepoName,
        span: Span,
        now: datetime,
        *,
        kind: ResultKind = ResultKind.PULLS,
        pick: ChooseRows[BackendSummary] | None = None,
    ) -> Summary:
        told = await self._history.of_all(upstream, kind, Window.of(span, now), now)

        async def unit(tx: Tx) -> Summary:
            reader = await self._reader(tx, upstream, span, kind, now, told=told)
            return await summary(reader, span, ingests=self._ingests, pick=pick)

        return await self._read(unit)

    async def backend(self, query: BackendQuery, now: datetime) -> BackendPage:
        window = Window.of(query.span, now)
        told = await self._history.of_one(query.upstream, query.downstream, query.kind, window, now)

        async def unit(tx: Tx) -> BackendPage:
            reader = await self._reader(tx, query.upstream, query.span, query.kind, now, told=told)
            return await backend_page(reader, query, ingests=self._ingests)

        return await self._read(unit)

    async def job(self, upstream: RepoName, downstream: RepoName, key: JobKey) -> JobDetail:
        async def unit(tx: Tx) -> JobDetail:
            return await job_detail(tx, upstream, downstream, key, await self._seen(tx, upstream))

        return await self._read(unit)

    async def refusals(self, upstream: RepoName, downstream: RepoName, now: datetime) -> RefusalList:
        async def unit(tx: Tx) -> RefusalList:
            return await refusal_list(tx, upstream, downstream, await self._seen(tx, upstream), now)

        return await self._read(unit)

    async def sandbox(self, query: SandboxQuery, now: datetime) -> SandboxPage:
        if not self._sandbox:
            raise NotFound("the sandbox is off on this relay", hint=SANDBOX_OFF)

        async def unit(tx: Tx) -> SandboxPage:
            hidden = await not_shown(tx, self._lists, self._upstreams)
            return await sandbox_page(tx, query, hidden, now, everything=self._everything)

        return await self._read(unit)

    async def metrics(
        self,
        upstream: RepoName,
        span: Span,
        now: datetime,
        *,
        kind: ResultKind = ResultKind.PULLS,
        pick: ChooseRows[BackendMetrics] | None = None,
    ) -> MetricsView:
        told = await self._history.of_all(upstream, kind, Window.of(span, now), now)

        async def unit(tx: Tx) -> MetricsView:
            reader = await self._reader(tx, upstream, span, kind, now, told=told)
            return await metrics_view(reader, span, ingests=self._ingests, pick=pick)

        return await self._read(unit)

    async def badge(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, span: Span, now: datetime
    ) -> BadgeView:
        told = await self._history.of_one(upstream, downstream, kind, Window.of(span, now), now)

        async def unit(tx: Tx) -> BadgeView:
            return await badge_view(
                await self._reader(tx, upstream, span, kind, now, told=told), downstream, span
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
            seen = await self._seen(tx, upstream)
            return await waiver_page(tx, upstream, seen, now, after=after, limit=limit)

        return await self._read(unit)

    async def waiver_page(self, query: WaiverQuery, now: datetime) -> WaiverPage:
        async def unit(tx: Tx) -> WaiverPage:
            return await waiver_list(tx, query, await self._seen(tx, query.upstream), now)

        return await self._read(unit)

    async def jobs(self, query: JobQuery) -> JobPage:
        async def unit(tx: Tx) -> JobPage:
            seen = await self._seen(tx, query.upstream)
            if query.downstream is not None:
                seen.entry(query.downstream)
            return await job_page(tx, query, seen)

        return await self._read(unit)

    async def deliveries(self, query: DeliveryQuery) -> DeliveryPage:
        async def unit(tx: Tx) -> DeliveryPage:
            return await delivery_page(tx, query, await self._seen(tx, query.upstream))

        return await self._read(unit)

    async def delivery(self, upstream: RepoName, guid: str) -> DeliveryView:
        async def unit(tx: Tx) -> DeliveryView:
            return await one_delivery(tx, upstream, guid, await self._seen(tx, upstream))

        return await self._read(unit)

    async def effects(self, upstream: RepoName, now: datetime) -> EffectsView:
        async def unit(tx: Tx) -> EffectsView:
            return await effects_view(tx, upstream, await self._seen(tx, upstream), now)

        return await self._read(unit)

    async def effect_page(self, query: EffectQuery) -> EffectPage:
        async def unit(tx: Tx) -> EffectPage:
            return await effect_page(
                tx, query, await self._seen(tx, query.upstream), everything=self._everything
            )

        return await self._read(unit)

    async def audit(self, query: AuditQuery) -> AuditPage:
        async def unit(tx: Tx) -> AuditPage:
            return await audit_page(
                tx, query, await self._seen(tx, query.upstream), everything=self._everything
            )

        return await self._read(unit)

    async def search(
        self, upstream: RepoName, text: str, now: datetime, *, after: tuple[str | int, ...] | None = None
    ) -> SearchView:
        part = asked_of_history(text, upstream) if after is None else None
        told = (
            await self._history.of_names(upstream, part, now - JOBS_BACK, MOST + 1, now)
            if part
            else NO_ANSWER
        )

        async def unit(tx: Tx) -> SearchView:
            return await search(
                tx, upstream, await self._seen(tx, upstream), text, now, told=told, after=after
            )

        return await self._read(unit)

    async def allowlist(self, upstream: RepoName) -> AllowlistView:
        async def unit(tx: Tx) -> AllowlistView:
            return await allowlist_view(tx, upstream, await self._seen(tx, upstream))

        return await self._read(unit)

    async def setup(self, upstream: RepoName, repo: RepoName, now: datetime) -> SetupFacts:
        async def unit(tx: Tx) -> SetupFacts:
            return await setup_facts(tx, upstream, repo, await self._seen(tx, upstream), now)

        return await self._read(unit)

    async def changes(self, after: int | None, limit: int) -> Changes:
        async def unit(tx: Tx) -> Changes:
            return await changes_after(
                tx, self._lists, self._upstreams, after, limit, everything=self._everything
            )

        return await self._read(unit)

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        return await HealthViews(self._database, self._upstreams).health(now)

    async def vitals(self, now: datetime) -> list[Vitals]:
        async def unit(tx: Tx) -> list[Vitals]:
            return [
                replace(
                    await vitals_of(tx, each, now),
                    open_gates=await open_gates(tx, each),
                    queues=await queues_of(tx, each, now),
                    watched=await watched_of(tx, each, now),
                )
                for each in self._upstreams
            ]

        return await self._read(unit)

    async def _seen(self, tx: Tx, upstream: RepoName) -> Seen:
        return await who_is_seen(tx, self._lists, upstream, everything=self._everything)

    async def _reader(
        self, tx: Tx, upstream: RepoName, span: Span, kind: ResultKind, now: datetime, *, told: HistoryAnswer
    ) -> BackendReader:
        seen = await self._seen(tx, upstream)
        return BackendReader(tx, upstream, seen, Window.of(span, now), kind, now, told)

    async def _commits(self, tx: Tx, upstream: RepoName, now: datetime) -> CommitReader:
        seen = await self._seen(tx, upstream)
        return await commit_reader(tx, self._lists, upstream, seen=seen, timeouts=self._timeouts, now=now)

    async def _read(self, unit: Unit[T]) -> T:
        return await self._database.read(unit)
