"""A downstream's side, asked of a relay: is it there, what does it find, and does a test come back.

The token goes only to the relay that was named, never after a redirect, and over plain http only on this machine.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Self
from urllib.parse import urlencode, urlsplit

import httpx
import typer

from crcr import __version__
from crcr.cli.doctor.downstream.checkout import Checkout, checkout_findings
from crcr.cli.doctor.downstream.relay_answers import json_object
from crcr.cli.doctor.output import FindingSection
from crcr.cli.doctor.reachability import check_reachable
from crcr.cli.http_client import is_private_connection, open_client
from crcr.cli.init.ask_relay import same_host
from crcr.decide.github.relay_pins import relay_pin
from crcr.decide.model import RepoName
from crcr.join.findings.finding import State
from crcr.join.request import address_problems

_TIMEOUT_S = 10.0
_CALLBACK = "/github/callback"


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


def examine_downstream(
    request: DownstreamRequest, checkout: Checkout | None, *, shown: bool
) -> Iterator[FindingSection]:
    """Part by part: the relay, the set-up as it sees it, the files here, a test."""
    from crcr.cli.doctor.downstream.round_trip import run_round_trip
    from crcr.cli.doctor.downstream.setup import setup_section

    with RelayClient(request) as relay:
        there = check_reachable(relay.http, datetime.now(UTC))
        yield FindingSection(f"The relay at {request.url}", there)
        if any(each.state is State.PROBLEM for each in there):
            yield _local(checkout, request.repository)
            return
        yield setup_section(relay, shown=shown)
        yield _local(checkout, request.repository, relay.pin() if checkout else None)
        if request.patience is not None:
            yield FindingSection(
                "The round trip", tuple(run_round_trip(relay, request.patience, shown=shown))
            )


def _local(checkout: Checkout | None, repository: RepoName, pin: str | None = None) -> FindingSection:
    return FindingSection(
        "In this checkout", checkout_findings(checkout, repository, pin) if checkout else ()
    )


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
