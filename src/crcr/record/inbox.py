"""The durable inbox: one transaction takes a delivery, decides about it, and writes all that follows.

A GUID is taken once. The dispatches, what they supersede and the effects that will send them stand in the
same commit as the delivery itself, so an acknowledged event is never without its consequences.
"""

import json
from datetime import datetime
from typing import Any

from sqlalchemy import bindparam, select, text

from crcr.decide.events import PullRequest, Push
from crcr.decide.model import DeliveryState, EffectKind, RepoName
from crcr.decide.upstream import DRAFT, Drop, Ignored, Plan, Receipt, Seen, Taken, UpstreamFacts, plan
from crcr.record.allowlists import Allowlists
from crcr.record.database import Database, Tx
from crcr.record.dispatch_rows import drop_unsent, held_dispatches, lane_of, release, write_dispatches
from crcr.record.effect_rows import add_effects, effect_row
from crcr.record.log_rows import note_act, note_change
from crcr.record.pull_rows import load_pull, save_pull
from crcr.record.schema import deliveries
from crcr.record.statement import Statement, inserting
from crcr.record.targets import Targets
from crcr.record.times import to_us

_TAKE = Statement(
    inserting(
        deliveries,
        *("guid", "upstream", "event", "action", "state", "reason", "source"),
        *("number", "head_sha", "ref", "received_at", "body_bytes", "body"),
    )
    .on_conflict_do_nothing()
    .returning(deliveries.c.guid)
)
_SEEN = Statement(
    select(deliveries.c.state).where(
        deliveries.c.guid == bindparam("guid"), deliveries.c.upstream == bindparam("upstream")
    )
)
_OTHER_ID = Statement(
    text(
        "SELECT 1 FROM upstreams WHERE upstream = :upstream"
        " AND repository_id IS NOT NULL AND repository_id <> :repository_id"
    )
)
_ALARMED = Statement(
    text(
        "SELECT 1 FROM audit WHERE upstream = :upstream AND act = 'upstream_identity_changed' AND detail = :detail LIMIT 1"
    )
)
_INSTALLED_AS = Statement(
    text(
        "UPDATE upstreams SET repository_id = coalesce(repository_id, :repository_id),"
        " installation_id = coalesce(:installation_id, installation_id)"
        " WHERE upstream = :upstream AND (repository_id IS NULL"
        " OR installation_id IS NULL OR installation_id <> :installation_id)"
    )
)


class Inbox:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        targets: Targets,
        ignore_refs: dict[str, tuple[str, ...]],
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._targets = targets
        self._ignore_refs = ignore_refs

    async def take(self, receipt: Receipt, event: PullRequest | Push) -> Taken | Seen | Ignored:
        return await self._database.write(lambda tx: self._take(tx, receipt, event))

    async def refresh(self, upstreams: tuple[RepoName, ...], now: datetime) -> None:
        """Have the allowlists of these upstreams read again."""
        effects = [refresh_effect(upstream, now) for upstream in upstreams]
        await self._database.write(lambda tx: add_effects(tx, effects))

    async def _take(self, tx: Tx, receipt: Receipt, event: PullRequest | Push) -> Taken | Seen | Ignored:
        upstream = event.upstream
        if await tx.one(_SEEN, guid=receipt.guid, upstream=upstream.key):
            return Seen()
        if await tx.one(_OTHER_ID, upstream=upstream.key, repository_id=event.repository_id):
            await self._alarm(tx, event, receipt.received_at)
            return Ignored(f"{upstream} is bound to another repository id than {event.repository_id}")
        planned = plan(event, await self._facts(tx, event))
        if isinstance(planned, Ignored):
            return planned
        # The GUID's own key decides between two transactions that both saw nothing.
        if not await tx.all(_TAKE, **_delivery_row(receipt, event, planned)):
            return Seen()
        await tx.run(
            _INSTALLED_AS,
            upstream=upstream.key,
            repository_id=event.repository_id,
            installation_id=event.installation_id,
        )
        await self._write_plan(tx, receipt, event, planned)
        return Taken(len(planned.dispatches), planned.state)

    async def _alarm(self, tx: Tx, event: PullRequest | Push, now: datetime) -> None:
        """Say once that somebody else has the upstream's name."""
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

    async def _facts(self, tx: Tx, event: PullRequest | Push) -> UpstreamFacts:
        upstream = event.upstream
        return UpstreamFacts(
            allowlist=await self._allowlists.in_force(tx, upstream),
            ignore_refs=self._ignore_refs[upstream.key],
            suspended=await self._targets.suspended(tx, upstream),
            pull=await load_pull(tx, upstream, event.number) if isinstance(event, PullRequest) else None,
        )

    async def _write_plan(self, tx: Tx, receipt: Receipt, event: PullRequest | Push, planned: Plan) -> None:
        now = receipt.received_at
        number = event.number if isinstance(event, PullRequest) else None
        if planned.pull is not None:
            await save_pull(tx, event.upstream, planned.pull)
            if planned.drop is not Drop.NONE:
                await drop_unsent(tx, event.upstream, planned.pull, planned.drop, now)
        await write_dispatches(tx, _dispatch_columns(receipt, event), planned.dispatches, now)
        if planned.releases_drafts and number is not None:
            await self._release_drafts(tx, event.upstream, number, now)
        if planned.state is DeliveryState.IN_DOUBT and number is not None:
            await add_effects(tx, [_confirm_head(event.upstream, receipt, number)])
        await note_change(tx, event.upstream, "delivery", delivery=receipt.guid, number=number, now=now)

    async def _release_drafts(self, tx: Tx, upstream: RepoName, number: int, now: datetime) -> None:
        held = await held_dispatches(tx, upstream, number, reason=DRAFT)
        if held:
            await release(tx, upstream, held, await self._allowlists.in_force(tx, upstream), now)


def refresh_effect(upstream: RepoName, now: datetime) -> dict[str, Any]:
    return effect_row(upstream, EffectKind.REFRESH_ALLOWLIST, target="allowlist", lane="allowlist", now=now)


def _confirm_head(upstream: RepoName, receipt: Receipt, number: int) -> dict[str, Any]:
    lane = f"pull/{number}"
    return effect_row(
        upstream,
        EffectKind.CONFIRM_HEAD,
        target=upstream.key,
        lane=lane,
        delivery=receipt.guid,
        now=receipt.received_at,
    )


def _delivery_row(receipt: Receipt, event: PullRequest | Push, planned: Plan) -> dict[str, Any]:
    pull = event if isinstance(event, PullRequest) else None
    push = event if isinstance(event, Push) else None
    return {
        "guid": receipt.guid,
        "upstream": event.upstream.key,
        "event": receipt.event,
        "action": pull.action if pull else None,
        "state": planned.state.value,
        "reason": planned.reason,
        "source": receipt.source,
        "number": pull.number if pull else None,
        "head_sha": pull.head_sha if pull else push.after if push else None,
        "ref": push.ref if push else None,
        "received_at": to_us(receipt.received_at),
        "body_bytes": receipt.body_bytes,
        "body": receipt.body,
    }


def _dispatch_columns(receipt: Receipt, event: PullRequest | Push) -> dict[str, Any]:
    pull = event if isinstance(event, PullRequest) else None
    return {
        "upstream": event.upstream.key,
        "delivery": receipt.guid,
        "event": receipt.event,
        "action": pull.action if pull else None,
        "number": pull.number if pull else None,
        "head_sha": pull.head_sha if pull else event.after if isinstance(event, Push) else None,
        "lane": lane_of(event),
        "created_at": to_us(receipt.received_at),
    }
