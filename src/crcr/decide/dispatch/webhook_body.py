"""Webhook bodies: their compressed form in the store, and for how long an identical body counts as a repeat.

GitHub signs the body alone: an attacker who captured one could send it again under another GUID. The bodies of two
events differ, because they contain an id that is given once (a comment, a run's attempt) or the second of a change
(`updated_at`, `pushed_at`). Only a click on a button has neither: the same button may be meant twice.
"""

import json
import zlib
from datetime import datetime, timedelta
from typing import Any

from crcr.decide.events import (
    CheckRunEvent,
    CheckSuiteEvent,
    Event,
    IssueClosedEvent,
    IssueCommentEvent,
    PushEvent,
)


def compress_body(body: bytes) -> bytes:
    return zlib.compress(body, 1)


def decompress_body(packed: bytes) -> bytes:
    return zlib.decompress(packed)


def decompress_payload(packed: bytes) -> dict[str, Any]:
    payload: dict[str, Any] = json.loads(zlib.decompress(packed))
    return payload


REMEMBERED_FOR = timedelta(days=3)
"""As long as GitHub keeps its delivery log."""
CLICK_REPEATS_WITHIN = timedelta(seconds=60)


def repeats_within(event: Event) -> timedelta:
    """Return the time within which an identical body is a repeat of the same event."""
    return CLICK_REPEATS_WITHIN if isinstance(event, CheckRunEvent | CheckSuiteEvent) else REMEMBERED_FOR


def is_too_old(event: Event, now: datetime) -> bool:
    """Whether a comment, a push or the closing of an issue is older than the remembered bodies, so that a repeat could not be recognised.

    Events of pull requests need no such rule: `updated_at` orders them.
    """
    if isinstance(event, IssueCommentEvent):
        return now - event.created_at > REMEMBERED_FOR
    if isinstance(event, IssueClosedEvent):
        return event.closed_at is not None and now - event.closed_at > REMEMBERED_FOR
    return (
        isinstance(event, PushEvent)
        and event.pushed_at is not None
        and now - event.pushed_at > REMEMBERED_FOR
    )
