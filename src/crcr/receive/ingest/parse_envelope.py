"""Parses another relay's envelope into an `IngestedResult`, or refuses it with the name of the field that is wrong.

The report in it is parsed like one that came to us. The echoed payload is untrusted: a few of its texts are shown, each
validated by itself, and invalid ones are omitted.
"""

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import msgspec

from crcr.decide.jobs.ingested import EchoedEvent, IngestedResult
from crcr.decide.model import Level, RepoName
from crcr.errors import BadReport
from crcr.receive.callback.parse_report import parse_report, without_halves
from crcr.receive.http.body import decode

T = TypeVar("T")

CALLBACK = "untrusted.callback_payload"
_TEXT_CHARS = 256
_LONGEST_S = 366 * 24 * 3600
_MOST_NUMBER = 2**31 - 1
_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_DIGITS = re.compile(rb"[1-9][0-9]{0,8}")
_LEVELS = {level.name: level for level in Level}
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NUMBER = msgspec.json.Decoder(float)
_ANY = msgspec.json.Decoder(dict[str, Any])
_TEXT = msgspec.json.Decoder(str)
_ABSENT = frozenset({b"null", b'""'})


def parse_envelope(body: bytes) -> IngestedResult:
    """Return what was ingested, or raise `BadReport` naming the field."""
    try:
        envelope = decode(_PARTS, body, BadReport)
    except BadReport:
        body = without_halves(body)  # half of a surrogate pair can be shown as a replacement character
        envelope = decode(_PARTS, body, BadReport)
    trusted = _object(envelope, "trusted", "trusted")
    untrusted = _object(envelope, "untrusted", "untrusted")
    callback = _object(untrusted, "callback_payload", CALLBACK)
    try:
        report = parse_report(bytes(untrusted["callback_payload"]))
    except BadReport as refusal:
        raise BadReport(f"{CALLBACK}: {refusal.detail}", hint=refusal.hint) from None
    if not report.delivery_id:  # optional in a self-report, but part of the key of an ingested row
        raise BadReport(f"{CALLBACK}: delivery_id is missing")
    metrics, outcome = _optional_object(trusted, "ci_metrics"), _optional_object(trusted, "outcome")
    return IngestedResult(
        repository=_repository(trusted),
        level=_level(trusted),
        queue_s=_seconds(metrics.get("queue_time")),
        execution_s=_seconds(metrics.get("execution_time")),
        report=report,
        about=_about(_echoed(callback), report.delivery_id, _workflow(callback)),
        outcome_number=_count(outcome.get("number")),
        disputed=bytes(outcome.get("disputed", b"")).strip() == b"true",
    )


def _object(parts: Mapping[str, msgspec.Raw], name: str, path: str) -> dict[str, msgspec.Raw]:
    raw = parts.get(name)
    if raw is None or not bytes(raw).lstrip().startswith(b"{"):
        raise BadReport(f"{path} is missing or not an object")
    return _PARTS.decode(raw)


def _repository(trusted: Mapping[str, msgspec.Raw]) -> RepoName:
    text = _optional_text(trusted.get("verified_repo"))
    if text is None:
        raise BadReport("trusted.verified_repo is missing or not text")
    try:
        return RepoName(text)
    except ValueError:
        raise BadReport(f"trusted.verified_repo is {text[:60]!r}, not owner/name") from None


def _level(trusted: Mapping[str, msgspec.Raw]) -> Level | None:
    return _LEVELS.get(_optional_text(trusted.get("downstream_repo_level")) or "")


def _optional_object(trusted: Mapping[str, msgspec.Raw], name: str) -> Mapping[str, msgspec.Raw]:
    raw = trusted.get(name)
    return _PARTS.decode(raw) if raw is not None and bytes(raw).lstrip().startswith(b"{") else {}


def _count(raw: msgspec.Raw | None) -> int | None:
    text = bytes(raw).strip() if raw is not None else b""
    return int(text) if _DIGITS.fullmatch(text) else None


def _seconds(raw: msgspec.Raw | None) -> float | None:
    """Return a plausible duration or None; a result is not refused for a measurement."""
    if raw is None or bytes(raw).strip() in _ABSENT:
        return None
    try:
        seconds = _NUMBER.decode(raw)
    except msgspec.MsgspecError:
        return None
    return abs(seconds) if math.isfinite(seconds) and 0 <= seconds <= _LONGEST_S else None


def _optional_text(raw: msgspec.Raw | None) -> str | None:
    if raw is None or bytes(raw).strip() in _ABSENT:
        return None
    try:
        return _TEXT.decode(raw)
    except msgspec.MsgspecError:
        return None


def _echoed(callback: Mapping[str, msgspec.Raw]) -> dict[str, Any]:
    raw = callback.get("payload")
    try:
        return decode(_ANY, bytes(raw), BadReport) if raw is not None else {}
    except BadReport:
        return {}  # trimmed, or valid JSON that Python cannot decode


def _workflow(callback: Mapping[str, msgspec.Raw]) -> Mapping[str, Any]:
    return _ANY.decode(callback["workflow"])


def _about(payload: Mapping[str, Any], delivery: str, workflow: Mapping[str, Any]) -> EchoedEvent:
    pull, group = _part(payload, "pull_request"), _part(payload, "merge_group")
    commits = (
        delivery,  # nightlies often use their commit as the delivery
        _part(pull, "head").get("sha"),
        group.get("head_sha"),
        payload.get("after"),
        payload.get("head_sha"),
        workflow.get("pytorch_head_sha"),
    )
    people = (_part(pull, "user"), _part(payload, "sender"))
    return EchoedEvent(
        upstream=_short(_part(payload, "repository").get("full_name")),
        action=_short(payload.get("action")),
        number=_first(_pull_number, (pull.get("number"), payload.get("number"))),
        head_sha=_first(_sha, commits),
        ref=_first(_short, (payload.get("ref"), group.get("head_ref"))),
        title=_short(pull.get("title")),
        author=_first(_short, (person.get("login") for person in people)),
    )


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = of.get(name)
    return part if isinstance(part, dict) else {}


def _first(read: Callable[[object], T | None], values: Iterable[object]) -> T | None:
    return next((result for value in values if (result := read(value)) is not None), None)


def _short(value: object) -> str | None:
    """Return text to show, cut; PostgreSQL stores no NUL."""
    if not isinstance(value, str) or not value:
        return None
    return value[:_TEXT_CHARS].replace("\0", "\ufffd")


def _sha(value: object) -> str | None:
    return value if isinstance(value, str) and _SHA.fullmatch(value) else None


def _pull_number(value: object) -> int | None:
    return value if type(value) is int and 0 < value <= _MOST_NUMBER else None
