"""Shadow mode: everything is decided and recorded, nothing leaves the relay, and differences from the old relay are found."""

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


def written(github: GitHub) -> list[tuple[str, str]]:
    """The calls that may have changed something at GitHub."""
    calls = [(call.method, call.path) for call in github.calls if call.method != "GET"]
    return [call for call in calls if not call[1].endswith("/access_tokens")]


def delivered(pull: PullRequest) -> str:
    assert pull.last_delivery is not None
    return pull.last_delivery.guid


@pytest.mark.parametrize("shadow", ["1", "0"])
async def test_no_effect_that_writes_leaves_a_relay_in_shadow_mode(tmp_path: Path, shadow: str) -> None:
    asked: list[str] = []

    async def hud(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])
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
            before = written(relay.github)
            await old.dispatch(GATE, delivered(pull), conclusion="failure")
            await write_comment(relay, pull, "/crcr status")
            await relay.services.sweeper.look_at_base()
            await relay.drain()
            await relay.pass_time(120)
            outside = (bool(before), bool(written(relay.github)), bool(asked), bool(hook.requests))
            assert outside == ((False,) * 4 if shadow == "1" else (True,) * 4)
            answer = await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})
            assert answer.json()["gate"]["state"] == "failed"
            page = await relay.http.get(f"/crcr/pr/{pull.number}")
            assert ("Shadow." in page.text) is (shadow == "1")
            assert ("not yet published" in page.text) is False
            if shadow == "1":
                await shadow_every_kind(relay)
                assert (written(relay.github), asked, hook.requests) == ([], [], [])


async def shadow_every_kind(relay: RunningRelay) -> None:
    """Each kind that is not known to read only, new ones too, is finished without a call; nobody else can write to GitHub."""
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
    found = relay.rows("SELECT kind, state, last_error FROM effects WHERE lane LIKE 'lane/%' ORDER BY kind")
    shadowed = {row["kind"] for row in found if (row["state"], row["last_error"]) == ("cancelled", SHADOWED)}
    pointless = {row["kind"] for row in found if row["state"] == "done"}
    # Of a commit and a dispatch that do not exist nothing would be sent.
    assert pointless <= {EffectKind.SEND_DISPATCH, EffectKind.PUBLISH_CHECKS}
    assert shadowed | pointless == set(kinds)
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
        found = await asyncio.to_thread(shell.json, *times, "--old", str(tmp_path / "old.jsonl"))
        assert sorted(map(describe, found["differences"])) == sorted(expected)
        assert found["not_compared"]["lines"] == {
            "number": 1,
            "problems": [f"line {len(old.rows) + 1}: it is no JSON object"],
        }
        assert found["not_compared"]["self_reports"] == 1

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


async def test_after_the_switch_a_shadowed_dispatch_is_sent_by_a_replay(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ALLOWLIST, downstreams=BACKENDS, CRCR_SHADOW="1") as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert written(relay.github) == []
        live = build(settings_for(tmp_path, relay.github, tmp_path / "allowlist.yml"), relay.seams)
        relay.clock.advance(60)
        await live.worker.drain()
        assert written(relay.github) == []  # the switch alone sends nothing that is over
        upstream, now = RepoName(UPSTREAM), relay.clock.now()
        assert await live.acts.replay(upstream, delivered(pull), who="ops", now=now) == 4
        await live.worker.drain()
        await live.close()
        assert [len(relay.github.dispatches(name)) for name in BACKENDS] == [1, 1, 1, 1]
        assert gate_state(relay, pull) == "pending"


async def test_a_backend_is_not_silent_for_what_was_not_sent_to_it(tmp_path: Path) -> None:
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
    """Open a pull request that the old relay dispatches as ours would, but for the injected differences."""
    files = ("docs/a.md",) if number == UNFILTERED else ("src/kernel.py",)
    pull = await relay.github.open_pr(UPSTREAM, title=f"Change {number}", files=files)
    guid = delivered(pull)
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
    """What is no difference: a re-run, a closing, a nightly, another upstream, an old delivery, a label, a push without results."""
    last = relay.github.runs(GATE)[-1]
    await relay.github.rerun(last)
    await old.report(last, "failure")
    pull = await relay.github.open_pr(UPSTREAM, draft=True, files=("docs/b.md",))
    await relay.drain()
    for backend in (ONE, GATE):
        await old.dispatch(backend, delivered(pull))
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
    what = difference["why"] if difference["kind"] == "dispatched_by_old" else None
    if difference["kind"] == "conclusion":
        what = f"{difference['job']}: {difference['old']}, not {difference['new']}"
    return difference["kind"], difference["backend"], difference["delivery"], what
