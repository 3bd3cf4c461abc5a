"""The merge queue: GitHub merges a group, or removes it, according to the gate on the group's own commit."""

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
BOTH = (GATING, SECOND)
ALL = (GATING, LISTENING, OTHER)
COMPARE = Match("GET", f"/repos/{UPSTREAM}/compare/*")


# Merged or removed from the queue


async def test_a_group_is_dispatched_to_l4_and_to_subscribed_backends_and_waits_for_the_gate(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, MIXED, downstreams=ALL) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        requested = [("checks_requested", group.head_sha)]

        assert (
            dispatched_groups(relay, GATING),
            dispatched_groups(relay, LISTENING),
            dispatched_groups(relay, OTHER),
        ) == (requested, requested, [])
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
async def test_a_group_that_does_not_pass_is_removed_from_the_queue(tmp_path: Path, conclusion: str) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await run_all(relay, build=conclusion, test=conclusion)
        await settle_queue(relay)

        assert (pull.merged, group.state) == (False, "invalidated")


async def test_a_group_without_any_report_is_removed_from_the_queue_after_the_deadline(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await move_base(relay)
        group = await enqueue(relay, pull)
        await sweep_after(relay, 8 * HOUR)
        await settle_queue(relay)

        assert shown_check(relay, GATE, group.head_sha) == ("completed", "failure", f"{GATING} is missing")
        assert not pull.merged


async def test_neither_a_failure_nor_a_pass_of_the_head_counts_for_a_group_on_a_moved_base(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        failed, passed = await open_pull(relay), await open_pull(relay, files=["src/other.py"])
        runs = relay.github.runs(GATING)
        for run, conclusion in zip(runs, ("failure", "success"), strict=True):
            for job in run.jobs:
                await relay.github.start_job(run, job.name)
                await relay.github.complete_job(run, job.name, conclusion)
        await move_base(relay)
        first, second = await enqueue(relay, failed), await enqueue(relay, passed)

        assert shown_check(relay, GATE, first.head_sha) == ("in_progress", None, f"waiting for {GATING}")
        assert shown_check(relay, GATE, second.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_a_group_queued_behind_a_removed_one_is_rebuilt_and_dispatched_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        first, second = await open_pull(relay), await open_pull(relay, files=["src/other.py"])
        await move_base(relay)
        bad = await enqueue(relay, first)
        await run_all(relay, build="failure")
        behind = await enqueue(relay, second)
        await settle_queue(relay)
        rebuilt = relay.github.merge_queue(UPSTREAM)[0]

        assert rebuilt.head_sha not in {bad.head_sha, behind.head_sha}
        assert dispatched_groups(relay, GATING)[-1] == ("checks_requested", rebuilt.head_sha)
        await run_all(relay)
        await settle_queue(relay)
        assert (first.merged, second.merged) == (False, True)


# Reuse of a result for the same tree


async def test_a_group_with_the_tree_of_a_passed_head_is_not_dispatched(tmp_path: Path) -> None:
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
async def test_a_group_does_not_reuse_the_tree_of_a_head_that_has_not_passed(
    tmp_path: Path, conclusion: str | None
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        if conclusion:
            await run_all(relay, build=conclusion)
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_a_result_is_not_reused_when_an_l4_backend_was_added_since(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=BOTH) as relay:
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


async def test_a_backend_with_only_merge_group_events_is_dispatched_despite_a_passed_head(
    tmp_path: Path,
) -> None:
    groups_only = ONE.replace("jobs:", "events: [merge_group], jobs:")
    async with gated_upstream(tmp_path, groups_only, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_a_backend_without_pull_request_and_merge_group_events_does_not_prevent_reuse(
    tmp_path: Path,
) -> None:
    aside = f"{ONE}  - {SECOND}: {{oncalls: [cat], jobs: [build], events: [push]}}\n"
    async with gated_upstream(tmp_path, aside, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "success",
            "the same tree has passed already",
        )


async def test_a_result_is_not_reused_when_the_tree_cannot_be_read(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(404, on=Match("GET", f"/repos/{UPSTREAM}/git/commits/*"))
        pull = await open_pull(relay)
        await run_all(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


# Waivers


async def test_a_waiver_of_the_pull_request_covers_the_same_backend_in_its_group(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
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


async def test_a_waiver_of_one_job_covers_only_that_job_in_the_group(tmp_path: Path) -> None:
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

        check = shown_check(relay, GATE, group.head_sha)
        assert check == ("completed", "success", f"{GATING} waived by @maintainer")


async def test_in_a_group_of_two_a_waiver_of_one_covers_a_backend_that_the_other_passed(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        first, second = await open_pull(relay), await open_pull(relay, files=["src/other.py"])
        await run_all(relay)  # the run of the second pull request
        await write_comment(relay, first, f"/crcr waive {GATING}:build because known")
        await move_base(relay)
        head = await enqueue_together(relay, first, second)
        assert f"merge group of #{first.number}, #{second.number}" in gate_summary(relay, head)
        await run_all(relay, build="failure")

        assert shown_check(relay, GATE, head) == ("completed", "success", f"{GATING} waived by @maintainer")


async def test_a_waiver_of_a_pull_request_outside_the_group_does_not_cover_the_group(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("refused_route", [COMPARE, Match("GET", f"/repos/{UPSTREAM}/commits/*/pulls")])
async def test_a_group_whose_pull_requests_cannot_be_read_has_no_waiver(
    tmp_path: Path, refused_route: Match
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(403, on=refused_route, message="Resource not accessible by integration")
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


async def test_a_group_stays_pending_during_a_github_outage_and_reuses_the_result_later(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        fault = relay.github.faults.answer(502, on=COMPARE)
        pull = await open_pull(relay)
        await run_all(relay)
        group = await enqueue(relay, pull)
        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")
        relay.github.faults.remove(fault)
        await sweep_after(relay, HOUR)

        assert shown_check(relay, GATE, group.head_sha) == (
            "completed",
            "success",
            "the same tree has passed already",
        )


# The end of a group


async def test_a_destroyed_group_ends_its_open_checks_and_notifies_the_dispatched_backends(
    tmp_path: Path,
) -> None:
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
        conclusions = {
            check.name: check.conclusion for check in relay.github.checks(UPSTREAM, group.head_sha)
        }
        assert conclusions == {GATE: "cancelled", f"crcr/{GATING}": "neutral"}


async def test_an_unsent_dispatch_of_a_destroyed_group_is_never_sent(tmp_path: Path) -> None:
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


async def test_a_group_destroyed_before_it_was_compared_is_cancelled_without_a_dispatch(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        fault = relay.github.faults.answer(502, on=COMPARE)
        group = await enqueue(relay, pull)
        await relay.github.dequeue(group)
        relay.github.faults.remove(fault)
        await sweep_after(relay, HOUR)

        assert dispatched_groups(relay, GATING) == []
        assert shown_check(relay, GATE, group.head_sha) == ("completed", "cancelled", "superseded or closed")


async def test_a_destroyed_webhook_that_arrives_before_checks_requested_still_ends_the_group(
    tmp_path: Path,
) -> None:
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


async def test_a_late_result_does_not_reopen_the_gate_of_a_destroyed_group(tmp_path: Path) -> None:
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


# Redeliveries and `paths`


async def test_a_redelivered_group_is_dispatched_once(tmp_path: Path) -> None:
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
async def test_paths_of_a_backend_are_matched_with_the_changes_of_the_group_to_its_base(
    tmp_path: Path, path: str, outcome: str
) -> None:
    docs = ONE.replace("jobs:", "paths: ['docs/**'], jobs:")
    async with gated_upstream(tmp_path, docs, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[path])
        await relay.github.push(UPSTREAM, files={"docs/moved.md": "on"})
        group = await enqueue(relay, pull)

        assert latest_check(relay, GATE, group.head_sha).status == outcome
        assert bool(dispatched_groups(relay, GATING)) is (outcome == "in_progress")


async def test_paths_of_a_backend_are_matched_with_the_files_of_both_pull_requests_of_a_group(
    tmp_path: Path,
) -> None:
    docs = ONE.replace("jobs:", "paths: ['docs/**'], jobs:")
    async with gated_upstream(tmp_path, docs, downstreams=(GATING,)) as relay:
        first, second = (
            await open_pull(relay, files=["docs/a.md"]),
            await open_pull(relay, files=["src/a.py"]),
        )
        await move_base(relay)
        head = await enqueue_together(relay, first, second)

        assert ("checks_requested", head) in dispatched_groups(relay, GATING)


async def test_a_group_without_changed_files_still_needs_a_backend_without_paths(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[])
        await move_base(relay)
        group = await enqueue(relay, pull)

        assert shown_check(relay, GATE, group.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_a_group_whose_files_cannot_be_read_is_dispatched_to_backends_with_paths(
    tmp_path: Path,
) -> None:
    docs = ONE.replace("jobs:", "paths: ['docs/**'], jobs:")
    async with gated_upstream(tmp_path, docs, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(404, on=COMPARE)
        pull = await open_pull(relay)
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
