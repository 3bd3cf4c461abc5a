"""Functions that answer HTTP requests: events of a function URL or of API Gateway (payload 2.0), through Mangum.

A response is sent whole. It must fit into what Lambda sends (6 MB, and binary content grows by a third), and it is sent
before the function's time is over: a request that takes longer gets 503.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any
from uuid import uuid4

import structlog
from mangum import Mangum
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from crcr.app import error_response, refusal
from crcr.errors import NotFound, StoreUnavailable, Unavailable
from crcr.wiring.aws_lambda.environment import LambdaEnvironment, remaining_s
from crcr.wiring.services import Services

log = structlog.get_logger(__name__)

BuildApp = Callable[[Services], ASGIApp]

MOST_RESPONSE_BYTES = 6 * 1024 * 1024 - 64 * 1024
"""Lambda's limit, less the room for headers."""
_MOST_ESCAPED = 6
"""Bytes that one byte of a text can take within JSON."""
_MARGIN_S = 1.0
_PRIVATE_PATHS = frozenset({"/metrics", "/healthz", "/readyz", "/readyz/callback"})
"""For Prometheus and supervisors, of which Lambda has none; our proxies hide them too."""
_NOT_UNDERSTOOD = {
    "statusCode": 400,
    "headers": {"content-type": "application/json", "x-content-type-options": "nosniff"},
    "body": '{"ok":false,"error":{"code":"bad_request","detail":"the request is not well-formed"}}',
    "isBase64Encoded": False,
}
_TEXT_TYPES = [
    "text/",
    "application/json",
    "application/javascript",
    "application/xml",
    "application/atom+xml",
    "image/svg",
]


def http_function(app: "LambdaApp") -> Callable[[Any, Any], Mapping[str, Any]]:
    logging.getLogger("mangum").setLevel(logging.WARNING)  # it logs every request with its path
    adapter = Mangum(app, lifespan="off", text_mime_types=_TEXT_TYPES)

    def handle(event: Any, context: Any) -> Mapping[str, Any]:
        try:
            request = adapter.infer(event, context)
            _ = request.scope, request.body
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as fault:
            # A header that is no text, a port that is no number: the sender's fault, and no failure of the function.
            log.info("request_not_understood", reason=type(fault).__name__)
            return _NOT_UNDERSTOOD
        return adapter(event, context)

    return handle


class LambdaApp:
    """The relay's ASGI app, within the limits of an invocation."""

    def __init__(self, environment: LambdaEnvironment, build: BuildApp) -> None:
        self._environment = environment
        self._build = build
        self._app: ASGIApp | None = None

    def prepare(self, services: Services) -> None:
        """Build the app now: its imports are most of a cold start."""
        self._app = self._build(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = _WholeResponse()
        try:
            async with self._environment.invocation(scope["aws.context"]) as services:
                self._app = self._app or self._build(services)
                await _answer(self._app, scope, receive, response)
                if services.webhook.refused.is_due:
                    await services.webhook.refused.report()
        except StoreUnavailable as fault:  # the services could not be opened
            response = _WholeResponse()
            await error_response(fault, uuid4().hex)(scope, receive, response.take)
        await response.send(send)


async def _answer(app: ASGIApp, scope: Scope, receive: Receive, response: "_WholeResponse") -> None:
    if scope["path"].rstrip("/") in _PRIVATE_PATHS:
        await error_response(NotFound(), uuid4().hex)(scope, receive, response.take)
        return
    context: Any = scope["aws.context"]
    try:
        async with asyncio.timeout(max(0.0, remaining_s(context) - _MARGIN_S)):
            await app(scope, receive, response.take)
    except TimeoutError:
        log.warning("request_cut_short", path=scope["path"])
        response.clear()
        slow = Unavailable("the answer took too long", hint="send the same request again")
        await error_response(slow, uuid4().hex)(scope, receive, response.take)
    if response.sent_bytes > MOST_RESPONSE_BYTES:
        log.warning("response_too_large", path=scope["path"], size=response.sent_bytes)
        response.clear()
        detail = "the answer is larger than AWS Lambda can send; ask for fewer rows"
        await refusal("internal", detail, request_id=uuid4().hex)(scope, receive, response.take)


def _escaped_bytes(body: bytes) -> int:
    """Return the size of a text within JSON: a quotation mark takes two bytes there, a control character six."""
    return len(json.dumps(body.decode(errors="replace"), ensure_ascii=False).encode()) - 2


class _WholeResponse:
    """Collects the messages of a response."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def clear(self) -> None:
        self._messages.clear()

    async def take(self, message: Message) -> None:
        self._messages.append(message)

    @property
    def sent_bytes(self) -> int:
        """The size of the body as Lambda sends it: text as a string of JSON, everything else in base64."""
        size = sum(len(message.get("body", b"")) for message in self._messages)
        headers = dict(self._messages[0].get("headers", ())) if self._messages else {}
        kind = headers.get(b"content-type", b"").decode("latin-1")
        plain = b"content-encoding" not in headers and kind.startswith(tuple(_TEXT_TYPES))
        if not plain:
            return size * 4 // 3 + 4
        if size <= MOST_RESPONSE_BYTES // _MOST_ESCAPED or size > MOST_RESPONSE_BYTES:
            return size
        return sum(_escaped_bytes(message.get("body", b"")) for message in self._messages)

    async def send(self, send: Send) -> None:
        for message in self._messages:
            await send(message)
