"""The alert rules and the dashboard of `deploy/`, and the metrics that their expressions name."""

import json
import re
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from crcr.show.metrics.registry import RelayMetrics
from support.deploy.deploy_files import DEPLOY

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
ALERT_TESTS = DEPLOY / "prometheus" / "alerts_test.yml"
DASHBOARD = DEPLOY / "grafana" / "crcr.json"

_METRIC = re.compile(r"\b(?:crcr|process)_[a-z_]+")
_QUOTED = re.compile(r'"[^"]*"')


def promtool(*words: str | Path) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    assert found, (
        "promtool is missing: install the Debian package prometheus (tools/debian-packages prometheus)"
    )
    return subprocess.run([found, *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


@cache
def alert_rules() -> tuple[dict[str, Any], ...]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return tuple(rule for group in groups for rule in group["rules"])


@cache
def dashboard() -> dict[str, Any]:
    content: dict[str, Any] = json.loads(DASHBOARD.read_text())
    return content


def panels() -> list[dict[str, Any]]:
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def metric_names(expression: str) -> set[str]:
    """The relay's metrics that an expression names, quoted text left out."""
    return set(_METRIC.findall(_QUOTED.sub('""', expression)))


@cache
def all_series() -> frozenset[str]:
    """The names of all series that a relay process can export."""
    found = set()
    for family in RelayMetrics().registry.collect():
        ends = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count")}.get(family.type, ("",))
        found |= {family.name + end for end in ends}
    return frozenset(found)
