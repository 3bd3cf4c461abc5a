"""The merge queue: GitHub merges a group, or throws it out, by the gate on the group's own commit."""

import json
from pathlib import Path

import pytest

from github_sim.github import Match
from support.github.gated_upstream import (
    GATE,
    GATING,
    gate_summary,
    gated_upstream,
    latest_check,
    live_gate,
    open_pull,
    run_all,
    shown_check,
    sweep_after,
    write_comment,
)
from support.github.merge_queue import dispatched_groups, enqueue, enqueue_together, move_base, settle_queue
from support.running_relay import UPSTREAM, repo

HOUR = 3600.0
SECOND, LISTENING, OTHER = "org/second", "org/listening", "org/other"
FIRST = f"  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
ONE = f"L4:\n{FIRST}"
TWO = f"{ONE}  - {SECOND}: {{oncalls: [cat], jobs: [build, test]}}\n"
MIXED = f"L2:\n  - {LISTENING}: {{events: [merge_group]}}\n  - {OTHER}\n{ONE}"
THEM = (GATING, SECOND)
ALL = (GATING, LISTENING, OTHER)
COMPARE = Match("GET", f"/repos/{UPSTREAM}/compare/*")


# From the queue into the branch, or out


async def test_a_group_goes_to_l4_and_to_whoever_lists_it_and_waits_for_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, MIXED, downstreams=ALL) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        asked = [("checks_requested", group.head_sha)]

        assert (
            dispatched_groups(relay, GATING),
            dispatched_groups(relay, LISTENING),
            dispatched_groups(relay, OTHER),
        ) == (asked, asked, [])
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")
        [subject] = (await live_gate(relay, group.head_sha))["subjects"]
        assert subject["numbers"] == [pull.number]
        await settle_queue(relay)
        assert not pull.merged


async def test_a_group_that_passes_is_merged(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay)
        await settle_queue(relay)

        assert (pull.merged, group.state) == (True, "merged")
        assert shown_check(relay, GATE, group.head_sha) == ("completed", "success", "1 backend passed")


@pytest.mark.parametrize("conclusion", ["failure", "cancelled", "skipped"])
async def test_a_group_that_does_not_pass_is_thrown_out(tmp_path: Path, conclusion: str) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay, build=conclusion, test=conclusion)
        await settle_queue(relay)

        assert (pull.merged, group.state) == (False, "invalidated")


async def test_a_group_that_nobody_answers_is_thrown_out_in_time(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await sweep_after(relay, 8 * HOUR)
        await settle_queue(relay)

        assert shown_check(relay, GATE, group.head_sha) == ("completed", "failure", f"{GATING} is missing")
        assert not pull.merged


async def test_the_heads_own_failure_does_not_reach_the_group_and_its_pass_does_not_either(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        failed, passed = await open_pull(relay), await open_pull(relay, files=["src/other.py"])
        runs = relay.github.runs(GATING)
        for run, ends in zip(runs, ("failure", "success"), strict=True):
            for job in run.jobs:
                await relay.github.start_job(run, job.name)
                await relay.github.complete_job(run, job.name, ends)
        await move_base(relay)
        first, second = await enqueue(relay, failed), await enqueue(relay, passed)

        assert shown_check(relay, GATE, first.head_sha) == ("in_progress", None, f"waiting for {GATING}")
        assert shown_check(relay, GATE, second.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_those_behind_a_group_that_left_are_asked_about_anew(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        first, second = await open_pull(relay), await open_pull(relay, files=["src/other.py"])
        await move_base(relay)
        bad = await enqueue(relay, first)
        await run_all(relay, build="failure")
        behind = await enqueue(relay, second)
        await settle_queue(relay)
        again = relay.github.merge_queue(UPSTREAM)[0]

        assert again.head_sha not in {bad.head_sha, behind.head_sha}
        assert dispatched_groups(relay, GATING)[-1] == ("checks_requested", again.head_sha)
        await run_all(relay)
        await settle_queue(relay)
        assert (first.merged, second.merged) == (False, True)


# The same content


async def test_a_group_with_the_tree_of_a_head_that_passed_asks_nobody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, MIXED, downstreams=ALL) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "success",
            "the same tree has passed already",
        )
        assert f"`{pull.head_sha}`" in gate_summary(relay, group.head_sha)
        assert (dispatched_groups(relay, GATING), dispatched_groups(relay, LISTENING)) == ([], [])
        await settle_queue(relay)
        assert pull.merged


async def test_a_result_is_not_reused_once_the_base_has_moved(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


@pytest.mark.parametrize("conclusion", [None, "failure"])
async def test_the_tree_of_a_head_that_has_not_passed_is_worth_nothing(
    tmp_path: Path, conclusion: str | None
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        if conclusion:
            await run_all(relay, build=conclusion)
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_a_result_is_not_reused_when_an_l4_backend_came_in_since(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=THEM) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.write_allowlist(TWO)
        await relay.refresh()
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, SECOND) == [("checks_requested", group.head_sha)]
        assert shown_check(relay, GATE, group.head_sha) == (
            "in_progress",
            None,
            f"waiting for {GATING}, {SECOND}",
        )


async def test_a_backend_that_takes_merge_groups_only_is_asked_whatever_the_head_says(tmp_path: Path) -> None:
    groups_only = ONE.replace("jobs:", "events: [merge_group], jobs:")
    async with gated_upstream(tmp_path, groups_only, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_a_backend_that_takes_no_merging_events_does_not_keep_a_result_from_being_reused(
    tmp_path: Path,
) -> None:
    aside = f"{ONE}  - {SECOND}: {{oncalls: [cat], jobs: [build], events: [push]}}\n"
    async with gated_upstream(tmp_path, aside, downstreams=THEM) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "success",
            "the same tree has passed already",
        )


async def test_a_tree_that_cannot_be_read_is_not_the_same(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(404, on=Match("GET", f"/repos/{UPSTREAM}/git/commits/*"))
        pull = await open_pull(relay)
        await run_all(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


# Waivers


async def test_a_waiver_of_the_pull_request_covers_the_same_backend_in_its_group(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=THEM) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay, GATING, build="failure")
        assert shown_check(relay, GATE, group.head_sha) == (
            "in_progress",
            None,
            f"1 of 2 backends passed, waiting for {SECOND}",
        )
        await run_all(relay, SECOND)
        await settle_queue(relay)

        assert pull.merged


async def test_a_waiver_of_one_job_covers_just_that_job_in_the_group(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, f"/crcr waive {GATING}:build because known")
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay, build="failure", test="failure")

        assert shown_check(relay, GATE, group.head_sha) == ("completed", "failure", f"{GATING} failed (test)")


async def test_a_waiver_given_while_the_group_waits_counts_at_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")

        found = shown_check(relay, GATE, group.head_sha)
        assert found == ("completed", "success", f"{GATING} waived by @maintainer")


async def test_in_a_group_of_two_a_waiver_of_either_covers_what_the_other_passed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        first, second = await open_pull(relay), await open_pull(relay, files=["src/other.py"])
        await run_all(relay)  # the second's
        await write_comment(relay, first, f"/crcr waive {GATING}:build because known")
        await move_base(relay)
        head = await enqueue_together(relay, first, second)
        assert f"merge group of #{first.number}, #{second.number}" in gate_summary(relay, head)
        await run_all(relay, build="failure")

        assert shown_check(relay, GATE, head) == ("completed", "success", f"{GATING} waived by @maintainer")


async def test_a_waiver_of_a_pull_request_that_is_not_in_the_group_does_not_cover(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        other, pull = await open_pull(relay), await open_pull(relay, files=["src/other.py"])
        await write_comment(relay, other, f"/crcr waive {GATING} because known")
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay, build="failure")

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "failure",
            f"{GATING} failed (build)",
        )


@pytest.mark.parametrize("silent", [COMPARE, Match("GET", f"/repos/{UPSTREAM}/commits/*/pulls")])
async def test_without_an_answer_about_its_pull_requests_a_group_has_no_waiver(
    tmp_path: Path, silent: Match
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(403, on=silent, message="Resource not accessible by integration")
        pull = await open_pull(relay)
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")
        await move_base(relay)
        group = await enqueue(relay, pull)
        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        await run_all(relay, build="failure")

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "failure",
            f"{GATING} failed (build)",
        )
        assert "so no waiver applies" in gate_summary(relay, group.head_sha)


async def test_while_github_does_not_answer_the_group_waits_and_nothing_is_green(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        away = relay.github.faults.answer(502, on=COMPARE)
        pull = await open_pull(relay)
        await run_all(relay)
        group = await enqueue(relay, pull)
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "success",
            "the same tree has passed already",
        )


# The end of a group


async def test_a_destroyed_group_ends_its_open_checks_and_tells_whoever_was_told(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, MIXED, downstreams=ALL) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await relay.github.dequeue(group)
        await relay.drain()

        both = [("checks_requested", group.head_sha), ("destroyed", group.head_sha)]
        assert (
            dispatched_groups(relay, GATING),
            dispatched_groups(relay, LISTENING),
            dispatched_groups(relay, OTHER),
        ) == (both, both, [])
        ends = {each.name: each.conclusion for each in relay.github.checks(UPSTREAM, group.head_sha)}
        assert ends == {GATE: "cancelled", f"crcr/{GATING}": "neutral"}


async def test_a_destroyed_groups_unsent_dispatch_is_never_sent(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        await relay.services.acts.pause(repo(UPSTREAM), who="ann", now=relay.clock.now())
        group = await enqueue(relay, pull)
        await relay.github.dequeue(group)
        await relay.services.acts.pause(repo(UPSTREAM), who="ann", now=relay.clock.now(), lift=True)
        await sweep_after(relay, HOUR)

        assert dispatched_groups(relay, GATING) == []
        assert shown_check(relay, GATE, group.head_sha) == ("completed", "cancelled", "superseded or closed")


async def test_a_group_destroyed_before_it_was_read_is_forgotten(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        away = relay.github.faults.answer(502, on=COMPARE)
        group = await enqueue(relay, pull)
        await relay.github.dequeue(group)
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)

        assert dispatched_groups(relay, GATING) == []
        assert shown_check(relay, GATE, group.head_sha) == ("completed", "cancelled", "superseded or closed")


async def test_an_end_that_overtakes_its_beginning_ends_the_group_all_the_same(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        relay.github.faults.webhooks.hold(event="merge_group")
        group = await relay.github.enqueue(pull)
        await relay.github.dequeue(group)
        await relay.github.release_webhooks([1, 0])
        await relay.drain()

        assert dispatched_groups(relay, GATING) == []
        assert shown_check(relay, GATE, group.head_sha) is None


async def test_a_late_result_does_not_wake_a_destroyed_group(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        run = relay.github.runs(GATING)[-1]
        await relay.github.dequeue(group)
        await relay.drain()
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "failure")
        await relay.drain()

        assert shown_check(relay, GATE, group.head_sha) == ("completed", "cancelled", "superseded or closed")


# Twice, and with `paths`


async def test_a_redelivered_group_is_told_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        assert group.last_delivery is not None
        again = await relay.github.redeliver(group.last_delivery.guid)
        body = json.loads(group.last_delivery.payload)
        other = await relay.github.send_webhook("merge_group", body)
        await relay.drain()

        assert json.loads(again.answer_body)["repeat"] is True
        assert "is known" in json.loads(other.answer_body)["ignored"]
        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]


@pytest.mark.parametrize(("path", "outcome"), [("docs/a.md", "in_progress"), ("src/a.py", "completed")])
async def test_a_group_concerns_a_backend_with_paths_by_what_it_adds_to_its_base(
    tmp_path: Path, path: str, outcome: str
) -> None:
    docs = ONE.replace("jobs:", "paths: ['docs/**'], jobs:")
    async with gated_upstream(tmp_path, docs, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[path])
        await relay.github.push(UPSTREAM, files={"docs/moved.md": "on"})
        group = await enqueue(relay, pull)

        assert latest_check(relay, GATE, group.head_sha).status == outcome
        assert bool(dispatched_groups(relay, GATING)) is (outcome == "in_progress")


async def test_a_group_of_two_concerns_a_backend_by_the_files_of_both(tmp_path: Path) -> None:
    docs = ONE.replace("jobs:", "paths: ['docs/**'], jobs:")
    async with gated_upstream(tmp_path, docs, downstreams=(GATING,)) as relay:
        first, second = (
            await open_pull(relay, files=["docs/a.md"]),
            await open_pull(relay, files=["src/a.py"]),
        )
        await move_base(relay)
        head = await enqueue_together(relay, first, second)

        assert ("checks_requested", head) in dispatched_groups(relay, GATING)


async def test_a_group_that_changes_nothing_still_concerns_a_backend_without_paths(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[])
        await move_base(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_without_an_answer_about_its_files_a_group_concerns_everybody(tmp_path: Path) -> None:
    docs = ONE.replace("jobs:", "paths: ['docs/**'], jobs:")
    async with gated_upstream(tmp_path, docs, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(404, on=COMPARE)
        pull = await open_pull(relay)
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
