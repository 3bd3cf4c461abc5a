"""What the rooms need from each other, as narrow interfaces.

Each consumer declares only the calls it makes; `wiring.py` decides who answers them. Method names are
transitions of the domain, not operations on tables.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

from crcr.decide.github.values import (
    DeliveryLogPage,
)
from crcr.decide.trace_steps import TraceStep


class Clock(Protocol):
    """Time as the relay sees it; tests move it by hand."""

    def now(self) -> datetime:
        """Return the present as an aware UTC time."""
        ...

    async def sleep(self, seconds: float) -> None: ...


async def no_lease() -> None:
    """Not under a lease: a page, a command or a duty calls."""


still_held: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("still_held", default=no_lease)
"""Raises `LeaseLost` when the effect that the current task works on has been taken over by another worker.

Awaited right before and right after each call to GitHub and each forward. A worker that was frozen just between this and the sending may
still send: a check that it wrote so is read again (`deliver.handlers.publish_checks`).
"""


class Trace(Protocol):
    """Follows a delivery from its webhook to the pages that are told of it."""

    def note(
        self,
        step: TraceStep,
        delivery: str,
        began_at: datetime,
        ended_at: datetime,
        *,
        downstream: str | None = None,
        **facts: str | int,
    ) -> None:
        """Note a step that is over. Never waits, never fails; `facts` are words of ours and ids, never others' text."""
        ...

    async def close(self) -> None: ...


class Untraced:
    """The trace that nobody asked for."""

    def note(
        self,
        step: TraceStep,
        delivery: str,
        began_at: datetime,
        ended_at: datetime,
        *,
        downstream: str | None = None,
        **facts: str | int,
    ) -> None: ...

    async def close(self) -> None: ...


class Limits(Protocol):
    """Sliding windows. `take` counts one and raises `RateLimited` when the window is full."""

    async def take(self, scope: str, subject: str) -> None: ...

    async def check(self, scope: str, subject: str) -> None:
        """Raise `RateLimited` if the window is full, without counting."""
        ...


class DeliveryLog(Protocol):
    """GitHub's log of the App's webhook deliveries, newest first."""

    async def read_page(self, cursor: str | None) -> DeliveryLogPage: ...

    async def read_delivery(self, log_id: int) -> tuple[str, str, bytes]:
        """Return the GUID, the event's name and the payload."""
        ...
