"""Asks GitHub what a commit changes, before the commit is dispatched.

`AskFiles` serves allowlist entries with `paths`. `ReadGroup` serves merge groups: their pull requests, their files, and
whether a head that has passed has the same content. Without a response no backend is skipped, and no result is reused.
"""

from datetime import datetime, timedelta

import structlog

from crcr.decide.dispatch.plan import GroupToRead, pulls_in_group, queued_pull_number
from crcr.decide.github.requests_and_answers import ChangedFiles, ChangedFilesQuery, Comparison, Target
from crcr.decide.model import RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.upstream_facts import UpstreamTargets
from crcr.errors import OutsideFault, OutsideRefused
from crcr.github.client import CommitsApi, GitHubClient
from crcr.ports import Clock
from crcr.record.deliveries.merge_group_contents import MergeGroups
from crcr.record.deliveries.path_filters import PathFilters

log = structlog.get_logger(__name__)

_PATIENCE = timedelta(minutes=30)
_MOST_COMMITS = 50
"""The pull requests of a larger group stay unknown: that would take a call per commit."""


def _is_final(fault: OutsideFault, effect: ClaimedEffect, now: datetime) -> bool:
    """Whether to go on without a response: after a refusal at once, after an outage when it has lasted long enough."""
    if isinstance(fault, OutsideRefused):
        return fault.status != 401
    return now - effect.first_attempt_at >= _PATIENCE


class AskFiles:
    def __init__(
        self, questions: PathFilters, upstreams: UpstreamTargets, github: GitHubClient, clock: Clock
    ) -> None:
        self._questions = questions
        self._upstreams = upstreams
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        delivery = effect.delivery or ""
        question = await self._questions.open(effect.upstream, delivery)
        if question is None:
            return False
        files = await self._files(effect, question)
        await self._questions.settle(effect.upstream, delivery, question.number, files, self._clock.now())
        return True

    async def _files(self, effect: ClaimedEffect, question: ChangedFilesQuery) -> ChangedFiles | None:
        try:
            return await self._compared(await self._upstreams.target(effect.upstream), question)
        except OutsideFault as fault:
            if not _is_final(fault, effect, self._clock.now()):
                raise
            number = question.number
            log.warning("files_not_told", upstream=str(effect.upstream), number=number, error=str(fault))
            return None

    async def _compared(self, target: Target, question: ChangedFilesQuery) -> ChangedFiles | None:
        """Return what the query's head changes against its base and against the default branch.

        A comparison, not the pull request's list of files, which GitHub returns as of now: its author may have moved it
        to another head or base for just that moment. And a stacked pull request can be retargeted while the relay is
        down; GitHub then shows the gate that it earned on the stack. What is below it in the stack must have affected
        the same backends before.
        """
        paths: list[str] = []
        complete, of_base = True, None
        for branch in question.branches:
            if branch is None:
                return None
            compared = await self._github.commits.compare(target, branch, question.head_sha)
            files = compared.files
            if branch == question.base_ref:
                of_base = compared
            if not files.complete and branch == question.base_ref:
                files = await self._with_pull_files(target, question, files)
            paths += files.paths
            complete = complete and files.complete
        return ChangedFiles(
            tuple(paths),
            complete=complete,
            merge_base=of_base.merge_base if of_base else None,
            commits=of_base.commits if of_base else (),
        )

    async def _with_pull_files(
        self, target: Target, question: ChangedFilesQuery, compared: ChangedFiles
    ) -> ChangedFiles:
        """GitHub lists more files of a pull request than of a comparison; they count if it has not moved."""
        listed = await self._github.pull_requests.list_files(target, question.number)
        known = listed.complete and await self._is_unmoved(target, question)
        return ChangedFiles((*compared.paths, *listed.paths), complete=known)

    async def _is_unmoved(self, target: Target, question: ChangedFilesQuery) -> bool:
        facts = await self._github.pull_requests.read(
            target.repository, question.number, target.installation_id
        )
        return (facts.head_sha, facts.base_ref) == (question.head_sha, question.base_ref)


class ReadGroup:
    def __init__(
        self, groups: MergeGroups, upstreams: UpstreamTargets, commits: CommitsApi, clock: Clock
    ) -> None:
        self._groups = groups
        self._upstreams = upstreams
        self._commits = commits
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        upstream = effect.upstream
        group = await self._groups.to_read(upstream, (effect.payload or b"").decode())
        if group is None:
            return False
        try:
            target = await self._upstreams.target(upstream)
            compared, numbers = await self._content(upstream, target, group)
            named = queued_pull_number(group.head_ref)
            candidates = numbers or ((named,) if named is not None else ())
            reused_from = await self._same_content(upstream, target, group, candidates)
        except OutsideFault as fault:
            if not _is_final(fault, effect, self._clock.now()):
                raise
            log.warning("group_not_told", upstream=str(upstream), head=group.head_sha, error=str(fault))
            compared, numbers, reused_from = None, (), None
        await self._groups.settle(
            upstream,
            group,
            numbers=numbers,
            reused_from=reused_from,
            files=compared.files if compared else None,
            now=self._clock.now(),
        )
        return True

    async def _content(
        self, upstream: RepoName, target: Target, group: GroupToRead
    ) -> tuple[Comparison, tuple[int, ...]]:
        """Return what the group adds to its base, and the pull requests in it; none while they are unknown.

        Only queued pull requests count: anybody can put a waived pull request's commits on a branch of their own.
        """
        compared = await self._commits.compare(target, group.base_sha, group.head_sha)
        if not compared.complete or len(compared.commits) > _MOST_COMMITS:
            return compared, ()
        queued = await self._groups.queued(upstream)
        brought: list[frozenset[int]] = []
        for sha in compared.commits:
            if sha == group.head_sha:
                continue  # the queue's own
            pulls = {queued[sha]} if sha in queued else await self._commits.list_open_pulls(target, sha)
            brought.append(frozenset(pulls).intersection(queued.values()))
        return compared, pulls_in_group(queued_pull_number(group.head_ref), brought)

    async def _same_content(
        self, upstream: RepoName, target: Target, group: GroupToRead, numbers: tuple[int, ...]
    ) -> str | None:
        """Return the head of a pull request that has passed and has the same tree as the group."""
        heads = await self._groups.passed_heads(upstream, group, numbers, self._clock.now())
        if not heads:
            return None
        tree = await self._commits.read_tree_sha(target, group.head_sha)
        for head in heads:
            if await self._commits.read_tree_sha(target, head) == tree:
                return head
        return None
