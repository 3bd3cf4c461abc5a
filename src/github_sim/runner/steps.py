"""Steps of a job: scripts (`run`) and actions (`uses`), their results, and the files and commands they write for the runner.

Checkout and artifacts are built in, and composite actions come from a folder. Any other action is a `WorkflowError`:
nothing is downloaded.
"""

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from github_sim.runner.expressions import evaluate, to_text
from github_sim.runner.process import ProcessResult, run_child
from github_sim.runner.workflow_file import WorkflowStep, read_steps
from github_sim.runner.workspace import Artifacts, JobFolders, resolve_inside, write_tree
from github_sim.runner.yaml_text import WorkflowError, as_mapping, read_yaml, reject_unknown_keys
from github_sim.world.records import Json

if TYPE_CHECKING:
    from github_sim.runner.job import JobExecution

_COMMAND = re.compile(r"^::(?P<name>[\w-]+)(?: [^:\r\n]*)?::(?P<value>.*)$", re.MULTILINE)
_RESERVED = ("GITHUB_", "RUNNER_")


def read_pairs(path: Path) -> dict[str, str]:
    """`name=value` and `name<<END` lines, as steps write them to $GITHUB_OUTPUT and $GITHUB_ENV."""
    pairs: dict[str, str] = {}
    lines = iter(path.read_text(errors="replace").splitlines() if path.exists() else [])
    for line in lines:
        if not line.strip():
            continue
        name, sign, rest = _split(line)
        if not sign or not name:
            raise WorkflowError(f"Invalid format {line!r}")
        pairs[name] = rest if sign == "=" else _until(rest, lines)
    return pairs


def _split(line: str) -> tuple[str, str, str]:
    """At whichever of `=` and `<<` comes first."""
    places = {sign: line.find(sign) for sign in ("=", "<<") if sign in line}
    if not places:
        return "", "", ""
    sign = min(places, key=lambda candidate: places[candidate])
    name, _, rest = line.partition(sign)
    return name, sign, rest


def _until(end: str, lines: Iterable[str]) -> str:
    value_lines: list[str] = []
    for line in lines:
        if line == end:
            return "\n".join(value_lines)
        value_lines.append(line)
    raise WorkflowError(f"Matching delimiter not found {end!r}")


def settable_variables(pairs: dict[str, str]) -> dict[str, str]:
    """Remove the variables that a step may not set for later steps."""
    return {name: value for name, value in pairs.items() if not name.upper().startswith(_RESERVED)}


def read_masks(output: str) -> list[str]:
    masks = (match["value"].strip() for match in _COMMAND.finditer(output) if match["name"] == "add-mask")
    return [mask for mask in masks if mask]


def mask_secrets(output: str, secrets: Iterable[str]) -> str:
    """Return the log with secrets masked, and without the lines that declared them."""
    masked = _COMMAND.sub(lambda match: "" if match["name"] == "add-mask" else match[0], output)
    for secret in sorted((value for value in secrets if value), key=len, reverse=True):
        masked = masked.replace(secret, "***")
    return masked


@dataclass
class StepScope:
    """The scope of steps: the job itself, or a composite action."""

    inputs: Json
    env: Json
    steps: Json = field(default_factory=dict)
    action_path: str = ""
    failed: bool = False
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class StepOutcome:
    failed: bool = False
    stop_reason: str = ""
    log: str = ""
    outputs: dict[str, str] = field(default_factory=dict)


# As GitHub calls them; without a `shell`, bash does not fail on an error inside a pipe.
_SHELLS = {
    "": ("bash", "-e"),
    "bash": ("bash", "--noprofile", "--norc", "-eo", "pipefail"),
    "sh": ("sh", "-e"),
    "python": ("python3",),
}
_FILES = ("OUTPUT", "ENV", "PATH", "STEP_SUMMARY", "STATE")


@dataclass
class Script:
    text: str
    shell: str
    folder: str
    limit_s: float
    _command_files: dict[str, Path] = field(default_factory=dict)

    async def run(
        self, folders: JobFolders, env: Mapping[str, str], stop: asyncio.Event | None
    ) -> ProcessResult:
        if self.shell not in _SHELLS:
            raise WorkflowError(f"the simulated runner has no shell {self.shell!r}")
        cwd = resolve_inside(folders.workspace, self.folder or ".")
        if not cwd.is_dir():
            raise WorkflowError(f"there is no folder {self.folder}")
        number = sum(1 for _ in folders.temp.glob("step-*"))
        step_folder = folders.temp / f"step-{number}"
        step_folder.mkdir()
        self._command_files = {name: step_folder / name.lower() for name in _FILES}
        for path in self._command_files.values():
            path.touch()
        script_file = step_folder / ("script.py" if self.shell == "python" else "script.sh")
        script_file.write_text(self.text.replace("\r\n", "\n"))
        command_files = {f"GITHUB_{name}": str(path) for name, path in self._command_files.items()}
        command = (*_SHELLS[self.shell], str(script_file))
        return await run_child(
            command, cwd=cwd, env={**env, **command_files}, limit_s=self.limit_s, cancelled=stop
        )

    def outputs(self) -> dict[str, str]:
        return read_pairs(self._command_files["OUTPUT"])

    def set_variables(self) -> dict[str, str]:
        return read_pairs(self._command_files["ENV"])

    def added_paths(self) -> list[str]:
        return [line for line in self._command_files["PATH"].read_text().splitlines() if line][::-1]


_ACTION = re.compile(r"(?P<name>[\w.-]+/[\w.-]+(?:/[\w./-]+)?)@(?P<ref>[\w./-]+)")
_CHECKOUT = frozenset(
    {"repository", "ref", "path", "sparse-checkout", "sparse-checkout-cone-mode", "persist-credentials",
     "fetch-depth", "submodules", "token", "clean", "lfs", "show-progress", "fetch-tags", "filter", "set-safe-directory"}
)  # fmt: skip
_UPLOAD = frozenset({"name", "path", "if-no-files-found", "overwrite", "retention-days", "compression-level"})
_DOWNLOAD = frozenset({"name", "path"})
With = dict[str, str]


async def run_action(
    job: "JobExecution", step: WorkflowStep, scope: StepScope, env: Mapping[str, str]
) -> StepOutcome:
    action = str(step.raw["uses"])
    with_values = as_mapping(step.raw.get("with"), "with")
    filled_with = {
        name: to_text(evaluate(value, job.contexts(scope, env))) for name, value in with_values.items()
    }
    match = _ACTION.fullmatch(action)
    own = _OWN.get(match["name"]) if match else None
    if own is not None:
        return own(job, filled_with)
    return await _composite(job, _folder(job, action), scope, filled_with, env)


def _outcome(log: str, **outputs: str) -> StepOutcome:
    return StepOutcome(log=f"{log}\n", outputs=outputs)


def _failed(why: str) -> StepOutcome:
    return StepOutcome(failed=True, log=f"Error: {why}\n")


def _check_out(job: "JobExecution", inputs: With) -> StepOutcome:
    reject_unknown_keys(dict(inputs), _CHECKOUT, "actions/checkout")
    into = resolve_inside(job.folders.workspace, inputs.get("path") or ".")
    only = [line.strip() for line in inputs.get("sparse-checkout", "").splitlines() if line.strip()]
    name = inputs.get("repository") or job.joined.repository.full_name
    if name.lower() == job.joined.repository.full_name.lower() and not inputs.get("ref"):
        job.joined.snapshot.check_out(into, only)
        return _outcome(f"checked out {name}", commit=job.run.head_sha)
    world = job.runner.sim.world
    repository = world.find(name)
    commit = world.resolve(repository, inputs.get("ref") or repository.default_branch) if repository else None
    if commit is None:
        return _failed(f"cannot check out {inputs.get('ref') or 'the default branch'} of {name}")
    write_tree(commit.tree, into, only)
    return _outcome(f"checked out {name} at {commit.sha}", commit=commit.sha)


def _upload(job: "JobExecution", inputs: With) -> StepOutcome:
    reject_unknown_keys(dict(inputs), _UPLOAD, "actions/upload-artifact")
    patterns = [line.strip() for line in inputs.get("path", "").splitlines() if line.strip()]
    root = job.folders.root.resolve()
    if any(Path(path).is_absolute() and not Path(path).resolve().is_relative_to(root) for path in patterns):
        raise WorkflowError(f"{', '.join(patterns)} leads out of the job's folders")
    count = _artifacts(job).keep(inputs.get("name") or "artifact", job.folders.workspace, patterns)
    if not count and inputs.get("if-no-files-found", "warn") == "error":
        return _failed(f"No files were found with the provided path: {', '.join(patterns)}")
    return _outcome(f"kept {count} files")


def _download(job: "JobExecution", inputs: With) -> StepOutcome:
    reject_unknown_keys(dict(inputs), _DOWNLOAD, "actions/download-artifact")
    path = Path(inputs.get("path") or ".")
    into = path if path.is_absolute() else resolve_inside(job.folders.workspace, str(path))
    if not into.resolve().is_relative_to(job.folders.root.resolve()):
        raise WorkflowError(f"{path} leads out of the job's folders")
    name = inputs.get("name") or "artifact"
    if not _artifacts(job).fetch(name, into):
        return _failed(f"Unable to download artifact(s): Artifact not found for name: {name}")
    return _outcome(f"fetched {name}")


def _artifacts(job: "JobExecution") -> Artifacts:
    return Artifacts(job.runner.folders.root / "artifacts" / f"{job.run.id}-{job.run.attempt}")


_OWN: Mapping[str, Callable[["JobExecution", With], StepOutcome]] = {
    "actions/checkout": _check_out,
    "actions/upload-artifact": _upload,
    "actions/download-artifact": _download,
}


def _folder(job: "JobExecution", action: str) -> Path:
    """Where a composite action is: in the workspace, or in a folder that the runner knows."""
    if action.startswith("./"):
        return resolve_inside(job.folders.workspace, action)
    match = _ACTION.fullmatch(action)
    folder = job.runner.actions.get(match["name"]) if match else None
    if folder is None:
        raise WorkflowError(f"the simulated runner has no action {action}")
    return folder


async def _composite(
    job: "JobExecution", folder: Path, scope: StepScope, with_values: With, env: Mapping[str, str]
) -> StepOutcome:
    action = _read_action(folder)
    inner = StepScope(
        inputs=_inputs(action, with_values, job, scope),
        env={**scope.env, **env},
        action_path=str(folder),
        cancelled=scope.cancelled,
    )
    steps = read_steps(action["runs"].get("steps"), str(folder))
    done = await job.steps(steps, inner)
    outputs = {
        name: to_text(evaluate(output.get("value"), job.contexts(inner)))
        for name, output in (action.get("outputs") or {}).items()
    }
    why = next((outcome.stop_reason for outcome in done if outcome.stop_reason), "")
    return StepOutcome(inner.failed, why, "".join(outcome.log for outcome in done), outputs)


def _read_action(folder: Path) -> Json:
    path = next((folder / name for name in ("action.yml", "action.yaml") if (folder / name).is_file()), None)
    if path is None:
        raise WorkflowError(f"{folder} has no action.yml")
    action = read_yaml(path.read_text(), str(path))
    runs = as_mapping(action.get("runs"), f"{path}: runs")
    if runs.get("using") != "composite":
        raise WorkflowError(f"{path} is no composite action, and the simulated runner runs no other")
    return action


def _inputs(action: Json, with_values: With, job: "JobExecution", scope: StepScope) -> Json:
    declared = action.get("inputs") or {}
    reject_unknown_keys(dict(with_values), frozenset(declared), "the action's `with`")
    contexts = {"github": job.contexts(scope)["github"]}
    return {
        name: with_values.get(name, to_text(evaluate((declaration or {}).get("default", ""), contexts)))
        for name, declaration in declared.items()
    }
