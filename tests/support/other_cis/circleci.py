"""A small CircleCI: turns a config into the planned jobs of one workflow, with the executor's environment.

It implements jobs with parameters, `requires` with conclusions, contexts, workspaces and `run` steps. Commands, orbs,
named executors and matrices raise `WorkflowError`. Files are persisted to a workspace only while the job's steps succeed:
CircleCI ignores `when` there, so it raises `WorkflowError` too.
"""

import json
import re
import shutil
from collections.abc import Mapping
from typing import Any

from github_sim.oidc.other_cis import stable_id
from github_sim.runner.workspace import JobFolders
from github_sim.runner.yaml_text import WorkflowError, as_list, as_mapping, read_yaml, reject_unknown_keys
from github_sim.simulation import Simulation
from github_sim.world.records import Json
from support.other_cis.builds import (
    CANCELED,
    FAILED,
    PASSED,
    Build,
    Deed,
    Mint,
    PlannedJob,
    Shell,
    check_out,
)

FILE = ".circleci/crcr.yml"
SECRETS_PATH = "/internal/oidc"
_TOP = frozenset({"version", "parameters", "jobs", "workflows"})
_JOB = frozenset(
    {"parameters", "docker", "machine", "resource_class", "environment", "steps", "working_directory"}
)
_RUN = frozenset({"name", "command", "when", "environment"})
_PERSIST = frozenset({"root", "paths"})
_ENDS = {"success": PASSED, "failed": FAILED, "canceled": CANCELED}


def read_config(build: Build) -> Json:
    path = build.joined.snapshot.root / FILE
    if not path.is_file():
        raise WorkflowError(f"there is no {FILE}")
    given = read_yaml(path.read_text(), FILE)
    reject_unknown_keys(given, _TOP, FILE)
    return given


def pipeline_parameters(given: Json, parameters: Mapping[str, Any]) -> Json:
    """The pipeline's parameters with their defaults; an undeclared one is refused, as CircleCI does."""
    declared = as_mapping(given.get("parameters"), "parameters")
    reject_unknown_keys(dict(parameters), frozenset(declared), "the request")
    return {name: parameters.get(name, (each or {}).get("default", "")) for name, each in declared.items()}


def plan(sim: Simulation, build: Build, given: Json, parameters: Mapping[str, Any]) -> list[PlannedJob]:
    """The jobs of the workflow whose condition holds; only one such workflow is supported."""
    values = {f"pipeline.parameters.{name}": value for name, value in parameters.items()}
    flows = [
        as_mapping(each, name)
        for name, each in as_mapping(given.get("workflows"), "workflows").items()
        if condition_holds(fill_parameters(as_mapping(each, name).get("when", True), values))
    ]
    if len(flows) > 1:
        raise WorkflowError("more than one workflow would run, and the simulated CircleCI runs one")
    made = _Flow(sim, build, given, values)
    return [made.job(each) for flow in flows for each in as_list(flow.get("jobs"))]


class _Flow:
    def __init__(self, sim: Simulation, build: Build, given: Json, values: Json) -> None:
        self._sim = sim
        self._build = build
        self._given = given
        self._values = values

    def job(self, listed: Any) -> PlannedJob:
        ((kind, asked),) = ({listed: {}} if isinstance(listed, str) else listed).items()
        asked = fill_parameters(as_mapping(asked, kind), self._values)
        name = str(asked.pop("name", kind))
        needs = _needs(asked.pop("requires", []))
        contexts = as_list(asked.pop("context", []))
        job = self._job_file(kind, asked)
        env = {str(key): _text(value) for key, value in (job.get("environment") or {}).items()}
        id = stable_id("circleci", self._build.id, name)
        return PlannedJob(
            name=name,
            steps=[self._step(each) for each in as_list(job.get("steps"))],
            env={**env, **self._environment(name, id, contexts)},
            needs=needs,
            mint=self._mint(id, contexts),
            tools={"circleci": CIRCLECI_CLI % {"address": f"{self._sim.circleci.url}{SECRETS_PATH}"}},
        )

    def _job_file(self, kind: str, given: Json) -> Json:
        job = as_mapping(self._given["jobs"].get(kind), f"{FILE}: {kind}")
        reject_unknown_keys(job, _JOB, f"{FILE}: {kind}")
        declared = as_mapping(job.get("parameters"), "parameters")
        reject_unknown_keys(given, frozenset(declared), f"{kind} in the workflow")
        own = {
            f"parameters.{name}": given.get(name, (each or {}).get("default"))
            for name, each in declared.items()
        }
        missing = [name for name, value in own.items() if value is None]
        if missing:
            raise WorkflowError(f"{kind} needs {', '.join(missing)}")
        body = {key: value for key, value in job.items() if key != "parameters"}
        return as_mapping(fill_parameters(body, {**self._values, **own}), kind)

    def _step(self, given: Any) -> Shell | Deed:
        if given == "checkout":
            return check_out(self._build.joined)
        ((kind, how),) = as_mapping(given, "a step").items()
        if kind == "run":
            run = {"command": how} if isinstance(how, str) else as_mapping(how, "run")
            reject_unknown_keys(run, _RUN, "run")
            when = {"on_fail": "on_failure"}.get(run.get("when", ""), run.get("when", "on_success"))
            return Shell(str(run["command"]), when=str(when))
        if kind == "attach_workspace":
            return self._attach(str(how["at"]))
        if kind == "persist_to_workspace":
            reject_unknown_keys(as_mapping(how, kind), _PERSIST, kind)
            return self._persist([str(each) for each in how["paths"]])
        raise WorkflowError(f"the simulated CircleCI has no step {kind}")

    def _attach(self, at: str) -> Deed:
        def attach(folders: JobFolders) -> None:
            place = folders.temp / at.removeprefix("/tmp/")  # noqa: S108 - a folder of the job's folders
            place.mkdir(parents=True, exist_ok=True)
            if self._build.kept.is_dir():
                shutil.copytree(self._build.kept, place, dirs_exist_ok=True)

        return attach

    def _persist(self, patterns: list[str]) -> Deed:
        def persist(folders: JobFolders) -> None:
            for pattern in patterns:
                for path in folders.workspace.glob(pattern):
                    target = self._build.kept / path.relative_to(folders.workspace)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, target)

        return persist

    def _environment(self, name: str, id: str, contexts: list[str]) -> dict[str, str]:
        repository = self._build.joined.repository
        default = self._mint(id, contexts)(self._sim.circleci.organization_id)
        return {
            "CIRCLECI": "true",
            "CIRCLE_BRANCH": repository.default_branch,
            "CIRCLE_BUILD_NUM": str(self._build.number),
            "CIRCLE_BUILD_URL": f"{self._sim.base_url}/_circleci/{repository.full_name}/{self._build.number}",
            "CIRCLE_JOB": name,
            "CIRCLE_NODE_INDEX": "0",
            "CIRCLE_NODE_TOTAL": "1",
            "CIRCLE_OIDC_TOKEN": default,
            "CIRCLE_OIDC_TOKEN_V2": default,
            "CIRCLE_ORGANIZATION_ID": self._sim.circleci.organization_id,
            "CIRCLE_PROJECT_ID": self._sim.circleci.project_id,
            "CIRCLE_PROJECT_REPONAME": repository.name,
            "CIRCLE_PROJECT_USERNAME": repository.owner.login,
            "CIRCLE_SHA1": repository.head_sha,
            "CIRCLE_SIMULATED_SECRET": "{{JOB_SECRET}}",
            "CIRCLE_WORKFLOW_ID": self._build.id,
            "CIRCLE_WORKFLOW_JOB_ID": id,
            "CIRCLE_WORKING_DIRECTORY": "{{WORKSPACE}}",
        }

    def _mint(self, id: str, contexts: list[str]) -> Mint:
        known = [self._sim.circleci.context_id(name) for name in contexts]

        def mint(audience: str) -> str:
            return self._sim.circleci.token(
                audience,
                context_ids=known,
                job_id=id,
                workflow_id=self._build.id,
                vcs_origin=f"github.com/{self._build.joined.repository.full_name}",
                vcs_ref=f"refs/heads/{self._build.joined.repository.default_branch}",
            )

        return mint


def _needs(given: Any) -> dict[str, frozenset[str]]:
    needs: dict[str, frozenset[str]] = {}
    for each in as_list(given):
        ((name, ends),) = ({each: ["success"]} if isinstance(each, str) else each).items()
        strange = [end for end in as_list(ends) if end not in _ENDS]
        if strange:
            raise WorkflowError(f"requires does not know {', '.join(strange)}")
        needs[str(name)] = frozenset(_ENDS[end] for end in as_list(ends))
    return needs


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


_MARK = re.compile(r"<<\s*([\w.-]+)\s*>>")
Values = Mapping[str, Any]


def fill_parameters(given: Any, values: Values) -> Any:
    """A part of the config with its parameters replaced; a value that is only a parameter keeps the parameter's type."""
    if isinstance(given, dict):
        return {key: fill_parameters(value, values) for key, value in given.items()}
    if isinstance(given, list):
        return [fill_parameters(each, values) for each in given]
    if not isinstance(given, str):
        return given
    whole = _MARK.fullmatch(given.strip())
    if whole is not None:
        return _value(whole[1], values)
    return _MARK.sub(lambda found: str(_value(found[1], values)), given)


def _value(name: str, values: Values) -> Any:
    if name not in values:
        raise WorkflowError(f"there is no {name} in the config")
    return values[name]


def condition_holds(condition: Any) -> bool:
    """A value, or and, or, not and equal over values; the parameters are already put in."""
    if not isinstance(condition, dict):
        return bool(condition)
    if len(condition) != 1:
        raise WorkflowError(f"the simulated CircleCI cannot read the condition {condition}")
    ((word, given),) = condition.items()
    if word == "and":
        return all(condition_holds(each) for each in as_list(given))
    if word == "or":
        return any(condition_holds(each) for each in as_list(given))
    if word == "not":
        return not condition_holds(given)
    if word == "equal":
        return all(each == given[0] for each in given)
    raise WorkflowError(f"the simulated CircleCI does not know the condition {word}")


# The program `circleci` on a job's PATH. It calls the simulator as the real one calls CircleCI.
CIRCLECI_CLI = """
import json, os, sys, urllib.request

if sys.argv[1:5] != ["run", "oidc", "get", "--claims"]:
    sys.exit("the simulated circleci does not know " + " ".join(sys.argv[1:]))
request = urllib.request.Request(
    "%(address)s",
    data=json.dumps(json.loads(sys.argv[5])).encode(),
    headers={"Authorization": "Bearer " + os.environ["CIRCLE_SIMULATED_SECRET"]},
)
with urllib.request.urlopen(request, timeout=30) as answer:
    print(json.load(answer)["token"])
"""
