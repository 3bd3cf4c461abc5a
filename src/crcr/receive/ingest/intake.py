"""`POST /api/crcr/results`: another relay's results, authenticated by a token in a header and by nothing else.

No session, cookie or bearer token counts here: permission to read pages, or to act on them, is no permission to write
results. Ingested results are shown and decide nothing.
"""

import asyncio
import hmac
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network
from typing import Any

import structlog
from starlette.requests import Request

from crcr.decide.jobs.ingested import IngestedResult, IngestReceipt
from crcr.errors import CrcrError, NotAuthentic, NotFound
from crcr.ports import Clock
from crcr.receive.http.body import BodyReader
from crcr.receive.http.client_address import client_address
from crcr.receive.http.response import IntakeOutcome, IntakeResponse
from crcr.receive.ingest.parse_envelope import parse_envelope
from crcr.record.jobs.ingested import IngestedResults

log = structlog.get_logger(__name__)

CAP_BYTES = 2 * 1024 * 1024
HEADER = "x-hud-internal-bot"
_INLINE_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestIntake:
    token: Callable[[], bytes | None]
    """Returns the token in force, which may be rotated; None: the address answers 404."""
    bodies: BodyReader
    results: IngestedResults
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    clock: Clock
    count: Callable[[str], None]
    """Counts an outcome."""

    async def handle(self, request: Request) -> IntakeResponse:
        token = self.token()
        if token is None:
            raise NotFound(
                "this relay takes no other relay's results", hint="its operator sets CRCR_HUD_INGEST_TOKEN"
            )
        origin = self._origin(request)
        try:
            self._authenticate(token, request)
            async with self.bodies.read(request, CAP_BYTES) as body:
                ingested = await _parse(body)
            result = await self.results.take(ingested, origin, self.clock.now())
        except CrcrError as refusal:
            self.count(refusal.code)
            log.info("ingest_refused", code=refusal.code, address=origin)
            raise
        response = _respond(ingested, result)
        self.count(response.outcome)
        return response

    def _authenticate(self, token: bytes, request: Request) -> None:
        # Compared as bytes: `compare_digest` raises for text outside ASCII, and headers may hold any.
        sent_token = request.headers.get(HEADER, "").encode("latin-1", "replace")
        if not hmac.compare_digest(token, sent_token):
            raise NotAuthentic(
                f"{HEADER} is missing or wrong", hint="send the token that this HUD's operator set"
            )

    def _origin(self, request: Request) -> str:
        peer = request.client.host if request.client else None
        return client_address(peer, request.headers.getlist("x-forwarded-for"), self.trusted_proxies)


async def _parse(body: bytes) -> IngestedResult:
    # A body of megabytes would block the event loop for every other request.
    return (
        parse_envelope(body) if len(body) <= _INLINE_BYTES else await asyncio.to_thread(parse_envelope, body)
    )


def _respond(ingested: IngestedResult, result: IngestReceipt) -> IntakeResponse:
    status = ingested.report.status.value
    body: dict[str, Any] = {
        "ok": True,
        "status": status,
        "repeat": result.repeat,
        "shown": result.hint is None,
    }
    if result.hint:
        body["hint"] = result.hint
    outcome = IntakeOutcome.REPEAT if result.repeat else IntakeOutcome(status)
    return IntakeResponse(200, body, outcome=outcome)
