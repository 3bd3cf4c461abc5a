"""Actions of people on the demo's upstream: open, push, label, draft, merge, re-run, comment.

A pull request joins the merge queue when its required checks have passed; one that the queue rejects waits for another
push. All choices come from the given random generator.
"""

import random
from collections.abc import Awaitable, Callable, Sequence

from crcr.demo.opening_failures import Failures
from crcr.demo.world import (
    AUTHORS,
    COMPILER_FILE,
    GATE,
    GATING,
    MAINTAINERS,
    NPU_LABEL,
    ONCALL,
    OUTSIDERS,
    CommandLimits,
)
from github_sim.ci.autoplay import WorkflowAutoplay
from github_sim.github import GitHub
from github_sim.world.merge_rules import PASSING
from github_sim.world.records import CheckRun, PullRequest

MOST_OPEN = 14
MOST_QUEUED = 5
"""As many merge groups as GitHub builds at a time by default."""
BREAKING_SHARE = 0.12
CLASHING_SHARE = 0.06
DRAFT_SHARE = 0.12
_AREAS = (
    "autograd", "nn", "inductor", "distributed", "quantization", "sparse", "optim", "dataloader", "export",
)  # fmt: skip
_CHANGES = (
    "Fix dtype promotion in addmm", "Speed up reduction over the last dimension", "Support bf16 in scatter_add",
    "Remove deprecated alias of flatten", "Add meta kernel for histc", "Avoid a copy in contiguous()",
    "Fix a race in the work queue", "Check strides before vectorising", "Make the error of broadcast clearer",
    "Move guards out of the hot loop", "Raise on negative padding", "Use the new allocator for pinned memory",
)  # fmt: skip
_LABELS = (
    "module: nn", "topic: performance", "topic: bug fix", "open source", "triaged", "release notes: skip",
    NPU_LABEL, NPU_LABEL,
)  # fmt: skip
FILES = ("aten/native/reduce.cpp", "torch/nn/modules/conv.py", "c10/core/Alloc.h", COMPILER_FILE)
_REASONS = (
    "the vendor ships the matching kernel tonight", "this breaks on purpose, the migration is announced",
    "their main is red for the same reason", "the fix is merged on their side and waits for a release",
)  # fmt: skip
_RELEASE, _RELEASE_TAG = "release/2.1", "v2.1.0"


class UpstreamActivity:
    def __init__(
        self, github: GitHub, upstream: str, chance: random.Random, player: WorkflowAutoplay
    ) -> None:
        self._github = github
        self._upstream = upstream
        self._chance = chance
        self._player = player
        self._open: list[PullRequest] = []
        self._tried_heads: set[str] = set()  # heads that have been in the queue, or were run again
        self._command_limits = CommandLimits()
        self.staged: list[PullRequest] = []
        """Pull requests of the opening that random actions leave alone; the last one stays open as an example."""
        self.inside_pushes: set[str] = set()
        """Commits of the base that a push brought before its last one: CI runs for the last one only."""
        self._acts: tuple[tuple[Callable[[], Awaitable[object]], int], ...] = (
            (self._open_any, 24),
            (self._merge_any, 26),
            (self._push, 14),
            (self._label, 8),
            (self._rerun, 7),
            (self._draft, 6),
            (self._waive_any, 5),
            (self._close, 3),
            (self._release, 3),
            (self._ask_any, 2),
            (self._send_refused_command, 2),
        )

    async def act_randomly(self) -> None:
        acts, weights = zip(*self._acts, strict=True)
        await self._chance.choices(acts, weights)[0]()

    async def settle(self) -> None:
        """Merge queued pull requests that have passed, and remove those that have failed, as GitHub does."""
        await self._github.settle_queue(self._upstream)
        self._open = [pull for pull in self._open if pull.state == "open"]

    # Pull requests

    async def open(
        self,
        title: str,
        files: Sequence[str],
        *,
        breaking: bool = False,
        draft: bool = False,
        labels: Sequence[str] = (),
        by: tuple[str, str] | None = None,
        failures: Failures | None = None,
        downstream_note: str | None = None,
        body: str = "Summary of the change.\n\nTest plan: CI.",
    ) -> PullRequest:
        """Open a pull request, by anybody or by that author; with `failures` exactly these jobs fail on it.

        `downstream_note` is what its text says to downstreams.
        """
        section = f"\n\n## Downstream\n\n{downstream_note}" if downstream_note else ""
        author, association = by or self._chance.choice(AUTHORS)

        def prepare(pull: PullRequest) -> None:
            if failures is not None:
                self._player.staged[pull.head_sha] = failures
            elif breaking:
                self._player.breaking_heads.add(pull.head_sha)
            elif self._chance.random() < CLASHING_SHARE:
                self._player.clashing_heads.add(pull.head_sha)

        pull = await self._github.open_pr(
            self._upstream,
            title=title,
            body=f"{body}{section}",
            author=author,
            author_association=association,
            draft=draft,
            labels=labels,
            fork=association not in {"MEMBER", "COLLABORATOR"},
            files=files,
            before_webhook=prepare,
        )
        self._open.append(pull)
        return pull

    async def open_pair(
        self, title: str, files: Sequence[str], *, failures: Failures, other: str
    ) -> PullRequest:
        """Open a pull request that fails alone, and passes with one of this backend's own, which is opened before it."""
        fix = await self._github.open_pr(
            other,
            title="Register the out variant of addmm",
            body=f"Goes with the change of {self._upstream}.",
            author="nova-ci",
            author_association="MEMBER",
            files=("src/ops/addmm.cpp",),
            before_webhook=lambda pull: self._player.fixing_heads.add(pull.head_sha),
        )
        body = f"The out variant is dispatched to backends now.\n\nDepends-On: {other}#{fix.number}\n"
        return await self.open(title, files, by=AUTHORS[4], failures=failures, body=body)

    async def push_base(self, commits: Sequence[tuple[str, Failures]]) -> None:
        """Push these commits, oldest first, to the default branch; on each exactly its jobs fail."""
        repository = self._github.repository(self._upstream)
        author, _ = self._chance.choice(AUTHORS)

        def stage() -> None:
            sha = repository.head_sha
            for _, failures in reversed(commits):
                self._player.staged[sha] = failures
                if sha != repository.head_sha:
                    self.inside_pushes.add(sha)
                sha = repository.commits[sha].parents[0]

        await self._github.push(
            self._upstream,
            author=author,
            messages=[message for message, _ in commits],
            before_webhook=stage,
        )

    async def _open_any(self) -> None:
        if len(self._open) >= MOST_OPEN:
            await (self._merge_any() if self._mergeable() else self._close())
            return
        await self.open(
            f"[{self._chance.choice(_AREAS)}] {self._chance.choice(_CHANGES)}",
            self._chance.sample(FILES, self._chance.randint(1, 2)),
            breaking=self._chance.random() < BREAKING_SHARE,
            draft=self._chance.random() < DRAFT_SHARE,
            labels=sorted(set(self._chance.sample(_LABELS, self._chance.randint(0, 2)))),
        )

    async def _push(self) -> None:
        """Push to a pull request, preferably to one that failed."""
        failed = [
            pull for pull in self._list_free() if self.is_blocked(pull) or pull.head_sha in self._tried_heads
        ]
        if pull := self._choose(failed) or self._choose(self._list_free()):
            await self._github.push_to_pr(pull)

    async def _label(self) -> None:
        pull, name = self._choose(self._list_free()), self._chance.choice(_LABELS)
        if pull is not None and name in pull.labels:
            await self._github.unlabel_pr(pull, name)
        elif pull is not None:
            await self._github.label_pr(pull, name)

    async def _draft(self) -> None:
        drafts = [pull for pull in self._list_free() if pull.draft]
        if pull := self._choose(drafts):
            await self.make_ready(pull)
        elif pull := self._choose(self._list_free()):
            await self._github.convert_to_draft(pull)

    async def make_ready(self, pull: PullRequest) -> bool:
        await self._github.ready_for_review(pull)
        return True

    async def _close(self) -> None:
        if pull := self._choose(self._list_free()):
            await self._github.close_pr(pull)

    async def _release(self) -> None:
        """Push a fix to the release branch, which has no ruleset."""
        author, _ = self._chance.choice(AUTHORS)
        await self._github.push(
            self._upstream,
            ref=f"refs/heads/{_RELEASE}",
            author=author,
            message=f"Pick: {self._chance.choice(_CHANGES)}",
        )

    async def tag_release(self) -> bool:
        """Push a commit that every backend passes to the release branch, and tag it."""
        repository, author = self._github.repository(self._upstream), AUTHORS[0][0]

        def stage() -> None:
            self._player.staged[repository.branches[_RELEASE]] = {}

        await self._github.push(
            self._upstream,
            ref=f"refs/heads/{_RELEASE}",
            author=author,
            message=f"Release {_RELEASE_TAG}",
            before_webhook=stage,
        )
        head = repository.branches[_RELEASE]
        await self._github.push(
            self._upstream,
            ref=f"refs/tags/{_RELEASE_TAG}",
            author=author,
            commits=0,
            created=True,
            start=head,
        )
        return True

    # Merging

    def is_blocked(self, pull: PullRequest) -> bool:
        return f"{GATE}: failure" in self._github.merge_state(pull).blocked_by

    async def merge(self, pull: PullRequest) -> bool:
        """Enqueue a mergeable pull request if the queue has room; return whether it did."""
        is_full = len(self._github.merge_queue(self._upstream)) >= MOST_QUEUED
        if is_full or not self._github.merge_state(pull).mergeable:
            return False
        self._tried_heads.add(pull.head_sha)
        await self._github.enqueue(pull)
        return True

    async def _merge_any(self) -> None:
        for pull in self._mergeable()[:1]:
            await self.merge(pull)

    def _mergeable(self) -> list[PullRequest]:
        fresh = (pull for pull in self._list_free() if pull.head_sha not in self._tried_heads)
        return [pull for pull in fresh if self._github.merge_state(pull).mergeable]

    async def _rerun(self) -> None:
        """Re-run a failed check, once per head."""
        failed = [
            (pull, check)
            for pull in self._list_free()
            if pull.head_sha not in self._tried_heads
            for check in self._failed_checks(pull)
        ]
        if failed:
            pull, check = self._chance.choice(failed)
            self._tried_heads.add(pull.head_sha)
            await self._github.rerequest_check(check)

    def _failed_checks(self, pull: PullRequest) -> list[CheckRun]:
        checks = self._github.latest_checks(self._upstream, pull.head_sha).values()
        return [check for check in checks if check.conclusion and check.conclusion not in PASSING]

    # Comments

    async def ask(self, pull: PullRequest) -> bool:
        return await self._comment(pull, [pull.author.login], "What am I waiting for?", "/crcr status")

    async def acknowledge(self, pull: PullRequest) -> bool:
        """An on-call answers the breakage that the pull request announces."""
        return await self._comment(
            pull, [ONCALL], "We adapt our kernels this week.", f"/crcr ack {GATING[0]}"
        )

    async def waive(self, pull: PullRequest, by: Sequence[str]) -> bool:
        """Waive the blocking backends; False when none blocks, or `by` have reached their command limit."""
        names = {check.name for check in self._failed_checks(pull)}
        blocking = [name for name in GATING if f"crcr/{name}" in names]
        if not self.is_blocked(pull) or not blocking:
            return False
        reason = self._chance.choice(_REASONS)
        head = pull.head_sha[:12]
        return await self._comment(
            pull, by, *(f"/crcr waive {name} at {head} because {reason}" for name in blocking)
        )

    async def waive_in_vain(self, pull: PullRequest) -> bool:
        return await self.waive(pull, [self._chance.choice(OUTSIDERS)])

    async def waive_rightly(self, pull: PullRequest) -> bool:
        return await self.waive(pull, self._chance.sample(MAINTAINERS, len(MAINTAINERS)))

    async def _comment(self, pull: PullRequest, authors: Sequence[str], *lines: str) -> bool:
        author = self._command_limits.first_free(authors, self._github.clock.now())
        if author is not None:
            await self._github.comment_pr(pull, "\n".join(lines), author=author)
        return author is not None

    async def _ask_any(self) -> None:
        if pull := self._choose(self._list_free()):
            await self.ask(pull)

    async def _waive_any(self) -> None:
        if pull := self._choose(self._blocked()):
            await self.waive_rightly(pull)

    async def _send_refused_command(self) -> None:
        if pull := self._choose(self._blocked()):
            await self.waive_in_vain(pull)

    # Choosing

    def _blocked(self) -> list[PullRequest]:
        return [pull for pull in self._list_free() if self.is_blocked(pull)]

    def _list_free(self) -> list[PullRequest]:
        """Return the open pull requests that are neither queued nor part of the opening."""
        queued = {group.number for group in self._github.merge_queue(self._upstream)}
        busy = queued | {pull.number for pull in self.staged}
        return [pull for pull in self._open if pull.state == "open" and pull.number not in busy]

    def _choose(self, pulls: Sequence[PullRequest]) -> PullRequest | None:
        return self._chance.choice(pulls) if pulls else None
