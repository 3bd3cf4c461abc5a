"""The steps of a delivery's trace, and their trace and span ids.

All ids are derived from the delivery's GUID. So a dispatch that another process sends, a callback the next day and a page
on a third machine belong to one trace, without passing ids through the outbox or a downstream.
"""

from enum import StrEnum
from hashlib import sha256


class TraceStep(StrEnum):
    WEBHOOK = "webhook"
    """From its first byte to its answer; the parent of all others."""
    RECORD = "record"
    """From parsed to committed."""
    DISPATCH = "dispatch"
    """The attempt that was sent to a downstream."""
    EFFECT = "effect"
    """An attempt at any other effect."""
    CALLBACK = "callback"
    """An accepted report."""
    TELL = "tell"
    """From a recorded change to the event on open pages."""


def trace_id(delivery: str) -> int:
    """128 bits, never zero."""
    return int.from_bytes(_digest(delivery)[:16]) or 1


def span_id(step: TraceStep, delivery: str, downstream: str = "") -> int:
    """64 bits, never zero: a later step computes the same id, so it need not be passed on."""
    return int.from_bytes(_digest(step.value, delivery, downstream.lower())[:8]) or 1


def fixed_span(step: TraceStep, delivery: str, downstream: str | None) -> int | None:
    """The id of a step that others come from; None for the steps that may happen any number of times."""
    if step is TraceStep.WEBHOOK:
        return span_id(step, delivery)
    if step is TraceStep.DISPATCH and downstream:
        return span_id(step, delivery, downstream)
    return None


def parent_span(step: TraceStep, delivery: str, downstream: str | None) -> int | None:
    """The step before: the dispatch to its downstream, or the webhook."""
    if step is TraceStep.WEBHOOK:
        return None
    if step in {TraceStep.CALLBACK, TraceStep.TELL} and downstream:
        return span_id(TraceStep.DISPATCH, delivery, downstream)
    return span_id(TraceStep.WEBHOOK, delivery)


def _digest(*parts: str) -> bytes:
    return sha256("\0".join(parts).encode(errors="replace")).digest()
