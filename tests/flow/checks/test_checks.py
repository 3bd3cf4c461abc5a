"""Which checks a commit has, from its dispatch to its end, as GitHub shows them."""

from pathlib import Path

import pytest

from support.github.checks import (
    GATES,
    INFORMS,
    LISTED,
    check_history,
    check_names,
    check_state,
    check_states,
    check_title,
    force_push,
    named_workflow,
    open_twin,
    run_all_for,
    write_upstream_settings,
)
from support.github.gated_upstream import (
    BACKENDS,
    GATE,
    GATED,
    GATING,
    INFORMING,
    LABEL,
    check_names_on,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    sweep_after,
)
from support.running_relay import UPSTREAM

JOBS = ("build", "test")


# From dispatch to result


@pytest.mark.parametrize(("allowlist", "backend"), [(GATES, GATING), (INFORMS, INFORMING)])
async def test_a_dispatched_l3_or_l4_backend_has_one_check_in_progress(
    tmp_path: Path, allowlist: str, backend: str
) -> None:
    async with gated_upstream(tmp_path, allowlist, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])

        assert check_names_on(relay, pull.head_sha) - {GATE} == {f"crcr/{backend}"}
        assert check_history(relay, f"crcr/{backend}", pull.head_sha) == ["in_progress"]


async def test_an_l3_backend_without_its_label_is_recorded_and_has_no_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=["triaged"])
        for step in (start_jobs, finish_jobs):
            await step(relay, newest_run(relay, INFORMING))
            assert check_names_on(relay, pull.head_sha) == set()

        assert [(job["job_name"], job["conclusion"]) for job in relay.jobs()] == [
            ("build", "success"),
            ("test", "success"),
        ]


@pytest.mark.parametrize(("allowlist", "backend"), [(GATES, GATING), (INFORMS, INFORMING)])
async def test_the_check_of_a_backend_follows_its_jobs_and_each_job_has_its_own_check(
    tmp_path: Path, allowlist: str, backend: str
) -> None:
    async with gated_upstream(tmp_path, allowlist, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run, names = newest_run(relay, backend), check_names(backend, *JOBS)
        await start_jobs(relay, run, "build")
        assert check_states(relay, pull.head_sha, names) == ["in_progress", "in_progress", "absent"]
        await finish_jobs(relay, run, build="success")
        assert check_states(relay, pull.head_sha, names) == ["in_progress", "success", "absent"]
        await start_jobs(relay, run, "test")
        await finish_jobs(relay, run, test="success")

        assert check_states(relay, pull.head_sha, names) == ["success"] * 3
        assert all(len(check_history(relay, name, pull.head_sha)) == 1 for name in names)


async def test_a_failed_l4_job_fails_its_check_its_backends_check_and_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING, build="failure")

        assert check_states(relay, pull.head_sha, check_names(GATING, *JOBS)) == [
            "failure",
            "failure",
            "success",
        ]
        assert gate_state(relay, pull) == "failure"


async def test_an_l2_backend_has_no_check_and_no_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L2:\n  - {GATING}\n", job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay)

        assert check_names_on(relay, pull.head_sha) == set()
        assert relay.rows("SELECT * FROM checks") == []


# Informational backends


async def test_fault_37_a_failure_at_l3_is_neutral_and_titled_non_blocking(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, INFORMING, build="failure", test="timed_out")
        await run_all(relay, GATING)

        names = check_names(INFORMING, *JOBS)
        assert check_states(relay, pull.head_sha, names) == ["neutral"] * 3
        assert check_title(relay, names[1], pull.head_sha) == "failure (non-blocking)"
        assert all("(non-blocking)" in check_title(relay, name, pull.head_sha) for name in names)
        assert gate_state(relay, pull) == "success"


async def test_with_l3_conclusion_failure_an_l3_failure_fails_its_checks_but_not_the_gate(
    tmp_path: Path,
) -> None:
    write_upstream_settings(tmp_path, l3_conclusion="failure")
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, INFORMING, build="failure")
        await run_all(relay, GATING)

        assert check_states(relay, pull.head_sha, check_names(INFORMING, *JOBS)) == [
            "failure",
            "failure",
            "success",
        ]
        assert gate_state(relay, pull) == "success"


async def test_fault_37_with_l3_pending_neutral_running_l3_checks_are_neutral_until_the_result(
    tmp_path: Path,
) -> None:
    write_upstream_settings(tmp_path, l3_pending="neutral")
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run, names = newest_run(relay, INFORMING), check_names(INFORMING, *JOBS)
        assert check_states(relay, pull.head_sha, names) == ["neutral", "absent", "absent"]
        await start_jobs(relay, run)
        assert check_states(relay, pull.head_sha, names) == ["neutral"] * 3
        assert check_title(relay, names[1], pull.head_sha) == "running (non-blocking)"
        assert check_title(relay, names[0], pull.head_sha).endswith("(non-blocking)")
        await finish_jobs(relay, run, build="failure", test="success")

        assert check_states(relay, pull.head_sha, names) == ["neutral", "neutral", "success"]
        assert check_title(relay, names[1], pull.head_sha) == "failure (non-blocking)"
        assert [check_history(relay, name, pull.head_sha) for name in names] == [
            ["neutral"],
            ["neutral"],
            ["success"],
        ]
        assert check_state(relay, f"crcr/{GATING}", pull.head_sha) == "in_progress"


async def test_fault_37_the_check_of_an_l3_backend_without_jobs_ends_when_its_runs_have_ended(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, INFORMING)
        assert check_state(relay, f"crcr/{INFORMING}", pull.head_sha) == "in_progress"
        for _ in range(4):
            await sweep_after(relay, 60)

        assert check_state(relay, f"crcr/{INFORMING}", pull.head_sha) == "success"


# Later events of a commit


async def test_fault_38_a_push_ends_open_checks_of_the_old_head_and_keeps_its_results(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        old, run = pull.head_sha, newest_run(relay, GATING)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="success")
        await relay.pass_time(61)  # GitHub confirms the result
        await relay.github.push_to_pr(pull)
        await relay.drain()

        assert check_states(relay, old, check_names(GATING, *JOBS)) == ["neutral", "success", "neutral"]
        assert check_states(relay, old, [f"crcr/{INFORMING}", GATE]) == ["neutral", "cancelled"]
        assert check_title(relay, f"crcr/{GATING}", old) == "superseded or closed"
        assert gate_state(relay, pull) == "pending"
        assert check_state(relay, f"crcr/{GATING}", pull.head_sha) == "in_progress"


async def test_fault_38_a_late_failure_of_the_old_head_changes_no_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        old, run = pull.head_sha, newest_run(relay)
        await start_jobs(relay, run)
        relay.clock.advance(60)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        before = {
            sha: check_states(relay, sha, [*check_names(GATING, *JOBS), GATE]) for sha in (old, pull.head_sha)
        }
        await finish_jobs(relay, run, build="failure", test="failure")

        after = {
            sha: check_states(relay, sha, [*check_names(GATING, *JOBS), GATE]) for sha in (old, pull.head_sha)
        }
        assert after == before
        await run_all(relay)
        assert gate_state(relay, pull) == "success"


@pytest.mark.parametrize("merged", [False, True])
async def test_closing_ends_open_checks_and_the_dispatch_for_closed_gets_no_check(
    tmp_path: Path, *, merged: bool
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay), "build")
        relay.clock.advance(60)
        await relay.github.close_pr(pull, merged=merged)
        await relay.drain()
        ended = check_states(relay, pull.head_sha, [*check_names(GATING, "build"), GATE])
        await run_all(relay, build="failure")

        assert ended == ["neutral", "neutral", "cancelled"]
        assert len(relay.github.runs(GATING)) == 2
        assert check_states(relay, pull.head_sha, [*check_names(GATING, *JOBS), GATE]) == [
            *ended[:2],
            "absent",
            ended[2],
        ]


async def test_closing_does_not_change_completed_checks(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert check_states(relay, pull.head_sha, [*check_names(GATING, *JOBS), GATE]) == [
            *("failure", "failure", "success", "failure")
        ]


async def test_reopening_publishes_a_new_pending_gate_after_the_old_result(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        await relay.drain()
        relay.clock.advance(60)
        await relay.github.reopen_pr(pull)
        await relay.drain()

        assert check_history(relay, GATE, pull.head_sha) == ["success", "cancelled", "in_progress"]
        assert check_history(relay, f"crcr/{GATING}", pull.head_sha) == ["success", "in_progress"]
        await run_all(relay, build="failure")
        assert check_history(relay, GATE, pull.head_sha) == ["success", "cancelled", "failure"]


async def test_a_force_push_to_an_older_commit_publishes_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        first = pull.head_sha
        await run_all(relay)
        relay.clock.advance(60)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        second = pull.head_sha
        relay.clock.advance(60)
        await force_push(relay.github, pull, first)
        await relay.drain()

        assert check_history(relay, GATE, first) == ["success", "cancelled", "in_progress"]
        assert check_history(relay, GATE, second) == ["cancelled"]
        await run_all(relay)
        assert check_history(relay, GATE, first) == ["success", "cancelled", "success"]
        assert check_history(relay, f"crcr/{GATING}", first) == ["success", "success"]


async def test_a_second_pull_request_with_the_head_shares_its_checks_and_keeps_them_open(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay)
        relay.clock.advance(60)
        twin = await open_twin(relay, pull)
        assert (twin.head_sha, gate_state(relay, twin)) == (pull.head_sha, "pending")
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        await relay.drain()
        assert gate_state(relay, twin) == "pending"
        await run_all_for(relay, twin)

        assert gate_state(relay, twin) == "success"
        assert check_history(relay, f"crcr/{GATING}", pull.head_sha) == ["success", "success"]


# Many jobs, many workflows


async def test_with_more_than_twenty_jobs_only_failed_jobs_have_a_check(tmp_path: Path) -> None:
    many = [f"job {number:02}" for number in range(21)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as relay:
        relay.github.repository(GATING).workflows = [named_workflow(*many)]
        pull = await open_pull(relay)
        run = newest_run(relay)
        for name in many:
            await relay.github.start_job(run, name)
        await relay.drain()
        assert check_names_on(relay, pull.head_sha) == {GATE, f"crcr/{GATING}"}
        await finish_jobs(relay, run, **{name: "failure" if name == "job 07" else "success" for name in many})

        assert check_names_on(relay, pull.head_sha) == {GATE, *check_names(GATING, "job 07")}
        assert check_states(relay, pull.head_sha, check_names(GATING, "job 07")) == ["failure", "failure"]


async def test_with_twenty_jobs_every_job_has_a_check(tmp_path: Path) -> None:
    many = [f"job {number:02}" for number in range(20)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as relay:
        relay.github.repository(GATING).workflows = [named_workflow(*many)]
        pull = await open_pull(relay)
        await run_all(relay)

        assert check_names_on(relay, pull.head_sha) == {GATE, *check_names(GATING, *many)}


async def test_the_same_job_name_in_two_workflows_has_two_checks_and_both_count(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        relay.github.repository(GATING).workflows = [
            named_workflow(*JOBS),
            named_workflow("build", workflow="Nightly", file="nightly.yml"),
        ]
        pull = await open_pull(relay)
        first, second = relay.github.runs(GATING)
        for run, conclusion in ((first, "success"), (second, "failure")):
            await start_jobs(relay, run)
            await finish_jobs(relay, run, **{job.name: conclusion for job in run.jobs})

        assert check_state(relay, f"crcr/{GATING}/CI/build", pull.head_sha) == "success"
        assert check_state(relay, f"crcr/{GATING}/Nightly/build", pull.head_sha) == "failure"
        assert gate_state(relay, pull) == "failure"


async def test_checks_of_two_backends_of_one_commit_are_separate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=BACKENDS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING, build="failure")
        await run_all(relay, INFORMING)

        assert check_states(relay, pull.head_sha, check_names(GATING, "build")) == ["failure", "failure"]
        assert check_states(relay, pull.head_sha, check_names(INFORMING, "build")) == ["success", "success"]
        assert {check.head_sha for check in relay.github.checks(UPSTREAM)} == {pull.head_sha}
