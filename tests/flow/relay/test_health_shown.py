"""Work that GitHub's limits or faults hold back is shown on every page, with the time until which it waits."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from html import unescape
from pathlib import Path
from re import sub
from typing import Any

import pytest

from crcr.decide.health.relay import HealthFacts
from crcr.decide.model import RepoName
from crcr.record.store.database import Tx, Unit
from crcr.record.views.relay.health import health_facts
from github_sim.github import PullRequest
from support.github.checks import UPDATES
from support.github.commands import relay_comments
from support.github.gated_upstream import (
    GATE,
    GATING,
    LABEL,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    write_comment,
)
from support.github.gated_upstream import shown_check as check_shown
from support.github.merge_queue import enqueue, move_base
from support.running_relay import UPSTREAM, RunningRelay

HELD_UNTIL = "held back by GitHub's rate limit until 01:01 UTC (requests per hour)"


@asynccontextmanager
async def relay_near_rate_limit(
    folder: Path, *, leave: int, **more: Any
) -> AsyncIterator[tuple[RunningRelay, PullRequest]]:
    """A relay whose backend has started on a pull request, with `leave` API calls left in the upstream's hour."""
    async with gated_upstream(folder, **more) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await start_jobs(relay, newest_run(relay))
        relay.github.spend_hour(UPSTREAM, leave=leave)
        yield relay, pull


async def read_page_text(relay: RunningRelay, path: str) -> str:
    """The text of a page for a reader without a token."""
    answer = await relay.http.get(path)
    assert answer.status_code == 200, answer.text
    return " ".join(unescape(sub(r"<[^>]+>", " ", answer.text)).split())


async def fetch_json(relay: RunningRelay, path: str) -> Any:
    answer = await relay.http.get(path)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def test_a_decided_gate_held_back_by_the_rate_limit_is_shown_on_every_page_and_api(
    tmp_path: Path,
) -> None:
    async with relay_near_rate_limit(tmp_path, leave=0) as (relay, pull):
        await finish_jobs(relay, newest_run(relay))
        relay.clock.advance(7 * 60)
        assert gate_state(relay, pull) == "pending"
        late = f"1 gate is decided and not yet published on GitHub, since 00:00 UTC: {HELD_UNTIL}."
        for page in ("/crcr", f"/crcr/pr/{pull.number}", f"/crcr/commit/{pull.head_sha}", "/crcr/metrics"):
            assert late in await read_page_text(relay, page), page
        for page in (f"/crcr/pr/{pull.number}", f"/crcr/commit/{pull.head_sha}"):
            shown = await read_page_text(relay, page)
            assert "Gate O passed" in shown
            assert f"Decided Jan 1, 00:00 UTC , not yet published on GitHub: {HELD_UNTIL}." in shown
        effects = await read_page_text(relay, "/crcr/deliveries?show=effects")
        assert f"1 gate is {HELD_UNTIL}." in effects
        assert "Held back by GitHub's rate limit until 01:01 UTC (requests per hour)" in effects
        assert "API rate limit exceeded" not in effects  # error details are for administrators

        gate = (await fetch_json(relay, f"/api/v1/pulls/{pull.number}"))["gate"]
        assert (gate["state"], gate["unpublished"]["held_by"]) == ("passed", "hour")
        assert gate["unpublished"]["text"] == (
            f"Decided at 00:00 UTC, not yet published on GitHub: {HELD_UNTIL}."
        )
        for health in (
            await fetch_json(relay, "/api/v1/health"),
            (await fetch_json(relay, "/api/v1/summary"))["health"],
        ):
            assert health["state"] == "red"
            assert health["reasons"][0]["text"] == late
        listed = (await fetch_json(relay, "/api/v1/effects/list"))["effects"]
        waiting = [effect for effect in listed if effect["target"] == "checks/gate"]
        held_effects = {(effect["held_by"], effect["waits_for"], effect["last_error"]) for effect in waiting}
        assert held_effects == {("hour", HELD_UNTIL, None)}  # effects behind it in its lane, too
        ready = await fetch_json(relay, "/readyz")
        assert (ready["ok"], ready["health"]) == (True, "red")
        assert late in ready["upstreams"][0]["reasons"]
        assert f'crcr_health{{upstream="{UPSTREAM}"}} 2.0' in (await relay.http.get("/metrics")).text

        await relay.pass_time(54 * 60)
        assert gate_state(relay, pull) == "success"
        assert (await fetch_json(relay, "/api/v1/health")) == {
            "upstream": UPSTREAM,
            "at": relay.clock.now().isoformat().replace("+00:00", "Z"),
            "state": "green",
            "reasons": [],
            "held": [],
        }
        assert "not yet published" not in await read_page_text(relay, f"/crcr/pr/{pull.number}")
        assert "relay:" not in await read_page_text(relay, "/crcr")


async def test_within_the_rate_limit_reserve_gates_are_published_and_held_checks_are_named(
    tmp_path: Path,
) -> None:
    async with relay_near_rate_limit(tmp_path, leave=200) as (relay, pull):
        await finish_jobs(relay, newest_run(relay))
        assert gate_state(relay, pull) == "success"
        held = f"Backend checks of 1 commit are {HELD_UNTIL}."
        page = await read_page_text(relay, f"/crcr/pr/{pull.number}")
        assert "not yet published" not in page
        assert held in page
        health = await fetch_json(relay, "/api/v1/health")
        assert health["state"] == "amber"
        assert [(group["effects"], group["held_by"]) for group in health["held"]] == [
            ("backend_checks", "hour")
        ]
        await write_comment(relay, pull, "/crcr status", after_s=0)
        [answer] = relay_comments(relay, pull)
        assert f"The relay is amber:\n\n- {held}" in answer


async def test_health_is_read_only_for_the_status_command_and_outside_every_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_writes: list[object] = []
    reads_in_writes: list[bool] = []

    async def recorded_health_facts(tx: Tx, upstream: RepoName) -> HealthFacts:
        reads_in_writes.append(tx in open_writes)
        return await health_facts(tx, upstream)

    async with relay_near_rate_limit(tmp_path, leave=200) as (relay, pull):
        write = relay.services.database.write

        async def tracked_write(unit: Unit[Any], **more: Any) -> Any:
            async def tracked_unit(tx: Tx) -> Any:
                open_writes.append(tx)
                try:
                    return await unit(tx)
                finally:
                    open_writes.remove(tx)

            return await write(tracked_unit, **more)

        monkeypatch.setattr(relay.services.database, "write", tracked_write)
        for module in ("relay.health", "logs.operator"):
            monkeypatch.setattr(
                f"crcr.record.views.{module}.health_facts", recorded_health_facts, raising=False
            )
        await write_comment(relay, pull, "/crcr approve", after_s=0)
        assert reads_in_writes == []
        await write_comment(relay, pull, "/crcr status", after_s=0)
        assert reads_in_writes == [False]
        assert f"waiting for {GATING}" in relay_comments(relay, pull)[-1]


async def test_the_readiness_probe_names_no_upstream_when_readers_need_a_token(tmp_path: Path) -> None:
    hidden = {"CRCR_HUD_ACCESS": "token", "CRCR_HUD_TOKENS": "reader=sha256:" + "0" * 64}
    async with relay_near_rate_limit(tmp_path, leave=0, **hidden) as (relay, _):
        await finish_jobs(relay, newest_run(relay))
        ready = await relay.http.get("/readyz")
        assert (ready.status_code, ready.json()["health"]) == (200, "red")
        assert HELD_UNTIL in ready.json()["upstreams"][0]["reasons"][0]
        assert UPSTREAM not in ready.text


async def test_a_gate_unpublished_during_a_github_outage_is_in_the_answer_to_status(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.github.faults.answer(502, on=UPDATES)
        await run_all(relay, GATING)
        await relay.pass_time(60)
        sentence = "GitHub has not answered since 00:00 UTC"
        assert f"not yet published on GitHub: {sentence}." in await read_page_text(
            relay, f"/crcr/pr/{pull.number}"
        )
        await write_comment(relay, pull, "/crcr status")
        [answer] = relay_comments(relay, pull)
        assert f"not yet published on GitHub: {sentence}." in answer
        relay.github.faults.clear()
        await relay.pass_time(900)
        assert gate_state(relay, pull) == "success"
        assert (await fetch_json(relay, "/api/v1/health"))["state"] == "green"


async def test_an_unpublished_gate_of_a_merge_group_is_shown_on_its_pull_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await start_jobs(relay, newest_run(relay))
        relay.github.spend_hour(UPSTREAM, leave=0)
        await finish_jobs(relay, newest_run(relay), build="failure")
        page = await read_page_text(relay, f"/crcr/pr/{pull.number}")
        assert f"yet published on GitHub: {HELD_UNTIL}." in page.partition("In a merge group")[2]
        assert check_shown(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")
