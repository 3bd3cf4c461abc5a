"""A large upstream at its peak: 20 backends, 3 of them L4, 300 new heads an hour, one in ten failing at L4.

Heads come at random moments: pull requests open, get further pushes, a label now and then, comments, and are merged
through a queue that builds at most `MOST_GROUPS` groups at a time, as GitHub's does by default.
"""

import asyncio
import random
from collections.abc import Iterator

from github_sim.ci.autoplay import WorkflowAutoplay
from github_sim.github import Behaviour, GitHub, JobSpec, PullRequest, Workflow

UPSTREAM = "framework/core"
GATE = "crcr/gate"
HEADS_AN_HOUR = 300
PUSHED_SHARE = 0.35
"""Of the heads, those that are a further push to an open pull request."""
FAILING_SHARE = 0.1
"""Of the heads, opened or pushed, those that fail in one or two backends, at least one of them L4."""
LABELLED_SHARE = 0.1
MERGED_SHARE = 0.6
"""Of the pull requests that pass, those that somebody merges."""
MOST_GROUPS = 5
COMMANDS_AN_HOUR = 20
KEPT_RECORDS = 3_000

L4 = tuple(f"vendor{number}/backend" for number in range(1, 4))
L3 = {f"device{number}": f"device{number}-labs/backend" for number in range(1, 5)}
L2 = tuple(f"community{number}/backend" for number in range(1, 14))
BACKENDS = (*L4, *L3.values(), *L2)
_FILES = ("src/kernels/reduce.cpp", "python/nn/conv.py", "compiler/lowering.py", "docs/notes.md")


def allowlist() -> str:
    gating = [f"  {name}: {{oncalls: [{name.split('/')[0]}-oncall]}}" for name in L4[:2]]
    lines = ["L2:", *(f"  - {name}" for name in L2), "L3:"]
    for device, name in L3.items():
        lines += [f"  {device}:", f"    {name}: [{device}-oncall]"]
    paths = f'  {L4[2]}: {{oncalls: [vendor3-oncall], paths: ["src/**", "python/**", "compiler/**"]}}'
    return "\n".join([*lines, "L4:", *gating, paths, ""])


def peak_world(github: GitHub) -> None:
    github.create_repository(UPSTREAM, files={".github/crcr-allowlist.yml": allowlist()})
    github.require_checks(UPSTREAM, [GATE])
    github.set_permission(UPSTREAM, "maintainer", "maintain")
    for name in BACKENDS:
        github.create_repository(name, workflows=[_workflow(name)], sends_run_webhooks=name in L4)


def _workflow(name: str) -> Workflow:
    jobs = [f"test ({number}, 10)" for number in range(1, 11)] if name in L4 else ["build", "test"]
    if name in L2:
        jobs = jobs[1:]
    return Workflow(
        name="Upstream CI",
        path=".github/workflows/upstream-ci.yml",
        jobs=[JobSpec(job, duration_s=(60.0, 480.0), tests=400) for job in jobs],
        automatic=True,
        behaviour=Behaviour(queue_s=(5.0, 60.0), fail_rate=0.0),
    )


class PeakTraffic:
    def __init__(self, github: GitHub, seed: int) -> None:
        self._github = github
        self._chance = random.Random(seed)  # noqa: S311  the same story for the same seed
        self._player = WorkflowAutoplay(github)
        self._open: list[PullRequest] = []
        self._unwanted: set[str] = set()
        """Heads that nobody merges."""
        self.heads = 0

    async def run(self, seconds: float) -> None:
        """Begin as many heads as so long a time has at the peak; what they started may still go on after it."""
        merging = asyncio.create_task(self._merge_again_and_again())
        commenting = asyncio.create_task(self._comment_again_and_again())
        try:
            for pause_s in self._pauses(seconds):
                await asyncio.sleep(pause_s)
                await self._new_head()
        finally:
            for task in (merging, commenting):
                task.cancel()
            await asyncio.gather(merging, commenting, return_exceptions=True)

    def _pauses(self, seconds: float) -> Iterator[float]:
        passed = 0.0
        while (pause_s := self._chance.expovariate(HEADS_AN_HOUR / 3600)) + passed < seconds:
            passed += pause_s
            yield pause_s
        yield seconds - passed

    async def _new_head(self) -> None:
        self.heads += 1
        free = self._unqueued()
        if free and self._chance.random() < PUSHED_SHARE:
            pull = self._chance.choice(free)
            before = pull.head_sha
            await self._github.push_to_pr(pull, before_webhook=self._draw_fate)
            self._unwanted.discard(before)
        else:
            pull = await self._open_pull()
        if len(self._open) > 120:
            await self._github.close_pr(self._unqueued()[0])
        self._open = [pull for pull in self._open if pull.state == "open"]
        self._github.drop_old_records(KEPT_RECORDS)

    async def _open_pull(self) -> PullRequest:
        chance = self._chance
        labels = [f"ciflow/crcr/{chance.choice(tuple(L3))}"] if chance.random() < LABELLED_SHARE else []
        pull = await self._github.open_pr(
            UPSTREAM,
            title="Speed up a reduction",
            author="maintainer",
            author_association="MEMBER",
            labels=labels,
            files=chance.sample(_FILES, 2),
            before_webhook=self._draw_fate,
        )
        self._open.append(pull)
        return pull

    def _draw_fate(self, pull: PullRequest) -> None:
        chance = self._chance
        if chance.random() < FAILING_SHARE:
            gating = chance.choice(L4)
            others = [name for name in BACKENDS if name != gating]
            backends = [gating, *chance.sample(others, chance.randint(0, 1))]
            self._player.failing_jobs[pull.head_sha] = frozenset(
                (name, job) for name in backends for job in self._some_jobs(name)
            )
        if chance.random() >= MERGED_SHARE:
            self._unwanted.add(pull.head_sha)

    def _some_jobs(self, name: str) -> list[str]:
        names = [job.name for job in self._github.repository(name).workflows[0].jobs]
        return self._chance.sample(names, min(len(names), self._chance.randint(1, 4)))

    def _unqueued(self) -> list[PullRequest]:
        queued = {group.number for group in self._github.merge_queue(UPSTREAM)}
        return [pull for pull in self._open if pull.state == "open" and pull.number not in queued]

    async def _merge_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(5.0)
            await self._github.settle_queue(UPSTREAM)
            room = MOST_GROUPS - len(self._github.merge_queue(UPSTREAM))
            ready = [pull for pull in self._unqueued() if pull.head_sha not in self._unwanted]
            for pull in ready:
                if room > 0 and self._github.merge_state(pull).mergeable:
                    await self._github.enqueue(pull)
                    room -= 1

    async def _comment_again_and_again(self) -> None:
        while True:
            await asyncio.sleep(3600 / COMMANDS_AN_HOUR)
            if free := self._unqueued():
                pull = self._chance.choice(free)
                await self._github.comment_pr(pull, "/crcr status", author="maintainer")
