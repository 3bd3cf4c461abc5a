"""The read models behind pages, JSON API, live events and probes: each view is one snapshot of the store.

Nothing here writes. The allowlist in force decides which backends are visible (`record.views.visibility`), and
`decide.statistics.figures` defines every number. The queries are in the sub-packages beside this module.
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import TypeVar

from crcr.decide.checks.gate import GatePolicies, GatePolicy
from crcr.decide.compatibility import CompatQuery, CompatView, LatestGreen
from crcr.decide.feeds.backend_results import BackendFeed
from crcr.decide.github.repository_setup import SetupFacts
from crcr.decide.health.relay import Health
from crcr.decide.levels.standings import LevelPolicy, LevelsView
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
from crcr.decide.views.bisections import BisectionDetail, BisectionPage, BisectionQuery, BisectionView
from crcr.decide.views.commit import CommitView, PairView, PullView, WaiverPage
from crcr.decide.views.culprits import CulpritQuery, JobCulprits
from crcr.decide.views.failing import FailingPage, FailingQuery
from crcr.decide.views.failures import FailurePage, FailureQuery, GroupPage
from crcr.decide.views.grids import CommitList, CommitListQuery, PullList, PullListQuery
from crcr.decide.views.joining import RefusalList, SandboxPage, SandboxQuery
from crcr.decide.views.logs import (
    AuditPage,
    AuditQuery,
    DeliveryQuery,
    EffectPage,
    EffectQuery,
    NoticePage,
    NoticeQuery,
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
from crcr.decide.views.search import HitKind, SearchQuery, SearchView, Suggestions
from crcr.errors import NotFound
from crcr.record.clickhouse.history import NO_ANSWER, HistoryAnswer, HistoryReader
from crcr.record.store.database import Database, Tx
from crcr.record.views.backends.backend_page import backend_page
from crcr.record.views.backends.backend_reader import BackendReader
from crcr.record.views.backends.badge import badge_view
from crcr.record.views.backends.job_results import find_job, read_job_results
from crcr.record.views.backends.jobs import job_detail, job_page
from crcr.record.views.backends.overview import metrics_view, summary
from crcr.record.views.commits.commit_backends import CommitReader, commit_reader
from crcr.record.views.commits.pairs import read_pairs_of_backend
from crcr.record.views.commits.pull_and_commit import commit_view, pull_view
from crcr.record.views.commits.waivers import waiver_list, waiver_page
from crcr.record.views.compatibility.matrix import compat_view, latest_green
from crcr.record.views.culprits.bisections import bisection_detail, bisection_page, bisections_by_id
from crcr.record.views.culprits.job_culprits import culprit_list
from crcr.record.views.failures.failing_jobs import failing_page
from crcr.record.views.failures.groups import failure_page, group_page
from crcr.record.views.feeds.backend_results import backend_feed
from crcr.record.views.grids.commit_list import commit_list
from crcr.record.views.grids.pull_list import pull_list
from crcr.record.views.joining.sandbox import find_hidden_names, sandbox_page
from crcr.record.views.joining.setup import refusal_list, setup_facts
from crcr.record.views.levels import levels_view
from crcr.record.views.logs.audit import audit_page
from crcr.record.views.logs.deliveries import delivery_page, read_delivery
from crcr.record.views.logs.effects import effect_page
from crcr.record.views.logs.notices import notice_page
from crcr.record.views.relay.health import HealthViews
from crcr.record.views.relay.metrics import read_alarm_facts, read_queues
from crcr.record.views.relay.state import changes_after, effects_view, open_gates, read_vitals
from crcr.record.views.search.jobs import JOBS_BACK, MOST_JOBS
from crcr.record.views.search.search import MOST, search, suggest
from crcr.record.views.search.search_terms import history_search_text
from crcr.record.views.visibility import AllowlistReader, VisibleBackends, allowlist_view, visible_backends

T = TypeVar("T")

DEFAULT_GATES = GatePolicies(GatePolicy(gate_timeout=timedelta(hours=8), job_timeout=timedelta(hours=6)))
"""The defaults of the settings."""

SANDBOX_OFF = (
    "its operator can turn it on with CRCR_SANDBOX=on; reports of allowlisted repositories need no sandbox"
)


class SqlViews:
    """Serves the show room's `Views`, `ChangeLog` and `Pulse`."""

    def __init__(
        self,
        database: Database,
        lists: AllowlistReader,
        upstreams: tuple[RepoName, ...],
        gates: GatePolicies = DEFAULT_GATES,
        *,
        ingests: bool = False,
        sandbox: bool = False,
        everything: bool = False,
        history: HistoryReader | None = None,
        channel_addresses: Mapping[str, str] | None = None,
        levels: Mapping[str, LevelPolicy] | None = None,
    ) -> None:
        """`channel_addresses` are by name and masked; only administrators see them."""
        self._channel_addresses = channel_addresses or {}
        self._database = database
        self._history = history or HistoryReader(database)
        self._lists = lists
        self._upstreams = upstreams
        self._gates = gates
        self._ingests = ingests
        self._sandbox = sandbox
        self._everything = everything
        self._levels = levels or {}

    def for_admins(self) -> "SqlViews":
        return SqlViews(
            self._database,
            self._lists,
            self._upstreams,
            self._gates,
            ingests=self._ingests,
            sandbox=self._sandbox,
            everything=True,
            history=self._history,
            channel_addresses=self._channel_addresses,
            levels=self._levels,
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
        history = await self._history.read_all_backends(upstream, kind, Window.of(span, now), now)
        return await self._backend_view(
            upstream,
            span,
            kind,
            now,
            history=history,
            query=lambda reader: summary(reader, span, ingests=self._ingests, pick=pick),
        )

    async def backend(self, query: BackendQuery, now: datetime) -> BackendPage:
        window = Window.of(query.span, now)
        history = await self._history.read_backend(query.upstream, query.downstream, query.kind, window, now)
        return await self._backend_view(
            query.upstream,
            query.span,
            query.kind,
            now,
            history=history,
            query=lambda reader: backend_page(reader, query, ingests=self._ingests),
        )

    async def metrics(
        self,
        upstream: RepoName,
        span: Span,
        now: datetime,
        *,
        kind: ResultKind = ResultKind.PULLS,
        pick: ChooseRows[BackendMetrics] | None = None,
    ) -> MetricsView:
        history = await self._history.read_all_backends(upstream, kind, Window.of(span, now), now)
        return await self._backend_view(
            upstream,
            span,
            kind,
            now,
            history=history,
            query=lambda reader: metrics_view(reader, span, ingests=self._ingests, pick=pick),
        )

    async def badge(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, span: Span, now: datetime
    ) -> BadgeView:
        history = await self._history.read_backend(upstream, downstream, kind, Window.of(span, now), now)
        return await self._backend_view(
            upstream,
            span,
            kind,
            now,
            history=history,
            query=lambda reader: badge_view(reader, downstream, span),
        )

    async def backend_summary(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, span: Span, now: datetime
    ) -> BackendSummary:
        """A backend's line of the summary."""

        async def query(reader: BackendReader) -> BackendSummary:
            entry = reader.visible.entry(downstream)
            return await reader.summary(entry, await reader.read_states(entry.name))

        history = await self._history.read_backend(upstream, downstream, kind, Window.of(span, now), now)
        return await self._backend_view(upstream, span, kind, now, history=history, query=query)

    async def backend_feed(self, upstream: RepoName, downstream: RepoName, now: datetime) -> BackendFeed:
        return await self._view(
            upstream, lambda tx, visible: backend_feed(tx, upstream, downstream, visible, now)
        )

    async def job(self, upstream: RepoName, downstream: RepoName, key: JobKey) -> JobDetail:
        async def unit(tx: Tx, visible: VisibleBackends) -> JobDetail:
            detail = await job_detail(tx, upstream, downstream, key, visible)
            return await read_job_results(tx, detail, visible)

        return await self._view(upstream, unit)

    async def job_by_short_token(self, upstream: RepoName, token: str) -> JobDetail:
        return await self._view(upstream, lambda tx, visible: find_job(tx, upstream, token, visible))

    async def jobs(self, query: JobQuery) -> JobPage:
        async def page(tx: Tx, visible: VisibleBackends) -> JobPage:
            if query.downstream is not None:
                visible.entry(query.downstream)
            return await job_page(tx, query, visible)

        return await self._view(query.upstream, page)

    async def pulls(self, query: PullListQuery) -> PullList:
        return await self._view(query.upstream, lambda tx, visible: pull_list(tx, query, visible))

    async def commits(self, query: CommitListQuery) -> CommitList:
        return await self._view(query.upstream, lambda tx, visible: commit_list(tx, query, visible))

    async def compat(self, query: CompatQuery, now: datetime) -> CompatView:
        return await self._view(query.upstream, lambda tx, visible: compat_view(tx, query, visible, now))

    async def latest_green(self, query: CompatQuery, now: datetime) -> LatestGreen | None:
        return await self._view(query.upstream, lambda tx, visible: latest_green(tx, query, visible, now))

    async def pull(self, upstream: RepoName, number: int, now: datetime) -> PullView:
        return await self._commit_view(upstream, now, lambda reader: pull_view(reader, number))

    async def commit(
        self, upstream: RepoName, head_sha: str, now: datetime, *, delivery: str | None = None
    ) -> CommitView:
        return await self._commit_view(upstream, now, lambda reader: commit_view(reader, head_sha, delivery))

    async def failing(self, query: FailingQuery, now: datetime) -> FailingPage:
        return await self._view(query.upstream, lambda tx, visible: failing_page(tx, query, visible, now))

    async def culprits(self, query: CulpritQuery, now: datetime) -> tuple[JobCulprits, ...]:
        return await self._view(query.upstream, lambda tx, visible: culprit_list(tx, query, visible, now))

    async def backend_pairs(
        self, upstream: RepoName, downstream: RepoName, now: datetime
    ) -> tuple[PairView, ...]:
        return await self._commit_view(
            upstream, now, lambda reader: read_pairs_of_backend(reader, downstream)
        )

    async def bisections(self, query: BisectionQuery) -> BisectionPage:
        return await self._view(query.upstream, lambda tx, visible: bisection_page(tx, query, visible))

    async def bisection(self, upstream: RepoName, bisection_id: int) -> BisectionDetail:
        return await self._view(
            upstream, lambda tx, visible: bisection_detail(tx, upstream, bisection_id, visible)
        )

    async def bisections_by_id(self, upstream: RepoName, ids: Collection[int]) -> dict[int, BisectionView]:
        return await self._view(upstream, lambda tx, visible: bisections_by_id(tx, upstream, ids, visible))

    async def levels(self, upstream: RepoName, now: datetime) -> LevelsView:
        policy = self._level_policy(upstream)
        return await self._view(upstream, lambda tx, visible: levels_view(tx, upstream, visible, policy, now))

    async def waivers(
        self, upstream: RepoName, now: datetime, *, after: tuple[str | int, ...] | None, limit: int
    ) -> WaiverPage:
        return await self._view(
            upstream,
            lambda tx, visible: waiver_page(tx, upstream, visible, now, after=after, limit=limit),
        )

    async def waiver_page(self, query: WaiverQuery, now: datetime) -> WaiverPage:
        return await self._view(query.upstream, lambda tx, visible: waiver_list(tx, query, visible, now))

    async def failures(self, query: FailureQuery, now: datetime) -> FailurePage:
        return await self._view(query.upstream, lambda tx, visible: failure_page(tx, query, visible, now))

    async def failure_group(
        self,
        upstream: RepoName,
        fingerprint: str,
        now: datetime,
        *,
        after: tuple[str | int, ...] | None,
        limit: int,
    ) -> GroupPage:
        return await self._view(
            upstream,
            lambda tx, visible: group_page(tx, upstream, fingerprint, visible, now, after=after, limit=limit),
        )

    async def deliveries(self, query: DeliveryQuery) -> DeliveryPage:
        return await self._view(query.upstream, lambda tx, visible: delivery_page(tx, query, visible))

    async def delivery(self, upstream: RepoName, guid: str) -> DeliveryView:
        return await self._view(upstream, lambda tx, visible: read_delivery(tx, upstream, guid, visible))

    async def effects(self, upstream: RepoName, now: datetime) -> EffectsView:
        return await self._view(upstream, lambda tx, visible: effects_view(tx, upstream, visible, now))

    async def effect_page(self, query: EffectQuery) -> EffectPage:
        return await self._view(
            query.upstream,
            lambda tx, visible: effect_page(tx, query, visible, everything=self._everything),
        )

    async def audit(self, query: AuditQuery) -> AuditPage:
        return await self._view(
            query.upstream,
            lambda tx, visible: audit_page(tx, query, visible, everything=self._everything),
        )

    async def notices(self, query: NoticeQuery) -> NoticePage:
        addresses = self._channel_addresses if self._everything else {}
        return await self._view(
            query.upstream,
            lambda tx, visible: notice_page(
                tx, query, visible, addresses=addresses, everything=self._everything
            ),
        )

    async def search(self, query: SearchQuery, now: datetime) -> SearchView:
        searches_jobs = query.kind is HitKind.JOB or (query.kind is None and query.after is None)
        part = history_search_text(query.text, query.upstream) if searches_jobs else None
        most = MOST + 1 if query.kind is None else MOST_JOBS + 1
        history = (
            await self._history.read_job_names(query.upstream, part, now - JOBS_BACK, most, now)
            if part
            else NO_ANSWER
        )
        return await self._view(
            query.upstream, lambda tx, visible: search(tx, query, visible, now, history=history)
        )

    async def suggest(self, query: SearchQuery, now: datetime) -> Suggestions:
        return await self._view(query.upstream, lambda tx, visible: suggest(tx, query, visible, now))

    async def allowlist(self, upstream: RepoName) -> AllowlistView:
        return await self._view(upstream, lambda tx, visible: allowlist_view(tx, upstream, visible))

    async def setup(self, upstream: RepoName, repo: RepoName, now: datetime) -> SetupFacts:
        return await self._view(upstream, lambda tx, visible: setup_facts(tx, upstream, repo, visible, now))

    async def refusals(self, upstream: RepoName, downstream: RepoName, now: datetime) -> RefusalList:
        return await self._view(
            upstream, lambda tx, visible: refusal_list(tx, upstream, downstream, visible, now)
        )

    async def sandbox(self, query: SandboxQuery, now: datetime) -> SandboxPage:
        if not self._sandbox:
            raise NotFound("the sandbox is off on this relay", hint=SANDBOX_OFF)

        async def unit(tx: Tx) -> SandboxPage:
            hidden = await find_hidden_names(tx, self._lists, self._upstreams)
            return await sandbox_page(tx, query, hidden, now, everything=self._everything)

        return await self._database.read(unit)

    async def changes(self, after: int | None, limit: int) -> Changes:
        return await self._database.read(
            lambda tx: changes_after(
                tx, self._lists, self._upstreams, after, limit, everything=self._everything
            )
        )

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        return await HealthViews(self._database, self._upstreams).health(now)

    async def vitals(self, now: datetime) -> list[Vitals]:
        async def unit(tx: Tx) -> list[Vitals]:
            return [
                replace(
                    await read_vitals(tx, upstream, now),
                    open_gates=await open_gates(tx, upstream),
                    queues=await read_queues(tx, upstream, now),
                    watched=await read_alarm_facts(tx, upstream, now),
                )
                for upstream in self._upstreams
            ]

        return await self._database.read(unit)

    def _level_policy(self, upstream: RepoName) -> LevelPolicy:
        return self._levels.get(upstream.key) or LevelPolicy()

    async def _view(self, upstream: RepoName, query: Callable[[Tx, VisibleBackends], Awaitable[T]]) -> T:
        """Run one query about an upstream in its own snapshot, limited to the backends that are visible."""

        async def unit(tx: Tx) -> T:
            visible = await visible_backends(tx, self._lists, upstream, everything=self._everything)
            return await query(tx, visible)

        return await self._database.read(unit)

    async def _backend_view(
        self,
        upstream: RepoName,
        span: Span,
        kind: ResultKind,
        now: datetime,
        *,
        history: HistoryAnswer,
        query: Callable[[BackendReader], Awaitable[T]],
    ) -> T:
        """Run one query about figures; `history` is ClickHouse's answer, read before the snapshot."""
        window = Window.of(span, now)
        return await self._view(
            upstream,
            lambda tx, visible: query(
                BackendReader(
                    tx, upstream, visible, window, kind, now, history, levels=self._level_policy(upstream)
                )
            ),
        )

    async def _commit_view(
        self, upstream: RepoName, now: datetime, query: Callable[[CommitReader], Awaitable[T]]
    ) -> T:
        async def read(tx: Tx, visible: VisibleBackends) -> T:
            return await query(
                await commit_reader(
                    tx, self._lists, upstream, visible=visible, policy=self._gates.find(upstream), now=now
                )
            )

        return await self._view(upstream, read)
