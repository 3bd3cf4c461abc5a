"""A small Buildkite: turns a pipeline file into planned jobs, with the environment that the agent sets.

Reads what `buildkite-agent pipeline upload` would: `$NAME` is replaced at once, `$$` is a dollar sign. Plugins,
matrices, groups, waits, blocks and other keys that would change what happens raise `WorkflowError`.
"""

import re
from collections.abc import Mapping
from typing import Any

from github_sim.oidc.other_cis import stable_id
from github_sim.runner.yaml_text import WorkflowError, as_list, as_mapping, read_yaml, reject_unknown_keys
from github_sim.simulation import Simulation
from github_sim.world.records import Json
from support.other_cis.builds import (
    CANCELED,
    FAILED,
    PASSED,
    SKIPPED,
    Build,
    Deed,
    Mint,
    PlannedJob,
    Shell,
    check_out,
)

FILE = ".buildkite/crcr.yml"
_STEP = frozenset(
    {"label", "key", "depends_on", "command", "commands", "env", "if", "agents", "timeout_in_minutes",
     "artifact_paths", "allow_dependency_failure"}
)  # fmt: skip
_VARIABLE = re.compile(r"\$(\$|\{(\w+)\}|(\w+)|\{)")
_TERM = re.compile(r'build\.env\("(\w+)"\)\s*(==|!=)\s*"([^"]*)"')


def plan(sim: Simulation, build: Build) -> list[PlannedJob]:
    path = build.joined.snapshot.root / FILE
    if not path.is_file():
        raise WorkflowError(f"there is no {FILE}")
    given = read_yaml(path.read_text(), FILE)
    reject_unknown_keys(given, frozenset({"steps", "env"}), FILE)
    steps = [as_mapping(each, f"{FILE}: a step") for each in as_list(given.get("steps"))]
    for step in steps:
        reject_unknown_keys(step, _STEP, f"{FILE}: {step.get('key') or step.get('label')}")
    above = {**_texts(given.get("env")), **build.env}
    live = {str(step["key"]): step for step in steps if _holds(step.get("if"), build.env)}
    return [_job(sim, build, step, above, set(live)) for step in live.values()]


def _holds(condition: Any, env: Mapping[str, str]) -> bool:
    """`build.env("X") == "y"` and `!=`, joined by `&&`."""
    for term in str(condition).split("&&") if condition else ():
        found = _TERM.fullmatch(term.strip())
        if found is None:
            raise WorkflowError(f"the simulated Buildkite cannot read the condition `{condition}`")
        if (env.get(found[1], "") == found[3]) != (found[2] == "=="):
            return False
    return True


def _job(sim: Simulation, build: Build, step: Json, above: Mapping[str, str], live: set[str]) -> PlannedJob:
    key = str(step["key"])
    id = stable_id("buildkite", build.id, key)
    lines = "\n".join(map(str, as_list(step.get("command")) + as_list(step.get("commands"))))
    env = {**above, **{name: _uploaded(value, above) for name, value in _texts(step.get("env")).items()}}
    steps: list[Shell | Deed] = [
        check_out(build.joined),
        Shell(_uploaded(lines, above), command=("bash", "-e")),
    ]
    patterns = [each for each in re.split(r"[;\n]", "\n".join(as_list(step.get("artifact_paths")))) if each]
    if patterns:
        steps.append(Shell(_keep_words(build, key, patterns), when="always"))
    return PlannedJob(
        name=key,
        steps=steps,
        env={**env, **environment(sim, build, step, id)},
        needs=_needs(step, live),
        mint=_mint(sim, build, key, id),
        tools={"buildkite-agent": BUILDKITE_AGENT},
    )


def _keep_words(build: Build, key: str, patterns: list[str]) -> str:
    """Keep the matching artifacts after the command, whether it failed or not, as the agent does."""
    place = build.kept / key
    return "\n".join(
        f"shopt -s globstar nullglob; for f in {pattern}; do "
        f'mkdir -p "{place}/$(dirname "$f")" && cp "$f" "{place}/$f"; done'
        for pattern in patterns
    )


def _needs(step: Json, live: set[str]) -> dict[str, frozenset[str]]:
    """The needs of a step, without steps that their condition left out."""
    needs: dict[str, frozenset[str]] = {}
    for each in as_list(step.get("depends_on")):
        key = each if isinstance(each, str) else str(as_mapping(each, "depends_on")["step"])
        forgiving = isinstance(each, dict) and each.get("allow_failure") is True
        forgiving = forgiving or step.get("allow_dependency_failure") is True
        if key in live:
            needs[key] = frozenset({PASSED, FAILED, CANCELED, SKIPPED} if forgiving else {PASSED})
    return needs


def _uploaded(text: str, env: Mapping[str, str]) -> str:
    def value(found: re.Match[str]) -> str:
        if found[1] == "$":
            return "$"
        if found[1] == "{":
            raise WorkflowError(f"the simulated Buildkite cannot read {text[found.start() :][:20]!r}")
        return env.get(found[2] or found[3], "")

    return _VARIABLE.sub(value, text)


def _mint(sim: Simulation, build: Build, key: str, id: str) -> Mint:
    def mint(audience: str, claims: list[str]) -> str:
        return sim.buildkite.token(
            audience,
            wanted=tuple(each for each in claims if each in {"organization_id", "pipeline_id"}),
            organization_slug=build.path[0],
            pipeline_slug=build.path[1],
            build_number=build.number,
            build_commit=build.joined.repository.head_sha,
            step_key=key,
            job_id=id,
        )

    return mint


def environment(sim: Simulation, build: Build, step: Json, id: str) -> dict[str, str]:
    repository = build.joined.repository
    return {
        "BUILDKITE": "true",
        "BUILDKITE_AGENT_ACCESS_TOKEN": "{{JOB_SECRET}}",
        "BUILDKITE_AGENT_ENDPOINT": f"{sim.buildkite.url}/v3",
        "BUILDKITE_BRANCH": repository.default_branch,
        "BUILDKITE_BUILD_CHECKOUT_PATH": "{{WORKSPACE}}",
        "BUILDKITE_BUILD_ID": build.id,
        "BUILDKITE_BUILD_NUMBER": str(build.number),
        "BUILDKITE_BUILD_URL": f"{sim.base_url}/_buildkite/{'/'.join(build.path)}/builds/{build.number}",
        "BUILDKITE_COMMIT": repository.head_sha,
        "BUILDKITE_JOB_ID": id,
        "BUILDKITE_LABEL": str(step.get("label", "")),
        "BUILDKITE_MESSAGE": build.meta.get("message", ""),
        "BUILDKITE_ORGANIZATION_SLUG": build.path[0],
        "BUILDKITE_PIPELINE_SLUG": build.path[1],
        "BUILDKITE_PULL_REQUEST": "false",
        "BUILDKITE_RETRY_COUNT": "0",
        "BUILDKITE_SOURCE": "api",
        "BUILDKITE_STEP_KEY": str(step["key"]),
    }


def _texts(given: Any) -> dict[str, str]:
    return {str(name): str(value) for name, value in as_mapping(given, "env").items()}


# The program `buildkite-agent` on a job's PATH. It calls the simulator as the real one calls Buildkite.
BUILDKITE_AGENT = """
import json, os, pathlib, shutil, sys, urllib.request

def option(name, default=""):
    return sys.argv[sys.argv.index(name) + 1] if name in sys.argv else default

def ask(path, body=None):
    request = urllib.request.Request(
        os.environ["BUILDKITE_AGENT_ENDPOINT"] + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": "Token " + os.environ["BUILDKITE_AGENT_ACCESS_TOKEN"]},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)

words = sys.argv[1:3]
job = os.environ["BUILDKITE_JOB_ID"]
if words == ["oidc", "request-token"]:
    claims = [each for each in option("--claim").split(",") if each]
    print(ask(f"/jobs/{job}/oidc/tokens", {"audience": option("--audience"), "claims": claims})["token"])
elif words == ["step", "get"]:
    print(ask(f"/jobs/{job}/steps/" + option("--step"))[sys.argv[3]])
elif words == ["artifact", "download"]:
    kept = pathlib.Path(ask(f"/jobs/{job}/steps/" + option("--step"))["artifacts"])
    found = [path for path in kept.glob(sys.argv[3]) if path.is_file()] if kept.is_dir() else []
    if not found:
        sys.exit("no artifacts found for downloading")
    for path in found:
        target = pathlib.Path(sys.argv[4]) / path.relative_to(kept)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
else:
    sys.exit("the simulated agent does not know " + " ".join(sys.argv[1:]))
"""
