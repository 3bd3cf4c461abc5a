"""The relay's own state for pages: health, effects, vital signs, and the log of changes behind live pages."""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.checks.check_run import Tier
from crcr.decide.model import RepoName
from crcr.decide.views.overview import (
    Change,
    Changes,
    EffectCount,
    EffectsView,
    ParkedEffect,
    RelayHealth,
    Vitals,
)
from crcr.record.checks.refresh import tier_queue
from crcr.record.failures.person_verdicts import count_contradicted
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.relay.metrics import LAST_DELIVERY, history_lag
from crcr.record.views.visibility import AllowlistReader, VisibleBackends, visible_backends

_MOST_PARKED = 100
_DONE_SINCE = timedelta(hours=1)

# States are written out here, not bound: SQLite uses a partial index only when it can see its condition.
_OUTBOX = Statement(
    text(
        "SELECT count(*) AS waiting, min(due_at) AS oldest FROM effects"
        " WHERE upstream = :upstream AND state IN ('waiting', 'claimed')"
    )
)
_PARKED_COUNT = Statement(
    text("SELECT count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'parked'")
)
_OPEN_BY_KIND = Statement(
    text(
        "SELECT kind, state, count(*) AS number FROM effects WHERE upstream = :upstream"
        " AND state IN ('waiting', 'claimed') GROUP BY kind, state ORDER BY kind, state"
    )
)
_PARKED_BY_KIND = Statement(
    text(
        "SELECT kind, state, count(*) AS number FROM effects WHERE upstream = :upstream"
        " AND state = 'parked' GROUP BY kind, state ORDER BY kind, state"
    )
)
_OVER_BY_KIND = Statement(
    text(
        "SELECT kind, state, count(*) AS number FROM effects WHERE upstream = :upstream"
        " AND state IN ('done', 'cancelled') AND finished_at >= :since GROUP BY kind, state ORDER BY kind, state"
    )
)
_PARKED = Statement(
    text(
        "SELECT effect_id, kind, target, delivery, attempts, unsure, created_at, finished_at, last_error"
        " FROM effects WHERE upstream = :upstream AND state = 'parked' ORDER BY finished_at DESC, effect_id DESC"
    )
)
_DELIVERED = Statement(
    text(
        "SELECT count(*) - (SELECT count(*) FROM bisection_runs r WHERE r.upstream = :upstream"
        " AND r.created_at >= :since) - (SELECT count(*) FROM deliveries p WHERE p.event = 'crcr_pair'"
        " AND p.upstream = :upstream AND p.received_at >= :since) AS number"
        " FROM deliveries WHERE upstream = :upstream AND received_at >= :since"
    )
)
_UPSTREAM = Statement(text("SELECT paused_at, installation_id FROM upstreams WHERE upstream = :upstream"))
_LOG_ENDS = Statement(
    text(
        "SELECT (SELECT min(change_id) FROM changes) AS oldest, (SELECT max(change_id) FROM changes) AS newest"
    )
)
_CHANGES = Statement(
    text(
        "SELECT change_id, kind, upstream, downstream, delivery, number, at FROM changes"
        " WHERE change_id > :after AND change_id <= :newest ORDER BY change_id LIMIT :limit"
    )
)
_IN_FORCE = Statement(
    text("SELECT 1 AS one FROM allowlist_versions WHERE upstream = :upstream AND good = 1 LIMIT 1")
)
_OPEN_GATES = Statement(
    text(
        "SELECT g.state, count(DISTINCT g.head_sha) AS number FROM pulls p"
        " JOIN gates g ON g.head_sha = p.head_sha AND g.upstream = p.upstream"
        " WHERE p.upstream || '' = :upstream AND p.is_open = 1 AND p.head_sha >= '' AND g.state IN ('failed', 'pending', 'passed')"
        " GROUP BY g.state ORDER BY g.state"
    )
)


async def relay_health(tx: Tx, upstream: RepoName, since: datetime, now: datetime) -> RelayHealth:
    """The relay's state without the last result, which the caller adds from the backends."""
    outbox = await tx.one(_OUTBOX, upstream=upstream.key)
    parked = await tx.one(_PARKED_COUNT, upstream=upstream.key)
    delivered = await tx.one(_DELIVERED, upstream=upstream.key, since=to_us(since))
    last = await tx.one(LAST_DELIVERY, upstream=upstream.key)
    row = await tx.one(_UPSTREAM, upstream=upstream.key)
    return RelayHealth(
        deliveries=delivered["number"] if delivered else 0,
        last_delivery_at=from_us_or_none(last["at"]) if last else None,
        last_result_at=None,
        waiting=outbox["waiting"] if outbox else 0,
        parked=parked["number"] if parked else 0,
        lag_s=_lag_s(outbox, now),
        paused_at=from_us_or_none(row["paused_at"]) if row else None,
        installed=bool(row and row["installation_id"]),
    )


async def read_vitals(tx: Tx, upstream: RepoName, now: datetime) -> Vitals:
    outbox = await tx.one(_OUTBOX, upstream=upstream.key)
    parked = await tx.one(_PARKED_COUNT, upstream=upstream.key)
    unfed, history_lag_s = await history_lag(tx, upstream.key, now)
    return Vitals(
        upstream=upstream,
        has_allowlist=await tx.one(_IN_FORCE, upstream=upstream.key) is not None,
        waiting=outbox["waiting"] if outbox else 0,
        parked=parked["number"] if parked else 0,
        lag_s=_lag_s(outbox, now),
        contradicted=await count_contradicted(tx, upstream, now),
        history_unfed=unfed,
        history_lag_s=history_lag_s,
    )


async def open_gates(tx: Tx, upstream: RepoName) -> tuple[tuple[str, int], ...]:
    """How many heads of open pull requests there are for each state of the gate."""
    return tuple((row["state"], row["number"]) for row in await tx.all(_OPEN_GATES, upstream=upstream.key))


async def effects_view(tx: Tx, upstream: RepoName, visible: VisibleBackends, now: datetime) -> EffectsView:
    """Counts of open and parked effects and of those that ended in the last hour, and a list of the parked ones.

    The list leaves out effects for hidden and for unlisted repositories, and errors, unless the reader is an
    administrator.
    """
    rows = [
        *await tx.all(_OPEN_BY_KIND, upstream=upstream.key),
        *await tx.all(_PARKED_BY_KIND, upstream=upstream.key),
        *await tx.all(_OVER_BY_KIND, upstream=upstream.key, since=to_us(now - _DONE_SINCE)),
    ]
    counts = tuple(EffectCount(row["kind"], row["state"], row["number"]) for row in rows)
    targets = targets_shown(upstream, visible)
    parked = [
        _parked(row, everything=visible.everything)
        for row in await tx.all(_PARKED, upstream=upstream.key)
        if visible.everything or "/" not in row["target"] or row["target"] in targets
    ]
    outbox = await tx.one(_OUTBOX, upstream=upstream.key)
    return EffectsView(counts, _lag_s(outbox, now), tuple(parked[:_MOST_PARKED]))


def targets_shown(upstream: RepoName, visible: VisibleBackends) -> set[str]:
    """The targets that every reader may see; the relay's own queues, whose names have no owner, are visible too."""
    return {*visible.public, upstream.key, *map(tier_queue, Tier)}


async def newest_change(tx: Tx) -> int:
    return (await _log_ends(tx))[1]


async def _log_ends(tx: Tx) -> tuple[int, int]:
    """The oldest change that is kept, and the newest below which none is still to come."""
    ends, settled = await tx.one(_LOG_ENDS), await tx.settled_change()
    oldest, newest = (ends["oldest"] or 0, ends["newest"] or 0) if ends else (0, 0)
    return oldest, newest if settled is None else min(newest, settled)


async def changes_after(
    tx: Tx,
    lists: AllowlistReader,
    upstreams: tuple[RepoName, ...],
    after: int | None,
    limit: int,
    *,
    everything: bool = False,
) -> Changes:
    oldest, newest = await _log_ends(tx)
    if after is None:
        return Changes((), newest, oldest, newest)
    rows = await tx.all(_CHANGES, after=after, newest=newest, limit=limit)
    visible = {
        upstream.key: await visible_backends(tx, lists, upstream, everything=everything)
        for upstream in upstreams
    }
    shown = tuple(Change(**{**row, "at": from_us(row["at"])}) for row in rows if _is_visible(row, visible))
    return Changes(shown, rows[-1]["change_id"] if rows else after, oldest, newest)


def _is_visible(row: Row, visible: dict[str, VisibleBackends]) -> bool:
    """Whether the reader may see the change: a change of a hidden backend would reveal it."""
    backends = visible.get(row["upstream"])
    return backends is not None and (
        backends.everything or row["downstream"] is None or row["downstream"] in backends.public
    )


def _lag_s(outbox: Row | None, now: datetime) -> float | None:
    oldest = outbox["oldest"] if outbox else None
    if oldest is None or from_us(oldest) > now:
        return None
    return (now - from_us(oldest)).total_seconds()


def _parked(row: Row, *, everything: bool) -> ParkedEffect:
    return ParkedEffect(
        effect_id=row["effect_id"],
        kind=row["kind"],
        target=row["target"],
        delivery=row["delivery"],
        attempts=row["attempts"],
        unsure=bool(row["unsure"]),
        created_at=from_us(row["created_at"]),
        parked_at=from_us_or_none(row["finished_at"]),
        last_error=row["last_error"] if everything else None,
    )
