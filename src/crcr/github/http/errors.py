"""The error that an unsuccessful response means, as one of the `Outside…` errors.

Pure. The rules for limits are a table, in the order in which GitHub asks clients to apply them:
https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api. Text quoted from GitHub is cut, made
printable and stripped of tokens first.
"""

import re
from collections.abc import Callable, Mapping
from datetime import datetime

import msgspec

from crcr.errors import HeldBy, OutsideFault, OutsideLimited, OutsideRefused, OutsideUnsure
from crcr.github.api.request_response import Request, Response

MESSAGE_CHARS = 300
SECONDARY_WAIT_S = 60.0
LONGEST_WAIT_S = 3600.0
"""GitHub's own windows last an hour; a header with more is a mistake or comes from a wrong clock."""

_SECRET = re.compile(
    r"(?i:bearer)\s+[^\s'\"]+"
    r"|(?:gh[a-z]_|github_pat_)[A-Za-z0-9._-]+"
    r"|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_-]+\.?[A-Za-z0-9_-]*"
)
_SECONDARY = re.compile(r"(?i)secondary rate limit|abuse|rate limit exceeded")
_DIGITS = re.compile(r"[0-9]{1,12}")


def error_from_response(request: Request, response: Response, now: datetime) -> OutsideFault | None:
    """Return the error, or None for a success; a 304 is one when an ETag was sent."""
    status = response.status
    if 200 <= status < 300 or (status == 304 and request.etag is not None):
        return None
    detail = _detail(request, response)
    wait_s = _limit_wait_s(response, now)
    if wait_s is not None:
        used_up = header_number(response.headers, "x-ratelimit-remaining") == 0
        held_by = HeldBy.HOUR if used_up else HeldBy.SECONDARY
        return OutsideLimited(detail, retry_after_s=wait_s, held_by=held_by)
    # A proxy answers 408 after a time-out; whether the request arrived is as uncertain as after a 5xx.
    if status >= 500 or status == 408:
        return OutsideUnsure(detail)
    return OutsideRefused(detail, status=status)


def readable(text: str) -> str:
    """Make GitHub's text safe for an error: no tokens, no control or direction marks, a limited length."""
    # Cut before the search to bound its work (a cut token still has its prefix) and again after it.
    plain = _SECRET.sub("[secret]", text[: 4 * MESSAGE_CHARS])
    plain = "".join(char if char.isprintable() else " " for char in plain)
    return plain if len(plain) <= MESSAGE_CHARS else plain[: MESSAGE_CHARS - 1] + "…"


_EXPLAINED = {
    301: "the repository has moved",
    302: "the repository has moved",
    307: "the repository has moved",
    308: "the repository has moved",
    401: "the token is not accepted",
    403: "the App lacks a permission",
    404: "not there, or the App is not installed on it",
}


def _detail(request: Request, response: Response) -> str:
    reason = readable(_message(response)) or _EXPLAINED.get(response.status, "no reason given")
    return f"GitHub answered {response.status} to {request.method} {readable(request.path)}: {reason}"


class _Message(msgspec.Struct):
    message: str = ""


def _message(response: Response) -> str:
    try:
        return msgspec.json.decode(response.body, type=_Message).message
    except (ValueError, RecursionError):
        return ""


# Limits


def _limit_wait_s(response: Response, now: datetime) -> float | None:
    if response.status not in {403, 429}:
        return None
    waits = (rule(response, now) for rule in _LIMIT_RULES)
    first = next((wait_s for wait_s in waits if wait_s is not None), None)
    return None if first is None else min(max(first, 1.0), LONGEST_WAIT_S)


def _retry_after_header(response: Response, _: datetime) -> float | None:
    seconds = header_number(response.headers, "retry-after")
    return None if seconds is None else float(seconds)


def _hour_exhausted(response: Response, now: datetime) -> float | None:
    if header_number(response.headers, "x-ratelimit-remaining") != 0:
        return None
    reset = header_number(response.headers, "x-ratelimit-reset")
    return SECONDARY_WAIT_S if reset is None else reset - now.timestamp()


def _too_many(response: Response, _: datetime) -> float | None:
    return SECONDARY_WAIT_S if response.status == 429 else None


def _secondary_limit(response: Response, _: datetime) -> float | None:
    # A secondary limit may be a bare 403; only its message distinguishes it from a missing permission.
    return SECONDARY_WAIT_S if _SECONDARY.search(_message(response)) else None


_LIMIT_RULES: tuple[Callable[[Response, datetime], float | None], ...] = (
    _retry_after_header,
    _hour_exhausted,
    _too_many,
    _secondary_limit,
)


def header_number(headers: Mapping[str, str], name: str) -> int | None:
    text = headers.get(name, "")
    return int(text) if _DIGITS.fullmatch(text) else None
