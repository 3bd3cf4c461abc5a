"""Believable traffic on the demo's upstream: pull requests open, change, get labels, become drafts, merge
and close; main moves. One act every few seconds at speed 1, until told to stop.

Old records are dropped as it goes, so a demo can run for days.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

from crcr.sim.autoplay import Player
from crcr.sim.demo_world import UPSTREAM, demo_world
from crcr.sim.github import GitHub
from crcr.sim.records import PullRequest
from crcr.sim.simulation import Sleep

__all__ = ["UPSTREAM", "demo_world", "run_traffic"]

PAUSE_S = (2.0, 5.0)
FIRST_PULLS = 3
MOST_OPEN = 14
KEPT_RECORDS = 500
BREAKING_SHARE = 0.12
_AUTHORS = (
    ("mira-holt", "MEMBER"), ("jkoski", "MEMBER"), ("tamsin-ray", "COLLABORATOR"), ("d-okafor", "CONTRIBUTOR"),
    ("lin-sato", "CONTRIBUTOR"), ("pbraun", "MEMBER"), ("new-here-42", "FIRST_TIME_CONTRIBUTOR"),
)  # fmt: skip
_AREAS = (
    "autograd",
    "nn",
    "inductor",
    "distributed",
    "quantization",
    "sparse",
    "optim",
    "dataloader",
    "export",
)
_CHANGES = (
    "Fix dtype promotion in addmm", "Speed up reduction over the last dimension", "Support bf16 in scatter_add",
    "Remove deprecated alias of flatten", "Add meta kernel for histc", "Avoid a copy in contiguous()",
    "Fix a race in the work queue", "Check strides before vectorising", "Make the error of broadcast clearer",
    "Move guards out of the hot loop", "Raise on negative padding", "Use the new allocator for pinned memory",
)  # fmt: skip
_LABELS = (
    "module: nn",
    "topic: performance",
    "topic: bug fix",
    "open source",
    "triaged",
    "release notes: skip",
)
_FILES = (
    "aten/native/reduce.cpp",
    "torch/nn/modules/conv.py",
    "torch/_inductor/lowering.py",
    "c10/core/Alloc.h",
)


async def run_traffic(
    github: GitHub,
    upstream: str,
    *,
    seed: int,
    speed: float,
    stop: asyncio.Event,
    sleep: Sleep = asyncio.sleep,
) -> None:
    """Live on `upstream` until `stop` is set."""
    traffic = _Traffic(github, upstream, random.Random(seed), Player(github, speed=speed))
    for _ in range(FIRST_PULLS):
        await traffic.open()
    while not stop.is_set():
        await _pause(traffic.chance.uniform(*PAUSE_S) / speed, stop, sleep)
        if not stop.is_set():
            await traffic.step()


async def _pause(seconds: float, stop: asyncio.Event, sleep: Sleep) -> None:
    """Sleep, but wake at once when told to stop."""
    waits = [asyncio.ensure_future(sleep(seconds)), asyncio.ensure_future(stop.wait())]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
        with suppress(asyncio.CancelledError):
            await wait


class _Traffic:
    def __init__(self, github: GitHub, upstream: str, chance: random.Random, player: Player) -> None:
        self._github = github
        self._upstream = upstream
        self.chance = chance
        self._player = player
        self._open: list[PullRequest] = []
        self._acts: tuple[tuple[Callable[[], Awaitable[None]], int], ...] = (
            (self.open, 30),
            (self._push, 26),
            (self._main, 12),
            (self._merge, 12),
            (self._label, 8),
            (self._close, 5),
            (self._draft, 4),
        )

    async def step(self) -> None:
        acts, weights = zip(*self._acts, strict=True)
        await self.chance.choices(acts, weights)[0]()
        self._github.forget_old(KEPT_RECORDS)

    async def open(self) -> None:
        if len(self._open) >= MOST_OPEN:
            await self._merge()
        author, association = self.chance.choice(_AUTHORS)
        pull = await self._github.open_pr(
            self._upstream,
            title=f"[{self.chance.choice(_AREAS)}] {self.chance.choice(_CHANGES)}",
            body="Summary of the change.\n\nTest plan: CI.",
            author=author,
            author_association=association,
            draft=self.chance.random() < 0.15,
            labels=self.chance.sample(_LABELS, self.chance.randint(0, 2)),
            fork=association not in {"MEMBER", "COLLABORATOR"},
            files=self.chance.sample(_FILES, self.chance.randint(1, 3)),
            before_telling=self._maybe_breaking,
        )
        self._open.append(pull)

    def _maybe_breaking(self, pull: PullRequest) -> None:
        if self.chance.random() < BREAKING_SHARE:
            self._player.breaking_heads.add(pull.head_sha)

    def _any(self) -> PullRequest | None:
        return self.chance.choice(self._open) if self._open else None

    async def _push(self) -> None:
        if pull := self._any():
            await self._github.push_to_pr(pull)

    async def _label(self) -> None:
        pull, name = self._any(), self.chance.choice(_LABELS)
        if pull is not None and name in pull.labels:
            await self._github.unlabel_pr(pull, name)
        elif pull is not None:
            await self._github.label_pr(pull, name)

    async def _draft(self) -> None:
        pull = self._any()
        if pull is not None and pull.draft:
            await self._github.ready_for_review(pull)
        elif pull is not None:
            await self._github.convert_to_draft(pull)

    async def _merge(self) -> None:
        """Merge an older pull request; the base branch's push follows, as on GitHub."""
        ready = [pull for pull in self._open if pull.head_sha not in self._player.breaking_heads]
        if not ready:
            return
        pull = ready[0]
        self._open.remove(pull)
        await self._github.close_pr(pull, merged=True)
        await self._main()

    async def _close(self) -> None:
        if pull := self._any():
            self._open.remove(pull)
            await self._github.close_pr(pull)

    async def _main(self) -> None:
        author, _ = self.chance.choice(_AUTHORS)
        message = f"[{self.chance.choice(_AREAS)}] {self.chance.choice(_CHANGES)}"
        await self._github.push(self._upstream, author=author, message=message)
