"""`POST /github/webhook`: read within limits, verify, parse, decide and commit, answer.

Without a well-formed signature header no byte of the body is read. The signature is checked for every event before
a byte of it is interpreted. Nobody is called from here: all that follows is written as effects in the transaction
that takes the delivery.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from typing import Protocol

import structlog
from starlette.requests import Request

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.dispatch.webhook_body import compress_body
from crcr.decide.events import (
    DispatchedEvent,
    Event,
    InstallationEvent,
    InstallationRepositoriesEvent,
    PeopleRequest,
    PingEvent,
    PushEvent,
    RepositoryEvent,
    UnusedEvent,
    WorkflowEvent,
)
from crcr.decide.github.values import FileLocation
from crcr.decide.model import RepoName
from crcr.decide.trace_steps import TraceStep
from crcr.errors import BadRequest, BadSignature, CrcrError, WrongContentType
from crcr.ports import Clock, NoTrace, Trace
from crcr.receive.http.answer import Answer
from crcr.receive.http.body import Bodies
from crcr.receive.webhook.parse import parse_event, parse_payload
from crcr.receive.webhook.refused_webhooks import RefusedWebhooks
from crcr.receive.webhook.signature import require_signature, verify_signature

log = structlog.get_logger(__name__)

CAP_BYTES = 25 * 1024 * 1024
_INLINE_BYTES = 256 * 1024
_GUID_CHARS = 100
_FORM_TYPE = "application/x-www-form-urlencoded"
_SET_JSON = "set the content type of the App's webhook to application/json; the relay recovers what was refused until then"


class Inbox(Protocol):
    async def take(
        self, receipt: ReceivedDelivery, event: DispatchedEvent
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent: ...
    async def refresh(self, upstreams: tuple[RepoName, ...], now: datetime) -> None: ...


class Desk(Protocol):
    """Takes what people ask on the upstream's pages."""

    async def take(
        self, receipt: ReceivedDelivery, event: PeopleRequest
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent: ...


class ActionsNews(Protocol):
    """Hears what GitHub says of downstreams' runs and jobs."""

    async def hear(
        self, receipt: ReceivedDelivery, event: WorkflowEvent
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent: ...


class Installations(Protocol):
    async def record_event(
        self,
        receipt: ReceivedDelivery,
        event: InstallationEvent | InstallationRepositoriesEvent | RepositoryEvent,
    ) -> AcceptedDelivery | AlreadyProcessed: ...


class Tally(Protocol):
    def delivery(self, event: str, outcome: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookIntake:
    secret: bytes
    bodies: Bodies
    inbox: Inbox
    desk: Desk
    actions_news: ActionsNews
    installations: Installations
    upstreams: frozenset[RepoName]
    allowlist_places: Mapping[RepoName, FileLocation]
    clock: Clock
    tally: Tally
    refused: RefusedWebhooks
    trace: Trace = field(default_factory=NoTrace)

    async def handle(self, request: Request) -> Answer:
        name, began_at = request.headers.get("x-github-event", ""), self.clock.now()
        signature = None
        try:
            signature = require_signature(request.headers.getlist("x-hub-signature-256"))
            async with self.bodies.read(request, CAP_BYTES) as body:
                guid, event, packed, digest = await self._examine(request, body, signature)
                receipt = ReceivedDelivery(guid, name, "webhook", packed, len(body), self.clock.now(), digest)
            answer = await self._act(receipt, event)
        except CrcrError as refusal:
            if isinstance(refusal, WrongContentType):
                log.warning("webhook_form_encoded", github_event=name, hint=refusal.hint)
            self.tally.delivery(name, refusal.code)
            if isinstance(refusal, BadSignature):
                self.refused.note(like_github=bool(name) and signature is not None)
            raise
        self.tally.delivery(name, _outcome(answer))
        self._follow(receipt, _outcome(answer), began_at)
        return answer

    async def _examine(self, request: Request, body: bytes, signature: str) -> tuple[str, Event, bytes, str]:
        def examine() -> tuple[str, Event, bytes, str]:
            verify_signature(self.secret, body, signature)
            name, guid = _headers(request)
            _refuse_form(request, body)
            return guid, *_parse(name, body)

        # A body of megabytes would hold up everybody else's request.
        return examine() if len(body) <= _INLINE_BYTES else await asyncio.to_thread(examine)

    async def recover(self, guid: str, name: str, body: bytes) -> Answer:
        """Take a webhook that GitHub's own log holds, as if it had just come; the log needs no signature."""
        event, packed, digest = await asyncio.to_thread(_parse, name, body)
        receipt = ReceivedDelivery(guid, name, "recovered", packed, len(body), self.clock.now(), digest)
        answer = await self._act(receipt, event)
        self.tally.delivery(name, f"recovered {_outcome(answer)}")
        self._follow(receipt, f"recovered {_outcome(answer)}", receipt.received_at)
        return answer

    def _follow(self, receipt: ReceivedDelivery, outcome: str, began_at: datetime) -> None:
        """What was taken is followed from here on; what was ignored, or had come before, goes nowhere."""
        if not outcome.endswith("taken"):
            return
        about, now = {"event": receipt.event, "outcome": outcome}, self.clock.now()
        self.trace.note(TraceStep.WEBHOOK, receipt.guid, began_at, now, **about)
        self.trace.note(TraceStep.RECORD, receipt.guid, receipt.received_at, now, **about)

    async def _act(self, receipt: ReceivedDelivery, event: Event) -> Answer:
        if isinstance(event, PingEvent):
            return Answer(200, {"ok": True, "pong": event.zen})
        if isinstance(event, UnusedEvent):
            return _ignored(event.reason)
        if isinstance(event, DispatchedEvent):
            return await self._take(receipt, event)
        if isinstance(event, PeopleRequest):
            return await self._ask(receipt, event)
        if isinstance(event, WorkflowEvent):
            return _plain_answer(receipt, await self.actions_news.hear(receipt, event))
        return _plain_answer(receipt, await self.installations.record_event(receipt, event))

    async def _ask(self, receipt: ReceivedDelivery, event: PeopleRequest) -> Answer:
        if event.upstream not in self.upstreams:
            return _not_ours(event.upstream)
        taken = await self.desk.take(receipt, event)
        return self._answer(receipt, event.upstream, taken)

    async def _take(self, receipt: ReceivedDelivery, event: DispatchedEvent) -> Answer:
        # In a transaction of its own: it must stand even when no allowlist is in force to plan by.
        if refreshes := self._refreshes(event):
            await self.inbox.refresh(refreshes, receipt.received_at)
        if event.upstream not in self.upstreams:
            return _not_ours(event.upstream)
        return self._answer(receipt, event.upstream, await self.inbox.take(receipt, event))

    def _answer(
        self,
        receipt: ReceivedDelivery,
        upstream: RepoName,
        taken: AcceptedDelivery | AlreadyProcessed | IgnoredEvent,
    ) -> Answer:
        if isinstance(taken, AcceptedDelivery):
            who = {"delivery": receipt.guid, "github_event": receipt.event, "upstream": str(upstream)}
            log.info("delivery_taken", dispatches=taken.dispatches, state=taken.state.value, **who)
        return _plain_answer(receipt, taken)

    def _refreshes(self, event: DispatchedEvent) -> tuple[RepoName, ...]:
        """Upstreams whose allowlist this push may have changed."""
        if not isinstance(event, PushEvent):
            return ()
        return tuple(upstream for upstream, place in self.allowlist_places.items() if _touches(event, place))


def _parse(name: str, body: bytes) -> tuple[Event, bytes, str]:
    """The event, its body packed for the dispatch if it is one that is dispatched, and the body's digest."""
    event = parse_event(name, body)
    digest = sha256(body).hexdigest()
    if not isinstance(event, DispatchedEvent):
        return event, b"", digest
    parse_payload(body)  # what could not be dispatched later must not be acknowledged now
    return event, compress_body(body), digest


def _plain_answer(
    receipt: ReceivedDelivery, taken: AcceptedDelivery | AlreadyProcessed | IgnoredEvent
) -> Answer:
    if isinstance(taken, IgnoredEvent):
        return _ignored(taken.reason)
    if isinstance(taken, AlreadyProcessed):
        return Answer(202, {"ok": True, "delivery": receipt.guid, "repeat": True})
    return Answer(202, {"ok": True, "delivery": receipt.guid, "dispatches": taken.dispatches})


def _not_ours(upstream: RepoName) -> Answer:
    return _ignored(f"{upstream} is not an upstream of this relay")


def _touches(event: PushEvent, place: FileLocation) -> bool:
    here = event.upstream == place.repository and event.ref in {
        f"refs/heads/{place.ref}",
        f"refs/tags/{place.ref}",
    }
    return here and (not event.changed_paths or place.path in event.changed_paths)


def _headers(request: Request) -> tuple[str, str]:
    name, guid = request.headers.get("x-github-event"), request.headers.get("x-github-delivery")
    if not name or not guid:
        raise BadRequest(
            "X-GitHub-Event or X-GitHub-Delivery is missing", hint="this endpoint takes GitHub's webhooks"
        )
    if len(guid) > _GUID_CHARS or not guid.isascii() or not guid.isprintable():
        raise BadRequest("X-GitHub-Delivery is not a GUID")
    return name, guid


def _refuse_form(request: Request, body: bytes) -> None:
    """Refuse a signed webhook whose JSON stands in a form's field; nothing of the form is parsed."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == _FORM_TYPE or body.startswith(b"payload="):
        raise WrongContentType(f"the webhook came as {_FORM_TYPE}", hint=_SET_JSON)


def _ignored(reason: str) -> Answer:
    return Answer(202, {"ok": True, "ignored": reason})


def _outcome(answer: Answer) -> str:
    return next((name for name in ("ignored", "repeat", "pong") if name in answer.body), "taken")
