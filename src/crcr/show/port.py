"""What the show room asks of the store: read models, live changes, vital signs.

Every answer already obeys the allowlist's `visibility`; nothing here returns a hidden backend. A backend, an
upstream or a delivery that is not there, or not to be seen, is `NotFound` either way.
"""

from datetime import datetime
from typing import Protocol

from crcr.decide.model import RepoName
from crcr.decide.views import (
    AllowlistView,
    BackendPage,
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


class Views(Protocol):
    async def summary(self, upstream: RepoName, span: Span, now: datetime) -> Summary: ...

    async def backend(
        self, upstream: RepoName, downstream: RepoName, span: Span, now: datetime
    ) -> BackendPage: ...

    async def pull(self, upstream: RepoName, number: int, now: datetime) -> PullView: ...

    async def commit(
        self, upstream: RepoName, head_sha: str, now: datetime, *, delivery: str | None = None
    ) -> CommitView:
        """`delivery` helps to find a commit that nobody wants merged and that is not of late."""
        ...

    async def waivers(
        self, upstream: RepoName, now: datetime, *, after: tuple[str | int, ...] | None, limit: int
    ) -> WaiverPage: ...

    async def jobs(self, query: JobQuery) -> JobPage: ...

    async def deliveries(
        self, upstream: RepoName, *, after: tuple[str | int, ...] | None, limit: int
    ) -> DeliveryPage: ...

    async def delivery(self, upstream: RepoName, guid: str) -> DeliveryView: ...

    async def effects(self, upstream: RepoName, now: datetime) -> EffectsView: ...

    async def allowlist(self, upstream: RepoName) -> AllowlistView: ...


class ChangeLog(Protocol):
    async def changes(self, after: int | None, limit: int) -> Changes:
        """Changes after an id, oldest first; with None only where the log stands now."""
        ...


class Pulse(Protocol):
    async def vitals(self, now: datetime) -> list[Vitals]:
        """The vital signs of every upstream; raises `Unavailable` when the store does not answer."""
        ...
