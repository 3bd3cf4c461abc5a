"""The compose file: valid by the compose schema, and consistent with the relay that it starts."""

import asyncio
import re
import shutil
import stat
import subprocess
import sys
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from crcr import __version__
from crcr.settings import Settings, load_settings
from github_sim.oidc.signing import private_pem
from support.data.operator_database import relay_environment
from support.deploy.deploy_files import DEPLOY, DRAIN_ROOM_S, STOP_S
from support.process import crcr, free_port

FOLDER = DEPLOY / "compose"
FILE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = FILE["services"]
OURS = sorted(name for name, each in SERVICES.items() if each["image"].startswith("crcr:"))
STORES = ("postgres", "redis", "clickhouse")
OPERATOR_SECRETS = {"github_app_private_key"}
"""Provided by the operator; everything else is created by `secrets.sh`."""

each_of_ours = pytest.mark.parametrize("name", OURS)


def networks(name: str) -> set[str]:
    return set(SERVICES[name]["networks"])


def address(name: str) -> str:
    ip_address_text: str = SERVICES[name]["networks"]["relay"]["ipv4_address"]
    return ip_address_text


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    subprocess.run([FOLDER / "secrets.sh", folder], check=True, capture_output=True)
    (folder / "github_app_private_key").write_text(private_pem("cli"))
    return folder


def settings(name: str, secrets: Path) -> Settings:
    """The settings of a service, loaded by crcr with the generated secrets."""
    lines = (FOLDER / ".env.example").read_text().splitlines()
    env = dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))
    given = {**env, **SERVICES[name]["environment"]}
    target = {key: value.replace("/run/secrets", str(secrets)) for key, value in given.items()}
    return load_settings(config=None, environ=target, cwd=secrets)


def test_the_compose_file_matches_the_schema() -> None:
    words = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    result = subprocess.run([*words, FOLDER / "compose.yaml"], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout


@each_of_ours
def test_crcr_accepts_the_settings_of_each_service(name: str, secrets: Path) -> None:
    loaded = settings(name, secrets)
    assert loaded.database.display_name.endswith("//postgres:5432/crcr")
    assert loaded.redis_url is not None
    assert loaded.clickhouse_url is not None
    assert loaded.warnings() == ()


@each_of_ours
def test_every_secret_in_the_environment_is_mounted(name: str) -> None:
    named = {value for key, value in SERVICES[name]["environment"].items() if key.endswith("_FILE")}
    assert named == {f"/run/secrets/{each}" for each in SERVICES[name]["secrets"]}
    assert set(SERVICES[name]["secrets"]) <= set(FILE["secrets"])


def test_the_script_creates_every_secret_once_with_private_permissions(secrets: Path) -> None:
    expected = {Path(each["file"]).name for each in FILE["secrets"].values()} | {"clickhouse.env"}
    made = {path.name: path.read_bytes() for path in secrets.iterdir()}
    assert expected <= set(made)
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    result = subprocess.run([FOLDER / "secrets.sh", secrets], check=True, capture_output=True, text=True)
    assert {path.name: path.read_bytes() for path in secrets.iterdir()} == made
    assert "private key" not in result.stdout
    passwords = [value for name, value in made.items() if name.endswith("_password")]
    assert len(set(passwords)) == len(passwords) == 4
    assert made["postgres_password"] in made["database_url"]


def test_mounted_files_exist() -> None:
    brought = {".env", "./tls", "secrets/clickhouse.env"}
    named = {each["file"] for each in FILE["secrets"].values()}
    for service in SERVICES.values():
        named |= {mount.split(":")[0] for mount in service.get("volumes", ()) if mount[0] in "./"}
        named |= {service["env_file"]} if "env_file" in service else set()
        named |= (
            {f"{service['build']['context']}/{service['build']['dockerfile']}"}
            if "build" in service
            else set()
        )
    ours = {path for path in named - brought if not path.startswith("secrets/")}
    assert ours
    assert [path for path in sorted(ours) if not (FOLDER / path).is_file()] == []


def test_our_own_image_has_the_tag_of_this_release() -> None:
    assert {SERVICES[name]["image"] for name in OURS} == {f"crcr:${{IMAGE_TAG:-{__version__}}}"}


def test_only_the_relay_can_reach_the_stores() -> None:
    assert {name: each["ports"] for name, each in SERVICES.items() if "ports" in each}.keys() == {
        "proxy",
        "grafana",
    }
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["grafana"]["ports"])
    assert FILE["networks"]["stores"]["internal"] is True
    assert {name for name in SERVICES if "stores" in networks(name)} == {*OURS, *STORES}
    assert [networks(name) for name in STORES] == [{"stores"}] * 3


def test_the_relays_trust_the_proxy_and_the_proxy_lists_the_relays(secrets: Path) -> None:
    [trusted] = settings("relay-1", secrets).trusted_proxies
    assert trusted == ip_network(address("proxy"))
    relays = {f"{address(name)}:8000" for name in OURS if name.startswith("relay-")}
    assert set(re.findall(r"server (\S+)", (FOLDER / "upstream.conf").read_text())) == relays
    subnet = ip_network(FILE["networks"]["relay"]["ipam"]["config"][0]["subnet"])
    assert all(ip_address(address(name)) in subnet for name in ("proxy", "relay-1", "relay-2"))


def test_no_service_starts_before_the_migration() -> None:
    waiting = {name: SERVICES[name]["depends_on"] for name in OURS if name != "migrate"}
    assert {each["migrate"]["condition"] for each in waiting.values()} == {"service_completed_successfully"}
    assert SERVICES["migrate"]["depends_on"]["postgres"] == {"condition": "service_healthy"}
    assert SERVICES["migrate"]["restart"].startswith("on-failure")


def test_every_service_has_health_check_limits_and_restart_policy() -> None:
    for name, each in SERVICES.items():
        assert each["restart"], name
        assert {"test", "disable"} & set(each["healthcheck"]), name
        assert set(each["deploy"]["resources"]["limits"]) == {"cpus", "memory"}, name
        assert "no-new-privileges:true" in each["security_opt"], name
    for name in OURS:
        assert (SERVICES[name]["read_only"], SERVICES[name]["cap_drop"]) == (True, ["ALL"])
        assert int(SERVICES[name]["stop_grace_period"].removesuffix("s")) >= DRAIN_ROOM_S + STOP_S


def test_two_relays_and_two_workers_run() -> None:
    assert [name for name in OURS if name.startswith("relay-")] == ["relay-1", "relay-2"]
    assert SERVICES["relay-1"]["command"] == SERVICES["relay-2"]["command"]
    assert "--no-worker" in SERVICES["relay-1"]["command"]
    assert [name for name in OURS if SERVICES[name]["command"] == ["worker"]] == ["worker-1", "worker-2"]


def test_prometheus_scrapes_the_ports_that_serve_metrics(secrets: Path) -> None:
    jobs = yaml.safe_load((FOLDER / "prometheus.yml").read_text())["scrape_configs"]
    # Fixed names: a target from service discovery disappears with its container, and no alert would fire.
    assert all(
        set(job) == {"job_name", "static_configs"} and job["job_name"].startswith("crcr") for job in jobs
    )
    targets = {target for job in jobs for each in job["static_configs"] for target in each["targets"]}
    worker = settings("worker-1", secrets)
    assert worker.host == "0.0.0.0"  # noqa: S104  Prometheus scrapes it from outside its container
    ports = {name: 8000 if name.startswith("relay-") else worker.metrics_port for name in OURS}
    always = [name for name in OURS if name != "migrate" and "profiles" not in SERVICES[name]]
    assert targets == {f"{name}:{ports[name]}" for name in always}
    assert all("relay" in networks(target.partition(":")[0]) for target in targets)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("service", "words", "ready"),
    [
        ("relay-1", "serve --no-worker --port", "crcr is listening on"),
        ("worker-1", "worker", "crcr is processing"),
    ],
)
async def test_the_health_check_succeeds_on_a_real_process(
    tmp_path: Path, service: str, words: str, ready: str
) -> None:
    port = str(free_port())
    known, command = relay_environment(tmp_path), words.split()
    if service == "worker-1":
        known["CRCR_METRICS_PORT"] = port
    else:
        command.append(port)
    kind, program, *rest = SERVICES[service]["healthcheck"]["test"]
    assert (kind, program) == ("CMD", "python")
    check = [sys.executable, *(re.sub(r":\d{4}/", f":{port}/", word) for word in rest)]
    assert await asyncio.to_thread(_exit_code, check) != 0
    async with crcr(*command, folder=tmp_path, environ=known) as process:
        await process.wait_for_line(ready)
        assert await asyncio.to_thread(_exit_code, check) == 0
        assert await process.stop() == 0


def _exit_code(words: list[str]) -> int:
    return subprocess.run(words, capture_output=True, check=False).returncode


def test_the_shell_scripts_pass_shellcheck() -> None:
    shellcheck = shutil.which("shellcheck", path=str(Path(sys.executable).parent))
    assert shellcheck
    for script in (FOLDER / "secrets.sh", DEPLOY / "systemd" / "crcr-by-hand"):
        result = subprocess.run([shellcheck, script], capture_output=True, text=True, check=False)
        assert result.stdout == ""
