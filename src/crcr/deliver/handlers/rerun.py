"""Asking GitHub to run again: the failed jobs, else the whole run, else a fresh dispatch of the same delivery.

GitHub answers every refusal with 403, so the run itself is looked at: one that runs again already is a success,
and one that still runs for the first time is asked for later.
"""

import json
from datetime import datetime
from typing import Protocol

import structlog

from crcr.decide.checks.reruns import RunToRerun
from crcr.decide.github.values import Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import NotYet, OutsideRefused
from crcr.github.client import GitHubClient
from crcr.ports import Clock

log = structlog.get_logger(__name__)

_RUNNING_S = 60.0


class Reruns(Protocol):
    async def find_run(self, upstream: RepoName, downstream: str, run_id: str) -> RunToRerun | None: ...
    async def redispatch(self, upstream: RepoName, delivery: str, downstream: str, now: datetime) -> bool: ...


class Rerun:
    def __init__(self, reruns: Reruns, github: GitHubClient, clock: Clock) -> None:
        self._reruns = reruns
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        run_id = str(json.loads(effect.payload or b"{}").get("run_id"))
        found = await self._reruns.find_run(effect.upstream, effect.target, run_id)
        if found is None:
            return False
        if found.on_github and run_id.isdigit():
            installation_id = found.installation_id
            if installation_id is None:
                installation_id = await self._github.repositories.find_installation(found.downstream)
            where = Target(found.downstream, found.repository_id, installation_id)
            if effect.attempts > 1 and await self._ran_again(where, int(run_id), found.attempt):
                return True  # an earlier attempt at this was heard after all
            if await self._rerun(where, int(run_id), found.attempt):
                return True
        log.info(
            "rerun_becomes_dispatch", downstream=str(found.downstream), run=run_id, delivery=effect.delivery
        )
        return await self._reruns.redispatch(
            effect.upstream, effect.delivery or "", effect.target, self._clock.now()
        )

    async def _rerun(self, where: Target, run_id: int, attempt: int) -> bool:
        """Ask for the failed jobs first, then for all; False when GitHub re-runs this run no more."""
        for failed_only in (True, False):
            try:
                await self._github.actions.rerun(where, run_id, failed_only=failed_only)
            except OutsideRefused as refusal:
                if refusal.status == 401:
                    raise
                if await self._runs_again(where, run_id, attempt):
                    return True
            else:
                return True
        return False

    async def _ran_again(self, where: Target, run_id: int, attempt: int) -> bool:
        try:
            return (await self._github.actions.read_run(where, run_id)).attempt > attempt
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            return False

    async def _runs_again(self, where: Target, run_id: int, attempt: int) -> bool:
        """Whether a later attempt is under way. While the old one is, GitHub lets nobody run any of it again."""
        try:
            run = await self._github.actions.read_run(where, run_id)
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            return False
        if not run.is_over and run.attempt <= attempt:
            raise NotYet("the run is not over yet", retry_after_s=_RUNNING_S)
        return not run.is_over
