"""Shadow mode: everything is decided and recorded, no write leaves the relay, and differences from the old relay are reported."""

import asyncio
import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import Response

from crcr.decide.github.requests_and_answers import Target
from crcr.decide.model import EffectKind, RepoName
from crcr.decide.outbox.effect import READ_ONLY_KINDS, SHADOWED
from crcr.errors import OutsideRefused
from crcr.record.outbox.effects import add_effects, effect_row
from crcr.wiring.services import build
from github_sim.github import GitHub, PullRequest
from support.data.operator_database import OperatorShell
from support.github.gated_upstream import gate_state, gated_upstream, write_comment
from support.github.old_relay import OldRelay
from support.notices.receivers import webhook_receiver
from support.running_relay import UPSTREAM, RunningRelay, environment, settings_for

ONE, TWO, NOTIFIED, GATE = "org/one", "org/two", "org/notified", "org/gate"
ALLOWLIST = f"""
L1:
  - {NOTIFIED}
L2:
  - {ONE}
  - {TWO}: {{paths: ["src/**"]}}
L4:
  - {GATE}: {{oncalls: [ann], jobs: [build, test], channels: [issues, pulls, hook]}}
"""
BACKENDS = (ONE, TWO, NOTIFIED, GATE)
HUD = "hud.test"
FORWARD = {
    "CRCR_HUD_FORWARD_URL": f"https://{HUD}/api/crcr/results",
    "CRCR_HUD_FORWARD_TOKEN": "hud-token-0123456789",
}


def write_calls(github: GitHub) -> list[tuple[str, str]]:
    """The calls that could have changed something at GitHub."""
    calls = [(call.method, call.path) for call in github.calls if call.method != "GET"]
    return [call for call in calls if not call[1].endswith("/access_tokens")]


def delivery_guid(pull: PullRequest) -> str:
    assert pull.last_delivery is not None
    return pull.last_delivery.guid


@pytest.mark.parametrize("shadow", ["1", "0"])
async def test_a_relay_in_shadow_mode_sends_no_writing_effect(tmp_path: Path, shadow: str) -> None:
    forwarded_paths: list[str] = []

    async def hud(scope: Any, receive: Any, send: Any) -> None:
        forwarded_paths.append(scope["path"])
        await Response(status_code=200)(scope, receive, send)

    async with webhook_receiver() as hook:
        channels = [
            {"name": "issues", "kind": "issue"},
            {"name": "pulls", "kind": "comment"},
            {
                "name": "hook",
                "kind": "webhook",
                "url": hook.url,
                "secret": "s" * 20,
                "private_hosts": ["127.0.0.1"],
            },
        ]
        more = {"CRCR_SHADOW": shadow, "CRCR_CHANNELS": json.dumps(channels), **FORWARD}
        async with gated_upstream(
            tmp_path, ALLOWLIST, downstreams=BACKENDS, outside={HUD: hud}, **more
        ) as relay:
            old = OldRelay(relay)
            pull = await relay.github.open_pr(
                UPSTREAM, body="## Downstream\nIt breaks.", labels=["crcr/breaking"]
            )
            await relay.drain()
            before = write_calls(relay.github)
            await old.dispatch(GATE, delivery_guid(pull), conclusion="failure")
            await write_comment(relay, pull, "/crcr status")
            await relay.services.sweeper.look_at_base()
            await relay.drain()
            await relay.pass_time(120)
            outside = (
                bool(before),
                bool(write_calls(relay.github)),
                bool(forwarded_paths),
                bool(hook.requests),
            )
            assert outside == ((False,) * 4 if shadow == "1" else (True,) * 4)
            answer = await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})
            assert answer.json()["gate"]["state"] == "failed"
            page = await relay.http.get(f"/crcr/pr/{pull.number}")
            assert ("Shadow." in page.text) is (shadow == "1")
            assert ("not yet published" in page.text) is False
            if shadow == "1":
                await shadow_every_kind(relay)
                assert (write_calls(relay.github), forwarded_paths, hook.requests) == ([], [], [])


async def shadow_every_kind(relay: RunningRelay) -> None:
    """Each effect kind not declared read-only, including new ones, finishes without a call; a direct write to GitHub is refused."""
    kinds = [kind for kind in EffectKind if kind not in READ_ONLY_KINDS]
    payload = json.dumps({"channel": "hook", "destination": "", "head_sha": "a" * 40}).encode()
    now = relay.clock.now()
    rows = [
        effect_row(UPSTREAM, kind, target="checks/gate", lane=f"lane/{kind}", now=now, payload=payload)
        for kind in kinds
    ]
    await relay.services.database.write(lambda tx: add_effects(tx, rows))
    calls = len(relay.github.calls)
    for _ in rows:  # one target: one after the other
        await relay.drain()
    effects = relay.rows("SELECT kind, state, last_error FROM effects WHERE lane LIKE 'lane/%' ORDER BY kind")
    shadowed = {
        row["kind"] for row in effects if (row["state"], row["last_error"]) == ("cancelled", SHADOWED)
    }
    finished = {row["kind"] for row in effects if row["state"] == "done"}
    # For a commit and a dispatch that do not exist, nothing would be sent.
    assert finished <= {EffectKind.SEND_DISPATCH, EffectKind.PUBLISH_CHECKS}
    assert shadowed | finished == set(kinds)
    assert len(relay.github.calls) == calls
    [dispatch] = relay.rows("SELECT state, reason FROM dispatches WHERE downstream = ?", ONE)
    assert dispatch == {"state": "sent", "reason": "shadow"}
    name, repository_id, installation_id = await relay.services.targets.read_upstream(RepoName(UPSTREAM))
    target = Target(name, repository_id, installation_id or 0)
    with pytest.raises(OutsideRefused, match="Shadow mode"):
        await relay.services.github.comments.create(target, 1, "text")


async def test_a_comparison_finds_three_injected_differences_and_no_others(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=BACKENDS, CRCR_SHADOW="1") as relay:
        old, since = OldRelay(relay), relay.clock.now()
        guids = [await open_change(relay, old, number) for number in range(6)]
        await make_noise(relay, old)
        until = relay.clock.now() + timedelta(hours=1)
        expected = [
            ("dispatched_by_new", ONE, guids[MISSED], None),
            ("dispatched_by_old", TWO, guids[UNFILTERED], "left out by paths"),
            ("conclusion", ONE, guids[MISREAD], "test: success, not failure"),
        ]
        environ = environment(tmp_path, relay.github, tmp_path / "allowlist.yml")
        shell = OperatorShell(tmp_path, {**environ, "CRCR_SHADOW": "1"})
        (tmp_path / "old.jsonl").write_text(old.lines + "no json\n")
        times = ("shadow", "compare", "--since", since.isoformat(), "--until", until.isoformat())
        comparison = await asyncio.to_thread(shell.json, *times, "--old", str(tmp_path / "old.jsonl"))
        assert sorted(map(describe, comparison["differences"])) == sorted(expected)
        assert comparison["not_compared"]["lines"] == {
            "number": 1,
            "problems": [f"line {len(old.rows) + 1}: it is no JSON object"],
        }
        assert comparison["not_compared"]["self_reports"] == 1

        async with old.clickhouse() as url:
            answer = await asyncio.to_thread(shell.crcr, *times, "--old-url", url, "--fail")
        assert answer.exit_code == 1
        assert "3 differences in 20 dispatches" in answer.stdout
        [(head, query)] = old.requests
        assert "readonly=1" in head
        assert "FROM default.crcr_workflow_job AS jobs FINAL" in query
        wrong = ("--old-url", "https://reader:secret-word@clickhouse:port")
        answer = await asyncio.to_thread(shell.crcr, *times, *wrong)
        assert (answer.exit_code, "not an address" in answer.stderr) == (2, True)
        assert "secret-word" not in answer.output
        assert "nothing is dispatched" in (await asyncio.to_thread(shell.crcr, "check-config")).stderr


async def test_after_shadow_mode_a_replay_sends_the_shadowed_dispatches(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=BACKENDS, CRCR_SHADOW="1") as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert write_calls(relay.github) == []
        live = build(settings_for(tmp_path, relay.github, tmp_path / "allowlist.yml"), relay.seams)
        relay.clock.advance(60)
        await live.worker.drain()
        assert write_calls(relay.github) == []  # ending shadow mode alone sends no past dispatch
        upstream, now = RepoName(UPSTREAM), relay.clock.now()
        assert await live.acts.replay(upstream, delivery_guid(pull), who="ops", now=now) == 4
        await live.worker.drain()
        await live.close()
        assert [len(relay.github.dispatches(name)) for name in BACKENDS] == [1, 1, 1, 1]
        assert gate_state(relay, pull) == "pending"


async def test_shadowed_dispatches_do_not_make_a_backend_silent(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=BACKENDS, CRCR_SHADOW="1") as relay:
        for _ in range(4):
            await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(12 * 3600)
        page = (await relay.http.get("/crcr")).text
        assert "no backend turned red or silent" in page
        assert ", silent " not in page


MISSED, MISREAD, UNFILTERED = 1, 2, 3
"""The changes with an injected difference: not dispatched by the old relay, another conclusion, `paths` ignored."""


async def open_change(relay: RunningRelay, old: OldRelay, number: int) -> str:
    """Open a pull request that the old relay dispatches like ours, except for the injected differences."""
    files = ("docs/a.md",) if number == UNFILTERED else ("src/kernel.py",)
    pull = await relay.github.open_pr(UPSTREAM, title=f"Change {number}", files=files)
    guid = delivery_guid(pull)
    await relay.drain()
    await old.dispatch(GATE, guid)
    if number == UNFILTERED:
        old.rows.append({**old.rows[-1], "downstream_repo": TWO})
    else:
        await old.dispatch(TWO, guid)
    if number != MISSED:
        recorded = {"test": "success"} if number == MISREAD else {}
        await old.dispatch(ONE, guid, conclusion="failure", recorded=recorded)
    return guid


async def make_noise(relay: RunningRelay, old: OldRelay) -> None:
    """Events that are no difference: a rerun, a close, a nightly, another upstream, an old delivery, a label, no results."""
    last = relay.github.runs(GATE)[-1]
    await relay.github.rerun(last)
    await old.report(last, "failure")
    pull = await relay.github.open_pr(UPSTREAM, draft=True, files=("docs/b.md",))
    await relay.drain()
    for backend in (ONE, GATE):
        await old.dispatch(backend, delivery_guid(pull))
    relay.clock.advance(60)
    await relay.github.label_pr(pull, "triaged")
    await relay.github.close_pr(pull)
    await relay.drain()
    row = old.rows[-1]
    old.rows += [
        {**row, "delivery_id": "a" * 40},
        {**row, "upstream_repo": "other/upstream", "delivery_id": "of-another-upstream"},
        {**row, "delivery_id": "before-all", "started_at": "2020-01-01 00:00:00.000000000"},
    ]


def describe(difference: dict[str, Any]) -> tuple[str, str, str, str | None]:
    detail = difference["why"] if difference["kind"] == "dispatched_by_old" else None
    if difference["kind"] == "conclusion":
        detail = f"{difference['job']}: {difference['old']}, not {difference['new']}"
    return difference["kind"], difference["backend"], difference["delivery"], detail
