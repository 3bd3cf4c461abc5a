"""Looks up a dispatch's workflow runs at GitHub Actions, and the jobs of those that have ended.

Repeated less and less often while GitHub has not seen the end of a job that was reported as completed.
"""

from datetime import datetime, timedelta

import structlog

from crcr.decide.checks.completeness import QUIET
from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun, Target, Urgency
from crcr.decide.github.workflow_runs import RemainingLookup, RunLookup, has_run_webhooks, next_lookup_delay
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import NotYet, OutsideRefused
from crcr.github.client import GitHubClient
from crcr.ports import Clock
from crcr.record.workflow_runs.lookups import Lookups

log = structlog.get_logger(__name__)

_BEFORE = timedelta(minutes=1)
_AFTER = timedelta(minutes=15)
"""A dispatch's runs usually appear within seconds; clocks differ, and GitHub's queues can be slow."""
_PATIENCE = timedelta(hours=20)
"""After this the effect ends without being parked; a later silence queues a new look-up."""


def _quiet_s(question: RunLookup, now: datetime) -> float:
    """Return how long another run may still appear, judged by the runs known before this look-up."""
    newest = max((run.first_seen_at for run in question.runs), default=None)
    return 0.0 if newest is None else (newest + QUIET - now).total_seconds()


class LookUp:
    def __init__(self, lookups: Lookups, github: GitHubClient, clock: Clock) -> None:
        self._lookups = lookups
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        question = await self._lookups.question(effect.upstream, effect.delivery or "", effect.target)
        if question is None:
            return False
        try:
            remaining = await self._ask(question)
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            remaining = await self._explain(question, refusal)
        now = self._clock.now()
        waited = now - effect.first_attempt_at
        if remaining is RemainingLookup.NOTHING or waited >= _PATIENCE:
            return True
        if remaining is RemainingLookup.UNTIL_REPORT:
            return True
        quiet_s = _quiet_s(question, now) if remaining is RemainingLookup.QUIET_TIME else 0.0
        if quiet_s > 0:
            raise NotYet("another run may still appear", retry_after_s=quiet_s)
        # A webhook arrives when a run ends, and none after that.
        webhooks = has_run_webhooks(question.run_webhook_at, now) and any(
            not run.is_over for run in question.runs
        )
        again = next_lookup_delay(waited, gates=question.gates, webhooks=webhooks)
        raise NotYet("GitHub has not seen its end yet", retry_after_s=again.total_seconds())

    async def _explain(self, question: RunLookup, refusal: OutsideRefused) -> RemainingLookup:
        """Only the App's permissions tell whether a refusal is permanent or a temporary fault."""
        try:
            installation = await self._github.repositories.read_installation(question.downstream)
            passing = installation is not None and installation.reads_actions
        except OutsideRefused:
            passing = True
        if passing:
            log.warning("actions_refused", downstream=str(question.downstream), error=str(refusal))
            return RemainingLookup.UNCONFIRMED
        log.info("actions_not_readable", downstream=str(question.downstream), error=str(refusal))
        await self._lookups.not_readable(question, self._clock.now())
        # The gate may be red because of this; a permission granted later must fix that.
        return RemainingLookup.UNCONFIRMED if question.gates else RemainingLookup.NOTHING

    async def _ask(self, question: RunLookup) -> RemainingLookup:
        installation_id = question.installation_id
        if installation_id is None:
            installation_id = await self._github.repositories.find_installation(question.downstream)
        target = Target(question.downstream, question.repository_id, installation_id)
        listed = await self._listed(target, question) if question.wants_list else None
        runs = await self._runs(target, question, listed or ())
        jobs = {run.run_id: await self._jobs(target, question, run) for run in runs}
        known = {run_id: run_jobs for run_id, run_jobs in jobs.items() if run_jobs is not None}
        return await self._lookups.settle(question, runs, known, self._clock.now(), listed=listed)

    async def _listed(self, target: Target, question: RunLookup) -> tuple[ActionsRun, ...]:
        since, until = question.sent_at - _BEFORE, question.sent_at + _AFTER
        return await self._github.actions.list_runs(
            target, event="repository_dispatch", since=since, until=until, urgency=_urgency(question)
        )

    async def _runs(
        self, target: Target, question: RunLookup, listed: tuple[ActionsRun, ...]
    ) -> tuple[ActionsRun, ...]:
        """Return the runs of this delivery: those with its id in their name, and those known from their reports."""
        known = {run.run_id for run in question.runs}
        runs = {
            run.run_id: run for run in listed if run.run_id in known or question.delivery in run.display_title
        }
        for run_id in known - runs.keys():
            run = await self._read(target, run_id, _urgency(question))
            if run is not None:
                runs[run_id] = run
        return tuple(runs[run_id] for run_id in sorted(runs))

    async def _read(self, target: Target, run_id: int, urgency: Urgency) -> ActionsRun | None:
        try:
            return await self._github.actions.read_run(target, run_id, urgency=urgency)
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            return None  # deleted since

    async def _jobs(
        self, target: Target, question: RunLookup, run: ActionsRun
    ) -> tuple[ActionsJob, ...] | None:
        """Return GitHub's jobs of the attempts that have not been checked; None when there are none."""
        known = next((known for known in question.runs if known.run_id == run.run_id), None)
        if known is None or not known.unchecked_attempts:
            return None
        jobs: list[ActionsJob] = []
        for attempt in known.unchecked_attempts:
            jobs += await self._github.actions.list_jobs(
                target, run.run_id, attempt, urgency=_urgency(question)
            )
        return tuple(jobs)


def _urgency(question: RunLookup) -> Urgency:
    """Only a gating look-up has a gate waiting for it."""
    return Urgency.FIRST if question.gates else Urgency.DETAILS
