"""Readers of service addresses (Redis, ClickHouse, PostgreSQL), and of CA files.

An address may contain a password, so it is a secret: no message quotes it, and `place` is the part that may be shown.
Options after a question mark are refused, because a driver would read them (`ssl_cert_reqs=none` would turn off
certificate checks).
"""

import re
from collections.abc import Callable
from pathlib import Path
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from cryptography.x509 import load_pem_x509_certificates
from pydantic import SecretStr

from crcr.settings.readers import single_values
from crcr.settings.setting import InvalidValue, RawValue

_ENCRYPTED = frozenset({"rediss", "clickhouses"})
_ENCRYPTED_MODES = frozenset({"require", "verify-ca", "verify-full"})
_MAX_CA_BYTES = 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9_]{0,64}")


class ServiceUrl(SecretStr):
    """The address of a service, with the password that it may hold."""

    @property
    def encrypted(self) -> bool:
        """Whether the address itself requires TLS."""
        modes = parse_qs(self._parts.query).get("sslmode", ())
        return self._parts.scheme in _ENCRYPTED or bool(_ENCRYPTED_MODES.intersection(modes))

    @property
    def user(self) -> str:
        return unquote(self._parts.username or "")

    @property
    def has_password(self) -> bool:
        return self._parts.password is not None

    @property
    def display_name(self) -> str:
        """The address without user and password, for display."""
        parts = self._parts
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    @property
    def signs_in_by_name(self) -> bool:
        """Whether it has a user and no password."""
        return bool(self._parts.username) and self._parts.password is None

    def secrets(self) -> tuple[str, ...]:
        """Return the texts to redact: the password as written, and decoded."""
        password = self._parts.password
        return (password, unquote(password)) if password else ()

    @property
    def _parts(self) -> SplitResult:
        return urlsplit(self.get_secret_value())


def service_url(*schemes: str, checked: Callable[[SplitResult], None]) -> Callable[[RawValue], ServiceUrl]:
    """Return a reader of addresses with these schemes; `checked` validates the part after the host."""
    forms = " or ".join(f"{scheme}://…" for scheme in schemes)

    def read(raw: RawValue) -> ServiceUrl:
        value = single_values.text(raw)
        parts = single_values.split_url(value)
        if parts is None or parts.scheme not in schemes:
            raise InvalidValue(f"must be an address such as {forms}.")
        if not parts.hostname:
            raise InvalidValue("names no host; write it after the two slashes.")
        if parts.query or parts.fragment or "?" in value or "#" in value:
            raise InvalidValue(
                "must be an address without ? and # (write them in a password as %3F and %23)."
            )
        checked(parts)
        return ServiceUrl(value)

    return read


def _database_number(parts: SplitResult) -> None:
    number = parts.path.removeprefix("/")
    if number and not (number.isascii() and number.isdigit() and len(number) <= 4):
        raise InvalidValue("must end with the number of a database (redis://host:6379/0) or without one.")


redis_url = service_url("redis", "rediss", checked=_database_number)


_CACHE = re.compile(r"(?:serverless/)?[a-z][a-z0-9-]{0,49}")


def elasticache_name(raw: RawValue) -> str:
    value = single_values.text(raw).lower()
    if not _CACHE.fullmatch(value):
        raise InvalidValue("must be the name of an ElastiCache cache, or serverless/NAME.")
    return value


_TABLE = re.compile(r"[A-Za-z0-9_.-]{3,255}")
_REGION = re.compile(r"[a-z]{2,4}(?:-[a-z]{2,12}){1,3}-[0-9]{1,2}")


def dynamodb_table(raw: RawValue) -> str:
    value = single_values.text(raw)
    if not _TABLE.fullmatch(value):
        raise InvalidValue(f"must be the name of a DynamoDB table, not {single_values.quote(value)}.")
    return value


def aws_region(raw: RawValue) -> str:
    value = single_values.text(raw)
    if not _REGION.fullmatch(value):
        raise InvalidValue(f"must be a region such as us-east-1, not {single_values.quote(value)}.")
    return value


def standard_queue(raw: RawValue) -> str:
    """Read the address of a queue of SQS; a FIFO queue refuses messages without a group, and delays of single ones."""
    value = single_values.url(raw)
    if value.endswith(".fifo"):
        raise InvalidValue("must be a standard queue, not a FIFO queue.")
    return value


_STREAM_TARGETS = ("ingest", "clickhouse")


def stream_targets(raw: RawValue) -> tuple[str, ...]:
    targets = single_values.texts(raw)
    if not set(targets) <= set(_STREAM_TARGETS):
        raise InvalidValue(f"must be any of {', '.join(_STREAM_TARGETS)}.")
    return targets


def _database_name(parts: SplitResult) -> None:
    if not _NAME.fullmatch(parts.path.removeprefix("/")):
        raise InvalidValue(
            "must end with the name of a database (clickhouse://host:8123/crcr) or without one."
        )


_clickhouse_server = service_url("clickhouse", "clickhouses", checked=_database_name)


def clickhouse_url(raw: RawValue) -> ServiceUrl:
    """Read the address of a server, or a folder for chDB, the same engine in our own process."""
    value = single_values.text(raw)
    if not value.startswith("chdb:"):
        return _clickhouse_server(raw)
    folder = value.removeprefix("chdb://")
    if not value.startswith("chdb:///") or len(folder) < 2 or "?" in folder or "#" in folder:
        raise InvalidValue("must be chdb:///folder, from the root, without ? and #.")
    return ServiceUrl(value)


_POSTGRES_OPTIONS = frozenset({"sslmode", "host", "port"})
_SSL_MODES = frozenset({"disable", "prefer", "require", "verify-ca", "verify-full"})


def postgres_url(value: str) -> ServiceUrl:
    """Read `postgresql://user:password@host:port/name`; a socket's folder is `?host=/folder`."""
    parts = single_values.split_url(value)
    if parts is None or parts.scheme not in {"postgresql", "postgres"} or parts.fragment:
        raise InvalidValue("must be an address such as postgresql://user:password@host:5432/name.")
    options = parse_qs(parts.query, keep_blank_values=True)
    if set(options) - _POSTGRES_OPTIONS:
        raise InvalidValue(
            f"may have the options {', '.join(sorted(_POSTGRES_OPTIONS))} after its ?, and no others."
        )
    if not parts.hostname and not options.get("host"):
        raise InvalidValue(
            "names no host; write it after the two slashes, or a socket's folder as ?host=/folder."
        )
    if "@" in parts.path:
        raise InvalidValue(
            "has a / in its user or password (write it there as %2F), or an @ in its name (%40)."
        )
    if not parts.path.strip("/"):
        raise InvalidValue("names no database; write it after the host: postgresql://user@host/name.")
    if not _SSL_MODES.issuperset(options.get("sslmode", ())):
        raise InvalidValue(f"may say sslmode as one of {', '.join(sorted(_SSL_MODES))}.")
    return ServiceUrl(value)


def ca_file(raw: RawValue) -> Path:
    """Read the path of a PEM file with the certificates that prove a server."""
    path = raw.folder / single_values.text(raw)
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_CA_BYTES)
    except OSError as error:
        raise InvalidValue(f"names a file that cannot be read: {error.strerror}.") from None
    try:
        load_pem_x509_certificates(content)
    except ValueError:
        raise InvalidValue("must name a PEM file with certificates (-----BEGIN CERTIFICATE-----).") from None
    return path
