"""Wake-ups: after a commit, the tasks that wait for that kind of row are woken, in every process.

A signal carries no data; the waiter reads the table. A busy waiter misses none: the signal stays set until the
waiter clears it. `notify` is for this process's own commits and is forwarded to the other processes; `wake` is for
wake-ups received from another process, and goes no further.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable

EFFECTS = "effects"
CHANGES = "changes"
ALLOWLIST = "allowlist"
NAMES = frozenset({EFFECTS, CHANGES, ALLOWLIST})

Forward = Callable[[str], None]
"""Sends a signal to the other processes soon. Returns at once and never fails: it is called right after a commit."""


class Signals:
    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._forwards: list[Forward] = []

    def forward_to(self, forward: Forward) -> None:
        self._forwards.append(forward)

    def subscribe(self, name: str) -> asyncio.Event:
        event = asyncio.Event()
        self._waiters[name].add(event)
        return event

    def unsubscribe(self, name: str, event: asyncio.Event) -> None:
        self._waiters[name].discard(event)

    def notify(self, name: str) -> None:
        """Wake the waiters of this process, and forward the signal to the other processes."""
        self.wake(name)
        for forward in self._forwards:
            forward(name)

    def wake(self, name: str) -> None:
        """Wake the waiters of this process."""
        for event in self._waiters.get(name, ()):
            event.set()

    def wake_all(self) -> None:
        """Wake every waiter of this process: a signal may have been missed."""
        for name in self._waiters:
            self.wake(name)
