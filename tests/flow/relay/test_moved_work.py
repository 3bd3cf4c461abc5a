"""After the move to PostgreSQL queued effects are executed once, running jobs get their results, and cursors stay valid."""

import asyncio
import re
from pathlib import Path
from typing import Any

import httpx

from crcr.wiring.core import Seams
from crcr.wiring.services import build
from crcr.wiring.web_app import build_app
from support.downstream.callbacks import BACKEND, LISTED, client_from, post_report, report_outcome
from support.github.dispatch_log import dispatch_attempts, dispatched_events, wait_until_true
from support.github.gated_upstream import (
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    start_jobs,
)
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.stores.moved_relay import move_to_postgresql, settings_on_postgresql

DATABASE_URL = "CRCR_DATABASE_URL"


def sqlite_settings(folder: Path) -> dict[str, Any]:
    return {DATABASE_URL: f"sqlite:///{folder / 'crcr.db'}"}


async def move_to_postgresql_and_restart(relay: RunningRelay) -> None:
    """Stop the relay, move its database, and start it again on the new one, at the same address for GitHub."""
    settings, transport = relay.services.settings, relay.github._transport
    await relay.close()
    url = await move_to_postgresql(relay.folder / "crcr.db")
    seams = Seams(
        clock=relay.clock, http=relay._github_http, chance=lambda: 0.5, on_crash=relay.crashes.append
    )
    relay.services = build(settings_on_postgresql(settings, url), seams)
    relay.app = build_app(relay.services, work=False)
    await relay.services.acts.register_upstreams(relay.services.upstreams, relay.clock.now())
    await relay.refresh()
    relay.http = client_from(relay.app)
    assert isinstance(transport, httpx.ASGITransport)
    transport.app = relay.app


async def test_a_waiting_effect_is_executed_once_after_the_move(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,), **sqlite_settings(tmp_path)) as relay:
        await relay.github.open_pr(UPSTREAM)  # the relay stops before its worker claims the effect
        assert [
            row["state"] for row in relay.rows("SELECT state FROM effects WHERE kind = 'send_dispatch'")
        ] == ["waiting"]
        await move_to_postgresql_and_restart(relay)
        await relay.drain()
        await relay.drain()
        assert (dispatch_attempts(relay.github, BACKEND), len(dispatched_events(relay.github, BACKEND))) == (
            1,
            1,
        )
        assert set(relay.dispatch_states().values()) == {"sent"}


async def test_a_claimed_effect_is_retried_after_the_move_when_its_lease_expires(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,), **sqlite_settings(tmp_path)) as relay:
        await relay.github.open_pr(UPSTREAM)
        claimed = await relay.services.worker._outbox.claim(10, relay.clock.now())  # then its process dies
        assert claimed
        await move_to_postgresql_and_restart(relay)
        await relay.drain()
        assert dispatch_attempts(relay.github, BACKEND) == 0
        await relay.pass_time(121)
        assert set(relay.dispatch_states().values()) == {"sent"}
        assert dispatch_attempts(relay.github, BACKEND) == 1


async def test_a_job_running_during_the_move_gets_its_result_and_the_gate_passes(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, **sqlite_settings(tmp_path)) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay, GATING)
        await start_jobs(relay, run)
        assert gate_state(relay, pull) == "pending"
        await move_to_postgresql_and_restart(relay)
        await finish_jobs(relay, run)
        assert gate_state(relay, pull) == "success"
        assert {job["state"] for job in relay.jobs(GATING)} == {"completed"}


async def test_repeated_reports_and_webhooks_are_still_recognized_after_the_move(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,), **sqlite_settings(tmp_path)) as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        [run] = relay.github.runs(BACKEND)
        await post_report(relay, run, "build", "in_progress")
        await post_report(relay, run, "build", "completed", conclusion="failure")
        await move_to_postgresql_and_restart(relay)
        assert (
            report_outcome(await post_report(relay, run, "build", "completed", conclusion="failure"))
            == "repeat"
        )
        assert (
            report_outcome(await post_report(relay, run, "build", "completed", conclusion="success"))
            == "conflicting_result"
        )
        sent = len(relay.github.dispatches(BACKEND))
        assert pull.last_delivery is not None
        again = await relay.github.redeliver(pull.last_delivery.guid)
        await relay.drain()
        assert '"repeat":true' in again.answer_body
        assert len(relay.github.dispatches(BACKEND)) == sent


async def replayed_change_ids(relay: RunningRelay, after: str) -> list[int]:
    """The change ids that a page receives when it reconnects after this id, up to the newest."""
    [row] = relay.rows("SELECT max(change_id) AS newest FROM changes")
    text, disconnect = "", asyncio.Event()

    async def receive() -> dict[str, Any]:
        await disconnect.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal text
        assert message.get("status", 200) == 200
        text += message.get("body", b"").decode()

    headers = [(b"host", b"relay.test"), (b"last-event-id", after.encode())]
    scope = {
        "type": "http",
        "method": "GET",
        "path": "/api/v1/events",
        "query_string": b"",
        "headers": headers,
    }
    more = {
        "http_version": "1.1",
        "scheme": "http",
        "client": ("192.0.2.1", 1),
        "server": ("relay.test", 80),
        "asgi": {},
    }
    stream = asyncio.create_task(
        relay.app({**scope, **more, "raw_path": b"/api/v1/events", "root_path": ""}, receive, send)
    )
    await wait_until_true(lambda: f"id: {row['newest']}\n" in text or stream.done())
    disconnect.set()
    await stream
    assert "event: reset" not in text
    return [int(change_id) for change_id in re.findall(r"^id: (\d+)$", text, re.MULTILINE)]


async def test_a_live_page_resumes_at_its_event_id_after_the_move(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,), **sqlite_settings(tmp_path)) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        before = await replayed_change_ids(relay, after="0")
        assert before
        await move_to_postgresql_and_restart(relay)
        assert (await replayed_change_ids(relay, after=str(before[0])))[: len(before) - 1] == before[1:]
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        fresh = await replayed_change_ids(relay, after=str(before[-1]))
        assert fresh
        assert min(fresh) > before[-1]
