"""Rate limits: counted in Redis for all processes of a relay, or without it by each process for itself."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from crcr.aws_client import ElastiCacheTokens
from crcr.clock import SystemClock
from crcr.ports import RequestLimiter
from crcr.record.limits.memory import MemoryLimits, Rule
from crcr.settings import Settings
from crcr.wiring.core import Core

if TYPE_CHECKING:
    from crcr.record.limits.redis import MonitoredLimits
    from crcr.record.limits.redis_connection import RedisLink, RedisLocation


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayRateLimits:
    limits: RequestLimiter
    scope: str
    """The limit that probes use."""
    redis: "MonitoredLimits | None" = None
    """`limits`, where Redis counts: only that can be unavailable, so only that is monitored."""
    link: "RedisLink | None" = None

    async def monitor(self) -> None:
        """Probe Redis until cancelled; returns at once without Redis."""
        if self.redis is not None:
            await self.redis.probe_forever(self.scope)

    async def check(self) -> None:
        """Raise `LimiterUnavailable` when requests cannot be counted."""
        if self.redis is not None:
            await self.redis.probe(self.scope)

    async def renew_connections(self) -> None:
        if self.link is not None:
            await self.link.renew_connections()

    async def aclose(self) -> None:
        if self.link is not None:
            await self.link.aclose()


def open_rate_limits(core: Core, rules: Mapping[str, Rule]) -> RelayRateLimits:
    link, scope = open_redis(core.settings), next(iter(rules))
    if link is None:
        return RelayRateLimits(limits=MemoryLimits(rules, core.clock), scope=scope)
    core.secrets.follow(lambda new: link.sign_in_as(_location(new)))
    from crcr.record.limits.redis import MonitoredLimits, RedisLimits  # noqa: PLC0415  the driver is large

    # The server's time, unless a test moves ours: clocks of processes differ.
    clock = None if isinstance(core.clock, SystemClock) else core.clock
    redis = MonitoredLimits(RedisLimits(rules, link, clock), core.metrics)
    return RelayRateLimits(limits=redis, scope=scope, redis=redis, link=link)


def open_redis(settings: Settings) -> "RedisLink | None":
    if settings.redis_url is None:
        return None
    from crcr.record.limits.redis_connection import RedisLink  # noqa: PLC0415

    return RedisLink(_location(settings))


def _location(settings: Settings) -> "RedisLocation":
    from crcr.record.limits.redis_connection import parse_redis_url  # noqa: PLC0415

    url = settings.redis_url.get_secret_value() if settings.redis_url else ""
    location = parse_redis_url(url, settings.redis_ca)
    if settings.redis_iam is None:
        return location
    return replace(location, make_token=ElastiCacheTokens(location.username or "", settings.redis_iam))
