"""Unanswered look-ups, lost webhooks and rows of an older release all come to an end, and never in a passed gate."""

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
WAITING = ("in_progress", None, f"waiting for {GATING}")


async def pass_minutes(relay: RunningRelay, minutes: int, step: int = 5) -> None:
    for _ in range(minutes // step):
        await relay.pass_time(step * MINUTE)


async def reconcile(relay: RunningRelay) -> None:
    relay.clock.advance(HOUR)
    await relay.services.reconciler.run()
    await relay.drain()


# Failing queries to GitHub


async def test_a_pull_request_whose_files_cannot_be_listed_for_half_an_hour_is_dispatched(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, DOCS) as relay:
        relay.github.faults.answer(500, on=FILES)
        pull = await open_pull(relay, files=["src/a.py"])
        await pass_minutes(relay, 25)
        assert sent_deliveries(relay) == []
        await pass_minutes(relay, 30)

        assert len(sent_deliveries(relay)) == 1
        assert shown_check(relay, GATE, pull.head_sha) == WAITING


async def test_a_group_that_cannot_be_compared_for_half_an_hour_is_dispatched_without_reuse(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.github.faults.answer(500, on=COMPARE)
        group = await enqueue(relay, pull)
        await pass_minutes(relay, 25)
        assert dispatched_groups(relay, GATING) == []
        await pass_minutes(relay, 30)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        assert shown_check(relay, GATE, group.head_sha) == WAITING


async def wait_until_parked(relay: RunningRelay, kind: str) -> None:
    """Let GitHub reject our tokens until the effect is parked, then accept them again."""
    await pass_minutes(relay, 26 * 60, step=15)
    assert row_states(relay, "effects", kind=kind) == ["parked"]
    relay.github.faults.clear()


async def test_reconciliation_retries_a_parked_query_for_files(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS) as relay:
        relay.github.faults.answer(401, on=FILES)
        await open_pull(relay, files=["docs/a.md"])
        await wait_until_parked(relay, "ask_files")
        await reconcile(relay)

        assert len(sent_deliveries(relay)) == 1


async def test_reconciliation_retries_a_parked_read_of_a_merge_group(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.github.faults.answer(401, on=COMPARE)
        group = await enqueue(relay, pull)
        await wait_until_parked(relay, "read_group")
        await reconcile(relay)

        assert shown_check(relay, GATE, group.head_sha) == (
            *("completed", "success", "the same tree has passed already"),
        )


# Lost webhooks


async def open_twin_with_lost_webhook(relay: RunningRelay, pull: PullRequest) -> PullRequest:
    """Open a second pull request on the same head, known only by a label: the webhook of its opening is lost."""
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
        twin = await open_twin_with_lost_webhook(relay, pull)
        assert (gate_state(relay, pull), gate_state(relay, twin)) == ("pending", "pending")
        await reconcile(relay)
        assert (gate_state(relay, twin), len(sent_deliveries(relay))) == ("pending", 2)
        await run_all(relay)

        assert (gate_state(relay, pull), gate_state(relay, twin)) == ("success", "success")


async def test_a_held_dispatch_of_a_closed_unapproved_pull_request_is_cancelled(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED) as relay:
        pull = await open_pull(relay)
        assert row_states(relay, "dispatches") == ["held"]
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert (row_states(relay, "dispatches"), sent_deliveries(relay)) == (["cancelled"], [])


# Rows of an older release


async def test_an_allowlist_with_an_l4_read_by_an_older_release_turns_the_gate_on(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        relay.rows("UPDATE upstreams SET gate_since = NULL")
        pull = await open_pull(relay)
        assert gate_state(relay, pull) == "absent"
        await relay.refresh()
        await relay.drain()

        assert gate_state(relay, pull) == "pending"


async def test_gates_of_a_removed_upstream_do_not_starve_the_gates_of_others(tmp_path: Path) -> None:
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
