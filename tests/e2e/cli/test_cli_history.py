"""`crcr history backfill` on a grown installation, and the findings of `crcr doctor` about ClickHouse."""

import asyncio
import shutil
from datetime import UTC, datetime
from pathlib import Path

import pytest

from crcr.cli.doctor.relay.clickhouse import history_findings
from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan
from crcr.join.findings.finding import SetupFinding, State
from crcr.record.store.times import to_us
from crcr.settings import load_settings
from support.data.operator_database import OperatorShell, relay_environment
from support.running_relay import UPSTREAM
from support.services.clickhouse import new_database


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with generated history, to be copied."""
    path = tmp_path_factory.mktemp("grown") / "crcr.db"
    plan = HistoryPlan(
        upstream=UPSTREAM,
        backends=(BackendSpec("org/backend", 3, 6),),
        until=to_us(datetime.now(UTC)),
        days=20,
        jobs=5_000,
    )
    fill_database(path, plan)
    return path


@pytest.fixture
def grown(tmp_path: Path, filled: Path) -> OperatorShell:
    shutil.copy(filled, tmp_path / "crcr.db")
    return OperatorShell(tmp_path, relay_environment(tmp_path, CRCR_CLICKHOUSE_URL=new_database()))


def findings(shell: OperatorShell, **more: str) -> dict[str, SetupFinding]:
    settings = load_settings(config=None, environ={**shell.environ, **more}, cwd=shell.folder)
    return {
        each.name: each for each in asyncio.run(history_findings(settings, datetime.now(UTC), store=True))
    }


def test_a_backfill_copies_all_jobs_and_can_be_repeated(grown: OperatorShell) -> None:
    assert findings(grown)["clickhouse_fed"].state is State.WARNING
    jobs = grown.rows("SELECT count(*) AS n FROM jobs WHERE ended_as IS NOT NULL")[0]["n"]
    assert jobs > 4_000
    for words in ((), (), ("--anew",)):
        counts = {each["table"]: each for each in grown.json("history", "backfill", *words)}
        assert counts["crcr_jobs"] == {"table": "crcr_jobs", "here": jobs, "there": jobs}
        assert counts["crcr_dispatches"]["here"] == counts["crcr_dispatches"]["there"] > 0
    assert "crcr_jobs" in grown.ok("history", "backfill")
    clickhouse_findings = findings(grown)
    assert {each.state for each in clickhouse_findings.values()} == {State.OK}
    assert set(clickhouse_findings) == {"clickhouse", "clickhouse_schema", "clickhouse_lag"}


def test_without_clickhouse_a_backfill_is_an_error(grown: OperatorShell) -> None:
    environ = {name: value for name, value in grown.environ.items() if name != "CRCR_CLICKHOUSE_URL"}
    plain = OperatorShell(grown.folder, environ)
    result = plain.crcr("history", "backfill")
    assert (result.exit_code, "CRCR_CLICKHOUSE_URL" in result.stderr) == (1, True)
    assert findings(plain)["clickhouse"].state is State.OK


def test_an_unreachable_clickhouse_is_reported_without_its_password(grown: OperatorShell) -> None:
    away = OperatorShell(
        grown.folder, {**grown.environ, "CRCR_CLICKHOUSE_URL": "clickhouse://u:hunter2@127.0.0.1:1"}
    )
    result = away.crcr("history", "backfill")
    assert (result.exit_code, "does not answer" in result.stderr) == (1, True)
    finding = findings(away)["clickhouse"]
    assert finding.state is State.PROBLEM
    assert "hunter2" not in result.output + result.stderr + finding.text


def test_the_retention_is_compared_with_the_setting(grown: OperatorShell) -> None:
    grown.ok("history", "backfill")
    assert findings(grown, CRCR_CLICKHOUSE_KEEP_DAYS="200")["clickhouse_schema"].state is State.WARNING
