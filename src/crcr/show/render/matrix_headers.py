"""Names of jobs as the narrow heads of a matrix have room for: what tells them apart stays, the rest gives way."""

from collections.abc import Sequence

ROOM = 36
"""Characters that a head shows."""
_LEAST_SHARED = 12
_START = 12
_CUT = "…"
_EDGES = frozenset("/(:,_-")


def shortened(names: Sequence[str]) -> list[str]:
    """One for each name of a workflow; a name that fits is left as it is where all of them do."""
    if all(len(name) <= ROOM for name in names):
        return list(names)
    shared = _shared(names)
    return [_fitted(f"{_CUT}{name[shared:]}" if shared else name) for name in names]


def _shared(names: Sequence[str]) -> int:
    """How many characters all begin with, up to the end of a word; none where it is not worth it."""
    if len(set(names)) < 2:
        return 0
    first, last = min(names), max(names)  # whatever these two share, all between them share
    pairs = zip(first, last, strict=False)
    same = next((place for place, (one, other) in enumerate(pairs) if one != other), len(first))
    edge = next((place for place in range(same, 0, -1) if _is_edge(first[place - 1])), 0)
    return edge if edge >= _LEAST_SHARED else 0


def _is_edge(character: str) -> bool:
    return character in _EDGES or character.isspace()


def _fitted(name: str) -> str:
    """Names differ at their ends more often than at their beginnings."""
    if len(name) <= ROOM:
        return name
    end = ROOM - _START - len(_CUT)
    return f"{name[:_START].rstrip()}{_CUT}{name[-end:].lstrip()}"
