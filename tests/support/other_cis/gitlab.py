"""A small GitLab CI: turns `.gitlab-ci.yml` and its includes into planned jobs, with the runner's environment.

It implements `extends`, `needs`, `rules`, `id_tokens`, `variables` and `artifacts`; other keys that would change what
happens raise `WorkflowError`. Variables of a trigger take precedence over those of the file.
"""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from github_sim.runner.workspace import JobFolders
from github_sim.runner.yaml_text import WorkflowError, as_list, as_mapping, read_yaml, reject_unknown_keys
from github_sim.simulation import Simulation
from github_sim.world.records import Json
from support.other_cis.builds import (
    FAILED,
    PASSED,
    SKIPPED,
    Build,
    Deed,
    PlannedJob,
    Shell,
    check_out,
)

FILE = ".gitlab-ci.yml"
_TOP = frozenset({"include", "stages", "variables"})
_JOB = frozenset(
    {"extends", "stage", "image", "timeout", "interruptible", "id_tokens", "variables", "script", "before_script",
     "needs", "rules", "tags", "artifacts"}
)  # fmt: skip
_STAGES = (".pre", "build", "test", "deploy", ".post")
_FIRST_JOB = 302_000


def plan(sim: Simulation, build: Build) -> list[PlannedJob]:
    given = _read(build.joined.snapshot.root, FILE)
    predefined = _predefined(sim, build)
    values = {**predefined, **_texts(given.get("variables")), **build.env}
    jobs = {name: _extended(given, name) for name in given if name not in _TOP and not name.startswith(".")}
    when = {name: _when(job, values) for name, job in jobs.items()}
    live = {name: job for name, job in jobs.items() if when[name] != "never"}
    stages = list(map(str, given.get("stages") or _STAGES))
    made = _Pipeline(sim, build, values, live, stages)
    return [made.job(number, name, when[name]) for number, name in enumerate(live, start=1)]


def _read(root: Path, path: str) -> Json:
    if not (root / path).is_file():
        raise WorkflowError(f"there is no {path}")
    given = read_yaml((root / path).read_text(), path)
    found: Json = {}
    for each in as_list(given.get("include")):
        local = as_mapping(each, "include").get("local") if not isinstance(each, str) else each
        if not local:
            raise WorkflowError(f"{path} includes what is not local")
        found.update(_read(root, str(local).lstrip("/")))
    return {**found, **given}


def _extended(given: Json, name: str) -> Json:
    job = as_mapping(given.get(name), name)
    reject_unknown_keys(job, _JOB, f"{FILE}: {name}")
    whole: Json = {}
    for above in as_list(job.get("extends")):
        whole = _merged(whole, _extended(given, above))
    return _merged(whole, {key: value for key, value in job.items() if key != "extends"})


def _merged(above: Json, own: Json) -> Json:
    """Merge mappings; replace anything else."""
    both = {key: _merged(above[key], own[key]) for key in own if _are_mappings(above.get(key), own[key])}
    return {**above, **own, **both}


def _are_mappings(one: Any, other: Any) -> bool:
    return isinstance(one, dict) and isinstance(other, dict)


def _when(job: Json, values: Mapping[str, str]) -> str:
    if "rules" not in job:
        return "on_success"
    for rule in as_list(job["rules"]):
        reject_unknown_keys(rule, frozenset({"if", "when"}), "rules")
        if "if" not in rule or rule_holds(str(rule["if"]), values):
            return str(rule.get("when", "on_success"))
    return "never"


class _Pipeline:
    def __init__(
        self,
        sim: Simulation,
        build: Build,
        values: Mapping[str, str],
        jobs: Mapping[str, Json],
        stages: list[str],
    ) -> None:
        self._sim = sim
        self._build = build
        self._values = values
        self._jobs = jobs
        self._stages = stages

    def job(self, number: int, name: str, when: str) -> PlannedJob:
        job = self._jobs[name]
        if when not in {"on_success", "on_failure", "always"}:
            raise WorkflowError(f"{name}: the simulated GitLab does not know `when: {when}`")
        own = {**_texts(job.get("variables")), **self._build.env}
        env = {**self._values, **own, **self._own(name, number, job)}
        env = {key: expand_variables(value, env) for key, value in env.items()}
        ends = {"on_success": {PASSED}, "on_failure": {PASSED, FAILED}, "always": {PASSED, FAILED, SKIPPED}}[
            when
        ]
        needs = self._needs(name, job)
        return PlannedJob(
            name=name,
            steps=self._steps(name, job, env),
            env=env,
            needs=dict.fromkeys(needs, frozenset(ends)),
            needs_failure=when == "on_failure",
        )

    def _own(self, name: str, number: int, job: Json) -> dict[str, str]:
        id = str(_FIRST_JOB + self._build.number * 100 + number)
        own = {
            "CI_JOB_ID": id,
            "CI_JOB_NAME": name,
            "CI_JOB_STAGE": str(job.get("stage", "test")),
            "CI_JOB_STATUS": "running",
            "CI_JOB_URL": f"{self._values['CI_PROJECT_URL']}/-/jobs/{id}",
        }
        for variable, asked in as_mapping(job.get("id_tokens"), "id_tokens").items():
            own[variable] = self._token(str(asked["aud"]), id)
        return own

    def _token(self, audience: str, job_id: str) -> str:
        values = self._values
        project, path = values["CI_PROJECT_ID"], values["CI_PROJECT_PATH"]
        return self._sim.gitlab.token(
            expand_variables(audience, values),
            project_id=project,
            project_path=path,
            job_project_id=project,
            job_project_path=path,
            pipeline_id=values["CI_PIPELINE_ID"],
            pipeline_source=values["CI_PIPELINE_SOURCE"],
            job_id=job_id,
            ref=values["CI_COMMIT_REF_NAME"],
            sha=values["CI_COMMIT_SHA"],
        )

    def _needs(self, name: str, job: Json) -> list[str]:
        if "needs" not in job:
            before = self._stages[: self._stage(job)]
            return [other for other, each in self._jobs.items() if each.get("stage", "test") in before]
        needs = []
        for each in as_list(job["needs"]):
            need = {"job": each} if isinstance(each, str) else as_mapping(each, "needs")
            if need["job"] in self._jobs:
                needs.append(str(need["job"]))
            elif not need.get("optional"):
                raise WorkflowError(
                    f"'{name}' job needs '{need['job']}' job, but it does not exist in the pipeline"
                )
        return needs

    def _stage(self, job: Json) -> int:
        stage = job.get("stage", "test")
        if stage not in self._stages:
            raise WorkflowError(f"there is no stage {stage}")
        return self._stages.index(stage)

    def _steps(self, name: str, job: Json, env: Mapping[str, str]) -> list[Shell | Deed]:
        steps: list[Shell | Deed] = []
        if env.get("GIT_STRATEGY") != "none":
            steps.append(check_out(self._build.joined))
        steps += [self._fetch(need) for need in as_list(job.get("needs")) if _with_artifacts(need)]
        lines = as_list(job.get("before_script")) + as_list(job.get("script"))
        steps.append(Shell("\n".join(map(str, lines))))
        if "artifacts" in job:
            steps.append(
                Shell(self._keep(name, job["artifacts"]), when=job["artifacts"].get("when", "on_success"))
            )
        return steps

    def _keep(self, name: str, given: Json) -> str:
        reject_unknown_keys(given, frozenset({"when", "paths", "expire_in"}), f"{name}: artifacts")
        place = self._build.kept / name
        return "\n".join(
            f'shopt -s globstar nullglob; cd "$CI_PROJECT_DIR"; for f in {pattern}; do '
            f'mkdir -p "{place}/$(dirname "$f")" && cp "$f" "{place}/$f"; done'
            for pattern in as_list(given.get("paths"))
        )

    def _fetch(self, need: Any) -> Deed:
        name = need if isinstance(need, str) else str(need["job"])
        place = self._build.kept / name

        def fetch(folders: JobFolders) -> None:
            if place.is_dir():
                shutil.copytree(place, folders.workspace, dirs_exist_ok=True)

        return fetch


def _with_artifacts(need: Any) -> bool:
    return isinstance(need, str) or need.get("artifacts", True) is not False


def _predefined(sim: Simulation, build: Build) -> dict[str, str]:
    repository = build.joined.repository
    number, path = build.path
    address = f"{sim.gitlab.url}/{path}"
    return {
        "GITLAB_CI": "true",
        "CI_SERVER_URL": sim.gitlab.url,
        "CI_PROJECT_ID": number,
        "CI_PROJECT_PATH": path,
        "CI_PROJECT_NAME": path.rpartition("/")[2],
        "CI_PROJECT_URL": address,
        "CI_PROJECT_DIR": "{{WORKSPACE}}",
        "CI_REPOSITORY_URL": f"file://{clonable(build)}",
        "CI_PIPELINE_ID": build.id,
        "CI_PIPELINE_SOURCE": "trigger",
        "CI_PIPELINE_URL": f"{address}/-/pipelines/{build.id}",
        "CI_COMMIT_SHA": repository.head_sha,
        "CI_COMMIT_BRANCH": repository.default_branch,
        "CI_COMMIT_REF_NAME": repository.default_branch,
        "CI_COMMIT_REF_PROTECTED": "true",
        "CI_DEFAULT_BRANCH": repository.default_branch,
    }


def clonable(build: Build) -> Path:
    """The joined files as a real git repository, since a job may clone its own."""
    place = build.kept.parent / f"{build.kept.name}.git"
    git = ("git", "-c", "user.name=sim", "-c", "user.email=sim@example.org", "-C", str(place))
    branch = build.joined.repository.default_branch
    build.joined.snapshot.check_out(place)
    for words in (("init", "-q", "-b", branch), ("add", "-A", "-f"), ("commit", "-q", "-m", "Join")):
        subprocess.run((*git, *words), check=True, capture_output=True, timeout=30)
    return place


def _texts(given: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in as_mapping(given, "variables").items()}


_TERM = re.compile(r"""\$(\w+)(?:\s*(==|!=)\s*(?:"([^"]*)"|'([^']*)'|(null)|\$(\w+)))?""")
_NAME = re.compile(r"\$(?:(\w+)|\{(\w+)\})")


def rule_holds(condition: str, values: Mapping[str, str]) -> bool:
    """`$A`, `$A == "b"`, `!=`, joined by `&&` and `||`; anything else raises `WorkflowError`."""
    return any(
        all(_term(term.strip(), condition, values) for term in part.split("&&"))
        for part in condition.split("||")
    )


def _term(term: str, condition: str, values: Mapping[str, str]) -> bool:
    found = _TERM.fullmatch(term)
    if found is None:
        raise WorkflowError(f"the simulated GitLab cannot read the condition `{condition}`")
    name, sign, double, single, null, other = found.groups()
    value = values.get(name)
    if sign is None:
        return bool(value)
    wanted = None if null else values.get(other) if other else double if double is not None else single
    return (value == wanted) == (sign == "==")


def expand_variables(value: str, values: Mapping[str, str]) -> str:
    return _NAME.sub(lambda found: values.get(found[1] or found[2], found[0]), value)
