"""Sliding windows in Redis: the limiter that all replicas share.

Exact like `memory_limits`: the moments of all counted takes are kept until they leave the window, and one script
looks and counts at once, so no window of any position ever holds more than its limit, whoever counts. What waits
while a call is under way goes together with the next one. Redis being away raises `LimiterUnavailable`: nobody
is let in uncounted. Why the time is the server's own: docs/adr/0021-redis.md.
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
from crcr.record.limits.memory import Rule, full
from crcr.record.redis.connection import RedisDown, RedisLink
from crcr.record.store.times import to_us

if TYPE_CHECKING:
    from redis.asyncio import Redis

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
# A clock that went back a little counts on from the newest take, so that a window stays in order; one that went
# back by more than a window would never get there, and begins anew.
_SHA = hashlib.sha1(_SCRIPT.encode(), usedforsecurity=False).hexdigest()


@dataclass(frozen=True, slots=True, eq=False)
class _Waiting:
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
        """`clock` stands in for the server's own, for tests that move time."""
        self._rules = rules
        self._link = link
        self._clock = clock
        self._waiting: deque[_Waiting] = deque()
        self._task: asyncio.Task[None] | None = None

    async def take(self, scope: str, subject: str) -> None:
        await self._ask(scope, subject, counts=True)

    async def check(self, scope: str, subject: str) -> None:
        await self._ask(scope, subject, counts=False)

    async def _ask(self, scope: str, subject: str, *, counts: bool) -> None:
        rule = self._rules[scope]
        answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(self._key(scope, subject), counts, rule, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer_all(), name="limits in Redis")
        wait_us = await answer
        if wait_us > 0:
            raise full(scope, rule, wait_us)

    def _key(self, scope: str, subject: str) -> str:
        # A digest: what callers send may be long or hold anything, and addresses need not be readable there.
        digest = hashlib.sha256(subject.encode(errors="surrogatepass")).hexdigest()[:32]
        return self._link.key("limit", scope, digest)

    async def _answer_all(self) -> None:
        group: list[_Waiting] = []
        try:
            while self._waiting:
                await asyncio.sleep(0)  # let callers that are ready now join this call
                group = [self._waiting.popleft() for _ in range(min(_AT_ONCE, len(self._waiting)))]
                try:
                    await self._answer(group)
                except RedisDown as down:
                    _fail(group, down)
        finally:  # stopped, or by a fault of ours: nobody may wait for ever
            _fail([*group, *self._waiting], RedisDown("the call was broken off"))
            self._waiting.clear()

    async def _answer(self, group: list[_Waiting]) -> None:
        waits = await self._link.call(partial(self._evaluate, group=group))
        for each, wait_us in zip(group, waits, strict=True):
            if not each.wait_us.done():
                each.wait_us.set_result(wait_us)

    async def _evaluate(self, redis: "Redis", group: list[_Waiting]) -> list[int]:
        keys = [each.key for each in group]
        arguments = [argument for each in group for argument in each.arguments]
        try:
            answer = redis.evalsha(_SHA, len(keys), *keys, self._now_us(), *arguments)
            return await cast("Awaitable[list[int]]", answer)
        except NoScriptError:  # the server is new, or its scripts were flushed
            answer = redis.eval(_SCRIPT, len(keys), *keys, self._now_us(), *arguments)
            return await cast("Awaitable[list[int]]", answer)

    def _now_us(self) -> int | str:
        return to_us(self._clock.now()) if self._clock else ""


def _fail(group: list[_Waiting], down: RedisDown) -> None:
    for each in group:
        if not each.wait_us.done():
            each.wait_us.set_exception(
                LimiterUnavailable(
                    f"the rate limiter did not answer ({down.detail})",
                    hint="wait for Retry-After and send the same request again; nothing was lost",
                )
            )
