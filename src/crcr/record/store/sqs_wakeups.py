"""Wake-ups of workers that do not run all the time: a message to a queue of Amazon SQS after a commit with new effects.

The message carries no data: the worker reads the outbox. A message that is lost, or sent twice, costs no more than a look:
a schedule wakes the worker every minute anyway. So a failure is logged and not raised.
"""

import asyncio
from collections.abc import Callable
from math import ceil
from typing import TYPE_CHECKING, Any

import structlog

from crcr.record.store.signals import EFFECTS, Signals

if TYPE_CHECKING:
    from botocore.client import BaseClient

log = structlog.get_logger(__name__)

LONGEST_DELAY_S = 900
"""The longest delay that SQS takes."""
MESSAGE = '{"crcr":"effects"}'
_BETWEEN_S = 0.25
"""From one message to the next, for all commits until then."""


def open_sqs(queue_url: str, region: str | None) -> "BaseClient":
    """Return a client with short time-outs: a commit's caller may wait for the message."""
    from botocore.config import Config  # noqa: PLC0415  an optional extra, and a tenth of a second
    from botocore.session import Session  # noqa: PLC0415

    config = Config(connect_timeout=1, read_timeout=1, retries={"total_max_attempts": 2, "mode": "standard"})
    return Session().create_client("sqs", region_name=region_of(queue_url) or region, config=config)


def region_of(queue_url: str) -> str | None:
    """Return the region of `https://sqs.REGION.amazonaws.com/…`; None for another address."""
    host = queue_url.partition("://")[2].partition("/")[0].split(".")
    return host[1] if len(host) >= 4 and host[0] == "sqs" and host[2] == "amazonaws" else None


class SqsWakeups:
    """Sends a message after commits that add effects. `paused` while this process runs the effects itself."""

    def __init__(
        self, queue_url: str, open_client: Callable[[], "BaseClient"], signals: Signals | None = None
    ) -> None:
        self._queue_url = queue_url
        self._open_client = open_client
        self._client: Any = None
        self._connecting = asyncio.Lock()
        self._unsent = False
        self._sending: asyncio.Task[None] | None = None
        self._pause: asyncio.TimerHandle | None = None
        self.paused = False
        if signals is not None:
            signals.forward_to(self.send_soon)

    def send_soon(self, name: str) -> None:
        """Send at once, or after a pause since the last message."""
        if name != EFFECTS or self.paused:
            return
        self._unsent = True
        if self._pause is None and (self._sending is None or self._sending.done()):
            self._sending = asyncio.create_task(self._send_unsent())

    async def flush(self) -> None:
        """Send now what would be sent after the pause, and wait until it is sent."""
        if self._sending is not None:
            await asyncio.gather(self._sending, return_exceptions=True)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        if self._unsent:
            self._unsent = False
            await self.send()

    async def send(self, delay_s: float = 0.0) -> bool:
        """Send one message, which arrives after the delay; False when it could not be sent."""
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415

        delay = min(LONGEST_DELAY_S, max(0, ceil(delay_s)))
        try:
            async with self._connecting:
                self._client = self._client or await asyncio.to_thread(self._open_client)
            await asyncio.to_thread(
                self._client.send_message,
                QueueUrl=self._queue_url,
                MessageBody=MESSAGE,
                DelaySeconds=delay,
            )
        except (BotoCoreError, ClientError) as fault:
            log.warning("wakeup_not_sent", error=type(fault).__name__, detail=str(fault)[:200])
            return False
        return True

    async def _send_unsent(self) -> None:
        self._unsent = False
        await self.send()
        self._pause = asyncio.get_running_loop().call_later(_BETWEEN_S, self._end_pause)

    def _end_pause(self) -> None:
        self._pause = None
        if self._unsent:
            self._sending = asyncio.create_task(self._send_unsent())
