"""The calls about a repository's history, on the same `Line` as the others."""

from crcr.decide.github.values import Target
from crcr.errors import OutsideRefused
from crcr.github.api import commits, core
from crcr.github.api.core import Request, Response
from crcr.github.http.requests import Line

_NOT_THERE = frozenset({404, 422})


class HistoryCalls(Line):
    """The port `History`. All with one and the same right, so that a lacking one is noticed at the first call."""

    async def default_branch(self, where: Target) -> str:
        request = commits.repository(where.repository)
        return commits.default_branch(await self._at(where, request, core.CONTENTS_READ))

    async def branches(self, where: Target, prefix: str) -> tuple[str, ...]:
        request = commits.matching_branches(where.repository, prefix)
        return commits.branches(await self._at(where, request, core.CONTENTS_READ), prefix)

    async def knows_commit(self, where: Target, sha: str) -> bool:
        return await self._found(where, commits.commit(where.repository, sha)) is not None

    async def has_behind(self, where: Target, branch: str, sha: str) -> bool:
        found = await self._found(where, commits.ancestry(where.repository, branch, sha))
        return found is not None and commits.is_ancestor(found)

    async def _found(self, where: Target, request: Request) -> Response | None:
        try:
            return await self._at(where, request, core.CONTENTS_READ)
        except OutsideRefused as refused:
            if refused.status not in _NOT_THERE:
                raise
            return None
