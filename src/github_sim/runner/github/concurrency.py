"""Concurrency groups: one run of a group at a time, one that waits, and the newest wins.

A newcomer cancels whoever waits, and, where it says so, also whoever runs.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field


@dataclass(eq=False)
class Turn:
    """One member of a group; `cancel` ends it."""

    cancel: Callable[[], None]
    may_go: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass
class _Group:
    running: Turn | None = None
    waiting: Turn | None = None


class Groups:
    def __init__(self) -> None:
        self._groups: dict[tuple[int, str], _Group] = {}

    @asynccontextmanager
    async def turn(
        self, key: tuple[int, str] | None, cancel: Callable[[], None], *, cancels: bool
    ) -> AsyncIterator[bool]:
        """Wait for the turn. False: another came, and this one was cancelled before it could begin."""
        if key is None:
            yield True
            return
        group = self._groups.setdefault(key, _Group())
        turn = Turn(cancel)
        self._line_up(group, turn, cancels=cancels)
        try:
            await turn.may_go.wait()
            yield group.running is turn
        finally:
            self._leave(group, turn)

    def _line_up(self, group: _Group, turn: Turn, *, cancels: bool) -> None:
        if group.waiting is not None:
            group.waiting.cancel()
            group.waiting.may_go.set()
            group.waiting = None
        if group.running is None:
            group.running = turn
            turn.may_go.set()
            return
        group.waiting = turn
        if cancels:
            group.running.cancel()

    def _leave(self, group: _Group, turn: Turn) -> None:
        if group.waiting is turn:
            group.waiting = None
        if group.running is turn:
            group.running, group.waiting = group.waiting, None
            if group.running is not None:
                group.running.may_go.set()
