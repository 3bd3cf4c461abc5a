"""The Kustomize base: valid for the Kubernetes API, hardened, with enough time to stop, and with settings that crcr accepts."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest
import typer.main
import yaml
from typer.core import TyperGroup

from crcr.cli.main import app as command_line
from crcr.settings import load_settings
from crcr.show.metrics.registry import RelayMetrics
from github_sim.oidc.signing import private_pem
from support.deploy.deploy_files import DEPLOY, STOP_S

FOLDER = DEPLOY / "kubernetes"
VERSIONS = ("1.29", "1.37")
"""The oldest version that has all fields, and the newest that the validator knows."""


@cache
def resources() -> dict[tuple[str, str], Any]:
    files = [path for path in sorted(FOLDER.glob("*.yaml")) if path.name != "kustomization.yaml"]
    documents = [each for path in files for each in yaml.safe_load_all(path.read_text())]
    by_name = {(each["kind"], each["metadata"]["name"]): each for each in documents}
    assert len(by_name) == len(documents)
    return by_name


def pods() -> dict[str, Any]:
    """The pod templates by the name of their Deployment or Job."""
    return {
        name: each["spec"]["template"]
        for (kind, name), each in resources().items()
        if kind in {"Deployment", "Job"}
    }


def containers() -> Iterator[tuple[str, Any]]:
    return ((name, pod["spec"]["containers"][0]) for name, pod in pods().items())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_resource_is_valid_for_the_api(version: str) -> None:
    for each in resources().values():
        assert kubernetes_validate.validate(each, version, strict=True)


def test_kustomize_lists_every_file_and_image() -> None:
    kustomization = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())
    files = {path.name for path in FOLDER.glob("*.yaml")} - {"kustomization.yaml"}
    assert set(kustomization["resources"]) == files
    assert kustomization["namespace"] == "crcr"
    assert {container["image"] for _, container in containers()} == {
        image["name"] for image in kustomization["images"]
    }


def test_the_relay_accepts_the_settings(tmp_path: Path) -> None:
    environ = dict(resources()["ConfigMap", "crcr-settings"]["data"])
    secrets = {
        "github_app_private_key": private_pem("kubernetes"),
        "github_webhook_secret": "a-secret-that-nobody-sees",
        "database_url": "postgresql://crcr:word@postgres.example:5432/crcr?sslmode=require",
        "redis_url": "rediss://:word@redis.example:6379/0",
    }
    for name, value in secrets.items():
        (tmp_path / name).write_text(value)
    mount = "/run/secrets/crcr/"
    named = {value.removeprefix(mount) for value in environ.values() if value.startswith(mount)}
    assert named == set(secrets)
    local_environ = {name: value.replace(mount, f"{tmp_path}/") for name, value in environ.items()}
    settings = load_settings(config=None, environ=local_environ, cwd=tmp_path)
    assert settings.warnings() == ()
    readme = (FOLDER / "README.md").read_text()
    assert all(f"={name}=" in readme for name in secrets)


def test_pods_run_existing_commands_on_their_ports() -> None:
    commands = typer.main.get_command(command_line)
    assert isinstance(commands, TyperGroup)
    environ = resources()["ConfigMap", "crcr-settings"]["data"]
    ports = {"crcr-relay": environ["CRCR_PORT"], "crcr-worker": environ["CRCR_METRICS_PORT"]}
    for name, container in containers():
        command, *options = container["args"]
        known = {option for parameter in commands.commands[command].params for option in parameter.opts}
        known |= {
            option for parameter in commands.commands[command].params for option in parameter.secondary_opts
        }
        assert set(options) <= known
        assert [str(port["containerPort"]) for port in container.get("ports", ())] == [
            port for pod, port in ports.items() if pod == name
        ]
        mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
        assert mounts["secrets"]["readOnly"]


def test_pods_are_hardened() -> None:
    for name, pod in pods().items():
        spec, [container] = pod["spec"], pod["spec"]["containers"]
        assert spec["securityContext"]["runAsNonRoot"], name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]


def test_liveness_is_probed_at_healthz_readiness_at_readyz_and_pods_have_time_to_drain() -> None:
    drain_s = int(resources()["ConfigMap", "crcr-settings"]["data"]["CRCR_DRAIN_S"])
    for name in ("crcr-relay", "crcr-worker"):
        pod = pods()[name]["spec"]
        [container] = pod["containers"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["startupProbe"]["httpGet"]["path"] == "/healthz"
        assert pod["terminationGracePeriodSeconds"] >= STOP_S + drain_s
    [relay] = pods()["crcr-relay"]["spec"]["containers"]
    assert relay["readinessProbe"]["httpGet"]["path"] == "/readyz"


def test_selectors_match_their_pods() -> None:
    labels = {name: set(pod["metadata"]["labels"].items()) for name, pod in pods().items()}
    for (kind, name), each in resources().items():
        if kind in {"Deployment", "PodDisruptionBudget"}:
            assert set(each["spec"]["selector"]["matchLabels"].items()) <= labels[name]
        if kind == "Service":
            assert set(each["spec"]["selector"].items()) <= labels[name]
        if kind == "NetworkPolicy" and each["spec"]["podSelector"].get("matchLabels"):
            assert set(each["spec"]["podSelector"]["matchLabels"].items()) <= labels[name]


def test_only_proxy_and_prometheus_can_reach_a_pod() -> None:
    policies = {name: each["spec"] for (kind, name), each in resources().items() if kind == "NetworkPolicy"}
    assert policies["crcr-default"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    ingress = {
        name: [port["port"] for rule in spec.get("ingress", ()) for port in rule["ports"]]
        for name, spec in policies.items()
    }
    assert ingress == {"crcr-default": [], "crcr-relay": [8000], "crcr-worker": [9100], "crcr-outwards": []}
    assert all("from" in rule for spec in policies.values() for rule in spec.get("ingress", ()))
    [expression] = policies["crcr-outwards"]["podSelector"]["matchExpressions"]
    roles = {pod["metadata"]["labels"]["crcr/role"] for pod in pods().values()}
    assert set(expression["values"]) == roles


def test_the_autoscaler_uses_an_existing_metric() -> None:
    spec = resources()["HorizontalPodAutoscaler", "crcr-worker"]["spec"]
    [metric] = spec["metrics"]
    name = metric["external"]["metric"]["name"]
    exported = {family.name for family in RelayMetrics().registry.collect()}
    assert name in exported
    assert spec["minReplicas"] == resources()["Deployment", "crcr-worker"]["spec"]["replicas"]
    assert name in (FOLDER / "README.md").read_text()
