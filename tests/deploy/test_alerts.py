"""The alerts for Prometheus: they hold together, fire when they should, and are explained."""

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
    "crcr_last_delivery_age_seconds",  # missed upstream by upstream, by CrcrWebhooksNeverCame
    "crcr_github_least_remaining_ratio",  # only once GitHub has told it
    *("crcr_refusals_total", "crcr_callbacks_total"),  # nobody has called, or nobody was refused
    *("crcr_store_write_seconds_bucket", "crcr_live_delay_seconds_bucket"),  # always there, with zeros
}
TOLD_TOGETHER = {
    "crcr_outbox_lag_seconds": {
        *("crcr_upstream_paused", "crcr_queue_effects", "crcr_gate_overdue_seconds"),
        *("crcr_allowlist_in_force", "crcr_allowlist_bad"),
    },
    "crcr_limiter_up": {"crcr_limiter_unavailable_total"},
    "crcr_github_calls_total": {"crcr_github_pauses_total"},
}
"""Which metrics are there whenever another one is."""

every_rule = pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])


@pytest.mark.slow
def test_promtool_finds_nothing_wrong_with_the_rules() -> None:
    checked = promtool("check", "rules", "--lint=all", "--lint-fatal", ALERTS)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.slow
def test_each_alert_fires_when_it_should_and_not_before() -> None:
    ran = promtool("test", "rules", ALERT_TESTS)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_each_alert_is_shown_firing() -> None:
    cases = yaml.safe_load(ALERT_TESTS.read_text())["tests"]
    told = [sample["labels"] for case in cases for each in case["promql_expr_test"] for sample in each["exp_samples"] if "labels" in sample]  # fmt: skip
    fired = {name for labels in told for name in re.findall(r'alertname="(\w+)"', labels)}
    asked = {
        name
        for case in cases
        for each in case["promql_expr_test"]
        if each["exp_samples"]
        for name in re.findall(r'alertname="(\w+)"', each["expr"])
    }
    assert {rule["alert"] for rule in alert_rules()} == fired | asked


@every_rule
def test_an_alert_says_how_bad_it_is_what_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert len(rule["annotations"]["summary"]) <= 90
    assert rule["annotations"]["runbook_url"] == f"docs/observe.md#{rule['alert'].lower()}"


@every_rule
def test_an_alert_names_metrics_that_there_are(rule: dict[str, Any]) -> None:
    assert metric_names(rule["expr"]) - all_series() == set()
    assert metric_names(rule["expr"]) or "up{" in rule["expr"]


def test_the_names_are_each_used_once() -> None:
    names = [rule["alert"] for rule in alert_rules()]
    assert len(names) == len(set(names))


def test_fault_42_whatever_is_judged_is_missed_when_it_is_gone() -> None:
    asked_for = {name for rule in alert_rules() for name in re.findall(r"absent\((\w+)\b", rule["expr"])}
    covered = asked_for | {name for leader in asked_for for name in TOLD_TOGETHER.get(leader, ())}
    judged = {name for rule in alert_rules() for name in metric_names(rule["expr"])}
    assert judged - covered - MAY_BE_MISSING == set()
    assert judged >= MAY_BE_MISSING


@every_rule
def test_an_alert_is_explained_with_what_to_do(rule: dict[str, Any]) -> None:
    found = re.search(
        rf"^### {rule['alert']}\n\n(.+?)(?=^##|\Z)", OBSERVE.read_text(), re.DOTALL | re.MULTILINE
    )
    assert found, f"docs/observe.md has no section {rule['alert']}"
    assert len(found[1].split()) >= 15


def test_no_alert_is_explained_that_is_gone() -> None:
    told = set(re.findall(r"^### (Crcr\w+)$", OBSERVE.read_text(), re.MULTILINE))
    assert told == {rule["alert"] for rule in alert_rules()}
