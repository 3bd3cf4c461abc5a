"""Where the upstream is asked: its repository and the App's installation on it, found once and remembered."""

from typing import Protocol

from crcr.decide.github.values import Target
from crcr.decide.model import RepoName
from crcr.github.client import RepositoriesApi


class Places(Protocol):
    async def place(self, upstream: RepoName) -> tuple[RepoName, int | None, int | None]:
        """The upstream's written name, its repository id and its installation id, as far as they are known."""
        ...


class UpstreamTargets:
    def __init__(self, places: Places, repositories: RepositoriesApi) -> None:
        self._places = places
        self._repositories = repositories

    async def target(self, upstream: RepoName) -> Target:
        name, repository_id, installation_id = await self._places.place(upstream)
        if installation_id is None:
            installation_id = await self._repositories.find_installation(name)
        return Target(name, repository_id, installation_id)
