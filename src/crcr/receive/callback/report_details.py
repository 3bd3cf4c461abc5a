"""The descriptive fields of a report: links, times, counts, failed tests, log excerpt, environment.

Each function takes any JSON value and returns a value that is safe to store, or None: an invalid value is dropped and a
long one is cut, and none of them refuses a report.
"""

import re
from datetime import UTC, datetime
from typing import Any

import msgspec

from crcr.decide.jobs.log_excerpt import LogExcerpt, make_excerpt
from crcr.decide.jobs.report import FailedTest, TestCounts
from crcr.decide.model import Conclusion

MAX_FAILED_TESTS = 1_000
MAX_TEXT_BYTES = 1_024
MAX_LINK_BYTES = 2_048
MAX_ENVIRONMENT_BYTES = 4_096
_MAX_COUNT = 2**31 - 1
_CHECK_RUN_BYTES = 256
_LINK = re.compile(r"https?://[^\s/?#]\S*", re.IGNORECASE)
_DIGITS = re.compile(r"[0-9]{1,10}")
_ENCODE = msgspec.json.Encoder().encode
_PASSED = frozenset({Conclusion.SUCCESS, Conclusion.SKIPPED, Conclusion.NEUTRAL})


def link(value: object) -> str | None:
    if not isinstance(value, str) or not _LINK.fullmatch(value):
        return None
    # Control characters and direction marks could disguise a link.
    return value if value.isprintable() and len(value.encode()) <= MAX_LINK_BYTES else None


def time(value: object) -> datetime | None:
    if not isinstance(value, str) or len(value) > 64:
        return None
    try:
        moment = datetime.fromisoformat(value)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def check_run_text(value: object) -> str | None:
    if type(value) not in {int, str}:
        return None
    text = str(value)
    return text if 0 < len(text.encode(errors="replace")) <= _CHECK_RUN_BYTES and "\0" not in text else None


def test_counts(value: object) -> TestCounts | None:
    if not isinstance(value, dict):
        return None
    counts = [_count(value.get(name)) for name in ("passed", "failed", "skipped", "total")]
    return TestCounts(*counts) if any(count is not None for count in counts) else None


def failed_tests(value: object) -> tuple[tuple[FailedTest, ...], int]:
    """Return the tests that are kept, and how many were omitted: above the cap, or without a name."""
    if not isinstance(value, list):
        return (), 0
    kept = tuple(test for item in value[:MAX_FAILED_TESTS] if (test := _failed_test(item)))
    return kept, len(value) - len(kept)


def log_excerpt(value: object, conclusion: Conclusion | None) -> LogExcerpt | None:
    """Return the excerpt, masked here too; what a running job or one that passed has written is not kept."""
    if not isinstance(value, dict) or conclusion is None or conclusion in _PASSED:
        return None
    return make_excerpt(value.get("first_error"), value.get("tail"))


def environment(value: object) -> str | None:
    if not isinstance(value, dict) or not value:
        return None
    text = _ENCODE(value)
    # PostgreSQL's JSON refuses an escaped NUL.
    if len(text) > MAX_ENVIRONMENT_BYTES or b"\\u0000" in text:
        return None
    return text.decode()


def _count(value: Any) -> int | None:
    if isinstance(value, str) and _DIGITS.fullmatch(value):
        value = int(value)
    return value if type(value) is int and 0 <= value <= _MAX_COUNT else None


def _failed_test(item: object) -> FailedTest | None:
    if isinstance(item, str):
        item = {"name": item}
    if not isinstance(item, dict):
        return None
    name = _short(item.get("name"))
    return FailedTest(name, _short(item.get("file")), _short(item.get("message"))) if name else None


def _short(value: object) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    if "\0" in value:
        value = value.replace("\0", "\ufffd")
    if len(value) * 4 > MAX_TEXT_BYTES:
        # Cut by bytes; an incomplete last character is dropped.
        value = value[:MAX_TEXT_BYTES].encode()[:MAX_TEXT_BYTES].decode(errors="ignore")
    return value
