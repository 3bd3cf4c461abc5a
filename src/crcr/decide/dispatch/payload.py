"""The body of a `repository_dispatch`, as docs/protocol.md has it.

One delivery goes to many downstreams, and only the small `relay` part differs between them: the payload is
trimmed and written once (`prepare`), and each body is joined from bytes. A body never exceeds `MAX_BODY_BYTES`,
because GitHub would refuse it for every downstream at once.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from crcr.decide.dispatch.payload_trim import encode_json, trim_payload
from crcr.decide.model import Level, RepoName
from crcr.errors import BadRequest

MAX_BODY_BYTES = 60_000
"""Whole request, compact UTF-8; GitHub takes "less than 64 KB" and does not say how it counts."""

_RELAY_ROOM = 4_000
_RELAY_BYTES = 3_000
"""What settings may use of the room; the rest is for the names in `trimmed`."""
_HEAD_BYTES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFields:
    """What the relay says about itself to one downstream."""

    upstream: RepoName
    level: Level
    callback_url: str
    audience: str
    test: bool = False
    reason: str | None = None
    """Why it is sent, where the event's own action does not say it: `base_changed`."""
    version: int = 1

    def __post_init__(self) -> None:
        # Checked here, where the operator sees it at start, rather than at the first large pull request.
        if len(self.encode(())) > _RELAY_BYTES:
            raise ValueError("callback_url and audience are too long for a dispatch")

    def encode(self, trimmed: tuple[str, ...]) -> bytes:
        """Write the `relay` object; `test` is there only when it is true."""
        fields: dict[str, Any] = {
            "version": self.version,
            "upstream": self.upstream.full_name,
            "level": self.level.name,
            "callback_url": self.callback_url,
            "audience": self.audience,
            "trimmed": trimmed,
            "reason": self.reason,
            "purpose": "test" if self.test else None,
        }
        return encode_json({**fields, "test": True} if self.test else fields)


@dataclass(frozen=True, slots=True)
class DispatchBody:
    body: bytes
    trimmed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreparedPayload:
    """One delivery's payload, written once; made by `prepare`."""

    _head: bytes
    _choices: tuple[tuple[bytes, tuple[str, ...]], ...]
    """Payloads with the names of what was cut from them, best first; the last fits beside any relay part."""

    def dispatch(self, relay: RelayFields) -> DispatchBody:
        """Return the request body for one downstream: verbatim if the whole of it fits, else trimmed."""
        *better, last = (self._joined(payload, names, relay) for payload, names in self._choices)
        return next((choice for choice in better if len(choice.body) <= MAX_BODY_BYTES), last)

    def _joined(self, payload: bytes, trimmed: tuple[str, ...], relay: RelayFields) -> DispatchBody:
        parts = (self._head, payload, b',"relay":', relay.encode(trimmed), b"}}")
        return DispatchBody(b"".join(parts), trimmed)


def prepare_payload(*, event_type: str, delivery_id: str, payload: Mapping[str, Any]) -> PreparedPayload:
    """Trim and write a delivery's payload for any number of downstreams.

    Raises `BadRequest` for a payload that JSON cannot hold (an infinite number, nesting without end).
    """
    head = _head(event_type, delivery_id)
    room = MAX_BODY_BYTES - _RELAY_ROOM - len(head)
    try:
        verbatim = encode_json(payload), ()
        if len(verbatim[0]) <= room:
            return PreparedPayload(head, (verbatim,))
        trimmed = trim_payload(payload, verbatim[0], room)
    except (ValueError, RecursionError) as exc:
        raise BadRequest(f"the payload cannot be written as JSON: {exc}") from None
    # Within the relay's room it depends on the relay part whether the payload fits as it is.
    near = len(verbatim[0]) <= room + _RELAY_ROOM
    return PreparedPayload(head, (verbatim, trimmed) if near else (trimmed,))


def update_payload(
    payload: dict[str, Any], *, action: str | None, labels: list[str] | None
) -> dict[str, Any]:
    """The webhook's body with the action and the labels that this dispatch is sent with.

    A label that was set after the webhook has its name and nothing else: that is what is known of it.
    """
    if action is not None and payload.get("action") != action:
        payload = {**payload, "action": action}
    pull = payload.get("pull_request")
    if labels is None or not isinstance(pull, dict):
        return payload
    found = {each.get("name"): each for each in pull.get("labels") or () if isinstance(each, dict)}
    present = [found.get(name, {"name": name}) for name in labels]
    return {**payload, "pull_request": {**pull, "labels": present}}


def _head(event_type: str, delivery_id: str) -> bytes:
    """Write everything before the payload; GitHub takes at most 10 keys in `client_payload`, and we use four."""
    name, delivery = encode_json(event_type), encode_json(delivery_id)
    head = b"".join(
        (
            *(b'{"event_type":', name, b',"client_payload":{"event_type":', name),
            *(b',"delivery_id":', delivery, b',"payload":'),
        )
    )
    if len(head) > _HEAD_BYTES:
        raise BadRequest("the event's name or the delivery's id is too long")
    return head
