"""The body of a `repository_dispatch`, as docs/protocol.md specifies it, and how a large payload is trimmed.

One delivery goes to many downstreams, and only the small `relay` part differs between them: the payload is trimmed and
encoded once (`prepare_payload`), and each body is joined from bytes. A body never exceeds `MAX_BODY_BYTES`, because
GitHub would refuse it for every downstream at once.

Trimming goes in fixed steps from the least used data to the most used; each step is taken only if the ones before were
not enough, and the cuts are named. Removed data is absent, never empty, so that nobody reads "no commits" from a cut
list; an identifying value is whole or null, never a part of itself. The input is not changed.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from crcr.decide.model import Level, RepoName
from crcr.errors import BadRequest

Payload = Mapping[str, Any]
Change = Callable[[Any], Any]

MARK = "… [cut]"
NEWEST_COMMITS = 20
MAX_LABELS = 100
_BODY_BYTES = 16_000
_MESSAGE_BYTES = 1_000
_TITLE_BYTES = 500
_LABEL_BYTES = 200
_VALUE_BYTES = 512
# GitHub nests six deep; what is deeper is not looked at, so that no input can exhaust the stack.
_MAX_DEPTH = 16


def encode_json(value: Any) -> bytes:
    """Write compact UTF-8 JSON; half of a surrogate pair becomes its escape, the only way JSON can hold it."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def trim_payload(payload: Payload, encoded: bytes, room: int) -> tuple[bytes, tuple[str, ...]]:
    """Return the payload (`encoded` so far) as at most `room` bytes of JSON, and what was cut, in order."""
    trimmed: dict[str, None] = {}
    for name, step in STEPS:
        if len(encoded) <= room:
            break
        smaller = step(payload)
        # A step that finds nothing of its own returns the same object: a large body is not written again.
        shorter = encoded if smaller is payload else encode_json(smaller)
        if len(shorter) < len(encoded):
            payload, encoded = smaller, shorter
            trimmed[name] = None
    return encoded, tuple(trimmed)


@dataclass(frozen=True, slots=True)
class _Each:
    """A list whose items have this shape."""

    shape: "Shape"


Shape = Mapping[str, "Shape"] | _Each | None
"""What to keep of a value: some keys, each item's, or (None) all of it."""


def _keys(*names: str, **shapes: Shape) -> dict[str, Shape]:
    return {**dict.fromkeys(names), **shapes}


_SIDE = _keys("sha", "ref", repo=_keys("full_name", "clone_url", "fork"))
_PULL = _keys(
    *("number", "title", "draft", "state", "merged", "merge_commit_sha", "html_url", "author_association"),
    labels=_Each(_keys("name")),
    user=_keys("login"),
    head=_SIDE,
    base=_SIDE,
)
SURVIVORS: Mapping[str, Shape] = _keys(
    *(
        "action",
        "number",
        "ref",
        "before",
        "after",
        "deleted",
        "created",
        "forced",
        "base_ref",
        "merge_group",
    ),
    sender=_keys("login"),
    repository=_keys("id", "full_name", "html_url", "clone_url", "default_branch", "private"),
    pull_request=_PULL,
    head_commit=_keys("id"),
)
_FLOOR: Mapping[str, Shape] = {
    **SURVIVORS,
    "merge_group": _keys(
        *("head_sha", "head_ref", "base_sha", "base_ref"),
        head_commit=_keys("id", "tree_id", "message", "timestamp"),
    ),
}


def _same(value: Any) -> Any:
    return value


def _shaped(value: Any, shape: Shape, leaf: Change = _same) -> Any:
    """Keep of `value` what `shape` names; `leaf` is applied to what is kept as a whole."""
    if isinstance(shape, _Each) and isinstance(value, list):
        return [_shaped(item, shape.shape, leaf) for item in value]
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        return {key: _shaped(value[key], inner, leaf) for key, inner in shape.items() if key in value}
    return leaf(value)


def _whole_or_null(value: Any) -> Any:
    if isinstance(value, Mapping | list) or len(encode_json(value)) > _VALUE_BYTES:
        return None
    return value


def _at(path: str, change: Change) -> Change:
    """Make a change of the one value at a dotted path; a payload without it stays as it is."""
    key, _, rest = path.partition(".")
    inner = _at(rest, change) if rest else change

    def apply(value: Any) -> Any:
        if not isinstance(value, Mapping) or key not in value:
            return value
        return {**value, key: inner(value[key])}

    return apply


def _without(*keys: str) -> Change:
    """Take away what stands under these keys; null and empty values stay, because nothing of them is lost."""

    def apply(value: Any) -> Any:
        if not isinstance(value, Mapping) or not any(value.get(key) for key in keys):
            return value
        return {k: v for k, v in value.items() if k not in keys or not v}

    return apply


def _each(change: Change) -> Change:
    return lambda value: [change(item) for item in value] if isinstance(value, list) else value


def _part(part: slice) -> Change:
    return lambda value: value[part] if isinstance(value, list) else value


def _cut(limit: int) -> Change:
    """Cut text so that its JSON has at most `limit` bytes, the mark included."""

    def apply(value: Any) -> Any:
        if not isinstance(value, str) or len(encode_json(value)) <= limit:
            return value
        kept = bisect_right(range(limit), limit, key=lambda size: len(encode_json(value[:size] + MARK))) - 1
        return value[: max(kept, 0)] + MARK

    return apply


def _within(limit: int) -> Change:
    """Leave out items whose JSON is longer; after `_cut` only what is no GitHub object is."""
    return lambda value: (
        [v for v in value if len(encode_json(v)) <= limit] if isinstance(value, list) else value
    )


def _in_turn(*changes: Change) -> Change:
    def apply(value: Any) -> Any:
        for change in changes:
            value = change(value)
        return value

    return apply


def _reduced(value: Any, *, marks: frozenset[str], keep: tuple[str, ...], depth: int = 0) -> Any:
    """Reduce every object that has all of `marks` to its `keep` keys, wherever it stands."""
    if depth > _MAX_DEPTH:
        return value
    down = partial(_reduced, marks=marks, keep=keep, depth=depth + 1)
    if isinstance(value, Mapping):
        kept = {key: value[key] for key in keep if key in value} if marks <= value.keys() else value
        return {key: down(item) for key, item in kept.items()}
    return [down(item) for item in value] if isinstance(value, list) else value


def _around_merge_group(change: Change) -> Change:
    """Change all of a payload but `merge_group`, which is promised to arrive whole."""

    def apply(payload: Any) -> Any:
        kept = {key: payload[key] for key in ("merge_group",) if key in payload}
        return {**change(payload), **kept}

    return apply


_REPOSITORIES = partial(
    _reduced,
    marks=frozenset({"full_name", "owner"}),
    keep=(
        *("id", "name", "full_name", "owner", "private", "fork"),
        *("html_url", "clone_url", "default_branch"),
    ),
)
_USERS = partial(_reduced, marks=frozenset({"login", "id"}), keep=("login", "id", "type"))
_LABELS = partial(_reduced, marks=frozenset({"name", "color"}), keep=("id", "name"))
_FILES = _without("added", "removed", "modified")
_FEW_SHORT_LABELS = _in_turn(
    _part(slice(MAX_LABELS)), _each(_at("name", _cut(_LABEL_BYTES))), _within(_LABEL_BYTES + 20)
)

STEPS: tuple[tuple[str, Change], ...] = (
    ("pull_request.body", _at("pull_request.body", _cut(_BODY_BYTES))),
    ("pull_request.body", _at("pull_request", _without("body"))),
    ("commits", _at("commits", _part(slice(-NEWEST_COMMITS, None)))),
    ("commits[].files", _at("commits", _each(_FILES))),
    ("commits", _without("commits")),
    ("head_commit.files", _at("head_commit", _FILES)),
    ("head_commit.message", _at("head_commit.message", _cut(_MESSAGE_BYTES))),
    ("repositories", _at("pull_request", _REPOSITORIES)),
    ("users", _around_merge_group(_USERS)),
    ("labels", _around_merge_group(_LABELS)),
    ("repository", _at("repository", _REPOSITORIES)),
    ("rest", partial(_shaped, shape=SURVIVORS)),
    ("merge_group.head_commit.message", _at("merge_group.head_commit.message", _cut(_TITLE_BYTES))),
    ("pull_request.title", _at("pull_request.title", _cut(_TITLE_BYTES))),
    ("pull_request.labels", _at("pull_request.labels", _FEW_SHORT_LABELS)),
    ("values", partial(_shaped, shape=_FLOOR, leaf=_whole_or_null)),
)


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
