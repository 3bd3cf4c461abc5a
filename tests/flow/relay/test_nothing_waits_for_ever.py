"""Questions without an answer, events that never came, an older release's data: each ends, and none of them in green."""

from pathlib import Path

from github_sim.github import Match, PullRequest
from support.github.checks import GATES, open_twin, sent_deliveries
from support.github.dispatch_log import row_states
from support.github.gated_upstream import (
    GATE,
    GATING,
    Stage,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    shown_check,
    sweep_after,
    write_comment,
)
from support.github.merge_queue import dispatched_groups, enqueue
from support.stage import UPSTREAM

MINUTE, HOUR = 60.0, 3600.0
FILES = Match("GET", f"/repos/{UPSTREAM}/compare/*")
COMPARE = Match("GET", f"/repos/{UPSTREAM}/compare/*")
DOCS = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: ['docs/**']}}\n"
APPROVED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], authors: approved}}\n"
WAITS = ("in_progress", None, f"waiting for {GATING}")


async def pass_minutes(it: Stage, minutes: int, step: int = 5) -> None:
    for _ in range(minutes // step):
        await it.pass_time(step * MINUTE)


async def reconcile(it: Stage) -> None:
    it.clock.advance(HOUR)
    await it.services.reconciler.run()
    await it.act()


# Questions that GitHub does not answer


async def test_files_that_github_fails_to_list_for_half_an_hour_concern_everybody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS) as it:
        it.github.faults.answer(500, on=FILES)
        pull = await open_pull(it, files=["src/a.py"])
        await pass_minutes(it, 25)
        assert sent_deliveries(it) == []
        await pass_minutes(it, 30)

        assert len(sent_deliveries(it)) == 1
        assert shown_check(it, GATE, pull.head_sha) == WAITS


async def test_a_group_that_github_fails_to_tell_of_for_half_an_hour_reuses_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        await run_all(it)
        it.github.faults.answer(500, on=COMPARE)
        group = await enqueue(it, pull)
        await pass_minutes(it, 25)
        assert dispatched_groups(it, GATING) == []
        await pass_minutes(it, 30)

        assert dispatched_groups(it, GATING) == [("checks_requested", group.head_sha)]
        assert shown_check(it, GATE, group.head_sha) == WAITS


async def given_up(it: Stage, kind: str) -> None:
    """GitHub takes our tokens no more, for longer than anybody tries; then it does."""
    await pass_minutes(it, 26 * 60, step=15)
    assert row_states(it, "effects", kind=kind) == ["parked"]
    it.github.faults.clear()


async def test_a_question_about_files_that_was_given_up_is_asked_again_by_reconciling(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS) as it:
        it.github.faults.answer(401, on=FILES)
        await open_pull(it, files=["docs/a.md"])
        await given_up(it, "ask_files")
        await reconcile(it)

        assert len(sent_deliveries(it)) == 1


async def test_a_group_whose_reading_was_given_up_is_read_again_by_reconciling(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        await run_all(it)
        it.github.faults.answer(401, on=COMPARE)
        group = await enqueue(it, pull)
        await given_up(it, "read_group")
        await reconcile(it)

        assert shown_check(it, GATE, group.head_sha) == (
            *("completed", "success", "the same tree has passed already"),
        )


# Events that never came


async def unheard_twin(it: Stage, pull: PullRequest) -> PullRequest:
    """A second pull request on the same head, known by a label alone: its opening was lost on the way."""
    it.github.faults.webhooks.lose(event="pull_request", times=1)
    twin = await open_twin(it, pull)
    it.clock.advance(1)
    await it.github.label_pr(twin, "triaged")
    await it.act()
    return twin


async def test_a_pull_request_whose_opening_was_lost_keeps_the_gate_of_its_head_pending(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        await run_all(it)
        twin = await unheard_twin(it, pull)
        assert (gate_state(it, pull), gate_state(it, twin)) == ("pending", "pending")
        await reconcile(it)
        assert (gate_state(it, twin), len(sent_deliveries(it))) == ("pending", 2)
        await run_all(it)

        assert (gate_state(it, pull), gate_state(it, twin)) == ("success", "success")


async def test_the_end_of_a_head_that_nobody_approved_is_left_out_and_not_held(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as it:
        pull = await open_pull(it)
        assert row_states(it, "dispatches") == ["held"]
        it.clock.advance(1)
        await it.github.close_pr(pull)
        await it.act()

        assert (row_states(it, "dispatches"), sent_deliveries(it)) == (["cancelled"], [])


# What an older release left behind


async def test_a_list_with_an_l4_that_an_older_release_read_turns_the_gate_on(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        it.rows("UPDATE upstreams SET gate_since = NULL")
        pull = await open_pull(it)
        assert gate_state(it, pull) == "absent"
        await it.refresh()
        await it.act()

        assert gate_state(it, pull) == "pending"


async def test_gates_of_an_upstream_that_is_configured_no_more_crowd_nobody_out(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        it.rows(
            "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 500)"
            " INSERT INTO gates (head_sha, upstream, state, title, judged_at, recheck_at)"
            " SELECT '000000000000000000000000000000000' || CAST(1000000 + i AS TEXT), 'gone/away', 'pending', 'waiting', 0, 1 FROM n"
        )
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await sweep_after(it, MINUTE)
        await write_comment(it, pull, f"/crcr waive {GATING} until 1h because known")
        assert gate_state(it, pull) == "success"
        await sweep_after(it, HOUR)

        assert gate_state(it, pull) == "failure"
        assert it.rows("SELECT * FROM effects WHERE upstream = 'gone/away'") == []
