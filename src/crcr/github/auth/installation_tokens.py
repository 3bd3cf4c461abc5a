"""Installation tokens, kept while they are good and minted once however many ask.

Each is minted for a scope: one installation, one repository where its id is known, and the permissions of the
calls that use it. Waiters of one mint share its outcome, a failure too; nothing of a failure is kept.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from crcr.github.api.core import Permissions, Token
from crcr.ports import Clock


@dataclass(frozen=True, slots=True)
class Scope:
    """What a token is good for; without a repository's id or name, all repositories of the installation."""

    installation_id: int
    repository_id: int | None
    permissions: Permissions
    repository: str | None = None
    """The name without its owner, where the id is not known yet."""


Mint = Callable[[Scope], Awaitable[Token]]


class TokenCache:
    """The least recently used scope makes room when `size` are kept."""

    __slots__ = ("_clock", "_flights", "_renew_before", "_size", "_tokens")

    def __init__(self, clock: Clock, *, renew_before_s: float = 300.0, size: int = 4096) -> None:
        self._clock = clock
        self._renew_before = timedelta(seconds=renew_before_s)
        self._size = size
        self._tokens: OrderedDict[Scope, Token] = OrderedDict()
        self._flights: dict[Scope, asyncio.Task[Token]] = {}

    def __repr__(self) -> str:
        return f"TokenCache({len(self._tokens)} tokens)"

    async def get(self, scope: Scope, mint: Mint) -> Token:
        kept = self._tokens.get(scope)
        if kept is not None and self._clock.now() < kept.expires_at - self._renew_before:
            self._tokens.move_to_end(scope)
            return kept
        flight = self._flights.get(scope)
        if flight is None or flight.done():
            flight = self._take_off(scope, mint)
        # Waiting on a task of its own: a waiter that is cancelled leaves the mint to the others.
        await asyncio.wait((flight,))
        return flight.result()

    def forget(self, scope: Scope, token: Token) -> None:
        """Drop a token that GitHub refused, unless a newer one has taken its place."""
        if self._tokens.get(scope) is token:
            del self._tokens[scope]

    def _take_off(self, scope: Scope, mint: Mint) -> asyncio.Task[Token]:
        flight = asyncio.create_task(self._fly(scope, mint))
        self._flights[scope] = flight
        flight.add_done_callback(partial(self._land, scope))
        return flight

    async def _fly(self, scope: Scope, mint: Mint) -> Token:
        token = await mint(scope)
        self._tokens[scope] = token
        self._tokens.move_to_end(scope)
        while len(self._tokens) > self._size:
            self._tokens.popitem(last=False)
        return token

    def _land(self, scope: Scope, flight: asyncio.Task[Token]) -> None:
        if self._flights.get(scope) is flight:
            del self._flights[scope]
        # Every waiter may be gone; asking for the error keeps the loop from reporting it as overlooked.
        if not flight.cancelled():
            flight.exception()
