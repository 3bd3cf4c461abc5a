"""Waivers: a maintainer's comment lets the gate of one pull request pass, within its scope and time."""

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from github_sim.github import Match, MergeBlocked, PullRequest
from support.github.checks import open_twin
from support.github.commands import WAIVE, audit_entries, failing_pull, relay_comments, was_obeyed
from support.github.gated_upstream import (
    GATE,
    GATING,
    INFORMING,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    push_to_pull,
    run_all,
    shown_check,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.running_relay import RunningRelay

DAY = 24 * 3600.0
FOR_DAYS = f"/crcr waive {GATING} until 3d because the runner is on fire"
TWO = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n  - {INFORMING}: {{oncalls: [ann], jobs: [build]}}\n"


def waivers(relay: RunningRelay) -> list[dict[str, object]]:
    return relay.rows("SELECT * FROM waivers ORDER BY waiver_id")


def gate_text(relay: RunningRelay, pull: PullRequest) -> str:
    """Title and summary of the gate."""
    output = latest_check(relay, GATE, pull.head_sha).output
    return f"{output['title']}\n{output['summary']}"


async def test_a_waiver_lets_a_blocked_pull_request_merge(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        with pytest.raises(MergeBlocked, match="crcr/gate: failure"):
            await relay.github.merge_pr(pull)
        assert was_obeyed(await write_comment(relay, pull, WAIVE))

        assert (await relay.github.merge_pr(pull)).merged


async def test_the_gate_shows_the_author_and_the_reason_of_a_waiver(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)

        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "success",
            f"{GATING} waived by @maintainer",
        )
        assert "because `the runner is on fire`, for this commit on this base only" in gate_text(relay, pull)


async def test_a_backend_can_be_waived_before_it_fails(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        assert gate_state(relay, pull) == "pending"
        await write_comment(relay, pull, WAIVE)
        assert gate_state(relay, pull) == "success"
        await run_all(relay, build="failure")

        assert gate_state(relay, pull) == "success"


async def test_a_waived_backend_that_passes_is_shown_as_passed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, WAIVE)
        await run_all(relay)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 backend passed")


# Pull request, head and time


async def test_a_waiver_ends_with_the_head_that_it_was_given_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)
        await push_to_pull(relay, pull)
        assert gate_state(relay, pull) == "pending"
        await run_all(relay, build="failure")

        assert gate_state(relay, pull) == "failure"
        with pytest.raises(MergeBlocked):
            await relay.github.merge_pr(pull)


async def test_a_waiver_until_a_time_holds_across_pushes(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, FOR_DAYS)
        await push_to_pull(relay, pull)
        await run_all(relay, test="failure")

        assert gate_state(relay, pull) == "success"
        until = relay.clock.now() - timedelta(seconds=60) + timedelta(days=3)
        assert f"until {until:%Y-%m-%d %H:%M} UTC" in gate_text(relay, pull)


async def test_a_waiver_expires_without_any_event_and_the_gate_fails_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, FOR_DAYS)
        await sweep_after(relay, 3 * DAY - 1)
        assert gate_state(relay, pull) == "success"
        await sweep_after(relay, 2)

        assert gate_state(relay, pull) == "failure"
        with pytest.raises(MergeBlocked):
            await relay.github.merge_pr(pull)


async def test_a_waiver_counts_only_for_its_own_pull_request_when_two_share_a_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        one = await failing_pull(relay)
        other = await open_twin(relay, one)
        await run_all(relay, build="failure")
        await write_comment(relay, one, WAIVE)
        assert gate_state(relay, one) == "failure"
        await write_comment(relay, other, WAIVE)

        assert gate_state(relay, other) == "success"


async def test_a_waiver_does_not_count_for_another_pull_request(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        one, other = await failing_pull(relay), await failing_pull(relay)
        await write_comment(relay, one, FOR_DAYS)

        assert (gate_state(relay, one), gate_state(relay, other)) == ("success", "failure")


async def test_a_waiver_of_the_same_head_holds_after_closing_and_reopening(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)
        for act in (relay.github.close_pr, relay.github.reopen_pr):
            relay.clock.advance(60)
            await act(pull)
            await relay.drain()

        assert gate_state(relay, pull) == "success"


# Scope


async def test_a_waiver_of_a_job_covers_only_that_job(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure", test="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING}:build because known")
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} failed (test)")
        await write_comment(relay, pull, f"/crcr waive {GATING}:test because known too")

        assert gate_state(relay, pull) == "success"


async def test_the_gate_still_waits_for_a_waived_job_to_end(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="success")
        await write_comment(relay, pull, f"/crcr waive {GATING}:test because it hangs")
        assert gate_state(relay, pull) == "pending"
        await finish_jobs(relay, run, test="failure")

        assert gate_state(relay, pull) == "success"


async def test_a_waiver_of_one_backend_does_not_waive_the_others(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO) as relay:
        pull = await open_pull(relay)
        for name in (GATING, INFORMING):
            await run_all(relay, name, build="failure")
        await write_comment(relay, pull, WAIVE)

        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{INFORMING} failed (build)",
        )


async def test_the_checks_of_a_waived_backend_turn_neutral(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, job_checks="all") as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)

        states = [
            shown_check(relay, f"crcr/{GATING}{job}", pull.head_sha) for job in ("", "/CI/build", "/CI/test")
        ]
        assert [state and state[1] for state in states] == ["neutral", "neutral", "success"]


# Revoked and refused


async def test_unwaive_fails_the_gate_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)
        assert was_obeyed(await write_comment(relay, pull, f"/crcr unwaive {GATING}"))

        assert gate_state(relay, pull) == "failure"
        assert not was_obeyed(await write_comment(relay, pull, f"/crcr unwaive {GATING}"))


async def test_unwaive_of_a_job_does_not_end_the_waiver_of_the_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)
        assert not was_obeyed(await write_comment(relay, pull, f"/crcr unwaive {GATING}:build"))

        assert gate_state(relay, pull) == "success"
        assert ["no such waiver" in answer for answer in relay_comments(relay, pull)] == [True]


async def test_an_expired_waiver_cannot_be_unwaived(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, FOR_DAYS)
        await sweep_after(relay, 4 * DAY)

        assert not was_obeyed(await write_comment(relay, pull, f"/crcr unwaive {GATING}"))
        assert [row["ended_by"] for row in waivers(relay)] == [None]


@pytest.mark.parametrize("name", [INFORMING, "org/stranger"])
async def test_a_backend_that_does_not_gate_cannot_be_waived(tmp_path: Path, name: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        comment = await write_comment(relay, pull, f"/crcr waive {name} because it is red")

        assert not was_obeyed(comment)
        assert ["not a gating (L4) backend" in answer for answer in relay_comments(relay, pull)] == [True]
        assert waivers(relay) == []


async def test_a_waiver_on_a_closed_pull_request_is_refused(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        comment = await write_comment(relay, pull, FOR_DAYS)

        assert not was_obeyed(comment)
        assert (waivers(relay), ["closed" in answer for answer in relay_comments(relay, pull)]) == (
            [],
            [True],
        )


@pytest.mark.parametrize(
    "words", ["until 8d because x", "until 0h because x", "until soon because x", "because "]
)
async def test_a_waiver_without_a_reason_or_with_an_invalid_time_is_refused(
    tmp_path: Path, words: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)

        assert not was_obeyed(await write_comment(relay, pull, f"/crcr waive {GATING} {words}"))
        assert (waivers(relay), gate_state(relay, pull)) == ([], "failure")


# The button


async def test_the_gates_button_posts_the_waive_command_and_waives_nothing_by_itself(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await relay.github.press_button(latest_check(relay, GATE, pull.head_sha), "waive")
        await relay.drain()

        [offer] = relay_comments(relay, pull)
        assert f"\n/crcr waive {GATING} at {pull.head_sha[:12]} because <reason>\n" in offer
        assert (waivers(relay), gate_state(relay, pull)) == ([], "failure")


async def test_the_posted_waive_command_works_when_a_maintainer_copies_it(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await relay.github.press_button(latest_check(relay, GATE, pull.head_sha), "waive")
        await relay.drain()
        [line] = [line for line in relay_comments(relay, pull)[0].splitlines() if line.startswith("/crcr")]

        assert was_obeyed(await write_comment(relay, pull, line.replace("<reason>", "it must land")))
        assert gate_state(relay, pull) == "success"


async def test_a_gate_that_is_not_blocked_offers_no_button(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        assert latest_check(relay, GATE, pull.head_sha).actions == []
        await run_all(relay)

        assert latest_check(relay, GATE, pull.head_sha).actions == []


async def test_a_button_pressed_after_the_gate_passed_posts_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        before = replace(latest_check(relay, GATE, pull.head_sha))
        await write_comment(relay, pull, WAIVE)
        await relay.github.press_button(before, "waive")
        await relay.drain()

        assert relay_comments(relay, pull) == []


async def test_the_button_posts_once_on_each_blocked_pull_request_of_a_shared_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        one = await failing_pull(relay)
        other = await open_twin(relay, one)
        await run_all(relay, build="failure")
        relay.github.faults.secondary_limit(on=Match("POST", f"*/issues/{other.number}/comments"), times=1)
        await relay.github.press_button(latest_check(relay, GATE, one.head_sha), "waive")
        for _ in range(3):
            await relay.pass_time(90)

        assert [len(relay_comments(relay, pull)) for pull in (one, other)] == [1, 1]


async def test_the_button_posts_nothing_on_a_waived_pull_request_of_a_shared_head(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        one = await failing_pull(relay)
        other = await open_twin(relay, one)
        await run_all(relay, build="failure")
        await write_comment(relay, one, WAIVE)
        await relay.github.press_button(latest_check(relay, GATE, one.head_sha), "waive")
        await relay.drain()

        assert [len(relay_comments(relay, pull)) for pull in (one, other)] == [0, 1]


# The audit log


async def test_a_waiver_its_use_and_its_end_are_in_the_audit_log(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, WAIVE)
        await write_comment(relay, pull, f"/crcr unwaive {GATING}")

        [given], [used], [ended] = (audit_entries(relay, act) for act in ("waive", "waiver_used", "unwaive"))
        assert (given["who"], given["command"], given["head"]) == ("maintainer", WAIVE, pull.head_sha)
        assert (used["who"], used["subject"], used["downstream"]) == ("maintainer", "#1", GATING)
        assert used["reason"] == "the runner is on fire"
        assert (ended["who"], ended["command"]) == ("maintainer", f"/crcr unwaive {GATING}")
        assert [row["ended_by"] for row in waivers(relay)] == ["maintainer"]


async def test_the_use_of_a_waiver_is_logged_once_however_often_the_gate_is_evaluated(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await failing_pull(relay)
        await write_comment(relay, pull, FOR_DAYS)
        await push_to_pull(relay, pull)
        await run_all(relay, test="failure")
        await sweep_after(relay, 60)

        assert len(audit_entries(relay, "waiver_used")) == 1


async def test_a_waiver_that_was_never_needed_is_not_logged_as_used(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        await write_comment(relay, pull, WAIVE)

        assert (gate_state(relay, pull), audit_entries(relay, "waiver_used")) == ("success", [])
        assert [row["used_at"] for row in waivers(relay)] == [None]


async def test_the_use_of_a_new_heads_waiver_is_not_recorded_on_the_old_heads_waiver(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO) as relay:
        pull = await open_pull(relay)
        for name in (GATING, INFORMING):
            await run_all(relay, name, build="failure")
        await write_comment(relay, pull, WAIVE)
        await push_to_pull(relay, pull)
        await run_all(relay, build="failure")
        await run_all(relay, INFORMING)
        await write_comment(relay, pull, WAIVE)

        assert gate_state(relay, pull) == "success"
        assert [row["used_at"] is not None for row in waivers(relay)] == [False, True]
