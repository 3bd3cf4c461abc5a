"""The text of a YAML file to nested lists and tables of bounded size, for reading what others wrote.

Works on the parser's events and keeps everything as text, as GitHub does: `on` stays a word. Aliases share their node.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import yaml

MAX_CHARS = 1024 * 1024
"""Of the file; and of what its texts come to with aliases written out."""
MAX_NODES = 20_000
"""With aliases written out."""
MAX_DEPTH = 30
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Tree = str | list["Tree"] | dict[str, "Tree"]


class TooMuch(Exception):
    """More than any file of a CI has."""


class NotYaml(Exception):
    """The text is not YAML."""


def compose(text: str) -> Tree | None:
    """Return the first document; raise `NotYaml` or `TooMuch`."""
    if len(text) > MAX_CHARS:
        raise TooMuch
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
            raise TooMuch

    def _repeated(self, anchor: str) -> tuple[Tree, None, _Size]:
        """What an anchor stands for; nothing while its collection is still open."""
        value, size = self.anchors.get(anchor, ("", _Size()))
        return value, None, size

    def _add(self, value: Tree, anchor: str | None, size: _Size, *, counted: bool = False) -> None:
        self.whole.grow(_Size() if counted else size)
        if self.whole.nodes > MAX_NODES or self.whole.chars > MAX_CHARS:
            raise TooMuch
        if anchor is not None:
            self.anchors[anchor] = value, size
        if self.stack:
            self.stack[-1].take(value, size)
        elif self.document is None:
            self.document = value
