"""A workflow file's text to the few facts that findings need. Never raises for what the text holds.

Works on the parser's events and keeps everything as text, as GitHub does: nothing is built but nested lists and
tables of bounded size, and `on` stays a word. Expressions are not worked out; what cannot be known counts as not there.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml

from crcr.decide.inspection import WorkflowFacts

MAX_CHARS = 1024 * 1024
"""Of the file; and of what its texts come to with aliases written out."""
MAX_NODES = 20_000
"""With aliases written out."""
MAX_DEPTH = 30
MOST_TYPES = 50
_REPORTER = re.compile(r"(?i)crcr|cross-repo|report\.py")
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WRITE_ALL = "write-all"
_BRIDGE_TO = "CRCR_BRIDGE_TO"
_WORD_CHARS = 40

Tree = str | list["Tree"] | dict[str, "Tree"]


class _TooMuch(Exception):
    """More than any workflow has."""


def workflow_facts(path: str, sha: str, text: str) -> WorkflowFacts:
    try:
        document = _compose(text)
    except _TooMuch:
        return WorkflowFacts(path=path, sha=sha, problem="too large to be read")
    except (yaml.YAMLError, ValueError, OverflowError):
        return WorkflowFacts(path=path, sha=sha, problem="it is not YAML")
    if not isinstance(document, dict) or "on" not in document:
        return WorkflowFacts(path=path, sha=sha, problem="it is no workflow")
    jobs = [each for each in _values(document.get("jobs")) if isinstance(each, dict)]
    return WorkflowFacts(
        path=path,
        sha=sha,
        dispatch_types=_dispatch_types(document["on"]),
        id_token=_has_id_token(document, jobs),
        calls_others=any("uses" in job for job in jobs),
        reports=bool(_REPORTER.search("\n".join(_told(jobs)))),
        bridge_to=_bridge_to((document, *jobs, *_steps(jobs))),
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


def _steps(jobs: list[dict[str, Tree]]) -> list[dict[str, Tree]]:
    return [step for job in jobs for step in _values(job.get("steps")) if isinstance(step, dict)]


def _told(jobs: list[dict[str, Tree]]) -> list[str]:
    """What the steps run and use, and what jobs call."""
    found = [each.get(name) for each in (*jobs, *_steps(jobs)) for name in ("uses", "run")]
    return [each for each in found if isinstance(each, str)]


def _bridge_to(places: Iterable[dict[str, Tree]]) -> str:
    """The CI that the bridge is told in its environment; empty where there is no bridge."""
    tables = [each["env"] for each in places if isinstance(each.get("env"), dict)]
    found = [each.get(_BRIDGE_TO) for each in tables if isinstance(each, dict)]
    return next((each[:_WORD_CHARS] for each in found if isinstance(each, str) and each), "")


def _values(tree: Tree | None) -> list[Tree]:
    if isinstance(tree, dict):
        return list(tree.values())
    return tree if isinstance(tree, list) else []


@dataclass(slots=True)
class _Size:
    """How much a value comes to wherever an alias repeats it."""

    nodes: int = 1
    chars: int = 0

    def grow(self, other: "_Size") -> None:
        self.nodes += other.nodes
        self.chars += other.chars


@dataclass(slots=True)
class _Open:
    node: list[Tree] | dict[str, Tree]
    anchor: str | None
    key: str | None = None
    size: _Size = field(default_factory=_Size)

    def take(self, value: Tree, size: _Size) -> None:
        self.size.grow(size)
        if isinstance(self.node, list):
            self.node.append(value)
        elif self.key is None:
            self.key = value if isinstance(value, str) else ""
        else:
            self.node.setdefault(self.key, value)
            self.key = None


@dataclass(slots=True)
class _Composer:
    document: Tree | None = None
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, tuple[Tree, _Size]] = field(default_factory=dict)
    whole: _Size = field(default_factory=_Size)

    def take(self, event: Any) -> None:
        match event:
            case yaml.ScalarEvent():
                self._add(event.value, event.anchor, _Size(chars=len(event.value)))
            case yaml.AliasEvent():
                # Aliases share their node, but the steps of every job are gone through.
                self._add(*self._repeated(event.anchor or ""))
            case yaml.SequenceStartEvent():
                self._open(_Open([], event.anchor))
            case yaml.MappingStartEvent():
                self._open(_Open({}, event.anchor))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self.stack.pop()
                self._add(done.node, done.anchor, done.size, counted=True)

    def _open(self, opened: _Open) -> None:
        self.stack.append(opened)
        if len(self.stack) > MAX_DEPTH:
            raise _TooMuch

    def _repeated(self, anchor: str) -> tuple[Tree, None, _Size]:
        """What an anchor stands for; nothing while its collection is still open."""
        value, size = self.anchors.get(anchor, ("", _Size()))
        return value, None, size

    def _add(self, value: Tree, anchor: str | None, size: _Size, *, counted: bool = False) -> None:
        self.whole.grow(_Size() if counted else size)
        if self.whole.nodes > MAX_NODES or self.whole.chars > MAX_CHARS:
            raise _TooMuch
        if anchor is not None:
            self.anchors[anchor] = value, size
        if self.stack:
            self.stack[-1].take(value, size)
        elif self.document is None:
            self.document = value


def _compose(text: str) -> Tree | None:
    if len(text) > MAX_CHARS:
        raise _TooMuch
    composer = _Composer()
    for event in yaml.parse(text, Loader=_LOADER):
        composer.take(event)
    return composer.document
