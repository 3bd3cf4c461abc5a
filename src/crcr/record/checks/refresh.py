"""Queue the publication of a commit's checks: the one way in which a recorded fact reaches a pull request.

A transaction that changes a fact names the commit here and adds one effect, of the gate's queue. That effect judges
the commit, publishes its gate, and queues the backends' and the jobs' checks only where they differ from what GitHub
shows (`CommitChecks.to_publish`). A commit on which nothing can be shown gets no effect at all.
What to show is worked out when the effect is done, so any number of changes before that make one publication.
Why a queue for each class, and one effect for each commit: docs/adr/0028-one-publication-per-commit.md.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.checks.wanted_checks import JobChecks, Tier, shows_any
from crcr.decide.model import EffectKind, Level, RepoName
from crcr.decide.outbox.effect import CHECKS_QUEUE
from crcr.record.outbox.effects import add_once, effect_row, insert_unless_waiting
from crcr.record.store.database import Row, Tx
from crcr.record.store.signals import EFFECTS
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

_GATE_SINCE = Statement(text("SELECT gate_since FROM upstreams WHERE upstream = :upstream"))
_GATE_ON = Statement(
    text("UPDATE upstreams SET gate_since = :at WHERE upstream = :upstream AND gate_since IS NULL")
)
# Said so that SQLite takes the index that holds open pull requests only, not the key with all of them.
_OPEN_HEADS = Statement(
    text("SELECT head_sha FROM pulls WHERE upstream || '' = :upstream AND is_open = 1 AND head_sha >= ''")
)
_LIVE_GROUPS = Statement(
    text("SELECT head_sha FROM merge_groups WHERE upstream = :upstream AND destroyed_at IS NULL")
)
# The same effects, so that they remember that an earlier attempt may have been carried out.
_TRY_AGAIN = Statement(
    text(
        "UPDATE effects SET state = 'waiting', due_at = :now, first_attempt_at = NULL, finished_at = NULL"
        " WHERE upstream = :upstream AND state = 'parked'"
        " AND kind IN ('publish_checks', 'ask_files', 'read_group', 'confirm_head')"
    )
)
_UNJUDGED = Statement(
    text(
        "SELECT p.head_sha FROM pulls p WHERE p.upstream || '' = :upstream AND p.is_open = 1 AND p.head_sha >= '' AND NOT EXISTS (SELECT 1"
        " FROM gates g WHERE g.head_sha = p.head_sha AND g.upstream = p.upstream) AND EXISTS (SELECT 1"
        " FROM deliveries v WHERE v.upstream = p.upstream AND v.number = p.number AND v.head_sha = p.head_sha"
        " AND v.state = 'accepted')"
    )
)
_FIRST_CHECK = Statement(text("SELECT min(check_id) AS first FROM checks"))
# A publication that is queued may be about to show the first check.
_ADD_IF_SHOWN = insert_unless_waiting(
    " AND (CAST(:gate AS TEXT) = 'on' OR (CAST(:gate AS TEXT) = 'auto' AND EXISTS (SELECT 1 FROM upstreams u"
    " WHERE u.upstream = :upstream AND u.gate_since IS NOT NULL))"
    " OR EXISTS (SELECT 1 FROM checks c WHERE c.head_sha = :lane AND c.upstream = :upstream)"
    " OR EXISTS (SELECT 1 FROM effects q WHERE q.upstream = :upstream AND q.lane = :lane"
    " AND q.target IN ('checks/gate', 'checks/backend', 'checks/job') AND q.state IN ('waiting', 'claimed')))"
)

GATHERING = timedelta(seconds=2)
"""So long the checks of backends and jobs wait for more changes: jobs that end together, and the labels that GitHub
tells of one by one, are one write. Nobody merges by these checks; the gate, which does decide, never waits."""


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """What an upstream's maintainers have set about its checks."""

    gate: Literal["auto", "on", "off"] = "auto"
    label_prefixes: tuple[str, ...] = ("ciflow/crcr/",)
    l3_fails_red: bool = False
    l3_pends: bool = True
    job_checks: JobChecks = JobChecks.FAILURES


class Publishing:
    def __init__(self, policies: Mapping[str, UpstreamPolicy], *, gathering: timedelta = GATHERING) -> None:
        self._policies = policies
        self._gathering = gathering

    @property
    def upstreams(self) -> tuple[RepoName, ...]:
        return tuple(RepoName(key) for key in self._policies)

    def policy(self, upstream: RepoName) -> UpstreamPolicy:
        return self._policies.get(upstream.key, UpstreamPolicy())

    async def gate_on(self, tx: Tx, upstream: RepoName) -> bool:
        """Whether every head gets a gate: once an L4 was listed, unless it is set."""
        policy = self.policy(upstream)
        if policy.gate != "auto":
            return policy.gate == "on"
        row = await tx.one(_GATE_SINCE, upstream=upstream.key)
        return row is not None and row["gate_since"] is not None

    async def again(self, tx: Tx, upstream: RepoName, heads: Iterable[str], now: datetime) -> None:
        """Look at these commits' checks again; all in one go, as there may be thousands."""
        await add_once(tx, *(self._effect(upstream, Tier.GATE, head_sha, now) for head_sha in heads))

    async def again_if_shown(self, tx: Tx, upstream: RepoName, heads: Iterable[str], now: datetime) -> None:
        """Look again at those of the commits that have a gate or a check, or are about to get one."""
        gate = self.policy(upstream).gate
        effects = (self._effect(upstream, Tier.GATE, head_sha, now) for head_sha in heads)
        await add_once(tx, *({**effect, "gate": gate} for effect in effects), insert=_ADD_IF_SHOWN)

    async def again_for_pull(
        self,
        tx: Tx,
        upstream: RepoName,
        heads: Iterable[str],
        now: datetime,
        *,
        allowlist: Allowlist,
        labels: Iterable[str],
    ) -> None:
        """Look again at the commits of a pull request with these labels, if anything can be shown on them."""
        if shows_any(allowlist, tuple(labels), self.policy(upstream).label_prefixes):
            await self.again(tx, upstream, heads, now)
        else:
            await self.again_if_shown(tx, upstream, heads, now)

    async def queue_tier(self, tx: Tx, upstream: RepoName, tier: Tier, head_sha: str, now: datetime) -> None:
        """Queue the publication of one tier of a commit, which was found to differ from what GitHub shows."""
        await add_once(tx, self._effect(upstream, tier, head_sha, now))

    def _effect(self, upstream: RepoName, tier: Tier, head_sha: str, now: datetime) -> dict[str, Any]:
        due_at = now if tier is Tier.GATE else now + self._gathering
        row = effect_row(upstream, EffectKind.PUBLISH_CHECKS, target=target_of(tier), lane=head_sha, now=now)
        return {**row, "due_at": to_us(due_at)}

    async def again_for(self, tx: Tx, dispatch: Row | Mapping[str, Any], now: datetime) -> None:
        """Look at the commit of a dispatch again, if its level is one that speaks.

        At L3 a pull request's label decides what is shown. A new label looks at the commit by itself, so a result can
        only change what is shown already.
        """
        if dispatch["level"] < Level.L3 or not dispatch["head_sha"] or dispatch["event"] == "push":
            return
        look = self.again if dispatch["level"] >= Level.L4 else self.again_if_shown
        await look(tx, RepoName(dispatch["upstream"]), (dispatch["head_sha"],), now)

    async def follow(self, tx: Tx, upstream: RepoName, allowlist: Allowlist, now: datetime) -> None:
        """Take a new allowlist into account: none of what is open may hang on who left."""
        await self.turns_on(tx, upstream, allowlist, now)
        await self.everywhere(tx, upstream, now, speaks=allowlist.speaks)

    async def turns_on(self, tx: Tx, upstream: RepoName, allowlist: Allowlist, now: datetime) -> bool:
        """Remember that an L4 was listed; True the first time."""
        return bool(allowlist.gating and await tx.run(_GATE_ON, upstream=upstream.key, at=to_us(now)))

    async def everywhere(self, tx: Tx, upstream: RepoName, now: datetime, *, speaks: bool) -> int:
        """Look at the checks of every open head and live merge group again; return of how many.

        `speaks` says that somebody in force is shown there; checks that were made before may have to end.
        """
        if not speaks and not await self.gate_on(tx, upstream) and not await _any_check(tx):
            return 0
        looked = 0
        for statement in (_OPEN_HEADS, _LIVE_GROUPS):
            rows = await tx.all(statement, upstream=upstream.key)
            await self.again(tx, upstream, [row["head_sha"] for row in rows], now)
            looked += len(rows)
        return looked

    async def mend(self, tx: Tx, upstream: RepoName, now: datetime) -> int:
        """Try again what checks depend on and was given up, and look at heads that nobody has judged yet."""
        mended = await tx.run(_TRY_AGAIN, upstream=upstream.key, now=to_us(now))
        heads: list[str] = []
        if await self.gate_on(tx, upstream):
            heads = [row["head_sha"] for row in await tx.all(_UNJUDGED, upstream=upstream.key)]
        await self.again(tx, upstream, heads, now)
        if mended:
            tx.signal(EFFECTS)
        return mended + len(heads)


async def _any_check(tx: Tx) -> bool:
    row = await tx.one(_FIRST_CHECK)
    return row is not None and row["first"] is not None


def target_of(tier: Tier) -> str:
    """A queue of its own for each tier, so that a limit that holds the others back never holds the gate."""
    return f"{CHECKS_QUEUE}{tier}"
