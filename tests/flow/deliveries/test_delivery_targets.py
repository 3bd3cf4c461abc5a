"""Targets that are delisted, uninstalled, suspended or paused; retries, replays and test dispatches by operators."""

from pathlib import Path

import pytest

from crcr.errors import NotFound
from crcr.record.admin.operations import ParkedFilter
from github_sim.github import Match
from support.github.dispatch_log import (
    BOTH,
    TWO,
    dispatch_attempts,
    dispatched_actions,
    dispatched_events,
    newest_effect,
    row_states,
    running_worker,
    wait_until_true,
)
from support.running_relay import UPSTREAM, RunningRelay, repo, running_relay

LISTED = "L1:\n  - org/one\n  - other/two\n"
DOWNSTREAMS = ("org/one", "other/two")
ONE = Match("POST", "/repos/org/one/dispatches")


async def change_allowlist(relay: RunningRelay, text: str) -> None:
    relay.write_allowlist(text)
    await relay.refresh()


async def test_fault_08_delisting_a_target_cancels_its_whole_queue(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        fault = relay.github.faults.answer(500, on=ONE)
        for _ in range(20):
            await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        attempts = dispatch_attempts(relay.github, "org/one")
        await change_allowlist(relay, "L1:\n  - org/two\n")
        relay.github.faults.remove(fault)
        await relay.github.open_pr(UPSTREAM)
        await relay.pass_time(24 * 3600)

        assert dispatch_attempts(relay.github, "org/one") == attempts
        assert set(row_states(relay, "dispatches", downstream="org/one")) == {"cancelled"}
        assert "waiting" not in row_states(relay, "effects", target="org/one")
        assert dispatched_actions(relay.github, "org/two") == ["opened"] * 21


async def test_fault_08_a_dispatch_in_flight_when_its_target_is_delisted_is_recorded_as_sent(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        gate = relay.github.faults.hang(on=ONE)
        async with running_worker(relay):
            await relay.github.open_pr(UPSTREAM)
            await gate.reached.wait()
            await change_allowlist(relay, "L1:\n  - org/two\n")
            gate.release()
            await wait_until_true(lambda: set(row_states(relay, "dispatches")) == {"sent"})
        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_fault_08_a_refusal_after_the_target_is_delisted_is_cancelled_and_not_parked(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        gate = relay.github.faults.hang(on=ONE)
        async with running_worker(relay):
            await relay.github.open_pr(UPSTREAM)
            await gate.reached.wait()
            await change_allowlist(relay, "L1:\n  - org/two\n")
            await relay.github.uninstall("org/one", whole_account=True)
            gate.release()
            await wait_until_true(lambda: newest_effect(relay, "org/one")["state"] != "claimed")
        assert newest_effect(relay, "org/one")["state"] == "cancelled"


async def test_fault_08_a_relisted_target_gets_new_events_and_no_old_ones(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await change_allowlist(relay, "L1:\n  - org/two\n")
        await change_allowlist(relay, TWO)
        new = await relay.github.open_pr(UPSTREAM)
        await relay.pass_time(3600)

        assert dispatched_events(relay.github, "org/one") == [("opened", new.head_sha)]


async def test_fault_08_delisting_a_target_cancels_its_held_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1:\n  - org/one: {drafts: false}\n", downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM, draft=True)
        await change_allowlist(relay, "L1:\n  - org/two\n")
        relay.clock.advance(1)
        await relay.github.ready_for_review(pr)
        await relay.drain()

        assert relay.github.dispatches() == []
        [dispatch] = relay.rows("SELECT state, reason FROM dispatches")
        assert dispatch == {"state": "cancelled", "reason": "left the allowlist"}


async def test_fault_09_uninstalling_the_app_from_a_target_parks_its_dispatch_with_a_clear_error(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        await relay.github.uninstall("org/one")
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        parked = newest_effect(relay, "org/one")
        assert (parked["state"], parked["last_error"]) == (
            "parked",
            "The App is not installed on org/one.",
        )
        assert row_states(relay, "dispatches", downstream="org/one") == ["parked"]
        assert dispatched_events(relay.github, "other/two") == [("opened", pr.head_sha)]


async def test_fault_09_after_reinstallation_new_events_are_sent_and_the_parked_one_on_retry(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        before = relay.github.installation("org/one").id
        await relay.github.uninstall("org/one")
        first = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.github.install("org/one")
        assert relay.github.installation("org/one").id != before
        second = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert dispatched_events(relay.github, "org/one") == [("opened", second.head_sha)]

        retried = await relay.services.acts.retry_parked(
            repo(UPSTREAM), ParkedFilter(), who="ann", now=relay.clock.now()
        )
        await relay.drain()
        assert retried == 1
        assert dispatched_events(relay.github, "org/one")[1:] == [("opened", first.head_sha)]
        assert set(row_states(relay, "dispatches")) == {"sent"}


async def test_fault_09_a_new_installation_is_found_when_its_webhook_was_lost(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.github.faults.webhooks.lose(event="installation")
        await relay.github.uninstall("org/one")
        await relay.github.install("org/one")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/one") == ["opened", "opened"]
        [row] = relay.rows("SELECT installation_id FROM repositories WHERE downstream = 'org/one'")
        assert row["installation_id"] == relay.github.installation("org/one").id


async def test_fault_09_a_dispatch_to_a_deleted_repository_is_parked_after_one_attempt(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.answer(404, message="Not Found", on=ONE)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(3600)

        assert newest_effect(relay, "org/one")["state"] == "parked"
        assert dispatch_attempts(relay.github, "org/one") == 1


async def test_a_paused_upstream_accepts_deliveries_and_sends_them_when_resumed(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        acts, upstream = relay.services.acts, repo(UPSTREAM)
        await acts.pause(upstream, who="ann", now=relay.clock.now())
        async with running_worker(relay):
            pr = await relay.github.open_pr(UPSTREAM)
            await wait_until_true(lambda: relay.clock.sleeping)
            assert pr.last_delivery is not None
            assert pr.last_delivery.status_code == 202
            assert relay.github.dispatches() == []
            await acts.pause(upstream, who="ann", now=relay.clock.now(), lift=True)
            await wait_until_true(lambda: set(row_states(relay, "dispatches")) == {"sent"})
        assert [dispatched_events(relay.github, name) for name in BOTH] == [[("opened", pr.head_sha)]] * 2
        assert [row["act"] for row in relay.rows("SELECT act FROM audit")] == ["pause", "unpause"]


async def test_a_pause_does_not_stop_effects_other_than_dispatches(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.services.acts.pause(repo(UPSTREAM), who="ann", now=relay.clock.now())
        relay.github.create_repository("new/three")
        await change_allowlist(relay, TWO + "  - new/three\n")
        await relay.drain()

        [row] = relay.rows("SELECT repository_id, confirmed FROM repositories WHERE downstream = 'new/three'")
        assert row == {"repository_id": relay.github.repository("new/three").id, "confirmed": 1}


async def test_a_suspended_downstream_gets_no_dispatch_and_its_queue_is_cancelled(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        targets, upstream, one = relay.services.targets, repo(UPSTREAM), repo("org/one")
        relay.github.faults.answer(500, on=ONE, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await targets.suspend(upstream, one, who="ann", now=relay.clock.now())
        await relay.github.open_pr(UPSTREAM)
        await relay.pass_time(3600)
        assert dispatched_events(relay.github, "org/one") == []
        assert dispatched_actions(relay.github, "org/two") == ["opened", "opened"]

        await targets.suspend(upstream, one, who="ann", now=relay.clock.now(), lift=True)
        new = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert dispatched_events(relay.github, "org/one") == [("opened", new.head_sha)]


async def test_suspending_a_downstream_does_not_stop_its_identification(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L1: []\n", downstreams=BOTH) as relay:
        await change_allowlist(relay, TWO)
        await relay.services.targets.suspend(
            repo(UPSTREAM), repo("org/one"), who="ann", now=relay.clock.now()
        )
        await relay.drain()

        [row] = relay.rows("SELECT confirmed FROM repositories WHERE downstream = 'org/one'")
        assert row["confirmed"] == 1


async def test_a_replay_goes_only_to_targets_that_did_not_get_the_event(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.answer(422, message="no", on=ONE, times=1)
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert pr.last_delivery is not None
        sent = await relay.services.acts.replay(
            repo(UPSTREAM), pr.last_delivery.guid, who="ann", now=relay.clock.now()
        )
        await relay.drain()

        assert sent == 1
        assert [dispatched_actions(relay.github, name) for name in DOWNSTREAMS] == [["opened"], ["opened"]]
        assert "parked" not in row_states(relay, "effects")


async def test_a_replay_to_everyone_marks_repeated_dispatches_as_unsure(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert pr.last_delivery is not None
        guid, upstream = pr.last_delivery.guid, repo(UPSTREAM)
        assert await relay.services.acts.replay(upstream, guid, who="ann", now=relay.clock.now()) == 0
        assert (
            await relay.services.acts.replay(upstream, guid, who="ann", now=relay.clock.now(), everyone=True)
            == 2
        )
        await relay.drain()

        assert [dispatched_actions(relay.github, name) for name in BOTH] == [["opened", "opened"]] * 2
        assert relay.rows("SELECT state, unsure FROM dispatches") == [{"state": "sent", "unsure": 1}] * 2


async def test_a_replay_of_an_unknown_delivery_is_not_found(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        with pytest.raises(NotFound):
            await relay.services.acts.replay(repo(UPSTREAM), "no-such-guid", who="ann", now=relay.clock.now())


async def test_a_test_dispatch_is_marked_as_a_test_and_goes_to_one_target(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        await relay.services.acts.dispatch_test(
            repo(UPSTREAM), repo("Org/One"), "test-1", who="ann", now=relay.clock.now()
        )
        await relay.drain()

        [sent] = relay.github.dispatches()
        assert (sent.event_type, sent.client_payload["relay"]["test"]) == ("crcr_test", True)
        assert relay.github.dispatches("org/one") == [sent]
        with pytest.raises(NotFound):
            await relay.services.acts.dispatch_test(
                repo(UPSTREAM), repo("org/stranger"), "test-2", who="ann", now=relay.clock.now()
            )
