"""Requests to refresh a commit's checks: the only way in which a recorded fact reaches a pull request.

A change to a fact that a check shows requests a refresh of the commit, in the same transaction. This adds one effect,
to the gate's queue. The effect judges the commit, publishes its gate, and queues the checks of backends and jobs where
they differ from what was published (`CommitChecks.plan_publication`). A commit that can show nothing gets no effect.
The content is computed when the effect runs, so any number of changes before that make one publication.
Reasons: docs/adr/0029-one-publication-per-commit.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.checks.check_run import Tier
from crcr.decide.checks.wanted_checks import JobChecks, shows_any
from crcr.decide.levels.standings import LevelPolicy
from crcr.decide.model import PAIR_EVENT, EffectKind, Level, RepoName
from crcr.decide.outbox.effect import CHECKS_QUEUE
from crcr.record.outbox.effects import add_once, effect_row, insert_unless_waiting
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.signals import EFFECTS
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_GATE_SINCE = Statement(text("SELECT gate_since FROM upstreams WHERE upstream = :upstream"))
_ENABLE_GATE = Statement(
    text("UPDATE upstreams SET gate_since = :at WHERE upstream = :upstream AND gate_since IS NULL")
)
# The expression makes SQLite use the partial index of open pull requests instead of the primary key.
_OPEN_HEADS = Statement(
    text("SELECT head_sha FROM pulls WHERE upstream || '' = :upstream AND is_open = 1 AND head_sha >= ''")
)
_LIVE_GROUPS = Statement(
    text("SELECT head_sha FROM merge_groups WHERE upstream = :upstream AND destroyed_at IS NULL")
)
# Reuses the parked effects: they record that an earlier attempt may have been carried out.
_RETRY_PARKED = Statement(
    text(
        "UPDATE effects SET state = 'waiting', due_at = :now, first_attempt_at = NULL, finished_at = NULL"
        " WHERE upstream = :upstream AND state = 'parked'"
        " AND kind IN ('publish_checks', 'ask_files', 'read_group', 'confirm_head')"
    )
)
_HEADS_WITHOUT_GATE = Statement(
    text(
        "SELECT p.head_sha FROM pulls p WHERE p.upstream || '' = :upstream AND p.is_open = 1 AND p.head_sha >= '' AND NOT EXISTS (SELECT 1"
        " FROM gates g WHERE g.head_sha = p.head_sha AND g.upstream = p.upstream) AND EXISTS (SELECT 1"
        " FROM deliveries v WHERE v.upstream = p.upstream AND v.number = p.number AND v.head_sha = p.head_sha"
        " AND v.state = 'accepted')"
    )
)
# A pair's dispatch has no commit of its own: what it shows is on the head of its pull request.
_PAIRED_HEAD = Statement(
    text(
        "SELECT p.head_sha FROM pairs q JOIN pulls p ON p.upstream = q.upstream AND p.number = q.number"
        " WHERE q.delivery = :delivery AND q.upstream = :upstream AND p.is_open = 1"
    )
)
_FIRST_CHECK = Statement(text("SELECT min(check_id) AS first FROM checks"))
# An open publication effect may be about to create the first check.
_ADD_IF_SHOWN = insert_unless_waiting(
    " AND (CAST(:gate AS TEXT) = 'on' OR (CAST(:gate AS TEXT) = 'auto' AND EXISTS (SELECT 1 FROM upstreams u"
    " WHERE u.upstream = :upstream AND u.gate_since IS NOT NULL))"
    " OR EXISTS (SELECT 1 FROM checks c WHERE c.head_sha = :lane AND c.upstream = :upstream)"
    " OR EXISTS (SELECT 1 FROM effects q WHERE q.upstream = :upstream AND q.lane = :lane"
    " AND q.target IN ('checks/gate', 'checks/backend', 'checks/job') AND q.state IN ('waiting', 'claimed')))"
)

COALESCE_DELAY = timedelta(seconds=2)
"""The delay before checks of backends and jobs are published, so that jobs that end together, and labels that GitHub
reports one by one, become one write. No merge depends on these checks. The gate, which merges depend on, is not delayed."""


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """An upstream's settings for its checks."""

    gate: Literal["auto", "on", "off"] = "auto"
    label_prefixes: tuple[str, ...] = ("ciflow/crcr/",)
    l3_fails_red: bool = False
    show_l3_pending: bool = True
    l3_pair_neutral: bool = False
    job_checks: JobChecks = JobChecks.FAILURES
    levels: LevelPolicy = field(default_factory=LevelPolicy)
    breaking_label: str = "crcr/breaking"
    """The label that announces a breakage; empty where none does."""


class CheckRefresher:
    def __init__(
        self, policies: Mapping[str, UpstreamPolicy], *, coalesce_delay: timedelta = COALESCE_DELAY
    ) -> None:
        self._policies = policies
        self._coalesce_delay = coalesce_delay

    @property
    def upstreams(self) -> tuple[RepoName, ...]:
        return tuple(RepoName(key) for key in self._policies)

    def policy(self, upstream: RepoName) -> UpstreamPolicy:
        return self._policies.get(upstream.key, UpstreamPolicy())

    async def gate_on(self, tx: Tx, upstream: RepoName) -> bool:
        """Whether every head gets a gate: unless the policy fixes it, once an L4 entry was listed."""
        if self.policy(upstream).gate != "auto":
            return self.has_gate(upstream, None)
        row = await tx.one(_GATE_SINCE, upstream=upstream.key)
        return self.has_gate(upstream, row["gate_since"] if row else None)

    def has_gate(self, upstream: RepoName, gate_since: int | None) -> bool:
        """The same for a caller that has read `upstreams.gate_since` already."""
        policy = self.policy(upstream)
        return gate_since is not None if policy.gate == "auto" else policy.gate == "on"

    async def request_refresh(self, tx: Tx, upstream: RepoName, heads: Iterable[str], now: datetime) -> None:
        """Add the effects that refresh these commits' checks, in one statement: there may be thousands."""
        await add_once(tx, *(self._effect(upstream, Tier.GATE, head_sha, now) for head_sha in heads))

    async def request_refresh_if_shown(
        self, tx: Tx, upstream: RepoName, heads: Iterable[str], now: datetime
    ) -> None:
        """Refresh those of the commits that have a gate or a check, or a publication in the queue."""
        gate = self.policy(upstream).gate
        effects = (self._effect(upstream, Tier.GATE, head_sha, now) for head_sha in heads)
        await add_once(tx, *({**effect, "gate": gate} for effect in effects), insert=_ADD_IF_SHOWN)

    async def request_refresh_for_pull(
        self,
        tx: Tx,
        upstream: RepoName,
        heads: Iterable[str],
        now: datetime,
        *,
        allowlist: Allowlist,
        labels: Iterable[str],
    ) -> None:
        """Refresh the commits of a pull request with these labels, if anything can be shown on them."""
        if shows_any(allowlist, tuple(labels), self.policy(upstream).label_prefixes):
            await self.request_refresh(tx, upstream, heads, now)
        else:
            await self.request_refresh_if_shown(tx, upstream, heads, now)

    async def queue_tier(self, tx: Tx, upstream: RepoName, tier: Tier, head_sha: str, now: datetime) -> None:
        """Queue the publication of a commit's checks of one tier, which differ from what was published."""
        await add_once(tx, self._effect(upstream, tier, head_sha, now))

    def _effect(self, upstream: RepoName, tier: Tier, head_sha: str, now: datetime) -> dict[str, Any]:
        due_at = now if tier is Tier.GATE else now + self._coalesce_delay
        row = effect_row(upstream, EffectKind.PUBLISH_CHECKS, target=tier_queue(tier), lane=head_sha, now=now)
        return {**row, "due_at": to_us(due_at)}

    async def request_refresh_for(self, tx: Tx, dispatch: Row | Mapping[str, Any], now: datetime) -> None:
        """Refresh the checks of a dispatch's commit, if checks are published for its level.

        At L3 the pull request's labels decide whether a check exists. A new label refreshes the commit by itself, so a
        result can only change a check that exists.
        """
        head_sha = dispatch["head_sha"]
        if dispatch["level"] < Level.L3 or dispatch["event"] == "push":
            return
        if dispatch["event"] == PAIR_EVENT:
            where = {"delivery": dispatch["delivery"], "upstream": dispatch["upstream"]}
            paired = await tx.one(_PAIRED_HEAD, **where)
            head_sha = paired["head_sha"] if paired else None
        if not head_sha:
            return
        refresh = self.request_refresh if dispatch["level"] >= Level.L4 else self.request_refresh_if_shown
        await refresh(tx, RepoName(dispatch["upstream"]), (head_sha,), now)

    async def apply_allowlist(self, tx: Tx, upstream: RepoName, allowlist: Allowlist, now: datetime) -> None:
        """Apply a new allowlist to open heads and merge groups: none may keep waiting for a backend that was removed."""
        await self.enable_gate(tx, upstream, allowlist, now)
        await self.refresh_all_heads(tx, upstream, now, has_checks=allowlist.has_checks)

    async def enable_gate(self, tx: Tx, upstream: RepoName, allowlist: Allowlist, now: datetime) -> bool:
        """Record that an L4 entry was listed; True the first time."""
        return bool(allowlist.gating and await tx.run(_ENABLE_GATE, upstream=upstream.key, at=to_us(now)))

    async def refresh_all_heads(self, tx: Tx, upstream: RepoName, now: datetime, *, has_checks: bool) -> int:
        """Refresh the checks of every open head and live merge group; return how many.

        `has_checks`: the allowlist in force has entries with checks. Without any, existing checks may have to end.
        """
        if not has_checks and not await self.gate_on(tx, upstream) and not await _any_check(tx):
            return 0
        refreshed = 0
        for statement in (_OPEN_HEADS, _LIVE_GROUPS):
            rows = await tx.all(statement, upstream=upstream.key)
            await self.request_refresh(tx, upstream, [row["head_sha"] for row in rows], now)
            refreshed += len(rows)
        return refreshed

    async def retry_failed(self, tx: Tx, upstream: RepoName, now: datetime) -> int:
        """Retry parked effects that checks depend on, and refresh open heads without a gate row."""
        retried = await tx.run(_RETRY_PARKED, upstream=upstream.key, now=to_us(now))
        heads: list[str] = []
        if await self.gate_on(tx, upstream):
            heads = [row["head_sha"] for row in await tx.all(_HEADS_WITHOUT_GATE, upstream=upstream.key)]
        await self.request_refresh(tx, upstream, heads, now)
        if retried:
            tx.signal(EFFECTS)
        return retried + len(heads)


async def _any_check(tx: Tx) -> bool:
    row = await tx.one(_FIRST_CHECK)
    return row is not None and row["first"] is not None


def tier_queue(tier: Tier) -> str:
    """Each tier has its own queue, so that a limit that holds other checks back never holds the gate."""
    return f"{CHECKS_QUEUE}{tier}"


class CheckRepairs:
    """Periodic repair of checks that no event would refresh."""

    def __init__(
        self, database: Database, refresher: CheckRefresher, upstreams: tuple[RepoName, ...]
    ) -> None:
        self._database = database
        self._refresher = refresher
        self._upstreams = upstreams

    async def repair(self, now: datetime, *, thorough: bool) -> int:
        """Refresh checks whose effects are parked or missing; `thorough`: of every open head. Return how many commits."""

        async def unit(tx: Tx) -> int:
            refreshed = 0
            for upstream in self._upstreams:
                if thorough:
                    refreshed += await self._refresher.refresh_all_heads(tx, upstream, now, has_checks=False)
                else:
                    refreshed += await self._refresher.retry_failed(tx, upstream, now)
            return refreshed

        return await self._database.write(unit)
