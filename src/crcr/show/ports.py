"""What the show room asks of the store: read models, live changes, vital signs.

Every answer already obeys the allowlist's `visibility`; nothing here returns a hidden backend. A backend, an
upstream or a delivery that is not there, or not to be seen, is `NotFound` either way.
"""

from datetime import datetime
from typing import Protocol

from crcr.decide.github.repository_setup import SetupFacts
from crcr.decide.health.relay import Health
from crcr.decide.model import RepoName
from crcr.decide.statistics.window import ResultKind, Span
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


class Views(Protocol):
    def for_admins(self) -> "Views":
        """The same views with hidden backends and what only administrators may read."""
        ...

    async def summary(
        self,
        upstream: RepoName,
        span: Span,
        now: datetime,
        *,
        kind: ResultKind = ResultKind.PULLS,
        pick: ChooseRows[BackendSummary] | None = None,
    ) -> Summary:
        """All backends; those that `pick` chooses are read in full (`rows`), without it all of them are."""
        ...

    async def backend(self, query: BackendQuery, now: datetime) -> BackendPage: ...

    async def job(self, upstream: RepoName, downstream: RepoName, key: JobKey) -> JobDetail: ...

    async def refusals(self, upstream: RepoName, downstream: RepoName, now: datetime) -> RefusalList: ...

    async def sandbox(self, query: SandboxQuery, now: datetime) -> SandboxPage:
        """What was tried out, of all upstreams alike; `NotFound` where the sandbox is off."""
        ...

    async def metrics(
        self,
        upstream: RepoName,
        span: Span,
        now: datetime,
        *,
        kind: ResultKind = ResultKind.PULLS,
        pick: ChooseRows[BackendMetrics] | None = None,
    ) -> MetricsView: ...

    async def badge(
        self, upstream: RepoName, downstream: RepoName, kind: ResultKind, span: Span, now: datetime
    ) -> BadgeView: ...

    async def pull(self, upstream: RepoName, number: int, now: datetime) -> PullView: ...

    async def commit(
        self, upstream: RepoName, head_sha: str, now: datetime, *, delivery: str | None = None
    ) -> CommitView:
        """`delivery` helps to find a commit that nobody wants merged and that is not of late."""
        ...

    async def waivers(
        self, upstream: RepoName, now: datetime, *, after: tuple[str | int, ...] | None, limit: int
    ) -> WaiverPage: ...

    async def waiver_page(self, query: WaiverQuery, now: datetime) -> WaiverPage: ...

    async def jobs(self, query: JobQuery) -> JobPage: ...

    async def deliveries(self, query: DeliveryQuery) -> DeliveryPage: ...

    async def delivery(self, upstream: RepoName, guid: str) -> DeliveryView: ...

    async def effects(self, upstream: RepoName, now: datetime) -> EffectsView: ...

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        """The health of every upstream; names no repository, so it is the same for everybody."""
        ...

    async def effect_page(self, query: EffectQuery) -> EffectPage: ...

    async def audit(self, query: AuditQuery) -> AuditPage: ...

    async def search(
        self, upstream: RepoName, text: str, now: datetime, *, after: tuple[str | int, ...] | None = None
    ) -> SearchView: ...

    async def allowlist(self, upstream: RepoName) -> AllowlistView: ...

    async def setup(self, upstream: RepoName, repo: RepoName, now: datetime) -> SetupFacts:
        """What is known of a downstream's set-up; who is not to be seen looks like who is not listed."""
        ...


class ChangeLog(Protocol):
    async def changes(self, after: int | None, limit: int) -> Changes:
        """Changes after an id, oldest first; with None only where the log stands now."""
        ...


class Pulse(Protocol):
    async def vitals(self, now: datetime) -> list[Vitals]:
        """The vital signs of every upstream, without its health; raises `Unavailable` when the store does not answer."""
        ...

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        """The health of every upstream, which takes long where much waits."""
        ...


class AdminActs(Protocol):
    """What administrators do; each act is audited under `who`. Raises `NotFound` and `NotPossible`."""

    async def replay(self, upstream: RepoName, guid: str, *, who: str, everyone: bool) -> int:
        """Send a delivery to who missed it, or to everyone; return to how many."""
        ...

    async def retry(
        self, upstream: RepoName, *, who: str, effect_id: int | None, target: RepoName | None
    ) -> int:
        """Try a parked effect again, or all that are parked for a target; return how many there were."""
        ...

    async def suspend(
        self, upstream: RepoName, downstream: RepoName, *, who: str, lift: bool, reason: str | None
    ) -> None: ...

    async def rebind(
        self, upstream: RepoName, downstream: RepoName, repository_id: int, *, who: str
    ) -> None: ...

    async def pause(self, upstream: RepoName, *, who: str, lift: bool, reason: str | None) -> None: ...

    async def note_sign_in(self, who: str, act: str) -> None:
        """Record that somebody signed in, or tried to."""
        ...
