"""When a gate exists, on which commits, how it ends, and how an allowlist change affects open gates."""

from pathlib import Path

import pytest

from github_sim.github import Match, MergeBlocked, PullRequest
from support.github.gated_upstream import (
    GATE,
    GATED,
    GATING,
    INFORMING,
    gate_state,
    gate_title,
    gated_upstream,
    latest_check,
    live_gate,
    open_pull,
    run_all,
    shown_check,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay

SECOND = "org/second"
BOTH = (GATING, SECOND)
NO_L4 = f"L3:\n  npu:\n    {INFORMING}: [ann]\n"
FIRST = f"  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
OTHER = f"  - {SECOND}: {{oncalls: [cat], jobs: [build, test]}}\n"
TWO = f"L4:\n{FIRST}{OTHER}"


def gate_results(relay: RunningRelay, sha: str) -> list[tuple[str, str | None]]:
    """Status and conclusion of every gate check of a commit, oldest first."""
    gate_checks = [check for check in relay.github.checks(UPSTREAM, sha) if check.name == GATE]
    return [(check.status, check.conclusion) for check in sorted(gate_checks, key=lambda check: check.id)]


async def replace_allowlist(relay: RunningRelay, allowlist: str) -> None:
    relay.write_allowlist(allowlist)
    await relay.refresh()
    await relay.drain()


async def push(relay: RunningRelay, pull: PullRequest) -> str:
    """Push one more commit, and return the head before it."""
    before = pull.head_sha
    relay.clock.advance(1)
    await relay.github.push_to_pr(pull)
    await relay.drain()
    return before


async def force_push_back(relay: RunningRelay, pull: PullRequest, sha: str, *, after_s: float = 1) -> None:
    """Force-push an old head, as the author."""
    relay.clock.advance(after_s)
    before, pull.head_sha = pull.head_sha, sha
    await relay.github.send_pull_webhook(pull, "synchronize", {"before": before, "after": sha})
    await relay.drain()


async def open_twin(relay: RunningRelay, pull: PullRequest) -> PullRequest:
    """Open another pull request with the same head commit."""

    def same_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    relay.clock.advance(1)
    twin = await relay.github.open_pr(UPSTREAM, before_webhook=same_head)
    await relay.drain()
    return twin


# Whether there is a gate


async def test_an_upstream_that_never_listed_an_l4_backend_has_no_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, NO_L4, downstreams=(INFORMING,)) as relay:
        pull = await open_pull(relay)

        assert gate_state(relay, pull) == "absent"


async def test_the_gate_stays_on_after_the_last_l4_backend_was_removed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await replace_allowlist(relay, NO_L4)
        pull = await open_pull(relay)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "no gating backend")
        await relay.github.merge_pr(pull)


async def test_the_first_l4_backend_turns_the_gate_on_for_open_pull_requests(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, NO_L4) as relay:
        pull = await open_pull(relay)
        await replace_allowlist(relay, GATED)
        assert gate_title(relay, pull.head_sha) == "no gating backend"
        await push(relay, pull)

        assert gate_title(relay, pull.head_sha) == f"waiting for {GATING}"


@pytest.mark.parametrize(
    ("setting", "allowlist", "outcome"), [("on", NO_L4, "success"), ("off", GATED, "absent")]
)
async def test_the_setting_turns_the_gate_on_or_off_whatever_is_listed(
    tmp_path: Path, setting: str, allowlist: str, outcome: str
) -> None:
    (tmp_path / "crcr.toml").write_text(f'[[upstream]]\ngate = "{setting}"\n')
    async with gated_upstream(tmp_path, allowlist) as relay:
        pull = await open_pull(relay)

        assert gate_state(relay, pull) == outcome


async def test_every_head_gets_a_gate_and_only_the_newest_counts(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        heads = [await push(relay, pull) for _ in range(3)]

        assert [gate_results(relay, sha) for sha in heads] == [[("completed", "cancelled")]] * 3
        assert gate_results(relay, pull.head_sha) == [("in_progress", None)]


async def test_a_gate_never_ends_neutral_or_skipped(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="skipped", test="neutral")
        await push(relay, pull)
        await replace_allowlist(relay, NO_L4)
        await push(relay, pull)
        await relay.github.close_pr(pull)
        await relay.drain()

        conclusions = {check.conclusion for check in relay.github.checks(UPSTREAM) if check.name == GATE}
        assert conclusions == {"failure", "success", "cancelled"}


# How a gate ends


async def test_an_open_gate_of_a_superseded_commit_ends_cancelled(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        before = await push(relay, pull)

        assert shown_check(relay, GATE, before) == ("completed", "cancelled", "superseded or closed")


async def test_an_open_gate_of_a_closed_pull_request_ends_cancelled(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert gate_results(relay, pull.head_sha) == [("completed", "cancelled")]


async def test_a_failed_gate_keeps_its_result_when_the_pull_request_is_closed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert gate_results(relay, pull.head_sha) == [("completed", "failure")]


async def test_a_late_result_does_not_reopen_the_gate_of_a_closed_pull_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()
        run = relay.github.runs(GATING)[0]
        for job in run.jobs:
            await relay.github.start_job(run, job.name)
            await relay.github.complete_job(run, job.name)
        await relay.drain()

        assert gate_results(relay, pull.head_sha) == [("completed", "cancelled")]


async def test_a_reopened_pull_request_gets_a_new_pending_gate_before_it_can_merge(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()
        relay.clock.advance(1)
        await relay.github.reopen_pr(pull)
        await relay.drain()

        assert gate_results(relay, pull.head_sha) == [
            ("completed", "success"),
            ("completed", "cancelled"),
            ("in_progress", None),
        ]
        with pytest.raises(MergeBlocked, match="crcr/gate: pending"):
            await relay.github.merge_pr(pull)
        await run_all(relay)
        assert gate_state(relay, pull) == "success"


async def test_a_force_push_back_to_an_old_head_gives_it_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        first = await push(relay, pull)
        await force_push_back(relay, pull, first)

        assert gate_results(relay, first) == [
            ("completed", "success"),
            ("completed", "cancelled"),
            ("in_progress", None),
        ]
        await run_all(relay, test="failure")
        assert gate_state(relay, pull) == "failure"


async def test_an_old_passed_gate_does_not_count_while_the_newest_push_is_unknown(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        first = await push(relay, pull)
        fault = relay.github.faults.answer(503, on=Match("GET", f"/repos/{UPSTREAM}/pulls/*"))
        await force_push_back(relay, pull, first, after_s=0)
        assert gate_results(relay, first) == [
            ("completed", "success"),
            ("completed", "cancelled"),
            ("in_progress", None),
        ]
        assert "asking GitHub which push and base are the newest" in gate_title(relay, first)
        relay.github.faults.remove(fault)
        await relay.pass_time(60)
        await run_all(relay)

        assert gate_state(relay, pull) == "success"


async def test_a_pull_request_closed_and_reopened_within_a_second_waits_for_new_results(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.clock.advance(1)
        relay.github.faults.answer(503, on=Match("GET", f"/repos/{UPSTREAM}/pulls/*"), times=1)
        await relay.github.close_pr(pull)
        await relay.github.reopen_pr(pull)
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        await relay.pass_time(60)
        assert gate_title(relay, pull.head_sha) == f"waiting for {GATING}"
        await run_all(relay, build="failure")

        assert gate_results(relay, pull.head_sha) == [("completed", "success"), ("completed", "failure")]


# Several pull requests on one head


async def test_two_pull_requests_with_one_head_share_the_worse_gate_result(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        twin = await open_twin(relay, pull)
        assert gate_state(relay, pull) == "pending"
        await run_all(relay, build="failure")

        assert (gate_state(relay, pull), gate_state(relay, twin)) == ("failure", "failure")


async def test_a_waiver_of_one_pull_request_does_not_waive_another_with_the_same_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        twin = await open_twin(relay, pull)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")
        assert gate_state(relay, twin) == "failure"
        await write_comment(relay, twin, f"/crcr waive {GATING} because known here too")

        assert gate_state(relay, twin) == "success"


async def test_a_closed_pull_request_no_longer_counts_for_another_with_the_same_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        twin = await open_twin(relay, pull)
        await run_all(relay, build="failure")
        relay.clock.advance(1)
        await relay.github.close_pr(twin)
        await relay.drain()

        assert gate_state(relay, pull) == "success"


# A changed allowlist


async def test_removing_a_backend_from_the_allowlist_unblocks_open_pull_requests_at_once(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING)
        await replace_allowlist(relay, f"L4:\n{FIRST}")

        assert gate_state(relay, pull) == "success"
        assert (
            f"`{SECOND}` has left the allowlist" in latest_check(relay, GATE, pull.head_sha).output["summary"]
        )


async def test_a_failure_of_a_removed_backend_does_not_block_the_merge(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING)
        await run_all(relay, SECOND, build="failure")
        assert gate_state(relay, pull) == "failure"
        await replace_allowlist(relay, f"L4:\n{FIRST}")

        await relay.github.merge_pr(pull)


async def test_a_backend_added_to_the_allowlist_gates_from_the_next_push(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L4:\n{FIRST}", downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await replace_allowlist(relay, TWO)
        await run_all(relay, GATING)
        assert gate_state(relay, pull) == "success"
        await push(relay, pull)
        await run_all(relay, GATING)

        assert gate_state(relay, pull) == "pending"
        live = await live_gate(relay, pull.head_sha)
        assert live["title"] == f"1 of 2 backends passed, waiting for {SECOND}"


async def test_a_backend_promoted_to_l4_gates_from_the_next_push(tmp_path: Path) -> None:
    lower = f"L3:\n  npu:\n    {SECOND}: [cat]\nL4:\n{FIRST}"
    async with gated_upstream(tmp_path, lower, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING)
        await replace_allowlist(relay, TWO)
        assert gate_state(relay, pull) == "success"
        assert "gates from the next push on" in latest_check(relay, GATE, pull.head_sha).output["summary"]
        await push(relay, pull)

        assert gate_state(relay, pull) == "pending"


async def test_a_failure_of_a_backend_lowered_to_l2_does_not_block_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING)
        await run_all(relay, SECOND, build="failure")
        await replace_allowlist(relay, f"L2:\n  - {SECOND}\nL4:\n{FIRST}")

        assert gate_state(relay, pull) == "success"
        assert "is downgraded to L2" in latest_check(relay, GATE, pull.head_sha).output["summary"]


async def test_jobs_added_in_the_allowlist_make_a_passed_gate_pending_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L4:\n{FIRST}", downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING)
        await replace_allowlist(relay, f"L4:\n{FIRST}".replace("build, test", "build, test, soak"))

        assert gate_results(relay, pull.head_sha) == [("completed", "success"), ("in_progress", None)]


async def test_an_allowlist_change_reevaluates_only_open_pull_requests(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        closed, pull = await open_pull(relay), await open_pull(relay)
        relay.clock.advance(1)
        await relay.github.close_pr(closed)
        await relay.drain()
        await replace_allowlist(relay, NO_L4)

        assert gate_results(relay, closed.head_sha) == [("completed", "cancelled")]
        assert gate_title(relay, pull.head_sha) == "no gating backend"
