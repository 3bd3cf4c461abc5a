"""Reads from GitHub how a downstream is set up: the App's installation, the default branch, its workflows.

What GitHub does not return is recorded as unknown, and the effect is done all the same; a new request inspects again. An
unchanged file is not read again, so frequent inspections cost little. Where another repository has taken over a bound
name, only its id is kept.
"""

import asyncio
from collections.abc import Iterable
from dataclasses import replace

import structlog

from crcr.decide.github.repository_setup import (
    BranchFacts,
    Inspection,
    InstallationFacts,
    ListedFile,
    WorkflowFacts,
)
from crcr.decide.github.requests_and_answers import Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.workflow_yaml import workflow_facts
from crcr.errors import OutsideFault, OutsideLimited, OutsideRefused, OutsideUnreachable
from crcr.github.client import GitHubClient
from crcr.ports import Clock
from crcr.record.repositories.inspections import Inspections

log = structlog.get_logger(__name__)

MOST_FILES = 30
MAX_FILE_BYTES = 256 * 1024
MOST_S = 80.0
"""How long one inspection may take."""


class InspectRepository:
    def __init__(self, inspections: Inspections, github: GitHubClient, clock: Clock) -> None:
        self._inspections = inspections
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        downstream = RepoName(effect.lane)
        known = await self._inspections.find(effect.upstream, downstream)
        bound_id = await self._inspections.bound_id(effect.upstream, downstream)
        try:
            async with asyncio.timeout(MOST_S):
                inspection = await self._inspect(downstream, known, bound_id)
        except TimeoutError:
            inspection = Inspection(installed=None, trouble="GitHub answers too slowly")
        if inspection.trouble:
            log.info("inspection_incomplete", downstream=str(downstream), trouble=inspection.trouble)
        await self._inspections.note(effect.upstream, downstream, inspection, self._clock.now())
        return True

    async def _inspect(self, repo: RepoName, known: Inspection | None, bound_id: int | None) -> Inspection:
        try:
            installation = await self._github.repositories.read_installation(repo)
        except OutsideFault as fault:
            return Inspection(installed=None, trouble=_describe(fault))
        if installation is None:
            return Inspection(installed=False)
        inspection = Inspection(installed=True, installation=installation)
        if installation.suspended:
            return inspection
        target = Target(repo, None, installation.installation_id)
        try:
            branch = await self._github.repositories.read_default_branch(target)
        except OutsideFault as fault:
            return replace(inspection, trouble=_describe(fault))
        if bound_id not in (None, branch.repository_id):
            return Inspection(installed=None, other_id=branch.repository_id)
        inspection = replace(inspection, branch=branch)
        # By its id from here on: a name can be taken over at any moment.
        target = replace(target, repository_id=branch.repository_id)
        try:
            return await self._with_workflows(inspection, target, branch, _reusable_facts(known))
        except OutsideFault as fault:
            return replace(inspection, trouble=_describe(fault))

    async def _with_workflows(
        self,
        inspection: Inspection,
        target: Target,
        branch: BranchFacts,
        known_workflows: dict[str, WorkflowFacts],
    ) -> Inspection:
        files = await self._github.workflow_files.list_all(target, branch.default_branch)
        workflows = [
            await self._workflow(target, branch, file, known_workflows) for file in files[:MOST_FILES]
        ]
        states = await self._states(target, inspection.installation)
        return replace(
            inspection,
            workflows=tuple(replace(workflow, state=states.get(workflow.path)) for workflow in workflows),
            files_left=max(len(files) - MOST_FILES, 0),
        )

    async def _workflow(
        self, target: Target, branch: BranchFacts, file: ListedFile, known_workflows: dict[str, WorkflowFacts]
    ) -> WorkflowFacts:
        if file.sha in known_workflows:
            return replace(known_workflows[file.sha], path=file.path)
        if file.size > MAX_FILE_BYTES:
            return WorkflowFacts(path=file.path, sha=file.sha, problem="too large to be read")
        try:
            text = await self._github.workflow_files.read(target, file.path, branch.default_branch)
        except OutsideRefused as refused:
            return WorkflowFacts(path=file.path, sha="", problem=_describe(refused))
        return await asyncio.to_thread(workflow_facts, file.path, file.sha, text)

    async def _states(self, target: Target, installation: InstallationFacts | None) -> dict[str, str]:
        """Return nothing where the App lacks the permission: whether a workflow is disabled is then unknown."""
        if installation is None or not installation.grants("actions", "read"):
            return {}
        try:
            return await self._github.workflow_files.read_states(target)
        except OutsideFault:
            return {}


def _reusable_facts(known: Inspection | None) -> dict[str, WorkflowFacts]:
    """Return the facts that need no new reading; those of earlier releases lack the pinned relays."""
    files: Iterable[WorkflowFacts] = (known.workflows if known else None) or ()
    return {file.sha: file for file in files if file.sha and (file.pinning is not None or file.problem)}


def _describe(fault: OutsideFault) -> str:
    """Describe it for all readers: GitHub's own text may contain what not everybody should see."""
    if isinstance(fault, OutsideLimited):
        return "GitHub lets us ask no more for the moment"
    if isinstance(fault, OutsideUnreachable):
        return "GitHub cannot be reached"
    if isinstance(fault, OutsideRefused):
        return {
            401: "GitHub does not accept the App's key",
            403: "the App may not read it",
            404: "GitHub does not show it to the App",
            422: "the App may not read it",
        }.get(fault.status, f"GitHub answered {fault.status}")
    return "GitHub did not answer"
