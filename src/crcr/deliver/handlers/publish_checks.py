"""Publishes a commit's checks: the wanted checks are computed when the effect runs, and GitHub is brought in line.

Level-triggered: an effect names only a commit and a tier, and the gate's effect queues the other tiers where they have
changed. A check run is created once. After a lost response it is looked up by the id that we gave it, and nothing that it
already shows is created or added again.
"""

from dataclasses import replace
from datetime import timedelta

from crcr.decide.checks.check_run import CheckContent, CheckStatus, CheckToPublish, Tier
from crcr.decide.github.requests_and_answers import ListedCheck, Target, Urgency
from crcr.decide.outbox.effect import CHECKS_QUEUE, TIER_URGENCY, ClaimedEffect
from crcr.deliver.handlers.upstream_facts import UpstreamTargets
from crcr.errors import LeaseLost, OutsideRefused
from crcr.github.client import ChecksApi
from crcr.ports import Clock
from crcr.record.checks.check_runs import CommitChecks

LATE_WRITE = timedelta(seconds=60)
"""The longest that a broken connection can delay a request."""


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
        checks = await self._checks.plan_publication(effect.upstream, head_sha, tier, self._clock.now())
        if not checks:
            return False
        done = await self._publish_all(effect, tier, checks)
        return done or await self(effect)

    async def plan(self, effect: ClaimedEffect) -> bool:
        """Judge the commit and record its gate, and publish nothing."""
        tier, head_sha = Tier(effect.target.removeprefix(CHECKS_QUEUE)), effect.lane
        return bool(await self._checks.plan_publication(effect.upstream, head_sha, tier, self._clock.now()))

    async def _publish_all(self, effect: ClaimedEffect, tier: Tier, checks: list[CheckToPublish]) -> bool:
        """Publish every check; one that GitHub refuses does not stop the others."""
        target = await self._upstreams.target(effect.upstream)
        retried = effect.attempts > 1
        done, refused = True, None
        for check in checks:
            try:
                done &= await self._publish(target, check, urgency=TIER_URGENCY[tier], retried=retried)
                if effect.unsure and tier is Tier.GATE:
                    # An earlier attempt's request may still be in flight, and arrive after this one.
                    await self._reread(check, after=LATE_WRITE)
            except LeaseLost:
                # This write may have arrived after that of the worker that took over.
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
        self, target: Target, check: CheckToPublish, *, urgency: Urgency, retried: bool
    ) -> bool:
        """Publish one check; False when GitHub had completed it already and another must replace it."""
        uncertain = check.reread_at is not None or retried
        if check.maybe_created or (uncertain and check.check_run_id is not None):
            listed = await self._find(target, check, urgency)
            if listed is not None and listed.completed and check.shown.status is not CheckStatus.COMPLETED:
                await self._checks.record_completed(check.check_id, listed.check_run_id)
                return False
            check = _as_found(check, listed)
        check_run_id = check.check_run_id
        if check_run_id is not None:
            if not await self._update(target, check_run_id, check, urgency=urgency):
                return False
        elif not check.ends:
            check_run_id = await self._create(target, check, urgency=urgency)
        await self._checks.record_published(check, check_run_id, self._clock.now())
        return True

    async def _reread(self, check: CheckToPublish, *, after: timedelta = timedelta(0)) -> None:
        now = self._clock.now()
        await self._checks.request_reread(check.check_id, now, at=now + after)

    async def _update(
        self, target: Target, check_run_id: int, check: CheckToPublish, *, urgency: Urgency
    ) -> bool:
        """Update what it shows; False when GitHub no longer has it, as after the App was recreated."""
        try:
            await self._check_runs.update(
                target, check_run_id, _without_sent_annotations(check), urgency=urgency
            )
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            if not check.ends:
                await self._checks.record_completed(check.check_id, check_run_id)
            return check.ends
        return True

    async def _create(self, target: Target, check: CheckToPublish, *, urgency: Urgency) -> int:
        await self._checks.record_attempt(check.check_id, self._clock.now())
        return await self._check_runs.create(
            target,
            head_sha=check.head_sha,
            name=check.name,
            external_id=str(check.check_id),
            content=check.shown,
            urgency=urgency,
        )

    async def _find(self, target: Target, check: CheckToPublish, urgency: Urgency) -> ListedCheck | None:
        listed = await self._check_runs.find(target, check.head_sha, check.name, urgency=urgency)
        own = [run for run in listed if run.external_id == str(check.check_id)]
        # When two workers have created one each, GitHub uses the newer one.
        return max(own, key=lambda run: run.check_run_id, default=None)


def _as_found(check: CheckToPublish, listed: ListedCheck | None) -> CheckToPublish:
    if listed is None:
        return check
    annotated = check.annotated or listed.annotations > 0
    return replace(check, check_run_id=listed.check_run_id, annotated=annotated)


def _without_sent_annotations(check: CheckToPublish) -> CheckContent:
    """GitHub adds annotations to those of earlier requests, so they are sent once."""
    return replace(check.shown, annotations=()) if check.annotated else check.shown
