"""Reads the clear results of in-tree checks on commits of a branch, each commit once in a transaction.

Counts are read first: where nothing failed nothing is unpacked. A packed commit with 500 checks has 5 KB and takes a third of a
millisecond, so every reader has a limit of commits, and all have a limit of checks.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from sqlalchemy import text

from crcr.decide.in_tree.base_results import CheckedCommit, clear_results
from crcr.decide.in_tree.checks import CheckKey
from crcr.decide.in_tree.packing import unpack_conclusions
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us

MOST_READ = 500
"""Commits of the branch that are looked at for those with in-tree checks: the checks of a push are on its last commit."""
_MOST_CHECKS = 100_000
"""Of the commits of one span: the commits furthest from its position are left out where there are more."""

_ON_BRANCH = (
    "SELECT b.sha, b.position, b.pushed_at, c.failed, c.passed + c.failed AS decided FROM (SELECT sha, upstream, position, pushed_at FROM base_commits"
    " WHERE upstream = :upstream AND ref = :ref AND position {0} :position ORDER BY position {1} LIMIT :most_read) AS b"
    " JOIN in_tree_commits c ON c.sha = b.sha AND c.upstream = b.upstream ORDER BY b.position {1} LIMIT :most"
)
_UP_TO = Statement(text(_ON_BRANCH.format("<=", "DESC")))
_AFTER = Statement(text(_ON_BRANCH.format(">", "ASC")))
_PACKED_OF = "SELECT sha, unpacked, packed FROM in_tree_commits WHERE sha IN {0} AND upstream = :upstream"
_CHECKS_OF = (
    "SELECT sha, app_id, name, conclusion FROM in_tree_checks WHERE sha IN {0} AND upstream = :upstream"
)
_IN_SQLITE = "(SELECT value FROM json_each(:shas))"
_IN_POSTGRESQL = "(SELECT json_array_elements_text(CAST(:shas AS json)))"
_PACKED = Statement(
    text(_PACKED_OF.format(_IN_SQLITE)), on_postgresql=text(_PACKED_OF.format(_IN_POSTGRESQL))
)
_CHECKS = Statement(
    text(_CHECKS_OF.format(_IN_SQLITE)), on_postgresql=text(_CHECKS_OF.format(_IN_POSTGRESQL))
)
_PLACE = Statement(
    text("SELECT position FROM base_commits WHERE sha = :sha AND upstream = :upstream AND ref = :ref")
)


class InTreeResults:
    """The results of one upstream's in-tree checks, inside one transaction."""

    def __init__(self, tx: Tx, upstream: str) -> None:
        self._tx = tx
        self._upstream = upstream
        self._results: dict[str, dict[CheckKey, bool]] = {}

    async def find_position(self, ref: str, sha: str) -> int | None:
        """The place of a commit on a branch; None where no push of it was recorded."""
        row = await self._tx.one(_PLACE, sha=sha, upstream=self._upstream, ref=ref)
        return row["position"] if row else None

    async def read_up_to(
        self, ref: str, position: int, most: int, *, failed_within: int | None = None
    ) -> tuple[CheckedCommit, ...]:
        """The last commits with in-tree checks up to this position, oldest first.

        None where no check failed on the last `failed_within` of them.
        """
        rows = await self._find(_UP_TO, ref, position, most)
        if failed_within is not None and not any(row["failed"] for row in rows[:failed_within]):
            return ()
        return await self._read_results(rows[::-1])

    async def read_around(
        self, ref: str, position: int, *, before: int, after: int, needs_failures: bool
    ) -> tuple[CheckedCommit, ...]:
        """The last commits with in-tree checks up to this position and the first ones after it, oldest first.

        None where `needs_failures` and no check failed on any of them.
        """
        rows = (await self._find(_UP_TO, ref, position, before))[::-1]
        rows += await self._find(_AFTER, ref, position, after)
        if needs_failures and not any(row["failed"] for row in rows):
            return ()
        return await self._read_results(rows)

    async def _find(self, statement: Statement, ref: str, position: int, most: int) -> list[Row]:
        place = {"upstream": self._upstream, "ref": ref, "position": position}
        rows = await self._tx.all(statement, most=most, most_read=MOST_READ, **place)
        checks = accumulate(row["decided"] for row in rows)
        return [row for row, number in zip(rows, checks, strict=True) if number <= _MOST_CHECKS]

    async def _read_results(self, rows: Sequence[Row]) -> tuple[CheckedCommit, ...]:
        results = await self.read(row["sha"] for row in rows)
        return tuple(
            CheckedCommit(row["position"], row["sha"], from_us(row["pushed_at"]), results[row["sha"]])
            for row in rows
        )

    async def read(self, shas: Iterable[str]) -> Mapping[str, Mapping[CheckKey, bool]]:
        """The clear results of these commits, and of all that were read before; none for a commit without in-tree checks."""
        missing = [sha for sha in dict.fromkeys(shas) if sha not in self._results]
        if missing:
            await self._load(missing)
        return self._results

    async def _load(self, shas: Sequence[str]) -> None:
        chosen: dict[str, Any] = {"shas": json.dumps(shas), "upstream": self._upstream}
        self._results |= {sha: {} for sha in shas}
        rows = await self._tx.all(_PACKED, **chosen)
        for row in rows:
            self._results[row["sha"]] = clear_results(unpack_conclusions(row["packed"]))
        unpacked = [row["sha"] for row in rows if row["unpacked"]]
        if not unpacked:
            return
        changed: dict[str, dict[CheckKey, str | None]] = {}
        for row in await self._tx.all(_CHECKS, **{**chosen, "shas": json.dumps(unpacked)}):
            changed.setdefault(row["sha"], {})[row["app_id"], row["name"]] = row["conclusion"]
        for sha, conclusions in changed.items():
            # A check with a row counts in place of the packed one, be it that it runs again.
            others = {key: passed for key, passed in self._results[sha].items() if key not in conclusions}
            self._results[sha] = others | clear_results(conclusions.items())
