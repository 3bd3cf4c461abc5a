"""A PostgreSQL session that freezes in a transaction: callbacks wait for its locks within their budget, and the wait is logged."""

import asyncio
import signal
import sys
import time
from pathlib import Path

import asyncpg
import pytest
from structlog.testing import capture_logs

from crcr.settings import PostgresSetting
from support.downstream.callbacks import dispatched_run, post_report, refusal_code, report_outcome
from support.running_relay import RunningRelay

PROXY_TIMEOUT_S = 8.0
"""After this time the proxy sends the request to the next relay."""
LOCK = "BEGIN; SELECT * FROM jobs FOR UPDATE"
FREEZING_SCRIPT = f"""
import asyncio, sys
from crcr.record.store.database import PostgresLocation
from crcr.record.store.postgres.connection import connect

async def hold():
    connection = await connect(PostgresLocation(sys.argv[1]))
    await connection.execute({LOCK!r})
    if sys.argv[2] == "within":
        await connection._protocol.prepare(
            "half", "SELECT 1", 5, state=None, ignore_custom_codec=False, record_class=None
        )
    print("held", flush=True)
    await asyncio.sleep(60)

asyncio.run(hold())
"""
"""Freezes between two statements, or within one: Parse and Flush are sent, Bind is not, and PostgreSQL counts it as active."""


@pytest.fixture(autouse=True)
def _on_postgresql(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCR_TEST_STORE", "postgresql")
    monkeypatch.setenv("CRCR_TEST_TIMEOUTS", "real")


def postgres_url(relay: RunningRelay) -> str:
    database = relay.services.settings.database
    assert isinstance(database, PostgresSetting)
    return database.url.get_secret_value()


@pytest.mark.parametrize(("at", "ended_by_us"), [("between", 0), ("within", 1)])
async def test_a_session_frozen_in_a_transaction_is_ended_and_the_callback_is_accepted(
    tmp_path: Path, at: str, ended_by_us: int
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert report_outcome(await post_report(relay, run, "build", "in_progress")) == "applied"
        frozen = await asyncio.create_subprocess_exec(
            sys.executable, "-c", FREEZING_SCRIPT, postgres_url(relay), at, stdout=asyncio.subprocess.PIPE
        )
        try:
            assert frozen.stdout is not None
            assert await frozen.stdout.readline() == b"held\n"
            frozen.send_signal(signal.SIGSTOP)
            began = time.monotonic()
            with capture_logs() as logged:
                assert report_outcome(await post_report(relay, run, "build", "completed")) == "applied"
            took_s = time.monotonic() - began
        finally:
            frozen.kill()
            await frozen.wait()

        assert 1 < took_s < PROXY_TIMEOUT_S
        [wait] = [line for line in logged if line["event"] == "store_waited"]
        assert "jobs" in wait["waited_for"]
        assert wait["waited_s"] == pytest.approx(took_s, abs=1)
        assert [line["event"] for line in logged].count("store_session_ended") == ended_by_us


async def test_a_lock_that_is_never_released_is_answered_503_in_time_with_the_wait_in_the_log(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert report_outcome(await post_report(relay, run, "build", "in_progress")) == "applied"
        session = await asyncpg.connect(postgres_url(relay))
        await session.execute(LOCK)
        began = time.monotonic()
        with capture_logs() as logged:
            answer = await post_report(relay, run, "build", "completed")
        took_s = time.monotonic() - began
        await session.close()

        assert refusal_code(answer) == (503, "store_unavailable")
        assert int(answer.headers["Retry-After"]) > 0
        assert took_s < PROXY_TIMEOUT_S
        [wait] = [line for line in logged if line["event"] == "store_waited"]
        assert (wait["log_level"], wait["sqlstate"]) == ("warning", "55P03")
        assert str(run.id) not in str(wait)
        assert report_outcome(await post_report(relay, run, "build", "completed")) == "applied"
