"""Administrative operations: pause, replay, retry, test dispatches. Each is one transaction and is audited by name."""

import json
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.checks.reruns import CUT_OFF
from crcr.decide.dispatch.plan import PlannedDispatch
from crcr.decide.dispatch.webhook_body import compress_body
from crcr.decide.model import (
    BISECTION_EVENT,
    PAIR_EVENT,
    TEST_EVENT,
    DeliveryState,
    DispatchState,
    EffectKind,
    RepoName,
)
from crcr.errors import NotFound, NotPossible
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.deliveries.dispatches import find_held_of_delivery, reconsider_held, send, write_dispatches
from crcr.record.deliveries.pull_requests import load_pull
from crcr.record.jobs.forwards import is_overtaken
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.schema.main_tables import deliveries, upstreams
from crcr.record.statistics.recount_changed_jobs import recount
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.signals import EFFECTS
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_REGISTER = Statement(
    inserting(upstreams, "upstream", "name", "created_at").on_conflict_do_update(
        index_elements=["upstream"], set_={"name": inserting(upstreams, "name").excluded.name}
    )
)
_PAUSE = Statement(text("UPDATE upstreams SET paused_at = :at WHERE upstream = :upstream"))
_DELIVERY = Statement(
    text(
        "SELECT event, state, body IS NOT NULL AS kept FROM deliveries WHERE guid = :guid AND upstream = :upstream"
    )
)
_UNSENT = Statement(
    text(
        "SELECT downstream, delivery, lane, state, number, reason FROM dispatches WHERE upstream = :upstream AND delivery = :delivery"
        " AND ((state IN ('parked', 'cancelled') AND superseded_at IS NULL) OR (state = 'sent' AND reason = 'shadow')"
        " OR (:all = 1 AND state <> 'waiting'))"
    )
)
_REOPEN = Statement(
    text(
        "UPDATE dispatches SET state = 'waiting', reason = NULL, superseded_at = NULL,"
        " unsure = CASE WHEN state = 'sent' THEN 1 ELSE unsure END"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :downstream"
    )
)
# It may still have to wait (for an approval, for the end of a draft), as before its backend left.
_HOLD_AGAIN = Statement(
    text(
        "UPDATE dispatches SET state = 'held', reason = NULL WHERE upstream = :upstream AND delivery = :delivery"
        " AND downstream = :downstream AND state = 'cancelled' AND superseded_at IS NULL"
    )
)
# A pull request that was closed meanwhile needs no test, a bisection ends when its backend leaves, and a pair is sent anew.
_CUT_OFF = Statement(
    text(
        "SELECT v.guid FROM deliveries v LEFT JOIN pulls p ON p.upstream = v.upstream AND p.number = v.number"  # noqa: S608  our own text
        f" WHERE v.upstream = :upstream AND v.received_at >= :since AND v.body IS NOT NULL "
        f" AND v.event <> '{BISECTION_EVENT}' AND v.event <> '{PAIR_EVENT}'"
        " AND (v.number IS NULL OR v.action = 'closed' OR p.is_open = 1) AND EXISTS (SELECT 1 FROM dispatches d"
        " WHERE d.delivery = v.guid AND d.upstream = v.upstream AND d.state = 'cancelled' AND d.superseded_at IS NULL"
        " AND d.reason IN ('left the allowlist', 'suspended')) ORDER BY v.received_at, v.guid"
    )
)
_CLOSE_PARKED = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', last_error = 'replayed' WHERE upstream = :upstream AND target = :downstream"
        " AND delivery = :delivery AND kind = 'send_dispatch' AND state = 'parked'"
    )
)
_PARKED = Statement(
    text(
        "SELECT effect_id, kind, target, lane, delivery FROM effects WHERE upstream = :upstream AND state = 'parked'"
        " AND effect_id BETWEEN :first_id AND :last_id AND (CAST(:target AS TEXT) IS NULL OR target = :target)"
        " AND (CAST(:since AS BIGINT) IS NULL OR finished_at >= :since) AND (CAST(:until AS BIGINT) IS NULL OR finished_at <= :until)"
        " AND (:first_id = :last_id OR NOT EXISTS (SELECT 1 FROM dispatches d WHERE d.upstream = effects.upstream"
        " AND d.delivery = effects.delivery AND d.downstream = effects.target AND d.superseded_at IS NOT NULL))"
        " ORDER BY effect_id"
    )
)
_RETRY = Statement(
    text(
        "UPDATE effects SET state = 'waiting', due_at = :now, first_attempt_at = NULL, finished_at = NULL"
        " WHERE effect_id = :effect_id AND state = 'parked'"
    )
)
_OVERTAKEN = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', last_error = 'a newer outcome of the job was forwarded'"
        " WHERE effect_id = :effect_id AND state = 'parked'"
    )
)
_UNPARK = Statement(
    text(
        "UPDATE dispatches SET state = 'waiting', reason = NULL"
        " WHERE upstream = :upstream AND delivery = :delivery AND downstream = :target AND state = 'parked'"
    )
)
_TAKE = Statement(
    inserting(
        deliveries,
        *("guid", "upstream", "event", "action", "state", "source", "received_at", "body_bytes", "body"),
    )
)
_MARK_TEST = Statement(
    text("UPDATE dispatches SET test = 1 WHERE upstream = :upstream AND delivery = :delivery")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParkedFilter:
    effect_id: int | None = None
    between: tuple[int, int] = (0, 2**62)
    """Effects by id, the first and the last included."""
    target: RepoName | None = None
    since: datetime | None = None
    until: datetime | None = None
    """Times of parking, both included."""


class AdminOperations:
    def __init__(self, database: Database, targets: Downstreams, allowlists: Allowlists) -> None:
        self._database = database
        self._targets = targets
        self._allowlists = allowlists

    async def register_upstreams(self, names: tuple[RepoName, ...], now: datetime) -> None:
        rows = [{"upstream": name.key, "name": name.full_name, "created_at": to_us(now)} for name in names]
        await self._database.write(lambda tx: tx.many(_REGISTER, rows))

    async def pause(
        self,
        upstream: RepoName,
        *,
        who: str,
        now: datetime,
        lift: bool = False,
        reason: str | None = None,
    ) -> None:
        """Stop dispatching (or go on, with `lift`); deliveries are taken all the same and wait."""
        act = "unpause" if lift else "pause"

        async def unit(tx: Tx) -> None:
            await tx.run(_PAUSE, upstream=upstream.key, at=None if lift else to_us(now))
            await note_act(tx, upstream, who=who, act=act, subject=str(upstream), now=now, reason=reason)
            await note_change(tx, upstream, "relay", now=now)
            tx.signal(EFFECTS)

        await self._database.write(unit)

    async def replay(
        self, upstream: RepoName, guid: str, *, who: str, now: datetime, everyone: bool = False
    ) -> int:
        """Send a delivery again to downstreams that did not get it (with `everyone`: to all); return to how many."""

        async def unit(tx: Tx) -> int:
            delivery = await tx.one(_DELIVERY, guid=guid, upstream=upstream.key)
            if delivery is None:
                raise NotFound(f"there is no delivery {guid} of {upstream}")
            if not delivery["kept"]:
                raise NotPossible(f"the body of delivery {guid} is no longer kept")
            if delivery["event"] == BISECTION_EVENT:
                raise NotPossible(
                    f"delivery {guid} is a run of a bisection, which repeats its runs by itself",
                    hint="begin another one with `crcr bisect`",
                )
            if delivery["event"] == PAIR_EVENT:
                raise NotPossible(
                    f"delivery {guid} is of a pair, which is sent for the heads that both pull requests have",
                    hint="comment `/crcr test-with` on the pull request to have it sent again",
                )
            unsent = await tx.all(_UNSENT, upstream=upstream.key, delivery=guid, all=int(everyone))
            reached = await self._reached(tx, upstream)
            rows = [row for row in unsent if row["downstream"] in reached]
            returned = [row for row in rows if not everyone and _was_cut_off(row)]
            again = [row for row in rows if row not in returned]
            for row in again:
                key = {"upstream": upstream.key, "delivery": guid, "downstream": row["downstream"]}
                await tx.run(_REOPEN, **key)
                await tx.run(_CLOSE_PARKED, **key)
                await recount(tx, key, now)
            await send(tx, upstream.key, again, now)
            count = len(again) + await self._send_to_returned(tx, upstream, returned, now)
            await note_act(tx, upstream, who=who, act="replay", subject=guid, now=now, dispatches=count)
            return count

        return await self._database.write(unit)

    async def find_cut_off(self, upstream: RepoName, since: datetime) -> list[str]:
        """Deliveries since then with dispatches that were cancelled because a backend was unlisted or suspended."""
        rows = await self._database.read(
            lambda tx: tx.all(_CUT_OFF, upstream=upstream.key, since=to_us(since))
        )
        return [row["guid"] for row in rows]

    async def _send_to_returned(self, tx: Tx, upstream: RepoName, rows: list[Row], now: datetime) -> int:
        """Send the dispatches of a pull request to backends that are listed again, unless something holds them."""
        for row in rows:
            key = {"upstream": upstream.key, "delivery": row["delivery"], "downstream": row["downstream"]}
            await tx.run(_HOLD_AGAIN, **key)
        allowlist = await self._allowlists.in_force(tx, upstream)
        for number in {row["number"] for row in rows}:
            pull = await load_pull(tx, upstream, number)
            if pull is not None:
                await reconsider_held(tx, upstream, pull, allowlist, now)
        held = {
            (row["delivery"], row["downstream"])
            for delivery in {row["delivery"] for row in rows}
            for row in await find_held_of_delivery(tx, upstream, delivery)
        }
        return sum((row["delivery"], row["downstream"]) not in held for row in rows)

    async def retry_parked(self, upstream: RepoName, which: ParkedFilter, *, who: str, now: datetime) -> int:
        """Give parked effects another 24 hours; return how many there were.

        Dispatches to backends that left the allowlist or are suspended stay parked. A forward that a newer one has
        overtaken is cancelled: it would show an old outcome again.
        """

        async def unit(tx: Tx) -> int:
            parked, rows = await self._retriable(tx, upstream, which), []
            for row in parked:
                if row["kind"] == EffectKind.FORWARD_RESULT.value and await is_overtaken(
                    tx, row["effect_id"]
                ):
                    await tx.run(_OVERTAKEN, effect_id=row["effect_id"])
                else:
                    rows.append(row)
                await tx.run(_RETRY, effect_id=row["effect_id"], now=to_us(now))
                if row["kind"] == EffectKind.SEND_DISPATCH.value:
                    key = {"delivery": row["delivery"], "target": row["target"]}
                    await tx.run(_UNPARK, upstream=upstream.key, **key)
            if rows:
                await note_act(
                    tx,
                    upstream,
                    who=who,
                    act="retry",
                    subject=f"{len(rows):,} effects",
                    now=now,
                    ids=[r["effect_id"] for r in rows],
                )
            tx.signal(EFFECTS)
            return len(rows)

        return await self._database.write(unit)

    async def dispatch_test(
        self, upstream: RepoName, downstream: RepoName, guid: str, *, who: str, now: datetime
    ) -> None:
        """Send a dispatch that is marked as a test and counted nowhere."""

        async def unit(tx: Tx) -> None:
            entry = (await self._allowlists.in_force(tx, upstream)).find(downstream)
            if entry is None:
                raise NotFound(f"{downstream} is not on the allowlist of {upstream}")
            if downstream.key in await self._targets.read_suspended(tx, upstream):
                raise NotPossible(f"{downstream} is suspended", hint="`crcr resume OWNER/REPO` ends it")
            body = json.dumps(
                {"action": "test", "repository": {"full_name": str(upstream)}, "sender": {"login": who}}
            ).encode()
            await tx.run(_TAKE, **_test_delivery(upstream, guid, body, now))
            shared = {
                "upstream": upstream.key, "delivery": guid, "event": TEST_EVENT, "action": "test",
                "number": None, "head_sha": None, "lane": "test", "created_at": to_us(now),
            }  # fmt: skip
            await write_dispatches(tx, shared, (PlannedDispatch(entry, DispatchState.WAITING),), now)
            await tx.run(_MARK_TEST, upstream=upstream.key, delivery=guid)
            await note_act(
                tx, upstream, who=who, act="dispatch_test", subject=str(downstream), now=now, delivery=guid
            )

        await self._database.write(unit)

    async def parked_ids(self, upstream: RepoName, which: ParkedFilter) -> list[int]:
        """Return the effects that `retry_parked` would take, oldest first."""
        rows = await self._database.read(lambda tx: self._retriable(tx, upstream, which))
        return [row["effect_id"] for row in rows]

    async def note_refresh(self, upstream: RepoName, *, who: str, now: datetime, version: int | None) -> None:
        """Record that the allowlist was refreshed by hand; `version` is the new one, if it changed."""
        await self._database.write(
            lambda tx: note_act(
                tx,
                upstream,
                who=who,
                act="refresh_allowlist",
                subject=str(upstream),
                now=now,
                version=version,
            )
        )

    async def _retriable(self, tx: Tx, upstream: RepoName, which: ParkedFilter) -> list[Row]:
        first_id, last_id = which.between if which.effect_id is None else (which.effect_id, which.effect_id)
        rows = await tx.all(
            _PARKED,
            upstream=upstream.key,
            first_id=first_id,
            last_id=last_id,
            target=which.target.key if which.target else None,
            since=to_us(which.since) if which.since else None,
            until=to_us(which.until) if which.until else None,
        )
        reached = await self._reached(tx, upstream)
        return [
            row for row in rows if row["kind"] != EffectKind.SEND_DISPATCH.value or row["target"] in reached
        ]

    async def _reached(self, tx: Tx, upstream: RepoName) -> frozenset[str]:
        """Return the backends that may be sent dispatches now: listed and not suspended."""
        allowlist = await self._allowlists.in_force(tx, upstream)
        listed = frozenset(entry.name.key for entry in allowlist.entries)
        return listed - await self._targets.read_suspended(tx, upstream)


def _was_cut_off(row: Row) -> bool:
    cancelled = row["state"] == DispatchState.CANCELLED.value and row["reason"] in CUT_OFF
    return cancelled and row["number"] is not None


def _test_delivery(upstream: RepoName, guid: str, body: bytes, now: datetime) -> dict[str, Any]:
    return {
        "guid": guid,
        "upstream": upstream.key,
        "event": TEST_EVENT,
        "action": "test",
        "state": DeliveryState.ACCEPTED.value,
        "source": "test",
        "received_at": to_us(now),
        "body_bytes": len(body),
        "body": compress_body(body),
    }
