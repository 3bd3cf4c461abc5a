"""Checks of single jobs: the first failures, their mending, and what becomes of them when the upstream's choice changes."""

from pathlib import Path

import pytest

from support.github.checks import (
    GATES,
    check_history,
    check_names,
    check_state,
    check_states,
    check_title,
    named_workflow,
)
from support.github.gated_upstream import (
    GATING,
    Stage,
    check_names_on,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
    write_comment,
)
from support.stage import UPSTREAM, settings_for

BUILD, TEST = check_names(GATING, "build", "test")[1:]
MANY = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n"


async def test_the_first_three_failing_jobs_have_checks_and_the_backends_check_lists_all(
    tmp_path: Path,
) -> None:
    jobs = [f"job {number}" for number in range(6)]
    async with gated_upstream(tmp_path, MANY) as it:
        it.github.repository(GATING).workflows = [named_workflow(*jobs)]
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        for name in reversed(jobs[1:]):
            it.clock.advance(10)
            await finish_jobs(it, run, **{name: "failure"})
        await finish_jobs(it, run, **{"job 0": "success"})

        assert check_names_on(it, pull.head_sha) == {
            "crcr/gate",
            *check_names(GATING, "job 5", "job 4", "job 3"),
        }
        said = it.github.latest_checks(UPSTREAM, pull.head_sha)[f"crcr/{GATING}"].output["summary"]
        assert all(f"`{name}` | **failed**" in said for name in jobs[1:])


async def test_a_job_that_was_shown_as_failed_is_shown_as_mended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        run = await run_all(it, build="failure")
        await it.github.rerequest_check(it.github.latest_checks(UPSTREAM, pull.head_sha)[BUILD])
        await it.act()
        await start_jobs(it, run, "build")
        await finish_jobs(it, run, build="success")

        assert check_history(it, BUILD, pull.head_sha) == ["failure", "success"]
        assert (gate_state(it, pull), check_state(it, TEST, pull.head_sha)) == ("success", "absent")


async def test_a_job_that_was_shown_as_failed_is_shown_as_waived(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await write_comment(it, pull, f"/crcr waive {GATING}:build because lab")

        assert check_states(it, pull.head_sha, [BUILD, f"crcr/{GATING}"]) == ["neutral", "neutral"]
        assert check_title(it, BUILD, pull.head_sha).startswith("waived by @maintainer")


async def choose(it: Stage, job_checks: str) -> None:
    """The relay is started again with another choice, and looks at every open head."""
    (it.folder / "crcr.toml").write_text(f'[[upstream]]\njob_checks = "{job_checks}"\n')
    await it.close()
    await it.github.aclose()
    await it.open(settings_for(it.folder, it.github, it.folder / "allowlist.yml"))
    await it.services.reconciler.run(thorough=True)
    await it.act()


@pytest.mark.parametrize(
    ("job_checks", "then", "in_the_end"),
    [
        ("none", ["neutral", "neutral"], ["neutral", "neutral"]),
        ("failures", ["in_progress"] * 2, ["failure", "success"]),
    ],
)
async def test_after_another_choice_no_check_of_a_job_stays_open(
    tmp_path: Path, job_checks: str, then: list[str], in_the_end: list[str]
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await start_jobs(it, run)
        await choose(it, job_checks)
        assert check_states(it, pull.head_sha, [BUILD, TEST]) == then
        await finish_jobs(it, run, build="failure", test="success")

        assert check_states(it, pull.head_sha, [BUILD, TEST]) == in_the_end
        assert check_states(it, pull.head_sha, [f"crcr/{GATING}"]) == ["failure"]
