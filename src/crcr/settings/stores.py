"""Settings of the stores: where the data is, what replicas share, and how long things are kept."""

from pathlib import Path
from typing import Annotated

from pydantic import BaseModel

from crcr.settings.readers import locations, service_urls, values
from crcr.settings.readers.locations import PostgresSetting, SqliteSetting
from crcr.settings.readers.service_urls import ServiceUrl
from crcr.settings.setting import FROZEN, Setting


class StoreSettings(BaseModel):
    model_config = FROZEN

    database: Annotated[
        SqliteSetting | PostgresSetting,
        Setting(
            "DATABASE_URL",
            "database_url",
            locations.database,
            "where the data is kept: `sqlite:///path`, or for several processes "
            "`postgresql://user:password@host:5432/name` (`?sslmode=verify-full`, `?host=/folder` for a socket)",
            default="sqlite:///crcr.db",
            secret=True,
        ),
    ]
    database_pool: Annotated[
        int,
        Setting(
            "DATABASE_POOL",
            "database_pool",
            values.integer(4, 500),
            "connections to PostgreSQL that one process opens at most, half of them for writing; one more listens",
            default="10",
        ),
    ]
    database_ca: Annotated[
        Path | None,
        Setting(
            "DATABASE_CA",
            "database_ca",
            service_urls.ca_file,
            "PEM file with the certificates that prove the PostgreSQL server; not set: as `sslmode` says",
        ),
    ] = None
    redis_url: Annotated[
        ServiceUrl | None,
        Setting(
            "REDIS_URL",
            "redis_url",
            service_urls.redis_url,
            "Redis, for limits, wake-ups and caches shared by several processes: `redis://[:password@]host:port/number`, "
            "or `rediss://…` with TLS; not set: each process keeps its own",
            secret=True,
        ),
    ] = None
    redis_ca: Annotated[
        Path | None,
        Setting(
            "REDIS_CA",
            "redis_ca",
            service_urls.ca_file,
            "PEM file with the certificates that prove a `rediss://` server; not set: those of the system",
        ),
    ] = None
    clickhouse_url: Annotated[
        ServiceUrl | None,
        Setting(
            "CLICKHOUSE_URL",
            "clickhouse_url",
            service_urls.clickhouse_url,
            "ClickHouse, which history is fed to and read from: `clickhouse://user:password@host:8123/database`, "
            "`clickhouses://…` with TLS (port 8443), or `chdb:///folder` in this process; not set: the database answers",
            secret=True,
        ),
    ] = None
    clickhouse_ca: Annotated[
        Path | None,
        Setting(
            "CLICKHOUSE_CA",
            "clickhouse_ca",
            service_urls.ca_file,
            "PEM file with the certificates that prove a `clickhouses://` server; not set: those of the system",
        ),
    ] = None
    clickhouse_keep_days: Annotated[
        int | None,
        Setting(
            "CLICKHOUSE_KEEP_DAYS",
            "clickhouse_keep_days",
            values.integer(100, 36_500),
            "days that ClickHouse keeps results; at least 100, because pages look back 90; not set: for ever",
        ),
    ] = None
    keep_bodies_days: Annotated[
        int,
        Setting(
            "KEEP_BODIES_DAYS",
            "keep_bodies_days",
            values.integer(1, 3650),
            "days that the bodies of webhooks are kept for replay",
            default="30",
        ),
    ]
    keep_jobs_days: Annotated[
        int,
        Setting(
            "KEEP_JOBS_DAYS",
            "keep_jobs_days",
            values.integer_or_zero(100, 36500),
            "days that deliveries are kept with their dispatches, runs and jobs, and other results; 100 or more, since "
            "pages look back 90; 0: for ever. Figures are kept for ever",
            default="400",
        ),
    ]
    keep_effects_days: Annotated[
        int,
        Setting(
            "KEEP_EFFECTS_DAYS",
            "keep_effects_days",
            values.integer(1, 3650),
            "days that effects are kept after they were done or cancelled; parked ones stay",
            default="7",
        ),
    ]
    keep_audit_days: Annotated[
        int,
        Setting(
            "KEEP_AUDIT_DAYS",
            "keep_audit_days",
            values.integer_or_zero(30, 36500),
            "days that the audit log is kept; 0: for ever",
            default="0",
        ),
    ]
