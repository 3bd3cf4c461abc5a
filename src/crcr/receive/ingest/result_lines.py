"""Reads another relay's results from lines of JSON: envelopes as the ingest takes them, or rows of its table of jobs.

A row is one of `crcr_workflow_job` in ClickHouse, or an item of the DynamoDB table that feeds it, as its export to S3 has it. A line that
is neither is counted with its number and the reason; it does not stop the others. Memory is bounded by the longest line that is accepted.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import msgspec

from crcr.decide.jobs.ingested import IngestedResult
from crcr.decide.jobs.report import ReportStatus
from crcr.decide.jobs.workflow_job_record import NotARecord, read_attributes
from crcr.decide.model import Conclusion, RepoName
from crcr.decide.shadow import RecordedResult
from crcr.errors import BadReport
from crcr.receive.ingest.parse_envelope import parse_envelope

MOST_LINE_BYTES = 4 * 1024 * 1024
_MOST_PROBLEMS = 20
_COMMIT = re.compile(r"[0-9a-f]{40}", re.IGNORECASE)
_ROW = msgspec.json.Decoder(dict[str, Any])


@dataclass(slots=True)
class UnreadLines:
    """Lines that are no results: how many, and why the first ones are not."""

    number: int = 0
    problems: list[str] = field(default_factory=list)

    def add(self, line: int, why: str) -> None:
        self.number += 1
        if len(self.problems) < _MOST_PROBLEMS:
            self.problems.append(f"line {line}: {why[:200]}")


def read_result_lines(lines: Iterable[bytes], unread: UnreadLines) -> Iterator[RecordedResult]:
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text:
            continue
        if len(text) > MOST_LINE_BYTES:
            unread.add(number, "it is too long")
            continue
        try:
            yield _read_line(text)
        except BadReport as refusal:
            unread.add(number, refusal.detail)


def _read_line(line: bytes) -> RecordedResult:
    try:
        row = _ROW.decode(line)
    except (msgspec.MsgspecError, RecursionError):
        raise BadReport("it is no JSON object") from None
    if "trusted" in row:
        return _from_envelope(parse_envelope(line))
    return _from_row(_read_exported(row["Item"]) if "Item" in row else row)


def _read_exported(item: object) -> Mapping[str, Any]:
    try:
        return read_attributes(item)
    except NotARecord as reason:
        raise BadReport(str(reason)) from None


def _from_envelope(ingested: IngestedResult) -> RecordedResult:
    report = ingested.report
    return RecordedResult(
        delivery=report.delivery_id,
        backend=ingested.repository,
        event=report.event_type,
        workflow=report.workflow_name,
        job=report.job_name,
        check_run=ingested.check_run,
        attempt=report.run_attempt,
        conclusion=report.conclusion if report.status is ReportStatus.COMPLETED else None,
        at=report.started_at or report.completed_at,
        upstream=ingested.about.upstream,
    )


def _from_row(row: Mapping[str, Any]) -> RecordedResult:
    attempt = row.get("run_attempt")
    is_number = isinstance(attempt, int | str) and str(attempt).isascii() and str(attempt).isdigit()
    conclusion = None
    if _text(row, "status") == ReportStatus.COMPLETED.value:
        conclusion = _conclusion(row.get("conclusion"))
    delivery = _text(row, "delivery_id")
    # Tables of the first release have no event; a nightly has its commit in place of a delivery.
    event = row.get("event_type") or ("nightly" if _COMMIT.fullmatch(delivery) else "pull_request")
    return RecordedResult(
        delivery=delivery,
        backend=_repository(_text(row, "downstream_repo")),
        event=str(event),
        workflow=_text(row, "workflow_name"),
        job=_text(row, "job_name"),
        check_run=str(row.get("check_run_id") or ""),
        attempt=int(str(attempt)[:9]) if is_number else 1,
        conclusion=conclusion,
        at=_time(row.get("started_at")) or _time(row.get("completed_at")),
        upstream=str(row["upstream_repo"]) if row.get("upstream_repo") else None,
    )


def _text(row: Mapping[str, Any], name: str) -> str:
    value = row.get(name)
    if not isinstance(value, str) or not value:
        raise BadReport(f"{name} is missing or not text")
    return value


def _repository(text: str) -> RepoName:
    try:
        return RepoName(text)
    except ValueError:
        raise BadReport(f"downstream_repo is {text[:60]!r}, not owner/name") from None


def _conclusion(value: object) -> Conclusion:
    try:
        return Conclusion(str(value)) if value else Conclusion.NONE
    except ValueError:
        return Conclusion.NONE


def _time(value: object) -> datetime | None:
    """A time as ClickHouse or GitHub writes it; without a zone it is UTC, and the epoch means that there is none."""
    if not isinstance(value, str):
        return None
    try:
        # ClickHouse writes nanoseconds, of which Python reads six digits.
        whole, dot, rest = value.partition(".")
        at = datetime.fromisoformat(f"{whole}.{rest[:6]}" if dot and rest[:9].isdigit() else value)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return at if at.timestamp() > 0 else None
