"""What a self-report says that it is about: a commit and an upstream, from the places where reporters put them.

Nothing here is believed. The commit is compared with the upstream's history, and the upstream must list the sender.
What is not there, or is not what it should be, is absent.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from crcr.decide.model import is_repo_name

_SHA = re.compile(r"[0-9a-fA-F]{40}")
_NO_COMMIT = "0" * 40
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


def said_commit(delivery_id: str, payload: msgspec.Raw | None, workflow: Mapping[str, Any]) -> str | None:
    """The first of these that is a whole SHA; of a deleted branch git says zeros, which name nothing."""
    echoed = _parts(payload)
    said = (
        delivery_id,
        _text(echoed.get("head_sha")),
        _text(echoed.get("after")),
        workflow.get("pytorch_head_sha"),
    )
    found = (each.lower() for each in said if isinstance(each, str) and _SHA.fullmatch(each))
    return next((sha for sha in found if sha != _NO_COMMIT), None)


def said_upstream(payload: msgspec.Raw | None) -> str | None:
    name = _text(_parts(_parts(payload).get("repository")).get("full_name"))
    return name if name and is_repo_name(name) else None


def _parts(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """An object's parts, not looked into: an echoed event may be long, and two of its fields are wanted."""
    try:
        return _PARTS.decode(raw) if raw is not None else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _text(raw: msgspec.Raw | None) -> str | None:
    try:
        return _TEXT.decode(raw) if raw is not None else None
    except (msgspec.MsgspecError, RecursionError):
        return None
