"""The outbox in pages: parked effects first, then open ones; or finished ones, newest first. And its counts.

Open effects are listed target by target, along the index that the workers use. Effects of hidden backends are left out,
and so are the texts of errors, except for administrators.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.views.logs import EffectPage, EffectQuery, EffectView
from crcr.decide.views.overview import OutboxState
from crcr.errors import BadRequest
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.paging import Key, bad_cursor, read_matching
from crcr.record.views.relay.health import waiting_reason
from crcr.record.views.relay.state import newest_change, targets_shown
from crcr.record.views.visibility import VisibleBackends

# The effects of a lane are sent in order: those behind a held one wait for the same limit.
_AHEAD_IN_LANE = (
    "(SELECT ahead.{} FROM effects ahead WHERE ahead.upstream = effects.upstream AND ahead.target = effects.target"
    " AND ahead.lane = effects.lane AND ahead.state IN ('waiting', 'claimed') AND ahead.held_by IS NOT NULL"
    " AND ahead.effect_id < effects.effect_id ORDER BY ahead.effect_id LIMIT 1)"
)
_EFFECT = (
    "SELECT effect_id, upstream, kind, target, delivery, state, attempts, unsure, created_at, due_at, finished_at,"  # noqa: S608
    f" last_error, held_by, fault, fault_since, {_AHEAD_IN_LANE.format('held_by')} AS ahead_held_by,"
    f" {_AHEAD_IN_LANE.format('due_at')} AS ahead_due_at FROM effects WHERE "
)
_BEFORE = (
    " AND finished_at <= :at AND (finished_at < :at OR effect_id < :id)"
    " ORDER BY finished_at DESC, effect_id DESC LIMIT :limit"
)
# Listed by target, so a cursor names one: hidden targets are excluded in the query, not afterwards.
_SHOWN = "(:everything = 1 OR target NOT LIKE '%/%' OR target IN (SELECT value FROM {shown}))"
_AS_ROWS = "json_each(:shown)", "json_array_elements_text(CAST(:shown AS json)) AS named(value)"
"""A list in JSON as rows, on SQLite and on PostgreSQL."""
_BEHIND = "(due_at > :due OR (due_at = :due AND effect_id > :id))"


def with_shown_names(sql: str) -> Statement:
    """A statement with the names of the JSON list `:shown` as rows, where its text has `{shown}`."""
    on_sqlite, on_postgresql = (text(sql.format(shown=rows)) for rows in _AS_ROWS)
    return Statement(on_sqlite, on_postgresql=on_postgresql)


# States are written out, not bound: SQLite uses a partial index only when it can see its condition.
_PARKED = Statement(text(f"{_EFFECT} upstream = :upstream AND state = 'parked'{_BEFORE}"))
_OVER = Statement(text(f"{_EFFECT} state IN ('done', 'cancelled'){_BEFORE}"))
_OPEN = with_shown_names(
    f"{_EFFECT} upstream = :upstream AND state IN ('waiting', 'claimed') AND target >= :target"
    f" AND {_SHOWN} AND (target > :target OR {_BEHIND}) ORDER BY target, due_at, effect_id LIMIT :limit"
)
_OPEN_FOR = with_shown_names(
    f"{_EFFECT} upstream = :upstream AND state IN ('waiting', 'claimed') AND target = :target"
    f" AND {_SHOWN} AND due_at >= :due AND {_BEHIND} ORDER BY due_at, effect_id LIMIT :limit"
)
# No index leads from a delivery to its effects, so the open effects are scanned, up to a limit.
_AMONG = "SELECT * FROM"
_SOME_PARKED = f"{_EFFECT} upstream = :upstream AND state = 'parked' LIMIT 50000"
_SOME_OPEN = f"{_EFFECT} upstream = :upstream AND state IN ('waiting', 'claimed') LIMIT 50000"
_BY_DELIVERY = "found WHERE delivery = :delivery ORDER BY"
_PARKED_OF = Statement(text(f"{_AMONG} ({_SOME_PARKED}) {_BY_DELIVERY} effect_id DESC LIMIT :limit"))
_OPEN_OF = Statement(text(f"{_AMONG} ({_SOME_OPEN}) {_BY_DELIVERY} due_at, effect_id LIMIT :limit"))


@dataclass(frozen=True, slots=True)
class _Section:
    """A part of the list with an order of its own; cursors into it begin with its number."""

    number: int
    statement: Statement
    names: tuple[str, ...]
    start: Key
    make_key: Callable[[Row], Key]

    def check_cursor(self, after: Key) -> Key:
        if [type(part) for part in after] != [type(part) for part in self.start]:
            raise bad_cursor()
        return after


def _finished_key(row: Row) -> Key:
    return row["finished_at"], row["effect_id"]


def _due_key(row: Row) -> Key:
    return row["target"], row["due_at"], row["effect_id"]


_PARKED_SECTION = _Section(0, _PARKED, ("at", "id"), (2**62, 2**62), _finished_key)
_OPEN_SECTION = _Section(1, _OPEN, ("target", "due", "id"), ("", -1, -1), _due_key)
_OVER_SECTION = _Section(2, _OVER, ("at", "id"), (2**62, 2**62), _finished_key)

_SECTIONS = {
    None: (_PARKED_SECTION, _OPEN_SECTION),
    "parked": (_PARKED_SECTION,),
    "waiting": (_OPEN_SECTION,),
    "retried": (_OPEN_SECTION,),
    "claimed": (_OPEN_SECTION,),
    "done": (_OVER_SECTION,),
    "cancelled": (_OVER_SECTION,),
}
STATES = tuple(state for state in _SECTIONS if state)


async def effect_page(
    tx: Tx, query: EffectQuery, visible: VisibleBackends, *, everything: bool
) -> EffectPage:
    if query.state not in _SECTIONS:
        raise BadRequest(
            f"{(query.state or '')[:50]!r} is no state of effects", hint=f"one of {', '.join(STATES)}"
        )
    targets = targets_shown(query.upstream, visible)
    keep = _make_filter(query, targets, everything=everything)
    if query.delivery is None:
        target_filter: dict[str, str | int] = {
            "everything": int(everything),
            "shown": json.dumps(sorted(targets)),
        }
        rows, more = await _read_rows(tx, query, keep, target_filter)
    else:
        rows, more = await _read_of_delivery(tx, query, keep)
    return EffectPage(
        tuple(_view(row, visible, everything=everything) for row in rows),
        more,
        cursor=await newest_change(tx),
        outbox=await read_outbox(tx, query.upstream),
    )


async def _read_rows(
    tx: Tx, query: EffectQuery, keep: Callable[[Row], bool], shown: dict[str, str | int]
) -> tuple[list[Row], Key | None]:
    sections = [_for_target(section, query.target) for section in _SECTIONS[query.state]]
    first, start = _start(sections, query.after)
    effects: list[Row] = []
    for section in sections[first:]:

        async def read(after: Key, limit: int, section: _Section = section) -> list[Row]:
            position = dict(zip(section.names, after, strict=True))
            parameters = _parameters(section, query.upstream.key, shown)
            return await tx.all(section.statement, limit=limit, **parameters, **position)

        remaining = query.limit - len(effects)
        rows, more = await read_matching(
            read, start or section.start, remaining, make_key=section.make_key, keep=keep
        )
        effects += rows
        if more is not None:
            return effects, (section.number, *more)
        start = None
    return effects, None


async def _read_of_delivery(
    tx: Tx, query: EffectQuery, keep: Callable[[Row], bool]
) -> tuple[list[Row], None]:
    """The open and parked effects of one delivery: few, so they are not paged."""
    key = {"upstream": query.upstream.key, "delivery": query.delivery, "limit": query.limit}
    rows = [*await tx.all(_PARKED_OF, **key), *await tx.all(_OPEN_OF, **key)]
    return [row for row in rows if keep(row)][: query.limit], None


def _for_target(section: _Section, target: str | None) -> _Section:
    if section is not _OPEN_SECTION or target is None:
        return section
    return _Section(1, _OPEN_FOR, section.names, (target.lower(), -1, -1), _due_key)


def _parameters(section: _Section, upstream: str, shown: dict[str, str | int]) -> dict[str, str | int]:
    if section.statement is _OVER:
        return {}
    return {"upstream": upstream, **(shown if section.number == _OPEN_SECTION.number else {})}


def _start(sections: list[_Section], after: Key | None) -> tuple[int, Key | None]:
    if after is None:
        return 0, None
    for index, section in enumerate(sections):
        if after[:1] == (section.number,):
            return index, section.check_cursor(after[1:])
    raise bad_cursor()


def _make_filter(query: EffectQuery, targets: set[str], *, everything: bool) -> Callable[[Row], bool]:
    target = query.target.lower() if query.target else None
    states = {"retried": {"waiting", "claimed"}}.get(query.state or "", {query.state})

    def keep(row: Row) -> bool:
        return (
            row["upstream"] == query.upstream.key
            and (query.state is None or row["state"] in states)
            and (query.state != "retried" or row["attempts"] > 0)
            and (target is None or row["target"] == target)
            # A target without an owner is one of the relay's own queues.
            and (everything or "/" not in row["target"] or row["target"] in targets)
        )

    return keep


def _view(row: Row, visible: VisibleBackends, *, everything: bool) -> EffectView:
    target = row["target"]
    return EffectView(
        effect_id=row["effect_id"],
        kind=row["kind"],
        target=visible.full_name(target) if target in visible.shown else target,
        delivery=row["delivery"],
        state=row["state"],
        attempts=row["attempts"],
        unsure=bool(row["unsure"]),
        created_at=from_us(row["created_at"]),
        finished_at=from_us_or_none(row["finished_at"]),
        last_error=row["last_error"] if everything else None,
        **{"due_at": from_us(row["due_at"]), **_waiting_fields(row)},
    )


def _waiting_fields(row: Row) -> dict[str, Any]:
    if row["state"] not in ("waiting", "claimed"):
        return {}
    if row["held_by"] or row["fault"] or not row["ahead_held_by"]:
        return waiting_reason(row)
    due_at = max(row["due_at"], row["ahead_due_at"])
    return {**waiting_reason({**row, "held_by": row["ahead_held_by"]}), "due_at": from_us(due_at)}


# Counts along the partial indexes of open effects; pages show them above every list of the log.

# States are written out, not bound: SQLite uses a partial index only when it can see its condition.
_COUNT_OPEN = Statement(
    text(
        "SELECT count(*) AS number, min(due_at) AS oldest FROM effects"
        " WHERE upstream = :upstream AND state IN ('waiting', 'claimed')"
    )
)
_COUNT_CLAIMED = Statement(
    text("SELECT count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'claimed'")
)
_COUNT_PARKED = Statement(
    text("SELECT count(*) AS number FROM effects WHERE upstream = :upstream AND state = 'parked'")
)
_PAUSED = Statement(text("SELECT paused_at FROM upstreams WHERE upstream = :upstream"))


async def read_outbox(tx: Tx, upstream: RepoName) -> OutboxState:
    open_effects = await tx.one(_COUNT_OPEN, upstream=upstream.key)
    claimed = await tx.one(_COUNT_CLAIMED, upstream=upstream.key)
    parked = await tx.one(_COUNT_PARKED, upstream=upstream.key)
    upstream_row = await tx.one(_PAUSED, upstream=upstream.key)
    claimed_number = claimed["number"] if claimed else 0
    return OutboxState(
        waiting=(open_effects["number"] if open_effects else 0) - claimed_number,
        claimed=claimed_number,
        parked=parked["number"] if parked else 0,
        oldest_due_at=from_us_or_none(open_effects["oldest"]) if open_effects else None,
        paused_at=from_us_or_none(upstream_row["paused_at"]) if upstream_row else None,
    )
