"""An upstream as the target of calls: its repository, and the App's installation on it."""

from crcr.decide.github.requests_and_answers import Target
from crcr.decide.model import RepoName
from crcr.github.client import RepositoriesApi
from crcr.record.repositories.downstreams import Downstreams


class UpstreamTargets:
    def __init__(self, targets: Downstreams, repositories: RepositoriesApi) -> None:
        self._targets = targets
        self._repositories = repositories

    async def target(self, upstream: RepoName) -> Target:
        name, repository_id, installation_id = await self._targets.read_upstream(upstream)
        if installation_id is None:
            installation_id = await self._repositories.find_installation(name)
        return Target(name, repository_id, installation_id)
