"""Loads `Settings` from environment and file, or reports every problem at once.

Variables override the file, the file overrides the defaults. Unknown names are problems, and no message contains the
value of a secret.
"""

import tomllib
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from crcr.errors import BadSettings
from crcr.settings.model import Settings
from crcr.settings.readers.locations import AllowlistOnGitHub, SqliteSetting, web_url
from crcr.settings.readers.single_values import cover_all_addresses
from crcr.settings.secret_files import SecretFiles, SecretUnreadable
from crcr.settings.setting import (
    FILE_SUFFIX,
    PREFIX,
    UNREADABLE,
    RawValue,
    Setting,
    describe_missing,
    read_value,
    settings_of,
    suggest_name,
)
from crcr.settings.upstreams import UpstreamSetting, read_upstreams

DEFAULT_FILE = "crcr.toml"
_UPSTREAM_KEY = "upstream"

Found = dict[str, RawValue]
"""The values of one layer, by setting key."""


def load_settings(*, config: Path | None, environ: Mapping[str, str], cwd: Path) -> Settings:
    """Return the settings, or raise `BadSettings` with one sentence for each problem."""
    problems: list[str] = []
    secret_files = SecretFiles()
    file = _from_file(config, cwd, secret_files, problems)
    variables = _from_environ(environ, cwd, secret_files, problems)
    draft = _Draft({**(file or {}), **variables}, problems, cwd)
    # When the file cannot be read, missing settings cannot be reported.
    draft.read_all(report_missing=file is not None)
    draft.read_upstreams(file, variables)
    draft.check_together()
    if problems:
        raise BadSettings(list(dict.fromkeys(problems)))
    settings = Settings(**draft.values)
    if secret_files.used:
        settings.read_again_with(partial(load_settings, config=config, environ=dict(environ), cwd=cwd))
    return settings


def _settings_rows() -> tuple[Setting, ...]:
    return tuple(settings_of(Settings).values())


def _from_environ(
    environ: Mapping[str, str], cwd: Path, secret_files: SecretFiles, problems: list[str]
) -> Found:
    rows = [*_settings_rows(), *(row for row in settings_of(UpstreamSetting).values() if row.env)]
    # An empty variable counts as absent: compose files pass `${NAME:-}` for what is not set.
    values = {
        name: RawValue(value, name, cwd, secret_files)
        for name, value in sorted(environ.items())
        if name.startswith(PREFIX) and value.strip()
    }
    names = {row.key: row.variable for row in rows}
    return _assign_values(rows, values, names, FILE_SUFFIX, problems)


def _from_file(
    config: Path | None, cwd: Path, secret_files: SecretFiles, problems: list[str]
) -> Found | None:
    """Return the file's values; empty without a file, None when it cannot be read."""
    path = cwd / (config or DEFAULT_FILE)
    if config is None and not path.exists():
        return {}
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        problems.append(f"{config or DEFAULT_FILE} cannot be read: {error.strerror}; check --config.")
        return None
    except ValueError as error:  # not TOML, or not UTF-8
        problems.append(f"{config or DEFAULT_FILE} is not a TOML file: {error}.")
        return None
    return _from_toml(content, path.parent, secret_files, problems)


def _from_toml(
    content: Mapping[str, object], folder: Path, secret_files: SecretFiles, problems: list[str]
) -> Found:
    rows = list(_settings_rows())
    tables = {row.key.partition(".")[0] for row in rows if "." in row.key}
    values = {
        key: RawValue(value, key, folder, secret_files)
        for key, value in _flatten(content, tables)
        if value != ""
    }
    upstream = values.pop(_UPSTREAM_KEY, None)
    assigned = _assign_values(rows, values, {row.key: row.key for row in rows}, FILE_SUFFIX.lower(), problems)
    return {**assigned, _UPSTREAM_KEY: upstream} if upstream else assigned


def _flatten(table: Mapping[str, object], tables: set[str], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in table.items():
        if isinstance(value, dict) and not prefix and key in tables:
            yield from _flatten(value, tables, f"{key}.")
        else:
            yield prefix + key, value


def _assign_values(
    rows: list[Setting], values: Found, names: Mapping[str, str], suffix: str, problems: list[str]
) -> Found:
    """Assign one layer's values to settings, reading `…_FILE` names; the rest is unknown."""
    assigned: Found = {}
    unassigned = dict(values)
    for row in rows:
        name = names[row.key]
        plain = unassigned.pop(name, None)
        file = unassigned.pop(name + suffix, None) if row.secret else None
        if plain and file:
            problems.append(f"{name} and {name}{suffix} are both given; keep one.")
        if plain is not None:
            assigned[row.key] = plain
        elif file is not None:
            assigned[row.key] = _content(file, problems)
    all_names = [*names.values(), *(names[row.key] + suffix for row in rows if row.secret)]
    problems += [_unknown(name, all_names, suffix) for name in unassigned]
    return assigned


def _unknown(name: str, names: list[str], suffix: str) -> str:
    plain = name.removesuffix(suffix)
    if plain != name and plain in names:
        return f"{name} is not a setting: only secrets are read from files; set {plain}."
    return f"{name} is not a setting; {suggest_name(name, names)}"


def _content(raw: RawValue, problems: list[str]) -> RawValue:
    """Return the secret's text under the name that pointed to it, with the same base folder for paths."""
    text: object = UNREADABLE
    try:
        text = raw.secret_files.read(str(raw.value), raw.folder)
    except SecretUnreadable as wrong:
        problems.append(f"{raw.written} {wrong}")
    return RawValue(text, raw.written, raw.folder, raw.secret_files)


class _Draft:
    """The settings while they are read: values so far, and the name under which each was given."""

    def __init__(self, found: Found, problems: list[str], cwd: Path) -> None:
        self.values: dict[str, Any] = {}
        self._found = found
        self._problems = problems
        self._cwd = cwd
        self._rows = settings_of(Settings)

    def read_all(self, *, report_missing: bool) -> None:
        for field, row in self._rows.items():
            raw = self._found.get(row.key) or row.by_default(self._cwd)
            if raw and (value := read_value(row, raw, self._problems)) is not None:
                self.values[field] = value
            elif not raw and row.required and report_missing:
                self._problems.append(describe_missing(row))

    def read_upstreams(self, file: Found | None, variables: Found) -> None:
        from_environ = {
            field: variables[row.key]
            for field, row in settings_of(UpstreamSetting).items()
            if row.key in variables
        }
        if file is not None:
            self.values["upstreams"] = read_upstreams(file.get(_UPSTREAM_KEY), from_environ, self._problems)
            return
        for field, raw in from_environ.items():
            read_value(settings_of(UpstreamSetting)[field], raw, self._problems)

    def check_together(self) -> None:
        checks = (
            _timeouts,
            _forward,
            _ingest,
            _readers,
            _proxy,
            _token_names,
            _kinds,
            _replica,
            _pooler,
            _database_auth,
            _redis_ca,
            _redis_iam,
            _clickhouse_ca,
            _stream,
        )
        self._problems += [problem for check in checks if (problem := check(self))]
        self._problems += _foreign_allowlists(self)

    def written(self, field: str) -> str:
        row = self._rows[field]
        return self._found[row.key].written if self.given(field) else row.variable

    def given(self, field: str) -> bool:
        return self._rows[field].key in self._found


def _replica(draft: _Draft) -> str | None:
    if not draft.given("hud_database") or not isinstance(draft.values.get("database"), SqliteSetting):
        return None
    return f"{draft.written('hud_database')} is a replica of PostgreSQL, but {draft.written('database')} is SQLite."


def _pooler(draft: _Draft) -> str | None:
    if draft.values.get("database_pooler") != "transaction" or not isinstance(
        draft.values.get("database"), SqliteSetting
    ):
        return None
    return f"{draft.written('database_pooler')} is for PostgreSQL, but {draft.written('database')} is SQLite."


def _database_auth(draft: _Draft) -> str | None:
    database = draft.values.get("database")
    if draft.values.get("database_auth") != "aws-iam" or database is None:
        return None
    name, url = draft.written("database_auth"), draft.written("database")
    if isinstance(database, SqliteSetting):
        return f"{name} is aws-iam, which PostgreSQL takes, but {url} is SQLite."
    if database.url.has_password or not database.url.user:
        return f"{name} is aws-iam, so {url} must name a user and no password (postgresql://user@host/name)."
    if not database.url.encrypted and "database_ca" not in draft.values:
        return (
            f"{name} is aws-iam, whose tokens need TLS; set CRCR_DATABASE_CA, or ?sslmode=require in {url}."
        )
    return None


def _timeouts(draft: _Draft) -> str | None:
    job_s, gate_s = draft.values.get("job_timeout_s"), draft.values.get("gate_timeout_s")
    if job_s is None or gate_s is None or gate_s >= job_s:
        return None
    names = draft.written("gate_timeout_s"), draft.written("job_timeout_s")
    return f"{names[0]} must not be below {names[1]}: the gate must wait at least as long as a job may be silent."


def _forward(draft: _Draft) -> str | None:
    names = ("hud_forward_url", "hud_forward_token")
    present = [name for name in names if draft.given(name)]
    if len(present) != 1:
        return None
    absent = next(name for name in names if name not in present)
    return f"{draft.written(present[0])} needs {draft.written(absent)} too; set both or none."


def _ingest(draft: _Draft) -> str | None:
    ingest, forward = draft.values.get("hud_ingest_token"), draft.values.get("hud_forward_token")
    if not isinstance(ingest, SecretStr) or ingest != forward:
        return None
    names = draft.written("hud_ingest_token"), draft.written("hud_forward_token")
    return (
        f"{names[0]} must differ from {names[1]}: the receiver of our results must not be able to write here."
    )


def _readers(draft: _Draft) -> str | None:
    has_tokens = draft.given("hud_tokens") or draft.given("admin_tokens")
    if draft.values.get("hud_access") != "token" or has_tokens:
        return None
    name = draft.written("hud_access")
    return f"{name} is token, but there are no tokens; set CRCR_HUD_TOKENS or CRCR_ADMIN_TOKENS."


def _proxy(draft: _Draft) -> str | None:
    trusted = draft.values.get("trusted_proxies", ())
    if draft.values.get("hud_access") != "proxy" or (
        draft.given("trusted_proxies") and not cover_all_addresses(trusted)
    ):
        return None
    name = draft.written("hud_access")
    return f"{name} is proxy, so {draft.written('trusted_proxies')} must list the proxies, not every address."


def _token_names(draft: _Draft) -> str | None:
    admins, readers = draft.values.get("admin_tokens", ()), draft.values.get("hud_tokens", ())
    names = {admin.name.lower() for admin in admins} & {reader.name.lower() for reader in readers}
    digests = {admin.digest for admin in admins} & {reader.digest for reader in readers}
    if not names and not digests:
        return None
    both = draft.written("admin_tokens"), draft.written("hud_tokens")
    return f"{both[0]} and {both[1]} must not share a name or a token; administrators may also read."


def _kinds(draft: _Draft) -> str | None:
    kinds = {issuer.issuer: issuer.kind for issuer in draft.values.get("oidc_issuers", ())}
    for registration in draft.values.get("oidc_registrations", ()):
        if kinds.get(registration.issuer, registration.kind) is not registration.kind:
            names = draft.written("oidc_registrations"), draft.written("oidc_issuers")
            return f"{names[0]} takes {registration.issuer} for {registration.kind}, {names[1]} for {kinds[registration.issuer]}."
    return None


def _redis_ca(draft: _Draft) -> str | None:
    url = draft.values.get("redis_url")
    if "redis_ca" not in draft.values or (draft.given("redis_url") and (url is None or url.encrypted)):
        return None
    names = draft.written("redis_ca"), draft.written("redis_url")
    return f"{names[0]} proves a rediss:// server, and {names[1]} names none; use rediss:// or remove the CA."


def _redis_iam(draft: _Draft) -> str | None:
    url = draft.values.get("redis_url")
    if "redis_iam" not in draft.values or (draft.given("redis_url") and url is None):
        return None
    if url is not None and url.encrypted and url.signs_in_by_name:
        return None
    names = draft.written("redis_iam"), draft.written("redis_url")
    return f"{names[0]} needs {names[1]} as rediss://user@host:6379, with the user of ElastiCache and without a password."


def _clickhouse_ca(draft: _Draft) -> str | None:
    url = draft.values.get("clickhouse_url")
    if "clickhouse_ca" not in draft.values or (
        draft.given("clickhouse_url") and (url is None or url.encrypted)
    ):
        return None
    names = draft.written("clickhouse_ca"), draft.written("clickhouse_url")
    return f"{names[0]} proves a clickhouses:// server, and {names[1]} names none; use clickhouses:// or remove it."


def _stream(draft: _Draft) -> str | None:
    if "clickhouse" not in draft.values.get("stream_targets", ()) or draft.given("clickhouse_url"):
        return None
    return f"{draft.written('stream_targets')} names clickhouse, so {draft.written('clickhouse_url')} must be set."


def _foreign_allowlists(draft: _Draft) -> Iterator[str]:
    if "github_api_url" not in draft.values:
        return
    home = web_url(draft.values["github_api_url"])
    for upstream in draft.values.get("upstreams", ()):
        source = upstream.allowlist
        if isinstance(source, AllowlistOnGitHub) and source.web != home:
            yield (
                f"The allowlist of {upstream.name} is at {source.web}, but {draft.written('github_api_url')} "
                f"belongs to {home}; use an address there."
            )
