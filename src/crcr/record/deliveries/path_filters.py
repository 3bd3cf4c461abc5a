"""Allowlist entries with `paths`: their dispatches are held until GitHub lists the changed files, then released or left out."""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.dispatch.selection import PATHS, matches_paths
from crcr.decide.github.requests_and_answers import ChangedFiles, ChangedFilesQuery
from crcr.decide.model import KnownPull, RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.dispatches import (
    find_held_of_delivery,
    find_left_out_of_pull,
    reconsider_held,
    restore_left_out,
    settle_files,
)
from crcr.record.deliveries.pull_requests import load_pull, note_merge_base
from crcr.record.failures.recorder import FailureRecorder
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.renames import Listing, find_listings
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement

_QUESTION = Statement(
    text(
        "SELECT v.number, v.head_sha, v.base_ref, u.default_branch FROM deliveries v"
        " LEFT JOIN upstreams u ON u.upstream = v.upstream"
        " WHERE v.guid = :delivery AND v.upstream = :upstream AND v.state = 'accepted'"
    )
)


class PathFilters:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        refresher: CheckRefresher,
        failures: FailureRecorder,
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._refresher = refresher
        self._failures = failures

    async def open(self, upstream: RepoName, delivery: str) -> ChangedFilesQuery | None:
        """The query for GitHub; None when no dispatch of the delivery waits for the answer any more."""

        async def unit(tx: Tx) -> ChangedFilesQuery | None:
            row = await tx.one(_QUESTION, delivery=delivery, upstream=upstream.key)
            pull = await load_pull(tx, upstream, row["number"]) if row else None
            if row is None or pull is None:
                return None
            waiting = await _waiting(tx, upstream, delivery)
            if not waiting and not await _left_out(tx, upstream, delivery, pull):
                return None
            return ChangedFilesQuery(
                number=row["number"],
                head_sha=row["head_sha"],
                base_ref=row["base_ref"],
                default_branch=row["default_branch"],
            )

        return await self._database.quick_read(unit)

    async def settle(
        self, upstream: RepoName, delivery: str, number: int, files: ChangedFiles | None, now: datetime
    ) -> None:
        """Leave out backends whose `paths` match no changed file; without a complete list all are dispatched to.

        A backend that an earlier complete list left out stays left out when there is no answer this time.
        """

        async def unit(tx: Tx) -> None:
            allowlist = await self._allowlists.in_force(tx, upstream)
            pull = await load_pull(tx, upstream, number)
            if pull is None:
                return
            if files is not None and await note_merge_base(tx, upstream, delivery, files):
                await self._failures.judge_delivery(tx, upstream, delivery, now)
            waiting = await _waiting(tx, upstream, delivery)
            left_out = await _left_out(tx, upstream, delivery, pull) if files is not None else []
            listings = await find_listings(tx, upstream, allowlist, [*waiting, *left_out])
            concerned = _concerned(listings, files)
            await settle_files(tx, upstream, waiting, concerned)
            restored = [row for row in left_out if row["downstream"] in concerned]
            for row in restored:
                await restore_left_out(tx, upstream, row, pull, concerned=True)
            if not waiting and not restored:
                return
            await reconsider_held(tx, upstream, pull, allowlist, now)
            await note_change(tx, upstream, "delivery", delivery=delivery, number=number, now=now)
            await self._refresher.request_refresh_for_pull(
                tx, upstream, (pull.head_sha,), now, allowlist=allowlist, labels=pull.labels
            )

        await self._database.write(unit)


async def _waiting(tx: Tx, upstream: RepoName, delivery: str) -> list[Row]:
    return [row for row in await find_held_of_delivery(tx, upstream, delivery) if row["reason"] == PATHS]


async def _left_out(tx: Tx, upstream: RepoName, delivery: str, pull: KnownPull) -> list[Row]:
    """Dispatches that an earlier list of files left out of the delivery, if it still is the pull request's newest."""
    rows = await find_left_out_of_pull(tx, upstream, pull, PATHS)
    return [row for row in rows if row["delivery"] == delivery]


def _concerned(listings: dict[str, Listing], files: ChangedFiles | None) -> frozenset[str]:
    return frozenset(
        name
        for name, listing in listings.items()
        if (entry := listing.entry) is None
        or files is None
        or not files.complete
        or matches_paths(entry, files.paths)
    )
