"""The effects that look up what GitHub's Actions say of a dispatch, and when they are due.

One effect serves all results of a dispatch: many that come within a minute are looked up together.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.github.workflow_runs import (
    FAST_PHASE,
    FIRST_TOGETHER,
    SETTLING,
    TOGETHER,
    WEBHOOK_GRACE,
    has_run_webhooks,
)
from crcr.decide.model import EffectKind, Level, RepoName
from crcr.record.outbox.effects import add_once, add_paced, effect_row
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us_or_none, to_us

_OPEN_LOOK_UP = Statement(
    text(
        "SELECT 1 FROM effects WHERE upstream = :upstream AND target = :target AND lane = :lane"
        " AND state IN ('waiting', 'claimed') LIMIT 1"
    )
)
_RUNNING = Statement(
    text(
        "SELECT 1 FROM jobs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND state = 'in_progress' AND superseded = 0 LIMIT 1"
    )
)


def look_up_effect(
    upstream: RepoName | str, delivery: str, downstream: str, now: datetime, *, after: timedelta = timedelta()
) -> dict[str, Any]:
    """Build the effect that asks GitHub about a dispatch."""
    row = effect_row(
        upstream,
        EffectKind.LOOK_UP,
        target=downstream,
        lane=f"lookup/{delivery}",
        delivery=delivery,
        now=now,
    )
    return {**row, "due_at": to_us(now + after)}


async def look_up_result(tx: Tx, dispatch: Row, now: datetime) -> None:
    """Queue the comparison of a result with GitHub's view: at once where the gate waits for it, one for many results.

    While other jobs are running, results are collected: until the next pause, or, where webhooks about runs arrive, until
    the webhook about the run's end. The last result is looked up at once.
    """
    key = {name: dispatch[name] for name in ("upstream", "delivery", "downstream")}
    webhooks = has_run_webhooks(from_us_or_none(dispatch["run_webhook_at"]), now)
    if await tx.one(_RUNNING, **key) is not None:
        if not webhooks:
            listed_at = from_us_or_none(dispatch["listed_at"])
            pause = max(listed_at + TOGETHER - now, timedelta()) if listed_at else FIRST_TOGETHER
            await add_once(tx, look_up_effect(**key, now=now, after=pause))
    elif dispatch["level"] < Level.L4:
        await add_once(tx, look_up_effect(**key, now=now, after=SETTLING))
    elif webhooks:
        await add_paced(tx, look_up_effect(**key, now=now, after=WEBHOOK_GRACE), FAST_PHASE)
    else:
        await add_paced(tx, look_up_effect(**key, now=now), timedelta())


async def ensure_look_up(
    tx: Tx,
    upstream: RepoName,
    delivery: str,
    downstream: RepoName,
    now: datetime,
    *,
    after: timedelta = timedelta(),
) -> None:
    """Add the look-up of a dispatch where none is under way: after an upgrade, or when one was given up."""
    row = look_up_effect(upstream, delivery, downstream.key, now, after=after)
    if await tx.one(_OPEN_LOOK_UP, **{name: row[name] for name in ("upstream", "target", "lane")}) is None:
        await add_once(tx, row)


async def look_up_ended_run(tx: Tx, dispatch: Row, now: datetime) -> None:
    """Look up all jobs of a run with one list, now that a webhook says it is over."""
    key = dispatch["upstream"], dispatch["delivery"], dispatch["downstream"]
    if dispatch["level"] >= Level.L3:
        await add_once(
            tx, look_up_effect(*key, now, after=SETTLING if dispatch["level"] < Level.L4 else timedelta())
        )
