"""The relay asked what who joins must know; and where it does not tell, why not.

What it tells ends up in files that send tokens: it is asked at the address that was named, and reports go to no other
host than that.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import typer

from crcr.cli.http_client import LOOPBACK
from crcr.cli.printing import escape_unprintable
from crcr.decide.model import RepoName, is_repo_name

_PATIENCE_S = 10.0
_MOST_BYTES = 65_536
_CALLBACK = "/github/callback"


@dataclass(frozen=True, slots=True)
class OnboardingFacts:
    """What the relay tells those who join."""

    url: str
    upstreams: tuple[RepoName, ...]
    audience: str | None
    app_url: str | None


@dataclass(frozen=True, slots=True)
class NoOnboardingFacts:
    """No relay told anything at that address."""

    why: str
    answers: bool = True
    """Whether somebody is there at all."""


def fetch_onboarding_facts(url: str) -> OnboardingFacts | NoOnboardingFacts:
    found = _ask(url)
    if not isinstance(found, NoOnboardingFacts):
        return _told(url, found)
    if not found.answers:
        return found
    if meant := next((each for each in _above(url) if not isinstance(_ask(each), NoOnboardingFacts)), None):
        return NoOnboardingFacts(
            f"{url} is not the address of the relay: that is {meant}; say --relay {meant}"
        )
    return found


def _ask(url: str) -> dict[str, Any] | NoOnboardingFacts:
    import httpx

    from crcr.cli.http_client import open_client

    try:
        with open_client(url, timeout=_PATIENCE_S) as http:
            answer = http.get(f"{url}/api/v1/onboarding", headers={"Accept": "application/json"})
    except (httpx.HTTPError, httpx.InvalidURL) as fault:
        reason = escape_unprintable(str(fault)[:200]) or type(fault).__name__
        return NoOnboardingFacts(f"{url} cannot be reached ({reason})", answers=False)
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        return NoOnboardingFacts(f"{url} answers only who is signed in ({answer.status_code})")
    found = _json(answer.content) if answer.status_code == httpx.codes.OK else None
    if isinstance(found, dict) and (_upstreams(found) or _text(found.get("audience"))):
        return found
    return NoOnboardingFacts(f"{url} does not answer like a relay ({answer.status_code})")


def _json(content: bytes) -> object:
    import json

    try:
        return json.loads(content) if len(content) <= _MOST_BYTES else None
    except (ValueError, RecursionError):
        return None


def _above(url: str) -> Iterator[str]:
    """The addresses that a page's own address may have been meant for, up to the bare host."""
    parts = urlsplit(url)
    path = parts.path.rstrip("/")
    while path:
        path = path.rpartition("/")[0]
        yield f"{parts.scheme}://{parts.netloc}{path}"


def _told(url: str, found: dict[str, Any]) -> OnboardingFacts:
    return OnboardingFacts(
        url=_own_address(url, _text(found.get("callback_url")) or ""),
        upstreams=_upstreams(found),
        audience=_text(found.get("audience")),
        app_url=_text(found.get("app_url")),
    )


def _upstreams(found: dict[str, Any]) -> tuple[RepoName, ...]:
    names = found.get("upstreams")
    listed = [each for each in names if isinstance(each, str)] if isinstance(names, list) else []
    return tuple(RepoName(each) for each in listed if is_repo_name(each))


def _own_address(url: str, callback_url: str) -> str:
    """Where the relay wants its reports; a person must have named that host."""
    if not callback_url.endswith(_CALLBACK):
        return url
    own = callback_url.removesuffix(_CALLBACK)
    if not same_host(own, url):
        raise typer.BadParameter(
            f"{url} wants reports to be sent to another host: {escape_unprintable(own[:200])!r}. "
            f"If that is the relay's own address, name it with --relay; nothing was written",
            param_hint="--relay",
        )
    return own


def same_host(url: str, other: str) -> bool:
    """Whether both name the same host; all names of this machine are one."""
    return (host := _host(url)) is not None and host == _host(other)


def _host(url: str) -> str | None:
    """The host's name; all names of this machine are one."""
    try:
        name = urlsplit(url).hostname
    except ValueError:
        return None
    return "localhost" if name in LOOPBACK else name


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
