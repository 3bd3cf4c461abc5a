"""`gated_upstream`: a relay with a required gate; run its backends' jobs, read the gate and the checks, write comments."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from github_sim.github import CheckRun, JobSpec, PullRequest, Workflow, WorkflowRun
from support.running_relay import UPSTREAM, RunningRelay, running_relay

GATING = "org/gating"
INFORMING = "org/informing"
LABEL = "ciflow/crcr/npu"
GATED = f"L3:\n  npu:\n    {INFORMING}: [ann]\nL4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
BACKENDS = (GATING, INFORMING)
GATE = "crcr/gate"
WORKFLOW_WITH_GUID = Workflow(jobs=(JobSpec("build"), JobSpec("test")), run_name="CI {delivery_id}")


@asynccontextmanager
async def gated_upstream(
    folder: Path,
    allowlist: str = GATED,
    *,
    downstreams: tuple[str, ...] = BACKENDS,
    job_checks: str | None = None,
    **more: Any,
) -> AsyncIterator[RunningRelay]:
    """Run a relay whose upstream requires the gate; `job_checks` is added to the upstream's settings."""
    if job_checks is not None:
        file = folder / "crcr.toml"
        settings = file.read_text() if file.exists() else "[[upstream]]\n"
        file.write_text(f'{settings}job_checks = "{job_checks}"\n')
    async with running_relay(folder, allowlist, downstreams=downstreams, **more) as relay:
        for name in downstreams:
            relay.github.repository(name).workflows = [WORKFLOW_WITH_GUID]
        relay.github.require_checks(UPSTREAM, [GATE])
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        yield relay


async def open_pull(relay: RunningRelay, **more: Any) -> PullRequest:
    pull = await relay.github.open_pr(UPSTREAM, **more)
    await relay.drain()
    return pull


def newest_run(relay: RunningRelay, downstream: str = GATING) -> WorkflowRun:
    return relay.github.runs(downstream)[-1]


async def start_jobs(relay: RunningRelay, run: WorkflowRun, *names: str) -> None:
    for name in names or tuple(job.name for job in run.jobs):
        await relay.github.start_job(run, name)
    await relay.drain()


async def finish_jobs(relay: RunningRelay, run: WorkflowRun, **conclusions: str) -> None:
    """Complete jobs by name; without names, complete all with success."""
    for job in run.jobs:
        if not conclusions or job.name in conclusions:
            await relay.github.complete_job(run, job.name, conclusion=conclusions.get(job.name, "success"))
    await relay.drain()


async def run_all(relay: RunningRelay, downstream: str = GATING, **conclusions: str) -> WorkflowRun:
    """Start the backend's newest run and end all its jobs: with these conclusions, else with success."""
    run = newest_run(relay, downstream)
    await start_jobs(relay, run)
    await finish_jobs(relay, run, **{job.name: conclusions.get(job.name, "success") for job in run.jobs})
    return run


def shown_check(relay: RunningRelay, name: str, sha: str) -> tuple[str, str | None, str] | None:
    """Status, conclusion and title of the newest check of that name on the commit."""
    check = relay.github.latest_checks(UPSTREAM, sha).get(name)
    return None if check is None else (check.status, check.conclusion, check.output["title"])


def gate_state(relay: RunningRelay, pull: PullRequest) -> str:
    """`absent`, `pending`, or the conclusion of the gate on the pull request's head."""
    check = relay.github.latest_checks(UPSTREAM, pull.head_sha).get(GATE)
    if check is None:
        return "absent"
    return str(check.conclusion) if check.status == "completed" else "pending"


async def live_gate(relay: RunningRelay, sha: str) -> dict[str, Any]:
    """The gate of the API, which follows every job; the check is only updated when the decision changes."""
    answer = await relay.http.get(f"/api/v1/commits/{sha}", params={"upstream": UPSTREAM})
    gate: dict[str, Any] = answer.json()["gate"]
    return gate


async def live_reasons(relay: RunningRelay, sha: str) -> list[str]:
    """The reasons why the gate waits or fails, each with its job's name if it has one."""
    rows = [row for subject in (await live_gate(relay, sha))["subjects"] for row in subject["rows"]]
    return [" ".join(filter(None, (part["name"], part["reason"]))) for row in rows for part in row["parts"]]


def check_names_on(relay: RunningRelay, sha: str) -> set[str]:
    return set(relay.github.latest_checks(UPSTREAM, sha))


def latest_check(relay: RunningRelay, name: str, sha: str) -> CheckRun:
    return relay.github.latest_checks(UPSTREAM, sha)[name]


async def write_comment(
    relay: RunningRelay, pull: PullRequest, body: str, *, author: str = "maintainer", after_s: float = 60
) -> Any:
    """Comment a minute later, and run the effects."""
    relay.clock.advance(after_s)
    comment = await relay.github.comment_pr(pull, body, author=author)
    await relay.drain()
    return comment


async def sweep_after(relay: RunningRelay, seconds: float = 0.0) -> None:
    """Move the clock, run the effects, the sweeper, and the effects again."""
    relay.clock.advance(seconds)
    await relay.drain()
    await relay.services.sweeper.sweep()
    await relay.drain()


def gating_allowlist(options: str) -> str:
    """An allowlist with the gating backend at L4 and these options."""
    return f"L4:\n  - {GATING}: {{oncalls: [bob], {options}}}\n"


def gate_summary(relay: RunningRelay, sha: str) -> str:
    return str(latest_check(relay, GATE, sha).output["summary"])


def gate_title(relay: RunningRelay, sha: str) -> str:
    check = shown_check(relay, GATE, sha)
    return check[2] if check else "absent"


async def push_to_pull(relay: RunningRelay, pull: PullRequest) -> None:
    """Push a new head to the pull request a minute later, and run the effects."""
    relay.clock.advance(60)
    await relay.github.push_to_pr(pull)
    await relay.drain()
