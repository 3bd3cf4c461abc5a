"""Demotions through the whole relay: silent mode removes and restores checks; it never opens the gate of an older head."""

import random
from pathlib import Path

import pytest

from github_sim.github import MergeBlocked, PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    INFORMING,
    LABEL,
    check_names_on,
    gate_state,
    gate_summary,
    gate_title,
    gated_upstream,
    open_pull,
    run_all,
    shown_check,
    sweep_after,
)
from support.running_relay import UPSTREAM, RunningRelay
from support.sign_in import ADMIN, TOKENS, audit_log, forms, visitor

DAY = 86_400.0
CHECK = f"crcr/{INFORMING}"


def configure(folder: Path, **settings: str) -> None:
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    (folder / "crcr.toml").write_text("\n".join(("[[upstream]]", *lines, "")))


async def stay_silent(relay: RunningRelay) -> PullRequest:
    """Open three pull requests that no backend answers, and evaluate twice after four days of silence."""
    first = await open_pull(relay, labels=[LABEL])
    for _ in range(2):
        await open_pull(relay, labels=[LABEL])
    relay.clock.advance(4 * DAY)
    for _ in range(2):
        await relay.services.sweeper.evaluate_levels()
        await sweep_after(relay, DAY)
    return first


async def test_an_l3_in_silent_mode_has_no_checks_until_a_maintainer_overrides_it(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, **TOKENS) as relay, visitor(relay) as admin:
        first = await stay_silent(relay)
        check = shown_check(relay, CHECK, first.head_sha)
        assert check is not None
        assert check[:2] == ("completed", "neutral")
        changes = relay.rows("SELECT downstream, kind FROM level_changes ORDER BY downstream")
        assert changes == [
            {"downstream": GATING, "kind": "alarmed"},
            {"downstream": INFORMING, "kind": "demoted"},
        ]

        later = await open_pull(relay, labels=[LABEL])
        assert CHECK not in check_names_on(relay, later.head_sha)
        assert GATE in check_names_on(relay, later.head_sha)
        await run_all(relay, INFORMING)  # the backend is dispatched, and its results are recorded
        assert relay.jobs(INFORMING)
        assert CHECK not in check_names_on(relay, later.head_sha)

        await admin.sign_in(ADMIN)
        shown = forms((await admin.get("/crcr/levels")).text)
        [form] = [form for form in shown if form.get("repository") == INFORMING]
        assert (
            await admin.act("override_level", repository=INFORMING, days="7", reason=" ")
        ).status_code == 400
        address = form.pop("")
        assert (await admin.send(address, {**form, "reason": "repaired"})).status_code == 303
        await relay.drain()
        assert shown_check(relay, CHECK, later.head_sha) is not None
        assert "demotion switched off" in (await admin.get("/crcr/levels")).text
        assert (await admin.act("end_override", repository=INFORMING)).status_code == 303
        levels = (await relay.http.get("/api/v1/levels")).json()["backends"]
        [backend] = [backend for backend in levels if backend["name"] == INFORMING]
        assert (backend["demotion"], backend["override"]) == ("silent", None)
        assert [row[1] for row in audit_log(relay)][-2:] == ["level_override", "level_override_ended"]


async def test_an_alarmed_l4_gates_as_before_unless_the_upstream_downgrades_it(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        first = await stay_silent(relay)
        later = await open_pull(relay)
        assert (gate_state(relay, first), gate_state(relay, later)) == ("failure", "pending")
        with pytest.raises(MergeBlocked):
            await relay.github.merge_pr(later)


async def test_a_downgraded_l4_does_not_gate_new_heads_and_stays_in_gates_of_old_heads(
    tmp_path: Path,
) -> None:
    configure(tmp_path, l4_downgrade="auto")
    chance = random.Random(21)
    async with gated_upstream(tmp_path) as relay:
        first = await stay_silent(relay)
        later = await open_pull(relay)
        assert gate_state(relay, later) == "success"
        assert gate_title(relay, later.head_sha) == f"no gating backend, {GATING} is downgraded"
        assert f"`{GATING}` is downgraded" in gate_summary(relay, later.head_sha)

        relay.github.repository(UPSTREAM).branches.setdefault("release", later.base_sha)
        for _ in range(12):
            match chance.randrange(4):
                case 0:
                    await relay.github.close_pr(first)
                    await relay.drain()
                    await relay.github.reopen_pr(first)
                case 1:
                    await relay.github.label_pr(first, f"topic/{chance.random()}")
                case 2:
                    await relay.github.edit_pr(first, base=chance.choice(["main", "release"]))
                case _:
                    await relay.services.sweeper.evaluate_levels()
            await sweep_after(relay, chance.choice([60.0, DAY]))
            assert gate_state(relay, first) != "success"
        with pytest.raises(MergeBlocked):
            await relay.github.merge_pr(first)
        assert (await relay.github.merge_pr(later)).merged
