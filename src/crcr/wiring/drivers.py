"""Checks that the packages that the settings need are installed: store drivers and tracing.

Reports all missing packages at once, with what to install, before anything is opened. No driver is imported here: the
module that uses a driver imports it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec

from crcr.errors import BadSettings
from crcr.settings import PostgresSetting, Settings

Find = Callable[[str], object]
"""Return None for a module that is not installed."""


@dataclass(frozen=True, slots=True)
class Driver:
    package: str
    module: str
    extra: str
    """The extra of crcr that brings it."""
    pinned_in: str = "stores"

    @property
    def remedy(self) -> str:
        return f"install crcr[{self.extra}], or requirements/{self.pinned_in}.txt"


_POSTGRES = (Driver("asyncpg", "asyncpg", "postgres"), Driver("greenlet", "greenlet", "postgres"))
_REDIS = (Driver("redis", "redis", "redis"),)
_CLICKHOUSE = (Driver("clickhouse-connect", "clickhouse_connect", "clickhouse"),)
_CHDB = (
    Driver("clickhouse-connect", "clickhouse_connect", "chdb", "chdb"),
    Driver("chdb", "chdb", "chdb", "chdb"),
)
_AWS = Driver("botocore", "botocore", "aws", "aws")
_TRACING = tuple(
    Driver(package, module, "tracing", "tracing")
    for package, module in (
        ("opentelemetry-sdk", "opentelemetry.sdk"),
        ("opentelemetry-exporter-otlp-proto-http", "opentelemetry.exporter.otlp.proto.http"),
    )
)


def require_drivers(settings: Settings, find: Find = find_spec) -> None:
    """Raise `BadSettings` with a line for each missing package that a setting needs."""
    _require(_wanted_drivers(settings), find)


def require_postgres(named_by: str, find: Find = find_spec) -> None:
    """Raise `BadSettings` when PostgreSQL, named outside the settings, has no driver."""
    _require(((f"{named_by} PostgreSQL", driver) for driver in _POSTGRES), find)


def require_aws(named_by: str, find: Find = find_spec) -> None:
    """Raise `BadSettings` when a command needs AWS and its driver is missing."""
    _require(iter(((named_by, _AWS),)), find)


def _require(drivers: Iterator[tuple[str, Driver]], find: Find) -> None:
    problems = [
        f"{reason} needs the package {driver.package}, which is not installed: {driver.remedy}."
        for reason, driver in drivers
        if not _is_installed(driver.module, find)
    ]
    if problems:
        raise BadSettings(problems, hint="see docs/deploy.md for the installation")


def _wanted_drivers(settings: Settings) -> Iterator[tuple[str, Driver]]:
    if isinstance(settings.database, PostgresSetting):
        yield from (("CRCR_DATABASE_URL with PostgreSQL", driver) for driver in _POSTGRES)
    if settings.redis_url is not None:
        yield from (("CRCR_REDIS_URL", driver) for driver in _REDIS)
    if settings.redis_iam is not None:
        yield "CRCR_REDIS_IAM", _AWS
    if settings.dynamodb_table is not None:
        yield "CRCR_DYNAMODB_TABLE", _AWS
    if settings.clickhouse_url is not None:
        alone = settings.clickhouse_url.get_secret_value().startswith("chdb:")
        yield from (("CRCR_CLICKHOUSE_URL", driver) for driver in (_CHDB if alone else _CLICKHOUSE))
    if settings.database_auth == "aws-iam":
        yield "CRCR_DATABASE_AUTH", _AWS
    if settings.wakeup_queue_url is not None:
        yield "CRCR_WAKEUP_QUEUE_URL", _AWS
    if settings.otel_endpoint is not None:
        yield from (("CRCR_OTEL_ENDPOINT", driver) for driver in _TRACING)


def _is_installed(module: str, find: Find) -> bool:
    try:
        return find(module) is not None
    except ModuleNotFoundError:  # its parent is missing
        return False
