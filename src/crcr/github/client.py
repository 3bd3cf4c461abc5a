"""Asks GitHub: one call per dispatch once token and installation are known.

Each call is what `api.py` and its neighbours describe, sent over the `Line` with a token for no more than that; the
calls beside dispatching stand by subject in `calls.py`.
"""

from crcr.decide.github.values import FileLocation, FileText, PullFacts, RepositoryFacts, Target
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused
from crcr.github.api import core
from crcr.github.auth.installation_tokens import Scope
from crcr.github.calls import ActionsCalls, ChangeCalls, CheckCalls, LogCalls, PeopleCalls
from crcr.github.calls_history import HistoryCalls
from crcr.github.calls_setup import SetupCalls

_KNOWN_INSTALLATIONS = 1000


class GitHubClient(CheckCalls, ChangeCalls, PeopleCalls, ActionsCalls, LogCalls, SetupCalls, HistoryCalls):
    """The ports to GitHub over HTTP. The caller owns `http` and closes it."""

    async def find_installation(self, repo: RepoName) -> int:
        """Ask GitHub anew; `read_file` goes by the last answer."""
        try:
            found = core.installation_id(await self._as_app(core.find_installation(repo)))
        except OutsideRefused as refused:
            self._installations.pop(repo, None)
            if refused.status != 404:
                raise
            raise OutsideRefused(f"The App is not installed on {repo}.", status=404) from None
        self._installations[repo] = found
        if len(self._installations) > _KNOWN_INSTALLATIONS:
            self._installations.popitem(last=False)
        return found

    async def read_repository(self, repo: RepoName, installation_id: int) -> RepositoryFacts:
        scope = Scope(installation_id, None, core.METADATA_READ)
        return core.repository_facts(await self._in_scope(core.read_repository(repo), scope))

    async def dispatch(self, target: Target, body: bytes) -> None:
        await self._at(target, core.dispatch(target.repository, body), core.CONTENTS_WRITE)

    async def read_pull(self, repo: RepoName, number: int, installation_id: int) -> PullFacts:
        scope = Scope(installation_id, None, core.PULLS_READ)
        return core.pull_facts(await self._in_scope(core.read_pull(repo, number), scope))

    async def read_file(self, place: FileLocation, *, etag: str | None) -> FileText | None:
        request = core.read_file(place, etag)
        repo = place.repository
        installation_id = self._installations.get(repo) or await self.find_installation(repo)
        scope = Scope(installation_id, None, core.CONTENTS_READ)
        try:
            return core.file_text(await self._in_scope(request, scope))
        except OutsideRefused:
            # The App may have been installed anew, under another id.
            self._installations.pop(repo, None)
            raise
