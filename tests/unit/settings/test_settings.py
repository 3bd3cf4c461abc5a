"""Settings: sources and their precedence; all errors are reported at once, by name."""

import json
import tomllib
from collections.abc import Mapping
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from crcr import docs
from crcr.decide.github.requests_and_answers import FileLocation
from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import IssuerKind
from crcr.errors import BadSettings
from crcr.settings import (
    AllowlistFile,
    AllowlistOnGitHub,
    IssuerSetting,
    Settings,
    SqliteSetting,
    TokenSetting,
    UpstreamSetting,
    load_settings,
    settings_of,
)
from crcr.settings.setting import RawValue
from crcr.settings.upstreams import read_upstreams
from support.paths import ROOT as REPOSITORY

FORMAT = (Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
PEM = rsa.generate_private_key(65537, 2048).private_bytes(*FORMAT).decode()
WEBHOOK_SECRET = "a webhook secret of some length"
BLOB = "https://github.com/example/framework/blob"

REQUIRED = {
    "CRCR_UPSTREAM": "example/framework",
    "CRCR_ALLOWLIST": f"{BLOB}/main/allowlist.yml",
    "CRCR_GITHUB_APP_ID": "1234",
    "CRCR_GITHUB_APP_PRIVATE_KEY": PEM,
    "CRCR_GITHUB_WEBHOOK_SECRET": WEBHOOK_SECRET,
    "CRCR_OIDC_AUDIENCE": "relay.example.org",
}


def load(cwd: Path, environ: Mapping[str, str] = REQUIRED, config: Path | None = None) -> Settings:
    return load_settings(config=config, environ=environ, cwd=cwd)


def load_with(cwd: Path, **variables: str) -> Settings:
    return load(cwd, {**REQUIRED, **{f"CRCR_{name}": value for name, value in variables.items()}})


def problems(cwd: Path, environ: Mapping[str, str], config: Path | None = None) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        load(cwd, environ, config)
    return caught.value.problems


def problem(cwd: Path, **variables: str) -> str:
    messages = problems(cwd, {**REQUIRED, **{f"CRCR_{name}": value for name, value in variables.items()}})
    assert len(messages) == 1, messages
    return messages[0]


def write_file(cwd: Path, text: str, name: str = "crcr.toml") -> Path:
    path = cwd / name
    path.write_text(text, encoding="utf-8")
    return path


def without(*names: str) -> dict[str, str]:
    return {name: value for name, value in REQUIRED.items() if name.removeprefix("CRCR_") not in names}


def test_the_required_settings_are_sufficient(tmp_path: Path) -> None:
    settings = load(tmp_path)
    assert settings.github_app_id == "1234"
    assert settings.github_app_private_key.get_secret_value() == PEM.strip()
    assert settings.github_webhook_secret.get_secret_value() == WEBHOOK_SECRET
    assert settings.oidc_audiences == ("relay.example.org",)
    assert settings.database == SqliteSetting(tmp_path / "crcr.db")
    assert (settings.host, settings.port, settings.rate_limit_per_min) == ("127.0.0.1", 8000, 300)
    assert (settings.job_timeout_s, settings.gate_timeout_s) == (6 * 3600, 8 * 3600)
    assert (settings.hud_forward_url, settings.hud_forward_token, settings.hud_ingest_token) == (
        None,
        None,
        None,
    )
    assert (settings.log_format, settings.log_level, settings.hud_access) == ("auto", "info", "public")
    assert (settings.worker_concurrency, settings.keep_bodies_days) == (64, 30)
    assert (settings.oidc_issuers, settings.trusted_proxies, settings.warnings()) == ((), (), ())


def test_an_upstream_has_the_documented_policy_by_default(tmp_path: Path) -> None:
    (upstream,) = load(tmp_path).upstreams
    assert upstream.name == RepoName("Example/Framework")
    assert upstream.gate == "auto"
    assert upstream.label_prefixes == ("ciflow/crcr/",)
    assert (upstream.l3_conclusion, upstream.l3_pending) == ("neutral", "in_progress")
    assert upstream.excuses == ()
    assert upstream.breaking_label == "crcr/breaking"
    assert upstream.ignore_refs == ("refs/heads/gh/**", "refs/heads/gh-readonly-queue/**")


READ: list[tuple[str, str, str, Any]] = [
    ("GITHUB_APP_ID", "Iv23liabcDEF", "github_app_id", "Iv23liabcDEF"),
    ("PUBLIC_URL", "https://relay.example.org/", "public_url", "https://relay.example.org"),
    ("OIDC_AUDIENCE", "one, two,one", "oidc_audiences", ("one", "two")),
    ("RATE_LIMIT_PER_MIN", "1", "rate_limit_per_min", 1),
    ("JOB_TIMEOUT", "90s", "job_timeout_s", 90),
    ("JOB_TIMEOUT", "30m", "job_timeout_s", 1800),
    ("GATE_TIMEOUT", "2d", "gate_timeout_s", 172_800),
    ("TRUSTED_PROXIES", "10.0.0.0/8, ::1", "trusted_proxies", (ip_network("10.0.0.0/8"), ip_network("::1"))),
    ("HOST", "0.0.0.0", "host", "0.0.0.0"),  # noqa: S104
    ("PORT", "65535", "port", 65535),
    ("LOG_FORMAT", "JSON", "log_format", "json"),
    ("LOG_LEVEL", "Warning", "log_level", "warning"),
    ("WORKER_CONCURRENCY", "8", "worker_concurrency", 8),
    ("KEEP_BODIES_DAYS", "7", "keep_bodies_days", 7),
    ("KEEP_JOBS_DAYS", "100", "keep_jobs_days", 100),
    ("KEEP_JOBS_DAYS", "0", "keep_jobs_days", 0),
    ("KEEP_EFFECTS_DAYS", "1", "keep_effects_days", 1),
    ("KEEP_AUDIT_DAYS", "365", "keep_audit_days", 365),
    ("DRAIN_S", "10", "drain_s", 10),
    ("SHADOW", "1", "is_shadow", True),
    ("SHADOW", "Off", "is_shadow", False),
    ("HUD_ACCESS", "public", "hud_access", "public"),
    ("HUD_STREAMS_PER_ADDRESS", "500", "hud_streams_per_address", 500),
    ("HUD_PROXY_HEADER", "X-Remote-User", "hud_proxy_header", "X-Remote-User"),
    (
        "ADMIN_TOKENS",
        f"ann=sha256:{'a' * 64},\n bob@ci=sha256:{'B' * 64}",
        "admin_tokens",
        (TokenSetting("ann", "a" * 64), TokenSetting("bob@ci", "b" * 64)),
    ),
    ("DATABASE_URL", "sqlite:////tmp/x.db", "database", SqliteSetting(Path("/tmp/x.db"))),  # noqa: S108
    (
        "OIDC_ISSUERS",
        '[{"issuer":"https://git.example.org","kind":"gitlab","jwks_url":"https://git.example.org/keys"}]',
        "oidc_issuers",
        (IssuerSetting("https://git.example.org", IssuerKind.GITLAB, "https://git.example.org/keys"),),
    ),
]


@pytest.mark.parametrize(("name", "value", "field", "expected"), READ)
def test_a_variable_is_read(tmp_path: Path, name: str, value: str, field: str, expected: object) -> None:
    assert getattr(load_with(tmp_path, **{name: value}), field) == expected


WRONG = [
    ("UPSTREAM", "framework", "owner/repo"),
    ("ALLOWLIST", "nowhere.yml", "no such file"),
    ("ALLOWLIST", "https://github.com/example/framework/main/x.yml", "/blob/"),
    ("ALLOWLIST", f"{BLOB}/main/allowlist.yml?plain=1", "remove what follows"),
    ("ALLOWLIST", f"{BLOB}/main/../x.yml", "/blob/"),
    ("GITHUB_APP_ID", "my app", "id or client id"),
    ("GITHUB_APP_PRIVATE_KEY", "not a key", "PEM"),
    ("GITHUB_API_URL", "http://github.example.org/api/v3", "https://"),
    ("GITHUB_API_URL", "https://user:pass@github.example.org", "without user"),
    ("PUBLIC_URL", "relay.example.org", "http://"),
    ("PUBLIC_URL", "https://relay.example.org:99999", "http://"),
    ("PUBLIC_URL", "https://relay.example.org/?x=1", "without"),
    ("DATABASE_URL", "postgresql://u:hunter2@db", "names no database"),
    ("DATABASE_URL", "postgresql://u:hunter2@/crcr", "names no host"),
    ("DATABASE_URL", "postgresql://u:12/hunter2@db/crcr", "has a / in its user or password"),
    ("DATABASE_URL", "postgresql://u:hunter2@db/crcr?options=-csearch_path", "no others"),
    ("DATABASE_URL", "postgresql://u:hunter2@db/crcr?sslmode=maybe", "sslmode"),
    ("DATABASE_URL", "postgresql+psycopg://u:hunter2@db/crcr", "must be an address"),
    ("DATABASE_URL", "mysql://u:hunter2@db/crcr", "sqlite:///path"),
    ("DATABASE_URL", "sqlite:///:memory:", "sqlite:///path"),
    ("DATABASE_URL", "sqlite:///no/such/folder/x.db", "folder that exists"),
    ("REDIS_URL", "http://:hunter2@cache", "redis://"),
    ("REDIS_URL", "redis://:hunter2@", "names no host"),
    ("REDIS_URL", "redis://:hunter2@cache:99999", "redis://"),
    ("REDIS_URL", "redis://:hunter2@cache/first", "number of a database"),
    ("REDIS_URL", "rediss://:hunter2@cache/0?ssl_cert_reqs=none", "without ? and #"),
    ("REDIS_CA", "nowhere.pem", "cannot be read"),
    ("CLICKHOUSE_URL", "http://u:hunter2@ch", "clickhouse://"),
    ("CLICKHOUSE_URL", "clickhouse://u:hunter2@ch/a-b", "name of a database"),
    ("CLICKHOUSE_URL", "clickhouse://u:hunter2@ch?verify=0", "without ? and #"),
    ("CLICKHOUSE_URL", "chdb://hunter2/history", "chdb:///folder"),
    ("CLICKHOUSE_KEEP_DAYS", "30", "100"),
    ("ADMIN_TOKENS", "alice=hunter2", "run `crcr admin token NAME`"),
    ("ADMIN_TOKENS", "hunter2", "run `crcr admin token NAME`"),
    ("ADMIN_TOKENS", f"hunter2!=sha256:{'a' * 64}", "names of 1 to 64"),
    ("ADMIN_TOKENS", f"a=sha256:{'a' * 64}, A=sha256:{'b' * 64}", "a name twice"),
    ("ADMIN_TOKENS", f"a=sha256:{'a' * 64}, b=sha256:{'a' * 64}", "two names"),
    ("HUD_TOKENS", "ann=hunter2", "run `crcr admin token NAME --reader`"),
    ("HUD_PROXY_HEADER", "Authorization", "X-Forwarded-User"),
    ("HUD_PROXY_HEADER", "X User", "X-Forwarded-User"),
    *(
        ("HUD_PROXY_HEADER", name, "X-Forwarded-User")
        for name in (
            *("Connection", "Accept", "User-Agent", "Content-Length", "Sec-Fetch-Site", "X-Hud-Internal-Bot"),
            *("Cookie", "HOST", "Origin", "Referer", "If-None-Match", "X-Forwarded-Host"),
        )
    ),
    ("OIDC_AUDIENCE", " , ", "at least one"),
    ("OIDC_ISSUERS", "https://git.example.org", "JSON"),
    ("OIDC_ISSUERS", '{"issuer": 1}', "list"),
    ("OIDC_ISSUERS", '[{"issuer":"https://a.example.org"}]', "issuer and kind"),
    ("OIDC_ISSUERS", '[{"issuer":"https://a.example.org","kind":"jenkins"}]', "github, buildkite"),
    ("OIDC_ISSUERS", '[{"issuer":"http://a.example.org","kind":"github"}]', "https://"),
    ("RATE_LIMIT_PER_MIN", "0", "whole number"),
    ("PORT", "65536", "1 to 65535"),
    ("PORT", "-1", "1 to 65535"),
    ("JOB_TIMEOUT", "6", "such as 90s, 30m, 6h or 2d"),
    ("JOB_TIMEOUT", "31d", "at most 30d"),
    ("GATE_TIMEOUT", "0h", "such as"),
    ("GATE_TIMEOUT", "1h", "CRCR_JOB_TIMEOUT"),
    ("HUD_FORWARD_URL", "https://hud.example.org/api", "CRCR_HUD_FORWARD_TOKEN"),
    ("HUD_FORWARD_TOKEN", "hunter2", "CRCR_HUD_FORWARD_URL"),
    ("HUD_ACCESS", "token", "CRCR_HUD_TOKENS or CRCR_ADMIN_TOKENS"),
    ("HUD_ACCESS", "proxy", "CRCR_TRUSTED_PROXIES must list the proxies"),
    ("HUD_ACCESS", "everybody", "public"),
    ("TRUSTED_PROXIES", "10.0.0.1/8", "10.0.0.0/8"),
    ("TRUSTED_PROXIES", "proxy.example.org", "network"),
    ("HOST", "a host", "address"),
    ("LOG_FORMAT", "xml", "auto or json or console"),
    ("LOG_LEVEL", "loud", "debug"),
    ("WORKER_CONCURRENCY", "many", "whole number"),
    ("KEEP_BODIES_DAYS", "0", "1 to 3650"),
    ("KEEP_JOBS_DAYS", "99", "0 or a whole number from 100"),
    ("KEEP_AUDIT_DAYS", "-1", "0 or a whole number from 30"),
    ("KEEP_EFFECTS_DAYS", "0", "1 to 3650"),
    ("DRAIN_S", "1h", "0 to 300"),
    ("SHADOW", "maybe", "on or off"),
]


@pytest.mark.parametrize(("name", "value", "expected"), WRONG)
def test_a_wrong_value_is_reported_with_advice(tmp_path: Path, name: str, value: str, expected: str) -> None:
    message = problem(tmp_path, **{name: value})
    assert message.startswith(f"CRCR_{name} ")
    assert expected in message
    assert "hunter2" not in message


@pytest.mark.parametrize("name", list(REQUIRED))
@pytest.mark.parametrize("empty", [True, False])
def test_fault_51_a_missing_setting_is_always_reported(tmp_path: Path, name: str, empty: bool) -> None:
    environ = without(name.removeprefix("CRCR_")) | ({name: " "} if empty else {})
    (message,) = problems(tmp_path, environ)
    assert message.startswith(f"{name} is missing; set it")


def test_fault_51_all_problems_are_reported_together(tmp_path: Path) -> None:
    write_file(tmp_path, 'colour = "red"\n[log]\nlevel = "loud"\n')
    messages = problems(tmp_path, {"CRCR_PORT": "x", "CRCR_PROT": "1", "CRCR_REDIS_URL": "http://a"})
    named = {sentence.split()[0] for sentence in messages}
    assert named == {*REQUIRED, "colour", "log.level", "CRCR_PORT", "CRCR_PROT", "CRCR_REDIS_URL"}
    assert len(messages) == len(named)


def test_fault_52_no_default_points_at_somebodys_production() -> None:
    defaults = [row.default for row in settings_of(Settings).values() if row.default and "://" in row.default]
    assert set(defaults) == {"https://api.github.com", "http://127.0.0.1:8000", "sqlite:///crcr.db"}


def test_the_environment_overrides_the_file_and_the_file_the_defaults(tmp_path: Path) -> None:
    write_file(tmp_path, 'port = 9000\njob_timeout = "1h"\n[github]\napp_id = 77\n')
    settings = load(tmp_path, {**without("GITHUB_APP_ID"), "CRCR_PORT": "9001"})
    assert (settings.port, settings.job_timeout_s, settings.github_app_id) == (9001, 3600, "77")
    assert settings.gate_timeout_s == 8 * 3600


def test_a_config_file_given_by_option_must_exist(tmp_path: Path) -> None:
    (message,) = problems(tmp_path, REQUIRED, Path("other.toml"))
    assert "other.toml" in message
    assert "--config" in message


@pytest.mark.parametrize("content", [b"port = = 1", b'host = "\xff"'])
def test_a_file_that_is_not_toml_is_reported_instead_of_missing_settings(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "crcr.toml").write_bytes(content)
    messages = problems(tmp_path, {"CRCR_PORT": "x", "CRCR_ALLOWLIST": "nowhere.yml"})
    assert [sentence.split()[0] for sentence in messages] == ["crcr.toml", "CRCR_PORT", "CRCR_ALLOWLIST"]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("GITHUB_WEBHOK_SECRET", "did you mean CRCR_GITHUB_WEBHOOK_SECRET?"),
        ("WORKERS_CONCURRENCY", "did you mean CRCR_WORKER_CONCURRENCY?"),
        ("PORT_FILE", "only secrets are read from files; set CRCR_PORT"),
        ("COLOUR_OF_THE_SKY", "remove it"),
    ],
)
def test_an_unknown_variable_is_a_problem_with_a_hint(tmp_path: Path, name: str, expected: str) -> None:
    assert expected in problem(tmp_path, **{name: "1"})


def test_variables_without_the_prefix_are_ignored(tmp_path: Path) -> None:
    assert load(tmp_path, {**REQUIRED, "PATH": "/bin", "MY_CRCR_PORT": "1"}).port == 8000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("prot = 1", "prot is not a setting; did you mean port?"),
        ("github_app_id = 1", "github_app_id is not a setting; did you mean github.app_id?"),
        ("[github]\nappid = 1", "github.appid is not a setting; did you mean github.app_id?"),
        ("[tool.ruff]\nline-length = 1", "tool is not a setting"),
        ("[port]\nx = 1", "port must be a whole number"),
        ('upstream = "a/b"', "upstream must be written as [[upstream]] tables"),
        (
            '[[upstream]]\nname = "a/b"\nallow_list = "x"',
            "allow_list in [[upstream]] 1 is not a setting; did you mean allow",
        ),
        ('[[upstream]]\ngate = "maybe"', "gate in [[upstream]] 1 must be auto or on or off"),
    ],
)
def test_an_unknown_or_wrong_key_is_reported_as_written(tmp_path: Path, text: str, expected: str) -> None:
    write_file(tmp_path, text)
    (message,) = problems(tmp_path, REQUIRED)
    assert message.startswith(expected)


def test_a_secret_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "app.pem").write_text(PEM)
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "webhook").write_text("  kept as it is \n")
    path = write_file(tmp_path / "folder", '[github]\nwebhook_secret_file = "webhook"\n', "relay.toml")
    environ = without("GITHUB_APP_PRIVATE_KEY", "GITHUB_WEBHOOK_SECRET")
    settings = load(tmp_path, {**environ, "CRCR_GITHUB_APP_PRIVATE_KEY_FILE": "app.pem"}, path)
    assert settings.github_app_private_key.get_secret_value() == PEM.strip()
    assert settings.github_webhook_secret.get_secret_value() == "  kept as it is "


def test_a_secret_and_its_file_cannot_both_be_given(tmp_path: Path) -> None:
    message = problem(tmp_path, GITHUB_WEBHOOK_SECRET_FILE="webhook")
    assert (
        message == "CRCR_GITHUB_WEBHOOK_SECRET and CRCR_GITHUB_WEBHOOK_SECRET_FILE are both given; keep one."
    )


def test_a_variable_overrides_a_secret_file_named_in_the_config(tmp_path: Path) -> None:
    write_file(tmp_path, '[github]\nwebhook_secret_file = "webhook"\n')
    (tmp_path / "webhook").write_text("another")
    assert load(tmp_path).github_webhook_secret.get_secret_value() == WEBHOOK_SECRET


@pytest.mark.parametrize(
    ("content", "expected"), [(None, "No such file"), (b"\xff", "text"), (b"\n", "empty")]
)
def test_an_unreadable_or_empty_secret_file_is_reported(
    tmp_path: Path, content: bytes | None, expected: str
) -> None:
    if content is not None:
        (tmp_path / "webhook").write_bytes(content)
    environ = {**without("GITHUB_WEBHOOK_SECRET"), "CRCR_GITHUB_WEBHOOK_SECRET_FILE": "webhook"}
    (message,) = problems(tmp_path, environ)
    assert message.startswith("CRCR_GITHUB_WEBHOOK_SECRET_FILE ")
    assert expected in message


def test_keys_that_github_does_not_accept_are_refused_and_not_shown(tmp_path: Path) -> None:
    weak = rsa.generate_private_key(65537, 1024).private_bytes(*FORMAT).decode()  # noqa: S505 - that is the point
    other = ec.generate_private_key(ec.SECP256R1()).private_bytes(*FORMAT).decode()
    for pem in (weak, other, PEM[:400]):
        message = problem(tmp_path, GITHUB_APP_PRIVATE_KEY=pem)
        assert "BEGIN" not in message
        assert pem.splitlines()[1] not in message


def test_a_key_on_one_line_with_escaped_newlines_is_accepted(tmp_path: Path) -> None:
    load_with(tmp_path, GITHUB_APP_PRIVATE_KEY=PEM.replace("\n", "\\n"))


def test_fault_31_no_secret_is_in_a_repr_or_a_problem(tmp_path: Path) -> None:
    forward = {"HUD_FORWARD_URL": "https://hud.example.org", "HUD_FORWARD_TOKEN": "forward-token-123456"}
    settings = load_with(tmp_path, HUD_INGEST_TOKEN="ingest-token-123456", **forward)
    shown = f"{settings!r} {settings} {settings.model_dump()} {settings.model_dump_json()}"
    assert len(settings.secrets()) == 4
    assert not [secret for secret in settings.secrets() if secret in shown]
    message = problem(tmp_path, HUD_INGEST_TOKEN="forward-token-123456", **forward)
    assert message.startswith("CRCR_HUD_INGEST_TOKEN must differ from CRCR_HUD_FORWARD_TOKEN")
    assert "forward-token-123456" not in message


@pytest.mark.parametrize("written", ['[hud.tokens]\nann = "{}"\n', '[hud]\ntokens = ["ann={}"]\n'])
def test_tokens_in_the_file_may_be_a_table_or_a_list(tmp_path: Path, written: str) -> None:
    write_file(tmp_path, written.format(f"sha256:{'c' * 64}"))
    assert load(tmp_path).hud_tokens == (TokenSetting("ann", "c" * 64),)


def test_a_reader_and_an_administrator_cannot_share_a_name_or_token(tmp_path: Path) -> None:
    for reader in (f"ann=sha256:{'b' * 64}", f"bob=sha256:{'a' * 64}"):
        message = problem(tmp_path, ADMIN_TOKENS=f"ann=sha256:{'a' * 64}", HUD_TOKENS=reader)
        assert message.startswith("CRCR_ADMIN_TOKENS and CRCR_HUD_TOKENS must not share")


def test_access_by_proxy_refuses_to_trust_every_address(tmp_path: Path) -> None:
    assert load_with(tmp_path, HUD_ACCESS="proxy", TRUSTED_PROXIES="10.0.0.0/8").hud_access == "proxy"
    for everything in ("0.0.0.0/0", "10.0.0.0/8,::/0", "0.0.0.0/1,128.0.0.0/1", "8000::/1,10.0.0.1,::/1"):
        message = problem(tmp_path, HUD_ACCESS="proxy", TRUSTED_PROXIES=everything)
        assert "not every address" in message
        (warning,) = [
            warning_text
            for warning_text in load_with(tmp_path, TRUSTED_PROXIES=everything).warnings()
            if "PROXIES" in warning_text
        ]
        assert "every address" in warning


def test_access_by_token_works_with_admin_tokens_only(tmp_path: Path) -> None:
    assert (
        load_with(tmp_path, HUD_ACCESS="token", ADMIN_TOKENS=f"ann=sha256:{'a' * 64}").hud_access == "token"
    )


def test_risky_settings_cause_warnings(tmp_path: Path) -> None:
    settings = load_with(
        tmp_path, GITHUB_WEBHOOK_SECRET="short", PUBLIC_URL="http://relay.example.org", TRUSTED_PROXIES="::/0"
    )
    names = [sentence.split()[0] for sentence in settings.warnings()]
    assert names == ["CRCR_GITHUB_WEBHOOK_SECRET", "CRCR_PUBLIC_URL", "CRCR_TRUSTED_PROXIES"]


def test_several_upstreams_have_their_own_allowlists_and_policies(tmp_path: Path) -> None:
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "list.yml").write_text("L1: []")
    text = """
        [[upstream]]
        name = "a/one"
        allowlist = "list.yml"
        gate = true
        label_prefixes = ["ci/"]
        l3_conclusion = "failure"
        l3_pending = "neutral"
        ignore_refs = []
        [[upstream]]
        name = "b/two"
        allowlist = "https://github.com/b/two/blob/main/list.yml"
        """
    config = write_file(folder, text)
    first, second = load(tmp_path, without("UPSTREAM", "ALLOWLIST"), config).upstreams
    assert (first.allowlist, first.gate, first.label_prefixes) == (
        AllowlistFile(folder / "list.yml"),
        "on",
        ("ci/",),
    )
    assert (first.l3_conclusion, first.l3_pending, first.ignore_refs) == ("failure", "neutral", ())
    assert isinstance(second.allowlist, AllowlistOnGitHub)


EXCUSES: list[tuple[str, tuple[str, ...]]] = [
    ('"none"', ()),
    ("[]", ()),
    ('"flaky"', ("flaky",)),
    ('"pre-existing, flaky"', ("pre-existing", "flaky")),
    ('["flaky", "pre-existing"]', ("flaky", "pre-existing")),
]


@pytest.mark.parametrize(("written", "kinds"), EXCUSES)
def test_an_upstream_lists_the_verdicts_that_excuse_failures(
    tmp_path: Path, written: str, kinds: tuple[str, ...]
) -> None:
    write_file(tmp_path, f"[[upstream]]\nexcuses = {written}\n")
    (upstream,) = load(tmp_path).upstreams
    assert upstream.excuses == kinds


@pytest.mark.parametrize(
    "written", ['"new"', '["flaky", "infrastructure"]', '"unknown"', "true", '"none, flaky"', '""']
)
def test_other_verdicts_are_refused_as_excuses(tmp_path: Path, written: str) -> None:
    write_file(tmp_path, f"[[upstream]]\nexcuses = {written}\n")
    (message,) = problems(tmp_path, REQUIRED)
    assert message.startswith("excuses in [[upstream]] 1 must ")


def test_contradicting_upstream_tables_are_reported(tmp_path: Path) -> None:
    table = f'[[upstream]]\nname = "{{}}"\nallowlist = "{BLOB}/main/x.yml"\n'
    write_file(tmp_path, table.format("a/one") + table.format("A/One") + '[[upstream]]\nname = "c/three"\n')
    messages = problems(tmp_path, without("UPSTREAM", "ALLOWLIST"))
    assert messages == [
        "allowlist is missing in [[upstream]] 3; add it.",
        "The upstream A/One is in two [[upstream]] tables; keep one.",
    ]
    (message,) = problems(tmp_path, REQUIRED)
    assert message.startswith("CRCR_UPSTREAM and CRCR_ALLOWLIST can define one upstream only")


def test_variables_override_name_and_allowlist_of_the_only_upstream_table(tmp_path: Path) -> None:
    write_file(tmp_path, '[[upstream]]\nname = "a/one"\nallowlist = "gone.yml"\ngate = "off"\n')
    (upstream,) = load(tmp_path).upstreams
    assert (upstream.name, upstream.gate) == (RepoName("example/framework"), "off")


@pytest.mark.parametrize(
    ("address", "ref", "path"),
    [
        (f"{BLOB}/main/.github/allowlist.yml", "main", ".github/allowlist.yml"),
        (f"{BLOB}/release%2F2.0/a.yml", "release/2.0", "a.yml"),
        (f"{BLOB}/main/with%20blank.yml", "main", "with blank.yml"),
    ],
)
def test_a_github_url_of_an_allowlist_names_branch_and_path(
    tmp_path: Path, address: str, ref: str, path: str
) -> None:
    (upstream,) = load_with(tmp_path, ALLOWLIST=address).upstreams
    location = FileLocation(RepoName("example/framework"), ref, path)
    assert upstream.allowlist == AllowlistOnGitHub(location, "https://github.com")


@pytest.mark.parametrize(
    ("api", "web"),
    [
        ("https://ghes.example.org/api/v3", "https://ghes.example.org"),
        ("https://api.example.ghe.com", "https://example.ghe.com"),
        ("http://127.0.0.1:9000", "http://127.0.0.1:9000"),
    ],
)
def test_an_allowlist_must_be_on_the_configured_github(tmp_path: Path, api: str, web: str) -> None:
    load_with(tmp_path, GITHUB_API_URL=api, ALLOWLIST=f"{web}/example/framework/blob/main/x.yml")
    message = problem(tmp_path, GITHUB_API_URL=api)
    assert message.startswith("The allowlist of example/framework is at https://github.com")
    assert web in message


def test_issuers_are_read_from_tables_and_must_be_unique(tmp_path: Path) -> None:
    table = '[[oidc.issuer]]\nissuer = "https://ghes.example.org/_services/token"\nkind = "github"\n'
    write_file(tmp_path, table)
    assert load(tmp_path).oidc_issuers == (
        IssuerSetting("https://ghes.example.org/_services/token", IssuerKind.GITHUB),
    )
    write_file(tmp_path, table + table)
    assert problems(tmp_path, REQUIRED) == ["oidc.issuer names an issuer twice; keep one of them."]


def test_every_setting_is_declared_once_with_names_and_a_meaning() -> None:
    table = [*settings_of(Settings).values(), *settings_of(UpstreamSetting).values()]
    assert set(Settings.model_fields) == {*settings_of(Settings), "upstreams"}
    assert set(UpstreamSetting.model_fields) == set(settings_of(UpstreamSetting))
    assert len({row.key for row in table}) == len(table)
    assert all(row.meaning and not (row.required and row.default) for row in table)


def test_settings_cannot_be_changed(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="frozen"):
        load(tmp_path).port = 1


def test_the_generated_pages_are_up_to_date() -> None:
    assert docs.outdated(REPOSITORY / "docs") == {}, "run make docs"


def test_the_example_file_loads(tmp_path: Path) -> None:
    text = (REPOSITORY / "docs" / "examples" / "crcr.toml").read_text(encoding="utf-8")
    config = write_file(tmp_path, text)
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "app.pem").write_text(PEM)
    (tmp_path / "secrets" / "webhook").write_text(WEBHOOK_SECRET + "\n")
    (tmp_path / "allowlist.yml").write_text("L1: []\n")
    settings = load(Path("/"), {}, config)
    assert [str(upstream.name) for upstream in settings.upstreams] == [
        "example/framework",
        "example/compiler",
    ]
    assert settings.database == SqliteSetting(tmp_path / "crcr.db")
    assert settings.warnings() == ()
    assert json.loads(settings.model_dump_json())["github_webhook_secret"] == "**********"


@pytest.mark.parametrize(
    ("written", "problem"),
    [
        (
            'level_criteria = {pass_percent = 95, jobs = 100}\nsilent_mode = false\nl4_downgrade = "auto"',
            None,
        ),
        ("level_criteria = {pass_procent = 95}", "did you mean pass_percent?"),
        ("level_criteria = {jobs = 1.5}", "needs a whole number for jobs"),
        ("level_criteria = {queue_minutes = nan}", "needs a number for queue_minutes"),
        ("level_criteria = {pass_percent = true}", "needs a number for pass_percent"),
        ("level_criteria = {leave_pass_percent = 99}", "must not be stricter than pass_percent"),
        ("level_criteria = {window_days = 10}", "must be one of 7, 14, 30, 90"),
        ("level_criteria = 7", "must be a table"),
        ('l4_downgrade = "on"', "auto or off"),
    ],
)
def test_level_criteria_are_validated(written: str, problem: str | None) -> None:
    problems: list[str] = []
    table = tomllib.loads(
        f'[[upstream]]\nname = "a/b"\nallowlist = "https://github.com/a/b/blob/main/list.yml"\n{written}\n'
    )["upstream"]
    upstreams = read_upstreams(RawValue(table, "upstream", Path()), {}, problems)
    if problem is None:
        assert problems == []
        assert (upstreams[0].level_criteria.pass_percent, upstreams[0].silent_mode) == (95, "off")
        assert upstreams[0].level_criteria.leave_pass_percent == 85
    else:
        assert problem in problems[0]
