"""Asking GitHub to run again: the failed jobs, else the whole run, else a fresh dispatch of the same delivery.

GitHub answers every refusal with 403, so the run itself is looked at: one that is running already is a success.
"""

import json
from datetime import datetime
from typing import Protocol

import structlog

from crcr.decide.effects import ClaimedEffect
from crcr.decide.model import RepoName
from crcr.decide.outside import Target
from crcr.errors import OutsideRefused
from crcr.ports import Actions, Clock, GitHub

log = structlog.get_logger(__name__)


class Reruns(Protocol):
    async def run_to_ask(
        self, upstream: RepoName, downstream: str, run_id: str
    ) -> tuple[RepoName, int | None, int | None, bool] | None: ...
    async def dispatch_again(
        self, upstream: RepoName, delivery: str, downstream: str, now: datetime
    ) -> bool: ...


class Rerun:
    def __init__(self, reruns: Reruns, actions: Actions, github: GitHub, clock: Clock) -> None:
        self._reruns = reruns
        self._actions = actions
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        run_id = str(json.loads(effect.payload or b"{}").get("run_id"))
        found = await self._reruns.run_to_ask(effect.upstream, effect.target, run_id)
        if found is None:
            return False
        name, repository_id, installation_id, on_github = found
        if on_github and run_id.isdigit():
            if installation_id is None:
                installation_id = await self._github.find_installation(name)
            if await self._rerun(Target(name, repository_id, installation_id), int(run_id)):
                return True
        log.info("rerun_becomes_dispatch", downstream=str(name), run=run_id, delivery=effect.delivery)
        return await self._reruns.dispatch_again(
            effect.upstream, effect.delivery or "", effect.target, self._clock.now()
        )

    async def _rerun(self, where: Target, run_id: int) -> bool:
        """Ask for the failed jobs first, then for all; False when GitHub re-runs this run no more."""
        for failed_only in (True, False):
            try:
                await self._actions.rerun(where, run_id, failed_only=failed_only)
            except OutsideRefused as refusal:
                if refusal.status == 401:
                    raise
                if await self._is_running(where, run_id):
                    return True
            else:
                return True
        return False

    async def _is_running(self, where: Target, run_id: int) -> bool:
        try:
            return not (await self._actions.read_run(where, run_id)).is_over
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            return False
