"""Requests of people on the upstream's pages (buttons, re-runs, comments), each processed once.

Buttons and re-runs are obeyed here, in the transaction that takes their webhook; a comment needs an answer about
its author's rights first, so it becomes an effect.
"""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.checks.check_run import Tier
from crcr.decide.checks.commit import BackendResults, CommitFacts
from crcr.decide.checks.gate import GateJudgement, judge_for_subject
from crcr.decide.checks.reruns import plan_rerun, plan_rerun_of_failed
from crcr.decide.commands.answers import waiver_offer
from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.dispatch.webhook_body import is_too_old
from crcr.decide.events import CheckRunEvent, IssueCommentEvent, PeopleRequest
from crcr.decide.model import DeliveryState, EffectKind, Level, RepoName
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.check_runs import CommitChecks
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.checks.reruns import request_reruns
from crcr.record.deliveries.webhooks import DELIVERY_STATE, is_new_body
from crcr.record.outbox.effects import add_effects, add_once, effect_row
from crcr.record.schema.main_tables import deliveries
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

WAIVE = "waive"

_TAKE = Statement(
    inserting(
        deliveries,
        *(
            "guid",
            "upstream",
            "event",
            "action",
            "state",
            "source",
            "number",
            "head_sha",
            "received_at",
            "body_bytes",
        ),
    )
    .on_conflict_do_nothing()
    .returning(deliveries.c.guid)
)
_CHECK = Statement(
    text(
        "SELECT tier, downstream, name, incarnation FROM checks"
        " WHERE check_id = :check_id AND upstream = :upstream AND head_sha = :head_sha"
        " AND (check_run_id IS NULL OR check_run_id = :check_run_id)"
    )
)
_OTHER_ID = Statement(
    text(
        "SELECT 1 FROM upstreams WHERE upstream = :upstream"
        " AND repository_id IS NOT NULL AND repository_id <> :repository_id"
    )
)


class PeopleRequests:
    def __init__(self, database: Database, checks: CommitChecks, refresher: CheckRefresher) -> None:
        self._database = database
        self._checks = checks
        self._refresher = refresher

    async def take(
        self, receipt: ReceivedDelivery, event: PeopleRequest
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
        async def unit(tx: Tx) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
            if await _is_bound_to_another(tx, event.upstream, event.repository_id):
                return IgnoredEvent(f"{event.upstream} is bound to another repository id")
            row = await self._check(tx, event) if isinstance(event, CheckRunEvent) else None
            if isinstance(event, CheckRunEvent) and row is None:
                return IgnoredEvent("not a check of this relay")
            if is_too_old(event, receipt.received_at):
                return IgnoredEvent("the comment is older than three days")
            if await tx.one(DELIVERY_STATE, guid=receipt.guid, upstream=event.upstream.key):
                return AlreadyProcessed()
            if not await is_new_body(tx, receipt, event):
                return AlreadyProcessed()
            if not await tx.all(_TAKE, **_delivery_row(receipt, event)):
                return AlreadyProcessed()
            await self._obey(tx, receipt, event, row)
            return AcceptedDelivery(0, DeliveryState.ACCEPTED)

        return await self._database.write(unit)

    async def retry(
        self, tx: Tx, upstream: RepoName, head_sha: str, downstream: RepoName | None, now: datetime
    ) -> int:
        """Re-run what fails on a commit: of every backend, or everything of the named one."""
        commit, judgement = await self._checks.judge(tx, upstream, head_sha, now)
        queued = 0
        for subject in commit.subjects:
            for backend in subject.backends:
                if downstream in (None, backend.name, backend.recorded_name) and _may_run_again(backend):
                    judged = judge_for_subject(subject, backend, self._checks.gates.find(upstream), now)
                    reruns = plan_rerun_of_failed(judged)
                    if downstream is not None and not reruns:
                        reruns = plan_rerun(backend)
                    queued += await request_reruns(tx, upstream, subject, backend, reruns=reruns, now=now)
        if queued:
            await self._refresher.request_refresh(tx, upstream, (head_sha,), now)
        return queued if judgement is not None else 0

    async def _check(self, tx: Tx, event: CheckRunEvent) -> Row | None:
        """Find the check by our own id, and by GitHub's where it is known."""
        external_id = event.external_id or ""
        if not external_id.isdigit() or len(external_id) > 18:
            return None
        return await tx.one(
            _CHECK,
            check_id=int(external_id),
            check_run_id=event.check_run_id,
            upstream=event.upstream.key,
            head_sha=event.head_sha,
        )

    async def _obey(self, tx: Tx, receipt: ReceivedDelivery, event: PeopleRequest, check: Row | None) -> None:
        upstream, now = event.upstream, receipt.received_at
        if isinstance(event, IssueCommentEvent):
            await add_effects(tx, [_command(event, receipt)])
            return
        if isinstance(event, CheckRunEvent) and event.action == "requested_action":
            if event.identifier == WAIVE:
                await add_once(tx, _offer(event, receipt))
            return
        queued = await self._run_again(tx, upstream, event.head_sha, check, now)
        subject = check["name"] if check else f"all checks of {event.head_sha[:12]}"
        await note_act(
            tx,
            upstream,
            who=event.sender,
            act="rerun",
            subject=subject,
            now=now,
            head=event.head_sha,
            runs=queued,
        )
        await note_change(tx, upstream, "delivery", delivery=receipt.guid, now=now)
        await self._refresher.request_refresh(tx, upstream, (event.head_sha,), now)

    async def _run_again(
        self, tx: Tx, upstream: RepoName, head_sha: str, check: Row | None, now: datetime
    ) -> int:
        """Re-run the runs behind a check; without a check, all of the commit."""
        tier = Tier(check["tier"]) if check else None
        if tier is Tier.GATE:
            return await self.retry(tx, upstream, head_sha, None, now)
        commit, _ = await self._checks.judge(tx, upstream, head_sha, now)
        run_id = check["incarnation"].split(" ")[0] if check and tier is Tier.JOB else None
        meant = [
            (subject, backend)
            for subject in commit.subjects
            for backend in subject.backends
            if _may_run_again(backend) and (check is None or check["downstream"] in _keys(backend))
        ]
        # Of several pull requests on the head, only the one whose delivery started the job's run.
        own = [(subject, backend) for subject, backend in meant if _has_run(backend, run_id)]
        queued = 0
        for subject, backend in own or meant:
            reruns = plan_rerun(backend, only_run=run_id)
            queued += await request_reruns(tx, upstream, subject, backend, reruns=reruns, now=now)
        return queued

    async def waiver_offers(
        self, upstream: RepoName, head_sha: str, now: datetime
    ) -> tuple[tuple[int, str], ...]:
        """For each pull request on the head whose gate is blocked: its number, and the waive commands to copy."""
        judgement = await self._database.quick_read(lambda tx: self.judge(tx, upstream, head_sha, now))
        if judgement is None:
            return ()
        numbers = [
            judged.subject.number for judged in judgement.subjects if judged.subject.number is not None
        ]
        offers = ((number, waiver_offer(judgement, number, head_sha)) for number in numbers)
        return tuple((number, words) for number, words in offers if words is not None)

    async def judge(self, tx: Tx, upstream: RepoName, head_sha: str, now: datetime) -> GateJudgement | None:
        return (await self.judge_commit(tx, upstream, head_sha, now))[1]

    async def judge_commit(
        self, tx: Tx, upstream: RepoName, head_sha: str, now: datetime
    ) -> tuple[CommitFacts, GateJudgement | None]:
        return await self._checks.judge(tx, upstream, head_sha, now)


async def _is_bound_to_another(tx: Tx, upstream: RepoName, repository_id: int) -> bool:
    """Whether the upstream's name is bound to another repository id."""
    return await tx.one(_OTHER_ID, upstream=upstream.key, repository_id=repository_id) is not None


def _may_run_again(backend: BackendResults) -> bool:
    return backend.entry is not None and backend.entry.level >= Level.L3


def _keys(backend: BackendResults) -> set[str]:
    """Its check may have been published under a former name."""
    return {backend.name.key, backend.recorded_name.key}


def _has_run(backend: BackendResults, run_id: str | None) -> bool:
    return any(run.run_id == run_id for run in backend.runs)


def _delivery_row(receipt: ReceivedDelivery, event: PeopleRequest) -> dict[str, Any]:
    comment = event if isinstance(event, IssueCommentEvent) else None
    return {
        "guid": receipt.guid,
        "upstream": event.upstream.key,
        "event": receipt.event,
        "action": "created" if comment else getattr(event, "action", "rerequested"),
        "state": DeliveryState.ACCEPTED.value,
        "source": receipt.source,
        "number": comment.number if comment else None,
        "head_sha": None if isinstance(event, IssueCommentEvent) else event.head_sha,
        "received_at": to_us(receipt.received_at),
        "body_bytes": receipt.body_bytes,
    }


def _command(event: IssueCommentEvent, receipt: ReceivedDelivery) -> dict[str, Any]:
    payload = {
        "number": event.number,
        "comment_id": event.comment_id,
        "author": event.author,
        "person": event.author_is_person,
        "body": event.body,
        "created_at": event.created_at.isoformat(),
    }
    return effect_row(
        event.upstream,
        EffectKind.ANSWER_COMMAND,
        target="commands",
        lane=f"pull/{event.number}",
        delivery=receipt.guid,
        payload=json.dumps(payload).encode(),
        now=receipt.received_at,
    )


def _offer(event: CheckRunEvent, receipt: ReceivedDelivery) -> dict[str, Any]:
    return effect_row(
        event.upstream,
        EffectKind.OFFER_WAIVER,
        target="commands",
        lane=f"offer/{event.head_sha}",
        delivery=receipt.guid,
        payload=json.dumps({"head_sha": event.head_sha}).encode(),
        now=receipt.received_at,
    )
