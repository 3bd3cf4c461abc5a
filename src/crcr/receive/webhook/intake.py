"""`POST /github/webhook`: read within limits, verify, parse, decide and commit, respond.

Without a well-formed signature header no byte of the body is read, and the signature of every event is verified before
its body is parsed. The intake makes no outgoing calls: whatever must follow is written as effects in the transaction that
records the delivery.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256

import structlog
from starlette.requests import Request

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.dispatch.webhook_body import compress_body
from crcr.decide.events import (
    DispatchedEvent,
    Event,
    InTreeCheckEvent,
    IssueClosedEvent,
    PeopleRequest,
    PingEvent,
    PullRequestEvent,
    PushEvent,
    UnusedEvent,
    WorkflowEvent,
)
from crcr.decide.github.missed_webhooks import RecoveryOutcome
from crcr.decide.github.requests_and_answers import FileLocation
from crcr.decide.model import RepoName
from crcr.decide.trace_steps import TraceStep
from crcr.errors import BadRequest, BadSignature, CrcrError, WrongContentType
from crcr.ports import Clock, NoTrace, Trace
from crcr.receive.http.body import BodyReader
from crcr.receive.http.response import IntakeOutcome, IntakeResponse
from crcr.receive.webhook.parse import parse_event, parse_payload
from crcr.receive.webhook.refused_webhooks import RefusedWebhookCounter
from crcr.receive.webhook.signature import require_signature, verify_signature
from crcr.record.checks.requests import PeopleRequests
from crcr.record.deliveries.inbox import Inbox
from crcr.record.failures.known_failures import KnownFailures
from crcr.record.in_tree.recorder import InTreeRecorder
from crcr.record.pairs.pairs import Pairs
from crcr.record.repositories.installations import Installations
from crcr.record.workflow_runs.webhook_events import WorkflowEvents

log = structlog.get_logger(__name__)

CAP_BYTES = 25 * 1024 * 1024
_INLINE_BYTES = 256 * 1024
_GUID_CHARS = 100
_FORM_TYPE = "application/x-www-form-urlencoded"
_SET_JSON = "set the content type of the App's webhook to application/json; the relay recovers webhooks that were refused until then"
_RECOVERY_OUTCOMES = {
    IntakeOutcome.IGNORED: RecoveryOutcome.IGNORED,
    IntakeOutcome.REPEAT: RecoveryOutcome.REPEAT,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookIntake:
    secret: Callable[[], bytes]
    """Returns the secret in force: it may be rotated."""
    bodies: BodyReader
    inbox: Inbox
    people_requests: PeopleRequests
    workflow_events: WorkflowEvents
    installations: Installations
    known_failures: KnownFailures
    pairs: Pairs
    in_tree: InTreeRecorder
    upstreams: frozenset[RepoName]
    allowlist_files: Mapping[RepoName, FileLocation]
    """The allowlists that are kept on GitHub."""
    clock: Clock
    count: Callable[[str, str], None]
    """Counts an event's name with its outcome."""
    refused: RefusedWebhookCounter
    trace: Trace = field(default_factory=NoTrace)

    async def handle(self, request: Request) -> IntakeResponse:
        name, began_at = request.headers.get("x-github-event", ""), self.clock.now()
        signature = None
        try:
            signature = require_signature(request.headers.getlist("x-hub-signature-256"))
            async with self.bodies.read(request, CAP_BYTES) as body:
                guid, event, packed, digest = await self._verify_and_parse(request, body, signature)
                delivery = ReceivedDelivery(
                    guid, name, "webhook", packed, len(body), self.clock.now(), digest
                )
            response = await self._record(delivery, event)
        except CrcrError as refusal:
            if isinstance(refusal, WrongContentType):
                log.warning("webhook_form_encoded", github_event=name, hint=refusal.hint)
            self.count(name, refusal.code)
            if isinstance(refusal, BadSignature):
                self.refused.note(like_github=bool(name) and signature is not None)
            raise
        self.count(name, response.outcome)
        self._trace(delivery, response, response.outcome.value, began_at)
        return response

    async def recover(self, guid: str, name: str, body: bytes) -> RecoveryOutcome:
        """Take a webhook from GitHub's delivery log as if it had just arrived; the log needs no signature."""
        event, packed, digest = await asyncio.to_thread(_parse, name, body)
        delivery = ReceivedDelivery(guid, name, "recovered", packed, len(body), self.clock.now(), digest)
        response = await self._record(delivery, event)
        label = f"recovered {response.outcome}"
        self.count(name, label)
        self._trace(delivery, response, label, delivery.received_at)
        return _RECOVERY_OUTCOMES.get(response.outcome, RecoveryOutcome.TAKEN)

    async def _verify_and_parse(
        self, request: Request, body: bytes, signature: str
    ) -> tuple[str, Event, bytes, str]:
        def verify_and_parse() -> tuple[str, Event, bytes, str]:
            verify_signature(self.secret(), body, signature)
            name, guid = _read_headers(request)
            _refuse_form(request, body)
            return guid, *_parse(name, body)

        # A body of megabytes would block the event loop for every other request.
        if len(body) <= _INLINE_BYTES:
            return verify_and_parse()
        return await asyncio.to_thread(verify_and_parse)

    def _trace(
        self, delivery: ReceivedDelivery, response: IntakeResponse, label: str, began_at: datetime
    ) -> None:
        """Start the trace of a delivery that was taken; nothing follows an ignored or repeated one."""
        if response.outcome is not IntakeOutcome.TAKEN:
            return
        facts, now = {"event": delivery.event, "outcome": label}, self.clock.now()
        self.trace.note(TraceStep.WEBHOOK, delivery.guid, began_at, now, **facts)
        self.trace.note(TraceStep.RECORD, delivery.guid, delivery.received_at, now, **facts)

    async def _record(self, delivery: ReceivedDelivery, event: Event) -> IntakeResponse:
        if isinstance(event, PingEvent):
            return IntakeResponse(200, {"ok": True, "pong": event.zen}, outcome=IntakeOutcome.PONG)
        if isinstance(event, UnusedEvent):
            return _ignored(event.reason)
        if isinstance(event, DispatchedEvent):
            return await self._record_dispatched(delivery, event)
        if isinstance(event, PeopleRequest):
            return await self._record_request(delivery, event)
        if isinstance(event, InTreeCheckEvent):
            return await self._record_in_tree(delivery, event)
        if isinstance(event, IssueClosedEvent):
            return _respond(delivery, await self.known_failures.record_event(delivery, event))
        if isinstance(event, WorkflowEvent):
            return _respond(delivery, await self.workflow_events.record_event(delivery, event))
        return _respond(delivery, await self.installations.record_event(delivery, event))

    async def _record_request(self, delivery: ReceivedDelivery, event: PeopleRequest) -> IntakeResponse:
        if event.upstream not in self.upstreams:
            return _not_an_upstream(event.upstream)
        result = await self.people_requests.take(delivery, event)
        return _log_and_respond(delivery, event.upstream, result)

    async def _record_in_tree(self, delivery: ReceivedDelivery, event: InTreeCheckEvent) -> IntakeResponse:
        if event.upstream not in self.upstreams:
            return _not_an_upstream(event.upstream)
        return _respond(delivery, await self.in_tree.record_event(delivery, event))

    async def _record_dispatched(self, delivery: ReceivedDelivery, event: DispatchedEvent) -> IntakeResponse:
        # In a transaction of its own: it must be kept even when there is no allowlist in force to plan with.
        if upstreams := self._upstreams_to_refresh(event):
            await self.inbox.refresh(upstreams, delivery.received_at)
        response = _not_an_upstream(event.upstream)
        if event.upstream in self.upstreams:
            response = _log_and_respond(delivery, event.upstream, await self.inbox.take(delivery, event))
        # A backend's pull request that one of an upstream depends on; an upstream may be a backend of another one.
        may_be_backend = event.upstream not in self.upstreams or len(self.upstreams) > 1
        if isinstance(event, PullRequestEvent) and may_be_backend:
            paired = await self.pairs.record_event(delivery, event)
            if event.upstream not in self.upstreams and isinstance(paired, AcceptedDelivery):
                response = _respond(delivery, paired)
        return response

    def _upstreams_to_refresh(self, event: DispatchedEvent) -> tuple[RepoName, ...]:
        """Return the upstreams whose allowlist this push may have changed."""
        if not isinstance(event, PushEvent):
            return ()
        return tuple(upstream for upstream, file in self.allowlist_files.items() if _touches(event, file))


def _parse(name: str, body: bytes) -> tuple[Event, bytes, str]:
    """Return the event, its packed body where the event is dispatched, and the body's digest."""
    event = parse_event(name, body)
    digest = sha256(body).hexdigest()
    if not isinstance(event, DispatchedEvent):
        return event, b"", digest
    parse_payload(body)  # a body that could not be dispatched later must not be acknowledged now
    return event, compress_body(body), digest


def _log_and_respond(
    delivery: ReceivedDelivery,
    upstream: RepoName,
    result: AcceptedDelivery | AlreadyProcessed | IgnoredEvent,
) -> IntakeResponse:
    if isinstance(result, AcceptedDelivery):
        facts = {"delivery": delivery.guid, "github_event": delivery.event, "upstream": str(upstream)}
        log.info("delivery_taken", dispatches=result.dispatches, state=result.state.value, **facts)
    return _respond(delivery, result)


def _respond(
    delivery: ReceivedDelivery, result: AcceptedDelivery | AlreadyProcessed | IgnoredEvent
) -> IntakeResponse:
    if isinstance(result, IgnoredEvent):
        return _ignored(result.reason)
    body: dict[str, object] = {"ok": True, "delivery": delivery.guid}
    if isinstance(result, AlreadyProcessed):
        return IntakeResponse(202, body | {"repeat": True}, outcome=IntakeOutcome.REPEAT)
    return IntakeResponse(202, body | {"dispatches": result.dispatches}, outcome=IntakeOutcome.TAKEN)


def _not_an_upstream(repository: RepoName) -> IntakeResponse:
    return _ignored(f"{repository} is not an upstream of this relay")


def _ignored(reason: str) -> IntakeResponse:
    return IntakeResponse(202, {"ok": True, "ignored": reason}, outcome=IntakeOutcome.IGNORED)


def _touches(event: PushEvent, file: FileLocation) -> bool:
    same_ref = event.upstream == file.repository and event.ref in {
        f"refs/heads/{file.ref}",
        f"refs/tags/{file.ref}",
    }
    return same_ref and (not event.changed_paths or file.path in event.changed_paths)


def _read_headers(request: Request) -> tuple[str, str]:
    """Return the event's name and the delivery's GUID."""
    name, guid = request.headers.get("x-github-event"), request.headers.get("x-github-delivery")
    if not name or not guid:
        raise BadRequest(
            "X-GitHub-Event or X-GitHub-Delivery is missing", hint="this endpoint takes GitHub's webhooks"
        )
    if len(guid) > _GUID_CHARS or not guid.isascii() or not guid.isprintable():
        raise BadRequest("X-GitHub-Delivery is not a GUID")
    return name, guid


def _refuse_form(request: Request, body: bytes) -> None:
    """Refuse a signed webhook that carries its JSON in a form's field; the form is not parsed."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == _FORM_TYPE or body.startswith(b"payload="):
        raise WrongContentType(f"the webhook came as {_FORM_TYPE}", hint=_SET_JSON)
