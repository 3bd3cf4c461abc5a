"""Calls to GitHub for checks: one per check even when responses are lost, few in all, and in order."""

import asyncio
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from crcr.decide.checks.check_run import Tier
from github_sim.github import Faults, Match
from support.github.checks import (
    CREATES,
    GATES,
    INFORMS,
    LISTED,
    UPDATES,
    call_body,
    check_calls,
    check_history,
    check_names,
    check_state,
    check_states,
    named_workflow,
)
from support.github.gated_upstream import (
    GATE,
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
)
from support.running_relay import UPSTREAM, RunningRelay, in_postgresql

LEASE_S = 600
InjectFault = Callable[[Faults], object]

LOST_CREATES: dict[str, InjectFault] = {
    "the answer is lost": lambda faults: faults.lose_answer(on=CREATES, times=3),
    "the request is lost": lambda faults: faults.lose_request(on=CREATES, times=3),
    "the answer is no JSON": lambda faults: faults.malformed(on=CREATES, times=3),
    "GitHub fails": lambda faults: faults.answer(502, on=CREATES, times=3),
}


async def settle(relay: RunningRelay, minutes: int = 10) -> None:
    for _ in range(minutes):
        await relay.pass_time(60)


def count_checks(relay: RunningRelay, sha: str) -> Counter[str]:
    """How many checks of each name the commit has."""
    return Counter(check.name for check in relay.github.checks(UPSTREAM, sha))


# Lost requests and responses


@pytest.mark.parametrize("inject_fault", LOST_CREATES.values(), ids=LOST_CREATES)
async def test_a_failed_creation_leaves_exactly_one_check_of_each_name(
    tmp_path: Path, inject_fault: InjectFault
) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        inject_fault(relay.github.faults)
        pull = await open_pull(relay, labels=[LABEL])
        await settle(relay)
        await start_jobs(relay, newest_run(relay))

        assert count_checks(relay, pull.head_sha) == dict.fromkeys(
            [GATE, f"crcr/{INFORMING}", *check_names(GATING, "build", "test")], 1
        )
        assert gate_state(relay, pull) == "pending"


async def test_a_check_whose_creation_response_was_lost_still_gets_its_result(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        relay.github.faults.lose_answer(on=CREATES, times=2)
        await run_all(relay, build="failure")
        await settle(relay)

        assert check_states(relay, pull.head_sha, check_names(GATING, "build", "test")) == [
            "failure",
            "failure",
            "success",
        ]
        assert set(count_checks(relay, pull.head_sha).values()) == {1}


async def crash_during_creation(relay: RunningRelay, *, after_acting: bool) -> None:
    """Cancel the worker during its request to create the gate, before or after GitHub has created it."""
    gate_ = relay.github.faults.hang(on=CREATES, after_acting=after_acting, times=1)
    await relay.github.open_pr(UPSTREAM)
    work = asyncio.create_task(relay.drain())
    await gate_.reached.wait()
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work
    relay.github.faults.clear()


@pytest.mark.parametrize("after_acting", [True, False])
async def test_a_crash_during_the_creation_leaves_one_check_of_each_name(
    tmp_path: Path, *, after_acting: bool
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        await crash_during_creation(relay, after_acting=after_acting)
        await relay.pass_time(LEASE_S)
        await settle(relay, 3)

        [pull] = relay.github.world.pulls.values()
        assert count_checks(relay, pull.head_sha) == {GATE: 1, f"crcr/{GATING}": 1}


@pytest.mark.parametrize("kind", ["lose_answer", "lose_request"])
async def test_a_lost_update_is_repeated_and_the_check_gets_its_result(tmp_path: Path, kind: str) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        getattr(relay.github.faults, kind)(on=UPDATES, times=4)
        await finish_jobs(relay, newest_run(relay))
        await settle(relay)

        assert (
            check_states(relay, pull.head_sha, [GATE, *check_names(GATING, "build", "test")])
            == ["success"] * 4
        )
        assert set(count_checks(relay, pull.head_sha).values()) == {1}


async def test_a_gate_completed_with_a_lost_response_is_replaced_and_not_reopened(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        relay.github.faults.lose_answer(on=UPDATES, times=1)
        await relay.github.complete_job(newest_run(relay), "build", "failure")
        await relay.drain()
        assert check_history(relay, GATE, pull.head_sha) == ["failure"]
        await finish_jobs(relay, newest_run(relay), test="success")
        await relay.github.rerequest_check(
            relay.github.latest_checks(UPSTREAM, pull.head_sha)[f"crcr/{GATING}"]
        )
        await settle(relay, 3)

        assert check_history(relay, GATE, pull.head_sha) == ["failure", "in_progress"]


async def test_a_check_whose_creation_request_was_lost_is_not_created_only_to_be_ended(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        relay.github.faults.lose_request(on=CREATES, times=1)
        pull = await open_pull(relay, labels=[LABEL])
        relay.clock.advance(1)
        await relay.github.unlabel_pr(pull, LABEL)
        await settle(relay, 2)
        assert check_names_on(relay, pull.head_sha) == set()
        await relay.github.label_pr(pull, LABEL)
        await settle(relay, 2)

        assert check_history(relay, f"crcr/{INFORMING}", pull.head_sha) == ["in_progress"]


async def test_a_check_created_with_a_lost_response_is_ended_when_its_label_is_removed(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as relay:
        relay.github.faults.lose_answer(on=CREATES, times=1)
        pull = await open_pull(relay, labels=[LABEL])
        relay.clock.advance(1)
        await relay.github.unlabel_pr(pull, LABEL)
        await settle(relay, 2)

        assert check_history(relay, f"crcr/{INFORMING}", pull.head_sha) == ["neutral"]


# Limits


LIMITS: dict[str, InjectFault] = {
    "a secondary limit": lambda faults: faults.secondary_limit(on=CREATES, times=1),
    "too many requests": lambda faults: faults.secondary_limit(status=429, on=UPDATES, times=2),
    "a bare 403": lambda faults: faults.secondary_limit(retry_after_s=None, on=CREATES, times=1),
    "the hour used up": lambda faults: faults.primary_limit(reset_in_s=600, on=UPDATES, times=1),
}


@pytest.mark.parametrize("inject_fault", LIMITS.values(), ids=LIMITS)
async def test_after_a_rate_limit_every_check_is_published_with_its_result(
    tmp_path: Path, inject_fault: InjectFault
) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        inject_fault(relay.github.faults)
        pull = await open_pull(relay, labels=[LABEL])
        await run_all(relay, GATING, build="failure")
        await run_all(relay, INFORMING)
        await settle(relay, 20)

        assert check_states(relay, pull.head_sha, [GATE, *check_names(GATING, "build", "test")]) == [
            *("failure", "failure", "failure", "success")
        ]
        assert check_states(relay, pull.head_sha, check_names(INFORMING, "build", "test")) == ["success"] * 3
        assert set(count_checks(relay, pull.head_sha).values()) == {1}


async def test_many_changes_before_the_worker_runs_are_one_update_of_each_job_check(tmp_path: Path) -> None:
    many = [f"job {number:02}" for number in range(16)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as relay:
        relay.github.repository(GATING).workflows = [named_workflow(*many)]
        pull = await open_pull(relay)
        run = newest_run(relay)
        for name in many:
            await relay.github.start_job(run, name)
        await relay.drain()
        before = len(check_calls(relay, "PATCH"))
        for name in many:
            await relay.github.complete_job(run, name)
            # Of two contradictory results the worse one counts.
            await relay.github.report(run, name, status="completed", conclusion="failure")
            relay.clock.advance(1)
            await relay.github.label_pr(pull, f"label-{name}")
            await relay.github.unlabel_pr(pull, f"label-{name}")
        await relay.drain()

        names = {
            f"/repos/{UPSTREAM}/check-runs/{check.id}": check.name for check in relay.github.checks(UPSTREAM)
        }
        updates = Counter(names[call.path] for call in check_calls(relay, "PATCH")[before:])
        # Gate and backend may first be updated as not yet confirmed by GitHub.
        assert 1 <= updates.pop(GATE) <= 2
        assert 1 <= updates.pop(f"crcr/{GATING}") <= 2
        assert updates == dict.fromkeys(check_names(GATING, *many)[1:], 1)
        assert gate_state(relay, pull) == "failure"


async def test_an_unchanged_check_is_not_written_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        pull = await open_pull(relay)
        await start_jobs(relay, newest_run(relay))
        before = len(check_calls(relay, "PATCH")), len(check_calls(relay, "POST"))
        for _ in range(3):
            relay.clock.advance(1)
            await relay.github.label_pr(pull, "triaged")
            await relay.drain()

        assert (len(check_calls(relay, "PATCH")), len(check_calls(relay, "POST"))) == before


async def start_many_jobs(relay: RunningRelay, pulls: int, jobs: int) -> None:
    """Start so many jobs at once that the rate limit of a minute is too low for their checks."""
    relay.github.repository(GATING).workflows = [named_workflow(*(f"job {number}" for number in range(jobs)))]
    for _ in range(pulls):
        await relay.github.open_pr(UPSTREAM)
    await relay.drain()
    await relay.pass_time(61)
    for run in relay.github.runs(GATING):
        for job in run.jobs:
            await relay.github.start_job(run, job.name)
    await relay.drain()


async def test_when_rate_limit_points_are_short_gates_precede_backends_and_backends_precede_jobs(
    tmp_path: Path,
) -> None:
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as relay:
        await start_many_jobs(relay, pulls=7, jobs=20)
        shown = Counter(check.name.count("/") for check in relay.github.checks(UPSTREAM))
        assert shown[4] < 140
        pull = await open_pull(relay)

        assert (gate_state(relay, pull), check_state(relay, f"crcr/{GATING}", pull.head_sha)) == (
            "pending",
            "in_progress",
        )
        await relay.pass_time(61)
        assert Counter(check.name.count("/") for check in relay.github.checks(UPSTREAM))[4] == 140


async def test_a_new_commit_gets_its_gate_before_any_other_check(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as relay:
        await open_pull(relay, labels=[LABEL])

        made = [call_body(call)["name"] for call in check_calls(relay, "POST")]
        # The queues are processed concurrently; a gate waits at most for the first item of each other queue.
        assert GATE in made[: len(Tier) if in_postgresql() else 1]


async def test_checks_are_written_with_the_upstreams_own_installation(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as relay:
        await open_pull(relay)
        await run_all(relay)

        upstream_installation = relay.github.installation(UPSTREAM).id
        assert {
            call.installation_id for call in check_calls(relay, "POST") + check_calls(relay, "PATCH")
        } == {upstream_installation}


async def test_a_check_that_github_refuses_does_not_block_the_others(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, job_checks="all") as relay:
        pull = await open_pull(relay)
        relay.github.faults.answer(
            422, on=Match("POST", f"/repos/{UPSTREAM}/check-runs"), times=1, message="Validation Failed"
        )
        await start_jobs(relay, newest_run(relay))
        jobs = {name for name in check_names_on(relay, pull.head_sha) if name.startswith(f"crcr/{GATING}/")}
        assert len(jobs) == 1

        await relay.services.reconciler.run()
        await relay.drain()
        assert f"crcr/{GATING}/CI/build" in check_names_on(relay, pull.head_sha)
        assert f"crcr/{GATING}/CI/test" in check_names_on(relay, pull.head_sha)
