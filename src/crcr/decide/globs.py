"""Globs of the allowlist: `*`, `**`, `?` and a backslash that escapes the next character.

In paths and refs `*` and `?` stop at a slash, `**` does not, and `**/` also matches nothing. In names (jobs, labels) a
slash is a character like any other. Brackets and braces are literal: job names contain them.
A match is one pass over the text (bit-parallel automaton), so no pattern can make it slow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby

_SOME = "*"
_ALL = "**"
_ONE = "?"


@dataclass(frozen=True, slots=True)
class Glob:
    """Bit n of a state set means that the first n tokens have matched; the masks mark the tokens of each kind."""

    prefix: str
    """The literal beginning, compared as text: most patterns are decided by it."""
    literals: dict[str, int]
    ones: int
    loops: int
    """Stars that match any character but the separator."""
    deep_loops: int
    """Stars that match any character."""
    skips: int
    """Each `**/` that may match nothing."""
    accept: int
    separator: str | None

    @property
    def is_literal(self) -> bool:
        """Whether it matches one text only."""
        return self.accept == 1

    def matches(self, text: str) -> bool:
        if not text.startswith(self.prefix):
            return False
        if self.is_literal:
            return len(text) == len(self.prefix)
        states = self._step(0, 1)
        for character in text[len(self.prefix) :]:
            stays, moves = self.deep_loops, self.literals.get(character, 0)
            if character != self.separator:
                stays |= self.loops
                moves |= self.ones
            states = self._step(states & stays, (states & moves) << 1)
            if not states:
                return False
        return bool(states & self.accept)

    def _step(self, stayed: int, entered: int) -> int:
        """Add the states that need no character: past a `**/` only when it was just entered, past a star at any time."""
        states = stayed | entered | (entered & self.skips) << 2
        return states | (states & (self.loops | self.deep_loops)) << 1


@lru_cache(maxsize=4096)
def path_glob(pattern: str) -> Glob:
    return _compile(pattern, separator="/")


@lru_cache(maxsize=4096)
def name_glob(pattern: str) -> Glob:
    return _compile(pattern, separator=None)


def _compile(pattern: str, *, separator: str | None) -> Glob:
    tokens = list(_merged(_tokens(pattern)))
    if separator is not None:
        tokens = _folded(tokens)
    wild = next((at for at, (special, _) in enumerate(tokens) if special), len(tokens))
    prefix = "".join(text for _, text in tokens[:wild])
    literals: dict[str, int] = {}
    masks = {_SOME: 0, _ALL: 0, _ONE: 0}
    for at, (special, text) in enumerate(tokens[wild:]):
        if special:
            masks[text] |= 1 << at
        else:
            literals[text] = literals.get(text, 0) | 1 << at
    skips = 0
    if separator is not None:
        skips = sum(1 << at - wild for at in range(wild, len(tokens)) if _may_be_nothing(tokens, at))
    return Glob(
        prefix, literals, masks[_ONE], masks[_SOME], masks[_ALL], skips, 1 << len(tokens) - wild, separator
    )


_Token = tuple[bool, str]
"""Whether it is special, and its text."""
_DIRECTORIES: list[_Token] = [(True, _ALL), (False, "/")]


def _tokens(pattern: str) -> Iterator[_Token]:
    characters = iter(pattern)
    for character in characters:
        if character == "\\":
            yield False, next(characters, "\\")
        else:
            yield character in {_SOME, _ONE}, character


def _merged(tokens: Iterator[_Token]) -> Iterator[_Token]:
    """Make one token of neighbouring stars, so that a step past a star never meets another."""
    for token, run in groupby(tokens):
        if token == (True, _SOME):
            yield True, _SOME if len(list(run)) == 1 else _ALL
        else:
            yield from run


def _folded(tokens: list[_Token]) -> list[_Token]:
    """Make `**/**/` the `**/` that it equals, so that a step past one never meets another."""
    folded: list[_Token] = []
    for token in tokens:
        folded.append(token)
        if folded[-4:] == [*_DIRECTORIES, *_DIRECTORIES]:
            del folded[-2:]
    return folded


def _may_be_nothing(tokens: list[_Token], at: int) -> bool:
    """Whether there is a `**/` at the beginning of a path segment."""
    is_directories = tokens[at : at + 2] == _DIRECTORIES
    return is_directories and (at == 0 or tokens[at - 1] == (False, "/"))
