"""The durable inbox: one transaction records a delivery, plans its dispatches, and writes all effects.

A GUID is recorded once, and so is a body. The dispatches, the changes to superseded ones and the effects that will send
them are in the same commit as the delivery itself, so an acknowledged event is never without its consequences.
"""

import json
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.dispatch.plan import (
    AcceptedDelivery,
    AlreadyProcessed,
    DispatchPlan,
    Drop,
    IgnoredEvent,
    ReceivedDelivery,
    UpstreamFacts,
    plan_dispatches,
)
from crcr.decide.dispatch.selection import PATHS, may_need_approval
from crcr.decide.dispatch.webhook_body import is_too_old
from crcr.decide.events import DispatchedEvent, MergeGroupEvent, PullRequestEvent, PushEvent
from crcr.decide.model import DeliveryState, EffectKind, KnownPull, RepoName
from crcr.decide.notices.announcements import settle_note
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.dispatches import (
    dispatch_lane,
    drop_unsent,
    reconsider_held,
    reconsider_left_out,
    request_changed_files,
    write_dispatches,
)
from crcr.record.deliveries.merge_groups import add_group, destroy_group, dispatched_for_group
from crcr.record.deliveries.pull_requests import (
    dispatched_before,
    is_approved,
    lacks_delivery_for_base,
    load_pull,
    save_pull,
)
from crcr.record.deliveries.webhooks import is_new_body
from crcr.record.failures.base_commits import note_pushed_commits
from crcr.record.levels.demotions import find_downgraded
from crcr.record.outbox.effects import add_effects, add_once, effect_row
from crcr.record.pairs.named_dependencies import follow_pull
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.schema.main_tables import deliveries
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_TAKE = Statement(
    inserting(
        deliveries,
        *("guid", "upstream", "event", "action", "state", "reason", "source"),
        *("number", "head_sha", "ref", "base_ref", "relay_reason", "received_at", "body_bytes", "body"),
    )
    .on_conflict_do_nothing()
    .returning(deliveries.c.guid)
)
_ALARMED = Statement(
    text(
        "SELECT 1 FROM audit WHERE upstream = :upstream AND act = 'upstream_identity_changed' AND detail = :detail LIMIT 1"
    )
)
# All that every event needs to know, in one round trip; one row for each suspended downstream, and at least one.
_UPSTREAM = Statement(
    text(
        "SELECT u.repository_id, u.installation_id, u.default_branch, u.gate_since, r.downstream AS suspended,"
        " (SELECT max(a.version) FROM allowlist_versions a WHERE a.upstream = :upstream AND a.good = 1) AS version,"
        " EXISTS (SELECT 1 FROM deliveries v WHERE v.guid = :guid AND v.upstream = :upstream) AS seen"
        " FROM (SELECT 1 AS one) AS always LEFT JOIN upstreams u ON u.upstream = :upstream"
        " LEFT JOIN repositories r ON r.upstream = u.upstream AND r.suspended_at IS NOT NULL"
    )
)
_INSTALLED_AS = Statement(
    text(
        "UPDATE upstreams SET repository_id = coalesce(repository_id, :repository_id),"
        " installation_id = coalesce(:installation_id, installation_id),"
        " default_branch = coalesce(:default_branch, default_branch)"
        " WHERE upstream = :upstream AND (repository_id IS NULL OR coalesce(default_branch, '') <> :default_branch"
        " OR installation_id IS NULL OR installation_id <> :installation_id)"
    )
)


class Inbox:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        refresher: CheckRefresher,
        ignore_refs: dict[str, tuple[str, ...]],
        *,
        github_url: str | None = None,
    ) -> None:
        """`github_url` is GitHub's web address, which links to pull requests begin with."""
        self._database = database
        self._allowlists = allowlists
        self._refresher = refresher
        self._ignore_refs = ignore_refs
        self._github_url = github_url

    async def take(
        self, receipt: ReceivedDelivery, event: DispatchedEvent
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
        return await self._database.write(lambda tx: self._take(tx, receipt, event))

    async def refresh(self, upstreams: tuple[RepoName, ...], now: datetime) -> None:
        """Have the allowlists of these upstreams read again."""
        effects = [refresh_effect(upstream, now) for upstream in upstreams]
        await self._database.write(lambda tx: add_once(tx, *effects))

    async def _take(
        self, tx: Tx, receipt: ReceivedDelivery, event: DispatchedEvent
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
        upstream = event.upstream
        rows = await tx.all(_UPSTREAM, guid=receipt.guid, upstream=upstream.key)
        known = rows[0]
        if known["seen"]:
            return AlreadyProcessed()
        if known["repository_id"] not in {None, event.repository_id}:
            await self._alarm(tx, event, receipt.received_at)
            return IgnoredEvent(f"{upstream} is bound to another repository id than {event.repository_id}")
        if is_too_old(event, receipt.received_at):
            return IgnoredEvent("the push is older than three days")
        facts = await self._facts(tx, event, rows, receipt.received_at)
        planned = plan_dispatches(event, facts)
        if isinstance(planned, IgnoredEvent):
            if isinstance(event, PushEvent) and event.ref == f"refs/heads/{event.default_branch}":
                await note_pushed_commits(tx, event, receipt.received_at)
            return planned
        if not await is_new_body(tx, receipt, event):
            return AlreadyProcessed()
        # The GUID's own key decides between two transactions that both saw nothing.
        if not await tx.all(_TAKE, **_delivery_row(receipt, event, planned)):
            return AlreadyProcessed()
        await _follow_installation(tx, event, known)
        await self._write_plan(tx, receipt, event, planned, facts)
        await self._write_consequences(tx, receipt, event, planned, facts)
        return AcceptedDelivery(sum(dispatch.may_be_sent for dispatch in planned.dispatches), planned.state)

    async def _alarm(self, tx: Tx, event: DispatchedEvent, now: datetime) -> None:
        """Raise one alarm when another repository has the upstream's name."""
        detail = {"repository_id": event.repository_id}
        if not await tx.one(_ALARMED, upstream=event.upstream.key, detail=json.dumps(detail)):
            await note_act(
                tx,
                event.upstream,
                who="relay",
                act="upstream_identity_changed",
                subject=str(event.upstream),
                now=now,
                **detail,
            )

    async def _find_downgraded(
        self, tx: Tx, event: PullRequestEvent | MergeGroupEvent, facts: UpstreamFacts, now: datetime
    ) -> frozenset[str]:
        levels = self._refresher.policy(event.upstream).levels
        return await find_downgraded(tx, event.upstream, event.head_sha, facts.allowlist, levels, now=now)

    async def _facts(self, tx: Tx, event: DispatchedEvent, rows: list[Row], now: datetime) -> UpstreamFacts:
        upstream = event.upstream
        group = event if isinstance(event, MergeGroupEvent) else None
        facts = UpstreamFacts(
            allowlist=await self._allowlists.version(tx, upstream, rows[0]["version"]),
            ignore_refs=self._ignore_refs[upstream.key],
            suspended=frozenset(row["suspended"] for row in rows if row["suspended"] is not None),
            gate_on=self._refresher.has_gate(upstream, rows[0]["gate_since"]),
            dispatched_to_group=await dispatched_for_group(tx, upstream, group.head_sha) if group else None,
        )
        if not isinstance(event, PushEvent):
            facts = replace(facts, downgraded=await self._find_downgraded(tx, event, facts, now))
        return await _pull_facts(tx, event, facts) if isinstance(event, PullRequestEvent) else facts

    async def _write_plan(
        self,
        tx: Tx,
        receipt: ReceivedDelivery,
        event: DispatchedEvent,
        planned: DispatchPlan,
        facts: UpstreamFacts,
    ) -> None:
        now = receipt.received_at
        number = event.number if isinstance(event, PullRequestEvent) else None
        if planned.pull is not None:
            label = self._refresher.policy(event.upstream).breaking_label
            await save_pull(tx, event.upstream, settle_note(planned.pull, facts.pull, label))
            # Of a pull request that is new here nothing can be dropped: it is let go with its last delivery.
            if planned.drop is not Drop.NONE and facts.pull is not None:
                cause = planned.reason
                await drop_unsent(tx, event.upstream, planned.pull, planned.drop, now, cause=cause)
        await write_dispatches(tx, _dispatch_columns(receipt, event, planned), planned.dispatches, now)
        if planned.state is DeliveryState.IN_DOUBT and number is not None:
            await add_effects(tx, [_confirm_head(event.upstream, receipt, number)])
        await note_change(tx, event.upstream, "delivery", delivery=receipt.guid, number=number, now=now)

    async def _write_consequences(
        self,
        tx: Tx,
        receipt: ReceivedDelivery,
        event: DispatchedEvent,
        planned: DispatchPlan,
        facts: UpstreamFacts,
    ) -> None:
        """Write the other consequences: held dispatches are reconsidered, and the commits' checks refreshed."""
        now = receipt.received_at
        if isinstance(event, PushEvent):
            await note_pushed_commits(tx, event, now)
        elif isinstance(event, MergeGroupEvent):
            await self._follow_group(tx, receipt, event)
        elif planned.pull is not None:
            if planned.reconsiders_left_out:
                await reconsider_left_out(tx, event.upstream, planned.pull, facts.allowlist, now)
            if planned.reconsiders_held:
                await reconsider_held(tx, event.upstream, planned.pull, facts.allowlist, now)
            elif facts.pull is not None or any(dispatch.reason == PATHS for dispatch in planned.dispatches):
                await request_changed_files(tx, event.upstream, event.number, now)
        if isinstance(event, PullRequestEvent):
            await follow_pull(tx, event, planned, facts.pull, now, github_url=self._github_url)
        if not isinstance(event, PushEvent) and (facts.gate_on or facts.allowlist.has_checks):
            heads, labels = _heads(event, facts.pull, planned), _labels(event, facts.pull)
            await self._refresher.request_refresh_for_pull(
                tx, event.upstream, heads, now, allowlist=facts.allowlist, labels=labels
            )

    async def _follow_group(self, tx: Tx, receipt: ReceivedDelivery, event: MergeGroupEvent) -> None:
        if event.action == "destroyed":
            await destroy_group(tx, event, receipt.guid, receipt.received_at)
            return
        await add_group(tx, event, receipt.guid, receipt.received_at)
        await add_effects(tx, [_read_group(event, receipt)])


async def _follow_installation(tx: Tx, event: DispatchedEvent, known: Row) -> None:
    """Record the upstream's ids and default branch as the event has them, where they are news."""
    installed = {
        "repository_id": event.repository_id,
        "installation_id": event.installation_id,
        "default_branch": event.default_branch,
    }
    if any(value is not None and known[name] != value for name, value in installed.items()):
        await tx.run(_INSTALLED_AS, upstream=event.upstream.key, **installed)


async def _pull_facts(tx: Tx, event: PullRequestEvent, facts: UpstreamFacts) -> UpstreamFacts:
    """Add the recorded facts of the pull request, and of its event's head and base."""
    upstream, number = event.upstream, event.number
    where = {"head_sha": event.head_sha, "base_ref": event.base_ref}
    known = await load_pull(tx, upstream, number)
    is_known = known is not None and (known.head_sha, known.base_ref) == (event.head_sha, event.base_ref)
    # Earlier dispatches matter only where options can leave a backend out.
    selective = any(entry.labels is not None or entry.paths is not None for entry in facts.allowlist.entries)
    return replace(
        facts,
        pull=known,
        approved=may_need_approval(facts.allowlist, event.author_association)
        and await is_approved(tx, upstream, number, **where),
        dispatched=await dispatched_before(tx, upstream, number, **where) if selective else frozenset(),
        base_lacks_delivery=known is not None
        and is_known
        and await lacks_delivery_for_base(tx, upstream, known),
    )


def refresh_effect(upstream: RepoName, now: datetime) -> dict[str, Any]:
    return effect_row(upstream, EffectKind.REFRESH_ALLOWLIST, target="allowlist", lane="allowlist", now=now)


def _heads(
    event: PullRequestEvent | MergeGroupEvent, known: KnownPull | None, planned: DispatchPlan
) -> set[str]:
    """The commits whose checks an event may have changed: its own head, and the head before it."""
    heads = {event.head_sha}
    if known is not None:
        heads.add(known.head_sha)
    if planned.pull is not None:
        heads.add(planned.pull.head_sha)
    return heads


def _labels(event: PullRequestEvent | MergeGroupEvent, known: KnownPull | None) -> tuple[str, ...]:
    """The labels that the pull request has or had; a merge group has none."""
    if isinstance(event, MergeGroupEvent):
        return ()
    return (*event.labels, *(known.labels if known else ()))


def _read_group(event: MergeGroupEvent, receipt: ReceivedDelivery) -> dict[str, Any]:
    return effect_row(
        event.upstream,
        EffectKind.READ_GROUP,
        target=event.upstream.key,
        lane=dispatch_lane(event),
        delivery=receipt.guid,
        payload=event.head_sha.encode(),
        now=receipt.received_at,
    )


def _confirm_head(upstream: RepoName, receipt: ReceivedDelivery, number: int) -> dict[str, Any]:
    lane = f"pull/{number}"
    return effect_row(
        upstream,
        EffectKind.CONFIRM_HEAD,
        target=upstream.key,
        lane=lane,
        delivery=receipt.guid,
        now=receipt.received_at,
    )


def _event_columns(event: DispatchedEvent) -> dict[str, Any]:
    """Where an event belongs: its action, pull request, commit, ref and base, as far as it has them."""
    if isinstance(event, PushEvent):
        return {"action": None, "number": None, "head_sha": event.after, "ref": event.ref, "base_ref": None}
    if isinstance(event, MergeGroupEvent):
        columns: dict[str, Any] = {"number": None, "ref": event.head_ref, "base_ref": None}
    else:
        columns = {"number": event.number, "ref": None, "base_ref": event.base_ref}
    return {"action": event.action, "head_sha": event.head_sha, **columns}


def _delivery_row(receipt: ReceivedDelivery, event: DispatchedEvent, planned: DispatchPlan) -> dict[str, Any]:
    return {
        "guid": receipt.guid,
        "upstream": event.upstream.key,
        "event": receipt.event,
        **_event_columns(event),
        "state": planned.state.value,
        "reason": planned.reason,
        "relay_reason": planned.relay_reason,
        "source": receipt.source,
        "received_at": to_us(receipt.received_at),
        "body_bytes": receipt.body_bytes,
        "body": receipt.body,
    }


def _dispatch_columns(
    receipt: ReceivedDelivery, event: DispatchedEvent, planned: DispatchPlan
) -> dict[str, Any]:
    columns = _event_columns(event)
    return {
        "upstream": event.upstream.key,
        "delivery": receipt.guid,
        "event": receipt.event,
        **{name: columns[name] for name in ("number", "head_sha")},
        "action": planned.sent_as or columns["action"],
        "lane": dispatch_lane(event),
        "created_at": to_us(receipt.received_at),
    }
