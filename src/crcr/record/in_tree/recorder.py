"""Records checks of the upstream's own CI: the newest of each App and name, and the counts of their commit.

A webhook costs one read by keys and two writes. Repeats and older checks write nothing, so no digest of the body is kept: the
order of the checks themselves tells them apart. Open pages learn of a commit when it passes, fails or starts to run, and of all
else with the next sweep (`record.in_tree.upkeep`).
"""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.events import InTreeCheckEvent
from crcr.decide.in_tree.checks import MOST_CHECKS, Counts, InTreeCheck, change_counts
from crcr.decide.in_tree.packing import find_packed
from crcr.decide.model import DeliveryState, RepoName
from crcr.record.change_and_audit_log import replace_change
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

ANNOUNCED_EVERY = timedelta(seconds=10)
"""The checks of a commit may end and start many times a minute."""

_FIND = Statement(
    text(
        "SELECT u.repository_id, c.passed, c.failed, c.running, c.announced_at, c.change_id,"
        " CASE WHEN k.check_id IS NULL THEN c.packed END AS packed, k.check_id, k.ended_at, k.conclusion, k.url"
        " FROM (SELECT 1 AS one) AS always LEFT JOIN upstreams u ON u.upstream = :upstream"
        " LEFT JOIN in_tree_commits c ON c.sha = :sha AND c.upstream = :upstream"
        " LEFT JOIN in_tree_checks k ON k.sha = :sha AND k.upstream = :upstream AND k.app_id = :app_id AND k.name = :name"
    )
)
_SAVE_CHECK = Statement(
    text(
        "INSERT INTO in_tree_checks (sha, upstream, app_id, name, check_id, ended_at, conclusion, url)"
        " VALUES (:sha, :upstream, :app_id, :name, :check_id, :ended_at, :conclusion, :url)"
        " ON CONFLICT (sha, upstream, app_id, name) DO UPDATE SET check_id = excluded.check_id,"
        " ended_at = excluded.ended_at, conclusion = excluded.conclusion, url = excluded.url"
    )
)
_ADD_COUNTS = Statement(
    text(
        "INSERT INTO in_tree_commits (sha, upstream, passed, failed, running, unpacked, changed_at)"
        " VALUES (:sha, :upstream, :passed, :failed, :running, 1, :now) ON CONFLICT (sha, upstream) DO UPDATE SET"
        " passed = in_tree_commits.passed + excluded.passed, failed = in_tree_commits.failed + excluded.failed,"
        " running = in_tree_commits.running + excluded.running, unpacked = 1, changed_at = excluded.changed_at"
    )
)
_PULL = Statement(
    text(
        "SELECT min(number) AS number FROM pulls WHERE head_sha = :sha AND upstream || '' = :upstream AND is_open = 1"
    )
)
_ANNOUNCED = Statement(
    text(
        "UPDATE in_tree_commits SET change_id = :change_id, announced_at = :now WHERE sha = :sha AND upstream = :upstream"
    )
)


class InTreeRecorder:
    def __init__(self, database: Database, own_app: str, most_checks: int = MOST_CHECKS) -> None:
        """`own_app` is the id, or the client id, of the relay's App; a commit has `most_checks` at most."""
        self._database = database
        self._own_app = own_app
        self._most_checks = most_checks

    async def record_event(
        self, receipt: ReceivedDelivery, event: InTreeCheckEvent
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
        if event.is_made_by(self._own_app):
            return IgnoredEvent("a check of this relay")
        return await self._database.write(
            lambda tx: record_check(tx, event, receipt.received_at, self._most_checks)
        )


async def record_check(
    tx: Tx, event: InTreeCheckEvent, now: datetime, most_checks: int = MOST_CHECKS
) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
    check, commit = event.check, {"sha": event.head_sha, "upstream": event.upstream.key}
    row = await tx.one(_FIND, app_id=check.app_id, name=check.name, **commit)
    if row is None or row["repository_id"] not in {None, event.repository_id}:
        return IgnoredEvent(f"{event.upstream} is bound to another repository id")
    known = _known_check(row, check)
    before = Counts(row["passed"] or 0, row["failed"] or 0, row["running"] or 0)
    change = change_counts(known, check)
    if change is None:
        return AlreadyProcessed()
    if known is None and before.total >= most_checks:
        return IgnoredEvent(f"{most_checks:,} checks of this commit are recorded already")
    await tx.run(_SAVE_CHECK, **commit, **check._asdict())
    await tx.run(_ADD_COUNTS, now=to_us(now), **commit, **change._asdict())
    is_due = (row["announced_at"] or 0) <= to_us(now - ANNOUNCED_EVERY)
    if is_due and before.add(change).outcome is not before.outcome:
        await announce_commit(tx, event.upstream, event.head_sha, row["change_id"], now)
    return AcceptedDelivery(0, DeliveryState.ACCEPTED)


async def announce_commit(
    tx: Tx, upstream: RepoName, sha: str, former_change: int | None, now: datetime
) -> None:
    """Have open pages read the commit again."""
    commit = {"sha": sha, "upstream": upstream.key}
    pull = await tx.one(_PULL, **commit)
    number = pull["number"] if pull else None
    change_id = await replace_change(tx, upstream, "in_tree", now=now, number=number, former=former_change)
    await tx.run(_ANNOUNCED, change_id=change_id, now=to_us(now), **commit)


def _known_check(row: Row, check: InTreeCheck) -> InTreeCheck | None:
    """The recorded check of the same App and name, be it packed."""
    if row["check_id"] is None:
        return find_packed(row["packed"], check.key)
    return InTreeCheck(*check.key, row["check_id"], row["ended_at"], row["conclusion"], row["url"])
