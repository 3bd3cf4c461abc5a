"""Checks on a commit: their names and states, the calls that wrote them, and re-runs."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from github_sim.github import Call, CheckRun, GitHub, JobSpec, Match, PullRequest, Workflow, WorkflowRun
from support.github.gated_upstream import GATING, INFORMING, WORKFLOW_WITH_GUID, finish_jobs, start_jobs
from support.running_relay import UPSTREAM, RunningRelay

INFORMS = f"L3:\n  npu:\n    {INFORMING}: {{oncalls: [ann], jobs: [build, test]}}\n"
GATES = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
LISTED = INFORMS + GATES
CREATES = Match("POST", f"/repos/{UPSTREAM}/check-runs")
UPDATES = Match("PATCH", f"/repos/{UPSTREAM}/check-runs/*")


def check_names(downstream: str, *jobs: str, workflow: str = "CI") -> list[str]:
    """The names of a backend's check and of its jobs' checks."""
    return [f"crcr/{downstream}", *(f"crcr/{downstream}/{workflow}/{job}" for job in jobs)]


def check_run_state(check: CheckRun) -> str:
    return str(check.conclusion) if check.status == "completed" else check.status


def check_state(relay: RunningRelay, name: str, sha: str) -> str:
    """`absent`, `queued`, `in_progress`, or the conclusion of the newest check of that name."""
    check = relay.github.latest_checks(UPSTREAM, sha).get(name)
    return "absent" if check is None else check_run_state(check)


def check_states(relay: RunningRelay, sha: str, names: Iterable[str]) -> list[str]:
    return [check_state(relay, name, sha) for name in names]


def check_history(relay: RunningRelay, name: str, sha: str) -> list[str]:
    """The states of all checks of that name on the commit, oldest first."""
    return [check_run_state(check) for check in relay.github.checks(UPSTREAM, sha) if check.name == name]


def check_title(relay: RunningRelay, name: str, sha: str) -> str:
    return str(relay.github.latest_checks(UPSTREAM, sha)[name].output["title"])


def check_calls(relay: RunningRelay, method: str) -> list[Call]:
    """The calls that wrote checks, in order."""
    return relay.github.calls_to(method, f"/repos/{UPSTREAM}/check-runs*")


def call_body(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.body)
    return found


def write_upstream_settings(folder: Path, **settings: Any) -> None:
    """Write the upstream's settings to crcr.toml."""
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (folder / "crcr.toml").write_text("[[upstream]]\n" + "".join(lines))


def named_workflow(*names: str, workflow: str = "CI", file: str = "ci.yml") -> Workflow:
    return Workflow(
        name=workflow,
        path=f".github/workflows/{file}",
        jobs=tuple(JobSpec(name) for name in names),
        run_name=WORKFLOW_WITH_GUID.run_name,
    )


async def force_push(github: GitHub, pull: PullRequest, head: str) -> None:
    """Force-push an older commit to the pull request."""
    before, pull.head_sha = pull.head_sha, head
    await github.send_pull_webhook(pull, "synchronize", {"before": before, "after": head})


async def open_twin(relay: RunningRelay, pull: PullRequest, **more: Any) -> PullRequest:
    """A second pull request whose head is the same commit."""

    def same_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    twin = await relay.github.open_pr(UPSTREAM, before_webhook=same_head, **more)
    await relay.drain()
    return twin


async def run_all_for(
    relay: RunningRelay, pull: PullRequest, downstream: str = GATING, **conclusions: str
) -> WorkflowRun:
    """Start and end all jobs of the run for the pull request's newest delivery."""
    assert pull.last_delivery is not None
    guid = pull.last_delivery.guid
    [run] = [each for each in relay.github.runs(downstream) if each.delivery_id == guid]
    await start_jobs(relay, run)
    await finish_jobs(relay, run, **conclusions)
    return run


async def press_rerun(relay: RunningRelay, pull: PullRequest, name: str) -> None:
    """Press Re-run on the newest check of that name."""
    await relay.github.rerequest_check(relay.github.latest_checks(UPSTREAM, pull.head_sha)[name])
    await relay.drain()


def rerun_calls(relay: RunningRelay, downstream: str = GATING) -> list[tuple[str, int]]:
    """The re-run calls to GitHub and their statuses."""
    calls = relay.github.calls_to("POST", f"/repos/{downstream}/actions/runs/*/rerun*")
    return [(call.path.rsplit("/", 1)[1], call.status) for call in calls]


def sent_deliveries(relay: RunningRelay, downstream: str = GATING) -> list[str | None]:
    """The deliveries of all dispatches to the backend, in order."""
    return [each.delivery_id for each in relay.github.dispatches(downstream)]
