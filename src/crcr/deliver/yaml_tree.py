"""The text of a YAML file to nested lists and tables of bounded size, for reading what others wrote.

Works on the parser's events and keeps everything as text, as GitHub does: `on` stays a word. Aliases share their node.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_NODES = 20_000
MAX_DEPTH = 30
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Tree = str | list["Tree"] | dict[str, "Tree"]


class TooMuch(Exception):
    """More than any file of a CI has."""


class NotYaml(Exception):
    """The text is not YAML."""


def compose(text: str) -> Tree | None:
    """Return the first document; raise `NotYaml` or `TooMuch`."""
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            composer.take(event)
    except (yaml.YAMLError, ValueError, OverflowError) as fault:
        raise NotYaml from fault
    return composer.document


def values(tree: Tree | None) -> list[Tree]:
    if isinstance(tree, dict):
        return list(tree.values())
    return tree if isinstance(tree, list) else []


def every_pair(tree: Tree | None) -> Iterator[tuple[str, str]]:
    """Go through all texts with the key that each stands under, or ""; a shared node once."""
    waiting: list[tuple[str, Tree]] = [("", tree)] if tree is not None else []
    seen: set[int] = set()
    while waiting:
        key, node = waiting.pop()
        if isinstance(node, str):
            yield key, node
        elif id(node) not in seen:
            seen.add(id(node))
            waiting += node.items() if isinstance(node, dict) else [(key, each) for each in node]


@dataclass(slots=True)
class _Open:
    node: list[Tree] | dict[str, Tree]
    anchor: str | None
    key: str | None = None

    def take(self, value: Tree) -> None:
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
    anchors: dict[str, Tree] = field(default_factory=dict)
    nodes: int = 0

    def take(self, event: Any) -> None:
        match event:
            case yaml.ScalarEvent():
                self._add(event.value, event.anchor)
            case yaml.AliasEvent():
                # Aliases share their node: nothing here walks deeper than a few levels, so none can blow it up.
                self._add(self.anchors.get(event.anchor or "", ""), None)
            case yaml.SequenceStartEvent():
                self._open(_Open([], event.anchor))
            case yaml.MappingStartEvent():
                self._open(_Open({}, event.anchor))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self.stack.pop()
                self._add(done.node, done.anchor)

    def _open(self, opened: _Open) -> None:
        self.stack.append(opened)
        if len(self.stack) > MAX_DEPTH:
            raise TooMuch

    def _add(self, value: Tree, anchor: str | None) -> None:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise TooMuch
        if anchor is not None:
            self.anchors[anchor] = value
        if self.stack:
            self.stack[-1].take(value)
        elif self.document is None:
            self.document = value
