"""Reads a pull request that an upstream's pull request depends on, with what decides whether it counts.

Where the App is not installed on its repository, the token of the upstream's installation reads it, as it can read anything
public. A refusal of GitHub's (no such pull request, a private repository) is an answer; an outage is not.
"""

import json

import structlog

from crcr.decide.github.requests_and_answers import Role, Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.decide.pairs.depends_on import PullReference, find_cycle, find_dependencies
from crcr.decide.pairs.pair import LinkedPull, approvers, judge_dependency
from crcr.deliver.handlers.upstream_facts import UpstreamTargets
from crcr.errors import OutsideRefused
from crcr.github.client import GitHubClient
from crcr.ports import Clock
from crcr.record.pairs.pairs import DependencyQuestion, Pairs

log = structlog.get_logger(__name__)

_MOST_ROLES = 5
_MOST_FOLLOWED = 5
"""Further pull requests that are read to find a cycle."""


class ReadDependencies:
    def __init__(
        self, pairs: Pairs, upstreams: UpstreamTargets, github: GitHubClient, clock: Clock, *, github_url: str
    ) -> None:
        """`github_url` is GitHub's web address, which links to pull requests begin with."""
        self._pairs = pairs
        self._upstreams = upstreams
        self._github = github
        self._clock = clock
        self._github_url = github_url

    async def __call__(self, effect: ClaimedEffect) -> bool:
        asked = json.loads(effect.payload or b"{}")
        question = await self._pairs.find_question(effect.upstream, asked)
        if question is None:
            # Nothing to ask GitHub: it is refused without an answer, or no longer wanted.
            await self._pairs.advance(effect.upstream, int(asked["number"]), self._clock.now())
            return False
        reference = question.reference
        through = await self._choose_target(effect.upstream, reference.repository, question.target)
        pull = await self._read(through, reference)
        if pull is not None and question.repository_id not in {None, pull.repository_id}:
            pull = None  # of a repository that has the backend's name, and is not the backend
        in_cycle = pull is not None and await self._is_in_cycle(question, pull)
        approved_by = None
        if pull is not None and pull.is_open and not pull.is_own_head and not in_cycle:
            approved_by = await self._find_approver(through, reference, pull)
        read = judge_dependency(pull, approved_by=approved_by, in_cycle=in_cycle)
        await self._pairs.settle(question, read, self._clock.now())
        return True

    async def _choose_target(self, upstream: RepoName, repository: RepoName, known: Target | None) -> Target:
        """The repository itself where the App is installed there, else the upstream."""
        if known is not None:
            return known
        try:
            installation_id = await self._github.repositories.find_installation(repository)
        except OutsideRefused as refusal:
            if refusal.status != 404:
                raise
            return await self._upstreams.target(upstream)
        return Target(repository, None, installation_id)

    async def _read(self, through: Target, reference: PullReference) -> LinkedPull | None:
        try:
            return await self._github.pull_requests.read_linked(
                through, reference.repository, reference.number
            )
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            log.info("dependency_unreadable", repository=str(reference.repository), status=refusal.status)
            return None

    async def _find_approver(self, through: Target, reference: PullReference, pull: LinkedPull) -> str | None:
        """The first person with write access whose review approves the present head."""
        repository = reference.repository
        try:
            reviews = await self._github.pull_requests.list_reviews(through, repository, reference.number)
            for who in approvers(pull, reviews)[:_MOST_ROLES]:
                if await self._github.comments.read_role(through, who, repository) >= Role.WRITE:
                    return who
        except OutsideRefused as refusal:
            if refusal.status == 401:
                raise
            log.info("reviews_unreadable", repository=str(repository), status=refusal.status)
        return None

    async def _is_in_cycle(self, question: DependencyQuestion, pull: LinkedPull) -> bool:
        """Whether the dependencies of the dependency, as far as they are followed, lead back to where they came from."""
        start = PullReference(question.upstream, question.number)
        known = {
            start.key: (question.reference,),
            question.reference.key: find_dependencies(pull.body, self._github_url),
        }
        left = _MOST_FOLLOWED
        unread = list(known[question.reference.key])
        while unread and not find_cycle(start, known):
            following = unread.pop(0)
            if following.key in known:
                continue
            if following.repository == question.upstream:
                known[following.key] = await self._pairs.read_dependencies(
                    question.upstream, following.number
                )
            elif following.repository.key in question.listed and left:
                left -= 1
                known[following.key] = await self._read_references(question.upstream, following)
            unread += known.get(following.key, ())
        return bool(find_cycle(start, known))

    async def _read_references(
        self, upstream: RepoName, reference: PullReference
    ) -> tuple[PullReference, ...]:
        known = await self._pairs.find_target(upstream, reference.repository)
        through = await self._choose_target(upstream, reference.repository, known)
        pull = await self._read(through, reference)
        return find_dependencies(pull.body, self._github_url) if pull else ()
