"""A relay with ClickHouse, from the callback to the page: the worker feeds it, and an outage does no harm."""

import re
import subprocess
import sys
from pathlib import Path

from crcr.record.schema.statistics import FeedMark
from support.downstream.callbacks import BACKEND, dispatched_run, post_report, report_outcome
from support.running_relay import UPSTREAM, RunningRelay
from support.services.clickhouse import ClickHouseServer

READ_FROM = "History is read from ClickHouse."
DOES_NOT_ANSWER = "ClickHouse does not answer."


async def feed(relay: RunningRelay, seconds: float = 3) -> list[str]:
    """Let the worker feed ClickHouse; return the kinds of unfed rows."""
    await relay.pass_time(seconds)
    return [row["kind"] for row in relay.rows("SELECT kind FROM unfed")]


async def history_sources(relay: RunningRelay) -> set[str]:
    """The history sources that the API names."""
    paths = ("/api/v1/summary", f"/api/v1/backends/{BACKEND}", "/api/v1/metrics")
    return {(await relay.http.get(path, params={"upstream": UPSTREAM})).json()["history"] for path in paths}


async def fetch_page(relay: RunningRelay, path: str = "/crcr") -> str:
    answer = await relay.http.get(path)
    assert answer.status_code == 200
    return answer.text


async def test_results_are_fed_to_clickhouse_and_wait_during_its_outage(tmp_path: Path) -> None:
    server = ClickHouseServer(tmp_path / "engine", password="hunter2-and-more")
    server.start()
    try:
        async with dispatched_run(tmp_path, CRCR_CLICKHOUSE_URL=server.url) as (relay, run):
            now = relay.clock.now
            await relay.services.clickhouse.record_switch(relay.services.upstreams, now())
            assert report_outcome(await post_report(relay, run, "build", "in_progress")) == "applied"
            assert report_outcome(await post_report(relay, run, "build", "completed")) == "applied"
            assert await feed(relay) == []
            # ClickHouse was not in use from the beginning, so pages wait for a backfill.
            assert relay.rows("SELECT * FROM feeding WHERE name = 'whole'") == []
            await relay.services.clickhouse.feeding.set_mark(FeedMark.WHOLE, "1")
            for path in ("/crcr", f"/crcr/{BACKEND}", "/crcr/metrics"):
                assert READ_FROM in await fetch_page(relay, path)
            assert await history_sources(relay) == {"clickhouse"}

            server.stop()
            assert report_outcome(await post_report(relay, run, "test", "in_progress")) == "applied"
            assert report_outcome(await post_report(relay, run, "test", "completed")) == "applied"
            assert await feed(relay) == ["job"]
            [effect] = relay.rows("SELECT * FROM effects WHERE kind = 'feed_history' AND state = 'waiting'")
            assert "does not answer" in effect["last_error"]
            assert "hunter2" not in effect["last_error"]
            for path in ("/crcr", f"/crcr/{BACKEND}", "/crcr/metrics"):
                assert DOES_NOT_ANSWER in await fetch_page(relay, path)
            assert await history_sources(relay) == {"database"}

            relay.clock.advance(100)
            metrics = await fetch_page(relay, "/metrics")
            lag = re.search(
                rf'^crcr_history_lag_seconds{{upstream="{UPSTREAM}"}} (\S+)$', metrics, re.MULTILINE
            )
            assert lag is not None
            assert 100 <= float(lag[1]) < 110
            assert f'\ncrcr_history_unfed{{upstream="{UPSTREAM}"}} 1.0\n' in metrics
            assert "does not have the newest results" in await fetch_page(relay)

            server.start()
            assert await feed(relay, 40) == []
            assert READ_FROM in await fetch_page(relay)
    finally:
        server.stop()


async def test_without_clickhouse_no_results_are_queued_for_feeding(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.services.clickhouse.record_switch(relay.services.upstreams, relay.clock.now())
        await post_report(relay, run, "build", "in_progress")
        await post_report(relay, run, "build", "completed")
        assert relay.rows("SELECT * FROM unfed") == []
        assert relay.rows("SELECT * FROM feeding") == []


async def test_a_relay_that_no_longer_uses_clickhouse_empties_the_queue_and_queues_nothing_more(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.services.clickhouse.feeding.turn_on([UPSTREAM], relay.clock.now())
        await post_report(relay, run, "build", "in_progress")
        await post_report(relay, run, "build", "completed")
        assert [row["kind"] for row in relay.rows("SELECT kind FROM unfed")] == ["job"]

        await relay.services.clickhouse.record_switch(relay.services.upstreams, relay.clock.now())
        assert relay.rows("SELECT * FROM unfed") == relay.rows("SELECT * FROM feeding") == []
        await post_report(relay, run, "test", "in_progress")
        await post_report(relay, run, "test", "completed")
        assert relay.rows("SELECT * FROM unfed") == []


def test_a_relay_without_clickhouse_does_not_load_its_driver() -> None:
    script = (
        "import sys; import crcr.wiring.web_app, crcr.wiring.services, crcr.wiring.clickhouse, crcr.cli.main;"
        "sys.exit(any(name.split('.')[0] in {'clickhouse_connect', 'chdb'} for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
