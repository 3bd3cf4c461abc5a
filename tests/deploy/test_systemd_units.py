"""The systemd units: accepted by systemd itself, hardened, with enough time to stop, and with settings that crcr accepts."""

import os
import re
import shutil
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest

from crcr.cli.run.process import GRACE_S
from crcr.settings import Settings, load_settings
from crcr.wiring.background import GRACE_S as COMPANY_GRACE_S
from github_sim.oidc.signing import private_pem
from support.deploy.deploy_files import DEPLOY, DRAIN_ROOM_S, STOP_S
from support.paths import ROOT

FOLDER = DEPLOY / "systemd"
SERVICES = sorted(path.name for path in FOLDER.glob("*.service"))
MOST_EXPOSED = 15
"""Of 100, as `systemd-analyze security` counts; a service without any protection has over 90."""

each_service = pytest.mark.parametrize("name", SERVICES)


def directives(*paths: Path) -> dict[str, list[str]]:
    values = defaultdict(list)
    for path in paths:
        for line in path.read_text().splitlines():
            if "=" in line and not line.startswith("#"):
                key, _, value = line.partition("=")
                values[key].append(value)
    return values


def analyze(*words: str | Path) -> subprocess.CompletedProcess[str]:
    program = shutil.which("systemd-analyze")
    assert program, "there is no systemd-analyze: install the Debian package systemd"
    environ = {**os.environ, "SYSTEMD_COLORS": "0", "LANG": "C"}
    return subprocess.run([program, *words], capture_output=True, text=True, check=False, env=environ)


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """The units in one folder, with their programs replaced by an existing one."""
    program = tmp_path / "program"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for path in (FOLDER / name for name in (*SERVICES, "crcr.target", "crcr.slice")):
        text = re.sub(r"(/opt/crcr/bin/crcr|/usr/bin/curl)", str(program), path.read_text())
        (tmp_path / path.name).write_text(text)
    for name in SERVICES:
        (tmp_path / f"{name}.d").mkdir()
        shutil.copy(FOLDER / "stores.conf", tmp_path / f"{name}.d")
    return tmp_path


@pytest.mark.slow
def test_systemd_accepts_every_line(installed: Path) -> None:
    instances = {
        "crcr-hud@.service": "crcr-hud@8101.service",
        "crcr-serve@.service": "crcr-serve@8001.service",
        "crcr-worker@.service": "crcr-worker@9101.service",
    }
    names = [instances.get(name, name) for name in SERVICES]
    units = [installed / name for name in (*names, "crcr.target", "crcr.slice")]
    result = analyze("verify", "--man=no", *units)
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


@pytest.mark.slow
def test_an_unknown_directive_would_be_reported(installed: Path) -> None:
    dropin = installed / "crcr-serve@.service.d" / "stores.conf"
    dropin.write_text(dropin.read_text() + "LoadCredentails=x:/y\n")
    assert "LoadCredentails" in analyze("verify", "--man=no", installed / "crcr-serve@8001.service").stderr


@pytest.mark.slow
@each_service
def test_a_service_is_hardened(name: str) -> None:
    result = analyze("security", "--offline=yes", f"--threshold={MOST_EXPOSED}", "--no-pager", FOLDER / name)
    assert result.returncode == 0, result.stdout


@each_service
def test_secrets_are_credentials_and_the_settings_are_accepted(name: str, tmp_path: Path) -> None:
    loaded = _settings(name, tmp_path)
    assert loaded.warnings() == ()
    assert loaded.database.display_name.endswith("//127.0.0.1:5432/crcr")


def _settings(name: str, folder: Path) -> Settings:
    """The settings of a service with the drop-in for stores, whose credentials are in `folder`."""
    found_directives = directives(FOLDER / name, FOLDER / "stores.conf")
    loaded = dict(each.split(":", 1) for each in found_directives["LoadCredential"])
    contents = {
        "github_app_private_key": private_pem("cli"),
        "github_webhook_secret": "w" * 20,
        "database_url": "postgresql://crcr:secret-enough-for-us@127.0.0.1:5432/crcr",
        "redis_url": "redis://:secret-enough-for-us@127.0.0.1:6379/0",
        "clickhouse_url": "clickhouse://crcr:secret-enough-for-us@127.0.0.1:8123/crcr",
    }
    assert set(loaded) == set(contents)
    assert loaded == {each: f"/etc/crcr/secrets/{each}" for each in loaded}
    for each, text in contents.items():
        (folder / each).write_text(text)
    environ = directives(FOLDER / "crcr.env.example")
    given = {key: value for key, [value] in environ.items()}
    given |= dict(
        each.replace("%d", str(folder)).replace("%i", "9101").split("=", 1)
        for each in found_directives["Environment"]
    )
    return load_settings(config=None, environ=given, cwd=folder)


def test_the_stop_timeout_covers_the_code_and_is_documented_with_the_same_value() -> None:
    """Requests have their grace period after the drain; background tasks have their own from the signal on."""
    assert max(GRACE_S, COMPANY_GRACE_S) + 10 <= STOP_S
    docs = (ROOT / "docs" / "deploy.md").read_text()
    assert set(re.findall(r"`CRCR_DRAIN_S` and (\d+) s", docs)) == {str(STOP_S)}


@pytest.mark.parametrize("name", ["crcr-hud@.service", "crcr-serve@.service", "crcr-worker@.service"])
def test_a_process_has_time_to_stop_cleanly_and_is_restarted_on_failure(name: str) -> None:
    unit = directives(FOLDER / name)
    assert int(unit["TimeoutStopSec"][0]) >= DRAIN_ROOM_S + STOP_S
    assert (unit["KillSignal"], unit["Restart"]) == (["SIGTERM"], ["on-failure"])
    assert unit["Requires"] == ["crcr-migrate.service"]
    assert "crcr-migrate.service" in unit["After"]


def test_the_hardening_of_all_units_is_identical() -> None:
    """The hardening is repeated in four files, since systemd cannot share it; it must stay the same."""
    alone = {
        name: path.read_text().split("\nUser=crcr\n")[1].split("\n[Install]")[0].strip()
        for name, path in ((name, FOLDER / name) for name in SERVICES)
    }
    assert len(set(alone.values())) == 1


def test_a_hud_serves_only_pages_and_differs_from_a_relay_only_in_its_role() -> None:
    hud, relay = (directives(FOLDER / name) for name in ("crcr-hud@.service", "crcr-serve@.service"))
    different = {key for key in hud | relay if hud.get(key) != relay.get(key)}
    assert different == {"Description", "ExecStart"}
    assert hud["ExecStart"] == ["/opt/crcr/bin/crcr serve --role hud --host 127.0.0.1 --port %i"]


@each_service
def test_the_page_process_may_lower_its_priority(name: str) -> None:
    """The lines apply in order: the last one allows its system call again."""
    filters = directives(FOLDER / name)["SystemCallFilter"]
    assert filters == ["@system-service", "~@privileged @resources", "setpriority"]


def test_crcr_by_hand_runs_a_command_with_the_settings_of_the_units(tmp_path: Path) -> None:
    secrets = tmp_path / "etc" / "secrets"
    secrets.mkdir(parents=True)
    (secrets / "database_url").write_text("postgresql://crcr:p$a'ss\"word@db/crcr\n")
    (secrets / "github_app_private_key").write_text("two\nlines\n")
    shutil.copy(FOLDER / "crcr.env.example", tmp_path / "etc" / "crcr.env")
    environment = _by_hand(tmp_path, "effects", "list", "--target", "org/a b")
    assert environment["CRCR_DATABASE_URL"] == "postgresql://crcr:p$a'ss\"word@db/crcr"
    assert environment["CRCR_GITHUB_APP_PRIVATE_KEY"] == "two\nlines"
    assert environment["CRCR_UPSTREAM"] == "example/framework"
    assert "CRCR_ETC" not in environment
    assert environment["ARGUMENTS"].splitlines()[-5:] == [
        "/opt/crcr/bin/crcr",
        "effects",
        "list",
        "--target",
        "org/a b",
    ]
    assert "--reuid=crcr" in environment["ARGUMENTS"]


def _by_hand(folder: Path, *words: str) -> dict[str, str]:
    """Run it with programs that only print their arguments and environment, in a folder that need not be the relay's."""
    (folder / "setpriv").write_text('#!/bin/sh\nARGUMENTS=$(printf "%s\\n" "$@") exec env -0\n')
    (folder / "setpriv").chmod(0o755)
    script = folder / "crcr-by-hand"
    script.write_text((FOLDER / "crcr-by-hand").read_text().replace("/var/lib/crcr", str(folder)))
    environ = {"PATH": f"{folder}:{os.environ['PATH']}", "CRCR_ETC": str(folder / "etc")}
    result = subprocess.run(["sh", script, *words], env=environ, capture_output=True, text=True, check=True)
    return dict(each.split("=", 1) for each in result.stdout.split("\0") if each)
