"""Interfaces with more than one implementation, or with a double in tests, that several rooms use.

`wiring` chooses the implementation. A type with a single implementation is imported from its own module instead.
"""

from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from datetime import datetime
from typing import Protocol

from crcr.decide.github.requests_and_answers import (
    DeliveryLogPage,
)
from crcr.decide.oidc.identity import Identity
from crcr.decide.trace_steps import TraceStep


class Clock(Protocol):
    """The relay's source of time; tests advance it by hand."""

    def now(self) -> datetime:
        """Return the current time, aware and in UTC."""
        ...

    async def sleep(self, seconds: float) -> None: ...


async def no_lease() -> None:
    """Do nothing: the call is made by a page, a command or a periodic task, without a lease."""


check_lease: ContextVar[Callable[[], Awaitable[None]]] = ContextVar("check_lease", default=no_lease)
"""Raises `LeaseLost` when another worker has taken over the effect that the current task is working on.

Awaited right before and right after each call to GitHub and each forward. A worker that freezes between this check and
the request may still send it: a check run written that way is read again (`deliver.handlers.publish_checks`).
"""


class Trace(Protocol):
    """Records the steps of a delivery, from its webhook to the live pages."""

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
        """Record a finished step. Never waits, never fails; `facts` are our own words and ids, never text from outside."""
        ...

    async def close(self) -> None: ...


class NoTrace:
    """Used where tracing is switched off."""

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


VerifyToken = Callable[[str], Awaitable[Identity]]
"""Turns a bearer token into a proved identity, or raises `NotAuthentic`, `NotRegistered` or `KeysUnavailable`."""


FAILED_SIGN_IN = "failed_sign_in"
AUDITED_FAILURE = "audited_sign_in_failure"
INSPECTION = "inspection"
TEST_DISPATCH = "test_dispatch"
"""Names of the limits of pages and API; those of callbacks are named where they are used."""


class RequestLimiter(Protocol):
    """Sliding windows. `take` counts one request and raises `RateLimited` when the window is full."""

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
