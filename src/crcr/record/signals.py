"""Wake-ups: after a commit, whoever waits for that kind of row is told at once.

A signal carries nothing; the waiter reads the table. A waiter that was busy misses none: the signal stays set
until it is taken.
"""

import asyncio
from collections import defaultdict

EFFECTS = "effects"
CHANGES = "changes"
ALLOWLIST = "allowlist"


class Signals:
    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)

    def subscribe(self, name: str) -> asyncio.Event:
        event = asyncio.Event()
        self._waiters[name].add(event)
        return event

    def unsubscribe(self, name: str, event: asyncio.Event) -> None:
        self._waiters[name].discard(event)

    def notify(self, name: str) -> None:
        for event in self._waiters[name]:
            event.set()

    def notify_all(self) -> None:
        for name in list(self._waiters):
            self.notify(name)
