"""Checks of single jobs: the first failures, their later results, and a change of the upstream's `job_checks` setting."""

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
from support.running_relay import UPSTREAM, RunningRelay, settings_for

BUILD, TEST = check_names(GATING, "build", "test")[1:]
MANY = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n"


async def test_the_first_three_failing_jobs_have_checks_and_the_backends_check_lists_all(
    tmp_path: Path,
) -> None:
    jobs = [f"job {number}" for number in range(6)]
    async with gated_upstream(tmp_path, MANY) as relay:
        relay.github.repository(GATING).workflows = [named_workflow(*jobs)]
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        for name in reversed(jobs[1:]):
            relay.clock.advance(10)
            await finish_jobs(relay, run, **{name: "failure"})
        await finish_jobs(relay, run, **{"job 0": "success"})

        assert check_names_on(relay, pull.head_sha) == {
            "crcr/gate",
            *check_names(GATING, "job 5", "job 4", "job 3"),
        }
        summary = relay.github.latest_checks(UPSTREAM, pull.head_sha)[f"crcr/{GATING}"].output["summary"]
        assert all(f"`{name}` | **failed**" in summary for name in jobs[1:])


async def test_the_check_of_a_failed_job_shows_its_later_success(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await relay.github.rerequest_check(relay.github.latest_checks(UPSTREAM, pull.head_sha)[BUILD])
        await relay.drain()
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")

        assert check_history(relay, BUILD, pull.head_sha) == ["failure", "success"]
        assert (gate_state(relay, pull), check_state(relay, TEST, pull.head_sha)) == ("success", "absent")


async def test_the_check_of_a_failed_job_shows_its_later_waiver(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING}:build because lab")

        assert check_states(relay, pull.head_sha, [BUILD, f"crcr/{GATING}"]) == ["neutral", "neutral"]
        assert check_title(relay, BUILD, pull.head_sha).startswith("waived by @maintainer")


async def restart_with(relay: RunningRelay, job_checks: str) -> None:
    """Restart the relay with another `job_checks` setting, and reconcile every open head."""
    (relay.folder / "crcr.toml").write_text(f'[[upstream]]\njob_checks = "{job_checks}"\n')
    await relay.close()
    await relay.github.aclose()
    await relay.open(settings_for(relay.folder, relay.github, relay.folder / "allowlist.yml"))
    await relay.services.reconciler.run(thorough=True)
    await relay.drain()


@pytest.mark.parametrize(
    ("job_checks", "after_restart", "after_end"),
    [
        ("none", ["neutral", "neutral"], ["neutral", "neutral"]),
        ("failures", ["in_progress"] * 2, ["failure", "success"]),
    ],
)
async def test_no_job_check_stays_open_after_the_job_checks_setting_changed(
    tmp_path: Path, job_checks: str, after_restart: list[str], after_end: list[str]
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await start_jobs(relay, run)
        await restart_with(relay, job_checks)
        assert check_states(relay, pull.head_sha, [BUILD, TEST]) == after_restart
        await finish_jobs(relay, run, build="failure", test="success")

        assert check_states(relay, pull.head_sha, [BUILD, TEST]) == after_end
        assert check_states(relay, pull.head_sha, [f"crcr/{GATING}"]) == ["failure"]
