"""Readers of the allowlist's source, the database, token issuers, and tokens of administrators and readers.

A GitHub address names branch and path in one line. The first part after `blob/` is the branch; a branch that
holds a slash is written with %2F (`blob/release%2F2.0/allowlist.yml`), because nothing else tells them apart.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from crcr.decide.github.requests_and_answers import FileLocation
from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.oidc.identity import IssuerKind
from crcr.settings.readers import values
from crcr.settings.readers.service_urls import ServiceUrl, postgres_url
from crcr.settings.setting import InvalidValue, RawValue

_BLOB = re.compile(
    r"/(?P<owner>[^/]+)/(?P<repo>[^/]+)/blob/(?P<ref>[^/]+)/(?P<path>[^/]+(?:/[^/]+)*)", re.ASCII
)
_FORM = "https://github.com/owner/repo/blob/branch/path"
_SQLITE = "sqlite:///"
_TOKEN_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_READ = frozenset({"run_id", "run_attempt", "job_id", "workflow"})
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class AllowlistFile:
    path: Path


@dataclass(frozen=True, slots=True)
class AllowlistOnGitHub:
    place: FileLocation
    web: str
    """Scheme and host of the address; it must belong to the configured API."""


AllowlistSource = AllowlistFile | AllowlistOnGitHub


@dataclass(frozen=True, slots=True)
class SqliteSetting:
    path: Path

    @property
    def place(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class PostgresSetting:
    url: ServiceUrl

    @property
    def place(self) -> str:
        return self.url.place


@dataclass(frozen=True, slots=True)
class IssuerSetting:
    issuer: str
    kind: IssuerKind
    jwks_url: str | None = None
    reads: Mapping[str, str] = field(default_factory=dict)
    """For a generic issuer: the claims that hold run_id, run_attempt, job_id and workflow."""


@dataclass(frozen=True, slots=True)
class TokenSetting:
    """A named token, stored as its SHA-256."""

    name: str
    digest: str
    """64 hexadecimal digits."""


def allowlist_source(given: RawValue) -> AllowlistSource:
    value = values.text(given)
    if "://" in value:
        return _github_source(value)
    path = given.folder / value
    if not path.is_file():
        raise InvalidValue(f"names {values.quote(str(path))}, but there is no such file.")
    return AllowlistFile(path)


def _github_source(value: str) -> AllowlistOnGitHub:
    parts = values.split_url(value)
    found = _BLOB.fullmatch(parts.path) if parts else None
    if parts is None or found is None or parts.scheme not in {"http", "https"} or parts.username is not None:
        raise InvalidValue(f"must be a file's path or an address such as {_FORM}.")
    if parts.query or parts.fragment:
        raise InvalidValue("must be the address of the file alone: remove what follows ? or #.")
    name = f"{found['owner']}/{found['repo']}"
    path = unquote(found["path"])
    if not is_repo_name(name) or {".", "..", ""} & set(path.split("/")):
        raise InvalidValue(f"must be a file's path or an address such as {_FORM}.")
    place = FileLocation(RepoName(name), unquote(found["ref"]), path)
    return AllowlistOnGitHub(place, f"{parts.scheme}://{parts.netloc.lower()}")


def web_url(api_url: str) -> str:
    """Return where the pages of a GitHub are, from its API's address (`https://HOST/api/v3` on a GHES)."""
    parts = urlsplit(api_url)
    netloc = parts.netloc.lower()
    return f"{parts.scheme}://{netloc if parts.path else netloc.removeprefix('api.')}"


def database(given: RawValue) -> SqliteSetting | PostgresSetting:
    value = values.text(given)
    if value.startswith(("postgresql:", "postgres:", "postgresql+")):
        return PostgresSetting(postgres_url(value))
    return sqlite_file(given, " or postgresql://user@host/name")


def sqlite_file(given: RawValue, otherwise: str = "") -> SqliteSetting:
    """Read `sqlite:///path`; `otherwise` is the alternative named in the error."""
    value = values.text(given)
    name = value.removeprefix(_SQLITE)
    if not value.startswith(_SQLITE) or name in {"", ":memory:"} or "?" in name:
        raise InvalidValue(f"must be sqlite:///path (four slashes for a path from the root){otherwise}.")
    path = given.folder / name
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidValue("must name a file in a folder that exists.")
    return SqliteSetting(path)


def issuers(given: RawValue) -> tuple[IssuerSetting, ...]:
    tables = _json_list(given.value) if isinstance(given.value, str) else given.value
    if not isinstance(tables, list):
        raise InvalidValue('must be a list such as [{"issuer": "https://…", "kind": "github"}].')
    found = tuple(_issuer(given, number, table) for number, table in enumerate(tables, start=1))
    if len({issuer.issuer for issuer in found}) < len(found):
        raise InvalidValue("names an issuer twice; keep one of them.")
    return found


def _json_list(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidValue(f"must be JSON: {error}.") from None


def _issuer(given: RawValue, number: int, table: object) -> IssuerSetting:
    known = {"issuer", "kind", "jwks_url", "reads"}
    if not isinstance(table, dict) or not set(table) <= known or not {"issuer", "kind"} <= set(table):
        raise InvalidValue(
            f"(number {number}) must have issuer and kind, may have jwks_url and reads, and nothing else."
        )
    try:
        kind = IssuerKind(str(table["kind"]))
    except ValueError:
        raise InvalidValue(f"(number {number}): kind must be one of {', '.join(IssuerKind)}.") from None
    try:
        addresses = [
            values.safe_url(RawValue(table[name], name, given.folder))
            for name in ("issuer", "jwks_url")
            if name in table
        ]
    except InvalidValue as wrong:
        raise InvalidValue(f"(number {number}): an address {wrong}") from None
    # A token's `iss` is compared exactly, so the issuer is kept as written, including a final slash.
    keys = addresses[1] if len(addresses) > 1 else None
    return IssuerSetting(str(table["issuer"]).strip(), kind, keys, _reads(number, kind, table.get("reads")))


def _reads(number: int, kind: IssuerKind, value: object) -> Mapping[str, str]:
    if value is None:
        return {}
    if kind is not IssuerKind.GENERIC:
        raise InvalidValue(
            f"(number {number}): reads is for a generic issuer; what the others sign is known."
        )
    texts = isinstance(value, dict) and all(isinstance(each, str) and each for each in value.values())
    if not isinstance(value, dict) or not texts or not set(value) <= _READ:
        raise InvalidValue(
            f"(number {number}): reads must name claims for some of {', '.join(sorted(_READ))}."
        )
    return value


def tokens(command: str) -> Callable[[RawValue], tuple[TokenSetting, ...]]:
    """Read `name=sha256:…` as a comma list, one per line, a list or a table; `command` makes such a line."""

    def read(given: RawValue) -> tuple[TokenSetting, ...]:
        found = tuple(_token(name.strip(), digest.strip().lower(), command) for name, digest in _pairs(given))
        if len({each.name.lower() for each in found}) < len(found):
            raise InvalidValue("gives a name twice; every token has a name of its own.")
        if len({each.digest for each in found}) < len(found):
            raise InvalidValue("gives one token two names; make a token for each.")
        return found

    return read


def _pairs(given: RawValue) -> list[tuple[str, str]]:
    value = given.value
    if isinstance(value, dict) and all(isinstance(each, str) for each in value.values()):
        return list(value.items())
    if isinstance(value, str):
        value = re.split(r"[,\n]", value)
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise InvalidValue("must be a list of name=sha256:…, or a table of names.")
    written = [each.strip() for each in value if each.strip()]
    if not written:
        raise InvalidValue("must name at least one.")
    return [(name, digest) for name, _, digest in (each.partition("=") for each in written)]


def _token(name: str, digest: str, command: str) -> TokenSetting:
    # Neither part is shown: if they are swapped, one of them is the token itself.
    if not _TOKEN_NAME.fullmatch(name):
        raise InvalidValue("needs names of 1 to 64 letters, digits and . _ @ -, written name=sha256:….")
    if not _DIGEST.fullmatch(digest):
        raise InvalidValue(
            f"takes a token's hash, never the token: run `{command}` and use the line it prints."
        )
    return TokenSetting(name, digest.removeprefix("sha256:"))
