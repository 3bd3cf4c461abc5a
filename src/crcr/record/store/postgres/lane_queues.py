"""Who waits for which lane of PostgreSQL: one line for each, and none that two of our transactions take at once."""

from collections import deque
from collections.abc import Iterable
from typing import Any
from zlib import crc32

from crcr.record.store.group_commit import Waiting

EVERYBODY = 0
"""Not a lane: whoever waits here runs alone."""
LANES = 1024
_MOST_LANES = 64


def number_of(lane: str | None) -> int:
    """The same in every process; two lanes may share a number, which costs a wait and nothing else."""
    return EVERYBODY if lane is None else 1 + crc32(lane.encode()) % LANES


class Lines:
    def __init__(self) -> None:
        self._lines: dict[int, deque[Waiting[Any]]] = {}
        self._taken: set[int] = set()

    def add(self, number: int, waiting: Waiting[Any]) -> None:
        self._lines.setdefault(number, deque()).append(waiting)

    @property
    def waits(self) -> bool:
        """Whether somebody waits whose turn it could be."""
        return any(number not in self._taken for number in self._lines)

    def choose(self) -> list[int]:
        """Take the line whose turn it is, and as many others as may go with it; empty when none is to be had."""
        free = [number for number in self._lines if number not in self._taken]
        if free[:1] == [EVERYBODY]:
            chosen = [EVERYBODY]
        else:
            chosen = [number for number in free if number != EVERYBODY][:_MOST_LANES]
        self._taken.update(chosen)
        return chosen

    def leave(self, numbers: Iterable[int], most: int) -> dict[int, list[Waiting[Any]]]:
        """Take out of each of these lines those in front, `most` in all; who is left goes behind the others."""
        numbers = list(numbers)
        each = max(1, most // len(numbers))
        left: dict[int, list[Waiting[Any]]] = {}
        for number in numbers:
            line = self._lines.pop(number, deque())
            left[number] = [line.popleft() for _ in range(min(each, len(line)))]
            if line:
                self._lines[number] = line
        return left

    def peek(self, number: int) -> list[Waiting[Any]]:
        return list(self._lines.get(number, ()))

    def remove(self, number: int, waiting: Waiting[Any]) -> bool:
        """Take one out of its line; False when it has left already."""
        line = self._lines.get(number, deque())
        if waiting not in line:
            return False
        line.remove(waiting)
        if not line:
            del self._lines[number]
        return True

    def give_back(self, numbers: Iterable[int]) -> None:
        self._taken.difference_update(numbers)

    def disperse(self) -> list[Waiting[Any]]:
        """Everybody goes, but for those whose line is taken."""
        free = [number for number in self._lines if number not in self._taken]
        return [waiting for number in free for waiting in self._lines.pop(number)]
