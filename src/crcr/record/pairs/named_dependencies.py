"""The pull requests that an upstream's pull request depends on, as its text and commands name them.

Recorded in the transaction of the webhook or command. GitHub is asked afterwards, by an effect for each, which then takes the pair's
next step.
"""

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.dispatch.plan import DispatchPlan
from crcr.decide.dispatch.selection import DISPATCHED_ACTIONS
from crcr.decide.events import PullRequestEvent
from crcr.decide.model import EffectKind, KnownPull, RepoName
from crcr.decide.pairs.depends_on import MOST_DEPENDENCIES, PullReference, is_on_site
from crcr.decide.pairs.pair import DependencyState
from crcr.record.change_and_audit_log import note_change
from crcr.record.deliveries.dispatches import drop_delivery
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.schema.pairs import pairs
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

PAIR_KEY = (
    "upstream = :upstream AND number = :number AND downstream = :downstream AND dependency = :dependency"
)
# Those of the text first, as they stand there: the first few count.
PAIRS_OF_PULL = Statement(
    text(
        "SELECT * FROM pairs WHERE upstream = :upstream AND number = :number"
        " ORDER BY in_text DESC, place, created_at, downstream, dependency"
    )
)
ONE_PAIR = Statement(text(f"SELECT * FROM pairs WHERE {PAIR_KEY}"))  # noqa: S608  our own words
_ADD = Statement(
    inserting(
        pairs,
        *("upstream", "number", "downstream", "dependency", "name", "place", "in_text", "requested_by"),
        *("created_at", "state", "changed_at", "due_at"),
    ).on_conflict_do_nothing()
)
_IN_TEXT = Statement(text(f"UPDATE pairs SET in_text = :in_text, place = :place WHERE {PAIR_KEY}"))  # noqa: S608
_REQUESTED = Statement(
    text(f"UPDATE pairs SET requested_by = :who, round = round + 1, changed_at = :at WHERE {PAIR_KEY}")  # noqa: S608
)
_DELETE = Statement(text(f"DELETE FROM pairs WHERE {PAIR_KEY}"))  # noqa: S608  our own words
SET_DUE = Statement(text(f"UPDATE pairs SET due_at = :due_at WHERE {PAIR_KEY}"))  # noqa: S608  our own words


async def follow_pull(
    tx: Tx,
    event: PullRequestEvent,
    planned: DispatchPlan,
    known: KnownPull | None,
    now: datetime,
    *,
    github_url: str | None,
) -> None:
    """Record what the text depends on now, and have it read where that or the head has changed."""
    pull = planned.pull
    if pull is None:
        return
    where = {"upstream": event.upstream.key, "number": event.number}
    rows = await tx.all(PAIRS_OF_PULL, **where)
    is_newest = known is None or event.updated_at >= known.updated_at
    named = tuple(one for one in event.depends_on if is_on_site(one, github_url)) if is_newest else None
    if not rows and not named:
        return
    changed = named is not None and await _follow_text(tx, event, rows, named, now)
    rows = await tx.all(PAIRS_OF_PULL, **where) if changed else rows
    reopened = known is not None and known.is_open is False
    tests = event.action in DISPATCHED_ACTIONS or planned.relay_reason is not None
    if not pull.is_open:
        for row in rows:
            await drop_pair(tx, row, "the pull request was closed", now)
            await tx.run(SET_DUE, due_at=None, **row_key(row))
    elif changed or reopened or tests:
        await request_reads(tx, rows, now)
    if changed:
        await note_change(tx, event.upstream, "delivery", number=event.number, now=now)


async def _follow_text(
    tx: Tx, event: PullRequestEvent, rows: Sequence[Row], named: tuple[PullReference, ...], now: datetime
) -> bool:
    """Record the references of the text in their order; return whether anything changed."""
    places = {reference.key: place for place, reference in enumerate(named)}
    recorded = {(row["downstream"], row["dependency"]): row for row in rows}
    changed = False
    for key, row in recorded.items():
        if key in places:
            continue
        if row["in_text"]:
            changed = True
            await _forget_text(tx, row, now)
    for reference in named:
        known, place = recorded.get(reference.key), places[reference.key]
        if known is None:
            await _add(tx, event.upstream, event.number, reference, now, in_text=1, place=place)
        elif (known["in_text"], known["place"]) != (1, place):
            await tx.run(_IN_TEXT, in_text=1, place=place, **row_key(known))
        else:
            continue
        changed = True
    return changed


async def _forget_text(tx: Tx, row: Row, now: datetime) -> None:
    """The text no longer names it: it stays only where a person requested it."""
    if row["requested_by"] is not None:
        await tx.run(_IN_TEXT, in_text=0, place=row["place"], **row_key(row))
        return
    await drop_pair(tx, row, "the pull request no longer depends on it", now)
    await tx.run(_DELETE, **row_key(row))


async def _add(
    tx: Tx, upstream: RepoName, number: int, reference: PullReference, now: datetime, **columns: Any
) -> None:
    await tx.run(
        _ADD,
        **{
            "upstream": upstream.key,
            "number": number,
            "downstream": reference.repository.key,
            "dependency": reference.number,
            "name": reference.repository.full_name,
            "place": MOST_DEPENDENCIES,
            "in_text": 0,
            "requested_by": None,
            "created_at": to_us(now),
            "state": DependencyState.UNREAD.value,
            "changed_at": to_us(now),
            "due_at": to_us(now),
            **columns,
        },
    )


async def request_pair(
    tx: Tx, upstream: RepoName, number: int, reference: PullReference, *, who: str, now: datetime
) -> str | None:
    """Have the pull request tested with this one, as a person requests, once more where it was; return why not."""
    rows = await tx.all(PAIRS_OF_PULL, upstream=upstream.key, number=number)
    known = next((row for row in rows if (row["downstream"], row["dependency"]) == reference.key), None)
    if known is None and len(rows) >= MOST_DEPENDENCIES:
        return f"a pull request is tested with at most {MOST_DEPENDENCIES} others"
    if known is None:
        await _add(tx, upstream, number, reference, now, requested_by=who)
    else:
        await tx.run(_REQUESTED, who=who, at=to_us(now), **row_key(known))
    key = {"upstream": upstream.key, "number": number}
    row = await tx.one(ONE_PAIR, downstream=reference.repository.key, dependency=reference.number, **key)
    await request_reads(tx, [row] if row else [], now)
    await note_change(tx, upstream, "delivery", number=number, now=now)
    return None


async def request_reads(tx: Tx, rows: Sequence[Row], now: datetime) -> None:
    """Have these dependencies read from GitHub, one effect for each; the effect then takes the pair's next step."""
    await add_once(tx, *(_read_effect(row, now) for row in rows))


def _read_effect(row: Row, now: datetime) -> dict[str, Any]:
    key = row_key(row)
    return effect_row(
        row["upstream"],
        EffectKind.READ_DEPENDENCY,
        # With the backend's name: the list of effects shows those of hidden backends to administrators only.
        target=f"pairs {row['downstream']}",
        lane=f"pair/{row['number']}/{row['dependency']}",
        payload=json.dumps({**key, "name": row["name"]}).encode(),
        now=now,
    )


def row_key(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("upstream", "number", "downstream", "dependency")}


async def drop_pair(tx: Tx, row: Row, reason: str, now: datetime) -> None:
    """Cancel the pair's dispatch where it is not sent yet."""
    if row["delivery"] is not None:
        await drop_delivery(tx, RepoName(row["upstream"]), row["delivery"], reason, now)
