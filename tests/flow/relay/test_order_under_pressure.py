"""When GitHub's limits leave too few calls: gates, dispatches and answers go first, and nothing that waits is lost."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import PullRequest
from support.github.checks import CREATES, call_body, check_calls, check_state, rerun_calls
from support.github.commands import was_obeyed
from support.github.gated_upstream import (
    GATE,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay

OWN = f"{UPSTREAM.partition('/')[0]}/backend"
"""A backend of the upstream's own organisation: its dispatches count on the same installation."""
LISTED = f"L4:\n  - {OWN}: {{oncalls: [bob], jobs: [build, test], paths: ['src/**']}}\n"
BACKEND, JOB = f"crcr/{OWN}", f"crcr/{OWN}/CI/build"
RESERVE = 1_000
IN_TIME_S = 5.0
"""The longest delay of a gate under a rate limit."""


async def seconds_until(relay: RunningRelay, done: Callable[[], bool], *, most: float = IN_TIME_S) -> float:
    waited = 0.0
    while not done():
        assert waited < most, "not done in time"
        await relay.pass_time(0.5)
        waited += 0.5
    return waited


async def new_pull(relay: RunningRelay) -> PullRequest:
    return await open_pull(relay, files=["src/a.py"])


def open_effects(relay: RunningRelay) -> list[dict[str, Any]]:
    return relay.rows(
        "SELECT * FROM effects WHERE state IN ('waiting', 'claimed', 'parked') ORDER BY effect_id"
    )


def count_dispatches(relay: RunningRelay) -> int:
    return len(relay.github.dispatches(OWN))


async def test_within_the_reserve_gates_dispatches_files_and_answers_go_on_while_checks_wait(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(OWN,)) as relay:
        old = await new_pull(relay)
        relay.github.spend_hour(UPSTREAM, leave=RESERVE + 1)
        resets_at = relay.clock.now().timestamp() + 3600
        pull = await new_pull(relay)
        assert (gate_state(relay, pull), count_dispatches(relay)) == ("pending", 2)
        files = relay.github.calls_to("GET", f"/repos/{UPSTREAM}/compare/*{pull.head_sha}")
        assert [call.status for call in files] == [200]

        await run_all(relay, OWN, build="failure")
        await seconds_until(relay, lambda: gate_state(relay, pull) == "failure")
        retry_comment = await write_comment(relay, pull, "/crcr retry")
        await seconds_until(relay, lambda: bool(retry_comment.reactions))
        assert was_obeyed(retry_comment)
        assert rerun_calls(relay, OWN) == [("rerun-failed-jobs", 201)]
        assert (check_state(relay, BACKEND, pull.head_sha), check_state(relay, JOB, pull.head_sha)) == (
            "absent",
            "absent",
        )

        held = open_effects(relay)
        assert {(row["target"], row["held_by"]) for row in held} == {
            ("checks/backend", "hour"),
            ("checks/job", "hour"),
        }
        assert all(row["due_at"] >= resets_at * 1e6 for row in held)
        assert relay.github.hour_left(UPSTREAM) < RESERVE

        await run_all(relay, OWN)
        await relay.pass_time(resets_at - relay.clock.now().timestamp())
        await seconds_until(relay, lambda: not open_effects(relay), most=60)
        assert (gate_state(relay, pull), check_state(relay, BACKEND, pull.head_sha)) == ("success", "success")
        assert gate_state(relay, old) == "pending"


LIMITS: dict[str, tuple[Callable[[RunningRelay], object], str, int]] = {
    "the reserve too is spent": (lambda relay: relay.github.spend_hour(UPSTREAM, leave=1), "hour", 3600),
    "a secondary limit": (
        lambda relay: relay.github.faults.secondary_limit(on=CREATES, retry_after_s=120, times=1), "secondary", 120,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("limit", "held_by", "wait_s"), LIMITS.values(), ids=LIMITS)
async def test_no_calls_are_made_during_a_full_limit_and_gates_are_published_first_after_it(
    tmp_path: Path, limit: Callable[[RunningRelay], object], held_by: str, wait_s: int
) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(OWN,)) as relay:
        old = await new_pull(relay)
        limit(relay)
        began = relay.clock.now().timestamp()
        pulls = [await new_pull(relay), await new_pull(relay)]
        await run_all(relay, OWN, build="failure")
        calls = len(relay.github.calls)
        await relay.pass_time(wait_s - 1)
        assert len(relay.github.calls) == calls
        assert [gate_state(relay, pull) for pull in (old, *pulls)] == ["pending", "absent", "absent"]
        assert {row["held_by"] for row in open_effects(relay)} == {held_by}

        await seconds_until(relay, lambda: not open_effects(relay), most=60)
        created = [
            (call_body(call)["name"], call.at.timestamp() - began) for call in check_calls(relay, "POST")
        ]
        created_after_limit = [(name, at) for name, at in created if at >= wait_s]
        assert [name for name, _ in created_after_limit[:2]] == [GATE, GATE]
        assert all(at <= wait_s + IN_TIME_S for name, at in created_after_limit if name == GATE)
        first = dict(reversed(created_after_limit))
        assert first[GATE] < first[BACKEND] < first[JOB]
        assert [gate_state(relay, pull) for pull in (old, *pulls)] == ["failure", "pending", "pending"]


async def test_in_an_hour_with_too_few_calls_gates_are_in_time_and_checks_are_delayed(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, LISTED, downstreams=(OWN,), job_checks="all") as relay:
        relay.github.limits.primary_per_hour = 120
        pulls, held = [], set()
        for number in range(8):
            pulls.append(await new_pull(relay))
            await seconds_until(
                relay,
                lambda: count_dispatches(relay) > number and gate_state(relay, pulls[-1]) == "pending",  # noqa: B023
            )
            await run_all(relay, OWN, build="failure")
            await seconds_until(relay, lambda: gate_state(relay, pulls[-1]) == "failure")
            held |= {(row["target"], row["held_by"]) for row in open_effects(relay)}
            await relay.pass_time(60)

        assert held == {("checks/backend", "hour"), ("checks/job", "hour")}
        relay.github.limits.primary_per_hour = 5_000
        await relay.pass_time(3600)
        await seconds_until(relay, lambda: not open_effects(relay), most=60)
        for pull in pulls:
            assert (check_state(relay, BACKEND, pull.head_sha), check_state(relay, JOB, pull.head_sha)) == (
                "failure",
                "failure",
            )
        refused = [call for call in relay.github.calls if call.status in {403, 429}]
        assert refused == []
