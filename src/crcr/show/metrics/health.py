"""Probes: `/healthz` (the process is alive), `/readyz` (it can do its work), `/metrics` (Prometheus)."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from crcr import __version__
from crcr.decide.health.relay import Health, worst_state
from crcr.decide.model import RepoName
from crcr.decide.views.overview import Vitals
from crcr.errors import LimiterUnavailable, NoAllowlist, Stopping, Unavailable
from crcr.ports import Clock
from crcr.show.live.shared_health import SharedHealth
from crcr.show.metrics.registry import RelayMetrics

PATIENCE_S = 5.0
"""Half of what Prometheus waits for a scrape."""
HEALTH_WITHIN_S = 1.0
"""How long a probe waits for the health, which is only informative: its client waits for a few seconds at most."""
_UNKNOWN = "unknown"
_NO_CACHE = {"Cache-Control": "no-store"}


class Pulse(Protocol):
    async def vitals(self, now: datetime) -> list[Vitals]:
        """Return the figures of every upstream without its health; raise `Unavailable` when the store does not answer."""
        ...

    async def health(self, now: datetime) -> dict[RepoName, Health]:
        """Return the health of every upstream; slow where much waits."""
        ...


def routes(
    pulse: Pulse,
    *,
    metrics: RelayMetrics,
    clock: Clock,
    health: SharedHealth | None = None,
    is_public: bool = True,
    stopping: asyncio.Event | None = None,
    patience_s: float = PATIENCE_S,
    check_limiter: Callable[[], Awaitable[None]] | None = None,
) -> list[BaseRoute]:
    """Probes need no token; where readers need one, `/readyz` names no upstream.

    `check_limiter` raises `LimiterUnavailable` when Redis counts the callers and does not answer: callbacks get 503 then,
    and so does `/readyz/callback`; everything else works, and `/readyz` stays 200.

    The health is read once in a few seconds for all clients of the process, and never delays a probe for long.

    Once `stopping` is set, `/readyz` answers 503, so that a load balancer sends requests elsewhere before the process ends.
    """
    stopping = stopping or asyncio.Event()
    probes = Probes(
        pulse,
        metrics,
        clock,
        health=health or SharedHealth(pulse, clock),
        names=is_public,
        stopping=stopping,
        patience_s=patience_s,
        check_limiter=check_limiter,
    )
    for_callbacks = [Route("/readyz/callback", probes.readyz_callback)] if check_limiter else []
    return [
        Route("/healthz", probes.healthz),
        Route("/readyz", probes.readyz),
        *for_callbacks,
        Route("/metrics", probes.metrics),
    ]


class Probes:
    def __init__(
        self,
        pulse: Pulse,
        metrics: RelayMetrics,
        clock: Clock,
        *,
        health: SharedHealth,
        names: bool,
        stopping: asyncio.Event,
        patience_s: float,
        check_limiter: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._pulse = pulse
        self._metrics = metrics
        self._clock = clock
        self._health = health
        self._names = names
        self._stopping = stopping
        self._patience_s = patience_s
        self._check_limiter = check_limiter

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"ok": True, "version": __version__}, headers=_NO_CACHE)

    async def readyz(self, _: Request) -> Response:
        """Raises the reason why the process is not ready; the app answers it with 503.

        Health that is amber, red or unknown is reported with 200: the process accepts webhooks and callbacks all the same.
        """
        if self._stopping.is_set():
            raise Stopping
        vitals = await self._pulse.vitals(self._clock.now())
        without = [str(vital.upstream) for vital in vitals if not vital.has_allowlist]
        if without:
            names = ", ".join(without) if self._names else f"{len(without):,} of {len(vitals):,} upstreams"
            raise NoAllowlist(
                f"no valid allowlist was ever read for {names}",
                hint="see CRCR_ALLOWLIST, then run `crcr allowlist refresh`",
            )
        with_health = await self._with_health(vitals)
        upstreams = [
            {
                **({"upstream": str(vital.upstream)} if self._names else {}),
                "waiting": vital.waiting,
                "parked": vital.parked,
                "lag_s": vital.lag_s or 0.0,
                "health": vital.health.state if vital.health else _UNKNOWN,
                "reasons": [reason.text for reason in vital.health.reasons] if vital.health else [],
            }
            for vital in with_health
        ]
        answer = {
            "ok": True,
            "store": "answers",
            **await self._limits(),
            "health": _worst([vital.health for vital in with_health]),
            "upstreams": upstreams,
        }
        return JSONResponse(answer, headers=_NO_CACHE)

    async def readyz_callback(self, request: Request) -> Response:
        """Whether callbacks are accepted: `/readyz`, and the limiter that counts callers."""
        if self._check_limiter is not None:
            await self._check_limiter()
        return await self.readyz(request)

    async def _limits(self) -> dict[str, str]:
        if self._check_limiter is None:
            return {}
        try:
            await self._check_limiter()
        except LimiterUnavailable:
            return {"limits": "away"}
        return {"limits": "answer"}

    async def metrics(self, _: Request) -> Response:
        """Always answers: a store that is down or slower than the scraper's time-out is exported as `crcr_store_up 0`."""
        if self._metrics.pages.request is not None:
            await self._metrics.pages.request()
        try:
            async with asyncio.timeout(self._patience_s):
                vitals = await self._pulse.vitals(self._clock.now())
                self._metrics.observe(await self._with_health(vitals))
        except (Unavailable, TimeoutError):
            self._metrics.observe(None)
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST, **_NO_CACHE})

    async def _with_health(self, vitals: list[Vitals]) -> list[Vitals]:
        health = await self._health.read_within(HEALTH_WITHIN_S)
        return [replace(vital, health=health.get(vital.upstream)) for vital in vitals]


def _worst(healths: list[Health | None]) -> str:
    readings = [health for health in healths if health is not None]
    return worst_state(readings) if len(readings) == len(healths) else _UNKNOWN
