"""Wake-ups: after a commit, whoever waits for that kind of row is told at once, in every process.

A signal carries nothing; the waiter reads the table. A waiter that was busy misses none: the signal stays set
until it is taken. `notify` is for what this process committed, and is carried on to the others; `heard` is for
what another process told us, and goes no further.
"""

import asyncio
from collections import defaultdict
from typing import Protocol

EFFECTS = "effects"
CHANGES = "changes"
ALLOWLIST = "allowlist"
NAMES = frozenset({EFFECTS, CHANGES, ALLOWLIST})


class Carrier(Protocol):
    """A way to the other processes."""

    def carry(self, name: str) -> None:
        """Tell the others soon. Returns at once and never fails: this is called right after a commit."""
        ...


class Signals:
    def __init__(self) -> None:
        self._waiters: dict[str, set[asyncio.Event]] = defaultdict(set)
        self._carriers: list[Carrier] = []

    def carry_by(self, carrier: Carrier) -> None:
        self._carriers.append(carrier)

    def subscribe(self, name: str) -> asyncio.Event:
        event = asyncio.Event()
        self._waiters[name].add(event)
        return event

    def unsubscribe(self, name: str, event: asyncio.Event) -> None:
        self._waiters[name].discard(event)

    def notify(self, name: str) -> None:
        """Wake those who wait here, and let the carriers tell the other processes."""
        self.heard(name)
        for carrier in self._carriers:
            carrier.carry(name)

    def heard(self, name: str) -> None:
        """Wake those who wait here."""
        for event in self._waiters.get(name, ()):
            event.set()

    def heard_all(self) -> None:
        """Wake everybody here: something may have been missed."""
        for name in self._waiters:
            self.heard(name)
