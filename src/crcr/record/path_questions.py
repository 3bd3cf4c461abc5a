"""Entries with `paths`: what their dispatches wait for, and what GitHub's list of changed files makes of them."""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.decide.outside import ChangedFiles
from crcr.decide.selection import PATHS, touches
from crcr.record.allowlists import Allowlists
from crcr.record.database import Database, Tx
from crcr.record.held_rows import held_of_delivery, reconsider, settle_files
from crcr.record.log_rows import note_change
from crcr.record.publishing import Publishing
from crcr.record.pull_rows import load_pull
from crcr.record.renames import find_listings
from crcr.record.statement import Statement

_NUMBER = Statement(
    text(
        "SELECT number FROM deliveries WHERE guid = :delivery AND upstream = :upstream AND state = 'accepted'"
    )
)


class PathQuestions:
    def __init__(self, database: Database, allowlists: Allowlists, publishing: Publishing) -> None:
        self._database = database
        self._allowlists = allowlists
        self._publishing = publishing

    async def open(self, upstream: RepoName, delivery: str) -> int | None:
        """The pull request to ask about; None when nothing of the delivery waits for the answer any more."""

        async def unit(tx: Tx) -> int | None:
            row = await tx.one(_NUMBER, delivery=delivery, upstream=upstream.key)
            held = await held_of_delivery(tx, upstream, delivery)
            waits = any(each["reason"] == PATHS for each in held)
            return row["number"] if row is not None and waits else None

        return await self._database.glance(unit)

    async def settle(
        self, upstream: RepoName, delivery: str, number: int, files: ChangedFiles | None, now: datetime
    ) -> None:
        """Leave out who is not concerned; on doubt (no answer, or not all files listed) everybody is."""

        async def unit(tx: Tx) -> None:
            allowlist = await self._allowlists.in_force(tx, upstream)
            pull = await load_pull(tx, upstream, number)
            held = await held_of_delivery(tx, upstream, delivery)
            asked = [row for row in held if row["reason"] == PATHS]
            if pull is None or not asked:
                return
            listings = await find_listings(tx, upstream, allowlist, asked)
            concerned = frozenset(
                name
                for name, listing in listings.items()
                if (entry := listing.entry) is None
                or files is None
                or not files.complete
                or touches(entry, files.paths)
            )
            await settle_files(tx, upstream, asked, concerned)
            await reconsider(tx, upstream, pull, allowlist, now)
            await note_change(tx, upstream, "delivery", delivery=delivery, number=number, now=now)
            await self._publishing.again(tx, upstream, (pull.head_sha,), now)

        await self._database.write(unit)
