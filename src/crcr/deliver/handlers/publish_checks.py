"""Publishing a commit's checks: what should be there is worked out when the effect is done, then made so.

Level-triggered: an effect says only which commit and tier to look at, and the gate's queues the other tiers where they
have changed. A check is created once; after a lost answer it is looked for by the id that we gave it, and what it shows already is neither made nor added again.
"""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Protocol

from crcr.decide.checks.check_run import CheckContent, CheckStatus, CheckToPublish, Tier
from crcr.decide.github.values import ListedCheck, Target, Urgency
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import CHECKS_QUEUE, TIER_URGENCY, ClaimedEffect
from crcr.deliver.handlers.upstream_target import UpstreamTargets
from crcr.errors import LeaseLost, OutsideRefused
from crcr.github.client import ChecksApi
from crcr.ports import Clock

LATE_WRITE = timedelta(seconds=60)
"""A request that a broken connection held up arrives within this."""


class CommitChecks(Protocol):
    async def plan_publication(
        self, upstream: RepoName, head_sha: str, tier: Tier, now: datetime
    ) -> list[CheckToPublish]: ...
    async def record_attempt(self, check_id: int, now: datetime) -> None: ...
    async def record_completed(self, check_id: int, check_run_id: int) -> None: ...
    async def record_published(
        self, check: CheckToPublish, check_run_id: int | None, now: datetime
    ) -> None: ...
    async def request_reread(self, check_id: int, now: datetime, *, at: datetime) -> None: ...


class PublishChecks:
    def __init__(
        self, checks: CommitChecks, upstreams: UpstreamTargets, check_runs: ChecksApi, clock: Clock
    ) -> None:
        self._checks = checks
        self._upstreams = upstreams
        self._check_runs = check_runs
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        tier, head_sha = Tier(effect.target.removeprefix(CHECKS_QUEUE)), effect.lane
        wanted = await self._checks.plan_publication(effect.upstream, head_sha, tier, self._clock.now())
        if not wanted:
            return False
        done = await self._publish_all(effect, tier, wanted)
        return done or await self(effect)

    async def _publish_all(self, effect: ClaimedEffect, tier: Tier, wanted: list[CheckToPublish]) -> bool:
        """Make every check so; one that GitHub refuses keeps none of the others back."""
        where = await self._upstreams.target(effect.upstream)
        retried = effect.attempts > 1
        done, refused = True, None
        for check in wanted:
            try:
                done &= await self._publish(where, check, urgency=TIER_URGENCY[tier], retried=retried)
                if effect.unsure and tier is Tier.GATE:
                    # What an earlier attempt sent may still be on its way, and arrive after this.
                    await self._reread(check, after=LATE_WRITE)
            except LeaseLost:
                # It may have been written after the worker that took over wrote it.
                await self._reread(check)
                raise
            except OutsideRefused as refusal:
                if refusal.status == 401:
                    raise
                refused = refused or refusal
        if refused is not None:
            raise refused
        return done

    async def _publish(
        self, where: Target, check: CheckToPublish, *, urgency: Urgency, retried: bool
    ) -> bool:
        """Make one check so; False when it was completed unheard and another must take its place."""
        doubted = check.reread_at is not None or retried
        if check.maybe_created or (doubted and check.check_run_id is not None):
            found = await self._find(where, check, urgency)
            if found is not None and found.completed and check.shown.status is not CheckStatus.COMPLETED:
                await self._checks.record_completed(check.check_id, found.check_run_id)
                return False
            check = _as_found(check, found)
        check_run_id = check.check_run_id
        if check_run_id is not None:
            if not await self._update(where, check_run_id, check, urgency=urgency):
                return False
        elif not check.ends:
            check_run_id = await self._create(where, check, urgency=urgency)
        await self._checks.record_published(check, check_run_id, self._clock.now())
        return True

    async def _reread(self, check: CheckToPublish, *, after: timedelta = timedelta(0)) -> None:
        now = self._clock.now()
        await self._checks.request_reread(check.check_id, now, at=now + after)

    async def _update(
        self, where: Target, check_run_id: int, check: CheckToPublish, *, urgency: Urgency
    ) -> bool:
        """Change what it shows; False when GitHub has it no more, as after the App was made anew."""
        try:
            await self._check_runs.update(where, check_run_id, _without_old_notes(check), urgency=urgency)
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            if not check.ends:
                await self._checks.record_completed(check.check_id, check_run_id)
            return check.ends
        return True

    async def _create(self, where: Target, check: CheckToPublish, *, urgency: Urgency) -> int:
        await self._checks.record_attempt(check.check_id, self._clock.now())
        return await self._check_runs.create(
            where,
            head_sha=check.head_sha,
            name=check.name,
            external_id=str(check.check_id),
            shown=check.shown,
            urgency=urgency,
        )

    async def _find(self, where: Target, check: CheckToPublish, urgency: Urgency) -> ListedCheck | None:
        found = await self._check_runs.find(where, check.head_sha, check.name, urgency=urgency)
        mine = [each for each in found if each.external_id == str(check.check_id)]
        # Of two that two workers created GitHub goes by the newer one.
        return max(mine, key=lambda each: each.check_run_id, default=None)


def _as_found(check: CheckToPublish, found: ListedCheck | None) -> CheckToPublish:
    if found is None:
        return check
    annotated = check.annotated or found.annotations > 0
    return replace(check, check_run_id=found.check_run_id, annotated=annotated)


def _without_old_notes(check: CheckToPublish) -> CheckContent:
    """GitHub adds annotations to those of earlier requests: what is completed already has them."""
    return replace(check.shown, annotations=()) if check.annotated else check.shown
