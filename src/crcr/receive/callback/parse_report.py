"""Parses a callback's body into a `Report`, or refuses it with the name of the field that is wrong.

Fields that identify a job are validated strictly; fields that only describe it (links, times, counts, failed tests) are
cut or dropped, because a result must not be lost for them. The echoed payload is skipped, except in a self-report, where
it names the commit and the upstream, since there is no dispatch that does. Neither is trusted: the commit is compared
with the upstream's history, and the upstream must list the sender.
"""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from crcr.decide.jobs.log_excerpt import LogExcerpt
from crcr.decide.jobs.report import SELF_REPORTS, Report, ReportStatus
from crcr.decide.model import Conclusion, is_repo_name
from crcr.errors import BadReport
from crcr.receive.callback import report_details as details
from crcr.receive.http.body import decode

MAX_ATTEMPT = 10_000
_NAME_CHARS = 256
_NAME_BYTES = 600
"""Three names and the delivery are the key of a job, and PostgreSQL accepts no key above 2,700 bytes."""
_ID_CHARS = 100
_LEGAL_CONCLUSIONS = {text.value: text for text in Conclusion if text is not Conclusion.NONE}
_STATUSES = {status.value: status for status in ReportStatus}
_NEGATIVE = re.compile(r"-[0-9]+")
_DIGITS = re.compile(r"[0-9]{1,9}")
# An odd run of backslashes (group 1) starts an escape; then a surrogate pair, or in group 2 half of one.
_SURROGATES = re.compile(
    rb"(\\(?<!\\\\)(?:\\\\)*)"
    rb"(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2}))"
)
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ANYTHING = msgspec.json.Decoder(Any)
_ENCODE = msgspec.json.Encoder().encode


def parse_report(body: bytes, *, signed_attempt: int | None = None) -> Report:
    """Return the report, or raise `BadReport` naming the field.

    A report without an attempt gets that of its token.
    """
    try:
        parts, forbidden = decode(_PARTS, body, BadReport), "\0"
    except BadReport:
        # Half of a surrogate pair can be shown as a replacement character, but not be part of a name.
        parts, forbidden = decode(_PARTS, without_halves(body), BadReport), "\0\ufffd"
    payload = parts.pop("payload", None)
    try:
        kept = decode(_OBJECT, _ENCODE(parts), BadReport)
    except BadReport as refusal:
        why = refusal.detail.partition(" - at ")[0]
        raise BadReport(f"{_unreadable(parts)}: {why}", hint=refusal.hint) from None
    fields = _Fields(kept, forbidden=forbidden)
    excerpt = None
    if (reported := kept["workflow"].pop("log_excerpt", None)) is not None:
        excerpt = details.log_excerpt(reported, fields.conclusion(fields.status()))
    if excerpt is not None:
        # Only what is masked is ever stored.
        kept["workflow"]["log_excerpt"] = {"first_error": excerpt.first_error, "tail": excerpt.tail}
    return _report(fields, excerpt, _ENCODE(kept), signed_attempt, payload=payload)


class _Fields:
    """Reads the fields that identify a job; null and "" are absent."""

    __slots__ = ("_forbidden", "top", "workflow")

    def __init__(self, top: Mapping[str, Any], *, forbidden: str) -> None:
        workflow = top.get("workflow")
        if not isinstance(workflow, dict):
            raise BadReport("workflow is missing or not an object")
        self.top = top
        self.workflow: Mapping[str, Any] = workflow
        self._forbidden = forbidden

    def text(self, path: str, *, limit: int) -> str | None:
        value = self._value(path)
        if value is None:
            return None
        if not isinstance(value, str):
            raise BadReport(f"{path} is not text")
        return self._checked(path, value, limit)

    def required(self, path: str, *, limit: int) -> str:
        text = self.text(path, limit=limit)
        if text is None:
            raise BadReport(f"{path} is missing")
        return text

    def run_id(self) -> str:
        path = "workflow.run_id"
        value = self._value(path)
        if value is None:
            raise BadReport(f"{path} is missing")
        # A bool is an int in Python, so types are compared exactly.
        if type(value) not in {int, str}:
            raise BadReport(f"{path} is neither text nor a whole number")
        text = self._checked(path, str(value), _NAME_CHARS)
        if _NEGATIVE.fullmatch(text):
            raise BadReport(f"{path} is negative")
        return text

    def run_attempt(self, signed: int | None) -> int:
        path = "workflow.run_attempt"
        value = self._value(path)
        if value is None:
            value = signed or 1
        if isinstance(value, str) and _DIGITS.fullmatch(value):
            value = int(value)
        if type(value) is not int or not 1 <= value <= MAX_ATTEMPT:
            raise BadReport(f"{path} is not a whole number from 1 to {MAX_ATTEMPT}")
        return value

    def status(self) -> ReportStatus:
        text = self.required("workflow.status", limit=_ID_CHARS)
        if text not in _STATUSES:
            raise BadReport(f"workflow.status is {_quoted(text)}; legal are {', '.join(_STATUSES)}")
        return _STATUSES[text]

    def conclusion(self, status: ReportStatus) -> Conclusion | None:
        if status is ReportStatus.IN_PROGRESS:
            return None
        value = self._value("workflow.conclusion")
        if value is None:
            return Conclusion.NONE
        if not isinstance(value, str) or value not in _LEGAL_CONCLUSIONS:
            legal = ", ".join(_LEGAL_CONCLUSIONS)
            raise BadReport(f"workflow.conclusion is {_quoted(value)}; legal are {legal}")
        return _LEGAL_CONCLUSIONS[value]

    def _value(self, path: str) -> Any:
        name = path.removeprefix("workflow.")
        value = self.top.get(name) if name == path else self.workflow.get(name)
        return None if value == "" else value

    def _checked(self, path: str, text: str, limit: int) -> str:
        if len(text) > limit:
            raise BadReport(f"{path} has {len(text):,} characters; at most {limit:,} are taken")
        if not text.isascii() and len(text.encode(errors="replace")) > _NAME_BYTES:
            raise BadReport(
                f"{path} has {len(text.encode(errors='replace')):,} bytes; at most {_NAME_BYTES:,} are taken"
            )
        for character in self._forbidden:
            if character in text:
                raise BadReport(f"{path} holds a NUL or half of a surrogate pair")
        return text


def _report(
    fields: _Fields,
    excerpt: LogExcerpt | None,
    untrusted: bytes,
    signed_attempt: int | None,
    *,
    payload: msgspec.Raw | None,
) -> Report:
    event_type = fields.text("event_type", limit=_ID_CHARS) or ""
    is_self_report = event_type in SELF_REPORTS
    delivery_id = (fields.text if is_self_report else fields.required)("delivery_id", limit=_ID_CHARS) or ""
    status = fields.status()
    if is_self_report and status is ReportStatus.IN_PROGRESS:
        raise BadReport(f"workflow.status is in_progress; a {event_type} report is sent once, when completed")
    workflow = fields.workflow
    failed_tests, cut = details.failed_tests(workflow.get("failed_tests"))
    return Report(
        event_type=event_type,
        delivery_id=delivery_id,
        status=status,
        conclusion=fields.conclusion(status),
        workflow_name=fields.required("workflow.name", limit=_NAME_CHARS),
        run_id=fields.run_id(),
        run_attempt=fields.run_attempt(signed_attempt),
        job_name=fields.required("workflow.job_name", limit=_NAME_CHARS),
        url=details.link(workflow.get("url")),
        artifact_url=details.link(workflow.get("artifact_url")),
        check_run_text=details.check_run_text(workflow.get("check_run_id")),
        started_at=details.time(workflow.get("started_at")),
        completed_at=details.time(workflow.get("completed_at")),
        late=workflow.get("late") is True,
        tests=details.test_counts(workflow.get("test_results")),
        failed_tests=failed_tests,
        failed_tests_cut=cut,
        environment=details.environment(workflow.get("environment")),
        untrusted=untrusted,
        log_excerpt=excerpt,
        said_commit=_claimed_commit(delivery_id, payload, workflow) if is_self_report else None,
        said_upstream=_claimed_upstream(payload) if is_self_report else None,
    )


def _unreadable(parts: Mapping[str, msgspec.Raw], within: str = "") -> str:
    """Return the field that the decoder fails on, such as a number that is too large; the decoder does not name it."""
    for name, raw in parts.items():
        try:
            _ANYTHING.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            path = f"{within}{name[:_ID_CHARS]}"
            if not within and bytes(raw).lstrip().startswith(b"{"):
                return _unreadable(_PARTS.decode(raw), f"{path}.")
            return path
    return within.rstrip(".")


def _quoted(value: object) -> str:
    return repr(value)[:60]


def without_halves(body: bytes) -> bytes:
    """Replace lone halves of surrogate pairs, which test output with broken bytes contains."""
    return _SURROGATES.sub(lambda match: match[1] + b"ufffd" if match[2] else match[0], body)


# What a self-report says that it is about: a commit and an upstream, from the places where reporters put them.


_SHA = re.compile(r"[0-9a-fA-F]{40}")
_NO_COMMIT = "0" * 40
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TEXT = msgspec.json.Decoder(str)


def _claimed_commit(delivery_id: str, payload: msgspec.Raw | None, workflow: Mapping[str, Any]) -> str | None:
    """Return the first of these that is a full SHA; Git uses zeros for a deleted branch, and they name no commit."""
    echoed = _parts(payload)
    candidates = (
        delivery_id,
        _text(echoed.get("head_sha")),
        _text(echoed.get("after")),
        workflow.get("pytorch_head_sha"),
    )
    shas = (text.lower() for text in candidates if isinstance(text, str) and _SHA.fullmatch(text))
    return next((sha for sha in shas if sha != _NO_COMMIT), None)


def _claimed_upstream(payload: msgspec.Raw | None) -> str | None:
    name = _text(_parts(_parts(payload).get("repository")).get("full_name"))
    return name if name and is_repo_name(name) else None


def _parts(raw: msgspec.Raw | None) -> dict[str, msgspec.Raw]:
    """Return an object's fields undecoded: an echoed event may be long, and only two fields are needed."""
    try:
        return _PARTS.decode(raw) if raw is not None else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _text(raw: msgspec.Raw | None) -> str | None:
    try:
        return _TEXT.decode(raw) if raw is not None else None
    except (msgspec.MsgspecError, RecursionError):
        return None
