"""What the log says while a replica cannot listen: one line for each outage, however long it lasts."""

import asyncio
from contextlib import suppress
from typing import Any, Self

import pytest
from structlog.testing import capture_logs

from crcr.record.redis import signals
from crcr.record.redis.signals import RedisSignals
from crcr.record.store.signals import Signals

SUBSCRIBED: dict[str, Any] = {"type": "subscribe", "data": 1}


class Subscription:
    """Hears what it is given, then the connection breaks."""

    def __init__(self, hears: list[dict[str, Any]]) -> None:
        self._hears = hears

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def subscribe(self, _: str) -> None:
        if not self._hears:
            raise ConnectionRefusedError

    async def get_message(self, **_: object) -> dict[str, Any]:
        if not self._hears:
            raise ConnectionResetError
        return self._hears.pop(0)


class Client:
    def __init__(self, hears: list[dict[str, Any]]) -> None:
        self._hears = hears

    def pubsub(self) -> Subscription:
        return Subscription(self._hears)

    async def aclose(self, **_: object) -> None: ...


class Link:
    """Stands in for `RedisLink`: each attempt to listen goes as the next entry says."""

    place = "redis://127.0.0.1:6379/0"

    def __init__(self, *attempts: list[dict[str, Any]]) -> None:
        self._attempts = list(attempts)
        self.over = asyncio.Event()

    def key(self, name: str) -> str:
        return name

    def alone(self) -> Client:
        if len(self._attempts) == 1:
            self.over.set()
        return Client(self._attempts.pop(0) if self._attempts else [])


async def lines_about(*attempts: list[dict[str, Any]]) -> int:
    link: Any = Link(*attempts, [])
    with capture_logs() as logged:
        running = asyncio.create_task(RedisSignals(link, Signals()).run())
        async with asyncio.timeout(20):
            await link.over.wait()
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running
    return sum(each["event"] == "redis_not_listening" for each in logged)


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "_AGAIN_S", 0.0)


async def test_a_long_outage_is_one_line() -> None:
    assert await lines_about([], [], [], [], []) == 1


async def test_the_next_outage_is_told_again() -> None:
    assert await lines_about([], [], [SUBSCRIBED], [], [], [SUBSCRIBED], []) == 3
