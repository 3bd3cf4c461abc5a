"""A base branch with a breakage in a range that nobody tested, and a backend that answers a bisection's runs by the truth."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from crcr.decide.bisection.request import BisectionRequest
from crcr.decide.model import RepoName
from github_sim.github import WorkflowRun
from support.downstream.callbacks import BACKEND, post_report
from support.running_relay import UPSTREAM, RunningRelay

BISECTED = f"L2:\n  - {BACKEND}: {{bisect: manual}}\n"
REQUEST = BisectionRequest(downstream=RepoName(BACKEND), job="test", who="ada")
BROKEN = "RuntimeError: aten::foo has no kernel"
OTHER = "ImportError: no module named bar"


def failed_with(*messages: str, ran: int | None = None) -> dict[str, Any]:
    tests = [
        {"name": f"test_{message.split(':')[0].lower()}", "file": "test.py", "message": message}
        for message in messages
    ]
    counts = {"test_results": {"passed": ran - len(tests), "failed": len(tests), "total": ran}} if ran else {}
    return {"conclusion": "failure", "failed_tests": tests, **counts}


@dataclass
class BrokenBase:
    """The commits of a range, the good end first, and what the backend's job does on each of them."""

    relay: RunningRelay
    commits: list[str]
    culprit: int
    """The position of the first commit that fails."""
    otherwise: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Reports of commits that end in another way, by position."""
    pace_s: float = 60.0
    """How long a run takes."""

    async def start(self, **options: Any) -> int:
        request = BisectionRequest(downstream=RepoName(BACKEND), job="test", who="ada", **options)
        started = await self.relay.services.bisections.start(
            RepoName(UPSTREAM), request, self.relay.clock.now()
        )
        await self.relay.drain()
        return started

    @property
    def run(self) -> WorkflowRun:
        """The newest run of the backend."""
        return self.relay.github.runs(BACKEND)[-1]

    def position(self, run: WorkflowRun) -> int:
        return self.commits.index(run.client_payload["payload"]["after"])

    def result(self, position: int) -> dict[str, Any]:
        broken = failed_with(BROKEN) if position >= self.culprit else {"conclusion": "success"}
        return self.otherwise.get(position, broken)

    async def answer(self, run: WorkflowRun | None = None, **result: Any) -> None:
        """The run reports what the backend does on its commit, or this result."""
        answered = run or self.run
        result = result or self.result(self.position(answered))
        await end_run(self.relay, answered, self.pace_s, **result)

    async def finish(self, bisection_id: int, most: int = 40) -> dict[str, Any]:
        """Answer each run until the bisection ends; return its row."""
        for _ in range(most):
            row = self.row(bisection_id)
            if row["state"] != "running":
                return row
            await self.answer()
        raise AssertionError(f"bisection {bisection_id} has not ended after {most} runs")

    def row(self, bisection_id: int) -> dict[str, Any]:
        return next(
            row for row in self.relay.rows("SELECT * FROM bisections") if row["bisection_id"] == bisection_id
        )

    def runs(self, bisection_id: int) -> list[tuple[int, str | None]]:
        """Position and result of each run, in order."""
        rows = self.relay.rows("SELECT bisection_id, position, result FROM bisection_runs ORDER BY number")
        return [(row["position"], row["result"]) for row in rows if row["bisection_id"] == bisection_id]


async def end_run(relay: RunningRelay, run: WorkflowRun, pace_s: float = 60.0, **result: Any) -> None:
    for status, more in (("in_progress", {}), ("completed", result or {"conclusion": "success"})):
        answer = await post_report(relay, run, "test", status, **more)
        assert answer.status_code == 200, answer.text
    await relay.drain()
    relay.clock.advance(pace_s)


async def push_commits(relay: RunningRelay, results: Iterable[dict[str, Any] | None]) -> list[str]:
    """Push a commit for each result; None is not tested: its run never reports."""
    shas = []
    for result in results:
        await relay.github.push(UPSTREAM)
        await relay.drain()
        shas.append(relay.github.repository(UPSTREAM).head_sha)
        if result is not None:
            await end_run(relay, relay.github.runs(BACKEND)[-1], **result)
    return shas


async def broken_base(relay: RunningRelay, *, commits: int, culprit: int) -> BrokenBase:
    """A tested pass, `commits` pushes of which only the last is tested, and it fails."""
    results: list[dict[str, Any] | None] = [None] * commits
    results[-1] = failed_with(BROKEN)
    passed = {"conclusion": "success"}
    shas = await push_commits(relay, [passed, passed, *results])
    return BrokenBase(relay, shas[1:], culprit)
