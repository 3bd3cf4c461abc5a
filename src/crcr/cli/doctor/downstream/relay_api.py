"""The relay's API, as the doctor uses it: the client, and tolerant parsing of its answers.

Any server may answer at that address, so no answer may end in a traceback. The token goes only to the named relay, never
after a redirect, and over plain http only on this machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import httpx
import msgspec
import typer

from crcr import __version__
from crcr.cli.http_client import is_private_connection, open_client
from crcr.cli.init.ask_relay import same_host
from crcr.decide.github.repository_setup import relay_pin
from crcr.decide.model import RepoName
from crcr.join.findings.finding import SetupFinding, State, problem, unknown
from crcr.join.request import address_problems

_TIMEOUT_S = 10.0
_CALLBACK = "/github/callback"
_ID = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,99}")


@dataclass(frozen=True, slots=True)
class DownstreamRequest:
    url: str
    repository: RepoName
    upstream: RepoName | None = None
    token: str | None = field(default=None, repr=False)
    patience: timedelta | None = None
    """How long a test may take; None: no test."""
    waits: bool = False
    """Somebody waits until GitHub may be asked again."""


def parse_relay_url(text: str) -> str:
    try:
        parts = urlsplit(text.strip())
        named = parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        named = None
    if not named or parts.scheme not in {"http", "https"} or parts.query or parts.username:
        raise typer.BadParameter(f"{text!r} is not an address such as https://relay.example.org")
    return text.strip().rstrip("/")


class RelayClient:
    """The relay's API, as one downstream asks it."""

    def __init__(self, request: DownstreamRequest) -> None:
        self.request = request
        self.http = open_client(
            request.url,
            base_url=request.url,
            timeout=_TIMEOUT_S,
            follow_redirects=False,
            headers={"User-Agent": f"crcr-doctor/{__version__}", "Accept": "application/json"},
        )
        self._reads_with_token = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.http.close()

    @property
    def sends_tokens(self) -> bool:
        return is_private_connection(self.request.url)

    def address(self, path: str) -> str:
        query = (
            f"?{urlencode({'upstream': str(self.request.upstream)}, safe='/')}"
            if self.request.upstream
            else ""
        )
        return f"/api/v1/{path}{query}"

    def read(self, path: str) -> httpx.Response:
        """Without the token first: it may be one that only the test takes."""
        answer = self._ask("GET", path, with_token=self._reads_with_token)
        if self._reads_with_token or self.request.token is None or not _wants_token(answer):
            return answer
        second = self._ask("GET", path, with_token=True)
        self._reads_with_token = second.is_success
        return second if second.is_success else answer

    def pin(self) -> str | None:
        """How workflows pin this relay; None where it does not say, or names another host than the one it was asked at."""
        try:
            answer = self.read("onboarding")
        except httpx.HTTPError:
            return None
        told = json_object(answer) if answer.is_success else {}
        url, audience = told.get("callback_url"), told.get("audience")
        if not isinstance(url, str) or not isinstance(audience, str) or not audience.isprintable():
            return None
        own = url.removesuffix(_CALLBACK)
        if any(address_problems("it", own)) or not same_host(own, self.request.url):
            return None
        return relay_pin(own, audience)

    def post(self, path: str, *, with_token: bool | None = None) -> httpx.Response:
        return self._ask(
            "POST", path, with_token=self._reads_with_token if with_token is None else with_token
        )

    def _ask(self, method: str, path: str, *, with_token: bool) -> httpx.Response:
        headers: Mapping[str, str] = {}
        if with_token and self.request.token and self.sends_tokens:
            headers = {"Authorization": f"Bearer {self.request.token}"}
        return self.http.request(method, self.address(path), headers=headers)


def _wants_token(answer: httpx.Response) -> bool:
    if answer.status_code in {401, 404}:
        return True
    return answer.is_success and json_object(answer).get("listed") is False


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
