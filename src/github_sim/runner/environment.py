"""The environment of a job: the event file, the `github` context and the variables that GitHub sets."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from github_sim.bodies.repositories import account_json, repository_json
from github_sim.oidc.github_actions import ISSUER_PATH
from github_sim.runner.expressions import to_text
from github_sim.world.actions import WorkflowJob, WorkflowRun
from github_sim.world.records import Json, Repository

if TYPE_CHECKING:
    from github_sim.simulation import Simulation

_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Of the github context, what also is a variable.
_VARIABLES = (
    "actor", "actor_id", "api_url", "event_name", "graphql_url", "job", "ref", "ref_name", "ref_protected", "ref_type",
    "repository", "repository_id", "repository_owner", "repository_owner_id", "retention_days", "run_attempt", "run_id",
    "run_number", "server_url", "sha", "triggering_actor", "workflow", "workflow_ref", "workflow_sha", "workspace",
)  # fmt: skip


def event_json(sim: "Simulation", repository: Repository, run: WorkflowRun) -> Json:
    """The body of the event, as a job finds it at GITHUB_EVENT_PATH."""
    sender = account_json(sim.base_url, sim.world.account(run.actor))
    shared = {"repository": repository_json(sim.base_url, repository), "sender": sender}
    if run.event == "repository_dispatch":
        installation = sim.world.installation_of(repository)
        return {
            "action": run.event_type,
            "branch": repository.default_branch,
            "client_payload": run.client_payload,
            "installation": {"id": installation.id} if installation else None,
            **shared,
        }
    if run.event == "workflow_dispatch":
        ref = f"refs/heads/{repository.default_branch}"
        inputs = run.client_payload.get("inputs")
        return {"inputs": inputs, "ref": ref, "workflow": run.workflow.path, **shared}
    if run.event == "schedule":
        return {"schedule": run.event_type, "workflow": run.workflow.path, **shared}
    return shared


def github_context(sim: "Simulation", repository: Repository, run: WorkflowRun) -> Json:
    """What expressions see as `github`; a job adds its own place and token."""
    ref = run.ref
    return {
        "event": event_json(sim, repository, run),
        "event_name": run.event,
        "actor": run.actor,
        "actor_id": str(sim.world.account(run.actor).id),
        "triggering_actor": run.actor,
        "repository": repository.full_name,
        "repository_id": str(repository.id),
        "repository_owner": repository.owner.login,
        "repository_owner_id": str(repository.owner.id),
        "run_id": str(run.id),
        "run_number": str(run.run_number),
        "run_attempt": str(run.attempt),
        "workflow": run.workflow.name,
        "workflow_ref": f"{repository.full_name}/{run.workflow.path}@{ref}",
        "workflow_sha": run.head_sha,
        "ref": ref,
        "ref_name": run.ref_name,
        "ref_type": "tag" if ref.startswith("refs/tags/") else "branch",
        "ref_protected": True,
        "base_ref": "",
        "head_ref": "",
        "sha": run.head_sha,
        "server_url": sim.base_url,
        "api_url": sim.base_url,
        "graphql_url": f"{sim.base_url}/graphql",
        "retention_days": "90",
    }


def clean_environment(home: Path, tools: Path) -> dict[str, str]:
    """What any child starts from: nothing of ours but a path to the system's programs and to Python."""
    return {
        "PATH": f"{tools}:{_SYSTEM_PATH}",
        "HOME": str(home),
        "LANG": "C.UTF-8",
        "CI": "true",
    }


def place_tools(tools: Path) -> None:
    """Our own Python under its usual names, without the environment that it may live in."""
    tools.mkdir(parents=True, exist_ok=True)
    for name in ("python3", "python"):
        if not (tools / name).exists():
            (tools / name).symlink_to(os.path.realpath(sys.executable))


def github_environment(context: Json, event_path: Path, temp: Path) -> dict[str, str]:
    variables = {f"GITHUB_{name.upper()}": to_text(context.get(name)) for name in _VARIABLES}
    return {
        **variables,
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_PATH": str(event_path),
        "RUNNER_OS": "Linux",
        "RUNNER_ARCH": "X64",
        "RUNNER_NAME": "runner-7",
        "RUNNER_ENVIRONMENT": "self-hosted",
        "RUNNER_TEMP": str(temp),
        "RUNNER_TOOL_CACHE": str(temp.parent / "tool-cache"),
    }


def token_environment(sim: "Simulation", run: WorkflowRun, job: WorkflowJob, token: str) -> Mapping[str, str]:
    """Return the variables with which a job requests its tokens; `&audience=` is appended to the address."""
    address = f"{sim.base_url}{ISSUER_PATH}/request?run={run.id}&job={job.id}&api-version=2.0"
    return {"ACTIONS_ID_TOKEN_REQUEST_URL": address, "ACTIONS_ID_TOKEN_REQUEST_TOKEN": token}
