"""Publishing a commit's checks: what should be there is worked out when the effect is done, then made so.

Level-triggered: an effect says only which commit and tier to look at. A check is created once; after a lost
answer it is looked for by the id that we gave it before another is made.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from crcr.decide.check_runs import CheckToPublish, Shown
from crcr.decide.checks import Tier
from crcr.decide.effects import ClaimedEffect
from crcr.decide.model import RepoName
from crcr.decide.outside import Target
from crcr.deliver.upstream_target import Upstreams
from crcr.ports import Checks, Clock

KEEP: Mapping[Tier, int] = {Tier.GATE: 0, Tier.BACKEND: 90, Tier.JOB: 270}
"""Points of the minute that a tier leaves to the more urgent ones."""


class CommitChecks(Protocol):
    async def to_publish(
        self, upstream: RepoName, head_sha: str, tier: Tier, now: datetime
    ) -> list[CheckToPublish]: ...
    async def note_attempt(self, check_id: int, now: datetime) -> None: ...
    async def note_published(self, check: CheckToPublish, check_run_id: int, now: datetime) -> None: ...


class PublishChecks:
    def __init__(self, checks: CommitChecks, upstreams: Upstreams, github: Checks, clock: Clock) -> None:
        self._checks = checks
        self._upstreams = upstreams
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        tier, head_sha = Tier(effect.target.removeprefix("checks/")), effect.lane
        wanted = await self._checks.to_publish(effect.upstream, head_sha, tier, self._clock.now())
        if not wanted:
            return False
        where = await self._upstreams.target(effect.upstream)
        for check in wanted:
            await self._publish(where, check, keep=KEEP[tier])
        return True

    async def _publish(self, where: Target, check: CheckToPublish, *, keep: int) -> None:
        check_run_id = check.check_run_id
        if check_run_id is None and check.maybe_created:
            check_run_id = await self._find(where, check)
        if check_run_id is None:
            check_run_id = await self._create(where, check, keep=keep)
        else:
            await self._github.update_check(where, check_run_id, _without_old_notes(check), keep=keep)
        await self._checks.note_published(check, check_run_id, self._clock.now())

    async def _create(self, where: Target, check: CheckToPublish, *, keep: int) -> int:
        await self._checks.note_attempt(check.check_id, self._clock.now())
        return await self._github.create_check(
            where,
            head_sha=check.head_sha,
            name=check.name,
            external_id=str(check.check_id),
            shown=check.shown,
            keep=keep,
        )

    async def _find(self, where: Target, check: CheckToPublish) -> int | None:
        found = await self._github.find_checks(where, check.head_sha, check.name)
        ours = (each for each in found if each.external_id == str(check.check_id))
        return next((each.check_run_id for each in ours), None)


def _without_old_notes(check: CheckToPublish) -> Shown:
    """GitHub adds annotations to those of earlier requests: what is completed already has them."""
    return replace(check.shown, annotations=()) if check.annotated else check.shown
