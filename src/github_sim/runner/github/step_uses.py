"""`uses` of a step: checkout and artifacts, done by the runner itself, and composite actions from a folder.

Anything else is a `Problem`: the simulator fetches nothing and pretends nothing.
"""

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from github_sim.runner.checkout import Artifacts, inside, write_tree
from github_sim.runner.github.expression_values import text
from github_sim.runner.github.step_outcome import Frame, Outcome
from github_sim.runner.github.templating import filled
from github_sim.runner.github.workflow_file import Step, read_steps
from github_sim.runner.problems import Problem
from github_sim.runner.yaml_text import as_mapping, only_known, read_yaml
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.runner.github.job import JobRun

_ACTION = re.compile(r"(?P<name>[\w.-]+/[\w.-]+(?:/[\w./-]+)?)@(?P<ref>[\w./-]+)")
_CHECKOUT = frozenset(
    {"repository", "ref", "path", "sparse-checkout", "sparse-checkout-cone-mode", "persist-credentials",
     "fetch-depth", "submodules", "token", "clean", "lfs", "show-progress", "fetch-tags", "filter", "set-safe-directory"}
)  # fmt: skip
_UPLOAD = frozenset({"name", "path", "if-no-files-found", "overwrite", "retention-days", "compression-level"})
_DOWNLOAD = frozenset({"name", "path"})
With = dict[str, str]


async def use(job: "JobRun", step: Step, frame: Frame, env: Mapping[str, str]) -> Outcome:
    action = str(step.given["uses"])
    given = as_mapping(step.given.get("with"), "with")
    filled_with = {name: text(filled(value, job.contexts(frame, env))) for name, value in given.items()}
    found = _ACTION.fullmatch(action)
    own = _OWN.get(found["name"]) if found else None
    if own is not None:
        return own(job, filled_with)
    return await _composite(job, _folder(job, action), frame, filled_with, env)


def _outcome(log: str, **outputs: str) -> Outcome:
    return Outcome(log=f"{log}\n", outputs=outputs)


def _failed(why: str) -> Outcome:
    return Outcome(failed=True, log=f"Error: {why}\n")


def _check_out(job: "JobRun", given: With) -> Outcome:
    only_known(dict(given), _CHECKOUT, "actions/checkout")
    into = inside(job.room.workspace, given.get("path") or ".")
    only = [line.strip() for line in given.get("sparse-checkout", "").splitlines() if line.strip()]
    name = given.get("repository") or job.joined.repository.full_name
    if name.lower() == job.joined.repository.full_name.lower() and not given.get("ref"):
        job.joined.snapshot.check_out(into, only)
        return _outcome(f"checked out {name}", commit=job.run.head_sha)
    world = job.runner.sim.world
    repository = world.find(name)
    commit = world.resolve(repository, given.get("ref") or repository.default_branch) if repository else None
    if commit is None:
        return _failed(f"cannot check out {given.get('ref') or 'the default branch'} of {name}")
    write_tree(commit.tree, into, only)
    return _outcome(f"checked out {name} at {commit.sha}", commit=commit.sha)


def _upload(job: "JobRun", given: With) -> Outcome:
    only_known(dict(given), _UPLOAD, "actions/upload-artifact")
    patterns = [line.strip() for line in given.get("path", "").splitlines() if line.strip()]
    kept = _artifacts(job).keep(given.get("name") or "artifact", job.room.workspace, patterns)
    if not kept and given.get("if-no-files-found", "warn") == "error":
        return _failed(f"No files were found with the provided path: {', '.join(patterns)}")
    return _outcome(f"kept {kept} files")


def _download(job: "JobRun", given: With) -> Outcome:
    only_known(dict(given), _DOWNLOAD, "actions/download-artifact")
    wanted = Path(given.get("path") or ".")
    into = wanted if wanted.is_absolute() else inside(job.room.workspace, str(wanted))
    if not into.resolve().is_relative_to(job.room.root.resolve()):
        raise Problem(f"{wanted} leads out of the job's folders")
    name = given.get("name") or "artifact"
    if not _artifacts(job).fetch(name, into):
        return _failed(f"Unable to download artifact(s): Artifact not found for name: {name}")
    return _outcome(f"fetched {name}")


def _artifacts(job: "JobRun") -> Artifacts:
    return Artifacts(job.runner.place.root / "artifacts" / f"{job.run.id}-{job.run.attempt}")


_OWN: Mapping[str, Callable[["JobRun", With], Outcome]] = {
    "actions/checkout": _check_out,
    "actions/upload-artifact": _upload,
    "actions/download-artifact": _download,
}


def _folder(job: "JobRun", action: str) -> Path:
    """Where a composite action is: in the workspace, or in a folder that the runner was told of."""
    if action.startswith("./"):
        return inside(job.room.workspace, action)
    found = _ACTION.fullmatch(action)
    folder = job.runner.actions.get(found["name"]) if found else None
    if folder is None:
        raise Problem(f"the simulated runner has no action {action}")
    return folder


async def _composite(
    job: "JobRun", folder: Path, frame: Frame, given: With, env: Mapping[str, str]
) -> Outcome:
    action = _read_action(folder)
    inner = Frame(
        inputs=_inputs(action, given, job, frame),
        env={**frame.env, **env},
        action_path=str(folder),
        cancelled=frame.cancelled,
    )
    steps = read_steps(action["runs"].get("steps"), str(folder))
    done = await job.steps(steps, inner)
    outputs = {
        name: text(filled(each.get("value"), job.contexts(inner)))
        for name, each in (action.get("outputs") or {}).items()
    }
    why = next((each.why for each in done if each.why), "")
    return Outcome(inner.failed, why, "".join(each.log for each in done), outputs)


def _read_action(folder: Path) -> Json:
    path = next((folder / name for name in ("action.yml", "action.yaml") if (folder / name).is_file()), None)
    if path is None:
        raise Problem(f"{folder} has no action.yml")
    action = read_yaml(path.read_text(), str(path))
    runs = as_mapping(action.get("runs"), f"{path}: runs")
    if runs.get("using") != "composite":
        raise Problem(f"{path} is no composite action, and the simulated runner runs no other")
    return action


def _inputs(action: Json, given: With, job: "JobRun", frame: Frame) -> Json:
    declared = action.get("inputs") or {}
    only_known(dict(given), frozenset(declared), "the action's `with`")
    contexts = {"github": job.contexts(frame)["github"]}
    return {
        name: given.get(name, text(filled((each or {}).get("default", ""), contexts)))
        for name, each in declared.items()
    }
