"""GitHub's expression language: values, functions, parser, and templates with `${{ … }}`.

Comparisons are loose, as on GitHub: text ignores case, and values of different types are compared as numbers. An
unknown context or function is a `WorkflowError`. Templates are evaluated in one pass: the result of an expression is
never evaluated again.
"""

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from github_sim.runner.yaml_text import WorkflowError

_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def truthy(value: Any) -> bool:
    if isinstance(value, float) and math.isnan(value):
        return False
    return value not in (None, False, 0, "") if not isinstance(value, dict | list) else True


def to_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return _number_text(value)
    if isinstance(value, Mapping):
        return "Object"
    return "Array" if isinstance(value, list) else str(value)


def _number_text(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    return str(int(value)) if float(value).is_integer() else repr(value)


def to_number(value: Any) -> float:
    """GitHub's coercion; anything but a number becomes NaN, which equals nothing."""
    if value is None:
        return 0.0
    if isinstance(value, bool | int | float):
        return float(value)
    if not isinstance(value, str):
        return math.nan
    trimmed = value.strip()
    if not trimmed:
        return 0.0
    try:
        return float(int(trimmed, 16)) if trimmed.lower().startswith("0x") else float(trimmed)
    except ValueError:
        return math.nan


def loosely_equal(left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return left.upper() == right.upper()
    if isinstance(left, Mapping | list) or isinstance(right, Mapping | list):
        return left is right
    if left is None and right is None:
        return True
    return to_number(left) == to_number(right)


def compare(sign: str, left: Any, right: Any) -> bool:
    if isinstance(left, str) and isinstance(right, str):
        return _ORDER[sign](left.upper(), right.upper())
    return _ORDER[sign](to_number(left), to_number(right))


def get_member(value: Any, key: Any) -> Any:
    """A property or an element; a missing one is null, as on GitHub."""
    if isinstance(value, ObjectFilter):
        return ObjectFilter(
            member_value for item in value if (member_value := get_member(item, key)) is not None
        )
    if isinstance(value, Mapping):
        name_lower = to_text(key).lower()
        return next((member for name, member in value.items() if str(name).lower() == name_lower), None)
    if isinstance(value, list):
        index = to_number(key)
        inside = not math.isnan(index) and 0 <= int(index) < len(value)
        return value[int(index)] if inside else None
    return None


class ObjectFilter(list[Any]):
    """All values of an object or list, by `.*`; a property of it is that property of each."""


def filter_object(value: Any) -> ObjectFilter:
    if isinstance(value, Mapping):
        return ObjectFilter(value.values())
    return ObjectFilter(value) if isinstance(value, list) else ObjectFilter()


def to_json(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


_PLACE = re.compile(r"\{\{|\}\}|\{(\d+)\}|[{}]")
STATUS = frozenset({"always", "success", "failure", "cancelled"})


@dataclass(frozen=True)
class StatusFunctions:
    """The state of earlier jobs or steps, for `success()` and the like."""

    succeeded: bool = True
    failed: bool = False
    cancelled: bool = False

    def functions(self) -> dict[str, Callable[..., Any]]:
        return {
            "always": lambda: True,
            "success": lambda: self.succeeded and not self.cancelled,
            "failure": lambda: self.failed and not self.cancelled,
            "cancelled": lambda: self.cancelled,
        }


def _contains(collection: Any, item_sought: Any) -> bool:
    if isinstance(collection, list):
        return any(loosely_equal(item, item_sought) for item in collection)
    return to_text(item_sought).lower() in to_text(collection).lower()


def _format(pattern: Any, *values: Any) -> str:
    def fill(match: re.Match[str]) -> str:
        if match[0] in {"{{", "}}"}:
            return match[0][0]
        if match[1] is None or int(match[1]) >= len(values):
            raise WorkflowError(f"format cannot fill {match[0]!r} in {to_text(pattern)!r}")
        return to_text(values[int(match[1])])

    return _PLACE.sub(fill, to_text(pattern))


def _from_json(value: Any) -> Any:
    try:
        return json.loads(to_text(value))
    except ValueError:
        raise WorkflowError(f"fromJSON was given invalid JSON: {to_text(value)[:80]!r}") from None


def _join(values: Any, separator: Any = ",") -> str:
    return to_text(separator).join(map(to_text, values)) if isinstance(values, list) else to_text(values)


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "contains": _contains,
    "startswith": lambda given, start: to_text(given).lower().startswith(to_text(start).lower()),
    "endswith": lambda given, end: to_text(given).lower().endswith(to_text(end).lower()),
    "format": _format,
    "join": _join,
    "tojson": to_json,
    "fromjson": _from_json,
    # No caches here, and so no file whose hash matters.
    "hashfiles": lambda *_patterns: "",
}


_TOKEN = re.compile(
    r"\s*(?:(?P<number>[-+]?(?:0x[0-9a-fA-F]+|\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.]))"
    r"|(?P<string>'(?:[^']|'')*')|(?P<name>[A-Za-z_][\w-]*)|(?P<sign>==|!=|<=|>=|&&|\|\||[-!<>().,\[\]*]))"
)
_LITERALS = {"true": True, "false": False, "null": None}
Contexts = Mapping[str, Any]
Node = Callable[["Scope"], Any]


@dataclass(frozen=True)
class Scope:
    contexts: Contexts
    status: StatusFunctions | None = None

    def context(self, name: str) -> Any:
        if name.lower() not in self.contexts:
            raise WorkflowError(f"there is no {name!r} here; there is {', '.join(self.contexts)}")
        return self.contexts[name.lower()]

    def call(self, name: str, values: list[Any]) -> Any:
        if name in STATUS and self.status is None:
            raise WorkflowError(f"{name}() can be asked only in an `if`")
        functions = {**FUNCTIONS, **(self.status.functions() if self.status else {})}
        if name not in functions:
            raise WorkflowError(f"there is no function {name}()")
        try:
            return functions[name](*values)
        except TypeError:
            raise WorkflowError(f"{name}() was given {len(values)} values") from None


@dataclass(frozen=True)
class Expression:
    source: str
    node: Node
    asks_status: bool

    def value(self, contexts: Contexts, status: StatusFunctions | None = None) -> Any:
        try:
            return self.node(Scope(contexts, status))
        except WorkflowError as problem:
            raise WorkflowError(f"{problem} (in `{self.source.strip()}`)") from None


@cache
def parse(source: str) -> Expression:
    try:
        reader = _Reader(_tokens(source))
        node = reader.whole()
    except WorkflowError as problem:
        raise WorkflowError(f"{problem} in the expression `{source.strip()}`") from None
    return Expression(source, node, asks_status=bool(reader.called & STATUS))


def _tokens(source: str) -> list[tuple[str, str]]:
    tokens: list[tuple[str, str]] = []
    at = 0
    while source[at:].strip():
        match = _TOKEN.match(source, at)
        if match is None:
            raise WorkflowError(f"cannot read {source[at:].strip()[:20]!r}")
        tokens.append((match.lastgroup or "", match[match.lastgroup or 0]))
        at = match.end()
    return tokens


class _Reader:
    """Reads by rising strength: `||`, `&&`, comparison, `!`, then what has dots, brackets and calls."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self.called: set[str] = set()

    def whole(self) -> Node:
        node = self._or()
        if self._tokens:
            raise WorkflowError(f"did not expect {self._tokens[0][1]!r}")
        return node

    def _next_is(self, *signs: str) -> bool:
        return bool(self._tokens) and self._tokens[0][0] == "sign" and self._tokens[0][1] in signs

    def _take(self) -> tuple[str, str]:
        if not self._tokens:
            raise WorkflowError("the end comes too early")
        return self._tokens.pop(0)

    def _expect(self, sign: str) -> None:
        if self._take() != ("sign", sign):
            raise WorkflowError(f"expected {sign!r}")

    def _or(self) -> Node:
        left = self._and()
        while self._next_is("||"):
            self._take()
            left = _make_or(left, self._and())
        return left

    def _and(self) -> Node:
        left = self._comparison()
        while self._next_is("&&"):
            self._take()
            left = _make_and(left, self._comparison())
        return left

    def _comparison(self) -> Node:
        left = self._not()
        while self._next_is("==", "!=", "<", "<=", ">", ">="):
            left = _make_comparison(self._take()[1], left, self._not())
        return left

    def _not(self) -> Node:
        if self._next_is("!"):
            self._take()
            inner = self._not()
            return lambda scope: not truthy(inner(scope))
        return self._members(self._primary())

    def _members(self, node: Node) -> Node:
        while self._next_is(".", "["):
            if self._take()[1] == "[":
                node = self._star_or(node, self._or if not self._next_is("*") else None)
                self._expect("]")
            elif self._next_is("*"):
                node = self._star_or(node, None)
            else:
                node = _member(node, _make_constant(self._name()))
        return node

    def _star_or(self, node: Node, key: Callable[[], Node] | None) -> Node:
        if key is not None:
            return _member(node, key())
        self._take()
        return lambda scope: filter_object(node(scope))

    def _name(self) -> str:
        kind, name = self._take()
        if kind != "name":
            raise WorkflowError(f"expected a name, not {name!r}")
        return name

    def _primary(self) -> Node:
        kind, lexeme = self._take()
        if kind == "number":
            return _make_constant(to_number(lexeme))
        if kind == "string":
            return _make_constant(lexeme[1:-1].replace("''", "'"))
        if kind == "name":
            return self._parse_name(lexeme)
        if lexeme == "(":
            node = self._or()
            self._expect(")")
            return node
        raise WorkflowError(f"did not expect {lexeme!r}")

    def _parse_name(self, name: str) -> Node:
        if self._next_is("("):
            return self._call(name.lower())
        if name in _LITERALS:
            return _make_constant(_LITERALS[name])
        return lambda scope: scope.context(name)

    def _call(self, name: str) -> Node:
        self._take()
        self.called.add(name)
        arguments: list[Node] = []
        while not self._next_is(")"):
            if arguments:
                self._expect(",")
            arguments.append(self._or())
        self._expect(")")
        return lambda scope: scope.call(name, [argument(scope) for argument in arguments])


def _make_constant(value: Any) -> Node:
    return lambda _scope: value


def _member(node: Node, key: Node) -> Node:
    return lambda scope: get_member(node(scope), key(scope))


def _make_or(left: Node, right: Node) -> Node:
    def decide(scope: Scope) -> Any:
        first = left(scope)
        return first if truthy(first) else right(scope)

    return decide


def _make_and(left: Node, right: Node) -> Node:
    def decide(scope: Scope) -> Any:
        first = left(scope)
        return right(scope) if truthy(first) else first

    return decide


def _make_comparison(sign: str, left: Node, right: Node) -> Node:
    if sign in {"==", "!="}:
        return lambda scope: loosely_equal(left(scope), right(scope)) == (sign == "==")
    return lambda scope: compare(sign, left(scope), right(scope))


OPEN, CLOSE = "${{", "}}"


def _split_template(template: str) -> Iterator[tuple[str, bool]]:
    """Pieces in their order, each with whether it is an expression."""
    at = 0
    while (start := template.find(OPEN, at)) >= 0:
        yield template[at:start], False
        end = _find_close(template, start + len(OPEN))
        yield template[start + len(OPEN) : end], True
        at = end + len(CLOSE)
    yield template[at:], False


def _find_close(template: str, at: int) -> int:
    """Where the expression ends; braces inside a quoted text do not count."""
    quoted = False
    for index in range(at, len(template)):
        if template[index] == "'":
            quoted = not quoted
        elif not quoted and template.startswith(CLOSE, index):
            return index
    raise WorkflowError(f"an expression never ends: {template[at - 3 :][:60]!r}")


def evaluate(template: Any, contexts: Contexts) -> Any:
    """A value of the file with its expressions evaluated; one that is nothing but an expression keeps its type."""
    if isinstance(template, dict):
        return {key: evaluate(value, contexts) for key, value in template.items()}
    if isinstance(template, list):
        return [evaluate(item, contexts) for item in template]
    if not isinstance(template, str) or OPEN not in template:
        return template
    parts = [(piece, is_code) for piece, is_code in _split_template(template) if piece or is_code]
    if len(parts) == 1:
        return parse(parts[0][0]).value(contexts)
    return "".join(to_text(parse(piece).value(contexts)) if is_code else piece for piece, is_code in parts)


def evaluate_text(template: Any, contexts: Contexts) -> str:
    return to_text(evaluate(template, contexts))


def condition_holds(condition: Any, contexts: Contexts, status: StatusFunctions) -> bool:
    """Evaluate an `if`; without a status function it also requires success."""
    source = "success()" if condition is None else to_text(condition).strip()
    if OPEN in source:
        source = _strip_expression(source)
    expression = parse(source)
    if not expression.asks_status and not status.functions()["success"]():
        return False
    return truthy(expression.value(contexts, status))


def _strip_expression(source: str) -> str:
    parts = [(piece, is_code) for piece, is_code in _split_template(source) if piece or is_code]
    if len(parts) != 1:
        raise WorkflowError(
            f"`if: {source}` mixes text and expressions, which GitHub always evaluates as true"
        )
    return parts[0][0]
