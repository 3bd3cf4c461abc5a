"""Opens the pull request of a proposal of levels on the allowlist's repository, once per proposal.

Branch and record are named by the proposal's digest. Every step finds what an earlier attempt left (branch, commit, pull
request) and goes on from there, so that a lost answer, a crash or a second operator at the same time opens nothing twice:
GitHub refuses a second branch of a name, a file that was replaced meanwhile, and a second open pull request of a branch.
Nothing is written when the allowlist on GitHub is not the text that the proposal edits.
"""

from collections.abc import Awaitable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import TypeVar

from crcr.decide.github.repository_setup import missing_permissions
from crcr.decide.github.requests_and_answers import FileLocation, FileVersion, Target
from crcr.decide.levels.proposal import LevelProposal
from crcr.decide.model import RepoName
from crcr.errors import FileNotText, OutsideFault, OutsideRefused
from crcr.github.client import GitHubClient
from crcr.record.levels.evaluations import Levels

T = TypeVar("T")

PERMISSIONS = {"contents": "write", "pull_requests": "write"}
_NO_PERMISSION = frozenset({403, 404})
_ALREADY_THERE = frozenset({409, 422})
"""GitHub's answers to a step that somebody else has just done."""
_AGAIN = "run the command again: what is there already is found"


class ProposalState(StrEnum):
    OPENED = "opened"
    FOUND = "found"
    """It was opened before."""
    NOT_OPENED = "not_opened"


@dataclass(frozen=True, slots=True)
class ProposalOutcome:
    state: ProposalState
    url: str | None = None
    reason: str | None = None
    """Why it was not opened."""
    hint: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ProposalRequest:
    upstream: RepoName
    file: FileLocation
    web_url: str
    """GitHub's web address, for the address of the pull request."""
    base_text: str
    """The allowlist that the proposal edits."""
    proposal: LevelProposal
    who: str


class _NotOpened(Exception):
    def __init__(self, reason: str, hint: str | None = None) -> None:
        super().__init__(reason)
        self.outcome = ProposalOutcome(ProposalState.NOT_OPENED, reason=reason, hint=hint)


class ProposalOpener:
    def __init__(self, levels: Levels, github: GitHubClient) -> None:
        self._levels = levels
        self._github = github

    async def open(self, request: ProposalRequest, now: datetime) -> ProposalOutcome:
        digest, file = request.proposal.digest, request.file
        known = await self._levels.find_proposal(request.upstream, digest)
        if known is not None:
            return ProposalOutcome(ProposalState.FOUND, known)
        try:
            state, number = await self._find_or_open(request)
        except _NotOpened as failure:
            return failure.outcome
        except OutsideFault as fault:
            again = None if isinstance(fault, OutsideRefused) else _AGAIN
            return ProposalOutcome(ProposalState.NOT_OPENED, reason=fault.detail, hint=fault.hint or again)
        url = f"{request.web_url}/{file.repository}/pull/{number}"
        await self._levels.record_proposal(request.upstream, digest, url, who=request.who, now=now)
        return ProposalOutcome(state, url)

    async def _find_or_open(self, request: ProposalRequest) -> tuple[ProposalState, int]:
        file, branch = request.file, request.proposal.branch
        where = await self._find_target(file.repository)
        number = await self._github.pull_requests.find_from_branch(where, branch, file.ref)
        if number is not None:
            return ProposalState.FOUND, number
        if request.proposal.text == request.base_text:
            raise _NotOpened("the allowlist cannot be edited automatically", "move the entries by hand")
        await self._prepare_branch(request, where)
        try:
            return ProposalState.OPENED, await _permitted(self._create_pull(request, where), file.repository)
        except OutsideRefused as refusal:
            number = await self._github.pull_requests.find_from_branch(where, branch, file.ref)
            if refusal.status not in _ALREADY_THERE or number is None:
                raise
            return ProposalState.FOUND, number

    async def _find_target(self, repo: RepoName) -> Target:
        installation = await self._github.repositories.read_installation(repo)
        if installation is None or installation.suspended:
            state = "not installed" if installation is None else "suspended"
            raise _NotOpened(f"the App is {state} on {repo}", _needs(repo))
        missing = missing_permissions(installation.permissions, PERMISSIONS)
        if missing:
            raise _NotOpened(f"the App lacks {' and '.join(missing)} on {repo}", _needs(repo))
        return Target(repo, None, installation.installation_id)

    async def _prepare_branch(self, request: ProposalRequest, where: Target) -> None:
        """Have the branch with the proposed text: made now, or as an earlier attempt left it."""
        base_sha, base = await self._read_base(request, where)
        created = await self._create_branch(request, where, base_sha)
        present = base if created else await self._read_branch(request, where)
        if present.text == request.base_text:
            present = await self._write_text(request, where, present)
        if present.text != request.proposal.text:
            raise _NotOpened(
                f"the branch {request.proposal.branch} of {where.repository} has another {request.file.path}",
                "somebody changed it: open a pull request from it by hand, or delete it and run the command again",
            )

    async def _read_base(self, request: ProposalRequest, where: Target) -> tuple[str, FileVersion]:
        """Return the commit of the allowlist's branch and its file, which must be the text that the proposal edits."""
        file = request.file
        sha = await self._github.branches.read_sha(where, file.ref)
        if sha is None:
            raise _NotOpened(f"{file.repository} has no branch {file.ref}: pull requests need one")
        present = await self._read_file_or_none(where, file.path, sha)
        if present is None or present.text != request.base_text:
            raise _NotOpened(
                f"{file.path} of {file.repository} changed since the relay read it: nothing was opened",
                "`crcr allowlist refresh` reads it now; then propose again",
            )
        return sha, present

    async def _read_file_or_none(self, where: Target, path: str, sha: str) -> FileVersion | None:
        try:
            return await self._github.branches.read_file(where, path, sha)
        except FileNotText:
            return None
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            return None

    async def _create_branch(self, request: ProposalRequest, where: Target, base_sha: str) -> bool:
        """Create the branch; False where it exists."""
        branch, api = request.proposal.branch, self._github.branches
        if await api.read_sha(where, branch) is not None:
            return False
        try:
            await _permitted(api.create(where, branch, base_sha), where.repository)
        except OutsideRefused as refusal:
            if refusal.status not in _ALREADY_THERE or await api.read_sha(where, branch) is None:
                raise
            return False
        return True

    async def _write_text(self, request: ProposalRequest, where: Target, present: FileVersion) -> FileVersion:
        proposal = request.proposal
        writing = self._github.branches.write_file(
            where,
            request.file.path,
            proposal.text,
            branch=proposal.branch,
            replaces=present.sha,
            message=proposal.title,
        )
        try:
            await _permitted(writing, where.repository)
        except OutsideRefused as refusal:
            now_there = await self._read_branch(request, where)
            if refusal.status not in _ALREADY_THERE or now_there.text == request.base_text:
                raise
            return now_there
        return FileVersion(proposal.text, "")

    async def _read_branch(self, request: ProposalRequest, where: Target) -> FileVersion:
        return await self._github.branches.read_file(where, request.file.path, request.proposal.branch)

    async def _create_pull(self, request: ProposalRequest, where: Target) -> int:
        proposal = request.proposal
        return await self._github.pull_requests.create(
            where, head=proposal.branch, base=request.file.ref, title=proposal.title, body=proposal.body
        )


async def _permitted(call: Awaitable[T], repo: RepoName) -> T:
    """Explain a refused write: the installation has the permissions, so a rule of the repository forbids it."""
    try:
        return await call
    except OutsideRefused as refusal:
        if refusal.status not in _NO_PERMISSION:
            raise
        raise _NotOpened(refusal.detail, _needs(repo)) from None


def _needs(repo: RepoName) -> str:
    return (
        f"--open needs the App on {repo} with Contents: write and Pull requests: write, and no rule there that forbids"
        " it to create branches; without them, apply the patch by hand"
    )
