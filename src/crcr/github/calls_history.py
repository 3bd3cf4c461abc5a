"""The calls about a repository's history, on the same `Line` as the others."""

from crcr.decide.github.values import Target
from crcr.errors import OutsideRefused
from crcr.github import api, api_history
from crcr.github.api import Request, Response
from crcr.github.line import Line

_NOT_THERE = frozenset({404, 422})


class HistoryCalls(Line):
    """The port `History`. All with one and the same right, so that a lacking one is noticed at the first call."""

    async def default_branch(self, where: Target) -> str:
        request = api_history.repository(where.repository)
        return api_history.default_branch(await self._at(where, request, api.CONTENTS_READ))

    async def branches(self, where: Target, prefix: str) -> tuple[str, ...]:
        request = api_history.matching_branches(where.repository, prefix)
        return api_history.branches(await self._at(where, request, api.CONTENTS_READ), prefix)

    async def knows_commit(self, where: Target, sha: str) -> bool:
        return await self._found(where, api_history.commit(where.repository, sha)) is not None

    async def has_behind(self, where: Target, branch: str, sha: str) -> bool:
        found = await self._found(where, api_history.ancestry(where.repository, branch, sha))
        return found is not None and api_history.is_ancestor(found)

    async def _found(self, where: Target, request: Request) -> Response | None:
        try:
            return await self._at(where, request, api.CONTENTS_READ)
        except OutsideRefused as refused:
            if refused.status not in _NOT_THERE:
                raise
            return None
