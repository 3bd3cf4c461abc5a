"""Makes a webhook's body small enough for a dispatch, in a fixed order, naming what was cut.

The steps go from what is read least to what is read most; each is taken only if the ones before were not
enough. What is taken away is absent, never empty, so that nobody reads "no commits" from a cut list; an
identifying value is whole or null, never a part of itself. The input is not changed.
"""

import json
from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

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
