"""Asks GitHub whether a commit that a downstream tested on its own belongs to the upstream.

Without a response there is no verdict: an outage, a limit or a missing permission leaves the commit unchecked. That GitHub
does not know a commit counts only after the same token has read the upstream's branches.
"""

from crcr.decide.github.commit_origin import (
    ELSEWHERE,
    RELEASE_BRANCHES,
    UNKNOWN,
    CommitPlace,
    CommitStanding,
    branches_to_ask,
)
from crcr.decide.github.requests_and_answers import Target
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.upstream_target import UpstreamTargets
from crcr.github.client import CommitsApi
from crcr.ports import Clock
from crcr.record.jobs.tested_commits import ReportedCommits


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
