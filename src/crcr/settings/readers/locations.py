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
from crcr.settings.readers import single_values
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
    location: FileLocation
    web: str
    """Scheme and host of the address; it must belong to the configured API."""


AllowlistSource = AllowlistFile | AllowlistOnGitHub


@dataclass(frozen=True, slots=True)
class SqliteSetting:
    path: Path

    @property
    def display_name(self) -> str:
        return str(self.path)


@dataclass(frozen=True, slots=True)
class PostgresSetting:
    url: ServiceUrl

    @property
    def display_name(self) -> str:
        return self.url.display_name


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


def allowlist_source(raw: RawValue) -> AllowlistSource:
    value = single_values.text(raw)
    if "://" in value:
        return _github_source(value)
    path = raw.folder / value
    if not path.is_file():
        raise InvalidValue(f"names {single_values.quote(str(path))}, but there is no such file.")
    return AllowlistFile(path)


def _github_source(value: str) -> AllowlistOnGitHub:
    parts = single_values.split_url(value)
    match = _BLOB.fullmatch(parts.path) if parts else None
    if parts is None or match is None or parts.scheme not in {"http", "https"} or parts.username is not None:
        raise InvalidValue(f"must be a file's path or an address such as {_FORM}.")
    if parts.query or parts.fragment:
        raise InvalidValue("must be the address of the file alone: remove what follows ? or #.")
    name = f"{match['owner']}/{match['repo']}"
    path = unquote(match["path"])
    if not is_repo_name(name) or {".", "..", ""} & set(path.split("/")):
        raise InvalidValue(f"must be a file's path or an address such as {_FORM}.")
    location = FileLocation(RepoName(name), unquote(match["ref"]), path)
    return AllowlistOnGitHub(location, f"{parts.scheme}://{parts.netloc.lower()}")


def web_url(api_url: str) -> str:
    """Return where the pages of a GitHub are, from its API's address (`https://HOST/api/v3` on a GHES)."""
    parts = urlsplit(api_url)
    netloc = parts.netloc.lower()
    return f"{parts.scheme}://{netloc if parts.path else netloc.removeprefix('api.')}"


def database(raw: RawValue) -> SqliteSetting | PostgresSetting:
    value = single_values.text(raw)
    if value.startswith(("postgresql:", "postgres:", "postgresql+")):
        return PostgresSetting(postgres_url(value))
    return sqlite_file(raw, " or postgresql://user@host/name")


def replica(raw: RawValue) -> PostgresSetting:
    return PostgresSetting(postgres_url(single_values.text(raw)))


def sqlite_file(raw: RawValue, otherwise: str = "") -> SqliteSetting:
    """Read `sqlite:///path`; `otherwise` is the alternative named in the error."""
    value = single_values.text(raw)
    name = value.removeprefix(_SQLITE)
    if not value.startswith(_SQLITE) or name in {"", ":memory:"} or "?" in name:
        raise InvalidValue(f"must be sqlite:///path (four slashes for a path from the root){otherwise}.")
    path = raw.folder / name
    if path.is_dir() or not path.parent.is_dir():
        raise InvalidValue("must name a file in a folder that exists.")
    return SqliteSetting(path)


def issuers(raw: RawValue) -> tuple[IssuerSetting, ...]:
    tables = _json_list(raw.value) if isinstance(raw.value, str) else raw.value
    if not isinstance(tables, list):
        raise InvalidValue('must be a list such as [{"issuer": "https://…", "kind": "github"}].')
    settings = tuple(_issuer(raw, number, table) for number, table in enumerate(tables, start=1))
    if len({issuer.issuer for issuer in settings}) < len(settings):
        raise InvalidValue("names an issuer twice; keep one of them.")
    return settings


def _json_list(value: str) -> object:
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidValue(f"must be JSON: {error}.") from None


def _issuer(raw: RawValue, number: int, table: object) -> IssuerSetting:
    allowed = {"issuer", "kind", "jwks_url", "reads"}
    if not isinstance(table, dict) or not set(table) <= allowed or not {"issuer", "kind"} <= set(table):
        raise InvalidValue(
            f"(number {number}) must have issuer and kind, may have jwks_url and reads, and nothing else."
        )
    try:
        kind = IssuerKind(str(table["kind"]))
    except ValueError:
        raise InvalidValue(f"(number {number}): kind must be one of {', '.join(IssuerKind)}.") from None
    try:
        addresses = [
            single_values.safe_url(RawValue(table[name], name, raw.folder))
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
    texts = isinstance(value, dict) and all(isinstance(text, str) and text for text in value.values())
    if not isinstance(value, dict) or not texts or not set(value) <= _READ:
        raise InvalidValue(
            f"(number {number}): reads must name claims for some of {', '.join(sorted(_READ))}."
        )
    return value


def tokens(command: str) -> Callable[[RawValue], tuple[TokenSetting, ...]]:
    """Read `name=sha256:…` as a comma list, one per line, a list or a table; `command` makes such a line."""

    def read(raw: RawValue) -> tuple[TokenSetting, ...]:
        settings = tuple(
            _token(name.strip(), digest.strip().lower(), command) for name, digest in _pairs(raw)
        )
        if len({token.name.lower() for token in settings}) < len(settings):
            raise InvalidValue("gives a name twice; every token has a name of its own.")
        if len({token.digest for token in settings}) < len(settings):
            raise InvalidValue("gives one token two names; make a token for each.")
        return settings

    return read


def _pairs(raw: RawValue) -> list[tuple[str, str]]:
    value = raw.value
    if isinstance(value, dict) and all(isinstance(digest, str) for digest in value.values()):
        return list(value.items())
    if isinstance(value, str):
        value = re.split(r"[,\n]", value)
    if not isinstance(value, list) or not all(isinstance(pair, str) for pair in value):
        raise InvalidValue("must be a list of name=sha256:…, or a table of names.")
    pairs = [pair.strip() for pair in value if pair.strip()]
    if not pairs:
        raise InvalidValue("must name at least one.")
    return [(name, digest) for name, _, digest in (pair.partition("=") for pair in pairs)]


def _token(name: str, digest: str, command: str) -> TokenSetting:
    # Neither part is shown: if they are swapped, one of them is the token itself.
    if not _TOKEN_NAME.fullmatch(name):
        raise InvalidValue("needs names of 1 to 64 letters, digits and . _ @ -, written name=sha256:….")
    if not _DIGEST.fullmatch(digest):
        raise InvalidValue(
            f"takes a token's hash, never the token: run `{command}` and use the line it prints."
        )
    return TokenSetting(name, digest.removeprefix("sha256:"))
