"""Reads facts of the upstream from GitHub: whether it has a commit that a downstream tested on its own, and whether the issue
of a known failure is still open.

A commit: without a response there is no verdict; an outage, a limit or a missing permission leaves it unchecked. That GitHub
does not know a commit counts only after the same token has read the upstream's branches.

An issue: the token is that of the App's installation on the upstream, for the issue's repository alone. Where GitHub refuses it
(the installation does not include the repository, or may not read issues) the issue counts as open, and the link ends by its time.
"""

import structlog

from crcr.decide.failures.known import IssueReference
from crcr.decide.github.commit_origin import (
    ELSEWHERE,
    RELEASE_BRANCHES,
    UNKNOWN,
    CommitPlace,
    CommitStanding,
    branches_to_ask,
)
from crcr.decide.github.requests_and_answers import Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import OutsideRefused
from crcr.github.client import CommitsApi, IssuesApi, RepositoriesApi
from crcr.ports import Clock
from crcr.record.failures.known_failures import KnownFailures
from crcr.record.jobs.tested_commits import ReportedCommits
from crcr.record.repositories.downstreams import Downstreams

log = structlog.get_logger(__name__)


class UpstreamTargets:
    """An upstream as the target of calls: its repository, and the App's installation on it."""

    def __init__(self, targets: Downstreams, repositories: RepositoriesApi) -> None:
        self._targets = targets
        self._repositories = repositories

    async def target(self, upstream: RepoName) -> Target:
        name, repository_id, installation_id = await self._targets.read_upstream(upstream)
        if installation_id is None:
            installation_id = await self._repositories.find_installation(name)
        return Target(name, repository_id, installation_id)


class BackendTargets:
    """A backend as the target of calls: its repository under its present name, and the App's installation on it."""

    def __init__(self, targets: Downstreams, repositories: RepositoriesApi) -> None:
        self._targets = targets
        self._repositories = repositories

    async def target(self, upstream: RepoName, backend: RepoName) -> Target:
        found = await self._targets.read_downstream(upstream, backend)
        name = RepoName(found.name) if found else backend
        installation_id = found.installation_id if found else None
        if installation_id is None:
            installation_id = await self._repositories.find_installation(name)
        bound = found.binding.repository_id if found and found.binding else None
        return Target(name, bound, installation_id)


class VerifyCommit:
    def __init__(
        self, tested_commits: ReportedCommits, upstreams: UpstreamTargets, commits: CommitsApi, clock: Clock
    ) -> None:
        self._tested_commits = tested_commits
        self._upstreams = upstreams
        self._commits = commits
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        sha = (effect.payload or b"").decode()
        if not await self._tested_commits.is_open(effect.upstream, sha):
            return False
        place = await self._find_place(await self._upstreams.target(effect.upstream), sha)
        await self._tested_commits.settle(effect.upstream, sha, place, self._clock.now())
        return True

    async def _find_place(self, target: Target, sha: str) -> CommitPlace:
        default = await self._commits.read_default_branch(target)
        if await self._commits.is_on_branch(target, default, sha):
            return CommitPlace(CommitStanding.BASE, default)
        if not await self._commits.exists(target, sha):
            return UNKNOWN
        releases = await self._commits.list_branches(target, RELEASE_BRANCHES)
        for branch in branches_to_ask(default, releases)[1:]:
            if await self._commits.is_on_branch(target, branch, sha):
                return CommitPlace(CommitStanding.BASE, branch)
        return ELSEWHERE


class ReadIssue:
    def __init__(
        self, known: KnownFailures, upstreams: UpstreamTargets, issues: IssuesApi, clock: Clock
    ) -> None:
        self._known = known
        self._upstreams = upstreams
        self._issues = issues
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        url = (effect.payload or b"").decode()
        issue = await self._known.find_linked(effect.upstream, url, self._clock.now())
        if issue is None:
            return False
        try:
            closed = await self._issues.is_closed(await self._target(effect.upstream, issue), issue.number)
        except OutsideRefused as refusal:
            log.info("issue_unreadable", issue=url, status=refusal.status)
            return False
        if closed:
            await self._known.close_issue(issue, self._clock.now())
        return True

    async def _target(self, upstream: RepoName, issue: IssueReference) -> Target:
        target = await self._upstreams.target(upstream)
        if issue.repository == target.repository:
            return target
        return Target(issue.repository, None, target.installation_id)
