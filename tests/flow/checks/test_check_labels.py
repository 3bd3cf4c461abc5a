"""A label requests a device's checks: only the pull request's own label counts, whenever it is added or removed."""

from pathlib import Path
from typing import Any

import pytest

from github_sim.github import PullRequest
from support.downstream.callbacks import report_outcome
from support.github.checks import (
    INFORMS,
    LISTED,
    check_history,
    check_names,
    check_state,
    check_states,
    check_title,
    open_twin,
    write_upstream_settings,
)
from support.github.gated_upstream import (
    GATE,
    GATING,
    INFORMING,
    LABEL,
    check_names_on,
    finish_jobs,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
)
from support.running_relay import UPSTREAM, RunningRelay

INFORMING_CHECKS = check_names(INFORMING, "build", "test")


async def label(relay: RunningRelay, pull: PullRequest, name: str = LABEL) -> None:
    relay.clock.advance(5)
    await relay.github.label_pr(pull, name)
    await relay.drain()


async def unlabel(relay: RunningRelay, pull: PullRequest, name: str = LABEL) -> None:
    relay.clock.advance(5)
    await relay.github.unlabel_pr(pull, name)
    await relay.drain()


def informing_states(relay: RunningRelay, pull: PullRequest) -> list[str]:
    return check_states(relay, pull.head_sha, INFORMING_CHECKS)


# Added


async def test_a_label_added_before_the_run_shows_the_waiting_check_at_once(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        assert informing_states(relay, pull) == ["absent"] * 3
        await label(relay, pull)

        assert informing_states(relay, pull) == ["in_progress", "absent", "absent"]


async def test_a_label_added_during_the_run_shows_each_job_as_it_is(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        run = newest_run(relay, INFORMING)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="failure")
        await label(relay, pull)

        assert informing_states(relay, pull) == ["in_progress", "neutral", "in_progress"]
        await finish_jobs(relay, run, test="success")
        assert informing_states(relay, pull) == ["neutral", "neutral", "success"]


async def test_a_label_added_after_the_run_shows_its_results(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay, INFORMING, test="failure")
        await label(relay, pull)

        assert informing_states(relay, pull) == ["neutral", "success", "neutral"]
        assert check_title(relay, INFORMING_CHECKS[2], pull.head_sha) == "failure (non-blocking)"
        assert [check_history(relay, name, pull.head_sha) for name in INFORMING_CHECKS] == [
            ["neutral"],
            ["success"],
            ["neutral"],
        ]


async def test_adding_a_label_dispatches_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        await label(relay, pull)

        assert len(relay.github.dispatches(INFORMING)) == 1


@pytest.mark.parametrize(
    "other", ["ciflow/crcr/cuda", "ciflow/crcr/npu2", "ciflow/crcr/", "npu", "xciflow/crcr/npu"]
)
async def test_any_other_label_publishes_no_check(tmp_path: Path, other: str) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[other])
        await label(relay, pull, f"{other}-too")

        assert check_names_on(relay, pull.head_sha) == set()


@pytest.mark.parametrize("written", ["CIFlow/CRCR/NPU", "ciflow/crcr/Npu"])
async def test_labels_are_case_insensitive(tmp_path: Path, written: str) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[written])

        assert informing_states(relay, pull)[0] == "in_progress"


async def test_configured_label_prefixes_replace_the_default_prefix(tmp_path: Path) -> None:
    write_upstream_settings(tmp_path, label_prefixes=["run-on/", "device:"])
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        default, first, second = [
            await open_pull(relay, labels=[name]) for name in (LABEL, "run-on/npu", "device:npu")
        ]

        assert [informing_states(relay, pull)[0] for pull in (default, first, second)] == [
            "absent",
            "in_progress",
            "in_progress",
        ]


# Removed, and added again


async def test_removing_a_label_ends_open_checks_as_neutral_and_keeps_results(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run = newest_run(relay, INFORMING)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="success")
        await unlabel(relay, pull)

        assert informing_states(relay, pull) == ["neutral", "success", "neutral"]
        ended = [
            check_title(relay, name, pull.head_sha) for name in (INFORMING_CHECKS[0], INFORMING_CHECKS[2])
        ]
        assert ended == ["no longer requested"] * 2


async def test_after_a_label_is_removed_reports_create_and_change_no_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run = newest_run(relay, INFORMING)
        await start_jobs(relay, run, "build")
        await unlabel(relay, pull)
        before = len(relay.github.checks(UPSTREAM)), informing_states(relay, pull)
        await start_jobs(relay, run, "test")
        await finish_jobs(relay, run)

        assert (len(relay.github.checks(UPSTREAM)), informing_states(relay, pull)) == before
        assert [job["conclusion"] for job in relay.jobs()] == ["success", "success"]


async def test_removing_a_label_does_not_affect_l4_checks_and_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await unlabel(relay, pull)

        assert check_states(relay, pull.head_sha, [f"crcr/{GATING}", f"crcr/{INFORMING}", GATE]) == [
            *("in_progress", "neutral", "in_progress")
        ]


async def test_a_label_added_again_shows_the_current_state_in_new_checks(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run = newest_run(relay, INFORMING)
        await start_jobs(relay, run)
        await unlabel(relay, pull)
        await finish_jobs(relay, run, build="success")
        await label(relay, pull)
        assert informing_states(relay, pull) == ["in_progress", "success", "in_progress"]
        await finish_jobs(relay, run, test="failure")

        assert informing_states(relay, pull) == ["neutral", "success", "neutral"]
        assert [
            len(check_history(relay, name, pull.head_sha))
            for name in (INFORMING_CHECKS[0], INFORMING_CHECKS[2])
        ] == [2, 2]


async def test_a_label_added_again_after_the_end_shows_the_result_and_not_the_removal(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run = newest_run(relay, INFORMING)
        await start_jobs(relay, run)
        await unlabel(relay, pull)
        await finish_jobs(relay, run)
        await label(relay, pull)

        assert informing_states(relay, pull) == ["success"] * 3
        assert "no longer requested" not in [
            check_title(relay, name, pull.head_sha) for name in INFORMING_CHECKS
        ]


async def test_a_label_counts_on_the_new_head_after_a_push(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        await label(relay, pull)
        relay.clock.advance(5)
        await relay.github.push_to_pr(pull)
        await relay.drain()

        assert informing_states(relay, pull)[0] == "in_progress"


async def test_a_label_removed_with_a_lost_webhook_no_longer_counts_after_the_next_push(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        relay.github.faults.webhooks.lose(event="pull_request", times=1)
        await unlabel(relay, pull)
        relay.clock.advance(5)
        await relay.github.push_to_pr(pull)
        await relay.drain()

        assert check_names_on(relay, pull.head_sha) == set()


async def test_a_label_on_one_of_two_pull_requests_with_the_same_head_is_enough(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        relay.clock.advance(5)
        twin = await open_twin(relay, pull, labels=[LABEL])
        assert informing_states(relay, twin)[0] == "in_progress"
        await unlabel(relay, twin)

        assert informing_states(relay, twin)[0] == "neutral"


# Labels and commits claimed by a callback


def report_with_claims(
    relay: RunningRelay, pull: PullRequest, other: PullRequest, status: str
) -> dict[str, Any]:
    """A report that claims a label, another pull request and another commit."""
    run = newest_run(relay, INFORMING)
    claims = {"head_sha": other.head_sha, "number": other.number, "labels": [LABEL], "level": "L4"}
    body = relay.github.ci.report_body(run, run.job("build"), status, **claims)
    shown = {"number": other.number, "head": {"sha": other.head_sha}, "labels": [{"name": LABEL}]}
    body |= {"payload": {"number": other.number, "after": other.head_sha, "pull_request": shown}}
    return {**body, **claims, "trusted": {"downstream_repo_level": "L4"}, "was": pull.head_sha}


async def test_fault_24_a_label_echoed_by_a_callback_publishes_no_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay)
        run = newest_run(relay, INFORMING)
        for status in ("in_progress", "completed"):
            body = report_with_claims(relay, pull, pull, status)
            body["workflow"]["conclusion"] = "success" if status == "completed" else None
            assert report_outcome(await relay.github.report(run, "build", body=body)) == "applied"
            await relay.drain()

        assert relay.github.checks(UPSTREAM) == []


async def test_fault_24_a_commit_claimed_by_a_callback_gets_no_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        other = await open_pull(relay)
        pull = await open_pull(relay, labels=[LABEL])
        body = report_with_claims(relay, pull, other, "in_progress")
        assert (
            report_outcome(await relay.github.report(newest_run(relay, INFORMING), "build", body=body))
            == "applied"
        )
        await relay.drain()

        assert check_names_on(relay, other.head_sha) == set()
        assert informing_states(relay, pull) == ["in_progress", "in_progress", "absent"]


async def test_fault_24_a_removed_label_still_echoed_by_a_callback_publishes_no_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await unlabel(relay, pull)
        await run_all(relay, INFORMING)

        assert newest_run(relay, INFORMING).client_payload["payload"]["pull_request"]["labels"] != []
        assert check_history(relay, INFORMING_CHECKS[0], pull.head_sha) == ["neutral"]
        assert check_state(relay, INFORMING_CHECKS[1], pull.head_sha) == "absent"
