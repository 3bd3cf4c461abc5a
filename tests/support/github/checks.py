"""Helpers for tests of checks: names and states of checks on a commit, and the calls that wrote them."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from github_sim.github import Call, CheckRun, GitHub, JobSpec, Match, PullRequest, Workflow, WorkflowRun
from support.github.gated_upstream import GATING, INFORMING, NAMED, Stage, finish_jobs, start_jobs
from support.stage import UPSTREAM

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


def check_state(it: Stage, name: str, sha: str) -> str:
    """`absent`, `queued`, `in_progress`, or the conclusion of the newest check of that name."""
    check = it.github.latest_checks(UPSTREAM, sha).get(name)
    return "absent" if check is None else check_run_state(check)


def check_states(it: Stage, sha: str, names: Iterable[str]) -> list[str]:
    return [check_state(it, name, sha) for name in names]


def check_history(it: Stage, name: str, sha: str) -> list[str]:
    """Every check of that name that was made on the commit, in order, as it is now."""
    return [check_run_state(each) for each in it.github.checks(UPSTREAM, sha) if each.name == name]


def check_title(it: Stage, name: str, sha: str) -> str:
    return str(it.github.latest_checks(UPSTREAM, sha)[name].output["title"])


def check_calls(it: Stage, method: str) -> list[Call]:
    """The calls that wrote checks, in order."""
    return it.github.calls_to(method, f"/repos/{UPSTREAM}/check-runs*")


def call_body(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(call.body)
    return found


def write_upstream_settings(folder: Path, **settings: Any) -> None:
    """What the upstream's maintainers set, as in their crcr.toml."""
    lines = (f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (folder / "crcr.toml").write_text("[[upstream]]\n" + "".join(lines))


def named_workflow(*names: str, workflow: str = "CI", file: str = "ci.yml") -> Workflow:
    return Workflow(
        name=workflow,
        path=f".github/workflows/{file}",
        jobs=tuple(JobSpec(name) for name in names),
        run_name=NAMED.run_name,
    )


async def force_push(github: GitHub, pull: PullRequest, head: str) -> None:
    """Somebody pushes an older commit by force."""
    before, pull.head_sha = pull.head_sha, head
    await github.send_pull_webhook(pull, "synchronize", {"before": before, "after": head})


async def open_twin(it: Stage, pull: PullRequest, **more: Any) -> PullRequest:
    """A second pull request whose head is the same commit."""

    def same_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    twin = await it.github.open_pr(UPSTREAM, before_webhook=same_head, **more)
    await it.act()
    return twin


async def run_all_for(
    it: Stage, pull: PullRequest, downstream: str = GATING, **conclusions: str
) -> WorkflowRun:
    """The run that answers the pull request's own newest delivery starts and ends."""
    assert pull.last_delivery is not None
    guid = pull.last_delivery.guid
    [run] = [each for each in it.github.runs(downstream) if each.delivery_id == guid]
    await start_jobs(it, run)
    await finish_jobs(it, run, **conclusions)
    return run


async def press_rerun(it: Stage, pull: PullRequest, name: str) -> None:
    """Somebody presses Re-run beside the newest check of that name."""
    await it.github.rerequest_check(it.github.latest_checks(UPSTREAM, pull.head_sha)[name])
    await it.act()


def rerun_calls(it: Stage, downstream: str = GATING) -> list[tuple[str, int]]:
    """What GitHub was asked to run again, and its answers."""
    calls = it.github.calls_to("POST", f"/repos/{downstream}/actions/runs/*/rerun*")
    return [(call.path.rsplit("/", 1)[1], call.status) for call in calls]


def sent_deliveries(it: Stage, downstream: str = GATING) -> list[str | None]:
    """The deliveries that the backend was told of, each time."""
    return [each.delivery_id for each in it.github.dispatches(downstream)]
