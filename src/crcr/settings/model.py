"""The settings themselves: types, names, defaults and meanings, one declaration each.

`upstreams` is put together by the loader, because two variables and any number of tables can say it. No default
points at anybody's service but GitHub's own public API. The stores' settings are in `stores`, those of
who watches in `watching`.
"""

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import SecretStr

from crcr.decide.report.registration import Registration
from crcr.settings.observability import ObservabilitySettings
from crcr.settings.readers import locations, registrations
from crcr.settings.readers import values as readers_values
from crcr.settings.readers.locations import IssuerSetting, PostgresSetting, TokenSetting
from crcr.settings.readers.service_urls import ServiceUrl
from crcr.settings.setting import FROZEN, Setting, settings_of
from crcr.settings.stores import StoreSettings
from crcr.settings.upstreams import UpstreamSetting

_SHORT = 16


class Settings(StoreSettings, ObservabilitySettings):
    model_config = FROZEN

    upstreams: tuple[UpstreamSetting, ...]
    github_app_id: Annotated[
        str,
        Setting(
            "GITHUB_APP_ID",
            "github.app_id",
            readers_values.app_id,
            "id or client id of the GitHub App; one App serves all upstreams",
            required=True,
        ),
    ]
    github_app_private_key: Annotated[
        SecretStr,
        Setting(
            "GITHUB_APP_PRIVATE_KEY",
            "github.app_private_key",
            readers_values.private_key,
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
            readers_values.secret,
            "the secret that signs the App's webhooks; 16 random characters or more are wise",
            required=True,
            secret=True,
        ),
    ]
    github_api_url: Annotated[
        str,
        Setting(
            "GITHUB_API_URL",
            "github.api_url",
            readers_values.safe_url,
            "API of GitHub, or of a GitHub Enterprise Server (`https://HOST/api/v3`)",
            default="https://api.github.com",
        ),
    ]
    public_url: Annotated[
        str,
        Setting(
            "PUBLIC_URL",
            "public_url",
            readers_values.url,
            "where callers reach the relay; goes into dispatches and links",
            default="http://127.0.0.1:8000",
        ),
    ]
    oidc_audiences: Annotated[
        tuple[str, ...],
        Setting(
            "OIDC_AUDIENCE",
            "oidc.audience",
            readers_values.texts,
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
            "as `[[oidc.issuer]]` tables; the public ones are known",
        ),
    ] = ()
    oidc_registrations: Annotated[
        tuple[Registration, ...],
        Setting(
            "OIDC_REGISTRATIONS",
            "oidc.registration",
            registrations.registrations,
            "which pipelines of Buildkite, GitLab, CircleCI or a generic issuer speak for which repository, as JSON "
            '`[{"issuer":…,"repository":…,"pipeline_id":…,"organization_id":…,"branches":["main"]}]`, or as '
            "`[[oidc.registration]]` tables; docs/deploy.md says what each kind needs",
        ),
    ] = ()
    rate_limit_per_min: Annotated[
        int,
        Setting(
            "RATE_LIMIT_PER_MIN",
            "rate_limit_per_min",
            readers_values.integer(1, 1_000_000),
            "callbacks taken per repository and minute",
            default="300",
        ),
    ]
    job_timeout_s: Annotated[
        int,
        Setting(
            "JOB_TIMEOUT",
            "job_timeout",
            readers_values.duration,
            "silence after which a job counts as timed out; the allowlist can say it per downstream",
            default="6h",
        ),
    ]
    gate_timeout_s: Annotated[
        int,
        Setting(
            "GATE_TIMEOUT",
            "gate_timeout",
            readers_values.duration,
            "how long the gate waits from the dispatch on; never below the job's time-out",
            default="8h",
        ),
    ]
    hud_forward_url: Annotated[
        str | None,
        Setting(
            "HUD_FORWARD_URL",
            "hud.forward_url",
            readers_values.url,
            "another HUD that gets every result; goes with its token",
        ),
    ] = None
    hud_forward_token: Annotated[
        SecretStr | None,
        Setting(
            "HUD_FORWARD_TOKEN",
            "hud.forward_token",
            readers_values.secret,
            "the token that the other HUD expects",
            secret=True,
        ),
    ] = None
    hud_ingest_token: Annotated[
        SecretStr | None,
        Setting(
            "HUD_INGEST_TOKEN",
            "hud.ingest_token",
            readers_values.secret,
            "the token with which another relay sends us its results (`POST /api/crcr/results`), different from the one "
            "above; not set: ingest is off",
            secret=True,
        ),
    ] = None
    hud_access: Annotated[
        Literal["public", "token", "proxy"],
        Setting(
            "HUD_ACCESS",
            "hud.access",
            readers_values.one_of("public", "token", "proxy"),
            "who sees the pages: `public`; `token`: who signs in; `proxy`: whom a trusted proxy names in a header",
            default="public",
        ),
    ]
    hud_tokens: Annotated[
        tuple[TokenSetting, ...],
        Setting(
            "HUD_TOKENS",
            "hud.tokens",
            locations.tokens("crcr admin token NAME --reader"),
            "who may read the pages where access is `token`: a comma list of `name=sha256:…` as "
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
            "who may act on the pages and through `/api/v1/admin`, and read too: a comma list of `name=sha256:…` as "
            "`crcr admin token NAME` prints it, or an `[admin_tokens]` table; the names stand in the audit log; "
            "not set: administration is by command line only",
            secret=True,
        ),
    ] = ()
    sandbox: Annotated[
        Literal["off", "on"],
        Setting(
            "SANDBOX",
            "sandbox",
            readers_values.one_of("off", "on"),
            "`on`: repositories that are on no allowlist may try their reports at `/crcr/sandbox`, in a space of its own "
            "that decides nothing (20 reports an hour for each, kept for 48 hours)",
            default="off",
        ),
    ]
    hud_proxy_header: Annotated[
        str,
        Setting(
            "HUD_PROXY_HEADER",
            "hud.proxy_header",
            readers_values.header_name,
            "where access is `proxy`: the header that names the reader; counts only from `CRCR_TRUSTED_PROXIES`",
            default="X-Forwarded-User",
        ),
    ]
    trusted_proxies: Annotated[
        tuple[IPv4Network | IPv6Network, ...],
        Setting(
            "TRUSTED_PROXIES",
            "trusted_proxies",
            readers_values.networks,
            "addresses or networks whose `X-Forwarded-For` counts, as a comma list; and `CRCR_HUD_PROXY_HEADER`, "
            "where access is `proxy`",
        ),
    ] = ()
    host: Annotated[
        str, Setting("HOST", "host", readers_values.host, "address to listen on", default="127.0.0.1")
    ]
    port: Annotated[
        int, Setting("PORT", "port", readers_values.integer(1, 65535), "port to listen on", default="8000")
    ]
    drain_s: Annotated[
        int,
        Setting(
            "DRAIN_S",
            "drain_s",
            readers_values.integer(0, 300),
            "seconds that a process which was told to stop still takes requests while `/readyz` says 503, so that a load "
            "balancer leaves it out first; 0 where there is none",
            default="0",
        ),
    ]
    log_format: Annotated[
        Literal["auto", "json", "console"],
        Setting(
            "LOG_FORMAT",
            "log.format",
            readers_values.one_of("auto", "json", "console"),
            "`json`, `console`, or `auto`: console on a terminal, else JSON lines",
            default="auto",
        ),
    ]
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"],
        Setting(
            "LOG_LEVEL",
            "log.level",
            readers_values.one_of("debug", "info", "warning", "error"),
            "the least level that is written: `debug`, `info`, `warning` or `error`",
            default="info",
        ),
    ]
    worker_concurrency: Annotated[
        int,
        Setting(
            "WORKER_CONCURRENCY",
            "worker_concurrency",
            readers_values.integer(1, 1000),
            "effects that one worker carries out at the same time",
            default="64",
        ),
    ]

    def secrets(self) -> tuple[str, ...]:
        """Return every secret's text, for `log.redact_literals` and nothing else."""
        values = (getattr(self, field) for field in type(self).model_fields)
        return tuple(text for value in values for text in _secret_texts(value))

    def warnings(self) -> tuple[str, ...]:
        """Return what is allowed and unwise, as sentences for the log at start."""
        short = [
            f"{row.variable} is shorter than {_SHORT} characters and may be guessed; use a random one."
            for field, row in settings_of(type(self)).items()
            if isinstance(value := getattr(self, field), SecretStr)
            and not isinstance(value, ServiceUrl)
            and len(value.get_secret_value()) < _SHORT
        ]
        return (*short, *self._exposed())

    def _exposed(self) -> tuple[str, ...]:
        found = []
        if (
            parts := urlsplit(self.public_url)
        ).scheme == "http" and parts.hostname not in readers_values.LOOPBACK:
            found.append(
                "CRCR_PUBLIC_URL is http://, so callers send their tokens unencrypted; use https://."
            )
        if readers_values.cover_all_addresses(self.trusted_proxies):
            found.append(
                "CRCR_TRUSTED_PROXIES trusts every address, so callers can make up theirs; name the proxies."
            )
        return tuple(found)


def _secret_texts(value: object) -> tuple[str, ...]:
    if isinstance(value, PostgresSetting):
        value = value.url
    if isinstance(value, ServiceUrl):
        return value.secrets()
    return (value.get_secret_value(),) if isinstance(value, SecretStr) else ()
