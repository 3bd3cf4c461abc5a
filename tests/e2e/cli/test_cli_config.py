"""`crcr check-config` and `crcr migrate`, and every command's error for invalid settings and a missing database."""

import json
from pathlib import Path

import pytest

from support.data.operator_database import OperatorShell, relay_environment

PROBLEMS = {"CRCR_PORT": "99999", "CRCR_OIDC_AUDIENCE": "", "CRCR_TYPO": "x"}


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OperatorShell:
    monkeypatch.chdir(tmp_path)
    return OperatorShell(tmp_path, relay_environment(tmp_path))


def test_effective_settings_are_shown_with_their_origin_and_without_secrets(shell: OperatorShell) -> None:
    (shell.folder / "ingest").write_text("a-token-in-a-file-of-its-own")
    (shell.folder / "crcr.toml").write_text(
        'job_timeout = "90m"\n[log]\nlevel = "warning"\n[hud]\ningest_token_file = "ingest"\n'
    )
    out = shell.ok("check-config")
    report = shell.json("check-config")
    settings = {each["name"]: (each["value"], each["from"]) for each in report["settings"]}
    assert settings["CRCR_JOB_TIMEOUT"] == ("90m", "crcr.toml")
    assert settings["CRCR_LOG_LEVEL"] == ("warning", "crcr.toml")
    assert settings["CRCR_HUD_INGEST_TOKEN"] == ("(hidden)", "crcr.toml")
    assert settings["CRCR_PORT"] == ("8000", "default")
    assert settings["CRCR_DRAIN_S"] == ("0s", "default")
    assert settings["CRCR_GITHUB_WEBHOOK_SECRET"] == ("(hidden)", "CRCR_GITHUB_WEBHOOK_SECRET")
    for secret in (shell.environ["CRCR_GITHUB_WEBHOOK_SECRET"], "PRIVATE KEY-----", "a-token-in-a-file"):
        assert secret not in out + json.dumps(report)


def test_database_urls_are_shown_without_user_and_password(shell: OperatorShell) -> None:
    urls = {
        "CRCR_DATABASE_URL": "postgresql://ada:hunter2@db.example:5433/relay",
        "CRCR_REDIS_URL": "rediss://ada:hunter2@redis.example:6380/1",
        "CRCR_CLICKHOUSE_URL": "clickhouses://ada:hunter2@ch.example:8443/relay",
    }
    stored = OperatorShell(shell.folder, {**shell.environ, **urls})
    report = stored.json("check-config")
    settings = {each["name"]: each["value"] for each in report["settings"]}
    assert [settings[name] for name in urls] == [
        "postgresql://db.example:5433/relay",
        "rediss://redis.example:6380/1",
        "clickhouses://ch.example:8443/relay",
    ]
    out = stored.ok("check-config") + json.dumps(report)
    assert [word for word in ("hunter2", "ada", "ServiceUrl") if word in out] == []


@pytest.mark.parametrize("words", [("migrate",), ("serve", "--port", "0"), ("effects", "list")])
def test_an_unreachable_server_is_reported_with_a_hint(shell: OperatorShell, words: tuple[str, ...]) -> None:
    away = {"CRCR_DATABASE_URL": "postgresql://ada:hunter2@127.0.0.1:1/relay"}
    result = OperatorShell(shell.folder, {**shell.environ, **away}).crcr(*words)
    assert result.exit_code == 1
    assert "hint: check the address (CRCR_DATABASE_URL)" in result.stderr
    assert [word for word in ("hunter2", "Traceback") if word in result.output] == []


def test_all_problems_are_reported_together(shell: OperatorShell) -> None:
    bad = OperatorShell(shell.folder, {**shell.environ, **PROBLEMS})
    result = bad.crcr("check-config")
    assert result.exit_code == 2
    lines = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 3
    as_json = bad.crcr("check-config", "--json")
    assert (as_json.exit_code, len(json.loads(as_json.stdout)["problems"])) == (2, 3)


@pytest.mark.parametrize("words", [("serve",), ("worker",), ("migrate",), ("deliveries", "list"), ("pause",)])
def test_invalid_settings_stop_every_command_with_2_and_without_a_traceback(
    shell: OperatorShell, words: tuple[str, ...]
) -> None:
    result = OperatorShell(shell.folder, {**shell.environ, **PROBLEMS}).crcr(*words)
    assert result.exit_code == 2
    assert result.stderr.count("error: ") == 3
    assert "Traceback" not in result.output


def test_warnings_are_printed_and_do_not_fail(shell: OperatorShell) -> None:
    unwise = OperatorShell(shell.folder, {**shell.environ, "CRCR_PUBLIC_URL": "http://relay.example"})
    result = unwise.crcr("check-config")
    assert (result.exit_code, "unencrypted" in result.stderr) == (0, True)


def test_a_migration_prints_the_revisions_before_and_after(shell: OperatorShell) -> None:
    assert "empty → 0" in shell.ok("migrate")
    assert "already at revision" in shell.ok("migrate")


def test_a_command_does_not_create_a_missing_database(shell: OperatorShell) -> None:
    result = shell.crcr("deliveries", "list")
    assert (result.exit_code, "there is no database" in result.stderr) == (1, True)
    assert not (shell.folder / "crcr.db").exists()


def test_a_file_that_is_not_a_database_is_reported_without_a_traceback(shell: OperatorShell) -> None:
    (shell.folder / "crcr.db").write_text("this is something else entirely, and long enough to look at" * 10)
    for words in (("migrate",), ("serve", "--port", "0"), ("deliveries", "list")):
        result = shell.crcr(*words)
        assert (result.exit_code, "file is not a database" in result.stderr) == (1, True)
        assert "Traceback" not in result.output


def test_a_database_without_tables_is_reported_with_a_hint_to_migrate(shell: OperatorShell) -> None:
    (shell.folder / "crcr.db").touch()
    result = shell.crcr("deliveries", "list")
    assert (result.exit_code, "crcr migrate" in result.stderr) == (1, True)
