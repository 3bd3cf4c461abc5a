"""The Grafana dashboard: a file that Grafana can read, and questions that Prometheus can answer."""

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


def test_the_ids_and_titles_of_panels_are_their_own() -> None:
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(ids) == len(set(ids))
    row, titles = "", []
    for panel in dashboard()["panels"]:
        row = panel["title"] if panel["type"] == "row" else row
        titles.append((row, panel["title"]))
    assert len(titles) == len(set(titles))


def test_no_panel_covers_another_or_leaves_the_page() -> None:
    def cells(panel: dict[str, Any]) -> set[tuple[int, int]]:
        at = panel["gridPos"]
        return {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}

    places = {panel["id"]: cells(panel) for panel in dashboard()["panels"]}
    assert [pair for pair in combinations(places, 2) if places[pair[0]] & places[pair[1]]] == []
    assert all(0 <= x < WIDTH for each in places.values() for x, _ in each)


def test_the_rows_are_there_in_their_order() -> None:
    rows = [panel["title"] for panel in dashboard()["panels"] if panel["type"] == "row"]
    assert rows == ["Overview", "Webhooks", "Outbox", "Callbacks", "GitHub", "Stores", "History and pages"]


def test_every_panel_asks_the_chosen_data_source_and_has_a_unit() -> None:
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    for panel in panels():
        assert panel["type"] in {"timeseries", "stat"}
        assert panel["fieldConfig"]["defaults"]["unit"]
        assert [each["datasource"] for each in (panel, *panel["targets"])] == [chosen] * (
            1 + len(panel["targets"])
        )
        refs = [target["refId"] for target in panel["targets"]]
        assert len(refs) == len(set(refs))


def test_the_variables_are_those_that_are_used() -> None:
    names = {each["name"] for each in dashboard()["templating"]["list"]}
    used = set(re.findall(r"\$\{?(\w+)", DASHBOARD.read_text())) - {"__rate_interval", "__all"}
    assert names == used == {"datasource", "upstream"}
    assert dashboard()["schemaVersion"] >= 39


@pytest.mark.slow
def test_prometheus_can_read_every_question(tmp_path: Path) -> None:
    """Promtool reads no single expression, but a file of rules."""
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
def test_a_question_names_metrics_that_there_are(expression: str) -> None:
    assert metric_names(expression) - all_series() == set()
    assert metric_names(expression) or expression.startswith("count(ALERTS")


def test_what_every_process_tells_alike_is_never_summed_over_processes() -> None:
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
    # One is shown by kind instead, the other is a figure about the rules that no operator acts on.
    assert families - shown_families == {"crcr_effects_waiting", "crcr_verdicts_contradicted"}
