"""Administration over HTTP: the same operations as by command line, with the relay's own clock."""

from dataclasses import replace
from datetime import timedelta

from crcr.decide.bisection.request import BisectionRequest
from crcr.decide.failures.known import KNOWN_FOR
from crcr.decide.levels.standings import LevelOverride
from crcr.decide.model import RepoName
from crcr.decide.views.bisections import BisectionDetail
from crcr.errors import NotFound
from crcr.ports import Clock
from crcr.record.admin.operations import AdminOperations, ParkedFilter
from crcr.record.bisection.bisections import Bisections
from crcr.record.change_and_audit_log import note_act
from crcr.record.failures.known_failures import KnownFailures, NewKnownFailure
from crcr.record.levels.evaluations import Levels
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.store.database import Database, Tx
from crcr.record.views.culprits.bisections import bisection_detail
from crcr.record.views.visibility import visible_backends

_AT_ONCE = 500
"""How many effects are retried in one transaction."""


class HttpAdminOperations:
    def __init__(
        self,
        database: Database,
        acts: AdminOperations,
        targets: Downstreams,
        upstreams: tuple[RepoName, ...],
        clock: Clock,
        *,
        known_failures: KnownFailures,
        bisections: Bisections,
        allowlists: Allowlists,
        levels: Levels,
    ) -> None:
        self._database = database
        self._acts = acts
        self._targets = targets
        self._upstreams = upstreams
        self._clock = clock
        self._known_failures = known_failures
        self._bisections = bisections
        self._allowlists = allowlists
        self._levels = levels

    async def replay(self, upstream: RepoName, guid: str, *, who: str, everyone: bool) -> int:
        return await self._acts.replay(upstream, guid, who=who, now=self._clock.now(), everyone=everyone)

    async def retry(
        self, upstream: RepoName, *, who: str, effect_id: int | None, target: RepoName | None
    ) -> int:
        now = self._clock.now()
        # An effect that is parked again meanwhile is not retried a second time.
        which = ParkedFilter(effect_id=effect_id, target=target, until=now)
        if effect_id is not None:
            return await self._acts.retry_parked(upstream, which, who=who, now=now)
        ids = await self._acts.parked_ids(upstream, which)
        parts = [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]
        batches = [replace(which, between=(part[0], part[-1])) for part in parts]
        return sum([await self._acts.retry_parked(upstream, batch, who=who, now=now) for batch in batches])

    async def suspend(
        self, upstream: RepoName, downstream: RepoName, *, who: str, lift: bool, reason: str | None
    ) -> None:
        known = await self._database.read(lambda tx: self._targets.find(tx, upstream, downstream))
        if known is None:
            raise NotFound(f"{downstream} is not known to {upstream}", hint="check the name's spelling")
        await self._targets.suspend(
            upstream, downstream, who=who, now=self._clock.now(), lift=lift, reason=reason
        )

    async def rebind(self, upstream: RepoName, downstream: RepoName, repository_id: int, *, who: str) -> None:
        await self._targets.rebind(upstream, downstream, repository_id, who=who, now=self._clock.now())

    async def pause(self, upstream: RepoName, *, who: str, lift: bool, reason: str | None) -> None:
        await self._acts.pause(upstream, who=who, now=self._clock.now(), lift=lift, reason=reason)

    async def link_failure(
        self,
        upstream: RepoName,
        fingerprint: str,
        *,
        url: str,
        who: str,
        reason: str | None,
        days: int | None,
    ) -> None:
        duration = KNOWN_FOR if days is None else timedelta(days=days)
        new = NewKnownFailure(fingerprint=fingerprint, url=url, who=who, reason=reason, duration=duration)
        await self._known_failures.link(upstream, new, self._clock.now())

    async def unlink_failure(self, upstream: RepoName, fingerprint: str, *, who: str) -> None:
        await self._known_failures.unlink(upstream, fingerprint, who=who, now=self._clock.now())

    async def override_level(
        self, upstream: RepoName, downstream: RepoName, *, who: str, duration: timedelta, reason: str
    ) -> None:
        now = self._clock.now()
        override = LevelOverride(who=who, reason=reason, until=now + duration)
        await self._levels.set_override(upstream, downstream, override, who=who, now=now)

    async def end_override(self, upstream: RepoName, downstream: RepoName, *, who: str) -> None:
        await self._levels.set_override(upstream, downstream, None, who=who, now=self._clock.now())

    async def bisect(self, upstream: RepoName, request: BisectionRequest) -> int:
        """Begin a bisection; return its id."""
        return await self._bisections.start(upstream, request, self._clock.now())

    async def stop_bisection(self, upstream: RepoName, bisection_id: int, *, who: str) -> None:
        await self._bisections.stop(upstream, bisection_id, who=who, now=self._clock.now())

    async def read_bisection(self, upstream: RepoName, bisection_id: int) -> BisectionDetail:
        """Read it where it was just written: a replica may not have it yet."""

        async def unit(tx: Tx) -> BisectionDetail:
            visible = await visible_backends(tx, self._allowlists, upstream, everything=True)
            return await bisection_detail(tx, upstream, bisection_id, visible)

        return await self._database.write(unit)

    async def note_sign_in(self, who: str, act: str) -> None:
        """Write a sign-in into the audit log; it concerns all upstreams and is recorded for the first."""
        upstream, now = self._upstreams[0], self._clock.now()
        await self._database.write(
            lambda tx: note_act(tx, upstream, who=who, act=act, subject="pages", now=now)
        )
