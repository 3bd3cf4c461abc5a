"""Histories that give a failure a verdict: results of the base branch, and re-runs that pass."""

from collections.abc import Sequence
from typing import Any

from github_sim.github import PullRequest, WorkflowRun
from support.github.gated_upstream import GATING, newest_run, open_pull
from support.running_relay import UPSTREAM, RunningRelay

JUDGED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build], events: [pull_request, push, merge_group], paths: ['**']}}\n"
"""The backend is dispatched for pushes too; `paths` lets the relay ask for the files, and so for the merge base."""
BROKEN, OTHER = "test_broken", "test_other"


def failed_tests(names: Sequence[str], message: str | None = None) -> list[dict[str, str]]:
    return [
        {"name": name, "file": "test/test_ops.py", "message": message or f"AssertionError in {name}"}
        for name in names
    ]


async def end_build(
    relay: RunningRelay,
    run: WorkflowRun,
    *tests: str,
    conclusion: str | None = None,
    on_github: str | None = None,
    counted: int | None = None,
    message: str | None = None,
) -> None:
    """Start and end the run's jobs; `build` fails with these tests, or passes without any.

    `conclusion` is another one that it reports, `on_github` the one that GitHub shows, `counted` the number of failed
    tests that it reports, and `message` what all of them say.
    """
    for job in run.jobs:
        await relay.github.start_job(run, job.name)
        if job.name != "build" or not tests:
            await relay.github.complete_job(run, job.name)
            continue
        reported = conclusion or "failure"
        relay.github.ci.complete(run, job, on_github or reported)
        counts: dict[str, Any] = {}
        if counted:
            counts["test_results"] = {"passed": 1, "failed": counted, "skipped": 0, "total": 1 + counted}
        await relay.github.report(
            run,
            job,
            status="completed",
            conclusion=reported,
            failed_tests=failed_tests(tests, message),
            **counts,
        )
        await relay.github.send_queued_webhooks()
    await relay.drain()


async def push_base(relay: RunningRelay, *tests: str, **how: Any) -> WorkflowRun:
    """Push a commit to the base branch; its build fails with these tests, or passes without any; see `end_build`."""
    relay.clock.advance(600)
    await relay.github.push(UPSTREAM, files={"base.txt": f"at {relay.clock.now()}"})
    await relay.drain()
    run = newest_run(relay)
    await end_build(relay, run, *tests, **how)
    return run


async def fail_pull(
    relay: RunningRelay, *tests: str, author: str = "alice", files: Sequence[str] = ("src/a.py",), **how: Any
) -> PullRequest:
    """Open a pull request on the newest base whose build fails with these tests; see `end_build` for `how`."""
    relay.clock.advance(600)
    pull = await open_pull(relay, author=author, files=files)
    await end_build(relay, newest_run(relay), *tests, **how)
    return pull


async def flake_on_base(relay: RunningRelay, *tests: str) -> WorkflowRun:
    """Push a commit whose build fails with these tests, and passes when it is run again."""
    run = await push_base(relay, *tests)
    await relay.github.rerun(run)
    await end_build(relay, run)
    return run


async def flake_on_pull(relay: RunningRelay, *tests: str, author: str = "alice") -> PullRequest:
    """Open a pull request whose build fails with these tests, and passes when it is run again."""
    pull = await fail_pull(relay, *tests, author=author, files=[f"src/{author}.py"])
    run = newest_run(relay)
    await relay.github.rerun(run)
    await end_build(relay, run)
    return pull
