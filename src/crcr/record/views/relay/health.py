"""The facts of the relay's health: waiting effects with their reasons, unpublished gates, parked effects, the allowlist,
and webhooks.

Each statement reads a partial index of open effects, or one end of an index.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.checks.check_run import GATE_NAME, Tier
from crcr.decide.checks.gate import GateState
from crcr.decide.health.relay import (
    Health,
    HealthFacts,
    OpenEffects,
    RefusedWebhooks,
    WaitingGates,
    judge_health,
)
from crcr.decide.health.texts import EffectClass, GatePublication, effect_class
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import EffectFault
from crcr.errors import HeldBy
from crcr.record.checks.refresh import tier_queue
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.relay.metrics import LAST_DELIVERY

# States are written out here, not bound: a partial index is used only where its condition can be seen.
_QUEUE = "CASE WHEN e.kind = 'publish_checks' THEN e.target ELSE '' END"
# The effects of a lane are sent in order: those behind a held one wait for the same limit.
_HINDERED = (
    "WITH hindered AS (SELECT target, lane, min(effect_id) AS effect_id, max(held_by) AS held_by, max(fault) AS fault,"
    " min(fault_since) AS fault_since, max(due_at) AS due_at FROM effects WHERE upstream = :upstream"
    " AND state IN ('waiting', 'claimed') AND (held_by IS NOT NULL OR fault IS NOT NULL){among} GROUP BY target, lane)"
)
_OPEN_EFFECTS = (
    "FROM effects e LEFT JOIN hindered b ON b.target = e.target AND b.lane = e.lane AND b.effect_id < e.effect_id"
    " AND e.held_by IS NULL AND e.fault IS NULL"
)
_HINDRANCE = (
    "coalesce(e.held_by, b.held_by) AS held_by, coalesce(e.fault, b.fault) AS fault,"
    " coalesce(e.fault_since, b.fault_since) AS fault_since,"
    " CASE WHEN b.due_at > e.due_at THEN b.due_at ELSE e.due_at END AS due_at"
)
# Two publications of a commit, one behind the other, are one commit.
_COUNTS = "CASE WHEN e.kind = 'publish_checks' AND b.effect_id IS NOT NULL THEN 0 ELSE 1 END AS counts"
_OPEN = Statement(
    text(
        f"{_HINDERED.format(among='')} SELECT kind, queue, held_by, fault, sum(counts) AS number, min(created_at) AS created_at,"  # noqa: S608
        " min(due_at) AS due_at, max(due_at) AS until, min(fault_since) AS fault_since FROM ("
        f"SELECT e.kind, {_QUEUE} AS queue, {_COUNTS}, e.created_at, {_HINDRANCE} {_OPEN_EFFECTS}"
        " WHERE e.upstream = :upstream AND e.state IN ('waiting', 'claimed')) AS open_effects"
        " GROUP BY kind, queue, held_by, fault ORDER BY kind, queue, held_by, fault"
    )
)
_PARKED = Statement(
    text(
        f"SELECT kind, {_QUEUE} AS queue, count(*) AS number FROM effects e"  # noqa: S608
        f" WHERE upstream = :upstream AND state = 'parked' GROUP BY kind, {_QUEUE} ORDER BY kind, queue"
    )
)
# The state of a head's gate that GitHub shows, as a value of `GateState`.
_ON_GITHUB = (
    "(SELECT CASE WHEN c.status <> 'completed' THEN 'pending' WHEN c.conclusion = 'success' THEN 'passed'"  # noqa: S608
    " WHEN c.conclusion = 'failure' THEN 'failed' ELSE 'over' END FROM checks c WHERE c.head_sha = {head}"
    f" AND c.upstream = :upstream AND c.name = '{GATE_NAME}' AND c.published_at IS NOT NULL"
    " ORDER BY c.round DESC LIMIT 1)"
)
_STATES = tuple(state.value for state in GateState)
_LIMITS = tuple(limit.value for limit in HeldBy)
_DECIDED = "('failed', 'pending', 'passed')"
_GATES = Statement(
    text(
        f"{_HINDERED.format(among=' AND target = :target')} SELECT held_by, fault, count(DISTINCT lane) AS number, min(since) AS since, max(due_at) AS until,"  # noqa: S608
        f" min(fault_since) AS fault_since FROM (SELECT e.lane, {_HINDRANCE}, g.state,"
        " CASE WHEN e.first_attempt_at IS NULL OR e.created_at > g.judged_at THEN 1 ELSE 0 END AS unjudged,"
        f" {_ON_GITHUB.format(head='e.lane')} AS shown,"
        f" CASE WHEN g.state IN {_DECIDED} AND g.state <> coalesce({_ON_GITHUB.format(head='e.lane')}, '')"
        " THEN coalesce(g.decided_at, g.judged_at) ELSE e.created_at END AS since"
        f" {_OPEN_EFFECTS} LEFT JOIN gates g ON g.head_sha = e.lane AND g.upstream = e.upstream"
        " WHERE e.upstream = :upstream AND e.target = :target AND e.state IN ('waiting', 'claimed')) AS open_gates"
        f" WHERE state IS NULL OR (state IN {_DECIDED} AND (coalesce(shown, '') <> state OR unjudged = 1))"
        " GROUP BY held_by, fault ORDER BY held_by, fault"
    )
)
_GATE = Statement(
    text(
        f"SELECT g.state, g.decided_at, g.judged_at, {_ON_GITHUB.format(head=':head_sha')} AS shown"  # noqa: S608
        " FROM gates g WHERE g.head_sha = :head_sha AND g.upstream = :upstream"
    )
)
_GATE_EFFECTS = Statement(
    text(
        "SELECT created_at, due_at, held_by, fault, fault_since FROM effects WHERE upstream = :upstream"
        " AND target = :target AND lane = :head_sha AND state IN ('waiting', 'claimed') ORDER BY effect_id"
    )
)
_GATE_PARKED = Statement(
    text(
        "SELECT 1 AS one FROM effects WHERE upstream = :upstream AND state = 'parked' AND target = :target"
        " AND lane = :head_sha LIMIT 1"
    )
)
_PAUSED = Statement(text("SELECT paused_at FROM upstreams WHERE upstream = :upstream"))
_LISTS = Statement(
    text(
        "SELECT (SELECT v.good FROM allowlist_versions v WHERE v.upstream = :upstream ORDER BY v.version DESC LIMIT 1)"
        " AS newest, EXISTS (SELECT 1 FROM allowlist_versions v WHERE v.upstream = :upstream AND v.good = 1) AS in_force"
    )
)
_REFUSED = Statement(
    text("SELECT number, since_at, last_at FROM refused_webhooks WHERE reason = 'bad_signature'")
)


class HealthViews:
    def __init__(self, database: Database, upstreams: tuple[RepoName, ...]) -> None:
        self._database = database
        self._upstreams = upstreams

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        """The health of every upstream, read beside the event loop and outside any write."""

        async def unit(tx: Tx) -> dict[RepoName, Health]:
            return {
                upstream: judge_health(await health_facts(tx, upstream), now) for upstream in self._upstreams
            }

        return await self._database.read(unit)


async def health_facts(tx: Tx, upstream: RepoName) -> HealthFacts:
    paused = await tx.one(_PAUSED, upstream=upstream.key)
    lists = await tx.one(_LISTS, upstream=upstream.key)
    last = await tx.one(LAST_DELIVERY, upstream=upstream.key)
    target = tier_queue(Tier.GATE)
    return HealthFacts(
        open_effects=tuple(map(_open, await tx.all(_OPEN, upstream=upstream.key))),
        gates=tuple(map(_gates, await tx.all(_GATES, upstream=upstream.key, target=target))),
        parked=_parked(await tx.all(_PARKED, upstream=upstream.key)),
        paused_at=from_us_or_none(paused["paused_at"]) if paused else None,
        has_allowlist=bool(lists and lists["in_force"]),
        allowlist_bad=bool(lists and lists["newest"] is not None and not lists["newest"]),
        last_delivery_at=from_us_or_none(last["at"]) if last else None,
        refused=await _refused(tx),
    )


async def unpublished_gate(
    tx: Tx, upstream: RepoName, head_sha: str, state: str, now: datetime
) -> GatePublication | None:
    """The pending publication of a gate in this state; None when GitHub shows it, or will within seconds."""
    if state not in _STATES:
        return None
    key = {"head_sha": head_sha, "upstream": upstream.key}
    gate = await tx.one(_GATE, **key)
    if gate is None or gate["state"] not in _STATES or gate["shown"] == state:
        return None
    target = tier_queue(Tier.GATE)
    effects = await tx.all(_GATE_EFFECTS, target=target, **key)
    hindered = next((row for row in effects if row["held_by"] or row["fault"]), None)
    parked = not effects and await tx.one(_GATE_PARKED, target=target, **key) is not None
    publication = GatePublication(
        at=now,
        decided_at=_decision_time(gate, effects, state),
        due_at=from_us(hindered["due_at"]) if hindered else None,
        parked=parked,
        **(waiting_reason(hindered) if hindered else {}),
    )
    return publication if publication.is_late else None


def _decision_time(gate: Row, effects: list[Row], state: str) -> datetime | None:
    """When the facts for this state were committed; they may be newer than the last judgement."""
    if gate["state"] == state:
        return from_us(gate["decided_at"] or gate["judged_at"])
    return from_us(effects[-1]["created_at"]) if effects else None


def _open(row: Row) -> OpenEffects:
    return OpenEffects(
        effects=_effect_class(row),
        number=row["number"],
        created_at=from_us(row["created_at"]),
        due_at=from_us(row["due_at"]),
        until=from_us(row["until"]),
        **waiting_reason(row),
    )


def _gates(row: Row) -> WaitingGates:
    since, until = from_us(row["since"]), from_us(row["until"])
    return WaitingGates(number=row["number"], since=since, until=until, **waiting_reason(row))


NOTHING_HINDERS: dict[str, Any] = {"held_by": None, "fault": None, "fault_since": None}


def waiting_reason(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "held_by": _limit(row["held_by"]) if row["held_by"] else None,
        "fault": EffectFault(row["fault"]) if row["fault"] else None,
        "fault_since": from_us_or_none(row["fault_since"]),
    }


def _limit(recorded: str) -> HeldBy:
    return HeldBy(recorded) if recorded in _LIMITS else HeldBy.OTHER


def _parked(rows: list[Row]) -> tuple[tuple[EffectClass, int], ...]:
    counts: dict[EffectClass, int] = {}
    for row in rows:
        effects = _effect_class(row)
        counts[effects] = counts.get(effects, 0) + row["number"]
    return tuple(
        (effect_class, counts[effect_class]) for effect_class in EffectClass if effect_class in counts
    )


def _effect_class(row: Row) -> EffectClass:
    return effect_class(row["kind"], row["queue"])


async def _refused(tx: Tx) -> RefusedWebhooks | None:
    row = await tx.one(_REFUSED)
    if row is None:
        return None
    return RefusedWebhooks(row["number"], from_us(row["since_at"]), from_us(row["last_at"]))
