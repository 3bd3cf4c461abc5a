"""Look-ups without an answer, events that never came, and rows of an older release end, and never in a passed gate."""

from pathlib import Path

from github_sim.github import Match, PullRequest
from support.github.checks import GATES, open_twin, sent_deliveries
from support.github.dispatch_log import row_states
from support.github.gated_upstream import (
    GATE,
    GATING,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    shown_check,
    sweep_after,
    write_comment,
)
from support.github.merge_queue import dispatched_groups, enqueue
from support.running_relay import UPSTREAM, RunningRelay

MINUTE, HOUR = 60.0, 3600.0
FILES = Match("GET", f"/repos/{UPSTREAM}/compare/*")
COMPARE = Match("GET", f"/repos/{UPSTREAM}/compare/*")
DOCS = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: ['docs/**']}}\n"
APPROVED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], authors: approved}}\n"
WAITS = ("in_progress", None, f"waiting for {GATING}")


async def pass_minutes(relay: RunningRelay, minutes: int, step: int = 5) -> None:
    for _ in range(minutes // step):
        await relay.pass_time(step * MINUTE)


async def reconcile(relay: RunningRelay) -> None:
    relay.clock.advance(HOUR)
    await relay.services.reconciler.run()
    await relay.drain()


# Questions that GitHub does not answer


async def test_files_that_github_fails_to_list_for_half_an_hour_concern_everybody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS) as relay:
        relay.github.faults.answer(500, on=FILES)
        pull = await open_pull(relay, files=["src/a.py"])
        await pass_minutes(relay, 25)
        assert sent_deliveries(relay) == []
        await pass_minutes(relay, 30)

        assert len(sent_deliveries(relay)) == 1
        assert shown_check(relay, GATE, pull.head_sha) == WAITS


async def test_a_group_that_github_fails_to_tell_of_for_half_an_hour_reuses_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.github.faults.answer(500, on=COMPARE)
        group = await enqueue(relay, pull)
        await pass_minutes(relay, 25)
        assert dispatched_groups(relay, GATING) == []
        await pass_minutes(relay, 30)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        assert shown_check(relay, GATE, group.head_sha) == WAITS


async def given_up(relay: RunningRelay, kind: str) -> None:
    """GitHub takes our tokens no more, for longer than anybody tries; then it does."""
    await pass_minutes(relay, 26 * 60, step=15)
    assert row_states(relay, "effects", kind=kind) == ["parked"]
    relay.github.faults.clear()


async def test_a_question_about_files_that_was_given_up_is_asked_again_by_reconciling(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS) as relay:
        relay.github.faults.answer(401, on=FILES)
        await open_pull(relay, files=["docs/a.md"])
        await given_up(relay, "ask_files")
        await reconcile(relay)

        assert len(sent_deliveries(relay)) == 1


async def test_a_group_whose_reading_was_given_up_is_read_again_by_reconciling(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.github.faults.answer(401, on=COMPARE)
        group = await enqueue(relay, pull)
        await given_up(relay, "read_group")
        await reconcile(relay)

        assert shown_check(relay, GATE, group.head_sha) == (
            *("completed", "success", "the same tree has passed already"),
        )


# Events that never came


async def unheard_twin(relay: RunningRelay, pull: PullRequest) -> PullRequest:
    """A second pull request on the same head, known by a label alone: its opening was lost on the way."""
    relay.github.faults.webhooks.lose(event="pull_request", times=1)
    twin = await open_twin(relay, pull)
    relay.clock.advance(1)
    await relay.github.label_pr(twin, "triaged")
    await relay.drain()
    return twin


async def test_a_pull_request_whose_opening_was_lost_keeps_the_gate_of_its_head_pending(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        twin = await unheard_twin(relay, pull)
        assert (gate_state(relay, pull), gate_state(relay, twin)) == ("pending", "pending")
        await reconcile(relay)
        assert (gate_state(relay, twin), len(sent_deliveries(relay))) == ("pending", 2)
        await run_all(relay)

        assert (gate_state(relay, pull), gate_state(relay, twin)) == ("success", "success")


async def test_the_end_of_a_head_that_nobody_approved_is_left_out_and_not_held(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        assert row_states(relay, "dispatches") == ["held"]
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert (row_states(relay, "dispatches"), sent_deliveries(relay)) == (["cancelled"], [])


# What an older release left behind


async def test_a_list_with_an_l4_that_an_older_release_read_turns_the_gate_on(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        relay.rows("UPDATE upstreams SET gate_since = NULL")
        pull = await open_pull(relay)
        assert gate_state(relay, pull) == "absent"
        await relay.refresh()
        await relay.drain()

        assert gate_state(relay, pull) == "pending"


async def test_gates_of_an_upstream_that_is_configured_no_more_crowd_nobody_out(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        relay.rows(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
            " INSERT INTO gates (head_sha, upstream, state, title, judged_at, recheck_at)"
            " SELECT '000000000000000000000000000000000' || CAST(1000000 + i AS TEXT), 'gone/away', 'pending', 'waiting', 0, 1 FROM n"
        )
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await sweep_after(relay, MINUTE)
        await write_comment(relay, pull, f"/crcr waive {GATING} until 1h because known")
        assert gate_state(relay, pull) == "success"
        await sweep_after(relay, HOUR)

        assert gate_state(relay, pull) == "failure"
        assert relay.rows("SELECT * FROM effects WHERE upstream = 'gone/away'") == []
