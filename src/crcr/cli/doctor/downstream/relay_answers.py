"""What a relay answered, read with care: whoever answers there may say anything, and none of it ends in a traceback."""

import re
from datetime import datetime
from typing import Any

import httpx
import msgspec

from crcr.join.findings.finding import SetupFinding, State, problem, unknown

_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a test dispatch started, as far as its way is told."""

    run_id: str
    job_name: str
    state: str
    started_at: str | None = None
    completed_at: str | None = None
    conclusion: str | None = None


class DispatchProgress(msgspec.Struct, frozen=True, kw_only=True):
    state: str | None = None
    reason: str | None = None
    level: str | None = None
    created_at: str | None = None
    sent_at: str | None = None
    jobs: tuple[JobProgress, ...] = ()


class RecentRefusal(msgspec.Struct, frozen=True):
    at: str
    settled: bool = False


class _Refusals(msgspec.Struct, frozen=True):
    refusals: tuple[RecentRefusal, ...] = ()


class _Delivery(msgspec.Struct, frozen=True):
    dispatches: tuple[DispatchProgress, ...] = ()


def json_object(answer: httpx.Response) -> dict[str, Any]:
    """The answer's object; an empty one for what is none."""
    try:
        found = answer.json()
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def parse_findings(answer: httpx.Response) -> tuple[SetupFinding, ...] | None:
    """The findings that are told; None when the answer cannot be read."""
    told = json_object(answer).get("findings")
    if not isinstance(told, list):
        return None
    found = [_finding(each) for each in told]
    return tuple(each for each in found if each)


def _finding(told: Any) -> SetupFinding | None:
    """A newer relay may say more than we know of; what cannot be read is left out."""
    try:
        hint = told.get("hint")
        return SetupFinding(
            str(told["name"]), State(told["state"]), str(told["text"]), str(hint) if hint else None
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def parse_delivery_id(answer: httpx.Response) -> str | None:
    """The test's delivery, if it is an id: it becomes part of the next address."""
    told = json_object(answer).get("delivery")
    return told if isinstance(told, str) and _ID.fullmatch(told) else None


def parse_dispatch(answer: httpx.Response) -> DispatchProgress | None:
    """How far the test is; None when the answer cannot be read."""
    try:
        found = msgspec.json.decode(answer.content, type=_Delivery)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return next(iter(found.dispatches), DispatchProgress())


def parse_refusals(answer: httpx.Response) -> tuple[RecentRefusal, ...]:
    """The refusals that are told; none when the answer cannot be read."""
    try:
        return msgspec.json.decode(answer.content, type=_Refusals).refusals
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()


def is_not_before(at: str, began: str | None) -> bool:
    """Whether one of the relay's times is not before another; False where that cannot be told."""
    try:
        return datetime.fromisoformat(at) >= datetime.fromisoformat(began or "")
    except (ValueError, TypeError):
        return False


def unreadable_finding(name: str) -> SetupFinding:
    return problem(
        name,
        "The relay's answer cannot be read.",
        "is this the relay's own address, and of this release? if so, tell the operator",
    )


def refused_finding(name: str, answer: httpx.Response) -> SetupFinding:
    error = json_object(answer).get("error")
    told = error if isinstance(error, dict) else {}
    detail = str(told.get("detail") or f"it answered {answer.status_code}")
    if answer.status_code == httpx.codes.TOO_MANY_REQUESTS:
        return unknown(
            name,
            f"The relay asks to wait: {detail}",
            f"again in {answer.headers.get('retry-after', 'some')} s",
        )
    hint = str(told.get("hint") or "is this the relay's own address, and of this release?")
    if answer.status_code == httpx.codes.UNAUTHORIZED and name != "test":
        hint = f"this relay shows its pages only to who is known: give --token or CRCR_TOKEN ({hint})"
    return problem(name, f"The relay refused: {detail}", hint)


def no_answer_finding(name: str, error: httpx.HTTPError) -> SetupFinding:
    return problem(
        name,
        f"The relay did not answer ({type(error).__name__}).",
        "try again; if it lasts, tell the operator",
    )
