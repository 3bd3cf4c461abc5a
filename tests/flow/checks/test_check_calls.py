"""What is asked of GitHub for checks: once for each though answers get lost, little though much happens, in order."""

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
    Stage,
    check_names_on,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    start_jobs,
)
from support.stage import UPSTREAM, in_postgresql

LEASE_S = 600
Trouble = Callable[[Faults], object]

LOST_CREATES: dict[str, Trouble] = {
    "the answer is lost": lambda faults: faults.lose_answer(on=CREATES, times=3),
    "the request is lost": lambda faults: faults.lose_request(on=CREATES, times=3),
    "the answer is no JSON": lambda faults: faults.malformed(on=CREATES, times=3),
    "GitHub fails": lambda faults: faults.answer(502, on=CREATES, times=3),
}


async def settle(it: Stage, minutes: int = 10) -> None:
    for _ in range(minutes):
        await it.pass_time(60)


def made(it: Stage, sha: str) -> Counter[str]:
    """How many checks of each name stand on the commit."""
    return Counter(each.name for each in it.github.checks(UPSTREAM, sha))


# Lost answers


@pytest.mark.parametrize("trouble", LOST_CREATES.values(), ids=LOST_CREATES)
async def test_whatever_happens_to_a_creation_exactly_one_check_of_each_name_is_there(
    tmp_path: Path, trouble: Trouble
) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as it:
        trouble(it.github.faults)
        pull = await open_pull(it, labels=[LABEL])
        await settle(it)
        await start_jobs(it, newest_run(it))

        assert made(it, pull.head_sha) == dict.fromkeys(
            [GATE, f"crcr/{INFORMING}", *check_names(GATING, "build", "test")], 1
        )
        assert gate_state(it, pull) == "pending"


async def test_a_check_whose_creation_was_not_heard_of_still_gets_its_result(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        it.github.faults.lose_answer(on=CREATES, times=2)
        await run_all(it, build="failure")
        await settle(it)

        assert check_states(it, pull.head_sha, check_names(GATING, "build", "test")) == [
            "failure",
            "failure",
            "success",
        ]
        assert set(made(it, pull.head_sha).values()) == {1}


async def crash_during(it: Stage, *, after_acting: bool) -> None:
    """The process dies while GitHub is asked to create the gate, before or after GitHub has done so."""
    gate_ = it.github.faults.hang(on=CREATES, after_acting=after_acting, times=1)
    await it.github.open_pr(UPSTREAM)
    work = asyncio.create_task(it.act())
    await gate_.reached.wait()
    work.cancel()
    with suppress(asyncio.CancelledError):
        await work
    it.github.faults.clear()


@pytest.mark.parametrize("after_acting", [True, False])
async def test_a_crash_between_the_note_and_the_answer_leaves_one_check_of_each_name(
    tmp_path: Path, *, after_acting: bool
) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        await crash_during(it, after_acting=after_acting)
        await it.pass_time(LEASE_S)
        await settle(it, 3)

        [pull] = it.github.world.pulls.values()
        assert made(it, pull.head_sha) == {GATE: 1, f"crcr/{GATING}": 1}


@pytest.mark.parametrize("kind", ["lose_answer", "lose_request"])
async def test_a_lost_update_is_made_again_and_the_check_ends_right(tmp_path: Path, kind: str) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await start_jobs(it, newest_run(it))
        getattr(it.github.faults, kind)(on=UPDATES, times=4)
        await finish_jobs(it, newest_run(it))
        await settle(it)

        assert (
            check_states(it, pull.head_sha, [GATE, *check_names(GATING, "build", "test")]) == ["success"] * 4
        )
        assert set(made(it, pull.head_sha).values()) == {1}


async def test_a_gate_completed_unheard_is_not_reopened_but_followed_by_a_new_one(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await start_jobs(it, newest_run(it))
        it.github.faults.lose_answer(on=UPDATES, times=1)
        await it.github.complete_job(newest_run(it), "build", "failure")
        await it.act()
        assert check_history(it, GATE, pull.head_sha) == ["failure"]
        await finish_jobs(it, newest_run(it), test="success")
        await it.github.rerequest_check(it.github.latest_checks(UPSTREAM, pull.head_sha)[f"crcr/{GATING}"])
        await settle(it, 3)

        assert check_history(it, GATE, pull.head_sha) == ["failure", "in_progress"]


async def test_a_check_that_never_came_to_be_is_not_made_to_be_ended(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as it:
        it.github.faults.lose_request(on=CREATES, times=1)
        pull = await open_pull(it, labels=[LABEL])
        it.clock.advance(1)
        await it.github.unlabel_pr(pull, LABEL)
        await settle(it, 2)
        assert check_names_on(it, pull.head_sha) == set()
        await it.github.label_pr(pull, LABEL)
        await settle(it, 2)

        assert check_history(it, f"crcr/{INFORMING}", pull.head_sha) == ["in_progress"]


async def test_a_check_that_came_to_be_unheard_is_ended_when_nobody_wants_it(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, INFORMS, job_checks="all") as it:
        it.github.faults.lose_answer(on=CREATES, times=1)
        pull = await open_pull(it, labels=[LABEL])
        it.clock.advance(1)
        await it.github.unlabel_pr(pull, LABEL)
        await settle(it, 2)

        assert check_history(it, f"crcr/{INFORMING}", pull.head_sha) == ["neutral"]


# Limits


LIMITS: dict[str, Trouble] = {
    "a secondary limit": lambda faults: faults.secondary_limit(on=CREATES, times=1),
    "too many requests": lambda faults: faults.secondary_limit(status=429, on=UPDATES, times=2),
    "a bare 403": lambda faults: faults.secondary_limit(retry_after_s=None, on=CREATES, times=1),
    "the hour used up": lambda faults: faults.primary_limit(reset_in_s=600, on=UPDATES, times=1),
}


@pytest.mark.parametrize("trouble", LIMITS.values(), ids=LIMITS)
async def test_after_a_rate_limit_every_check_arrives_with_its_result(
    tmp_path: Path, trouble: Trouble
) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as it:
        trouble(it.github.faults)
        pull = await open_pull(it, labels=[LABEL])
        await run_all(it, GATING, build="failure")
        await run_all(it, INFORMING)
        await settle(it, 20)

        assert check_states(it, pull.head_sha, [GATE, *check_names(GATING, "build", "test")]) == [
            *("failure", "failure", "failure", "success")
        ]
        assert check_states(it, pull.head_sha, check_names(INFORMING, "build", "test")) == ["success"] * 3
        assert set(made(it, pull.head_sha).values()) == {1}


async def test_fifty_changes_before_the_worker_runs_make_one_update_of_each_check(tmp_path: Path) -> None:
    many = [f"job {number:02}" for number in range(16)]
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as it:
        it.github.repository(GATING).workflows = [named_workflow(*many)]
        pull = await open_pull(it)
        run = newest_run(it)
        for name in many:
            await it.github.start_job(run, name)
        await it.act()
        before = len(check_calls(it, "PATCH"))
        for name in many:
            await it.github.complete_job(run, name)
            it.clock.advance(1)
            await it.github.label_pr(pull, f"label-{name}")
            await it.github.unlabel_pr(pull, f"label-{name}")
        await it.act()

        updated = [call.path for call in check_calls(it, "PATCH")[before:]]
        # Gate and backend say first that GitHub has not confirmed it.
        assert len(set(updated)) == len(many) + 2
        assert len(updated) <= len(many) + 4
        assert gate_state(it, pull) == "success"


async def test_an_unchanged_check_is_not_written_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        pull = await open_pull(it)
        await start_jobs(it, newest_run(it))
        before = len(check_calls(it, "PATCH")), len(check_calls(it, "POST"))
        for _ in range(3):
            it.clock.advance(1)
            await it.github.label_pr(pull, "triaged")
            await it.act()

        assert (len(check_calls(it, "PATCH")), len(check_calls(it, "POST"))) == before


async def load(it: Stage, pulls: int, jobs: int) -> None:
    """So many jobs start at once that GitHub's minute is too short for their checks."""
    it.github.repository(GATING).workflows = [named_workflow(*(f"job {number}" for number in range(jobs)))]
    for _ in range(pulls):
        await it.github.open_pr(UPSTREAM)
    await it.act()
    await it.pass_time(61)
    for run in it.github.runs(GATING):
        for job in run.jobs:
            await it.github.start_job(run, job.name)
    await it.act()


async def test_when_points_are_short_a_gate_goes_before_backends_and_these_before_jobs(
    tmp_path: Path,
) -> None:
    async with gated_upstream(
        tmp_path, f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['job *']}}\n", job_checks="all"
    ) as it:
        await load(it, pulls=7, jobs=20)
        shown = Counter(each.name.count("/") for each in it.github.checks(UPSTREAM))
        assert shown[4] < 140
        pull = await open_pull(it)

        assert (gate_state(it, pull), check_state(it, f"crcr/{GATING}", pull.head_sha)) == (
            "pending",
            "in_progress",
        )
        await it.pass_time(61)
        assert Counter(each.name.count("/") for each in it.github.checks(UPSTREAM))[4] == 140


async def test_a_commit_that_is_new_gets_its_gate_before_anything_else(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, job_checks="all") as it:
        await open_pull(it, labels=[LABEL])

        made = [call_body(each)["name"] for each in check_calls(it, "POST")]
        # The queues are looked at side by side; a gate waits at most for the first of each other.
        assert GATE in made[: len(Tier) if in_postgresql() else 1]


async def test_checks_are_written_with_the_upstreams_own_installation(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, GATES, job_checks="all") as it:
        await open_pull(it)
        await run_all(it)

        mine = it.github.installation(UPSTREAM).id
        assert {call.installation_id for call in check_calls(it, "POST") + check_calls(it, "PATCH")} == {mine}


async def test_a_check_that_github_refuses_keeps_none_of_the_others_back(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, job_checks="all") as it:
        pull = await open_pull(it)
        it.github.faults.answer(
            422, on=Match("POST", f"/repos/{UPSTREAM}/check-runs"), times=1, message="Validation Failed"
        )
        await start_jobs(it, newest_run(it))
        jobs = {name for name in check_names_on(it, pull.head_sha) if name.startswith(f"crcr/{GATING}/")}
        assert len(jobs) == 1

        await it.services.reconciler.run()
        await it.act()
        assert f"crcr/{GATING}/CI/build" in check_names_on(it, pull.head_sha)
        assert f"crcr/{GATING}/CI/test" in check_names_on(it, pull.head_sha)
