"""One forward to another HUD: only under a lease that still holds, and within a limited time."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from crcr.decide.model import EffectKind, RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.forward_result import ForwardResult
from crcr.errors import LeaseLost, OutsideUnsure
from crcr.ports import check_lease
from support.data.events_and_reports import NOW

EFFECT = ClaimedEffect(
    effect_id=1,
    upstream=RepoName("org/core"),
    kind=EffectKind.FORWARD_RESULT,
    target="hud",
    lane="delivery-1",
    delivery="delivery-1",
    payload=b"{}",
    attempts=1,
    unsure=False,
    created_at=NOW,
    first_attempt_at=NOW,
    lease_until=NOW,
)


class Dripping(httpx.AsyncByteStream):
    """A body that never ends, with a byte well within each read's time-out."""

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield b" "
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("lost_at", "steps"), [(1, ["lease"]), (2, ["lease", "post", "lease"])])
async def test_a_worker_that_lost_its_lease_sends_nothing_and_ignores_the_response(
    lost_at: int, steps: list[str]
) -> None:
    steps_taken: list[str] = []

    async def check() -> None:
        steps_taken.append("lease")
        if steps_taken.count("lease") == lost_at:
            raise LeaseLost

    def respond(_: httpx.Request) -> httpx.Response:
        steps_taken.append("post")
        return httpx.Response(400)

    async with httpx.AsyncClient(transport=httpx.MockTransport(respond)) as http:
        before = check_lease.set(check)
        with pytest.raises(LeaseLost):
            await ForwardResult(http, "https://hud.test", lambda: "token")(EFFECT)
        check_lease.reset(before)

    assert steps_taken == steps


async def test_an_endless_slow_response_is_unsure_after_the_total_time() -> None:
    transport = httpx.MockTransport(lambda _: httpx.Response(200, stream=Dripping()))
    async with httpx.AsyncClient(transport=transport) as http, asyncio.timeout(5):
        with pytest.raises(OutsideUnsure, match="TimeoutError"):
            await ForwardResult(http, "https://hud.test", lambda: "token", total_s=0.1)(EFFECT)


async def test_a_response_that_never_begins_is_unsure_after_the_total_time() -> None:
    async def hang(_: httpx.Request) -> httpx.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with httpx.AsyncClient(transport=httpx.MockTransport(hang)) as http, asyncio.timeout(5):
        with pytest.raises(OutsideUnsure):
            await ForwardResult(http, "https://hud.test", lambda: "token", total_s=0.1)(EFFECT)
