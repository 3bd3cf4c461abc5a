"""Fetches the onboarding facts from the relay, with the reason when they are missing.

The facts end up in files that send tokens: they are fetched only from the given address, and reports may go only to the
same host.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlsplit

import typer

from crcr.cli.http_client import LOOPBACK, AnswerTooLarge, HttpClient, HttpError, HttpResponse
from crcr.cli.printing import escape_unprintable
from crcr.decide.model import RepoName, is_repo_name

_TIMEOUT_S = 10.0
_MAX_BYTES = 65_536
_CALLBACK = "/github/callback"


@dataclass(frozen=True, slots=True)
class OnboardingFacts:
    """What the relay publishes for new downstreams."""

    url: str
    upstreams: tuple[RepoName, ...]
    audience: str | None
    app_url: str | None


@dataclass(frozen=True, slots=True)
class NoOnboardingFacts:
    """No facts at that address, and why."""

    why: str
    answers: bool = True
    """Whether a server answers there at all."""


def fetch_onboarding_facts(url: str) -> OnboardingFacts | NoOnboardingFacts:
    answer = _fetch(url)
    if not isinstance(answer, NoOnboardingFacts):
        return _parse_facts(url, answer)
    if not answer.answers:
        return answer
    if relay_url := next(
        (parent for parent in _parents(url) if not isinstance(_fetch(parent), NoOnboardingFacts)), None
    ):
        return NoOnboardingFacts(f"{url} is not the relay's address; pass --relay {relay_url}")
    return answer


def _fetch(url: str) -> dict[str, Any] | NoOnboardingFacts:
    http = HttpClient(url, timeout_s=_TIMEOUT_S, most_bytes=_MAX_BYTES)
    try:
        answer = http.get("/api/v1/onboarding", {"Accept": "application/json"})
    except AnswerTooLarge as fault:
        return NoOnboardingFacts(f"{url} is not a relay ({fault.detail})")
    except HttpError as fault:
        reason = escape_unprintable(fault.detail)
        return NoOnboardingFacts(f"{url} cannot be reached ({reason})", answers=False)
    if answer.status_code in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return NoOnboardingFacts(f"{url} requires a login ({answer.status_code})")
    facts = _read_json(answer) if answer.status_code == HTTPStatus.OK else None
    if isinstance(facts, dict) and (_upstreams(facts) or _text(facts.get("audience"))):
        return facts
    return NoOnboardingFacts(f"{url} is not a relay ({answer.status_code})")


def _read_json(answer: HttpResponse) -> object:
    try:
        return answer.json()
    except (ValueError, RecursionError):
        return None


def _parents(url: str) -> Iterator[str]:
    """Yield the parent addresses of a page's address, up to the bare host."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    while path:
        path = path.rpartition("/")[0]
        yield f"{parts.scheme}://{parts.netloc}{path}"


def _parse_facts(url: str, facts: dict[str, Any]) -> OnboardingFacts:
    return OnboardingFacts(
        url=_own_address(url, _text(facts.get("callback_url")) or ""),
        upstreams=_upstreams(facts),
        audience=_text(facts.get("audience")),
        app_url=_text(facts.get("app_url")),
    )


def _upstreams(facts: dict[str, Any]) -> tuple[RepoName, ...]:
    names = facts.get("upstreams")
    texts = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
    return tuple(RepoName(name) for name in texts if is_repo_name(name))


def _own_address(url: str, callback_url: str) -> str:
    """Return the relay's own address for reports; it must be on the given host."""
    if not callback_url.endswith(_CALLBACK):
        return url
    own = callback_url.removesuffix(_CALLBACK)
    if not same_host(own, url):
        raise typer.BadParameter(
            f"{url} sends reports to another host: {escape_unprintable(own[:200])!r}. "
            f"If that is the relay's own address, pass it as --relay. Nothing was written",
            param_hint="--relay",
        )
    return own


def same_host(url: str, other: str) -> bool:
    """Whether both name the same host; all names of this machine count as one."""
    return (host := _host(url)) is not None and host == _host(other)


def _host(url: str) -> str | None:
    """Return the host name; all names of this machine count as one."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return None
    return "localhost" if name in LOOPBACK else name


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
