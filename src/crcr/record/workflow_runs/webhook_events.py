"""What GitHub tells of downstreams' runs and jobs by webhook, where the App hears of them.

Believed only of repositories whose id is bound, and only about runs that answer a dispatch of ours: by their
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
        """Write down what GitHub told, where it concerns something of ours."""

        async def unit(tx: Tx) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
            now = receipt.received_at
            await compare_default_branch(tx, event, now)
            if not await self._concerns(tx, event):
                return IgnoredEvent(f"no run of {event.repository} that answers us")
            if not await is_new_body(tx, receipt, event):
                return AlreadyProcessed()
            if isinstance(event, WorkflowRunEvent):
                await self._run_told(tx, event, now)
            else:
                await self._job_told(tx, event, now)
            return AcceptedDelivery(0, DeliveryState.ACCEPTED)

        return await self._database.write(unit)

    async def _concerns(self, tx: Tx, event: WorkflowRunEvent | WorkflowJobEvent) -> bool:
        if isinstance(event, WorkflowJobEvent):
            return bool(await self._known(tx, event, event.run_id))
        return bool(await self._known(tx, event, event.run.run_id) or await self._named(tx, event))

    async def _run_told(self, tx: Tx, event: WorkflowRunEvent, now: datetime) -> None:
        run = event.run
        await self._run_names.compare(tx, event.repository_id, run, now)
        answers = await self._known(tx, event, run.run_id) or await self._named(tx, event)
        for row in answers:
            await record_run(tx, row, run, now)
        for row in await self._known(tx, event, run.run_id):
            if run.is_over:
                await shorten_silence(tx, row, run.attempt, now)
                await look_up_ended_run(tx, row, now)
            await self._tell(tx, row, now)
        if answers:
            where = {"downstream": event.repository.key, "repository_id": event.repository_id}
            await tx.run(_NOTE_WEBHOOK, at=to_us(now), before=to_us(now - _WEBHOOK_NOTED_EVERY), **where)

    async def _job_told(self, tx: Tx, event: WorkflowJobEvent, now: datetime) -> None:
        for row in await self._known(tx, event, event.run_id):
            # One job alone does not tell whether another has its name: only its failure counts here.
            if await verify_jobs(tx, row, (event.job,), self._outcomes, now):
                await self._tell(tx, row, now)

    async def _known(self, tx: Tx, event: WorkflowRunEvent | WorkflowJobEvent, run_id: int) -> list[Row]:
        return await tx.all(_RUN, run_id=str(run_id), repository_id=event.repository_id)

    async def _named(self, tx: Tx, event: WorkflowRunEvent) -> list[Row]:
        """The dispatch whose delivery the run's name holds, if it is just one: names may hold what strangers wrote."""
        if event.run.event != "repository_dispatch":
            return []
        found: list[Row] = []
        for guid in delivery_ids_in(event.run.display_title):
            found += await tx.all(_NAMED, guid=guid, repository_id=event.repository_id)
        return found if len(found) == 1 else []

    async def _tell(self, tx: Tx, row: Row, now: datetime) -> None:
        where = {"downstream": row["downstream"], "delivery": row["delivery"], "number": row["number"]}
        await note_change(tx, RepoName(row["upstream"]), "job", now=now, **where)
        await self._refresher.request_refresh_for(tx, row, now)
