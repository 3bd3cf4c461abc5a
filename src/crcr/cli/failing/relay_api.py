"""Reads a relay's public API, lists page by page, with back-off where the relay asks for it, and a cache.

Nothing is sent but the request: no token, no cookie. What comes back is untrusted.
"""

import json
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from time import sleep, time
from typing import Any
from urllib.parse import urlencode, urlsplit

import typer

from crcr.cli.failing.response_cache import ResponseCache
from crcr.cli.http_client import (
    AnswerTooLarge,
    Exchange,
    HttpClient,
    HttpError,
    HttpResponse,
    InvalidRequest,
    TooManyRedirects,
)
from crcr.cli.printing import escape_unprintable
from crcr.errors import OutsideFault

PAGE = 200
MOST_PAGES = 50
LONGEST_WAIT_S = 120.0
"""For all waiting of one run together."""
_MOST_TRIES = 6
_TIMEOUT_S = 20.0
_MAX_BYTES = 8 * 1024 * 1024
_BUSY = frozenset({429, 502, 503, 504})
_OWN_ADDRESS = "pass the relay's own address; an older relay may not have this"
_PAGES = ("/crcr/failing", "/crcr")


def relay_address(text: str) -> str:
    """Return the relay's own address, also for that of its pages."""
    parts = urlsplit(text.strip())
    path = parts.path.rstrip("/")
    for page in _PAGES:
        path = path.removesuffix(page)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.password:
        raise typer.BadParameter(f"{text!r} is not the address of a relay, such as https://crcr.example.com")
    return f"{parts.scheme}://{parts.netloc}{path}"


class RelayApi:
    def __init__(
        self,
        address: str,
        *,
        cache: ResponseCache | None = None,
        exchange: Exchange | None = None,
        pause: Callable[[float], None] = sleep,
        clock: Callable[[], float] = time,
    ) -> None:
        self._address = address
        self._cache = cache
        self._pause = pause
        self._clock = clock
        self._waited_s = 0.0
        self._http = HttpClient(
            timeout_s=_TIMEOUT_S,
            headers={"Accept": "application/json"},
            most_redirects=3,
            most_bytes=_MAX_BYTES,
            exchange=exchange,
        )

    def read_list(self, name: str, asked: Mapping[str, str]) -> list[dict[str, Any]]:
        """Return all items of a list, on however many pages; the list may change while it is read."""
        found: dict[tuple[str, ...], dict[str, Any]] = {}
        cursor: str | None = None
        for _ in range(MOST_PAGES):
            following = {"cursor": cursor} if cursor else {}
            page = self._read_page(name, {**asked, "limit": str(PAGE), **following})
            for item in page["items"]:
                found[tuple(str(item.get(key)) for key in ("backend", "workflow", "job"))] = item
            if page["next"] is None:
                return list(found.values())
            cursor = page["next"]
        raise OutsideFault(
            f"{self._address} has more than {MOST_PAGES * PAGE:,} items, or its pages do not end"
        )

    def read_object(self, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
        """Return one object of the API, such as a pull request."""
        url = f"{self._address}/api/v1/{name}{'?' if asked else ''}{urlencode(asked)}"
        try:
            found = json.loads(self._read_text(url))
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, dict):
            return found
        raise OutsideFault(f"{url} is not an answer of a relay", hint=_OWN_ADDRESS)

    def _read_page(self, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
        page = self.read_object(name, asked)
        match page:
            case {"items": [*items], "next": None | str()} if all(isinstance(item, dict) for item in items):
                return page
        raise OutsideFault(f"{self._address}/api/v1/{name} is not a list of a relay", hint=_OWN_ADDRESS)

    def _read_text(self, url: str) -> str:
        kept = self._cache.find(url) if self._cache else None
        if kept is not None and self._cache is not None and self._cache.is_fresh(kept):
            return kept.body
        match = {"If-None-Match": kept.etag} if kept is not None and kept.etag else {}
        answer = self._ask(url, match)
        if answer.status_code == HTTPStatus.NOT_MODIFIED and kept is not None:
            body = kept.body
        elif answer.status_code == HTTPStatus.OK:
            body = answer.content.decode("utf-8", "replace")
        else:
            raise self._refusal(answer)
        if self._cache is not None:
            self._cache.keep(url, body, answer.headers.get("etag") or (kept.etag if kept else None))
        return body

    def _ask(self, url: str, headers: Mapping[str, str]) -> HttpResponse:
        """Ask again where the relay is busy or cannot be reached, as late as it says; not forever."""
        for number in range(1, _MOST_TRIES + 1):
            try:
                answer = self._http.get(url, headers)
            except AnswerTooLarge as fault:
                raise OutsideFault(
                    f"{self._address} answers with more than {_MAX_BYTES >> 20} MiB"
                ) from fault
            except HttpError as fault:
                failure = OutsideFault(
                    f"{self._address} cannot be reached ({escape_unprintable(fault.detail)})",
                    hint="check the address, and your network",
                )
                if isinstance(fault, InvalidRequest | TooManyRedirects):
                    raise failure from fault
                self._wait(2.0 ** (number - 1), failure, last=number >= _MOST_TRIES // 2)
                continue
            if answer.status_code not in _BUSY:
                return answer
            failure = self._refusal(answer)
            asked_s = _read_retry_after(answer.headers.get("retry-after"), self._clock())
            self._wait(
                2.0 ** (number - 1) if asked_s is None else asked_s, failure, last=number == _MOST_TRIES
            )
        raise AssertionError("the last try waits or raises")

    def _wait(self, seconds: float, failure: OutsideFault, *, last: bool) -> None:
        if last or self._waited_s + seconds > LONGEST_WAIT_S:
            raise failure
        self._waited_s += seconds
        self._pause(seconds)

    def _refusal(self, answer: HttpResponse) -> OutsideFault:
        status = answer.status_code
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            return OutsideFault(
                f"{self._address} requires a login ({status})",
                hint="only relays that everybody may read can be read without a token",
            )
        told = _read_error(answer.content)
        return OutsideFault(
            f"{self._address} answers {status}{f': {told[0]}' if told else ''}",
            hint=told[1] if told else None,
        )


def _read_retry_after(text: str | None, now: float) -> float | None:
    """Return the seconds of a `Retry-After`, given as a number or as a date."""
    if text is None:
        return None
    if text.strip().isascii() and text.strip().isdigit():
        return float(text.strip()[:9])
    try:
        at = parsedate_to_datetime(text).astimezone(UTC)
    except (ValueError, TypeError, OverflowError):
        return None
    return max(0.0, (at - datetime.fromtimestamp(now, UTC)).total_seconds())


def _read_error(content: bytes) -> tuple[str, str | None] | None:
    try:
        body = json.loads(content)
    except (ValueError, RecursionError):
        return None
    match body:
        case {"error": {"detail": str(detail), **more}}:
            hint = more.get("hint")
            return detail[:500], hint[:500] if isinstance(hint, str) else None
    return None
