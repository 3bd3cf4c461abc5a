"""A file of `.github/workflows` as data: events, permissions, and jobs with their matrix combinations and steps.

Expressions are kept as written and evaluated in a run. An unknown key is a `WorkflowError`, so nothing that a file asks
for is silently ignored.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from github_sim.runner.expressions import OPEN
from github_sim.runner.yaml_text import WorkflowError, as_list, as_mapping, read_yaml, reject_unknown_keys
from github_sim.world.records import Json

_WORKFLOW = frozenset({"name", "run-name", "on", "permissions", "env", "defaults", "concurrency", "jobs"})
_JOB = frozenset(
    {"name", "needs", "if", "permissions", "runs-on", "environment", "outputs", "env", "defaults",
     "steps", "timeout-minutes", "strategy", "continue-on-error"}
)  # fmt: skip
_STEP = frozenset(
    {"id", "if", "name", "uses", "run", "working-directory", "shell", "with", "env", "continue-on-error",
     "timeout-minutes"}
)  # fmt: skip
_EVENTS = frozenset(
    {"repository_dispatch", "workflow_dispatch", "schedule", "push", "pull_request", "workflow_call"}
)
_LEVELS = frozenset({"read", "write", "none"})
Permissions = Mapping[str, str] | None


@dataclass(frozen=True)
class WorkflowStep:
    number: int
    raw: Json

    @property
    def id(self) -> str | None:
        return self.raw.get("id")

    @property
    def label(self) -> str:
        """What its line is called when it has no name."""
        action = self.raw.get("uses")
        script = str(self.raw.get("run", "")).strip().splitlines() or [""]
        return str(self.raw.get("name") or (f"Run {action}" if action else f"Run {script[0]}"))


@dataclass(frozen=True)
class JobFile:
    id: str
    raw: Json
    needs: tuple[str, ...]
    steps: tuple[WorkflowStep, ...]
    permissions: Permissions
    combinations: Sequence[Json] = ({},)

    def name_of(self, combination: Json) -> str:
        """As GitHub names it: `name` where it is given, else the id with the combination's values."""
        if self.raw.get("name"):
            return str(self.raw["name"])
        values = ", ".join(_shown(value) for value in combination.values())
        return f"{self.id} ({values})" if values else self.id


@dataclass(frozen=True)
class WorkflowFile:
    path: str
    name: str
    on: Mapping[str, Json]
    raw: Json
    jobs: Mapping[str, JobFile] = field(default_factory=dict)

    def is_triggered_by(self, event: str, event_type: str) -> bool:
        if event not in self.on:
            return False
        types = as_list(self.on[event].get("types"))
        return event != "repository_dispatch" or not types or event_type in types


def read_workflow(text: str, path: str) -> WorkflowFile:
    document = read_yaml(text, path)
    reject_unknown_keys(document, _WORKFLOW, path)
    jobs = as_mapping(document.get("jobs"), f"{path}: jobs")
    if not jobs:
        raise WorkflowError(f"{path} has no jobs")
    above = permissions_of(document.get("permissions"), path) if "permissions" in document else None
    read = {name: _job(name, job, above, path) for name, job in jobs.items()}
    _check_needs(read, path)
    return WorkflowFile(
        path, str(document.get("name") or path), _events(document.get("on"), path), document, read
    )


def _events(on: Any, path: str) -> dict[str, Json]:
    by_name = dict.fromkeys(as_list(on)) if not isinstance(on, dict) else on
    if not by_name:
        raise WorkflowError(f"{path} listens to nothing")
    reject_unknown_keys(by_name, _EVENTS, f"{path}: on")
    return {
        event: {"crons": how} if event == "schedule" else as_mapping(how, f"{path}: on.{event}")
        for event, how in by_name.items()
    }


def _job(name: str, value: Any, above: Permissions, path: str) -> JobFile:
    where = f"{path}: jobs.{name}"
    job = as_mapping(value, where)
    reject_unknown_keys(job, _JOB, where)
    if not job.get("runs-on"):
        raise WorkflowError(f"{where} does not say where it runs (runs-on)")
    own = permissions_of(job["permissions"], where) if "permissions" in job else above
    needs = tuple(as_list(job.get("needs")))
    return JobFile(name, job, needs, read_steps(job.get("steps"), where), own, _combinations(job, where))


def read_steps(value: Any, where: str) -> tuple[WorkflowStep, ...]:
    steps = as_list(value)
    if not steps:
        raise WorkflowError(f"{where} has no steps")
    return tuple(_step(number, step, where) for number, step in enumerate(steps, start=1))


def _step(number: int, value: Any, where: str) -> WorkflowStep:
    location = f"{where}, step {number}"
    step = as_mapping(value, location)
    reject_unknown_keys(step, _STEP, location)
    if ("uses" in step) == ("run" in step):
        raise WorkflowError(f"{location} needs either `run` or `uses`")
    return WorkflowStep(number, step)


def permissions_of(permissions: Any, where: str) -> Mapping[str, str]:
    """Only named permissions are granted; id-token only by its name, or by write-all."""
    if permissions in ("read-all", "write-all"):
        return {"*": permissions.removesuffix("-all")}
    named = {str(key): str(value) for key, value in as_mapping(permissions, f"{where}: permissions").items()}
    wrong = [f"{key}: {value}" for key, value in named.items() if value not in _LEVELS]
    if wrong:
        raise WorkflowError(f"{where}: permissions has {', '.join(wrong)}")
    return named


def may_request_token(permissions: Permissions) -> bool:
    """Whether a job gets OIDC tokens. The default of a repository never includes it."""
    given = permissions or {}
    return given.get("id-token", given.get("*")) == "write"


def _combinations(job: Json, where: str) -> Sequence[Json]:
    strategy = as_mapping(job.get("strategy"), f"{where}: strategy")
    reject_unknown_keys(strategy, frozenset({"matrix", "fail-fast", "max-parallel"}), f"{where}: strategy")
    if "matrix" not in strategy:
        return ({},)
    matrix = as_mapping(strategy["matrix"], f"{where}: matrix")
    axes = {name: values for name, values in matrix.items() if name not in {"include", "exclude"}}
    if any(isinstance(values, str) and OPEN in values for values in matrix.values()):
        raise WorkflowError(f"{where}: a matrix made by an expression is beyond the simulated runner")
    made = [
        dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*map(as_list, axes.values()))
    ]
    kept = [
        combination
        for combination in made
        if not any(_fits(combination, out) for out in as_list(matrix.get("exclude")))
    ]
    return _included(kept if axes else [], as_list(matrix.get("include")), set(axes))


def _included(combinations: list[Json], more: list[Json], axes: set[str]) -> list[Json]:
    """GitHub's rule: an item extends every combination it does not contradict, else it is a combination of its own."""
    result = [dict(combination) for combination in combinations]
    for item in more:
        fitting = [
            combination
            for combination, whole in zip(result, combinations, strict=False)
            if _agrees(whole, item, axes)
        ]
        for combination in fitting:
            combination.update(item)
        if not fitting:
            result.append(dict(item))
    return result


def _agrees(combination: Json, item: Json, axes: set[str]) -> bool:
    return all(combination[key] == value for key, value in item.items() if key in axes)


def _fits(combination: Json, out: Json) -> bool:
    return all(combination.get(key) == value for key, value in out.items())


def _check_needs(jobs: Mapping[str, JobFile], path: str) -> None:
    done: set[str] = set()
    while waiting := [job for job in jobs.values() if job.id not in done]:
        ready = [job.id for job in waiting if set(job.needs) <= done]
        if not ready:
            raise WorkflowError(
                f"{path}: needs of {', '.join(job.id for job in waiting)} lead nowhere or in a circle"
            )
        done.update(ready)


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
