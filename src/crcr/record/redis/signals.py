"""Wake-ups between processes through Redis.

Telling is beside the commit: names gather while one message is under way, and wait while Redis is away. Listening
begins again by itself, and every beginning wakes everybody here, since something may have been missed. A message
holds names and nothing else; whoever can forge one can make us look at a table once more.
"""

import asyncio
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import structlog
from redis.exceptions import RedisError

from crcr.record.redis.connection import RedisDown, RedisLink, heeding_cancel
from crcr.record.store.signals import NAMES, Signals

if TYPE_CHECKING:
    from redis.asyncio import Redis
    from redis.asyncio.client import PubSub

log = structlog.get_logger(__name__)

_GATHER_S = 0.01
"""Between two messages: a storm of commits is one message in that time."""
_AGAIN_S = 1.0
_SILENCE_S = 5.0
"""After which a listener asks whether the server is still there; as long again without an answer, and it is not."""
_LONGEST = 256


class RedisSignals:
    """Implements `signals.Carrier`; `run` is what carries and listens."""

    def __init__(self, link: RedisLink, signals: Signals) -> None:
        self._link = link
        self._signals = signals
        self._me = uuid4().hex[:12]
        self._channel = link.key("signals")
        self._untold: set[str] = set()
        self._told = asyncio.Event()
        self.listening = asyncio.Event()
        """Set while a subscription stands."""

    def carry(self, name: str) -> None:
        self._untold.add(name)
        self._told.set()

    async def run(self) -> None:
        """Carry and listen until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._tell())
            group.create_task(self._listen())

    async def _tell(self) -> None:
        while True:
            await self._told.wait()
            self._told.clear()
            names, self._untold = self._untold, set()
            message = f"{self._me}:{','.join(sorted(names))}"
            try:
                await self._link.call(partial(_publish, channel=self._channel, message=message))
            except RedisDown:
                self._untold |= names
                self._told.set()
                await asyncio.sleep(_AGAIN_S)
            else:
                await asyncio.sleep(_GATHER_S)

    async def _listen(self) -> None:
        told = False  # an outage is told once, however long it lasts
        while True:
            client = self._link.alone()
            try:
                async with client.pubsub() as subscription:
                    await self._hear(subscription)
            except (RedisError, OSError, TimeoutError) as fault:
                if self.listening.is_set() or not told:
                    log.info("redis_not_listening", place=str(self._link.place), reason=type(fault).__name__)
                told = True
            finally:
                self.listening.clear()
                with suppress(RedisError, OSError):
                    await client.aclose(close_connection_pool=True)
            await asyncio.sleep(_AGAIN_S)

    async def _hear(self, subscription: "PubSub") -> None:
        async with heeding_cancel():
            await subscription.subscribe(self._channel)
        asked = False
        while True:
            message = await subscription.get_message(timeout=_SILENCE_S)
            if message is None and asked:
                raise TimeoutError
            if message is None:
                async with heeding_cancel():
                    await subscription.ping()
            asked = message is None
            if message is not None:
                self._heard(message)

    def _heard(self, message: dict[str, Any]) -> None:
        if message["type"] == "subscribe":
            self._signals.wake_all()
            self.listening.set()
        elif message["type"] == "message" and len(message["data"]) <= _LONGEST:
            sender, _, names = message["data"].decode(errors="replace").partition(":")
            if sender != self._me:
                for name in NAMES.intersection(names.split(",")):
                    self._signals.wake(name)


async def _publish(redis: "Redis", *, channel: str, message: str) -> int:
    return int(await redis.publish(channel, message))
