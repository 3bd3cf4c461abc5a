"""Which checks stand on a commit, from its dispatch to its end, as GitHub shows them."""

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
async def test_at_dispatch_a_backend_that_speaks_has_one_check_in_progress(
    tmp_path: Path, allowlist: str, backend: str
) -> None:
    async with gated_upstream(tmp_path, allowlist, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])

        assert check_names_on(relay, pull.head_sha) - {GATE} == {f"crcr/{backend}"}
        assert check_history(relay, f"crcr/{backend}", pull.head_sha) == ["in_progress"]


async def test_without_its_label_an_l3_backend_is_recorded_and_shows_nothing(tmp_path: Path) -> None:
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
async def test_a_backends_check_follows_its_jobs_which_stand_beside_it(
    tmp_path: Path, allowlist: str, backend: str
) -> None:
    async with gated_upstream(tmp_path, allowlist, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run, three = newest_run(relay, backend), check_names(backend, *JOBS)
        await start_jobs(relay, run, "build")
        assert check_states(relay, pull.head_sha, three) == ["in_progress", "in_progress", "absent"]
        await finish_jobs(relay, run, build="success")
        assert check_states(relay, pull.head_sha, three) == ["in_progress", "success", "absent"]
        await start_jobs(relay, run, "test")
        await finish_jobs(relay, run, test="success")

        assert check_states(relay, pull.head_sha, three) == ["success"] * 3
        assert all(len(check_history(relay, name, pull.head_sha)) == 1 for name in three)


async def test_a_failed_l4_job_is_red_on_itself_its_backend_and_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay, GATING, build="failure")

        assert check_states(relay, pull.head_sha, check_names(GATING, *JOBS)) == [
            "failure",
            "failure",
            "success",
        ]
        assert gate_state(relay, pull) == "failure"


async def test_an_l2_backend_shows_nothing_and_makes_no_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L2:\n  - {GATING}\n", job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay)

        assert check_names_on(relay, pull.head_sha) == set()
        assert relay.rows("SELECT * FROM checks") == []


# Informational to the end


async def test_fault_37_a_failure_at_l3_is_neutral_and_says_that_it_blocks_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, INFORMING, build="failure", test="timed_out")
        await run_all(relay, GATING)

        mine = check_names(INFORMING, *JOBS)
        assert check_states(relay, pull.head_sha, mine) == ["neutral"] * 3
        assert check_title(relay, mine[1], pull.head_sha) == "failure (non-blocking)"
        assert all("(non-blocking)" in check_title(relay, name, pull.head_sha) for name in mine)
        assert gate_state(relay, pull) == "success"


async def test_an_upstream_may_ask_for_red_at_l3_and_it_still_gates_nothing(tmp_path: Path) -> None:
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


async def test_fault_37_where_merge_tools_wait_l3_runs_as_completed_and_the_result_goes_in(
    tmp_path: Path,
) -> None:
    write_upstream_settings(tmp_path, l3_pending="neutral")
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        run, mine = newest_run(relay, INFORMING), check_names(INFORMING, *JOBS)
        assert check_states(relay, pull.head_sha, mine) == ["neutral", "absent", "absent"]
        await start_jobs(relay, run)
        assert check_states(relay, pull.head_sha, mine) == ["neutral"] * 3
        assert check_title(relay, mine[1], pull.head_sha) == "running (non-blocking)"
        assert check_title(relay, mine[0], pull.head_sha).endswith("(non-blocking)")
        await finish_jobs(relay, run, build="failure", test="success")

        assert check_states(relay, pull.head_sha, mine) == ["neutral", "neutral", "success"]
        assert check_title(relay, mine[1], pull.head_sha) == "failure (non-blocking)"
        assert [check_history(relay, name, pull.head_sha) for name in mine] == [
            ["neutral"],
            ["neutral"],
            ["success"],
        ]
        assert check_state(relay, f"crcr/{GATING}", pull.head_sha) == "in_progress"


async def test_fault_37_an_l3_backend_without_listed_jobs_ends_when_its_runs_are_over(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, INFORMING)
        assert check_state(relay, f"crcr/{INFORMING}", pull.head_sha) == "in_progress"
        for _ in range(4):
            await sweep_after(relay, 60)

        assert check_state(relay, f"crcr/{INFORMING}", pull.head_sha) == "success"


# What becomes of a commit


async def test_fault_38_a_push_ends_what_is_open_on_the_old_head_and_leaves_its_results(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        old, run = pull.head_sha, newest_run(relay, GATING)
        await start_jobs(relay, run)
        await finish_jobs(relay, run, build="success")
        await relay.pass_time(61)  # GitHub confirms it
        await relay.github.push_to_pr(pull)
        await relay.drain()

        assert check_states(relay, old, check_names(GATING, *JOBS)) == ["neutral", "success", "neutral"]
        assert check_states(relay, old, [f"crcr/{INFORMING}", GATE]) == ["neutral", "cancelled"]
        assert check_title(relay, f"crcr/{GATING}", old) == "superseded or closed"
        assert gate_state(relay, pull) == "pending"
        assert check_state(relay, f"crcr/{GATING}", pull.head_sha) == "in_progress"


async def test_fault_38_a_late_failure_of_the_old_head_changes_no_check_anywhere(tmp_path: Path) -> None:
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
async def test_closing_ends_what_is_open_and_the_closed_dispatch_gets_no_check(
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


async def test_closing_leaves_finished_checks_as_they_are(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        relay.clock.advance(60)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert check_states(relay, pull.head_sha, [*check_names(GATING, *JOBS), GATE]) == [
            *("failure", "failure", "success", "failure")
        ]


async def test_reopening_begins_with_a_new_pending_gate_beside_the_old_result(tmp_path: Path) -> None:
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


async def test_a_push_back_to_an_older_commit_begins_with_a_new_pending_gate(tmp_path: Path) -> None:
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


async def test_a_second_pull_request_on_the_head_shares_its_checks_and_keeps_them_alive(
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


async def test_above_twenty_jobs_only_failed_ones_have_a_check(tmp_path: Path) -> None:
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


async def test_at_twenty_jobs_every_one_has_a_check(tmp_path: Path) -> None:
    many = [f"job {number:02}" for number in range(20)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as relay:
        relay.github.repository(GATING).workflows = [named_workflow(*many)]
        pull = await open_pull(relay)
        await run_all(relay)

        assert check_names_on(relay, pull.head_sha) == {GATE, *check_names(GATING, *many)}


async def test_one_job_name_in_two_workflows_makes_two_checks_and_both_count(tmp_path: Path) -> None:
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


async def test_two_backends_of_one_commit_keep_their_checks_apart(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=BACKENDS, job_checks="all") as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING, build="failure")
        await run_all(relay, INFORMING)

        assert check_states(relay, pull.head_sha, check_names(GATING, "build")) == ["failure", "failure"]
        assert check_states(relay, pull.head_sha, check_names(INFORMING, "build")) == ["success", "success"]
        assert {each.head_sha for each in relay.github.checks(UPSTREAM)} == {pull.head_sha}
