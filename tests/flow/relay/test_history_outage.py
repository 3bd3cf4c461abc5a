"""A relay with ClickHouse, from the callback to the page: fed by its worker, and none the worse without it."""

import re
import subprocess
import sys
from pathlib import Path

from crcr.record.schema.statistics import FeedMark
from support.downstream.callbacks import BACKEND, dispatched_run, post_report, report_outcome
from support.services.clickhouse import ClickHouseServer
from support.stage import UPSTREAM, Stage

READ_FROM = "History is read from ClickHouse."
DOES_NOT_ANSWER = "ClickHouse does not answer."


async def fed(it: Stage, seconds: float = 3) -> list[str]:
    """Let the worker feed; return what is left."""
    await it.pass_time(seconds)
    return [row["kind"] for row in it.rows("SELECT kind FROM unfed")]


async def sources(it: Stage) -> set[str]:
    """Where the API says that its history came from."""
    paths = ("/api/v1/summary", f"/api/v1/backends/{BACKEND}", "/api/v1/metrics")
    return {(await it.http.get(path, params={"upstream": UPSTREAM})).json()["history"] for path in paths}


async def page(it: Stage, path: str = "/crcr") -> str:
    answer = await it.http.get(path)
    assert answer.status_code == 200
    return answer.text


async def test_results_go_to_clickhouse_and_wait_for_it_while_it_is_away(tmp_path: Path) -> None:
    server = ClickHouseServer(tmp_path / "engine", password="hunter2-and-more")
    server.start()
    try:
        async with dispatched_run(tmp_path, CRCR_CLICKHOUSE_URL=server.url) as (it, run):
            now = it.clock.now
            await it.services.clickhouse.record_switch(it.services.upstreams, now())
            assert report_outcome(await post_report(it, run, "build", "in_progress")) == "applied"
            assert report_outcome(await post_report(it, run, "build", "completed")) == "applied"
            assert await fed(it) == []
            # It was not there from the beginning, so pages wait for a backfill.
            assert it.rows("SELECT * FROM feeding WHERE name = 'whole'") == []
            await it.services.clickhouse.feeding.set_mark(FeedMark.WHOLE, "1")
            for path in ("/crcr", f"/crcr/{BACKEND}", "/crcr/metrics"):
                assert READ_FROM in await page(it, path)
            assert await sources(it) == {"clickhouse"}

            server.stop()
            assert report_outcome(await post_report(it, run, "test", "in_progress")) == "applied"
            assert report_outcome(await post_report(it, run, "test", "completed")) == "applied"
            assert await fed(it) == ["job"]
            [effect] = it.rows("SELECT * FROM effects WHERE kind = 'feed_history' AND state = 'waiting'")
            assert "does not answer" in effect["last_error"]
            assert "hunter2" not in effect["last_error"]
            for path in ("/crcr", f"/crcr/{BACKEND}", "/crcr/metrics"):
                assert DOES_NOT_ANSWER in await page(it, path)
            assert await sources(it) == {"database"}

            it.clock.advance(100)
            metrics = await page(it, "/metrics")
            lag = re.search(
                rf'^crcr_history_lag_seconds{{upstream="{UPSTREAM}"}} (\S+)$', metrics, re.MULTILINE
            )
            assert lag is not None
            assert 100 <= float(lag[1]) < 110
            assert f'\ncrcr_history_unfed{{upstream="{UPSTREAM}"}} 1.0\n' in metrics
            assert "does not have the newest results" in await page(it)

            server.start()
            assert await fed(it, 40) == []
            assert READ_FROM in await page(it)
    finally:
        server.stop()


async def test_who_stops_using_it_has_nothing_noted_any_more(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (it, run):
        await it.services.clickhouse.record_switch(it.services.upstreams, it.clock.now())
        await post_report(it, run, "build", "in_progress")
        await post_report(it, run, "build", "completed")
        assert it.rows("SELECT * FROM unfed") == []
        assert it.rows("SELECT * FROM feeding") == []


def test_a_relay_without_clickhouse_does_not_load_its_driver() -> None:
    script = (
        "import sys; import crcr.wiring.web_app, crcr.wiring.services, crcr.wiring.clickhouse, crcr.cli.main;"
        "sys.exit(any(name.split('.')[0] in {'clickhouse_connect', 'chdb'} for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
