"""Checks set right that nobody would look at again by themselves."""

from datetime import datetime

from crcr.decide.model import RepoName
from crcr.record.checks.refresh import Publishing
from crcr.record.store.database import Database, Tx


class Repairs:
    def __init__(self, database: Database, publishing: Publishing, upstreams: tuple[RepoName, ...]) -> None:
        self._database = database
        self._publishing = publishing
        self._upstreams = upstreams

    async def repair(self, now: datetime, *, thorough: bool) -> int:
        """Have checks looked at again that were given up or never came to be; `thorough`: of every open head.

        Return of how many commits.
        """

        async def unit(tx: Tx) -> int:
            looked = 0
            for upstream in self._upstreams:
                if thorough:
                    looked += await self._publishing.everywhere(tx, upstream, now, has_checks=False)
                else:
                    looked += await self._publishing.mend(tx, upstream, now)
            return looked

        return await self._database.write(unit)
