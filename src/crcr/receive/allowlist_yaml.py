"""Parses YAML text into the neutral tree that `decide.allowlist` checks. Never raises because of the text's content.

Works on the parser's events and builds no objects: size, nodes, depth and aliases are bounded while reading, and foreign
tags are refused. Text that a reviewer sees differently than a parser does is refused before it is parsed.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import yaml

from crcr.decide.allowlist.check import check_allowlist
from crcr.decide.allowlist.entries import AllowlistProblem, CheckedAllowlist
from crcr.decide.allowlist.tree import (
    MappingNode,
    Node,
    ScalarNode,
    SequenceNode,
    hidden_character,
    quote_value,
)

MAX_BYTES = 1024 * 1024
MAX_NODES = 100_000
MAX_DEPTH = 20

# libyaml's parser is some ten times faster; PyYAML can be built without it.
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_RESOLVER: Any = yaml.resolver.Resolver()
_TAG = "tag:yaml.org,2002:"
_COLLECTION_TAGS = frozenset({None, "!", f"{_TAG}seq", f"{_TAG}map"})
_WHOLE = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,17})")
_DECIMAL = re.compile(r"[-+]?[0-9]{1,18}\.[0-9]{1,18}")
_ScalarValue = str | int | float | bool | None


class _Refused(Exception):
    """The text may be YAML, but of a kind that is not accepted."""

    def __init__(self, line: int, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.problem = AllowlistProblem(line, "error", message, hint)


def read_allowlist(text: str) -> CheckedAllowlist:
    text = text.removeprefix("\ufeff")
    if len(text.encode("utf-8", "surrogatepass")) > MAX_BYTES:
        return CheckedAllowlist(
            None, (AllowlistProblem(1, "error", f"the file is larger than {MAX_BYTES:,} bytes"),)
        )
    if unseen := tuple(_unseen(text)):
        return CheckedAllowlist(None, unseen)
    try:
        document = _compose(text)
    except _Refused as refused:
        return CheckedAllowlist(None, (refused.problem,))
    except yaml.YAMLError as error:
        return CheckedAllowlist(None, (_syntax_problem(error, text),))
    except (ValueError, OverflowError):
        # The parser in Python lets an impossible escape such as "\UFFFFFFFF" fail in `chr`.
        return CheckedAllowlist(
            None, (AllowlistProblem(1, "error", "not YAML: an escape names no character"),)
        )
    return check_allowlist(document)


def _unseen(text: str) -> Iterator[AllowlistProblem]:
    """Find lines with hidden characters.

    YAML breaks lines at U+2028 and U+0085 where an editor does not, so a comment could hide an entry.
    """
    for line, content in enumerate(text.split("\n"), start=1):
        hidden = hidden_character(content.removesuffix("\r").replace("\t", " "))
        if hidden is not None:
            yield AllowlistProblem(line, "error", f"the line holds the hidden character U+{ord(hidden):04X}")


def _syntax_problem(error: yaml.YAMLError, text: str) -> AllowlistProblem:
    lines = text.splitlines() or [""]
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    # An error at the end is marked on the line after the last.
    line = min(mark.line + 1, len(lines)) if mark else 1
    reason = getattr(error, "problem", None) or getattr(error, "reason", None) or "cannot be read"
    hint = "indent with spaces, not with tabs" if "\t" in lines[line - 1] else None
    return AllowlistProblem(line, "error", f"not YAML: {reason}", hint)


@dataclass(frozen=True, slots=True)
class _Part:
    """A finished node, with its size wherever an alias repeats it."""

    node: Node
    size: int = 1
    height: int = 1


@dataclass(frozen=True, slots=True)
class _MergeKey(ScalarNode):
    """An unquoted `<<`, which as a key merges the pairs of another mapping."""


@dataclass(slots=True)
class _Open:
    line: int
    anchor: str | None
    build: Callable[[int, list[Node]], Node]
    parts: list[_Part] = field(default_factory=list)

    def close(self) -> _Part:
        node = self.build(self.line, [part.node for part in self.parts])
        size = 1 + sum(part.size for part in self.parts)
        return _Part(node, size, 1 + max((part.height for part in self.parts), default=0))


def _compose(text: str) -> Node | None:
    composer = _Composer()
    for event in yaml.parse(text, Loader=_LOADER):
        composer.take(event, event.start_mark.line + 1)
    return composer.document


@dataclass(slots=True)
class _Composer:
    document: Node | None = None
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, _Part | None] = field(default_factory=dict)
    """None while the anchored collection is still open: an alias to it would never end."""
    nodes: int = 0

    def take(self, event: Any, line: int) -> None:
        match event:
            case yaml.ScalarEvent():
                self._add(_Part(_scalar(event, line)), event.anchor, line)
            case yaml.AliasEvent():
                self._add(self._repeat(event.anchor or "", line), None, line)
            case yaml.SequenceStartEvent():
                self._open(event, line, _items)
            case yaml.MappingStartEvent():
                self._open(event, line, _pairs)
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self.stack.pop()
                self._add(done.close(), done.anchor, line, counted=True)
            case yaml.DocumentStartEvent() if self.document is not None:
                raise _Refused(line, "the file holds more than one document", "remove the line ---")

    def _open(self, event: Any, line: int, build: Callable[[int, list[Node]], Node]) -> None:
        if event.tag not in _COLLECTION_TAGS:
            raise _Refused(line, f"the tag {quote_value(event.tag)} is not read here")
        if event.anchor is not None:
            self.anchors[event.anchor] = None
        self.stack.append(_Open(line, event.anchor, build))
        self._count(line, _Part(ScalarNode(line, None)))

    def _add(self, part: _Part, anchor: str | None, line: int, *, counted: bool = False) -> None:
        if not counted:
            self._count(line, part)
        if anchor is not None:
            self.anchors[anchor] = part
        if self.stack:
            self.stack[-1].parts.append(part)
        else:
            self.document = part.node

    def _count(self, line: int, part: _Part) -> None:
        self.nodes += part.size
        if self.nodes > MAX_NODES:
            raise _Refused(line, f"the file holds more than {MAX_NODES} values, aliases written out")
        if len(self.stack) + part.height > MAX_DEPTH:
            raise _Refused(line, f"the file is nested deeper than {MAX_DEPTH} levels")

    def _repeat(self, anchor: str, line: int) -> _Part:
        if anchor not in self.anchors:
            raise _Refused(line, f"the alias {quote_value(anchor)} has no anchor")
        part = self.anchors[anchor]
        if part is None:
            raise _Refused(line, f"the alias {quote_value(anchor)} contains itself")
        return replace(part, node=replace(part.node, line=line))


def _items(line: int, nodes: list[Node]) -> Node:
    return SequenceNode(line, tuple(nodes))


def _pairs(line: int, nodes: list[Node]) -> Node:
    """Pair keys with values; merged pairs come last and never override a written one."""
    written = list(zip(nodes[::2], nodes[1::2], strict=True))
    pairs = [(key, value) for key, value in written if not isinstance(key, _MergeKey)]
    own_keys = {own.value for own, _ in pairs if isinstance(own, ScalarNode)}
    for key, source in written:
        if isinstance(key, _MergeKey):
            merged = [pair for pair in _mergeable(key, source) if _key_value(pair) not in own_keys]
            pairs += merged
            own_keys.update(own.value for own, _ in merged if isinstance(own, ScalarNode))
    return MappingNode(line, tuple(pairs))


def _mergeable(key: _MergeKey, source: Node) -> Iterator[tuple[Node, Node]]:
    sources = source.items if isinstance(source, SequenceNode) else (source,)
    keys: set[_ScalarValue] = set()
    for mapping in sources:
        if not isinstance(mapping, MappingNode):
            raise _Refused(key.line, "<< takes a mapping or a list of mappings")
        yield from (pair for pair in mapping.pairs if _key_value(pair) not in keys)
        keys.update(_key_value(pair) for pair in mapping.pairs)


def _key_value(pair: tuple[Node, Node]) -> _ScalarValue:
    return pair[0].value if isinstance(pair[0], ScalarNode) else None


def _scalar(event: Any, line: int) -> ScalarNode:
    tag, plain = event.tag, event.implicit[0]
    if tag is None and plain:
        tag = _RESOLVER.resolve(yaml.ScalarNode, event.value, (True, False))
    elif tag not in {None, "!"} and tag.removeprefix(_TAG) not in _VALUES:
        raise _Refused(line, f"the tag {quote_value(tag)} is not read here")
    if tag == f"{_TAG}merge":
        return _MergeKey(line, event.value)
    read = _VALUES.get((tag or "").removeprefix(_TAG), str)
    return ScalarNode(line, read(event.value))


def _int(text: str) -> _ScalarValue:
    """Read plain decimals only: `0100` and `1:30` are numbers in YAML 1.1 that nobody means."""
    return int(text) if _WHOLE.fullmatch(text) else text


def _float(text: str) -> _ScalarValue:
    return float(text) if _DECIMAL.fullmatch(text) else text


_VALUES: dict[str, Callable[[str], _ScalarValue]] = {
    "str": str,
    "null": lambda _: None,
    "bool": lambda text: text.lower() in {"true", "yes", "on"},
    "int": _int,
    "float": _float,
}
