"""The gate's states, row by row: the simulated GitHub allows or blocks the merge by the check that we publish."""

from pathlib import Path

import pytest

from github_sim.github import Match, MergeBlocked
from support.github.dispatch_log import row_states
from support.github.gated_upstream import (
    GATE,
    GATING,
    finish_jobs,
    gate_state,
    gate_summary,
    gate_title,
    gated_upstream,
    gating_allowlist,
    live_gate,
    live_reasons,
    newest_run,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.running_relay import UPSTREAM, repo

HOUR = 3600.0
SECOND = "org/second"
DOWNSTREAMS = (GATING,)
TWO = f"""L4:
  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}
  - {SECOND}: {{oncalls: [cat], jobs: [build, test]}}
"""
BOTH = (GATING, SECOND)


# passed


async def test_a_pull_request_merges_once_every_job_has_succeeded(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 backend passed")
        assert (await relay.github.merge_pr(pull)).merged


@pytest.mark.parametrize("harmless", ["skipped", "neutral"])
async def test_a_skipped_or_neutral_job_passes_together_with_a_successful_one(
    tmp_path: Path, harmless: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, test=harmless)

        assert gate_state(relay, pull) == "success"


# not affected


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("events: [push], jobs: [build]", "the event is not in its `events`"),
        ("paths: ['docs/**'], jobs: [build]", "no changed file matches `paths`"),
        ("labels: ['ciflow/*'], jobs: [build]", "no label matches `labels`"),
    ],
)
async def test_a_backend_excluded_by_its_own_options_is_not_affected(
    tmp_path: Path, options: str, reason: str
) -> None:
    async with gated_upstream(tmp_path, gating_allowlist(options), downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")
        assert f"skipped: {reason}" in gate_summary(relay, pull.head_sha)
        assert relay.github.dispatches() == []
        await relay.github.merge_pr(pull)


async def test_refs_filter_only_pushes_and_exclude_no_pull_request(tmp_path: Path) -> None:
    async with gated_upstream(
        tmp_path, gating_allowlist("refs: [release/*], jobs: [build]"), downstreams=DOWNSTREAMS
    ) as relay:
        pull = await open_pull(relay)

        assert gate_state(relay, pull) == "pending"
        assert len(relay.github.dispatches(GATING)) == 1


# waived


async def test_a_maintainers_waiver_passes_a_failing_backend_with_its_author_and_reason(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        assert gate_state(relay, pull) == "failure"
        await write_comment(relay, pull, f"/crcr waive {GATING} because the driver is broken")

        assert gate_title(relay, pull.head_sha) == f"{GATING} waived by @maintainer"
        assert "the driver is broken" in gate_summary(relay, pull.head_sha)
        await relay.github.merge_pr(pull)


async def test_a_waiver_of_one_job_does_not_cover_another_that_fails(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure", test="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING}:build because known")
        assert gate_title(relay, pull.head_sha) == f"{GATING} failed (test)"
        await write_comment(relay, pull, f"/crcr waive {GATING}:test because known too")

        assert gate_state(relay, pull) == "success"


async def test_a_waiver_of_a_passing_job_is_not_used(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, f"/crcr waive {GATING}:build because it may fail")
        await run_all(relay)

        assert gate_title(relay, pull.head_sha) == "1 backend passed"
        assert relay.rows("SELECT used_at FROM waivers") == [{"used_at": None}]


@pytest.mark.parametrize("conclusion", ["cancelled", "timed_out"])
async def test_a_waiver_of_a_job_covers_its_error(tmp_path: Path, conclusion: str) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, test=conclusion)
        await write_comment(relay, pull, f"/crcr waive {GATING}:test because the farm is down")

        assert gate_state(relay, pull) == "success"


async def test_a_waiver_of_a_job_covers_its_missing_result(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay), "build")
        await finish_jobs(relay, newest_run(relay), build="success")
        await write_comment(relay, pull, f"/crcr waive {GATING}:test because it has no runner")
        assert gate_state(relay, pull) == "pending"
        await sweep_after(relay, 9 * HOUR)

        assert gate_title(relay, pull.head_sha) == f"{GATING} waived by @maintainer"


async def test_a_waiver_ends_with_the_next_push(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} because known")
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await run_all(relay, build="failure")

        assert gate_state(relay, pull) == "failure"


async def test_a_waiver_with_an_end_date_survives_pushes_and_expires(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await write_comment(relay, pull, f"/crcr waive {GATING} until 1d because known")
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await run_all(relay, build="failure")
        assert gate_state(relay, pull) == "success"
        await sweep_after(relay, 24 * HOUR)

        assert gate_state(relay, pull) == "failure"
        assert relay.github.merge_state(pull).blocked_by == ("crcr/gate: failure",)


# waiting


async def test_the_gate_waits_for_a_dispatched_backend_and_shows_start_and_deadline(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)

        assert shown_check(relay, GATE, pull.head_sha) == ("in_progress", None, f"waiting for {GATING}")
        assert "2026-01-01 00:00" in gate_summary(relay, pull.head_sha)
        [row] = (await live_gate(relay, pull.head_sha))["subjects"][0]["rows"]
        assert row["deadline"] == "2026-01-01T08:00:00Z"
        with pytest.raises(MergeBlocked, match="crcr/gate: pending"):
            await relay.github.merge_pr(pull)


async def test_a_running_job_keeps_the_gate_pending(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        await finish_jobs(relay, newest_run(relay), build="success")
        await sweep_after(relay, 61)  # GitHub confirms the result

        assert gate_state(relay, pull) == "pending"
        assert await live_reasons(relay, pull.head_sha) == ["test running"]


# held


async def test_a_draft_holds_the_gate_without_a_deadline_until_it_is_ready(tmp_path: Path) -> None:
    async with gated_upstream(
        tmp_path, gating_allowlist("drafts: false, jobs: [build, test]"), downstreams=DOWNSTREAMS
    ) as relay:
        pull = await open_pull(relay, draft=True)
        await sweep_after(relay, 100 * HOUR)
        assert shown_check(relay, GATE, pull.head_sha) == ("in_progress", None, f"{GATING} is held (draft)")
        assert "mark the pull request ready for review" in gate_summary(relay, pull.head_sha)
        await relay.github.ready_for_review(pull)
        await relay.drain()
        await run_all(relay)

        assert gate_state(relay, pull) == "success"


@pytest.mark.parametrize(
    ("authors", "association"), [("approved", "MEMBER"), ("trusted", "FIRST_TIME_CONTRIBUTOR")]
)
async def test_an_author_who_needs_approval_holds_the_gate_until_someone_approves(
    tmp_path: Path, authors: str, association: str
) -> None:
    allowlist = gating_allowlist(f"authors: {authors}, jobs: [build, test]")
    async with gated_upstream(tmp_path, allowlist, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay, author_association=association)
        await sweep_after(relay, 100 * HOUR)
        assert shown_check(relay, GATE, pull.head_sha) == (
            "in_progress",
            None,
            f"{GATING} is held (approval)",
        )
        assert f"`/crcr approve at {pull.head_sha[:12]}`" in gate_summary(relay, pull.head_sha)
        await write_comment(relay, pull, "/crcr approve")
        assert gate_title(relay, pull.head_sha) == f"waiting for {GATING}"
        await run_all(relay)

        assert gate_state(relay, pull) == "success"


# declined


@pytest.mark.parametrize(("more", "outcome"), [("", "failure"), (", may_skip: true", "success")])
async def test_a_backend_that_skipped_all_jobs_declined_unless_may_skip_is_set(
    tmp_path: Path, more: str, outcome: str
) -> None:
    async with gated_upstream(
        tmp_path, gating_allowlist(f"jobs: [build, test]{more}"), downstreams=DOWNSTREAMS
    ) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="skipped", test="neutral")

        assert gate_state(relay, pull) == outcome
        declined = gate_title(relay, pull.head_sha) == f"{GATING} declined"
        assert declined is ("may_skip: true" in gate_summary(relay, pull.head_sha)) is (outcome == "failure")


# missing


async def test_a_backend_without_any_report_is_missing_at_the_deadline(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await sweep_after(relay, 8 * HOUR - 1)
        assert gate_state(relay, pull) == "pending"
        await sweep_after(relay, 1)

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} is missing")


async def test_a_listed_job_without_a_report_is_missing_by_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay), "build")
        await finish_jobs(relay, newest_run(relay), build="success")
        await sweep_after(relay, 8 * HOUR)

        assert gate_title(relay, pull.head_sha) == f"{GATING} is missing"
        assert "`test` nothing arrived in time" in gate_summary(relay, pull.head_sha)


async def test_a_parked_dispatch_is_missing_at_once(tmp_path: Path) -> None:
    async with gated_upstream(
        tmp_path, prepare=lambda github: github.faults.answer(422, on=_dispatches())
    ) as relay:
        pull = await open_pull(relay)

        assert row_states(relay, "dispatches", downstream=GATING) == ["parked"]
        assert gate_state(relay, pull) == "failure"
        assert "could not be delivered" in gate_summary(relay, pull.head_sha)


async def test_a_suspended_backend_is_missing_and_fails_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await relay.services.targets.suspend(repo(UPSTREAM), repo(GATING), who="ann", now=relay.clock.now())
        pull = await open_pull(relay)

        assert gate_title(relay, pull.head_sha) == f"{GATING} is missing"
        assert relay.github.dispatches(GATING) == []


# errored


@pytest.mark.parametrize("conclusion", ["cancelled", "timed_out"])
async def test_cancelled_and_timed_out_jobs_are_errors_with_a_retry_hint(
    tmp_path: Path, conclusion: str
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await run_all(relay, test=conclusion)

        how = "was cancelled" if conclusion == "cancelled" else "timed out"
        title = f"{GATING} errored (test), infrastructure: it {how}: there is no result about the change"
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", title)
        assert f"`/crcr retry {GATING}`" in gate_summary(relay, pull.head_sha)


async def test_a_job_that_still_runs_past_the_gates_time_out_is_an_error(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await sweep_after(relay, 7 * HOUR)
        await start_jobs(relay, newest_run(relay))
        await sweep_after(relay, HOUR)

        assert gate_title(relay, pull.head_sha) == f"{GATING} errored (build, test)"
        assert "still running past the gate's time-out" in gate_summary(relay, pull.head_sha)


async def test_a_result_after_the_deadline_still_lets_the_gate_pass(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        await sweep_after(relay, 8 * HOUR)
        assert gate_state(relay, pull) == "failure"
        await finish_jobs(relay, newest_run(relay))

        assert gate_state(relay, pull) == "success"


# failed


@pytest.mark.parametrize("conclusion", ["failure", "action_required", None])
async def test_failure_action_required_or_no_conclusion_fails_the_gate(
    tmp_path: Path, conclusion: str | None
) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await relay.github.complete_job(run, "build", conclusion)
        await finish_jobs(relay, run, test="success")

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} failed (build)")
        with pytest.raises(MergeBlocked, match="crcr/gate: failure"):
            await relay.github.merge_pr(pull)


async def test_the_first_failing_job_fails_the_gate_before_the_other_jobs_end(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        await finish_jobs(relay, newest_run(relay), build="failure")

        assert gate_state(relay, pull) == "failure"
        assert "1 still waiting" in gate_summary(relay, pull.head_sha)


# precedence, with two backends


@pytest.mark.parametrize(
    ("first", "second", "outcome"),
    [
        (
            {"build": "failure"},
            {"build": "cancelled"},
            f"{GATING} failed (build), {SECOND} errored (build; infrastructure)",
        ),
        (
            {"build": "skipped", "test": "skipped"},
            {"build": "cancelled"},
            f"{SECOND} errored (build; infrastructure)",
        ),
        ({}, {"build": "failure"}, f"{SECOND} failed (build)"),
        ({}, {}, "2 backends passed"),
    ],
)
async def test_the_worst_backend_is_named_first(
    tmp_path: Path, first: dict[str, str], second: dict[str, str], outcome: str
) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING, **first)
        await run_all(relay, SECOND, **second)

        assert gate_title(relay, pull.head_sha).startswith(outcome)
        assert relay.github.merge_state(pull).mergeable is (outcome == "2 backends passed")


async def test_a_failed_backend_fails_the_gate_while_another_is_still_running(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING, build="failure")
        assert gate_state(relay, pull) == "failure"
        await run_all(relay, SECOND)

        assert gate_title(relay, pull.head_sha) == f"{GATING} failed (build)"


async def test_one_passed_backend_does_not_pass_the_gate_for_the_other(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO, downstreams=BOTH) as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING)
        assert gate_state(relay, pull) == "pending"
        live = await live_gate(relay, pull.head_sha)
        assert live["title"] == f"1 of 2 backends passed, waiting for {SECOND}"
        await sweep_after(relay, 8 * HOUR)

        assert gate_title(relay, pull.head_sha) == f"{SECOND} is missing"


def _dispatches() -> Match:
    return Match("POST", f"/repos/{GATING}/dispatches")
