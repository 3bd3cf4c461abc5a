"""Installation tokens: one request for concurrent callers, renewal before expiry, and no cached failure."""

import asyncio
from datetime import timedelta

import pytest

from crcr.errors import OutsideUnsure
from crcr.github.api.request_response import CONTENTS_READ, CONTENTS_WRITE, Token
from crcr.github.app_auth import TokenCache, TokenScope
from support.clock import ManualClock, settle

SCOPE = TokenScope(5, 9, CONTENTS_WRITE)


class Mint:
    """Mints tokens of an hour; holds each mint back until `go` is set, and fails while `broken`."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.scopes: list[TokenScope] = []
        self.go = asyncio.Event()
        self.go.set()
        self.broken = False

    async def __call__(self, scope: TokenScope) -> Token:
        self.scopes.append(scope)
        await self.go.wait()
        if self.broken:
            raise OutsideUnsure("no answer")
        return Token(f"ghs_{len(self.scopes)}", self.clock.now() + timedelta(hours=1))


@pytest.fixture
def mint(clock: ManualClock) -> Mint:
    return Mint(clock)


async def test_a_hundred_concurrent_callers_mint_one_token(clock: ManualClock, mint: Mint) -> None:
    cache = TokenCache(clock)
    tokens = await asyncio.gather(*(cache.get(SCOPE, mint) for _ in range(100)))
    assert len(mint.scopes) == 1
    assert len({token.value for token in tokens}) == 1


async def test_a_token_is_renewed_five_minutes_before_its_expiry(clock: ManualClock, mint: Mint) -> None:
    cache = TokenCache(clock)
    first = await cache.get(SCOPE, mint)
    clock.advance(55 * 60 - 1)
    assert await cache.get(SCOPE, mint) is first
    clock.advance(1)
    assert await cache.get(SCOPE, mint) is not first
    assert len(mint.scopes) == 2


async def test_each_scope_has_its_own_token(clock: ManualClock, mint: Mint) -> None:
    cache = TokenCache(clock)
    scopes = [
        SCOPE,
        TokenScope(5, 8, CONTENTS_WRITE),
        TokenScope(5, None, CONTENTS_WRITE),
        TokenScope(5, 9, CONTENTS_READ),
    ]
    tokens = [await cache.get(scope, mint) for scope in scopes]
    assert mint.scopes == scopes
    assert len({token.value for token in tokens}) == len(scopes)


async def test_a_failed_mint_fails_its_waiters_and_the_next_call_retries(
    clock: ManualClock, mint: Mint
) -> None:
    cache = TokenCache(clock)
    mint.broken = True
    outcomes = await asyncio.gather(*(cache.get(SCOPE, mint) for _ in range(10)), return_exceptions=True)
    assert all(isinstance(outcome, OutsideUnsure) for outcome in outcomes)
    mint.broken = False
    await cache.get(SCOPE, mint)
    assert len(mint.scopes) == 2


async def test_cancelling_the_first_waiter_does_not_affect_the_others(clock: ManualClock, mint: Mint) -> None:
    cache = TokenCache(clock)
    mint.go.clear()
    waiters = [asyncio.create_task(cache.get(SCOPE, mint)) for _ in range(3)]
    await settle()
    waiters[0].cancel()
    await settle()
    mint.go.set()
    cancelled, *tokens = await asyncio.gather(*waiters, return_exceptions=True)
    assert isinstance(cancelled, asyncio.CancelledError)
    assert all(isinstance(token, Token) for token in tokens)
    assert len(mint.scopes) == 1


async def test_a_failed_mint_without_waiters_does_not_fail_the_next_call(
    clock: ManualClock, mint: Mint
) -> None:
    cache = TokenCache(clock)
    mint.go.clear()
    mint.broken = True
    waiter = asyncio.create_task(cache.get(SCOPE, mint))
    await settle()
    waiter.cancel()
    mint.go.set()
    await settle()
    mint.broken = False
    assert (await cache.get(SCOPE, mint)).value == "ghs_2"


async def test_a_refused_token_is_minted_again_once_for_all_its_callers(
    clock: ManualClock, mint: Mint
) -> None:
    cache = TokenCache(clock)
    old = await cache.get(SCOPE, mint)

    async def refused() -> Token:
        cache.forget(SCOPE, old)
        return await cache.get(SCOPE, mint)

    renewed = await asyncio.gather(*(refused() for _ in range(50)))
    late = await refused()
    assert len(mint.scopes) == 2
    assert {token.value for token in [*renewed, late]} == {"ghs_2"}


async def test_the_least_recently_used_token_is_evicted(clock: ManualClock, mint: Mint) -> None:
    cache = TokenCache(clock, size=2)
    one, two, three = (TokenScope(number, None, CONTENTS_READ) for number in (1, 2, 3))
    for scope in (one, two, one, three, one, two):
        await cache.get(scope, mint)
    assert mint.scopes == [one, two, three, two]
    assert repr(cache) == "TokenCache(2 tokens)"
