"""The own CI of the demo's upstream: check runs of GitHub Actions and a commit status on every new head.

Has its own random generator, so that the rest of the demo makes the same choices with it and without.
"""

import random
from collections.abc import Iterator
from itertools import islice

from github_sim.github import GitHub
from github_sim.world.records import CheckRun, Repository

JOBS = (
    "lint",
    "docs / build",
    "linux-py3.10 / build",
    "linux-py3.10 / test (default, 1, 3)",
    "linux-py3.10 / test (default, 2, 3)",
    "linux-py3.10 / test (default, 3, 3)",
    "linux-py3.12 / build",
    "linux-py3.12 / test (default, 1, 2)",
    "linux-py3.12 / test (default, 2, 2)",
    "macos-arm64 / build",
    "macos-arm64 / test",
    "windows / build",
)
STATUS = "wheels/nightly-index"
_BASE_COMMITS = 8
_HEADS_AT_ONCE = 3
_FAILING_SHARE = 0.3
"""Of the commits: one check fails on them."""
_ENDS, _RERUN = 0.5, 0.5
"""How often a running check ends, and how often a failed one is run again."""


class InTreeCi:
    def __init__(self, github: GitHub, upstream: str, seed: int, inside_pushes: set[str]) -> None:
        """`inside_pushes` are commits of the base that it does not test."""
        self._inside_pushes = inside_pushes
        self._github = github
        self._upstream = upstream
        self._chance = random.Random(f"{seed} in-tree")
        self._started: set[str] = set()
        self._running: list[CheckRun] = []
        self._failing: set[tuple[str, str]] = set()
        self._failed: list[CheckRun] = []
        self._stays_red: str | None = None
        """The first commit that is tested: one check fails on it and is not run again, so that there is one to see."""

    async def step(self) -> None:
        """Start the checks of a few new heads, and end some that run; of those that failed, half are run again and pass."""
        new_heads = [sha for sha in dict.fromkeys(self._heads()) if sha not in self._started]
        for sha in new_heads[:_HEADS_AT_ONCE]:
            await self._start(sha)
        for check in [check for check in self._running if self._chance.random() < _ENDS]:
            await self._end(check)
        for failed in self._failed:
            await self._run(failed.head_sha, failed.name)
        self._failed.clear()

    def _heads(self) -> Iterator[str]:
        """The heads of open pull requests and of the base branch, with the base's last commits."""
        repository = self._github.repository(self._upstream)
        yield from islice(self._base_commits(repository), _BASE_COMMITS)
        for pull in self._github.world.pulls.values():
            if pull.repository_id == repository.id and pull.state == "open":
                yield pull.head_sha

    def _base_commits(self, repository: Repository) -> Iterator[str]:
        """The pushed commits of the base, newest first."""
        sha: str | None = repository.head_sha
        while sha is not None and sha in repository.commits:
            if sha not in self._inside_pushes:
                yield sha
            sha = next(iter(repository.commits[sha].parents), None)

    async def _start(self, sha: str) -> None:
        self._stays_red = self._stays_red or sha
        self._started.add(sha)
        if self._chance.random() < _FAILING_SHARE or sha == self._stays_red:
            self._failing.add((sha, self._chance.choice(JOBS)))
        for name in JOBS:
            await self._run(sha, name)
        await self._github.set_status(self._upstream, sha, STATUS, "success")

    async def _run(self, sha: str, name: str) -> None:
        self._running.append(await self._github.start_ci_check(self._upstream, sha, name))

    async def _end(self, check: CheckRun) -> None:
        self._running.remove(check)
        fails = (check.head_sha, check.name) in self._failing
        self._failing.discard((check.head_sha, check.name))
        if fails and check.head_sha != self._stays_red and self._chance.random() < _RERUN:
            self._failed.append(check)
        await self._github.end_ci_check(check, "failure" if fails else "success")
