"""Sliding-window rate limits in Redis, shared by all processes of a relay.

Exact like `limits.memory`: the times of all counted requests are kept until they leave the window, and one script
checks and counts atomically, so no window of any position ever holds more than its limit. Requests that arrive while a
call is in flight share the next call. When Redis is down every call raises `LimiterUnavailable`: no request passes
uncounted. `MonitoredLimits` counts whether Redis answered, and probes it without traffic, so that an outage and its end
are known before the next caller. Why the time is the server's own: docs/adr/0021-redis.md.
"""

import asyncio
import hashlib
from collections import deque
from collections.abc import Awaitable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, cast

from redis.exceptions import NoScriptError

from crcr.errors import LimiterUnavailable
from crcr.ports import Clock
from crcr.record.limits.memory import Rule, limit_exceeded
from crcr.record.limits.redis_connection import RedisDown, RedisLink
from crcr.record.store.times import to_us

if TYPE_CHECKING:
    from redis.asyncio import Redis
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Protocol

from crcr.errors import RateLimited
from crcr.ports import RequestLimiter

_AT_ONCE = 128

_SCRIPT = """
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local waits = {}
for i, key in ipairs(KEYS) do
  local counts = ARGV[3 * i - 1] == 'take'
  local limit, window = tonumber(ARGV[3 * i]), tonumber(ARGV[3 * i + 1])
  local at = now
  local last = tonumber(redis.call('LINDEX', key, -1))
  if last and last > now + window then
    redis.call('DEL', key)
  elseif last and last > now then
    at = last
  end
  local first = tonumber(redis.call('LINDEX', key, 0))
  while first and first + window <= at do
    redis.call('LPOP', key)
    first = tonumber(redis.call('LINDEX', key, 0))
  end
  if first and redis.call('LLEN', key) >= limit then
    waits[i] = first + window - at
  else
    waits[i] = 0
    if counts then
      redis.call('RPUSH', key, string.format('%.0f', at))
      redis.call('PEXPIRE', key, math.ceil(window / 1000) + 1000)
    end
  end
end
return waits
"""
# When the clock goes back a little, counting continues from the newest request, so that a window stays ordered; when it
# goes back by more than a window, the window is emptied.
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _PendingCall:
    key: str
    counts: bool
    rule: Rule
    wait_us: asyncio.Future[int]

    @property
    def arguments(self) -> tuple[str | int, ...]:
        return "take" if self.counts else "check", self.rule.limit, self.rule.window_us


class RedisLimits:
    """Implements `ports.RequestLimiter`."""

    def __init__(self, rules: Mapping[str, Rule], link: RedisLink, clock: Clock | None = None) -> None:
        """`clock` replaces the server's own, for tests that move time."""
        self._rules = rules
        self._link = link
        self._clock = clock
        self._pending: deque[_PendingCall] = deque()
        self._task: asyncio.Task[None] | None = None

    async def take(self, scope: str, subject: str) -> None:
        await self._request(scope, subject, counts=True)

    async def check(self, scope: str, subject: str) -> None:
        await self._request(scope, subject, counts=False)

    async def _request(self, scope: str, subject: str, *, counts: bool) -> None:
        rule = self._rules[scope]
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._pending.append(_PendingCall(self._key(scope, subject), counts, rule, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._call_until_empty(), name="limits in Redis")
        wait_us = await answer
        if wait_us > 0:
            raise limit_exceeded(scope, rule, wait_us)

    def _key(self, scope: str, subject: str) -> str:
        # A digest: a caller's text may be long or hold anything, and addresses need not be readable in Redis.
        digest = hashlib.sha256(subject.encode(errors="surrogatepass")).hexdigest()[:32]
        return self._link.key("limit", scope, digest)

    async def _call_until_empty(self) -> None:
        group: list[_PendingCall] = []
        try:
            while self._pending:
                await asyncio.sleep(0)  # let requests that are ready now join this call
                group = [self._pending.popleft() for _ in range(min(_AT_ONCE, len(self._pending)))]
                try:
                    await self._call(group)
                except RedisDown as down:
                    _fail(group, down)
        finally:  # cancelled, or an error of ours: no caller may wait for ever
            _fail([*group, *self._pending], RedisDown("the call was cancelled"))
            self._pending.clear()

    async def _call(self, group: list[_PendingCall]) -> None:
        waits = await self._link.call(partial(self._evaluate, group=group))
        for call, wait_us in zip(group, waits, strict=True):
            if not call.wait_us.done():
                call.wait_us.set_result(wait_us)

    async def _evaluate(self, redis: "Redis", group: list[_PendingCall]) -> list[int]:
        keys = [call.key for call in group]
        arguments = [argument for call in group for argument in call.arguments]
        try:
            answer = redis.evalsha(_SHA, len(keys), *keys, self._now_us(), *arguments)
            return await cast("Awaitable[list[int]]", answer)
        except NoScriptError:  # the server is new, or its scripts were flushed
            answer = redis.eval(_SCRIPT, len(keys), *keys, self._now_us(), *arguments)
            return await cast("Awaitable[list[int]]", answer)

    def _now_us(self) -> int | str:
        return to_us(self._clock.now()) if self._clock else ""


def _fail(group: list[_PendingCall], down: RedisDown) -> None:
    for call in group:
        if not call.wait_us.done():
            call.wait_us.set_exception(
                LimiterUnavailable(
                    f"the rate limiter did not answer ({down.detail})",
                    hint="wait for Retry-After and send the same request again; nothing was lost",
                )
            )


PROBE_EVERY_S = 10.0
_PROBE = "nobody"
"""The subject of probes, which are never counted."""


class LimiterCounters(Protocol):
    def limiter(self, *, answered: bool) -> None: ...


class MonitoredLimits:
    """Implements `ports.RequestLimiter`."""

    def __init__(self, inner: RequestLimiter, counters: LimiterCounters) -> None:
        self._inner = inner
        self._counters = counters

    async def take(self, scope: str, subject: str) -> None:
        with self._counted():
            await self._inner.take(scope, subject)

    async def check(self, scope: str, subject: str) -> None:
        with self._counted():
            await self._inner.check(scope, subject)

    async def probe_forever(
        self, scope: str, pause: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        """Probe the limiter until cancelled."""
        while True:
            with suppress(LimiterUnavailable):  # the counters have it
                await self.probe(scope)
            await pause(PROBE_EVERY_S)

    async def probe(self, scope: str) -> None:
        """Raise `LimiterUnavailable` unless the limiter answers."""
        with suppress(RateLimited):
            await self.check(scope, _PROBE)

    @contextmanager
    def _counted(self) -> Iterator[None]:
        try:
            yield
        except RateLimited:
            self._counters.limiter(answered=True)
            raise
        except LimiterUnavailable:
            self._counters.limiter(answered=False)
            raise
        self._counters.limiter(answered=True)
