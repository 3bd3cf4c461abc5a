"""Asking how a repository is set up, and how the App is: the port `Setup`, and what the doctor asks of the App."""

from crcr.decide.github.inspection import AppFacts, BranchFacts, HookFacts, InstallationFacts, ListedFile
from crcr.decide.github.values import Target
from crcr.decide.model import RepoName
from crcr.errors import OutsideRefused
from crcr.github.api import core, setup
from crcr.github.http.requests import Line


class SetupCalls(Line):
    async def read_installation(self, repo: RepoName) -> InstallationFacts | None:
        """None where the App is not installed."""
        try:
            return setup.installation(await self._as_app(core.find_installation(repo)))
        except OutsideRefused as refused:
            if refused.status != 404:
                raise
            return None

    async def read_branch(self, where: Target) -> BranchFacts:
        request = setup.read_branch(where.repository)
        return setup.branch(await self._at(where, request, core.METADATA_READ))

    async def workflow_files(self, where: Target, ref: str) -> tuple[ListedFile, ...]:
        """None of them where there is no such folder."""
        request = setup.workflow_files(where.repository, ref)
        try:
            return setup.files(await self._at(where, request, core.CONTENTS_READ))
        except OutsideRefused as refused:
            if refused.status != 404:
                raise
            return ()

    async def workflow_text(self, where: Target, path: str, ref: str) -> str:
        request = setup.workflow_file(where.repository, path, ref)
        return setup.text(await self._at(where, request, core.CONTENTS_READ))

    async def workflow_states(self, where: Target) -> dict[str, str]:
        """GitHub's word for each workflow, by its path."""
        request = setup.workflow_states(where.repository)
        return setup.states(await self._at(where, request, core.ACTIONS_READ))

    async def read_app(self) -> AppFacts:
        return setup.app(await self._as_app(setup.read_app()))

    async def read_hook(self) -> HookFacts:
        return setup.hook(await self._as_app(setup.read_hook()))
