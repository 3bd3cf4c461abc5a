"""The view of levels: each backend with its standing and criteria as they were recorded, and the newest changes.

It reads recorded evaluations and computes no figure, so its cost does not grow with the history of jobs.
"""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.levels.criteria import CriterionName, Met, Observation
from crcr.decide.levels.standings import (
    BackendLevel,
    CriterionView,
    EvaluatedDay,
    LevelChangeKind,
    LevelPolicy,
    LevelStanding,
    LevelsView,
    RecordedChange,
)
from crcr.decide.model import Level, RepoName
from crcr.record.levels.demotions import STANDINGS, read_demotion, read_override
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, to_us
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

STRIP_DAYS = 30
_MOST_CHANGES = 50

_STANDING = Statement(
    text("SELECT * FROM level_standings WHERE upstream = :upstream AND downstream = :downstream")
)
_EVALUATIONS = Statement(
    text(
        "SELECT e.downstream, e.at, e.level, e.standing, e.observation FROM level_standings s CROSS JOIN level_evaluations e"
        " WHERE s.upstream = :upstream AND e.upstream = s.upstream AND e.downstream = s.downstream AND e.at >= :since"
        " ORDER BY e.downstream, e.at"
    )
)
_EVALUATIONS_OF_BACKEND = Statement(
    text(
        "SELECT downstream, at, level, standing, observation FROM level_evaluations WHERE upstream = :upstream"
        " AND downstream = :downstream AND at >= :since ORDER BY at"
    )
)
_CHANGES = Statement(
    text(
        "SELECT downstream, at, kind, before, after, reason FROM level_changes WHERE upstream = :upstream"
        " ORDER BY level_change_id DESC LIMIT :most"
    )
)
_LEVELS_SINCE = Statement(
    text(
        "SELECT l.downstream, l.at, l.level FROM levels l WHERE l.upstream = :upstream AND l.version = (SELECT max(n.version)"
        " FROM levels n WHERE n.upstream = l.upstream AND n.downstream = l.downstream)"
    )
)
_WAIVERS = Statement(
    text(
        "SELECT downstream, count(*) AS number FROM waivers WHERE upstream = :upstream AND created_at >= :since"
        " GROUP BY downstream"
    )
)


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is recorded beside the standings, by backend."""

    since: Mapping[str, Row]
    days: Mapping[str, list[Row]]
    waivers: Mapping[str, int]
    policy: LevelPolicy
    now: datetime
    standings: Mapping[str, Row] = field(default_factory=dict)


async def levels_view(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, policy: LevelPolicy, now: datetime
) -> LevelsView:
    rows = await tx.all(STANDINGS, upstream=upstream.key)
    evaluations = await tx.all(
        _EVALUATIONS, upstream=upstream.key, since=to_us(now - timedelta(days=STRIP_DAYS))
    )
    facts = await _read_facts(tx, upstream, rows, evaluations, policy, now=now)
    backends = [_make_backend(entry, facts) for entry in visible.public.values()]
    changes = await tx.all(_CHANGES, upstream=upstream.key, most=_MOST_CHANGES)
    return LevelsView(
        upstream=upstream,
        at=now,
        cursor=await newest_change(tx),
        silent_mode=policy.silent_mode,
        l4_downgrade=policy.l4_downgrade,
        evaluated_at=max((from_us(row["evaluated_at"]) for row in rows), default=None),
        window_days=policy.criteria.window_days,
        leave_window_days=policy.criteria.leave_window_days,
        jobs=policy.criteria.jobs,
        backends=tuple(sorted(backends, key=_order)),
        changes=tuple(_make_change(row, visible) for row in changes if row["downstream"] in visible.public),
    )


async def backend_level(
    tx: Tx,
    upstream: RepoName,
    downstream: RepoName,
    visible: VisibleBackends,
    policy: LevelPolicy,
    *,
    now: datetime,
) -> BackendLevel | None:
    entry = visible.public.get(downstream.key)
    if entry is None:
        return None
    key = {"upstream": upstream.key, "downstream": downstream.key}
    row = await tx.one(_STANDING, **key)
    evaluations = await tx.all(_EVALUATIONS_OF_BACKEND, since=to_us(now - timedelta(days=STRIP_DAYS)), **key)
    return _make_backend(
        entry, await _read_facts(tx, upstream, [row] if row else [], evaluations, policy, now=now)
    )


async def _read_facts(
    tx: Tx, upstream: RepoName, rows: list[Row], evaluations: list[Row], policy: LevelPolicy, *, now: datetime
) -> _Facts:
    days: defaultdict[str, list[Row]] = defaultdict(list)
    for row in evaluations:
        days[row["downstream"]].append(row)
    since = to_us(now - timedelta(days=policy.criteria.window_days))
    waivers = await tx.all(_WAIVERS, upstream=upstream.key, since=since)
    return _Facts(
        {row["downstream"]: row for row in await tx.all(_LEVELS_SINCE, upstream=upstream.key)},
        days,
        {row["downstream"]: row["number"] for row in waivers},
        policy,
        now,
        {row["downstream"]: row for row in rows},
    )


def _make_backend(entry: AllowlistEntry, facts: _Facts) -> BackendLevel:
    key = entry.name.key
    since, row = facts.since.get(key), facts.standings.get(key)
    listed_since = from_us(since["at"]) if since and since["level"] == int(entry.level) else None
    known: dict[str, Any] = {
        "name": entry.name,
        "level": entry.level,
        "oncalls": entry.oncalls,
        "probe": bool(entry.expect),
        "level_since": listed_since,
        "waivers": facts.waivers.get(key, 0),
    }
    if row is None or row["level"] != int(entry.level):
        return BackendLevel(**known)
    return BackendLevel(
        **known,
        standing=LevelStanding(row["standing"]),
        since=from_us(row["changed_at"] or row["since_at"]),
        demotion=read_demotion(row, entry, facts.policy, facts.now),
        reason=row["reason"],
        override=read_override(row, facts.now),
        evaluated_at=from_us(row["evaluated_at"]),
        criteria=tuple(_make_criterion(one) for one in json.loads(row["results"])),
        left_out=row["left_out"],
        days=_last_of_each_day(facts.days.get(key, [])),
    )


def _make_criterion(values: Mapping[str, Any]) -> CriterionView:
    since = values["met_since"]
    return CriterionView(
        name=CriterionName(values["name"]),
        title=values["title"],
        target=values["target"],
        measured=values["measured"],
        value=values["value"],
        met=Met(values["met"]),
        met_since=datetime.fromisoformat(since) if since else None,
        leaves=values["leaves"],
        leave_measured=values["leave_measured"],
        broken=values["broken"],
    )


def _last_of_each_day(rows: list[Row]) -> tuple[EvaluatedDay, ...]:
    by_day = {from_us(row["at"]).date(): row for row in rows}
    return tuple(
        EvaluatedDay(
            at=from_us(row["at"]),
            level=Level(row["level"]),
            standing=LevelStanding(row["standing"]),
            observation=Observation(row["observation"]),
        )
        for row in by_day.values()
    )


def _make_change(row: Row, visible: VisibleBackends) -> RecordedChange:
    return RecordedChange(
        at=from_us(row["at"]),
        downstream=visible.public[row["downstream"]].name,
        kind=LevelChangeKind(row["kind"]),
        before=Level(row["before"]),
        after=Level(row["after"]),
        reason=row["reason"],
    )


def _order(backend: BackendLevel) -> tuple[bool, int, RepoName]:
    """Demotions first, then by level, the highest first."""
    return backend.demotion is None, -backend.level.value, backend.name
