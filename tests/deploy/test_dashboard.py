"""The Grafana dashboard: a valid file, and queries that Prometheus can parse."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deploy.alerts import DASHBOARD, all_series, dashboard, metric_names, panels, promtool

WIDTH = 24
VARIABLES = {"$__rate_interval": "5m", "$upstream": ".*"}


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


def test_panel_ids_and_titles_are_unique() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    row, titles = "", []
    for panel in dashboard()["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        titles.append((row, panel["title"]))
    assert len(titles) == len(set(titles))


def test_no_panel_overlaps_another_or_exceeds_the_width() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}

    places = {panel["id"]: cells(panel) for panel in dashboard()["panels"]}
    assert [pair for pair in combinations(places, 2) if places[pair[0]] & places[pair[1]]] == []
    assert all(0 <= x < WIDTH for each in places.values() for x, _ in each)


def test_the_rows_are_in_their_order() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Webhooks", "Outbox", "Callbacks", "GitHub", "Stores", "History and pages"]


def test_every_panel_uses_the_selected_data_source_and_has_a_unit() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [each["datasource"] for each in (panel, *panel["targets"])] == [chosen] * (
            1 + len(panel["targets"])
        )
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))


def test_the_declared_variables_are_those_in_use() -> None:
    names = {each["name"] for each in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) - {"__rate_interval", "__all"}
    assert names == used == {"datasource", "upstream"}
    assert dashboard()["schemaVersion"] >= 39


@pytest.mark.slow
def test_prometheus_can_parse_every_query(tmp_path: Path) -> None:
    """Promtool checks a file of rules instead of single expressions."""
    rules = []
    for number, expression in enumerate(expressions()):
        for name, value in VARIABLES.items():
            expression = expression.replace(name, value)  # noqa: PLW2901
        rules.append({"record": f"question:{number}", "expr": expression})
    path = tmp_path / "questions.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "questions", "rules": rules}]}))
    checked = promtool("check", "rules", path)
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize("expression", expressions())
def test_a_query_uses_existing_metrics(expression: str) -> None:
    assert metric_names(expression) - all_series() == set()
    assert metric_names(expression) or expression.startswith("count(ALERTS")


def test_metrics_that_every_process_exports_are_never_summed_over_processes() -> None:
    """Ten replicas would show ten times the queue."""
    alike = [
        name for name in all_series() if name.startswith(("crcr_queue", "crcr_effects_", "crcr_open_gates"))
    ]
    for expression in expressions():
        for name in alike:
            if name in metric_names(expression) and not name.endswith("_total"):
                assert re.search(rf"(max|min)(?: by \([\w, ]+\))? \({name}|max\({name}", expression), (
                    expression
                )


def test_nearly_every_metric_is_on_the_dashboard() -> None:
    shown = {name for expression in expressions() for name in metric_names(expression)}
    ours = {name for name in all_series() if name.startswith("crcr_")}
    families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in ours}
    shown_families = {re.sub(r"_(bucket|sum|count)$", "", name) for name in shown}
    # One is shown by kind instead, the other is a figure about the rules that needs no action of an operator.
    assert families - shown_families == {"crcr_effects_waiting", "crcr_verdicts_contradicted"}
