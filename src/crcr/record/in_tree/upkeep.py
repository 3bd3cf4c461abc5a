"""Upkeep of in-tree commits: late changes reach open pages, the checks of quiet commits are packed, old commits are deleted.

Each commit is packed in a transaction of its own. Packing changes no count.
"""

from datetime import datetime, timedelta

from sqlalchemy import text

from crcr.decide.in_tree.checks import InTreeCheck
from crcr.decide.in_tree.packing import pack_checks, unpack_checks
from crcr.decide.model import RepoName
from crcr.record.in_tree.recorder import announce_commit
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us

QUIET_FOR = timedelta(minutes=30)
"""After this time without a change the checks of a commit are packed."""
_MOST_ANNOUNCED = 500

_UNANNOUNCED = Statement(
    text(
        "SELECT sha, upstream, change_id FROM in_tree_commits WHERE unpacked = 1 AND changed_at > 0"
        " AND changed_at > announced_at ORDER BY changed_at LIMIT :most"
    )
)
_QUIET = Statement(
    text(
        "SELECT sha, upstream, packed FROM in_tree_commits WHERE unpacked = 1 AND changed_at <= :before"
        " AND announced_at >= changed_at ORDER BY changed_at LIMIT 1"
    )
)
CHECKS_OF_COMMIT = Statement(
    text(
        "SELECT app_id, name, check_id, ended_at, conclusion, url FROM in_tree_checks"
        " WHERE sha = :sha AND upstream = :upstream ORDER BY app_id, name"
    )
)
_PACK = Statement(
    text(
        "UPDATE in_tree_commits SET packed = :packed, unpacked = 0 WHERE sha = :sha AND upstream = :upstream"
    )
)
_DROP_CHECKS = Statement(text("DELETE FROM in_tree_checks WHERE sha = :sha AND upstream = :upstream"))
DROP_COMMITS = Statement(
    text(
        "DELETE FROM in_tree_commits WHERE (sha, upstream) IN (SELECT c.sha, c.upstream FROM in_tree_commits c"
        " WHERE c.upstream = :upstream AND c.changed_at < :before AND c.unpacked = 0 AND NOT EXISTS (SELECT 1 FROM pulls p"
        " WHERE p.head_sha = c.sha AND p.upstream || '' = c.upstream AND p.is_open = 1) ORDER BY c.changed_at LIMIT :most)"
    )
)
"""Deletes at most `most` commits of an upstream that last changed before `before`; the heads of open pull requests stay."""


class InTreeUpkeep:
    def __init__(self, database: Database) -> None:
        self._database = database

    async def run(self, now: datetime) -> None:
        await self.announce_late(now)
        await self.pack_quiet(now)

    async def announce_late(self, now: datetime) -> None:
        """Have open pages read the commits whose newest change was not announced."""
        most = {"most": _MOST_ANNOUNCED}
        if not await self._database.quick_read(lambda tx: tx.all(_UNANNOUNCED, **most)):
            return

        async def unit(tx: Tx) -> None:
            for row in await tx.all(_UNANNOUNCED, **most):
                await announce_commit(tx, RepoName(row["upstream"]), row["sha"], row["change_id"], now)

        await self._database.write(unit)

    async def pack_quiet(self, now: datetime) -> int:
        """Pack the checks of each commit that has been quiet for a while; return how many commits were packed."""
        before, packed = to_us(now - QUIET_FOR), 0
        while await self._database.quick_read(lambda tx: tx.one(_QUIET, before=before)):
            packed += await self._database.write(lambda tx: _pack_one(tx, before))
        return packed


async def _pack_one(tx: Tx, before: int) -> int:
    row = await tx.one(_QUIET, before=before)
    if row is None:
        return 0
    commit = {"sha": row["sha"], "upstream": row["upstream"]}
    checks = await read_checks(tx, packed=row["packed"], **commit)
    await tx.run(_PACK, packed=pack_checks(checks.values()), **commit)
    await tx.run(_DROP_CHECKS, **commit)
    return 1


async def read_checks(
    tx: Tx, *, sha: str, upstream: str, packed: bytes | None
) -> dict[tuple[int, str], InTreeCheck]:
    """All checks of a commit: those with a row count in place of packed ones."""
    rows = await tx.all(CHECKS_OF_COMMIT, sha=sha, upstream=upstream)
    checks = {check.key: check for check in unpack_checks(packed)}
    return checks | {check.key: check for check in (InTreeCheck(**row) for row in rows)}
