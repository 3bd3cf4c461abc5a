"""When there is a gate at all, on which commits, how it ends, and what a changed allowlist does to open ones."""

from pathlib import Path

import pytest

from github_sim.github import Match, MergeBlocked, PullRequest
from support.github.gated_upstream import (
    GATE,
    GATED,
    GATING,
    INFORMING,
    gate_state,
    gated_upstream,
    latest_check,
    live_gate,
    open_pull,
    run_all,
    shown_check,
    write_comment,
)
from support.stage import UPSTREAM, Stage

SECOND = "org/second"
THEM = (GATING, SECOND)
NO_L4 = f"L3:\n  npu:\n    {INFORMING}: [ann]\n"
FIRST = f"  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
OTHER = f"  - {SECOND}: {{oncalls: [cat], jobs: [build, test]}}\n"
TWO = f"L4:\n{FIRST}{OTHER}"


def title(it: Stage, sha: str) -> str:
    found = shown_check(it, GATE, sha)
    return found[2] if found else "absent"


def gates(it: Stage, sha: str) -> list[tuple[str, str | None]]:
    """Every gate check of a commit, the oldest first."""
    found = [each for each in it.github.checks(UPSTREAM, sha) if each.name == GATE]
    return [(each.status, each.conclusion) for each in sorted(found, key=lambda each: each.id)]


async def list_anew(it: Stage, allowlist: str) -> None:
    it.write_allowlist(allowlist)
    await it.refresh()
    await it.act()


async def push(it: Stage, pull: PullRequest) -> str:
    """One more commit; the head before it."""
    before = pull.head_sha
    it.clock.advance(1)
    await it.github.push_to_pr(pull)
    await it.act()
    return before


async def push_back(it: Stage, pull: PullRequest, sha: str, *, after_s: float = 1) -> None:
    """The author force-pushes an old head."""
    it.clock.advance(after_s)
    before, pull.head_sha = pull.head_sha, sha
    await it.github.send_pull_webhook(pull, "synchronize", {"before": before, "after": sha})
    await it.act()


async def twin_of(it: Stage, pull: PullRequest) -> PullRequest:
    """Another pull request whose head is the same commit."""

    def same_head(twin: PullRequest) -> None:
        twin.head_sha = pull.head_sha

    it.clock.advance(1)
    twin = await it.github.open_pr(UPSTREAM, before_webhook=same_head)
    await it.act()
    return twin


# Whether there is a gate


async def test_without_an_l4_ever_listed_there_is_no_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, NO_L4, downstreams=(INFORMING,)) as it:
        pull = await open_pull(it)

        assert gate_state(it, pull) == "absent"


async def test_the_gate_stays_on_after_the_last_l4_left(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await list_anew(it, NO_L4)
        pull = await open_pull(it)

        assert shown_check(it, GATE, pull.head_sha) == ("completed", "success", "no gating backend")
        await it.github.merge_pr(pull)


async def test_the_first_l4_turns_the_gate_on_for_pull_requests_that_are_open_already(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, NO_L4) as it:
        pull = await open_pull(it)
        await list_anew(it, GATED)
        assert title(it, pull.head_sha) == "no gating backend"
        await push(it, pull)

        assert title(it, pull.head_sha) == f"waiting for {GATING}"


@pytest.mark.parametrize(
    ("setting", "allowlist", "outcome"), [("on", NO_L4, "success"), ("off", GATED, "absent")]
)
async def test_the_setting_turns_the_gate_on_or_off_whatever_is_listed(
    tmp_path: Path, setting: str, allowlist: str, outcome: str
) -> None:
    (tmp_path / "crcr.toml").write_text(f'[[upstream]]\ngate = "{setting}"\n')
    async with gated_upstream(tmp_path, allowlist) as it:
        pull = await open_pull(it)

        assert gate_state(it, pull) == outcome


async def test_every_head_gets_a_gate_and_only_the_newest_counts(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        heads = [await push(it, pull) for _ in range(3)]

        assert [gates(it, sha) for sha in heads] == [[("completed", "cancelled")]] * 3
        assert gates(it, pull.head_sha) == [("in_progress", None)]


async def test_a_gate_never_ends_neutral_or_skipped(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it, build="skipped", test="neutral")
        await push(it, pull)
        await list_anew(it, NO_L4)
        await push(it, pull)
        await it.github.close_pr(pull)
        await it.act()

        ends = {each.conclusion for each in it.github.checks(UPSTREAM) if each.name == GATE}
        assert ends == {"failure", "success", "cancelled"}


# How it ends


async def test_an_open_gate_of_a_superseded_commit_ends_cancelled(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        before = await push(it, pull)

        assert shown_check(it, GATE, before) == ("completed", "cancelled", "superseded or closed")


async def test_an_open_gate_of_a_closed_pull_request_ends_cancelled(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        it.clock.advance(1)
        await it.github.close_pr(pull)
        await it.act()

        assert gates(it, pull.head_sha) == [("completed", "cancelled")]


async def test_a_failed_gate_keeps_its_result_when_the_pull_request_is_closed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        it.clock.advance(1)
        await it.github.close_pr(pull)
        await it.act()

        assert gates(it, pull.head_sha) == [("completed", "failure")]


async def test_a_late_result_does_not_wake_the_gate_of_a_closed_pull_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        it.clock.advance(1)
        await it.github.close_pr(pull)
        await it.act()
        run = it.github.runs(GATING)[0]
        for job in run.jobs:
            await it.github.start_job(run, job.name)
            await it.github.complete_job(run, job.name)
        await it.act()

        assert gates(it, pull.head_sha) == [("completed", "cancelled")]


async def test_a_reopened_pull_request_gets_a_new_pending_gate_before_it_can_merge(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it)
        it.clock.advance(1)
        await it.github.close_pr(pull)
        await it.act()
        it.clock.advance(1)
        await it.github.reopen_pr(pull)
        await it.act()

        assert gates(it, pull.head_sha) == [
            ("completed", "success"),
            ("completed", "cancelled"),
            ("in_progress", None),
        ]
        with pytest.raises(MergeBlocked, match="crcr/gate: pending"):
            await it.github.merge_pr(pull)
        await run_all(it)
        assert gate_state(it, pull) == "success"


async def test_a_head_that_is_pushed_back_to_gets_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it)
        first = await push(it, pull)
        await push_back(it, pull, first)

        assert gates(it, first) == [
            ("completed", "success"),
            ("completed", "cancelled"),
            ("in_progress", None),
        ]
        await run_all(it, test="failure")
        assert gate_state(it, pull) == "failure"


async def test_while_nobody_knows_which_push_is_the_newest_an_old_green_gate_does_not_count(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it)
        first = await push(it, pull)
        away = it.github.faults.answer(503, on=Match("GET", f"/repos/{UPSTREAM}/pulls/*"))
        await push_back(it, pull, first, after_s=0)
        assert gates(it, first) == [
            ("completed", "success"),
            ("completed", "cancelled"),
            ("in_progress", None),
        ]
        assert "asking GitHub which push and base are the newest" in title(it, first)
        it.github.faults.remove(away)
        await it.pass_time(60)
        await run_all(it)

        assert gate_state(it, pull) == "success"


async def test_a_pull_request_that_is_closed_and_reopened_within_a_second_waits_for_its_new_results(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it)
        it.clock.advance(1)
        it.github.faults.answer(503, on=Match("GET", f"/repos/{UPSTREAM}/pulls/*"), times=1)
        await it.github.close_pr(pull)
        await it.github.reopen_pr(pull)
        await it.act()
        assert gate_state(it, pull) == "pending"
        await it.pass_time(60)
        assert title(it, pull.head_sha) == f"waiting for {GATING}"
        await run_all(it, build="failure")

        assert gates(it, pull.head_sha) == [("completed", "success"), ("completed", "failure")]


# Several pull requests on one head


async def test_with_two_pull_requests_on_one_head_the_worse_counts(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it)
        twin = await twin_of(it, pull)
        assert gate_state(it, pull) == "pending"
        await run_all(it, build="failure")

        assert (gate_state(it, pull), gate_state(it, twin)) == ("failure", "failure")


async def test_a_waiver_of_one_pull_request_does_not_open_the_gate_of_its_twin(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        twin = await twin_of(it, pull)
        await run_all(it, build="failure")
        await write_comment(it, pull, f"/crcr waive {GATING} because known")
        assert gate_state(it, twin) == "failure"
        await write_comment(it, twin, f"/crcr waive {GATING} because known here too")

        assert gate_state(it, twin) == "success"


async def test_a_twin_that_is_closed_counts_no_more(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        pull = await open_pull(it)
        await run_all(it)
        twin = await twin_of(it, pull)
        await run_all(it, build="failure")
        it.clock.advance(1)
        await it.github.close_pr(twin)
        await it.act()

        assert gate_state(it, pull) == "success"


# A changed allowlist


async def test_a_backend_that_leaves_the_allowlist_frees_open_pull_requests_at_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=THEM) as it:
        pull = await open_pull(it)
        await run_all(it, GATING)
        await list_anew(it, f"L4:\n{FIRST}")

        assert gate_state(it, pull) == "success"
        assert f"`{SECOND}` has left the allowlist" in latest_check(it, GATE, pull.head_sha).output["summary"]


async def test_a_backend_that_leaves_with_its_failure_blocks_nobody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=THEM) as it:
        pull = await open_pull(it)
        await run_all(it, GATING)
        await run_all(it, SECOND, build="failure")
        assert gate_state(it, pull) == "failure"
        await list_anew(it, f"L4:\n{FIRST}")

        await it.github.merge_pr(pull)


async def test_a_backend_that_comes_in_counts_from_the_next_push(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L4:\n{FIRST}", downstreams=THEM) as it:
        pull = await open_pull(it)
        await list_anew(it, TWO)
        await run_all(it, GATING)
        assert gate_state(it, pull) == "success"
        await push(it, pull)
        await run_all(it, GATING)

        assert gate_state(it, pull) == "pending"
        live = await live_gate(it, pull.head_sha)
        assert live["title"] == f"1 of 2 backends passed, waiting for {SECOND}"


async def test_a_backend_that_rises_to_l4_gates_from_the_next_push(tmp_path: Path) -> None:
    lower = f"L3:\n  npu:\n    {SECOND}: [cat]\nL4:\n{FIRST}"
    async with gated_upstream(tmp_path, lower, downstreams=THEM) as it:
        pull = await open_pull(it)
        await run_all(it, GATING)
        await list_anew(it, TWO)
        assert gate_state(it, pull) == "success"
        assert "gates from the next push on" in latest_check(it, GATE, pull.head_sha).output["summary"]
        await push(it, pull)

        assert gate_state(it, pull) == "pending"


async def test_a_backend_that_is_lowered_to_l2_blocks_no_more(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=THEM) as it:
        pull = await open_pull(it)
        await run_all(it, GATING)
        await run_all(it, SECOND, build="failure")
        await list_anew(it, f"L2:\n  - {SECOND}\nL4:\n{FIRST}")

        assert gate_state(it, pull) == "success"
        assert "is downgraded to L2" in latest_check(it, GATE, pull.head_sha).output["summary"]


async def test_more_jobs_in_the_allowlist_close_an_open_gate_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L4:\n{FIRST}", downstreams=THEM) as it:
        pull = await open_pull(it)
        await run_all(it, GATING)
        await list_anew(it, f"L4:\n{FIRST}".replace("build, test", "build, test, soak"))

        assert gates(it, pull.head_sha) == [("completed", "success"), ("in_progress", None)]


async def test_only_the_open_pull_requests_are_looked_at_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=THEM) as it:
        closed, pull = await open_pull(it), await open_pull(it)
        it.clock.advance(1)
        await it.github.close_pr(closed)
        await it.act()
        await list_anew(it, NO_L4)

        assert gates(it, closed.head_sha) == [("completed", "cancelled")]
        assert title(it, pull.head_sha) == "no gating backend"
