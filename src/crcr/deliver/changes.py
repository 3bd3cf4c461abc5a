"""Questions about what a commit changes, asked before anybody is told of it.

`AskFiles` is for entries with `paths`, `ReadGroup` for merge groups: their pull requests, their files, and
whether a head that has passed is the very same content. No answer never leaves anybody out, and reuses nothing.
"""

from datetime import datetime, timedelta
from typing import Protocol

import structlog

from crcr.decide.effects import ClaimedEffect
from crcr.decide.merge_group import GroupToRead, pull_of
from crcr.decide.model import RepoName
from crcr.decide.outside import ChangedFiles, Comparison, FilesQuestion, Target
from crcr.deliver.upstream_target import Upstreams
from crcr.errors import OutsideFault, OutsideRefused
from crcr.ports import Changes, Clock

log = structlog.get_logger(__name__)

_PATIENCE = timedelta(minutes=30)
_MOST_COMMITS = 50
"""Of a larger group only the pull request that its branch is named after counts: nobody asks for thousands."""


class Questions(Protocol):
    async def open(self, upstream: RepoName, delivery: str) -> FilesQuestion | None: ...
    async def settle(
        self, upstream: RepoName, delivery: str, number: int, files: ChangedFiles | None, now: datetime
    ) -> None: ...


def _no_answer(fault: OutsideFault, effect: ClaimedEffect, now: datetime) -> bool:
    """Whether this is as good as no answer: a refusal at once, an outage when it has lasted for long enough."""
    if isinstance(fault, OutsideRefused):
        return fault.status != 401
    return now - effect.first_attempt_at >= _PATIENCE


class AskFiles:
    def __init__(self, questions: Questions, upstreams: Upstreams, github: Changes, clock: Clock) -> None:
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

    async def _files(self, effect: ClaimedEffect, question: FilesQuestion) -> ChangedFiles | None:
        number = question.number
        try:
            where = await self._upstreams.target(effect.upstream)
            files = await self._github.pull_files(where, number)
            return await self._with_default(where, question, files) if question.is_stacked else files
        except OutsideFault as fault:
            if not _no_answer(fault, effect, self._clock.now()):
                raise
            log.warning("files_not_told", upstream=str(effect.upstream), number=number, error=str(fault))
            return None

    async def _with_default(
        self, where: Target, question: FilesQuestion, files: ChangedFiles
    ) -> ChangedFiles | None:
        """Add what the head changes against the default branch.

        A stacked pull request can be retargeted while the relay is down; GitHub then shows the gate that it earned on
        the stack. What is below it in the stack must have concerned the same backends before.
        """
        if question.default_branch is None:
            return None
        compared = await self._github.compare(where, question.default_branch, question.head_sha)
        more = compared.files
        return ChangedFiles((*files.paths, *more.paths), complete=files.complete and more.complete)


class Groups(Protocol):
    async def to_read(self, upstream: RepoName, head_sha: str) -> GroupToRead | None: ...
    async def queued(self, upstream: RepoName) -> frozenset[int]: ...
    async def passed_heads(
        self, upstream: RepoName, group: GroupToRead, numbers: tuple[int, ...], now: datetime
    ) -> tuple[str, ...]: ...
    async def settle(
        self,
        upstream: RepoName,
        group: GroupToRead,
        *,
        numbers: tuple[int, ...],
        reused_from: str | None,
        files: ChangedFiles | None,
        now: datetime,
    ) -> None: ...


class ReadGroup:
    def __init__(self, groups: Groups, upstreams: Upstreams, github: Changes, clock: Clock) -> None:
        self._groups = groups
        self._upstreams = upstreams
        self._github = github
        self._clock = clock

    async def __call__(self, effect: ClaimedEffect) -> bool:
        upstream = effect.upstream
        group = await self._groups.to_read(upstream, (effect.payload or b"").decode())
        if group is None:
            return False
        try:
            where = await self._upstreams.target(upstream)
            compared, numbers = await self._content(upstream, where, group)
            reused_from = await self._same_content(upstream, where, group, numbers)
        except OutsideFault as fault:
            if not _no_answer(fault, effect, self._clock.now()):
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
        self, upstream: RepoName, where: Target, group: GroupToRead
    ) -> tuple[Comparison, tuple[int, ...]]:
        """What the group adds to its base, and whose pull requests that is.

        Of those whose commits it holds only the queued ones: anybody can put a waived pull request's commits
        on a branch of their own.
        """
        compared = await self._github.compare(where, group.base_sha, group.head_sha)
        named = pull_of(group.head_ref)
        numbers = set() if named is None else {named}
        queued = await self._groups.queued(upstream)
        if compared.complete and len(compared.commits) <= _MOST_COMMITS:
            for sha in compared.commits:
                numbers.update(queued.intersection(await self._github.commit_pulls(where, sha)))
        return compared, tuple(sorted(numbers))

    async def _same_content(
        self, upstream: RepoName, where: Target, group: GroupToRead, numbers: tuple[int, ...]
    ) -> str | None:
        """The head of one of the pull requests that has passed and has the group's tree."""
        heads = await self._groups.passed_heads(upstream, group, numbers, self._clock.now())
        if not heads:
            return None
        tree = await self._github.commit_tree(where, group.head_sha)
        for head in heads:
            if await self._github.commit_tree(where, head) == tree:
                return head
        return None
