"""A file's content as a neutral tree with line numbers, and the problems found while reading it.

The tree is independent of YAML. Mappings are lists of pairs, so that a duplicate key is still visible.
"""

import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, AllowlistProblem, CheckedAllowlist

_HIDDEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
# Joiners occur in ordinary words and emoji of many languages.
_JOINERS = frozenset("\u200c\u200d")
_SHOWN_CHARACTERS = 60


@dataclass(frozen=True, slots=True)
class ScalarNode:
    line: int
    value: str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class SequenceNode:
    line: int
    items: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class MappingNode:
    line: int
    pairs: tuple[tuple["Node", "Node"], ...]


Node = ScalarNode | SequenceNode | MappingNode


@dataclass(slots=True)
class ProblemCollector:
    """Collects every problem, so that one reading of the file reports all of them."""

    problems: list[AllowlistProblem] = field(default_factory=list)

    def error(self, line: int, message: str, hint: str | None = None) -> None:
        self.problems.append(AllowlistProblem(line, "error", message, hint))

    def warning(self, line: int, message: str, hint: str | None = None) -> None:
        self.problems.append(AllowlistProblem(line, "warning", message, hint))

    @property
    def failed(self) -> bool:
        return any(problem.severity == "error" for problem in self.problems)

    def conclude(self, entries: list[AllowlistEntry]) -> CheckedAllowlist:
        problems = tuple(sorted(self.problems, key=lambda problem: problem.line))
        return CheckedAllowlist(None if self.failed else Allowlist(tuple(entries)), problems)


def hidden_character(text: str) -> str | None:
    """Return the first character that a reviewer cannot see: controls, direction marks, odd line breaks."""
    if text.isascii() and text.isprintable():
        return None
    for character in text:
        if unicodedata.category(character) in _HIDDEN_CATEGORIES and character not in _JOINERS:
            return character
    return None


def quote_value(value: object) -> str:
    """Quote a value of the file for a message, escaped and shortened."""
    if isinstance(value, bool):
        return str(value).lower()
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}…"


def read_text(node: Node, subject: str, findings: ProblemCollector) -> str | None:
    """Return a node's text, or report why it is not text."""
    if not isinstance(node, ScalarNode):
        findings.error(node.line, f"{subject} must be text, not {describe_kind(node)}")
    elif not isinstance(node.value, str):
        findings.error(node.line, f"{subject} must be text, not {describe_kind(node)}", "put it in quotes")
    elif hidden := hidden_character(node.value):
        findings.error(node.line, f"{subject} holds the hidden character U+{ord(hidden):04X}")
    else:
        return node.value
    return None


def describe_kind(node: Node) -> str:
    match node:
        case SequenceNode():
            return "a list"
        case MappingNode():
            return "a mapping"
        case ScalarNode(value=None):
            return "nothing"
        case ScalarNode(value=str()):
            return "text"
        case ScalarNode(value=value):
            return quote_value(value)


def named_pairs(
    mapping: MappingNode, subject: str, findings: ProblemCollector, *, fold: bool = False
) -> Iterator[tuple[str, int, Node]]:
    """Iterate over a mapping's unique text keys, with their lines; `fold` ignores case."""
    lines_by_name: dict[str, int] = {}
    for key, value in mapping.pairs:
        name = read_text(key, subject, findings)
        if name is None:
            continue
        known = name.lower() if fold else name
        if known in lines_by_name:
            lines = f"lines {lines_by_name[known]} and {key.line}"
            findings.error(key.line, f"{subject} {quote_value(name)} stands twice: {lines}")
        else:
            lines_by_name[known] = key.line
            yield name, key.line, value
