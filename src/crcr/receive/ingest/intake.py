"""`POST /api/crcr/results`: another relay's results, let in by a token in a header and by nothing else.

No session, cookie or bearer token counts here: who may read pages, or act on them, may not write results. What comes
in is shown, and decides nothing.
"""

import asyncio
import hmac
from dataclasses import dataclass
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Any, Protocol

import structlog
from starlette.requests import Request

from crcr.decide.report.ingested import IngestedResult, IngestReceipt
from crcr.errors import CrcrError, NotAuthentic, NotFound
from crcr.ports import Clock
from crcr.receive.http.answer import Answer
from crcr.receive.http.body import Bodies
from crcr.receive.http.client_address import client_address
from crcr.receive.ingest.parse_envelope import parse_envelope

log = structlog.get_logger(__name__)

CAP_BYTES = 2 * 1024 * 1024
HEADER = "x-hud-internal-bot"
_INLINE_BYTES = 256 * 1024


class Results(Protocol):
    async def take(self, told: IngestedResult, origin: str, now: datetime) -> IngestReceipt: ...


class Tally(Protocol):
    def ingest(self, outcome: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestIntake:
    token: bytes | None
    """None: there is no such address."""
    bodies: Bodies
    results: Results
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    clock: Clock
    tally: Tally

    async def handle(self, request: Request) -> Answer:
        if self.token is None:
            raise NotFound(
                "this relay takes no other relay's results", hint="its operator sets CRCR_HUD_INGEST_TOKEN"
            )
        origin = self._origin(request)
        try:
            self._authenticate(self.token, request)
            async with self.bodies.read(request, CAP_BYTES) as body:
                told = await _parsed(body)
            kept = await self.results.take(told, origin, self.clock.now())
        except CrcrError as refusal:
            self.tally.ingest(refusal.code)
            log.info("ingest_refused", code=refusal.code, address=origin)
            raise
        self.tally.ingest("repeat" if kept.repeat else told.report.status.value)
        return Answer(200, _said(told, kept))

    def _authenticate(self, token: bytes, request: Request) -> None:
        # Compared as bytes: `compare_digest` raises for text outside ASCII, and headers may hold any.
        given = request.headers.get(HEADER, "").encode("latin-1", "replace")
        if not hmac.compare_digest(token, given):
            raise NotAuthentic(
                f"{HEADER} is missing or wrong", hint="send the token that this HUD's operator set"
            )

    def _origin(self, request: Request) -> str:
        peer = request.client.host if request.client else None
        return client_address(peer, request.headers.getlist("x-forwarded-for"), self.trusted_proxies)


async def _parsed(body: bytes) -> IngestedResult:
    # A body of megabytes would hold up everybody else's request.
    return (
        parse_envelope(body) if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse_envelope, body)
    )


def _said(told: IngestedResult, kept: IngestReceipt) -> dict[str, Any]:
    said = {"ok": True, "status": told.report.status.value, "repeat": kept.repeat, "shown": kept.hint is None}
    return said | ({"hint": kept.hint} if kept.hint else {})
