"""Commits that downstreams tested on their own: recorded when first reported, then verified on GitHub once.

Verifications are due a few seconds apart, and their queues are bounded: a downstream that reports invented commits must
use up neither the upstream's requests to GitHub nor the turns of the others. The sweeper queues the rest later, and
those without an answer again, the oldest first, for `KEEP_ASKING`.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.github.commit_origin import UNCHECKED, UNKNOWN, CommitPlace, CommitStanding
from crcr.decide.model import EffectKind, RepoName
from crcr.decide.outbox.retry import GIVE_UP_AFTER
from crcr.record.change_and_audit_log import note_change
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.schema.joining import commits
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

QUEUE = "commits"
"""The sweeper's own queue; each downstream has another, whose name begins with this one."""
_DUE_APART = timedelta(seconds=6)
MOST_WAITING = 200
MOST_PER_QUEUE = 20
_ASK_AGAIN_AFTER = timedelta(hours=1)
"""A commit that was not found in the base may be merged later, or its verification may have been given up."""
_GIVEN_UP_WITHIN = GIVE_UP_AFTER + timedelta(hours=1)
"""By then an effect is over, done or not."""
KEEP_ASKING = timedelta(days=14)

_ADD = Statement(
    inserting(commits, "sha", "upstream", "standing", "seen_at", "ask_at").on_conflict_do_nothing()
)
_COMMIT = Statement(
    text(
        "SELECT standing, branch, seen_at, checked_at, ask_at FROM commits"
        " WHERE sha = :sha AND upstream = :upstream"
    )
)
# Along the workers' index: all queues whose names begin with ours.
_WAITING = Statement(
    text(
        "SELECT count(*) AS number, coalesce(sum(CASE WHEN target = :target THEN 1 ELSE 0 END), 0) AS own"
        " FROM (SELECT target FROM effects WHERE upstream = :upstream AND state IN ('waiting', 'claimed')"
        " AND target >= 'commits' AND target < 'commits!' LIMIT :most) AS waiting"
    )
)
_SET_ASK_AT = Statement(text("UPDATE commits SET ask_at = :at WHERE sha = :sha AND upstream = :upstream"))
_NO_ANSWER = Statement(
    text(
        "SELECT sha, seen_at FROM commits WHERE upstream = :upstream AND standing = 'unchecked' AND ask_at <= :now"
        " ORDER BY ask_at LIMIT :most"
    )
)
_SET_UNANSWERED = Statement(
    text(
        "UPDATE commits SET standing = 'unanswered' WHERE sha = :sha AND upstream = :upstream"
        " AND standing = 'unchecked'"
    )
)
# A parked verification is cancelled when the commit is queued again.
_CANCEL_PARKED = Statement(
    text(
        "UPDATE effects SET state = 'cancelled', finished_at = :at WHERE upstream = :upstream"
        " AND state = 'parked' AND kind = 'verify_commit' AND lane = :sha"
    )
)
_SETTLE = Statement(
    text(
        "UPDATE commits SET standing = :standing, branch = :branch, checked_at = :at WHERE sha = :sha"
        " AND upstream = :upstream AND standing <> 'base'"
    )
)


async def note_commit(tx: Tx, upstream: RepoName, downstream: RepoName, sha: str, now: datetime) -> None:
    """Record a commit that a downstream reported about, and queue the question where it belongs."""
    key = {"sha": sha, "upstream": upstream.key}
    at = to_us(now)
    new = await tx.run(_ADD, standing=CommitStanding.UNCHECKED.value, seen_at=at, ask_at=at, **key)
    if new or await _is_worth_asking(tx, key, now):
        await _queue_verification(tx, upstream, f"{QUEUE} {downstream.key}", (sha,), now)


async def verify_unanswered_commits(tx: Tx, upstream: RepoName, now: datetime) -> int:
    """Queue commits without an answer and without an open verification; return how many were examined.

    A commit without an answer for `KEEP_ASKING` is given up, until a downstream reports about it again.
    """
    rows = await tx.all(_NO_ANSWER, upstream=upstream.key, now=to_us(now), most=MOST_PER_QUEUE)
    given_up = [row["sha"] for row in rows if row["seen_at"] <= to_us(now - KEEP_ASKING)]
    for sha in given_up:
        await tx.run(_SET_UNANSWERED, sha=sha, upstream=upstream.key)
        await tx.run(_CANCEL_PARKED, sha=sha, upstream=upstream.key, at=to_us(now))
    if given_up:
        await note_change(tx, upstream, "commit", now=now)
    await _queue_verification(
        tx, upstream, QUEUE, [row["sha"] for row in rows if row["sha"] not in given_up], now
    )
    return len(rows)


async def _queue_verification(
    tx: Tx, upstream: RepoName, target: str, shas: Sequence[str], now: datetime
) -> None:
    if not shas:
        return
    row = await tx.one(_WAITING, upstream=upstream.key, target=target, most=MOST_WAITING)
    waiting, own = (row["number"], row["own"]) if row else (0, 0)
    for position, sha in enumerate(shas[: max(0, min(MOST_WAITING - waiting, MOST_PER_QUEUE - own))]):
        key = {"sha": sha, "upstream": upstream.key}
        kind = EffectKind.VERIFY_COMMIT
        effect = effect_row(upstream, kind, target=target, lane=sha, payload=sha.encode(), now=now)
        await add_once(tx, {**effect, "due_at": to_us(now + (waiting + position) * _DUE_APART)})
        await tx.run(_SET_ASK_AT, at=to_us(now + _GIVEN_UP_WITHIN), **key)
        await tx.run(_CANCEL_PARKED, at=to_us(now), **key)


async def _is_worth_asking(tx: Tx, key: dict[str, str], now: datetime) -> bool:
    row = await tx.one(_COMMIT, **key)
    if row is None or row["standing"] == CommitStanding.BASE.value:
        return False
    if row["standing"] == CommitStanding.UNCHECKED.value and row["ask_at"] <= to_us(now):
        return True  # the queue was full
    return bool((row["checked_at"] or row["seen_at"]) <= to_us(now - _ASK_AGAIN_AFTER))


async def read_commit_place(tx: Tx, upstream: RepoName | str, sha: str | None) -> CommitPlace:
    """Where a reported commit stands; without a SHA it is unknown."""
    if sha is None:
        return UNKNOWN
    key = upstream if isinstance(upstream, str) else upstream.key
    row = await tx.one(_COMMIT, sha=sha, upstream=key)
    return UNCHECKED if row is None else CommitPlace(CommitStanding(row["standing"]), row["branch"])


class ReportedCommits:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def is_open(self, upstream: RepoName, sha: str) -> bool:
        """Whether its place is still to be verified; a commit in the base stays there."""
        row = await self._database.quick_read(lambda tx: tx.one(_COMMIT, sha=sha, upstream=upstream.key))
        return row is not None and row["standing"] != CommitStanding.BASE.value

    async def settle(self, upstream: RepoName, sha: str, place: CommitPlace, now: datetime) -> None:
        async def unit(tx: Tx) -> None:
            columns = {"standing": place.standing.value, "branch": place.branch, "at": to_us(now)}
            if await tx.run(_SETTLE, sha=sha, upstream=upstream.key, **columns):
                await note_change(tx, upstream, "commit", now=now)

        await self._database.write(unit)
