"""GitHub's expression language: `parse` makes a tree of it, `Expression.value` evaluates that in given contexts.

Only what is named exists: an unknown context or function is a `Problem`, as it is on GitHub. Values that come out of
contexts are never read as expressions again.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from github_sim.runner.github.expression_functions import FUNCTIONS, STATUS, Standing
from github_sim.runner.github.expression_values import equal, member, number, ordered, starred, truthy
from github_sim.runner.problems import Problem

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
    standing: Standing | None = None

    def context(self, name: str) -> Any:
        if name.lower() not in self.contexts:
            raise Problem(f"there is no {name!r} here; there is {', '.join(self.contexts)}")
        return self.contexts[name.lower()]

    def call(self, name: str, values: list[Any]) -> Any:
        if name in STATUS and self.standing is None:
            raise Problem(f"{name}() can be asked only in an `if`")
        known = {**FUNCTIONS, **(self.standing.functions() if self.standing else {})}
        if name not in known:
            raise Problem(f"there is no function {name}()")
        try:
            return known[name](*values)
        except TypeError:
            raise Problem(f"{name}() was given {len(values)} values") from None


@dataclass(frozen=True)
class Expression:
    source: str
    node: Node
    asks_status: bool

    def value(self, contexts: Contexts, standing: Standing | None = None) -> Any:
        try:
            return self.node(Scope(contexts, standing))
        except Problem as problem:
            raise Problem(f"{problem} (in `{self.source.strip()}`)") from None


@cache
def parse(source: str) -> Expression:
    try:
        reader = _Reader(_tokens(source))
        node = reader.whole()
    except Problem as problem:
        raise Problem(f"{problem} in the expression `{source.strip()}`") from None
    return Expression(source, node, asks_status=bool(reader.called & STATUS))


def _tokens(source: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    at = 0
    while source[at:].strip():
        match = _TOKEN.match(source, at)
        if match is None:
            raise Problem(f"cannot read {source[at:].strip()[:20]!r}")
        found.append((match.lastgroup or "", match[match.lastgroup or 0]))
        at = match.end()
    return found


class _Reader:
    """Reads by rising strength: `||`, `&&`, comparison, `!`, then what has dots, brackets and calls."""

    def __init__(self, tokens: list[tuple[str, str]]) -> None:
        self._tokens = tokens
        self.called: set[str] = set()

    def whole(self) -> Node:
        node = self._or()
        if self._tokens:
            raise Problem(f"did not expect {self._tokens[0][1]!r}")
        return node

    def _next_is(self, *signs: str) -> bool:
        return bool(self._tokens) and self._tokens[0][0] == "sign" and self._tokens[0][1] in signs

    def _take(self) -> tuple[str, str]:
        if not self._tokens:
            raise Problem("the end comes too early")
        return self._tokens.pop(0)

    def _expect(self, sign: str) -> None:
        if self._take() != ("sign", sign):
            raise Problem(f"expected {sign!r}")

    def _or(self) -> Node:
        left = self._and()
        while self._next_is("||"):
            self._take()
            left = _either(left, self._and())
        return left

    def _and(self) -> Node:
        left = self._comparison()
        while self._next_is("&&"):
            self._take()
            left = _both(left, self._comparison())
        return left

    def _comparison(self) -> Node:
        left = self._not()
        while self._next_is("==", "!=", "<", "<=", ">", ">="):
            left = _compared(self._take()[1], left, self._not())
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
                node = _member(node, _constant(self._name()))
        return node

    def _star_or(self, node: Node, key: Callable[[], Node] | None) -> Node:
        if key is not None:
            return _member(node, key())
        self._take()
        return lambda scope: starred(node(scope))

    def _name(self) -> str:
        kind, name = self._take()
        if kind != "name":
            raise Problem(f"expected a name, not {name!r}")
        return name

    def _primary(self) -> Node:
        kind, found = self._take()
        if kind == "number":
            return _constant(number(found))
        if kind == "string":
            return _constant(found[1:-1].replace("''", "'"))
        if kind == "name":
            return self._named(found)
        if found == "(":
            node = self._or()
            self._expect(")")
            return node
        raise Problem(f"did not expect {found!r}")

    def _named(self, name: str) -> Node:
        if self._next_is("("):
            return self._call(name.lower())
        if name in _LITERALS:
            return _constant(_LITERALS[name])
        return lambda scope: scope.context(name)

    def _call(self, name: str) -> Node:
        self._take()
        self.called.add(name)
        given: list[Node] = []
        while not self._next_is(")"):
            if given:
                self._expect(",")
            given.append(self._or())
        self._expect(")")
        return lambda scope: scope.call(name, [each(scope) for each in given])


def _constant(value: Any) -> Node:
    return lambda _scope: value


def _member(node: Node, key: Node) -> Node:
    return lambda scope: member(node(scope), key(scope))


def _either(left: Node, right: Node) -> Node:
    def decide(scope: Scope) -> Any:
        first = left(scope)
        return first if truthy(first) else right(scope)

    return decide


def _both(left: Node, right: Node) -> Node:
    def decide(scope: Scope) -> Any:
        first = left(scope)
        return right(scope) if truthy(first) else first

    return decide


def _compared(sign: str, left: Node, right: Node) -> Node:
    if sign in {"==", "!="}:
        return lambda scope: equal(left(scope), right(scope)) == (sign == "==")
    return lambda scope: ordered(sign, left(scope), right(scope))
