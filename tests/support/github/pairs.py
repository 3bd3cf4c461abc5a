"""Pull requests in two repositories that belong together: the runs of each, and how they end."""

from typing import Any

from github_sim.github import PullRequest, WorkflowRun
from support.github.gated_upstream import GATING, finish_jobs, open_pull, start_jobs
from support.running_relay import RunningRelay

PAIR_EVENT = "crcr_pair"


async def open_other(relay: RunningRelay, downstream: str = GATING, **more: Any) -> PullRequest:
    """Open a pull request of a backend."""
    pull = await relay.github.open_pr(downstream, **{"author": "backender", **more})
    await relay.drain()
    return pull


def depends_on(other: PullRequest, downstream: str = GATING) -> str:
    return f"What and why.\n\nDepends-On: {downstream}#{other.number}\n"


async def open_pair(relay: RunningRelay, **more: Any) -> tuple[PullRequest, PullRequest]:
    """Open a pull request of the gating backend, and one of the upstream that depends on it."""
    other = await open_other(relay, **more)
    return await open_pull(relay, body=depends_on(other)), other


def pair_runs(relay: RunningRelay, downstream: str = GATING) -> list[WorkflowRun]:
    return [run for run in relay.github.runs(downstream) if run.event_type == PAIR_EVENT]


def plain_runs(relay: RunningRelay, downstream: str = GATING) -> list[WorkflowRun]:
    return [run for run in relay.github.runs(downstream) if run.event_type == "pull_request"]


async def end_run(relay: RunningRelay, run: WorkflowRun, conclusion: str = "success") -> None:
    """Run its first job to this end, and the others to success."""
    await start_jobs(relay, run)
    first, *others = [job.name for job in run.jobs]
    await finish_jobs(relay, run, **{first: conclusion}, **dict.fromkeys(others, "success"))


def heads_tested(relay: RunningRelay, downstream: str = GATING) -> list[str]:
    """The backend's heads that pairs were dispatched with, oldest first."""
    return [run.client_payload["relay"]["depends_on"]["head_sha"] for run in pair_runs(relay, downstream)]


def pair_rows(relay: RunningRelay) -> list[dict[str, Any]]:
    return relay.rows(
        "SELECT * FROM pairs ORDER BY upstream, number, in_text DESC, place, downstream, dependency"
    )


def refusals(relay: RunningRelay) -> list[str | None]:
    return [row["refusal"] for row in pair_rows(relay)]
