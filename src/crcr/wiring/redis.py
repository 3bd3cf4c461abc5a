"""What several processes of one relay share beside the store: limits, wake-ups, issuers' keys.

With Redis it is really shared; without it each process keeps its own, and the store alone connects them.
"""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from crcr.clock import SystemClock
from crcr.errors import NoAllowlist, StoreUnavailable
from crcr.receive.oidc.shared_key_sets import KeySets, Unshared
from crcr.record.limits.memory import MemoryLimits, Rule
from crcr.record.limits.monitored import MonitoredLimits
from crcr.record.store.signals import ALLOWLIST
from crcr.settings import Settings
from crcr.wiring.core import Core

if TYPE_CHECKING:
    from crcr.record.redis.connection import RedisLink
    from crcr.record.redis.signals import RedisSignals


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    core: Core
    limits: MonitoredLimits
    scope: str
    """A limit by which the limiter is asked whether it answers."""
    key_sets: KeySets
    link: "RedisLink | None" = None
    signals: "RedisSignals | None" = None

    async def run(self) -> None:
        """Hear what the other processes commit, and keep up with it, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.core.database.watch_other_processes())
            group.create_task(self._follow_allowlists())
            group.create_task(self.limits.probe_forever(self.scope))
            if self.signals is not None:
                group.create_task(self.signals.run())

    async def check_limiter(self) -> None:
        """Raise `LimiterUnavailable` when callers cannot be counted."""
        await self.limits.probe(self.scope)

    async def aclose(self) -> None:
        if self.link is not None:
            await self.link.aclose()

    async def _follow_allowlists(self) -> None:
        changed = self.core.signals.subscribe(ALLOWLIST)
        while True:
            await changed.wait()
            changed.clear()
            for upstream in self.core.upstreams:
                with suppress(NoAllowlist, StoreUnavailable):  # then the next transaction says so
                    await self.core.allowlists.warm(upstream)


def share(core: Core, rules: Mapping[str, Rule]) -> Shared:
    link, scope = link_of(core.settings), next(iter(rules))
    if link is None:
        own = MonitoredLimits(MemoryLimits(rules, core.clock), core.metrics)
        return Shared(core=core, limits=own, scope=scope, key_sets=Unshared())
    from crcr.record.limits.redis import RedisLimits  # noqa: PLC0415
    from crcr.record.redis.key_sets import RedisKeySets  # noqa: PLC0415  the driver is large, and few need it
    from crcr.record.redis.signals import RedisSignals  # noqa: PLC0415

    signals = RedisSignals(link, core.signals)
    core.signals.forward_to(signals.carry)
    # The server's time, unless somebody moves ours by hand: replicas' clocks differ.
    clock = None if isinstance(core.clock, SystemClock) else core.clock
    secret = core.settings.github_webhook_secret.get_secret_value().encode()
    return Shared(
        core=core,
        limits=MonitoredLimits(RedisLimits(rules, link, clock), core.metrics),
        scope=scope,
        key_sets=RedisKeySets(link, secret=secret),
        link=link,
        signals=signals,
    )


def link_of(settings: Settings) -> "RedisLink | None":
    if settings.redis_url is None:
        return None
    from crcr.record.redis.connection import RedisLink, parse_redis_url  # noqa: PLC0415

    return RedisLink(parse_redis_url(settings.redis_url.get_secret_value(), settings.redis_ca))
