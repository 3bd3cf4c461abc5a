"""Helpers for tests of checks and gate: a gated upstream, its backends' results, and the checks on GitHub."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from github_sim.github import CheckRun, JobSpec, PullRequest, Workflow, WorkflowJob, WorkflowRun
from support.stage import UPSTREAM, Stage, stage

GATING = "org/gating"
INFORMING = "org/informing"
LABEL = "ciflow/crcr/npu"
GATED = f"L3:\n  npu:\n    {INFORMING}: [ann]\nL4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
BOTH = (GATING, INFORMING)
GATE = "crcr/gate"
NAMED = Workflow(jobs=(JobSpec("build"), JobSpec("test")), run_name="CI {delivery_id}")


@asynccontextmanager
async def gated_upstream(
    folder: Path,
    allowlist: str = GATED,
    *,
    downstreams: tuple[str, ...] = BOTH,
    job_checks: str | None = None,
    **more: Any,
) -> AsyncIterator[Stage]:
    """A relay whose upstream lets nothing merge without the gate; `job_checks` is set beside its other settings."""
    if job_checks is not None:
        file = folder / "crcr.toml"
        settings = file.read_text() if file.exists() else "[[upstream]]\n"
        file.write_text(f'{settings}job_checks = "{job_checks}"\n')
    async with stage(folder, allowlist, downstreams=downstreams, **more) as it:
        for name in downstreams:
            it.github.repository(name).workflows = [NAMED]
        it.github.require_checks(UPSTREAM, [GATE])
        it.github.set_permission(UPSTREAM, "maintainer", "maintain")
        yield it


async def open_pull(it: Stage, **more: Any) -> PullRequest:
    pull = await it.github.open_pr(UPSTREAM, **more)
    await it.act()
    return pull


def newest_run(it: Stage, downstream: str = GATING) -> WorkflowRun:
    return it.github.runs(downstream)[-1]


async def start_jobs(it: Stage, run: WorkflowRun, *names: str) -> None:
    for name in names or tuple(job.name for job in run.jobs):
        await it.github.start_job(run, name)
    await it.act()


async def finish_jobs(it: Stage, run: WorkflowRun, **conclusions: str) -> None:
    """Complete jobs by name; `finish(it, run)` completes all with success."""
    for job in run.jobs:
        if not conclusions or job.name in conclusions:
            await it.github.complete_job(run, job.name, conclusion=conclusions.get(job.name, "success"))
    await it.act()


async def run_all(it: Stage, downstream: str = GATING, **conclusions: str) -> WorkflowRun:
    """The newest run of a backend starts, and every job of it ends: as said, else with success."""
    run = newest_run(it, downstream)
    await start_jobs(it, run)
    await finish_jobs(it, run, **{job.name: conclusions.get(job.name, "success") for job in run.jobs})
    return run


def shown_check(it: Stage, name: str, sha: str) -> tuple[str, str | None, str] | None:
    """Status, conclusion and title of the newest check of that name on the commit."""
    check = it.github.latest_checks(UPSTREAM, sha).get(name)
    return None if check is None else (check.status, check.conclusion, check.output["title"])


def gate_state(it: Stage, pull: PullRequest) -> str:
    """`absent`, `pending`, or the conclusion of the gate on the pull request's head."""
    check = it.github.latest_checks(UPSTREAM, pull.head_sha).get(GATE)
    if check is None:
        return "absent"
    return str(check.conclusion) if check.status == "completed" else "pending"


async def live_gate(it: Stage, sha: str) -> dict[str, Any]:
    """The gate as the live page has it, which follows every job; the check is written at decisions."""
    answer = await it.http.get(f"/api/v1/commits/{sha}", params={"upstream": UPSTREAM})
    found: dict[str, Any] = answer.json()["gate"]
    return found


async def live_reasons(it: Stage, sha: str) -> list[str]:
    """What each backend of the gate waits for, or fails by, with the name of the job where there is one."""
    rows = [row for subject in (await live_gate(it, sha))["subjects"] for row in subject["rows"]]
    return [" ".join(filter(None, (part["name"], part["reason"]))) for row in rows for part in row["parts"]]


def check_names_on(it: Stage, sha: str) -> set[str]:
    return set(it.github.latest_checks(UPSTREAM, sha))


def latest_check(it: Stage, name: str, sha: str) -> CheckRun:
    return it.github.latest_checks(UPSTREAM, sha)[name]


async def write_comment(
    it: Stage, pull: PullRequest, body: str, *, author: str = "maintainer", after_s: float = 60
) -> Any:
    """Somebody comments, a minute after whatever was before; the relay does what follows."""
    it.clock.advance(after_s)
    comment = await it.github.comment_pr(pull, body, author=author)
    await it.act()
    return comment


async def sweep_after(it: Stage, seconds: float = 0.0) -> None:
    """Time passes, the sweeper looks around, and everything due is done."""
    it.clock.advance(seconds)
    await it.act()
    await it.services.sweeper.sweep()
    await it.act()


__all__ = [
    "Stage",
    "WorkflowJob",
    "check_names_on",
    "finish_jobs",
    "gate_state",
    "gated_upstream",
    "latest_check",
    "live_gate",
    "live_reasons",
    "newest_run",
    "open_pull",
    "run_all",
    "shown_check",
    "start_jobs",
    "sweep_after",
    "write_comment",
]
