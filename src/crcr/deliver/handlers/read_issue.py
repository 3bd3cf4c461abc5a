"""Reads whether the issue of a known failure is still open; a closed one ends the link.

The token is that of the App's installation on the upstream, for the issue's repository alone. Where GitHub refuses it (the
installation does not include the repository, or may not read issues) the issue counts as open, and the link ends by its time.
"""

import structlog

from crcr.decide.failures.known import IssueReference
from crcr.decide.github.requests_and_answers import Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.upstream_target import UpstreamTargets
from crcr.errors import OutsideRefused
from crcr.github.client import IssuesApi
from crcr.ports import Clock
from crcr.record.failures.known_failures import KnownFailures

log = structlog.get_logger(__name__)


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
