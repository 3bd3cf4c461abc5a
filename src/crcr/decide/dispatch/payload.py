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
from dataclasses import asdict, dataclass
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
# GitHub nests six levels deep; deeper values are left alone, so that no input can exhaust the stack.
_MAX_DEPTH = 16


def encode_json(value: Any) -> bytes:
    """Encode as compact UTF-8 JSON; a lone surrogate becomes its escape, the only form that JSON allows."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def trim_payload(payload: Payload, encoded: bytes, room: int) -> tuple[bytes, tuple[str, ...]]:
    """Return the payload (`encoded` so far) as at most `room` bytes of JSON, and what was cut, in order."""
    trimmed: dict[str, None] = {}
    for name, step in STEPS:
        if len(encoded) <= room:
            break
        smaller = step(payload)
        # A step that changes nothing returns the same object: a large body is not encoded again.
        shorter = encoded if smaller is payload else encode_json(smaller)
        if len(shorter) < len(encoded):
            payload, encoded = smaller, shorter
            trimmed[name] = None
    return encoded, tuple(trimmed)


@dataclass(frozen=True, slots=True)
class _ItemShape:
    """A list whose items have this shape."""

    shape: "Shape"


Shape = Mapping[str, "Shape"] | _ItemShape | None
"""Which parts of a value to keep: some keys, a shape for each item, or (None) all of it."""


def _keys(*names: str, **shapes: Shape) -> dict[str, Shape]:
    return {**dict.fromkeys(names), **shapes}


_SIDE = _keys("sha", "ref", repo=_keys("full_name", "clone_url", "fork"))
_PULL = _keys(
    *("number", "title", "draft", "state", "merged", "merge_commit_sha", "html_url", "author_association"),
    labels=_ItemShape(_keys("name")),
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


def _keep_value(value: Any) -> Any:
    return value


def _keep_shape(value: Any, shape: Shape, leaf: Change = _keep_value) -> Any:
    """Keep the parts of `value` that `shape` names; `leaf` is applied to the values that are kept whole."""
    if isinstance(shape, _ItemShape) and isinstance(value, list):
        return [_keep_shape(item, shape.shape, leaf) for item in value]
    if isinstance(shape, Mapping) and isinstance(value, Mapping):
        return {key: _keep_shape(value[key], inner, leaf) for key, inner in shape.items() if key in value}
    return leaf(value)


def _whole_or_null(value: Any) -> Any:
    if isinstance(value, Mapping | list) or len(encode_json(value)) > _VALUE_BYTES:
        return None
    return value


def _change_path(path: str, change: Change) -> Change:
    """Return a change of the value at a dotted path; a payload without it stays unchanged."""
    key, _, rest = path.partition(".")
    inner = _change_path(rest, change) if rest else change

    def apply(value: Any) -> Any:
        if not isinstance(value, Mapping) or key not in value:
            return value
        return {**value, key: inner(value[key])}

    return apply


def _drop_keys(*keys: str) -> Change:
    """Return a change that drops these keys; null and empty values stay, because nothing of them is lost."""

    def apply(value: Any) -> Any:
        if not isinstance(value, Mapping) or not any(value.get(key) for key in keys):
            return value
        return {k: v for k, v in value.items() if k not in keys or not v}

    return apply


def _change_items(change: Change) -> Change:
    return lambda value: [change(item) for item in value] if isinstance(value, list) else value


def _slice_items(part: slice) -> Change:
    return lambda value: value[part] if isinstance(value, list) else value


def _cut_text(limit: int) -> Change:
    """Return a change that cuts text so that its JSON has at most `limit` bytes, the mark included."""

    def apply(value: Any) -> Any:
        if not isinstance(value, str) or len(encode_json(value)) <= limit:
            return value
        kept = bisect_right(range(limit), limit, key=lambda size: len(encode_json(value[:size] + MARK))) - 1
        return value[: max(kept, 0)] + MARK

    return apply


def _drop_long_items(limit: int) -> Change:
    """Return a change that drops items whose JSON is longer; after `_cut_text` only items that are no GitHub objects are."""
    return lambda value: (
        [v for v in value if len(encode_json(v)) <= limit] if isinstance(value, list) else value
    )


def _chain(*changes: Change) -> Change:
    def apply(value: Any) -> Any:
        for change in changes:
            value = change(value)
        return value

    return apply


def _reduce_objects(value: Any, *, marks: frozenset[str], keep: tuple[str, ...], depth: int = 0) -> Any:
    """Reduce every object that has all of `marks` to its `keep` keys, at any depth."""
    if depth > _MAX_DEPTH:
        return value
    down = partial(_reduce_objects, marks=marks, keep=keep, depth=depth + 1)
    if isinstance(value, Mapping):
        kept = {key: value[key] for key in keep if key in value} if marks <= value.keys() else value
        return {key: down(item) for key, item in kept.items()}
    return [down(item) for item in value] if isinstance(value, list) else value


def _except_merge_group(change: Change) -> Change:
    """Apply a change to all of a payload but `merge_group`, which the protocol promises whole."""

    def apply(payload: Any) -> Any:
        kept = {key: payload[key] for key in ("merge_group",) if key in payload}
        return {**change(payload), **kept}

    return apply


_REPOSITORIES = partial(
    _reduce_objects,
    marks=frozenset({"full_name", "owner"}),
    keep=(
        *("id", "name", "full_name", "owner", "private", "fork"),
        *("html_url", "clone_url", "default_branch"),
    ),
)
_USERS = partial(_reduce_objects, marks=frozenset({"login", "id"}), keep=("login", "id", "type"))
_LABELS = partial(_reduce_objects, marks=frozenset({"name", "color"}), keep=("id", "name"))
_FILES = _drop_keys("added", "removed", "modified")
_FEW_SHORT_LABELS = _chain(
    _slice_items(slice(MAX_LABELS)),
    _change_items(_change_path("name", _cut_text(_LABEL_BYTES))),
    _drop_long_items(_LABEL_BYTES + 20),
)

STEPS: tuple[tuple[str, Change], ...] = (
    ("pull_request.body", _change_path("pull_request.body", _cut_text(_BODY_BYTES))),
    ("pull_request.body", _change_path("pull_request", _drop_keys("body"))),
    ("commits", _change_path("commits", _slice_items(slice(-NEWEST_COMMITS, None)))),
    ("commits[].files", _change_path("commits", _change_items(_FILES))),
    ("commits", _drop_keys("commits")),
    ("head_commit.files", _change_path("head_commit", _FILES)),
    ("head_commit.message", _change_path("head_commit.message", _cut_text(_MESSAGE_BYTES))),
    ("repositories", _change_path("pull_request", _REPOSITORIES)),
    ("users", _except_merge_group(_USERS)),
    ("labels", _except_merge_group(_LABELS)),
    ("repository", _change_path("repository", _REPOSITORIES)),
    ("rest", partial(_keep_shape, shape=SURVIVORS)),
    (
        "merge_group.head_commit.message",
        _change_path("merge_group.head_commit.message", _cut_text(_TITLE_BYTES)),
    ),
    ("pull_request.title", _change_path("pull_request.title", _cut_text(_TITLE_BYTES))),
    ("pull_request.labels", _change_path("pull_request.labels", _FEW_SHORT_LABELS)),
    ("values", partial(_keep_shape, shape=_FLOOR, leaf=_whole_or_null)),
)


MAX_BODY_BYTES = 60_000
"""The whole request as compact UTF-8; GitHub accepts "less than 64 KB" and does not say how it counts."""

_RELAY_ROOM = 4_000
_RELAY_BYTES = 3_000
"""The part of it that settings may use; the rest is for the names in `trimmed`."""
_HEAD_BYTES = 2_000


TEST_PURPOSE = "test"
BISECTION_PURPOSE = "bisection"
PAIR_PURPOSE = "pair"


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchedDependency:
    """The pull request of the backend's own that a pair is tested with."""

    repository: str
    number: int
    head_sha: str
    clone_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayFields:
    """The `relay` object of one downstream's dispatch."""

    upstream: RepoName
    level: Level
    callback_url: str
    audience: str
    purpose: str | None = None
    """Where it is no event of the upstream: `test`, `bisection` or `pair`; its results count nowhere."""
    reason: str | None = None
    """Why it is sent, where the event's own action is not the reason: `base_changed`."""
    version: int = 1
    depends_on: DispatchedDependency | None = None
    """Of a pair: the backend's own pull request to test with."""

    def __post_init__(self) -> None:
        # Checked at start, where the operator sees it, rather than at the first large pull request.
        if len(self.encode(())) > _RELAY_BYTES:
            raise ValueError("callback_url and audience are too long for a dispatch")

    def encode(self, trimmed: tuple[str, ...]) -> bytes:
        """Encode the `relay` object; `test` is present only in a test, `depends_on` only in a pair."""
        fields: dict[str, Any] = {
            "version": self.version,
            "upstream": self.upstream.full_name,
            "level": self.level.name,
            "callback_url": self.callback_url,
            "audience": self.audience,
            "trimmed": trimmed,
            "reason": self.reason,
            "purpose": self.purpose,
        }
        if self.depends_on is not None:
            fields["depends_on"] = asdict(self.depends_on)
        return encode_json({**fields, "test": True} if self.purpose == TEST_PURPOSE else fields)


@dataclass(frozen=True, slots=True)
class DispatchBody:
    body: bytes
    trimmed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class PreparedPayload:
    """One delivery's payload, encoded once; made by `prepare_payload`."""

    _head: bytes
    _choices: tuple[tuple[bytes, tuple[str, ...]], ...]
    """Payloads with the names of their cuts, best first; the last one fits beside any `relay` object."""

    def dispatch(self, relay: RelayFields) -> DispatchBody:
        """Return the request body for one downstream: verbatim if it fits, else trimmed."""
        *better, last = (self._joined(payload, names, relay) for payload, names in self._choices)
        return next((choice for choice in better if len(choice.body) <= MAX_BODY_BYTES), last)

    def _joined(self, payload: bytes, trimmed: tuple[str, ...], relay: RelayFields) -> DispatchBody:
        parts = (self._head, payload, b',"relay":', relay.encode(trimmed), b"}}")
        return DispatchBody(b"".join(parts), trimmed)


def prepare_payload(*, event_type: str, delivery_id: str, payload: Mapping[str, Any]) -> PreparedPayload:
    """Trim and encode a delivery's payload for any number of downstreams.

    Raises `BadRequest` for a payload that JSON cannot hold (an infinite number, nesting without end).
    """
    head = _encode_head(event_type, delivery_id)
    room = MAX_BODY_BYTES - _RELAY_ROOM - len(head)
    try:
        verbatim = encode_json(payload), ()
        if len(verbatim[0]) <= room:
            return PreparedPayload(head, (verbatim,))
        trimmed = trim_payload(payload, verbatim[0], room)
    except (ValueError, RecursionError) as exc:
        raise BadRequest(f"the payload cannot be written as JSON: {exc}") from None
    # Within the room for `relay`, the size of that object decides whether the payload fits untrimmed.
    near = len(verbatim[0]) <= room + _RELAY_ROOM
    return PreparedPayload(head, (verbatim, trimmed) if near else (trimmed,))


def update_payload(
    payload: dict[str, Any], *, action: str | None, labels: list[str] | None
) -> dict[str, Any]:
    """Return the webhook's body with the action and the labels of this dispatch.

    Of a label that was set after the webhook only the name is known.
    """
    if action is not None and payload.get("action") != action:
        payload = {**payload, "action": action}
    pull = payload.get("pull_request")
    if labels is None or not isinstance(pull, dict):
        return payload
    labels_by_name = {
        label.get("name"): label for label in pull.get("labels") or () if isinstance(label, dict)
    }
    present = [labels_by_name.get(name, {"name": name}) for name in labels]
    return {**payload, "pull_request": {**pull, "labels": present}}


def _encode_head(event_type: str, delivery_id: str) -> bytes:
    """Encode everything before the payload; GitHub accepts at most 10 keys in `client_payload`, and four are used."""
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
