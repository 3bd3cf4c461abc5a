"""A workflow file's text to the few facts that findings need. Never raises for what the text holds.

Expressions are not worked out; what cannot be known counts as not there.
"""

import re
from collections.abc import Iterable
from itertools import islice

from crcr.decide.github.repository_setup import WorkflowFacts
from crcr.deliver.handlers.workflow_pins import find_pins
from crcr.deliver.handlers.yaml_tree import NotYaml, TooMuch, Tree, compose, values

MOST_TYPES = 50
MOST_STEPS = 5_000
_REPORTER = re.compile(r"(?i)crcr|cross-repo|report\.py")
_WRITE_ALL = "write-all"
_BRIDGE_TO = "CRCR_BRIDGE_TO"
_WORD_CHARS = 40


def workflow_facts(path: str, sha: str, text: str) -> WorkflowFacts:
    try:
        document = compose(text)
    except TooMuch:
        return WorkflowFacts(path=path, sha=sha, problem="too large to be read")
    except NotYaml:
        return WorkflowFacts(path=path, sha=sha, problem="it is not YAML")
    if not isinstance(document, dict) or "on" not in document:
        return WorkflowFacts(path=path, sha=sha, problem="it is no workflow")
    jobs = [each for each in values(document.get("jobs")) if isinstance(each, dict)]
    steps = _steps(jobs)
    pinning, pins = find_pins(document, steps)
    return WorkflowFacts(
        path=path,
        sha=sha,
        dispatch_types=_dispatch_types(document["on"]),
        id_token=_has_id_token(document, jobs),
        calls_others=any("uses" in job for job in jobs),
        reports=any(_REPORTER.search(each) for each in _told([*jobs, *(step for _, step in steps)])),
        bridge_to=_bridge_to((document, *jobs, *(step for _, step in steps))),
        pinning=pinning,
        pins=pins,
    )


def _dispatch_types(on: Tree) -> tuple[str, ...] | None:
    """`on: repository_dispatch`, a list with it, or a table with it and perhaps its types."""
    if isinstance(on, str):
        return () if on == "repository_dispatch" else None
    if isinstance(on, list):
        return () if "repository_dispatch" in on else None
    if "repository_dispatch" not in on:
        return None
    asked = on["repository_dispatch"]
    types = asked.get("types") if isinstance(asked, dict) else None
    if isinstance(types, str):
        return (types,) if types else ()
    return tuple(each for each in types or () if isinstance(each, str))[:MOST_TYPES]


def _has_id_token(document: dict[str, Tree], jobs: list[dict[str, Tree]]) -> bool:
    """A job's own permissions take the place of the workflow's; a job without any inherits them."""
    shared = _grants(document.get("permissions"))
    return any(_grants(job["permissions"]) if "permissions" in job else shared for job in jobs)


def _grants(permissions: Tree | None) -> bool:
    if isinstance(permissions, dict):
        return permissions.get("id-token") == "write"
    return permissions == _WRITE_ALL


def _steps(jobs: list[dict[str, Tree]]) -> list[tuple[dict[str, Tree], dict[str, Tree]]]:
    """Each step after its job. Aliases can make far more of them than the file has nodes: only so many are read."""
    found = ((job, step) for job in jobs for step in values(job.get("steps")))
    return [(job, step) for job, step in islice(found, MOST_STEPS) if isinstance(step, dict)]


def _told(places: list[dict[str, Tree]]) -> set[str]:
    """What the steps run and use, and what jobs call; each text once, because aliases can repeat a long one."""
    found = (each.get(name) for each in places for name in ("uses", "run"))
    return {each for each in found if isinstance(each, str)}


def _bridge_to(places: Iterable[dict[str, Tree]]) -> str:
    """The CI that the bridge is told in its environment; empty where there is no bridge."""
    tables = [each["env"] for each in places if isinstance(each.get("env"), dict)]
    found = [each.get(_BRIDGE_TO) for each in tables if isinstance(each, dict)]
    return next((each[:_WORD_CHARS] for each in found if isinstance(each, str) and each), "")
