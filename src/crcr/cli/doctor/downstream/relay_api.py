"""The relay's API, as the doctor uses it: the client, and tolerant parsing of its answers.

Any server may answer at that address, so no answer may end in a traceback. The token goes only to the named relay, never
after a redirect, and over plain http only on this machine.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode, urlsplit

import msgspec
import typer

from crcr import __version__
from crcr.cli.http_client import Exchange, HttpClient, HttpError, HttpResponse, is_private_connection
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
    """Time limit of the test; None: no test."""
    waits: bool = False
    """Whether to wait until GitHub can be asked again."""


def parse_relay_url(text: str) -> str:
    try:
        parts = urlsplit(text.strip())
        has_host = parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        has_host = None
    if not has_host or parts.scheme not in {"http", "https"} or parts.query or parts.username:
        raise typer.BadParameter(f"{text!r} is not an address such as https://relay.example.org")
    return text.strip().rstrip("/")


class RelayClient:
    """The relay's API for one downstream."""

    def __init__(self, request: DownstreamRequest, *, exchange: Exchange | None = None) -> None:
        self.request = request
        self.http = HttpClient(
            request.url,
            timeout_s=_TIMEOUT_S,
            exchange=exchange,
            headers={"User-Agent": f"crcr-doctor/{__version__}", "Accept": "application/json"},
        )
        self._reads_with_token = False

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

    def read(self, path: str) -> HttpResponse:
        """Try without the token first: it may be valid for the test only."""
        answer = self._send("GET", path, with_token=self._reads_with_token)
        if self._reads_with_token or self.request.token is None or not _needs_token(answer):
            return answer
        second = self._send("GET", path, with_token=True)
        self._reads_with_token = second.is_success
        return second if second.is_success else answer

    def pin(self) -> str | None:
        """Return how workflows pin this relay; None when it does not say, or names another host."""
        try:
            answer = self.read("onboarding")
        except HttpError:
            return None
        facts = json_object(answer) if answer.is_success else {}
        url, audience = facts.get("callback_url"), facts.get("audience")
        if not isinstance(url, str) or not isinstance(audience, str) or not audience.isprintable():
            return None
        own = url.removesuffix(_CALLBACK)
        if any(address_problems("it", own)) or not same_host(own, self.request.url):
            return None
        return relay_pin(own, audience)

    def post(self, path: str, *, with_token: bool | None = None) -> HttpResponse:
        return self._send(
            "POST", path, with_token=self._reads_with_token if with_token is None else with_token
        )

    def _send(self, method: str, path: str, *, with_token: bool) -> HttpResponse:
        headers: Mapping[str, str] = {}
        if with_token and self.request.token and self.sends_tokens:
            headers = {"Authorization": f"Bearer {self.request.token}"}
        return self.http.request(method, self.address(path), headers)


def _needs_token(answer: HttpResponse) -> bool:
    if answer.status_code in {401, 404}:
        return True
    return answer.is_success and json_object(answer).get("listed") is False


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """A job that a test dispatch started."""

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


def json_object(answer: HttpResponse) -> dict[str, Any]:
    """Return the answer's JSON object; an empty one when it is not an object."""
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def parse_findings(answer: HttpResponse) -> tuple[SetupFinding, ...] | None:
    """Return the findings; None when the answer is unreadable."""
    items = json_object(answer).get("findings")
    if not isinstance(items, list):
        return None
    findings = [_finding(finding) for finding in items]
    return tuple(finding for finding in findings if finding)


def _finding(item: Any) -> SetupFinding | None:
    """Return None for a finding that is unreadable: a newer relay may send states that this release does not know."""
    try:
        hint = item.get("hint")
        return SetupFinding(
            str(item["name"]), State(item["state"]), str(item["text"]), str(hint) if hint else None
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def parse_delivery_id(answer: HttpResponse) -> str | None:
    """Return the test's delivery if it has the form of an id, because it becomes part of a path."""
    delivery = json_object(answer).get("delivery")
    return delivery if isinstance(delivery, str) and _ID.fullmatch(delivery) else None


def parse_dispatch(answer: HttpResponse) -> DispatchProgress | None:
    """Return the test's progress; None when the answer is unreadable."""
    try:
        delivery = msgspec.json.decode(answer.content, type=_Delivery)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return next(iter(delivery.dispatches), DispatchProgress())


def parse_refusals(answer: HttpResponse) -> tuple[RecentRefusal, ...]:
    """Return the refusals; none when the answer is unreadable."""
    try:
        return msgspec.json.decode(answer.content, type=_Refusals).refusals
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ()


def is_not_before(at: str, began: str | None) -> bool:
    """Compare two times of the relay; False when one is unreadable."""
    try:
        return datetime.fromisoformat(at) >= datetime.fromisoformat(began or "")
    except (ValueError, TypeError):
        return False


def unreadable_finding(name: str) -> SetupFinding:
    return problem(
        name,
        "The relay's answer is unreadable.",
        "check that this is the relay's address and the same release; if so, tell the operator",
    )


def refused_finding(name: str, answer: HttpResponse) -> SetupFinding:
    error = json_object(answer).get("error")
    details = error if isinstance(error, dict) else {}
    detail = str(details.get("detail") or f"it answered {answer.status_code}")
    if answer.status_code == HTTPStatus.TOO_MANY_REQUESTS:
        return unknown(
            name,
            f"The relay's rate limit is reached: {detail}",
            f"try again in {answer.headers.get('retry-after', 'some')} s",
        )
    hint = str(details.get("hint") or "check that this is the relay's address and the same release")
    if answer.status_code == HTTPStatus.UNAUTHORIZED and name != "test":
        hint = f"this relay requires a token: pass --token or set CRCR_TOKEN ({hint})"
    return problem(name, f"The relay refused: {detail}", hint)


def no_answer_finding(name: str, error: HttpError) -> SetupFinding:
    return problem(
        name,
        f"The relay did not answer ({error.detail}).",
        "try again; if it persists, tell the operator",
    )
