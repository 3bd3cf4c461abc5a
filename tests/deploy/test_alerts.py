"""The alerts for Prometheus: valid, tested by promtool, and documented."""

import re
from typing import Any

import pytest
import yaml

from support.deploy.alerts import ALERT_TESTS, ALERTS, alert_rules, all_series, metric_names, promtool
from support.paths import ROOT

OBSERVE = ROOT / "docs" / "observe.md"
MAY_BE_MISSING = {
    "crcr_history_lag_seconds",  # only with ClickHouse
    *("crcr_disk_free_bytes", "crcr_disk_size_bytes"),  # only with SQLite
    *("crcr_store_connections_used", "crcr_store_connections_most"),  # only with PostgreSQL
    "crcr_last_delivery_age_seconds",  # checked per upstream by CrcrWebhooksNeverCame
    "crcr_github_least_remaining_ratio",  # only after GitHub's first response
    *("crcr_refusals_total", "crcr_callbacks_total"),  # only after the first callback or refusal
    *("crcr_store_write_seconds_bucket", "crcr_live_delay_seconds_bucket"),  # always exported, with zeros
}
EXPORTED_TOGETHER = {
    "crcr_outbox_lag_seconds": {
        *("crcr_upstream_paused", "crcr_queue_effects", "crcr_gate_overdue_seconds"),
        *("crcr_allowlist_in_force", "crcr_allowlist_bad"),
    },
    "crcr_limiter_up": {"crcr_limiter_unavailable_total"},
    "crcr_github_calls_total": {"crcr_github_pauses_total"},
}
"""For a metric, the other metrics that are exported whenever it is."""

every_rule = pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])


@pytest.mark.slow
def test_promtool_accepts_the_rules() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_each_alert_fires_in_time_and_not_before() -> None:
    ran = promtool("test", "rules", ALERT_TESTS)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_promtool_tests_make_each_alert_fire() -> None:
    cases = yaml.safe_load(ALERT_TESTS.read_text())["tests"]
    labels_of_samples = [sample["labels"] for case in cases for each in case["promql_expr_test"] for sample in each["exp_samples"] if "labels" in sample]  # fmt: skip
    fired = {name for labels in labels_of_samples for name in re.findall(r'alertname="(\w+)"', labels)}
    queried = {
        name
        for case in cases
        for each in case["promql_expr_test"]
        if each["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', each["expr"])
    }
    assert {rule["alert"] for rule in alert_rules()} == fired | queried


@every_rule
def test_an_alert_has_severity_summary_description_and_runbook(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert len(rule["annotations"]["summary"]) <= 90
    assert rule["annotations"]["runbook_url"] == f"docs/observe.md#{rule['alert'].lower()}"


@every_rule
def test_an_alert_uses_existing_metrics(rule: dict[str, Any]) -> None:
    assert metric_names(rule["expr"]) - all_series() == set()
    assert metric_names(rule["expr"]) or "up{" in rule["expr"]


def test_alert_names_are_unique() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(names) == len(set(names))


def test_fault_42_every_metric_that_an_alert_uses_has_an_alert_for_its_absence() -> None:
    checked = {name for rule in alert_rules() for name in re.findall(r"absent\((\w+)\b", rule["expr"])}
    covered = checked | {name for leader in checked for name in EXPORTED_TOGETHER.get(leader, ())}
    judged = {name for rule in alert_rules() for name in metric_names(rule["expr"])}
    assert judged - covered - MAY_BE_MISSING == set()
    assert judged >= MAY_BE_MISSING


@every_rule
def test_an_alert_is_documented(rule: dict[str, Any]) -> None:
    documented = re.search(
        rf"^### {rule['alert']}\n\n(.+?)(?=^##|\Z)", OBSERVE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert documented, f"docs/observe.md has no section {rule['alert']}"
    assert len(documented[1].split()) >= 15


def test_every_documented_alert_exists() -> None:
    documented = set(re.findall(r"^### (Crcr\w+)$", OBSERVE.read_text(), re.MULTILINE))
    assert documented == {rule["alert"] for rule in alert_rules()}
