"""Drivers by the settings: each missing package is named once, with what to install; no other package is required."""

from collections.abc import Callable
from pathlib import Path

import pytest

from crcr.errors import BadSettings
from crcr.settings import Settings, load_settings
from crcr.wiring.drivers import require_drivers, require_postgres
from support.data.operator_database import relay_environment

POSTGRES = {"CRCR_DATABASE_URL": "postgresql://crcr@127.0.0.1/crcr"}
REDIS = {"CRCR_REDIS_URL": "redis://127.0.0.1/0"}
CLICKHOUSE = {"CRCR_CLICKHOUSE_URL": "clickhouse://127.0.0.1:8123/crcr"}
CHDB = {"CRCR_CLICKHOUSE_URL": "chdb:///var/lib/crcr/history"}
TRACES = {"CRCR_OTEL_ENDPOINT": "http://127.0.0.1:4318"}


def settings_with(folder: Path, variables: dict[str, str]) -> Settings:
    return load_settings(config=None, environ=relay_environment(folder, **variables), cwd=folder)


def without(*missing: str) -> Callable[[str], object]:
    def find(module: str) -> object:
        return None if module in missing else object()

    return find


@pytest.mark.parametrize(
    ("variables", "missing", "expected"),
    [
        (POSTGRES, "asyncpg", "the package asyncpg, which is not installed: install crcr[postgres], or requ"),
        (POSTGRES, "greenlet", "which is not installed: install crcr[postgres], or requirements/stores.txt"),
        (REDIS, "redis", "the package redis, which is not installed: install crcr[redis], or requirements/"),
        (
            CLICKHOUSE,
            "clickhouse_connect",
            "which is not installed: install crcr[clickhouse], or requirements",
        ),
        (CHDB, "clickhouse_connect", "the package clickhouse-connect, which is not installed: install"),
        (CHDB, "chdb", "which is not installed: install crcr[chdb], or requirements/chdb.txt"),
        (TRACES, "opentelemetry.sdk", "the package opentelemetry-sdk, which is not installed: install"),
    ],
)
def test_a_missing_driver_is_named_with_what_to_install(
    tmp_path: Path, variables: dict[str, str], missing: str, expected: str
) -> None:
    loaded_settings = settings_with(tmp_path, variables)
    require_drivers(loaded_settings, without())
    with pytest.raises(BadSettings) as bad:
        require_drivers(loaded_settings, without(missing))
    [problem] = bad.value.problems
    assert expected in problem
    assert problem.startswith(next(iter(variables)))


def test_all_missing_drivers_are_reported_together(tmp_path: Path) -> None:
    with pytest.raises(BadSettings) as bad:
        require_drivers(settings_with(tmp_path, {**POSTGRES, **REDIS, **CHDB, **TRACES}), lambda _: None)
    assert len(bad.value.problems) == 7


def test_a_relay_with_only_sqlite_needs_no_driver(tmp_path: Path) -> None:
    require_drivers(settings_with(tmp_path, {}), lambda _: None)


def test_a_package_with_a_missing_parent_is_missing(tmp_path: Path) -> None:
    def find(module: str) -> object:
        raise ModuleNotFoundError(f"No module named {module.partition('.')[0]!r}")

    with pytest.raises(BadSettings, match="opentelemetry-exporter-otlp-proto-http"):
        require_drivers(settings_with(tmp_path, TRACES), find)


def test_a_move_to_postgresql_checks_its_drivers_first() -> None:
    with pytest.raises(BadSettings, match=r"moving to PostgreSQL needs the package greenlet"):
        require_postgres("moving to", without("greenlet"))
