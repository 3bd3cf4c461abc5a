"""A downstream's side, asked of a relay: is it there, what does it find, and does a test come back.

The token goes only to the relay that was named, never after a redirect, and over plain http only on this machine.
"""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import httpx
import typer

from crcr import __version__
from crcr.cli.asking import client_for
from crcr.cli.doctor_checkout import Checkout, checkout_findings
from crcr.cli.doctor_lines import Section
from crcr.cli.doctor_reach import reached
from crcr.cli.printing import ProgressLine
from crcr.decide.model import RepoName
from crcr.join.finding import Finding, State, problem, unknown, warning

_TIMEOUT_S = 10.0
_INSPECTED_WITHIN_S = 30.0
_LOOK_EVERY_S = 0.4
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


@dataclass(frozen=True, slots=True)
class Asked:
    url: str
    repository: RepoName
    upstream: RepoName | None = None
    token: str | None = field(default=None, repr=False)
    patience: timedelta | None = None
    """How long a test may take; None: no test."""


def relay_address(text: str) -> str:
    parts = urlsplit(text.strip())
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.username:
        raise typer.BadParameter(f"{text!r} is not an address such as https://relay.example.org")
    return text.strip().rstrip("/")


def examine_downstream(asked: Asked, checkout: Checkout | None, *, shown: bool) -> Iterator[Section]:
    """Part by part: the relay, the set-up as it sees it, the files here, a test."""
    from crcr.cli.doctor_round_trip import round_trip

    local = Section("In this checkout", checkout_findings(checkout, asked.repository) if checkout else ())
    with Relay(asked) as relay:
        there = reached(relay.http, datetime.now(UTC))
        yield Section(f"The relay at {asked.url}", there)
        if any(each.state is State.PROBLEM for each in there):
            yield local
            return
        findings = setup_findings(relay, shown=shown)
        yield Section(f"The set-up of {asked.repository}", findings)
        yield local
        if asked.patience is not None:
            yield Section("The round trip", tuple(round_trip(relay, asked.patience, shown=shown)))


class Relay:
    """The relay's API, as one downstream asks it."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.http = client_for(
            asked.url,
            base_url=asked.url,
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
        parts = urlsplit(self.asked.url)
        return parts.scheme == "https" or parts.hostname in _LOOPBACK

    def address(self, path: str) -> str:
        query = (
            f"?{urlencode({'upstream': str(self.asked.upstream)}, safe='/')}" if self.asked.upstream else ""
        )
        return f"/api/v1/{path}{query}"

    def read(self, path: str) -> httpx.Response:
        """Without the token first: it may be one that only the test takes."""
        answer = self._ask("GET", path, with_token=self._reads_with_token)
        if self._reads_with_token or self.asked.token is None or not _wants_token(answer):
            return answer
        second = self._ask("GET", path, with_token=True)
        self._reads_with_token = second.is_success
        return second if second.is_success else answer

    def post(self, path: str, *, with_token: bool | None = None) -> httpx.Response:
        return self._ask(
            "POST", path, with_token=self._reads_with_token if with_token is None else with_token
        )

    def _ask(self, method: str, path: str, *, with_token: bool) -> httpx.Response:
        headers: Mapping[str, str] = {}
        if with_token and self.asked.token and self.sends_tokens:
            headers = {"Authorization": f"Bearer {self.asked.token}"}
        return self.http.request(method, self.address(path), headers=headers)


def _wants_token(answer: httpx.Response) -> bool:
    if answer.status_code in {401, 404}:
        return True
    return answer.is_success and body_of(answer).get("listed") is False


def setup_findings(relay: Relay, *, shown: bool) -> tuple[Finding, ...]:
    path = f"setup/{relay.asked.repository}"
    try:
        first = relay.read(path)
        if not first.is_success:
            return (refused("set-up", first),)
        if not body_of(first).get("listed"):
            return _findings(first)
        asked = relay.post(path)
        answer, late = _inspected(relay, path, shown=shown)
    except httpx.HTTPError as error:
        return (lost("set-up", error),)
    findings = _findings(answer)
    if not asked.is_success:
        return (*findings, refused("inspection", asked))
    return (*findings, late) if late else findings


def _inspected(relay: Relay, path: str, *, shown: bool) -> tuple[httpx.Response, Finding | None]:
    """Wait until GitHub was asked; what was known before is told all the same."""
    until = time.monotonic() + _INSPECTED_WITHIN_S
    with ProgressLine(shown=shown) as progress:
        while True:
            answer = relay.read(path)
            if not answer.is_success or not body_of(answer).get("being_inspected"):
                return answer, None
            if time.monotonic() >= until:
                break
            progress.show("the relay asks GitHub …", final=False)
            time.sleep(_LOOK_EVERY_S)
    words = f"The relay has not looked at GitHub within {_INSPECTED_WITHIN_S:.0f} s."
    return answer, warning(
        "inspection", words, "its worker may be busy or away: ask the operator, or try again"
    )


def _findings(answer: httpx.Response) -> tuple[Finding, ...]:
    if not answer.is_success:
        return (refused("set-up", answer),)
    found = [_finding(each) for each in body_of(answer).get("findings", [])]
    return tuple(each for each in found if each)


def _finding(told: Any) -> Finding | None:
    """A newer relay may say more than we know of; what cannot be read is left out."""
    try:
        hint = told.get("hint")
        return Finding(
            str(told["name"]), State(told["state"]), str(told["text"]), str(hint) if hint else None
        )
    except (AttributeError, KeyError, ValueError):
        return None


def body_of(answer: httpx.Response) -> dict[str, Any]:
    try:
        found = answer.json()
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def refused(name: str, answer: httpx.Response) -> Finding:
    error = body_of(answer).get("error")
    told = error if isinstance(error, dict) else {}
    detail = str(told.get("detail") or f"it answered {answer.status_code}")
    if answer.status_code == 429:
        return unknown(
            name,
            f"The relay asks to wait: {detail}",
            f"again in {answer.headers.get('retry-after', 'some')} s",
        )
    hint = str(told.get("hint") or "is this the relay's own address, and of this release?")
    if answer.status_code == 401 and name != "test":
        hint = f"this relay shows its pages only to who is known: give --token or CRCR_TOKEN ({hint})"
    return problem(name, f"The relay refused: {detail}", hint)


def lost(name: str, error: httpx.HTTPError) -> Finding:
    return problem(
        name,
        f"The relay did not answer ({type(error).__name__}).",
        "try again; if it lasts, tell the operator",
    )
