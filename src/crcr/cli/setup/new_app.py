"""The App's registration at GitHub: addresses of a GitHub, the conversion of the manifest's code, and what it returns.

The code is as good as the App's key, and is good once within an hour. Neither it nor what it returns is printed or logged.
"""

import time
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Self
from urllib.parse import quote, urlencode, urlsplit

from crcr import __version__
from crcr.cli.http_client import ConnectionFailed, HttpClient, HttpError, HttpResponse
from crcr.cli.printing import escape_unprintable
from crcr.errors import NotPossible, OutsideFault

CODE_LIFE_S = 3600
_PUBLIC = "github.com"
_RESIDENCE = ".ghe.com"
"""Enterprises with data residency have addresses like github.com's, each below a name of its own."""
_TIMEOUT_S = 20.0
_TRIES = 4
_MAX_BYTES = 256 * 1024
_AGAIN = "run `crcr setup` again; if GitHub already lists the new App, delete it there first"


@dataclass(frozen=True, slots=True)
class GitHubAddresses:
    """Where a GitHub is: github.com, an enterprise with data residency, or a GitHub Enterprise Server."""

    web: str
    api: str

    @classmethod
    def from_web_url(cls, web_url: str) -> Self:
        parts = urlsplit(web_url)
        web, host = f"{parts.scheme}://{parts.netloc.lower()}", parts.netloc.lower()
        if host in {_PUBLIC, f"www.{_PUBLIC}"}:
            return cls(f"https://{_PUBLIC}", f"https://api.{_PUBLIC}")
        if host.endswith(_RESIDENCE):
            return cls(web, f"https://api.{host}")
        return cls(web, f"{web}/api/v3")

    @property
    def is_public(self) -> bool:
        return self.web == f"https://{_PUBLIC}"

    @property
    def issuer(self) -> str | None:
        """The issuer of its Actions' tokens; None where it is built in."""
        host = urlsplit(self.web).netloc
        if self.is_public:
            return None
        return f"https://token.actions.{host}" if host.endswith(_RESIDENCE) else f"{self.web}/_services/token"

    def form(self, organization: str | None) -> str:
        """The form that takes a manifest."""
        owner = f"/organizations/{quote(organization, safe='')}" if organization else ""
        return f"{self.web}{owner}/settings/apps/new"

    def apps(self, organization: str | None) -> str:
        """The page that lists the owner's Apps."""
        return self.form(organization).removesuffix("/new")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewApp:
    """An App that was just registered, or that the operator names."""

    app_id: str
    page: str | None = None
    """Its public page at GitHub, if it was just registered."""
    private_key: str = field(repr=False)
    webhook_secret: str = field(repr=False)


def install_url(page: str, ids: tuple[int, int] | None) -> str:
    """Return the page to install an App; `ids` are those of the upstream's owner and of the upstream, to preselect them."""
    if ids is None:
        return f"{page}/installations/new"
    chosen = urlencode({"suggested_target_id": ids[0], "repository_ids[]": ids[1]})
    return f"{page}/installations/new/permissions?{chosen}"


def convert_code(code: str, github: GitHubAddresses, organization: str | None) -> NewApp:
    """Exchange the code for the App's id, key and webhook secret."""
    path = f"/app-manifests/{quote(code, safe='')}/conversions"
    http = _open_api(github)
    for number in range(1, _TRIES + 1):
        try:
            answer = http.post(path)
        except ConnectionFailed as fault:
            if number == _TRIES:
                text = f"{github.api} cannot be reached ({escape_unprintable(fault.detail)})"
                raise OutsideFault(text, hint=_RETRY) from None
        except HttpError as fault:
            text = f"{github.api} did not answer ({escape_unprintable(fault.detail)})"
            raise OutsideFault(text, hint=_RETRY) from None
        else:
            if answer.status_code < HTTPStatus.INTERNAL_SERVER_ERROR or number == _TRIES:
                return _read_conversion(answer, github, github.apps(organization))
        time.sleep(2.0 ** (number - 1))
    raise AssertionError("the last try returns or raises")


_HEADERS = {
    "Accept": "application/vnd.github+json",
    "User-Agent": f"crcr/{__version__}",
    "X-GitHub-Api-Version": "2022-11-28",
}
_RETRY = "run `crcr setup` again within an hour: it goes on with the same code"


def _open_api(github: GitHubAddresses) -> HttpClient:
    return HttpClient(github.api, timeout_s=_TIMEOUT_S, headers=_HEADERS, most_bytes=_MAX_BYTES)


def _read_conversion(answer: HttpResponse, github: GitHubAddresses, apps: str) -> NewApp:
    status = answer.status_code
    if status == HTTPStatus.NOT_FOUND:
        raise NotPossible(
            "GitHub does not know the code of the new App (404): it was used already, or is older than an hour",
            hint=f"{_AGAIN}: {apps}",
        )
    body = _parse(answer)
    if status != HTTPStatus.CREATED:
        said = escape_unprintable(str(body.get("message", ""))[:200])
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise OutsideFault(f"GitHub answers {status}", hint=_RETRY)
        raise NotPossible(
            f"GitHub refuses the App ({status}{f': {said}' if said else ''})", hint=f"{_AGAIN}: {apps}"
        )
    match body:
        case {"id": int(app_id), "html_url": str(page), "pem": str(pem), "webhook_secret": str(secret)} if (
            page.startswith(f"{github.web}/") and pem.startswith("-----BEGIN ") and secret
        ):
            return NewApp(app_id=str(app_id), page=page, private_key=pem, webhook_secret=secret)
    raise NotPossible(
        "GitHub's answer has no key or no webhook secret for the new App", hint=f"{_AGAIN}: {apps}"
    )


def _parse(answer: HttpResponse) -> dict[str, Any]:
    try:
        body = answer.json()
    except (ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}


def find_ids(repository: str, github: GitHubAddresses) -> tuple[int, int] | None:
    """Return the ids of a public repository's owner and of itself, as anybody can read them; None for others."""
    try:
        body = _parse(_open_api(github).get(f"/repos/{repository}"))
    except HttpError:
        return None
    match body:
        case {"id": int(repository_id), "owner": {"id": int(owner_id)}}:
            return owner_id, repository_id
    return None
