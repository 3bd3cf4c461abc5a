"""GitHub's `workflow_run` and `workflow_job` webhooks about downstreams, where the App receives them.

They count only for repositories whose id is bound, and only for runs that answer one of our dispatches: known by their
signed reports, or by the delivery's id in their name.
"""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.events import WorkflowJobEvent, WorkflowRunEvent
from crcr.decide.github.workflow_runs import delivery_ids_in
from crcr.decide.model import DeliveryState, RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.webhooks import is_new_body
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.repositories.default_branches import compare_default_branch
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.workflow_runs.lookup_effects import look_up_ended_run
from crcr.record.workflow_runs.run_names import RunNames
from crcr.record.workflow_runs.verification import record_run, shorten_silence, verify_jobs

_RUN = Statement(
    text(
        "SELECT n.run_id, n.delivery, n.upstream, n.downstream, n.workflow, d.level, d.event, d.head_sha, d.number"
        " FROM runs n JOIN repositories r ON r.upstream = n.upstream AND r.downstream = n.downstream"
        " JOIN dispatches d ON d.delivery = n.delivery AND d.upstream = n.upstream AND d.downstream = n.downstream"
        " WHERE n.run_id = :run_id AND n.issuer = 'github'"
        " AND coalesce(d.repository_id, r.repository_id) = :repository_id"
    )
)
_NAMED = Statement(
    text(
        "SELECT v.guid AS delivery, d.upstream, d.downstream FROM deliveries v"
        " JOIN dispatches d ON d.delivery = v.guid AND d.upstream = v.upstream"
        " JOIN repositories r ON r.upstream = d.upstream AND r.downstream = d.downstream"
        " WHERE v.guid = :guid AND coalesce(d.repository_id, r.repository_id) = :repository_id"
        " AND d.attempted_at IS NOT NULL"
    )
)
_NOTE_WEBHOOK = Statement(
    text(
        "UPDATE repositories SET run_webhook_at = :at WHERE downstream = :downstream AND repository_id = :repository_id"
        " AND (run_webhook_at IS NULL OR run_webhook_at <= :before)"
    )
)
_WEBHOOK_NOTED_EVERY = timedelta(hours=1)
"""Written no more often: it only has to tell whether a webhook arrived within a day."""


class WorkflowEvents:
    def __init__(self, database: Database, refresher: CheckRefresher, outcomes: JobOutcomes) -> None:
        self._database = database
        self._refresher = refresher
        self._outcomes = outcomes
        self._run_names = RunNames(refresher, outcomes)

    async def record_event(
        self, receipt: ReceivedDelivery, event: WorkflowRunEvent | WorkflowJobEvent
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
        """Record the event where it concerns one of our dispatches."""

        async def unit(tx: Tx) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
            now = receipt.received_at
            await compare_default_branch(tx, event, now)
            if not await self._is_ours(tx, event):
                return IgnoredEvent(f"no run of {event.repository} that answers us")
            if not await is_new_body(tx, receipt, event):
                return AlreadyProcessed()
            if isinstance(event, WorkflowRunEvent):
                await self._record_run_event(tx, event, now)
            else:
                await self._record_job_event(tx, event, now)
            return AcceptedDelivery(0, DeliveryState.ACCEPTED)

        return await self._database.write(unit)

    async def _is_ours(self, tx: Tx, event: WorkflowRunEvent | WorkflowJobEvent) -> bool:
        if isinstance(event, WorkflowJobEvent):
            return bool(await self._find_known_runs(tx, event, event.run_id))
        return bool(
            await self._find_known_runs(tx, event, event.run.run_id)
            or await self._find_named_dispatch(tx, event)
        )

    async def _record_run_event(self, tx: Tx, event: WorkflowRunEvent, now: datetime) -> None:
        run = event.run
        await self._run_names.compare(tx, event.repository_id, run, now)
        rows = await self._find_known_runs(tx, event, run.run_id) or await self._find_named_dispatch(
            tx, event
        )
        for row in rows:
            await record_run(tx, row, run, now)
        for row in await self._find_known_runs(tx, event, run.run_id):
            if run.is_over:
                await shorten_silence(tx, row, run.attempt, now)
                await look_up_ended_run(tx, row, now)
            await self._announce_change(tx, row, now)
        if rows:
            repository = {"downstream": event.repository.key, "repository_id": event.repository_id}
            await tx.run(_NOTE_WEBHOOK, at=to_us(now), before=to_us(now - _WEBHOOK_NOTED_EVERY), **repository)

    async def _record_job_event(self, tx: Tx, event: WorkflowJobEvent, now: datetime) -> None:
        for row in await self._find_known_runs(tx, event, event.run_id):
            # A single job does not show whether another has the same name: only its failure counts here.
            if await verify_jobs(tx, row, (event.job,), self._outcomes, now):
                await self._announce_change(tx, row, now)

    async def _find_known_runs(
        self, tx: Tx, event: WorkflowRunEvent | WorkflowJobEvent, run_id: int
    ) -> list[Row]:
        return await tx.all(_RUN, run_id=str(run_id), repository_id=event.repository_id)

    async def _find_named_dispatch(self, tx: Tx, event: WorkflowRunEvent) -> list[Row]:
        """The dispatch whose delivery is in the run's name, if it is just one: strangers can write into names."""
        if event.run.event != "repository_dispatch":
            return []
        dispatches: list[Row] = []
        for guid in delivery_ids_in(event.run.display_title):
            dispatches += await tx.all(_NAMED, guid=guid, repository_id=event.repository_id)
        return dispatches if len(dispatches) == 1 else []

    async def _announce_change(self, tx: Tx, row: Row, now: datetime) -> None:
        subject = {"downstream": row["downstream"], "delivery": row["delivery"], "number": row["number"]}
        await note_change(tx, RepoName(row["upstream"]), "job", now=now, **subject)
        await self._refresher.request_refresh_for(tx, row, now)
