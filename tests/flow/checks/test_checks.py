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
    BOTH,
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
from support.stage import UPSTREAM

JOBS = ("build", "test")


# From dispatch to result


@pytest.mark.parametrize(("allowlist", "backend"), [(GATES, GATING), (INFORMS, INFORMING)])
async def test_at_dispatch_a_backend_that_speaks_has_one_check_in_progress(
    tmp_path: Path, allowlist: str, backend: str
) -> None:
    async with gated_upstream(tmp_path, allowlist, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])

        assert check_names_on(it, pull.head_sha) - {GATE} == {f"crcr/{backend}"}
        assert check_history(it, f"crcr/{backend}", pull.head_sha) == ["in_progress"]


async def test_without_its_label_an_l3_backend_is_recorded_and_shows_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as it:
        pull = await open_pull(it, labels=["triaged"])
        for step in (start_jobs, finish_jobs):
            await step(it, newest_run(it, INFORMING))
            assert check_names_on(it, pull.head_sha) == set()

        assert [(job["job_name"], job["conclusion"]) for job in it.jobs()] == [
            ("build", "success"),
            ("test", "success"),
        ]


@pytest.mark.parametrize(("allowlist", "backend"), [(GATES, GATING), (INFORMS, INFORMING)])
async def test_a_backends_check_follows_its_jobs_which_stand_beside_it(
    tmp_path: Path, allowlist: str, backend: str
) -> None:
    async with gated_upstream(tmp_path, allowlist, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        run, three = newest_run(it, backend), check_names(backend, *JOBS)
        await start_jobs(it, run, "build")
        assert check_states(it, pull.head_sha, three) == ["in_progress", "in_progress", "absent"]
        await finish_jobs(it, run, build="success")
        assert check_states(it, pull.head_sha, three) == ["in_progress", "success", "absent"]
        await start_jobs(it, run, "test")
        await finish_jobs(it, run, test="success")

        assert check_states(it, pull.head_sha, three) == ["success"] * 3
        assert all(len(check_history(it, name, pull.head_sha)) == 1 for name in three)


async def test_a_failed_l4_job_is_red_on_itself_its_backend_and_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await run_all(it, GATING, build="failure")

        assert check_states(it, pull.head_sha, check_names(GATING, *JOBS)) == [
            "failure",
            "failure",
            "success",
        ]
        assert gate_state(it, pull) == "failure"


async def test_an_l2_backend_shows_nothing_and_makes_no_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, f"L2:\n  - {GATING}\n", job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        await run_all(it)

        assert check_names_on(it, pull.head_sha) == set()
        assert it.rows("SELECT * FROM checks") == []


# Informational to the end


async def test_fault_37_a_failure_at_l3_is_neutral_and_says_that_it_blocks_nothing(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        await run_all(it, INFORMING, build="failure", test="timed_out")
        await run_all(it, GATING)

        mine = check_names(INFORMING, *JOBS)
        assert check_states(it, pull.head_sha, mine) == ["neutral"] * 3
        assert check_title(it, mine[1], pull.head_sha) == "failure (non-blocking)"
        assert all("(non-blocking)" in check_title(it, name, pull.head_sha) for name in mine)
        assert gate_state(it, pull) == "success"


async def test_an_upstream_may_ask_for_red_at_l3_and_it_still_gates_nothing(tmp_path: Path) -> None:
    write_upstream_settings(tmp_path, l3_conclusion="failure")
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        await run_all(it, INFORMING, build="failure")
        await run_all(it, GATING)

        assert check_states(it, pull.head_sha, check_names(INFORMING, *JOBS)) == [
            "failure",
            "failure",
            "success",
        ]
        assert gate_state(it, pull) == "success"


async def test_fault_37_where_merge_tools_wait_l3_runs_as_completed_and_the_result_goes_in(
    tmp_path: Path,
) -> None:
    write_upstream_settings(tmp_path, l3_pending="neutral")
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        run, mine = newest_run(it, INFORMING), check_names(INFORMING, *JOBS)
        assert check_states(it, pull.head_sha, mine) == ["neutral", "absent", "absent"]
        await start_jobs(it, run)
        assert check_states(it, pull.head_sha, mine) == ["neutral"] * 3
        assert check_title(it, mine[1], pull.head_sha) == "running (non-blocking)"
        assert check_title(it, mine[0], pull.head_sha).endswith("(non-blocking)")
        await finish_jobs(it, run, build="failure", test="success")

        assert check_states(it, pull.head_sha, mine) == ["neutral", "neutral", "success"]
        assert check_title(it, mine[1], pull.head_sha) == "failure (non-blocking)"
        assert [check_history(it, name, pull.head_sha) for name in mine] == [
            ["neutral"],
            ["neutral"],
            ["success"],
        ]
        assert check_state(it, f"crcr/{GATING}", pull.head_sha) == "in_progress"


async def test_fault_37_an_l3_backend_without_listed_jobs_ends_when_its_runs_are_over(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATED, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        await run_all(it, INFORMING)
        assert check_state(it, f"crcr/{INFORMING}", pull.head_sha) == "in_progress"
        for _ in range(4):
            await sweep_after(it, 60)

        assert check_state(it, f"crcr/{INFORMING}", pull.head_sha) == "success"


# What becomes of a commit


async def test_fault_38_a_push_ends_what_is_open_on_the_old_head_and_leaves_its_results(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        old, run = pull.head_sha, newest_run(it, GATING)
        await start_jobs(it, run)
        await finish_jobs(it, run, build="success")
        await it.pass_time(61)  # GitHub confirms it
        await it.github.push_to_pr(pull)
        await it.act()

        assert check_states(it, old, check_names(GATING, *JOBS)) == ["neutral", "success", "neutral"]
        assert check_states(it, old, [f"crcr/{INFORMING}", GATE]) == ["neutral", "cancelled"]
        assert check_title(it, f"crcr/{GATING}", old) == "superseded or closed"
        assert gate_state(it, pull) == "pending"
        assert check_state(it, f"crcr/{GATING}", pull.head_sha) == "in_progress"


async def test_fault_38_a_late_failure_of_the_old_head_changes_no_check_anywhere(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        old, run = pull.head_sha, newest_run(it)
        await start_jobs(it, run)
        it.clock.advance(60)
        await it.github.push_to_pr(pull)
        await it.act()
        before = {
            sha: check_states(it, sha, [*check_names(GATING, *JOBS), GATE]) for sha in (old, pull.head_sha)
        }
        await finish_jobs(it, run, build="failure", test="failure")

        after = {
            sha: check_states(it, sha, [*check_names(GATING, *JOBS), GATE]) for sha in (old, pull.head_sha)
        }
        assert after == before
        await run_all(it)
        assert gate_state(it, pull) == "success"


@pytest.mark.parametrize("merged", [False, True])
async def test_closing_ends_what_is_open_and_the_closed_dispatch_gets_no_check(
    tmp_path: Path, *, merged: bool
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await start_jobs(it, newest_run(it), "build")
        it.clock.advance(60)
        await it.github.close_pr(pull, merged=merged)
        await it.act()
        ended = check_states(it, pull.head_sha, [*check_names(GATING, "build"), GATE])
        await run_all(it, build="failure")

        assert ended == ["neutral", "neutral", "cancelled"]
        assert len(it.github.runs(GATING)) == 2
        assert check_states(it, pull.head_sha, [*check_names(GATING, *JOBS), GATE]) == [
            *ended[:2],
            "absent",
            ended[2],
        ]


async def test_closing_leaves_finished_checks_as_they_are(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        it.clock.advance(60)
        await it.github.close_pr(pull)
        await it.act()

        assert check_states(it, pull.head_sha, [*check_names(GATING, *JOBS), GATE]) == [
            *("failure", "failure", "success", "failure")
        ]


async def test_reopening_begins_with_a_new_pending_gate_beside_the_old_result(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await run_all(it)
        it.clock.advance(60)
        await it.github.close_pr(pull)
        await it.act()
        it.clock.advance(60)
        await it.github.reopen_pr(pull)
        await it.act()

        assert check_history(it, GATE, pull.head_sha) == ["success", "cancelled", "in_progress"]
        assert check_history(it, f"crcr/{GATING}", pull.head_sha) == ["success", "in_progress"]
        await run_all(it, build="failure")
        assert check_history(it, GATE, pull.head_sha) == ["success", "cancelled", "failure"]


async def test_a_push_back_to_an_older_commit_begins_with_a_new_pending_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        first = pull.head_sha
        await run_all(it)
        it.clock.advance(60)
        await it.github.push_to_pr(pull)
        await it.act()
        second = pull.head_sha
        it.clock.advance(60)
        await force_push(it.github, pull, first)
        await it.act()

        assert check_history(it, GATE, first) == ["success", "cancelled", "in_progress"]
        assert check_history(it, GATE, second) == ["cancelled"]
        await run_all(it)
        assert check_history(it, GATE, first) == ["success", "cancelled", "success"]
        assert check_history(it, f"crcr/{GATING}", first) == ["success", "success"]


async def test_a_second_pull_request_on_the_head_shares_its_checks_and_keeps_them_alive(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await run_all(it)
        it.clock.advance(60)
        twin = await open_twin(it, pull)
        assert (twin.head_sha, gate_state(it, twin)) == (pull.head_sha, "pending")
        it.clock.advance(60)
        await it.github.close_pr(pull)
        await it.act()
        assert gate_state(it, twin) == "pending"
        await run_all_for(it, twin)

        assert gate_state(it, twin) == "success"
        assert check_history(it, f"crcr/{GATING}", pull.head_sha) == ["success", "success"]


# Many jobs, many workflows


async def test_above_twenty_jobs_only_failed_ones_have_a_check(tmp_path: Path) -> None:
    many = [f"job {number:02}" for number in range(21)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as it:
        it.github.repository(GATING).workflows = [named_workflow(*many)]
        pull = await open_pull(it)
        run = newest_run(it)
        for name in many:
            await it.github.start_job(run, name)
        await it.act()
        assert check_names_on(it, pull.head_sha) == {GATE, f"crcr/{GATING}"}
        await finish_jobs(it, run, **{name: "failure" if name == "job 07" else "success" for name in many})

        assert check_names_on(it, pull.head_sha) == {GATE, *check_names(GATING, "job 07")}
        assert check_states(it, pull.head_sha, check_names(GATING, "job 07")) == ["failure", "failure"]


async def test_at_twenty_jobs_every_one_has_a_check(tmp_path: Path) -> None:
    many = [f"job {number:02}" for number in range(20)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as it:
        it.github.repository(GATING).workflows = [named_workflow(*many)]
        pull = await open_pull(it)
        await run_all(it)

        assert check_names_on(it, pull.head_sha) == {GATE, *check_names(GATING, *many)}


async def test_one_job_name_in_two_workflows_makes_two_checks_and_both_count(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        it.github.repository(GATING).workflows = [
            named_workflow(*JOBS),
            named_workflow("build", workflow="Nightly", file="nightly.yml"),
        ]
        pull = await open_pull(it)
        first, second = it.github.runs(GATING)
        for run, conclusion in ((first, "success"), (second, "failure")):
            await start_jobs(it, run)
            await finish_jobs(it, run, **{job.name: conclusion for job in run.jobs})

        assert check_state(it, f"crcr/{GATING}/CI/build", pull.head_sha) == "success"
        assert check_state(it, f"crcr/{GATING}/Nightly/build", pull.head_sha) == "failure"
        assert gate_state(it, pull) == "failure"


async def test_two_backends_of_one_commit_keep_their_checks_apart(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=BOTH, job_checks="all") as it:
        pull = await open_pull(it, labels=[LABEL])
        await run_all(it, GATING, build="failure")
        await run_all(it, INFORMING)

        assert check_states(it, pull.head_sha, check_names(GATING, "build")) == ["failure", "failure"]
        assert check_states(it, pull.head_sha, check_names(INFORMING, "build")) == ["success", "success"]
        assert {each.head_sha for each in it.github.checks(UPSTREAM)} == {pull.head_sha}
