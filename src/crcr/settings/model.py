"""All settings: type, names, default and meaning of each, in one declaration.

The loader assembles `upstreams`, because two variables or any number of tables can define it. No default points at a
service other than GitHub's public API.
"""

from collections.abc import Callable
from ipaddress import IPv4Network, IPv6Network
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import BaseModel, PrivateAttr, SecretStr

from crcr.decide.oidc.registration import Registration
from crcr.settings.channels import ChannelSetting, read_channels
from crcr.settings.readers import locations, registrations, service_urls, single_values
from crcr.settings.readers.locations import IssuerSetting, PostgresSetting, SqliteSetting, TokenSetting
from crcr.settings.readers.service_urls import ServiceUrl
from crcr.settings.setting import FROZEN, Setting, settings_of
from crcr.settings.upstreams import UpstreamSetting

_SHORT = 16
SHADOW_WARNING = "CRCR_SHADOW is on: nothing is dispatched, published, commented, sent or forwarded; the relay records what it would do."


class ObservabilitySettings(BaseModel):
    """Metrics port of the worker, and traces."""

    model_config = FROZEN

    metrics_port: Annotated[
        int | None,
        Setting(
            "METRICS_PORT",
            "metrics_port",
            single_values.integer(1, 65535),
            "port on `CRCR_HOST` where `crcr worker` answers `/metrics`, `/healthz` and `/readyz`; not set: nowhere "
            "(`crcr serve` has them on its own port)",
        ),
    ] = None
    otel_endpoint: Annotated[
        str | None,
        Setting(
            "OTEL_ENDPOINT",
            "otel_endpoint",
            single_values.url,
            "OpenTelemetry collector that gets traces over OTLP/HTTP (`http://127.0.0.1:4318`); needs `crcr[tracing]`; "
            "not set: no traces",
        ),
    ] = None


class StoreSettings(BaseModel):
    """The database, Redis, ClickHouse, and how long data is kept."""

    model_config = FROZEN

    database: Annotated[
        SqliteSetting | PostgresSetting,
        Setting(
            "DATABASE_URL",
            "database_url",
            locations.database,
            "the database: `sqlite:///path`, or for several processes "
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
            single_values.integer(4, 500),
            "maximum of connections to PostgreSQL per process, half of them for writing; one more receives wake-ups",
            default="10",
        ),
    ]
    database_ca: Annotated[
        Path | None,
        Setting(
            "DATABASE_CA",
            "database_ca",
            service_urls.ca_file,
            "PEM file with the certificates that prove the PostgreSQL server; not set: as `sslmode` requires",
        ),
    ] = None
    database_listen: Annotated[
        Literal["auto", "off"],
        Setting(
            "DATABASE_LISTEN",
            "database_listen",
            single_values.one_of("auto", "off"),
            "how a process learns what others have committed to PostgreSQL: by LISTEN, or, where that does not work "
            "(`auto`) or is `off`, by polling each second, as behind a connection pooler or on a hot standby",
            default="auto",
        ),
    ]
    database_pooler: Annotated[
        Literal["none", "transaction"],
        Setting(
            "DATABASE_POOLER",
            "database_pooler",
            single_values.one_of("none", "transaction"),
            "`transaction`: between the relay and PostgreSQL is a pooler that gives each transaction any connection (RDS "
            "Proxy, PgBouncer): no prepared statements, no LISTEN and no settings of a session are used; set the "
            "time-outs of [deploy.md](deploy.md#behind-a-connection-pooler) on the server",
            default="none",
        ),
    ]
    database_auth: Annotated[
        Literal["password", "aws-iam"],
        Setting(
            "DATABASE_AUTH",
            "database_auth",
            single_values.one_of("password", "aws-iam"),
            "how the relay proves itself to PostgreSQL: with the password of `CRCR_DATABASE_URL`, or with a new token of "
            "AWS IAM for each connection (RDS, Aurora, RDS Proxy); needs `crcr[aws]`, TLS and `AWS_REGION`",
            default="password",
        ),
    ]
    wakeup_queue_url: Annotated[
        str | None,
        Setting(
            "WAKEUP_QUEUE_URL",
            "wakeup_queue_url",
            service_urls.standard_queue,
            "standard queue of Amazon SQS that gets a message after each commit with something to deliver, which wakes workers that "
            "do not run all the time ([Lambda](aws.md)); needs `crcr[aws]`; not set: no messages",
        ),
    ] = None
    hud_database: Annotated[
        PostgresSetting | None,
        Setting(
            "HUD_DATABASE_URL",
            "hud_database_url",
            locations.replica,
            "a replica of the PostgreSQL database, from which processes that only serve pages read "
            "(`postgresql://user:password@host:5432/name`); they write to `CRCR_DATABASE_URL`; not set: they read there too",
            secret=True,
        ),
    ] = None
    redis_url: Annotated[
        ServiceUrl | None,
        Setting(
            "REDIS_URL",
            "redis_url",
            service_urls.redis_url,
            "Redis, which counts rate limits for several processes together: `redis://[:password@]host:port/number`, "
            "or `rediss://…` with TLS; not set: each process counts for itself",
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
    redis_iam: Annotated[
        str | None,
        Setting(
            "REDIS_IAM",
            "redis_iam",
            service_urls.elasticache_name,
            "name of the ElastiCache cache to which the user in `CRCR_REDIS_URL` signs in with a token of AWS IAM instead of "
            "a password (`serverless/NAME` for a serverless cache); needs `rediss://` and `crcr[aws]`",
        ),
    ] = None
    clickhouse_url: Annotated[
        ServiceUrl | None,
        Setting(
            "CLICKHOUSE_URL",
            "clickhouse_url",
            service_urls.clickhouse_url,
            "ClickHouse, which stores history: `clickhouse://user:password@host:8123/database`, "
            "`clickhouses://…` with TLS (port 8443), or `chdb:///folder` in this process; not set: history is read from the database",
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
            single_values.integer(100, 36_500),
            "days that ClickHouse keeps results; at least 100, because pages look back 90; not set: forever",
        ),
    ] = None
    keep_bodies_days: Annotated[
        int,
        Setting(
            "KEEP_BODIES_DAYS",
            "keep_bodies_days",
            single_values.integer(1, 3650),
            "days that the bodies of webhooks are kept for replay",
            default="30",
        ),
    ]
    keep_jobs_days: Annotated[
        int,
        Setting(
            "KEEP_JOBS_DAYS",
            "keep_jobs_days",
            single_values.integer_or_zero(100, 36500),
            "days that deliveries are kept with their dispatches, runs and jobs, and other results; 100 or more, since "
            "pages look back 90; 0: forever. Figures are kept forever",
            default="400",
        ),
    ]
    keep_effects_days: Annotated[
        int,
        Setting(
            "KEEP_EFFECTS_DAYS",
            "keep_effects_days",
            single_values.integer(1, 3650),
            "days that effects are kept after they were done or cancelled; parked ones stay",
            default="7",
        ),
    ]
    keep_audit_days: Annotated[
        int,
        Setting(
            "KEEP_AUDIT_DAYS",
            "keep_audit_days",
            single_values.integer_or_zero(30, 36500),
            "days that the audit log is kept; 0: forever",
            default="0",
        ),
    ]


class Settings(StoreSettings, ObservabilitySettings):
    model_config = FROZEN

    upstreams: tuple[UpstreamSetting, ...]
    github_app_id: Annotated[
        str,
        Setting(
            "GITHUB_APP_ID",
            "github.app_id",
            single_values.app_id,
            "id or client id of the GitHub App; one App serves all upstreams",
            required=True,
        ),
    ]
    github_app_private_key: Annotated[
        SecretStr,
        Setting(
            "GITHUB_APP_PRIVATE_KEY",
            "github.app_private_key",
            single_values.private_key,
            "the App's private key, PEM",
            required=True,
            secret=True,
        ),
    ]
    github_webhook_secret: Annotated[
        SecretStr,
        Setting(
            "GITHUB_WEBHOOK_SECRET",
            "github.webhook_secret",
            single_values.secret,
            "the secret that signs the App's webhooks; use 16 random characters or more",
            required=True,
            secret=True,
        ),
    ]
    github_api_url: Annotated[
        str,
        Setting(
            "GITHUB_API_URL",
            "github.api_url",
            single_values.safe_url,
            "API of GitHub, or of a GitHub Enterprise Server (`https://HOST/api/v3`)",
            default="https://api.github.com",
        ),
    ]
    public_url: Annotated[
        str,
        Setting(
            "PUBLIC_URL",
            "public_url",
            single_values.url,
            "the relay's public address; used in dispatches and links",
            default="http://127.0.0.1:8000",
        ),
    ]
    oidc_audiences: Annotated[
        tuple[str, ...],
        Setting(
            "OIDC_AUDIENCE",
            "oidc.audience",
            single_values.texts,
            "the `aud` that callers' tokens must carry, one or a comma list",
            required=True,
        ),
    ]
    oidc_issuers: Annotated[
        tuple[IssuerSetting, ...],
        Setting(
            "OIDC_ISSUERS",
            "oidc.issuer",
            locations.issuers,
            'token issuers added or replaced, as JSON `[{"issuer":…,"kind":"github","jwks_url":…}]`, or '
            "as `[[oidc.issuer]]` tables; the public ones are built in",
        ),
    ] = ()
    oidc_registrations: Annotated[
        tuple[Registration, ...],
        Setting(
            "OIDC_REGISTRATIONS",
            "oidc.registration",
            registrations.registrations,
            "pipelines of Buildkite, GitLab, CircleCI or a generic issuer, and the repository each reports for, as JSON "
            '`[{"issuer":…,"repository":…,"pipeline_id":…,"organization_id":…,"branches":["main"]}]`, or as '
            "`[[oidc.registration]]` tables; docs/deploy.md lists the ids that each kind needs",
        ),
    ] = ()
    rate_limit_per_min: Annotated[
        int,
        Setting(
            "RATE_LIMIT_PER_MIN",
            "rate_limit_per_min",
            single_values.integer(1, 1_000_000),
            "callbacks accepted per repository and minute",
            default="300",
        ),
    ]
    job_timeout_s: Annotated[
        int,
        Setting(
            "JOB_TIMEOUT",
            "job_timeout",
            single_values.duration,
            "silence after which a job counts as timed out; the allowlist can set it per downstream",
            default="6h",
        ),
    ]
    gate_timeout_s: Annotated[
        int,
        Setting(
            "GATE_TIMEOUT",
            "gate_timeout",
            single_values.duration,
            "how long the gate waits from the dispatch on; never below the job's time-out",
            default="8h",
        ),
    ]
    hud_forward_url: Annotated[
        str | None,
        Setting(
            "HUD_FORWARD_URL",
            "hud.forward_url",
            single_values.url,
            "another HUD that gets every result; needs its token",
        ),
    ] = None
    hud_forward_token: Annotated[
        SecretStr | None,
        Setting(
            "HUD_FORWARD_TOKEN",
            "hud.forward_token",
            single_values.secret,
            "the token that the other HUD expects",
            secret=True,
        ),
    ] = None
    dynamodb_table: Annotated[
        str | None,
        Setting(
            "DYNAMODB_TABLE",
            "dynamodb.table",
            service_urls.dynamodb_table,
            "DynamoDB table that gets every result as the public HUD writes it (`torchci-oot-workflow-job`); needs `crcr[aws]`; "
            "not set: none",
        ),
    ] = None
    dynamodb_region: Annotated[
        str | None,
        Setting(
            "DYNAMODB_REGION",
            "dynamodb.region",
            service_urls.aws_region,
            "region of that table; not set: AWS's own settings (`AWS_REGION`)",
        ),
    ] = None
    dynamodb_endpoint: Annotated[
        str | None,
        Setting(
            "DYNAMODB_ENDPOINT",
            "dynamodb.endpoint",
            single_values.safe_url,
            "address of DynamoDB, for a VPC endpoint or for tests; not set: AWS's own",
        ),
    ] = None
    stream_targets: Annotated[
        tuple[str, ...],
        Setting(
            "STREAM_TARGETS",
            "dynamodb.stream_targets",
            service_urls.stream_targets,
            "where a function that takes a DynamoDB stream brings its items: `ingest` (our pages, as results of another relay), "
            "`clickhouse` (the table `crcr_workflow_job` in the database of `CRCR_CLICKHOUSE_URL`), or both in a list",
            default="ingest",
        ),
    ]
    hud_ingest_token: Annotated[
        SecretStr | None,
        Setting(
            "HUD_INGEST_TOKEN",
            "hud.ingest_token",
            single_values.secret,
            "the token with which another relay sends its results (`POST /api/crcr/results`), different from the one "
            "above; not set: ingest is off",
            secret=True,
        ),
    ] = None
    hud_access: Annotated[
        Literal["public", "token", "proxy"],
        Setting(
            "HUD_ACCESS",
            "hud.access",
            single_values.one_of("public", "token", "proxy"),
            "readers of the pages: `public`: everybody; `token`: users who sign in; `proxy`: users that a trusted proxy "
            "names in a header",
            default="public",
        ),
    ]
    hud_live: Annotated[
        Literal["stream", "poll"],
        Setting(
            "HUD_LIVE",
            "hud.live",
            single_values.one_of("stream", "poll"),
            "how open pages learn of changes: `stream`: one connection for each browser; `poll`: a read every 15 seconds, "
            "where connections cannot stay open (always on Lambda)",
            default="stream",
        ),
    ]
    hud_streams_per_address: Annotated[
        int,
        Setting(
            "HUD_STREAMS_PER_ADDRESS",
            "hud.streams_per_address",
            single_values.integer(1, 2_000),
            "live streams that one address may hold in a process; each browser holds one. Raise it for an office behind "
            "one address, or where `CRCR_TRUSTED_PROXIES` cannot name the proxy",
            default="50",
        ),
    ]
    hud_tokens: Annotated[
        tuple[TokenSetting, ...],
        Setting(
            "HUD_TOKENS",
            "hud.tokens",
            locations.tokens("crcr admin token NAME --reader"),
            "tokens that may read the pages where access is `token`: a comma list of `name=sha256:…` as "
            "`crcr admin token NAME --reader` prints it, or a `[hud.tokens]` table",
            secret=True,
        ),
    ] = ()
    admin_tokens: Annotated[
        tuple[TokenSetting, ...],
        Setting(
            "ADMIN_TOKENS",
            "admin_tokens",
            locations.tokens("crcr admin token NAME"),
            "tokens of administrators, for the pages and `/api/v1/admin`: a comma list of `name=sha256:…` as "
            "`crcr admin token NAME` prints it, or an `[admin_tokens]` table; the names appear in the audit log; "
            "not set: administration is by command line only",
            secret=True,
        ),
    ] = ()
    shadow: Annotated[
        Literal["on", "off"],
        Setting(
            "SHADOW",
            "shadow",
            single_values.switch,
            "`1` or `on`: the relay decides and records everything, and sends nothing: no dispatch, check, comment, notice or "
            "forward; for running it beside the relay that it replaces (docs/moving-from-test-infra.md)",
            default="off",
        ),
    ]
    sandbox: Annotated[
        Literal["off", "on"],
        Setting(
            "SANDBOX",
            "sandbox",
            single_values.one_of("off", "on"),
            "`on`: repositories that are not on the allowlist may send test reports to `/crcr/sandbox`, which do not "
            "count (20 per hour and repository, kept for 48 hours)",
            default="off",
        ),
    ]
    hud_proxy_header: Annotated[
        str,
        Setting(
            "HUD_PROXY_HEADER",
            "hud.proxy_header",
            single_values.header_name,
            "where access is `proxy`: the header that names the reader; counts only from `CRCR_TRUSTED_PROXIES`",
            default="X-Forwarded-User",
        ),
    ]
    trusted_proxies: Annotated[
        tuple[IPv4Network | IPv6Network, ...],
        Setting(
            "TRUSTED_PROXIES",
            "trusted_proxies",
            single_values.networks,
            "addresses or networks whose `X-Forwarded-For` counts, as a comma list; and `CRCR_HUD_PROXY_HEADER`, "
            "where access is `proxy`",
        ),
    ] = ()
    host: Annotated[
        str, Setting("HOST", "host", single_values.host, "address to listen on", default="127.0.0.1")
    ]
    port: Annotated[
        int, Setting("PORT", "port", single_values.integer(1, 65535), "port to listen on", default="8000")
    ]
    role: Annotated[
        Literal["all", "intake", "hud"],
        Setting(
            "ROLE",
            "role",
            single_values.one_of("all", "intake", "hud"),
            "what `crcr serve` does: `intake` takes in webhooks, callbacks and results and runs the worker; `hud` serves "
            "pages and API; `all` does both on one port, in two processes, so that readers cannot delay the intake",
            default="all",
        ),
    ]
    drain_s: Annotated[
        int,
        Setting(
            "DRAIN_S",
            "drain_s",
            single_values.integer(0, 300),
            "seconds for which a stopping process still answers requests while `/readyz` is 503, so that a load balancer "
            "stops sending requests to it first; 0 without a load balancer",
            default="0",
        ),
    ]
    log_format: Annotated[
        Literal["auto", "json", "console"],
        Setting(
            "LOG_FORMAT",
            "log.format",
            single_values.one_of("auto", "json", "console"),
            "`json`, `console`, or `auto`: console on a terminal, else JSON lines",
            default="auto",
        ),
    ]
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting(
            "LOG_LEVEL",
            "log.level",
            single_values.one_of("debug", "info", "warning", "error"),
            "the lowest level that is logged: `debug`, `info`, `warning` or `error`",
            default="info",
        ),
    ]
    channels: Annotated[
        tuple[ChannelSetting, ...],
        Setting(
            "CHANNELS",
            "channel",
            read_channels,
            "where [notices](notices.md) are sent: `[[channel]]` tables, or a JSON list of them",
            secret=True,
        ),
    ] = ()
    worker_concurrency: Annotated[
        int,
        Setting(
            "WORKER_CONCURRENCY",
            "worker_concurrency",
            single_values.integer(1, 1000),
            "effects that one worker carries out at the same time",
            default="64",
        ),
    ]

    _load_again: "Callable[[], Settings] | None" = PrivateAttr(default=None)

    def read_again_with(self, load: "Callable[[], Settings]") -> None:
        """`load` reads all settings again; set where some secret is in a file or in AWS."""
        self._load_again = load

    @property
    def may_rotate(self) -> bool:
        """Whether a secret is read from a file or from AWS, so that it may change."""
        return self._load_again is not None

    def with_rotated_secrets(self) -> Self:
        """Return these settings with their secrets read again; raises `BadSettings`.

        Everything else stays as it was at start, and so do the addresses of databases: their connections are open.
        """
        if self._load_again is None:
            return self
        new = self._load_again()
        rotated = {
            field: getattr(new, field)
            for field, row in settings_of(type(self)).items()
            if row.secret and field not in _FIXED and _same_place(getattr(self, field), getattr(new, field))
        }
        return self.model_copy(update=rotated)

    @property
    def uses_chdb(self) -> bool:
        """Whether history is in a folder that one process at a time can open."""
        return self.clickhouse_url is not None and self.clickhouse_url.get_secret_value().startswith("chdb:")

    def secrets(self) -> tuple[str, ...]:
        """Return every secret's text, for `log.redact_literals` and nothing else."""
        values = (getattr(self, field) for field in type(self).model_fields)
        return tuple(text for value in values for text in _secret_texts(value))

    @property
    def is_shadow(self) -> bool:
        return self.shadow == "on"

    def warnings(self) -> tuple[str, ...]:
        """Return warnings about unwise settings, for the log at start."""
        short = [
            f"{row.variable} is shorter than {_SHORT} characters and may be guessed; use a random one."
            for field, row in settings_of(type(self)).items()
            if isinstance(value := getattr(self, field), SecretStr)
            and not isinstance(value, ServiceUrl)
            and len(value.get_secret_value()) < _SHORT
        ]
        shadow = (SHADOW_WARNING,) if self.is_shadow else ()
        return (*shadow, *short, *self._exposed(), *self._unknown_channels())

    def _unknown_channels(self) -> tuple[str, ...]:
        known = {channel.name for channel in self.channels}
        return tuple(
            f"channels of {upstream.name} names {name[:60]}, and no [[channel]] has that name: its notices go nowhere."
            for upstream in self.upstreams
            for name in upstream.channels
            if name not in known
        )

    def _exposed(self) -> tuple[str, ...]:
        warnings = []
        if (
            parts := urlsplit(self.public_url)
        ).scheme == "http" and parts.hostname not in single_values.LOOPBACK:
            warnings.append(
                "CRCR_PUBLIC_URL is http://, so callers send their tokens unencrypted; use https://."
            )
        if single_values.cover_all_addresses(self.trusted_proxies):
            warnings.append(
                "CRCR_TRUSTED_PROXIES trusts every address, so callers can forge theirs; name the proxies."
            )
        return tuple(warnings)


_FIXED = frozenset({"database", "hud_database"})


def _same_place(old: object, new: object) -> bool:
    """Whether only the secret part may differ: a service that is elsewhere, or new, needs a restart."""
    if isinstance(old, ServiceUrl) and isinstance(new, ServiceUrl):
        return old.display_name == new.display_name
    if isinstance(old, tuple) and isinstance(new, tuple):
        return _without_secrets(old) == _without_secrets(new)
    return (old is None) == (new is None)


def _without_secrets(items: tuple[object, ...]) -> list[ChannelSetting]:
    """The channels as they are but for their secrets; named tokens may come and go."""
    secrets = {"url": None, "secret": None, "smtp": None}
    return [item.model_copy(update=secrets) for item in items if isinstance(item, ChannelSetting)]


def _secret_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, tuple):
        return tuple(text for item in value if isinstance(item, ChannelSetting) for text in item.secrets())
    if isinstance(value, PostgresSetting):
        value = value.url
    if isinstance(value, ServiceUrl):
        return value.secrets()
    return (value.get_secret_value(),) if isinstance(value, SecretStr) else ()
