"""Requests a re-run: of the failed jobs, else of the whole run, else as a new dispatch of the same delivery.

GitHub answers every refusal with 403, so the run itself is read: one that is already running again is a success, and one
whose first attempt still runs is retried later.
"""

import json

import structlog

from crcr.decide.github.requests_and_answers import Target
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import NotYet, OutsideRefused
from crcr.github.client import GitHubClient
from crcr.ports import Clock
from crcr.record.checks.reruns import Reruns

log = structlog.get_logger(__name__)

_RUNNING_S = 60.0


class Rerun:
    def __init__(self, reruns: Reruns, github: GitHubClient, clock: Clock) -> None:
        self._reruns = reruns
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        run_id = str(json.loads(effect.payload or b"{}").get("run_id"))
        run = await self._reruns.find_run(effect.upstream, effect.target, run_id)
        if run is None:
            return False
        if run.on_github and run_id.isdigit():
            installation_id = run.installation_id
            if installation_id is None:
                installation_id = await self._github.repositories.find_installation(run.downstream)
            target = Target(run.downstream, run.repository_id, installation_id)
            if effect.attempts > 1 and await self._ran_again(target, int(run_id), run.attempt):
                return True  # an earlier attempt reached GitHub after all
            if await self._rerun(target, int(run_id), run.attempt):
                return True
        log.info(
            "rerun_becomes_dispatch", downstream=str(run.downstream), run=run_id, delivery=effect.delivery
        )
        return await self._reruns.redispatch(
            effect.upstream, effect.delivery or "", effect.target, self._clock.now()
        )

    async def _rerun(self, target: Target, run_id: int, attempt: int) -> bool:
        """Request the failed jobs first, then all jobs; False when GitHub no longer re-runs this run."""
        for failed_only in (True, False):
            try:
                await self._github.actions.rerun(target, run_id, failed_only=failed_only)
            except OutsideRefused as refusal:
                if refusal.status == 401:
                    raise
                if await self._runs_again(target, run_id, attempt):
                    return True
            else:
                return True
        return False

    async def _ran_again(self, target: Target, run_id: int, attempt: int) -> bool:
        try:
            return (await self._github.actions.read_run(target, run_id)).attempt > attempt
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            return False

    async def _runs_again(self, target: Target, run_id: int, attempt: int) -> bool:
        """Whether a later attempt is running. While the old one is, GitHub allows no re-run."""
        try:
            run = await self._github.actions.read_run(target, run_id)
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            return False
        if not run.is_over and run.attempt <= attempt:
            raise NotYet("the run is not over yet", retry_after_s=_RUNNING_S)
        return not run.is_over
