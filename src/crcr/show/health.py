"""Probes: `/healthz` says that the process lives, `/readyz` that it can do its work, `/metrics` how it goes."""

from prometheus_client import CONTENT_TYPE_LATEST
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from crcr import __version__
from crcr.errors import NoAllowlist, Unavailable
from crcr.ports import Clock
from crcr.show.metrics import Metrics
from crcr.show.port import Pulse

_NO_CACHE = {"Cache-Control": "no-store"}


def routes(pulse: Pulse, *, metrics: Metrics, clock: Clock, is_public: bool = True) -> list[BaseRoute]:
    """Probes ask without a token; where readers need one, `/readyz` names no upstream."""
    probes = Probes(pulse, metrics, clock, names=is_public)
    return [
        Route("/healthz", probes.healthz),
        Route("/readyz", probes.readyz),
        Route("/metrics", probes.metrics),
    ]


class Probes:
    def __init__(self, pulse: Pulse, metrics: Metrics, clock: Clock, *, names: bool) -> None:
        self._pulse = pulse
        self._metrics = metrics
        self._clock = clock
        self._names = names

    async def healthz(self, _: Request) -> Response:
        return JSONResponse({"ok": True, "version": __version__}, headers=_NO_CACHE)

    async def readyz(self, _: Request) -> Response:
        """Raises what stands in the way; the app makes it a 503 that says so."""
        vitals = await self._pulse.vitals(self._clock.now())
        without = [str(each.upstream) for each in vitals if not each.has_allowlist]
        if without:
            whose = ", ".join(without) if self._names else f"{len(without)} of {len(vitals)} upstreams"
            raise NoAllowlist(
                f"no valid allowlist was ever read for {whose}",
                hint="see CRCR_ALLOWLIST, then run `crcr allowlist refresh`",
            )
        told = [
            {
                **({"upstream": str(each.upstream)} if self._names else {}),
                "waiting": each.waiting,
                "parked": each.parked,
                "lag_s": each.lag_s or 0.0,
            }
            for each in vitals
        ]
        return JSONResponse({"ok": True, "store": "answers", "upstreams": told}, headers=_NO_CACHE)

    async def metrics(self, _: Request) -> Response:
        try:
            self._metrics.observe(await self._pulse.vitals(self._clock.now()))
        except Unavailable:
            self._metrics.observe(None)
        return Response(self._metrics.text(), headers={"Content-Type": CONTENT_TYPE_LATEST, **_NO_CACHE})
