"""Records evaluations of levels: the standing of each backend, its changes, the demotions in force and their overrides.

The leader evaluates each backend once a day, an operator on demand. The figures are read from a snapshot; one transaction then follows
the recorded standing, writes the evaluation and, where the standing turned, its change, and refreshes the checks of open heads.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import asdict
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.levels.criteria import CriterionName, Evaluation, evaluate
from crcr.decide.levels.standings import (
    EVALUATE_EVERY,
    SUMMARIES,
    BackendStanding,
    LevelChangeKind,
    LevelOverride,
    LevelPolicy,
    LevelStanding,
    RecordedChange,
    demotion_in_force,
    follow_evaluation,
)
from crcr.decide.model import Level, RepoName
from crcr.decide.notices.notice import NoticeEvent, NoticeKind
from crcr.errors import NoAllowlist, NotFound
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.levels.demotions import STANDINGS, is_evaluated
from crcr.record.levels.measures import BackendMeasures, measure_backend
from crcr.record.notices.threads import queue_notice
from crcr.record.schema.levels import (
    level_changes,
    level_days,
    level_evaluations,
    level_proposals,
    level_standings,
)
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.views.visibility import AllowlistReader

KEEP_EVALUATIONS = timedelta(days=400)
_FAR_AHEAD = timedelta(days=2)
"""An evaluation later than this was written by a wrong clock; until then evaluations wait for a clock that was set back."""

_OWN_STANDING = "SELECT * FROM level_standings WHERE upstream = :upstream AND downstream = :downstream"
# Locked: of two processes that evaluate at once, the second one follows what the first one recorded.
_STANDING = Statement(text(_OWN_STANDING), on_postgresql=text(f"{_OWN_STANDING} FOR UPDATE"))
_UPDATED = ("level", "standing", "since_at", "changed_at", "evaluated_at", "results", "left_out", "reason")
_INSERT_STANDING = inserting(level_standings, "upstream", "downstream", *_UPDATED)
_WRITE_STANDING = Statement(
    _INSERT_STANDING.on_conflict_do_update(
        index_elements=["upstream", "downstream"],
        set_={name: _INSERT_STANDING.excluded[name] for name in _UPDATED},
    )
)
_INSERT_DAY = inserting(
    level_days, *("upstream", "downstream", "day_at", "runs", "jobs", "expected", "answered", "counted_at")
)
_WRITE_DAY = Statement(
    _INSERT_DAY.on_conflict_do_update(
        index_elements=["upstream", "downstream", "day_at"],
        set_={
            name: _INSERT_DAY.excluded[name]
            for name in ("runs", "jobs", "expected", "answered", "counted_at")
        },
    )
)
_ADD_EVALUATION = Statement(
    inserting(
        level_evaluations, "upstream", "downstream", "at", "level", "standing", "observation"
    ).on_conflict_do_nothing()
)
_ADD_CHANGE = Statement(
    inserting(level_changes, "upstream", "downstream", "at", "kind", "before", "after", "reason")
)
_FORGET: tuple[Statement, ...] = (
    Statement(
        text(
            "DELETE FROM level_evaluations WHERE upstream = :upstream AND downstream = :downstream AND at < :before"
        )
    ),
    Statement(
        text(
            "DELETE FROM level_days WHERE upstream = :upstream AND downstream = :downstream AND day_at < :before"
        )
    ),
)
_DROP_STANDING = Statement(
    text("DELETE FROM level_standings WHERE upstream = :upstream AND downstream = :downstream")
)
_OVERRIDE = Statement(
    text(
        "UPDATE level_standings SET override_until_at = :until, override_who = :who, override_reason = :reason"
        " WHERE upstream = :upstream AND downstream = :downstream"
    )
)
_ADD_PROPOSAL = Statement(
    inserting(level_proposals, "digest", "upstream", "at", "who", "url")
    .on_conflict_do_nothing()
    .returning(level_proposals.c.digest)
)
_PROPOSAL = Statement(text("SELECT url FROM level_proposals WHERE digest = :digest AND upstream = :upstream"))


class Levels:
    def __init__(
        self,
        database: Database,
        allowlists: AllowlistReader,
        refresher: CheckRefresher,
        upstreams: tuple[RepoName, ...],
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._refresher = refresher
        self._upstreams = upstreams

    async def evaluate_due(self, now: datetime) -> int:
        """Evaluate the backends whose last evaluation is a day old; return how many."""
        evaluated = 0
        for upstream in self._upstreams:
            try:
                evaluated += await self._evaluate(upstream, now, due_only=True)
            except NoAllowlist:
                continue
        return evaluated

    async def evaluate_now(self, upstream: RepoName, now: datetime) -> int:
        """Evaluate every backend of an upstream now, as an operator asks for."""
        return await self._evaluate(upstream, now, due_only=False)

    async def _evaluate(self, upstream: RepoName, now: datetime, *, due_only: bool) -> int:
        async def read_listed(tx: Tx) -> tuple[Allowlist, dict[str, Row]]:
            rows = await tx.all(STANDINGS, upstream=upstream.key)
            return await self._allowlists.in_force(tx, upstream), {row["downstream"]: row for row in rows}

        allowlist, known = await self._database.quick_read(read_listed)
        listed = {entry.name.key: entry for entry in allowlist.entries if is_evaluated(entry)}
        evaluated = 0
        for key, entry in listed.items():
            if not due_only or _is_due(known.get(key), entry, now):
                evaluated += await self._evaluate_backend(upstream, entry, now, due_only=due_only)
        await self._drop_standings(upstream, known.keys() - listed.keys())
        return evaluated

    async def _drop_standings(self, upstream: RepoName, keys: Collection[str]) -> None:
        """Forget the standings of backends that left the list."""
        if keys:
            rows = [{"upstream": upstream.key, "downstream": key} for key in sorted(keys)]
            await self._database.write(lambda tx: tx.many(_DROP_STANDING, rows))

    async def _evaluate_backend(
        self, upstream: RepoName, entry: AllowlistEntry, now: datetime, *, due_only: bool
    ) -> bool:
        policy = self._refresher.policy(upstream).levels
        key = {"upstream": upstream.key, "downstream": entry.name.key}
        measured = await self._database.read(
            lambda tx: measure_backend(tx, upstream.key, entry.name.key, policy.criteria, now)
        )
        found = evaluate(entry.level, measured.arriving, measured.leaving, policy.criteria)

        async def unit(tx: Tx) -> bool:
            row = await tx.one(_STANDING, **key)
            if due_only and not _is_due(row, entry, now):
                return False  # another process has just evaluated it
            if row is not None and row["evaluated_at"] > to_us(now) and not _is_due(row, entry, now):
                return False  # the clock was set back: evaluations stay in order
            standing, change = follow_evaluation(_standing_from(row, now), entry.level, found, now)
            await self._write_evaluation(tx, key, standing, found, measured)
            await note_change(tx, upstream, "backend", downstream=entry.name.key, now=now)
            if change is not None:
                recorded = RecordedChange(
                    at=now,
                    downstream=entry.name,
                    kind=change.kind,
                    before=change.before,
                    after=change.after,
                    reason=change.reason,
                )
                await record_change(tx, upstream, recorded)
                await queue_notice(tx, _change_notice(upstream, recorded, standing, policy), now)
                await self._refresher.refresh_all_heads(tx, upstream, now, has_checks=entry.level >= Level.L3)
            return True

        return await self._database.write(unit)

    async def _write_evaluation(
        self,
        tx: Tx,
        key: Mapping[str, str],
        standing: BackendStanding,
        found: Evaluation,
        measured: BackendMeasures,
    ) -> None:
        at = to_us(standing.evaluated_at)
        shared = {**key, "level": int(standing.level), "standing": standing.standing.value}
        await tx.run(
            _WRITE_STANDING,
            **shared,
            since_at=to_us(standing.since),
            changed_at=None if standing.changed_at is None else to_us(standing.changed_at),
            evaluated_at=at,
            results=_encode_results(found, standing.met_since),
            left_out=measured.left_out,
            reason=standing.reason,
        )
        await tx.run(_ADD_EVALUATION, **shared, at=at, observation=found.observation.value)
        if measured.counted:
            await tx.many(_WRITE_DAY, [{**key, **day.row(), "counted_at": at} for day in measured.counted])
        for statement in _FORGET:
            await tx.run(statement, **key, before=at - KEEP_EVALUATIONS // timedelta(microseconds=1))

    async def set_override(
        self,
        upstream: RepoName,
        downstream: RepoName,
        override: LevelOverride | None,
        *,
        who: str,
        now: datetime,
    ) -> None:
        """Switch a backend's demotion off until a time, or on again; audited."""

        async def unit(tx: Tx) -> None:
            values = {
                "until": to_us(override.until) if override else None,
                "who": override.who if override else None,
                "reason": override.reason if override else None,
            }
            if not await tx.run(_OVERRIDE, upstream=upstream.key, downstream=downstream.key, **values):
                raise NotFound(
                    f"{downstream} has no standing yet",
                    hint="only backends at L2 and above are evaluated; `crcr levels --evaluate` does it now",
                )
            detail = {"until": override.until.isoformat(), "reason": override.reason} if override else {}
            act = "level_override" if override else "level_override_ended"
            await note_act(tx, upstream, who=who, act=act, subject=str(downstream), now=now, **detail)
            await note_change(tx, upstream, "backend", downstream=downstream.key, now=now)
            await self._refresher.refresh_all_heads(tx, upstream, now, has_checks=True)

        await self._database.write(unit)

    async def find_proposal(self, upstream: RepoName, digest: str) -> str | None:
        """Return the address of the pull request that was opened for a proposal."""
        row = await self._database.quick_read(
            lambda tx: tx.one(_PROPOSAL, digest=digest, upstream=upstream.key)
        )
        return row["url"] if row else None

    async def record_proposal(
        self, upstream: RepoName, digest: str, url: str, *, who: str, now: datetime
    ) -> None:
        """Record the pull request of a proposal, with who opened it. The first record stays."""

        async def unit(tx: Tx) -> None:
            if await tx.all(
                _ADD_PROPOSAL, digest=digest, upstream=upstream.key, at=to_us(now), who=who, url=url
            ):
                await note_act(
                    tx, upstream, who=who, act="levels_proposed", subject=url, now=now, digest=digest
                )

        await self._database.write(unit)


async def record_change(tx: Tx, upstream: RepoName, change: RecordedChange) -> None:
    """Record that a standing turned."""
    await tx.run(
        _ADD_CHANGE,
        upstream=upstream.key,
        downstream=change.downstream.key,
        at=to_us(change.at),
        kind=change.kind.value,
        before=int(change.before),
        after=int(change.after),
        reason=change.reason,
    )


_NOTICE_KINDS = {
    LevelChangeKind.ELIGIBLE: NoticeKind.ELIGIBLE,
    LevelChangeKind.NOT_ELIGIBLE: NoticeKind.NOT_ELIGIBLE,
    LevelChangeKind.DEMOTED: NoticeKind.DEMOTED,
    LevelChangeKind.ALARMED: NoticeKind.ALARMED,
    LevelChangeKind.RECOVERED: NoticeKind.RESTORED,
}


def _change_notice(
    upstream: RepoName, change: RecordedChange, standing: BackendStanding, policy: LevelPolicy
) -> NoticeEvent:
    demotion = demotion_in_force(standing.level, standing.standing, policy, overridden=False)
    return NoticeEvent(
        kind=_NOTICE_KINDS[change.kind],
        upstream=upstream,
        backend=change.downstream,
        summary=change.reason,
        details=(SUMMARIES[demotion.value],) if demotion else (),
        path="/crcr/levels",
    )


def _is_due(row: Row | None, entry: AllowlistEntry, now: datetime) -> bool:
    if row is None or row["level"] != int(entry.level):
        return True
    since = now - from_us(row["evaluated_at"])
    return since >= EVALUATE_EVERY or since < -_FAR_AHEAD


def _standing_from(row: Row | None, now: datetime) -> BackendStanding | None:
    """The recorded standing; times that a clock wrote which was far ahead count as now."""
    if row is None:
        return None
    changed_at = from_us_or_none(row["changed_at"])
    return BackendStanding(
        level=Level(row["level"]),
        standing=LevelStanding(row["standing"]),
        since=min(from_us(row["since_at"]), now),
        changed_at=None if changed_at is None else min(changed_at, now),
        evaluated_at=min(from_us(row["evaluated_at"]), now),
        reason=row["reason"],
        met_since={
            CriterionName(one["name"]): min(datetime.fromisoformat(one["met_since"]), now)
            for one in json.loads(row["results"])
            if one["met_since"] is not None
        },
    )


def _encode_results(found: Evaluation, met_since: Mapping[CriterionName, datetime]) -> str:
    def encode(name: CriterionName, values: dict[str, Any]) -> dict[str, Any]:
        since = met_since.get(name)
        return {**values, "met_since": since.isoformat() if since else None}

    return json.dumps([encode(result.name, asdict(result)) for result in found.results])
