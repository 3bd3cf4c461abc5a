"""Reads the files of an earlier `crcr init`: the answers given then, and files no longer used.

Reads only files with our header, as data; each value must be valid as a flag. Values edited into something else are
ignored, so that the diff is shown before anything is overwritten.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from crcr.join.ci_kinds import Ci
from crcr.join.files import BRIDGE, BRIDGE_WORKFLOW, CI_FILES, NIGHTLY_WORKFLOW, WORKFLOW
from crcr.join.request import check_values

MADE_BY_US = "Made by `crcr init`"

_BUILDS = {Ci.GITHUB: WORKFLOW, **CI_FILES}
_ALL = (WORKFLOW, BRIDGE_WORKFLOW, NIGHTLY_WORKFLOW, *CI_FILES.values(), BRIDGE)
_LISTENING = (WORKFLOW, BRIDGE_WORKFLOW)
_SAME_EVERYWHERE = frozenset({"command", "job_name", "junit"})
_PAIR_CHECKOUT = re.compile(
    r'(?:# A pair:[^\n]*\n)?if \[ -n "\$\$?DEPENDS_ON_SHA" \]; then\n(?:  git [^\n]*\n)+fi\n'
)
"""The lines that check out a pull request that the change depends on; older files have none."""
_KEPT_STATUS = re.compile(r"\n\(\n +set -e\n +(?P<command>[^\n]+)\n\)\n")
_KEPT_LOG = re.compile(r"\{\n +(?P<command>[^\n]+)\n\} 2>&1 \| tee ")
_FIRST_LINES = 8
_MAX_BYTES = 256 * 1024
_BRIDGE_NAMES: Mapping[Ci, Mapping[str, str]] = {
    Ci.GITHUB: {},
    Ci.BUILDKITE: {"organization": "CRCR_BRIDGE_ORGANIZATION", "pipeline": "CRCR_BRIDGE_PIPELINE"},
    Ci.GITLAB: {"project_id": "CRCR_BRIDGE_PROJECT", "url": "CRCR_BRIDGE_API"},
    Ci.CIRCLECI: {"project": "CRCR_BRIDGE_PROJECT", "definition_id": "CRCR_BRIDGE_DEFINITION"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousAnswers:
    values: Mapping[str, str] = field(default_factory=dict)
    """By the field names of `JoinRequest`."""
    place: Mapping[str, str] = field(default_factory=dict)
    nightly: bool = False
    gates: bool = False


def find_previous_ci(folder: Path) -> Ci | None:
    """Return the CI chosen earlier, if the files show it."""
    cis = [ci for ci, path in _BUILDS.items() if _read_generated(folder, path) is not None]
    return cis[0] if len(cis) == 1 else None


def read_previous_answers(folder: Path, ci: Ci) -> PreviousAnswers:
    """Return the answers in this CI's files; from another CI's files only those that mean the same."""
    before = ci if _read_generated(folder, _BUILDS[ci]) is not None else find_previous_ci(folder)
    if before is None:
        return PreviousAnswers()
    bridge = _read_bridge_env(folder) if before is ci else {}
    values = {
        **_READERS[before](_parse_yaml(folder, _BUILDS[before])),
        "branch": bridge.get("CRCR_BRIDGE_BRANCH"),
    }
    answers = {
        name: value.strip()
        for name, value in values.items()
        if isinstance(value, str) and (before is ci or name in _SAME_EVERYWHERE)
    }
    started_by = _read_generated(folder, _LISTENING[ci is not Ci.GITHUB]) or ""
    return PreviousAnswers(
        values={name: value for name, value in answers.items() if not check_values(**{name: value})},
        place=_read_location(ci, bridge),
        nightly=_read_generated(folder, NIGHTLY_WORKFLOW) is not None,
        gates=any(f"merge_group, {rest}]" in started_by for rest in ("crcr_pair, crcr_test", "crcr_test")),
    )


def find_unused_files(folder: Path, written: Iterable[str]) -> tuple[str, ...]:
    """Return the files of an earlier run that are no longer used, those that would still run first."""
    used = set(written)
    return tuple(path for path in _ALL if path not in used and _read_generated(folder, path) is not None)


def _read_generated(folder: Path, path: str) -> str | None:
    try:
        with (folder / path).open(encoding="utf-8") as file:
            text = file.read(_MAX_BYTES + 1)
    except (OSError, ValueError):
        return None
    first = text.splitlines()[:_FIRST_LINES]
    return text if len(text) <= _MAX_BYTES and any(MADE_BY_US in line for line in first) else None


def _parse_yaml(folder: Path, path: str) -> object:
    try:
        return yaml.safe_load(_read_generated(folder, path) or "")
    except (yaml.YAMLError, ValueError, RecursionError):
        return None


def _read_bridge_env(folder: Path) -> dict[str, Any]:
    env = _get(
        _find_step(
            _get(_parse_yaml(folder, BRIDGE_WORKFLOW), "jobs", "start", "steps"), "name", "Start the build"
        ),
        "env",
    )
    return env if isinstance(env, dict) else {}


def _read_location(ci: Ci, bridge: Mapping[str, Any]) -> dict[str, str]:
    variables = _BRIDGE_NAMES[ci] if bridge.get("CRCR_BRIDGE_TO") == ci.value else {}
    values = {name: bridge.get(variable) for name, variable in variables.items()}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, str) and not check_values(ci=ci, place={name: value})
    }


def _read_github(tree: object) -> dict[str, object]:
    build, steps = _get(tree, "jobs", "build"), _get(tree, "jobs", "build", "steps")
    return {
        "command": _unwrap_command(_get(_find_step(steps, "name", "Build and test"), "run"), _KEPT_LOG),
        "job_name": _get(build, "name"),
        "junit": _get(_find_step(steps, "name", "Keep the test results"), "with", "path"),
        "runs_on": _join_labels(_get(build, "runs-on")),
        "action": _get(
            _find_step(_get(tree, "jobs", "started", "steps"), "name", "Report the start"), "uses"
        ),
    }


def _read_buildkite(tree: object) -> dict[str, object]:
    build = _find_step(_get(tree, "steps"), "key", "crcr-build")
    command = _get(build, "command")
    own = command.removeprefix("unset BUILDKITE_AGENT_ACCESS_TOKEN\n") if isinstance(command, str) else ""
    return {
        "command": _PAIR_CHECKOUT.sub("", own, count=1).replace("$$", "$"),
        "job_name": _get(build, "label"),
        "junit": _get(build, "artifact_paths"),
        "runs_on": _get(build, "agents", "queue"),
    }


def _read_gitlab(tree: object) -> dict[str, object]:
    build = _get(tree, "crcr-build")
    return {
        "command": _only_item(_without_pair_checkout(_get(build, "script"))),
        "job_name": _get(tree, ".crcr-report", "variables", "CRCR_JOB_NAME"),
        "junit": _only_item(_get(build, "artifacts", "paths")),
        "runs_on": _join_labels(_get(build, "tags")),
    }


def _read_circleci(tree: object) -> dict[str, object]:
    build = _get(tree, "jobs", "crcr-build")
    steps = list(_mappings(_get(build, "steps")))
    runs = [step.get("run") for step in steps]
    workspaces = [step["persist_to_workspace"] for step in steps if "persist_to_workspace" in step]
    return {
        "command": _unwrap_command(_get(_find_step(runs, "name", "Build and test"), "command")),
        "job_name": _get(tree, "jobs", "crcr-report", "environment", "CRCR_JOB_NAME"),
        "junit": _only_item(_remove_item(_get(_only_item(workspaces), "paths"), "crcr-status")),
        "runs_on": _get(build, "resource_class"),
    }


def _unwrap_command(command: object, wrapper: re.Pattern[str] = _KEPT_STATUS) -> object:
    """Return the command without the lines that keep its exit status or its log."""
    match = wrapper.search(command) if isinstance(command, str) else None
    return match["command"] if match else command


def _without_pair_checkout(lines: object) -> object:
    if not isinstance(lines, list):
        return None
    return [line for line in lines if not (isinstance(line, str) and _PAIR_CHECKOUT.fullmatch(line))]


def _remove_item(values: object, ours: str) -> object:
    return [label for label in values if label != ours] if isinstance(values, list) else None


_READERS: Mapping[Ci, Callable[[object], dict[str, object]]] = {
    Ci.GITHUB: _read_github,
    Ci.BUILDKITE: _read_buildkite,
    Ci.GITLAB: _read_gitlab,
    Ci.CIRCLECI: _read_circleci,
}


def _get(tree: object, *path: str) -> object:
    """Return the value at a path of keys, or None."""
    for step in path:
        tree = tree.get(step) if isinstance(tree, dict) else None
    return tree


def _only_item(values: object) -> object:
    """Return the only item of a list, or None."""
    return values[0] if isinstance(values, list) and len(values) == 1 else None


def _mappings(steps: object) -> Iterator[dict[str, Any]]:
    yield from (step for step in steps if isinstance(step, dict)) if isinstance(steps, list) else ()


def _find_step(steps: object, key: str, name: str) -> object:
    return next((step for step in _mappings(steps) if step.get(key) == name), None)


def _join_labels(labels: object) -> object:
    if isinstance(labels, list) and all(isinstance(label, str) for label in labels):
        return ", ".join(labels)
    return labels
