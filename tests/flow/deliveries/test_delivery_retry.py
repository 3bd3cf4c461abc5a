"""A failing target loses no event: the dispatch is retried until it arrives, or is parked and shown."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from crcr.record.admin.operations import ParkedFilter
from github_sim.github import Faults, Match
from support.github.dispatch_log import (
    dispatch_attempts,
    dispatched_actions,
    dispatched_events,
    newest_effect,
)
from support.running_relay import UPSTREAM, RunningRelay, repo, running_relay

LISTED = "L1:\n  - org/one\n  - other/two\n"
DOWNSTREAMS = ("org/one", "other/two")
ONE = Match("POST", "/repos/org/one/dispatches")

Fault = Callable[[Faults], object]
UNKNOWN: dict[str, Fault] = {
    "500": lambda faults: faults.answer(500, on=ONE, times=1),
    "503 of a proxy": lambda faults: faults.answer(503, on=ONE, times=1),
    "request lost": lambda faults: faults.lose_request(on=ONE, times=1),
}
LIMITS: dict[str, tuple[Fault, int]] = {
    "403 with Retry-After": (lambda f: f.secondary_limit(retry_after_s=90, on=ONE, times=1), 90),
    "403 secondary without": (lambda f: f.secondary_limit(retry_after_s=None, on=ONE, times=1), 60),
    "429 with Retry-After": (lambda f: f.secondary_limit(status=429, retry_after_s=7, on=ONE, times=1), 7),
    "429 without": (lambda f: f.answer(429, message="slow down", on=ONE, times=1), 60),
    "primary limit": (lambda f: f.primary_limit(reset_in_s=600, on=ONE, times=1), 600),
    "primary limit as 429": (lambda f: f.primary_limit(status=429, reset_in_s=600, on=ONE, times=1), 600),
}


@pytest.mark.parametrize("fault", UNKNOWN)
async def test_fault_03_a_dispatch_of_unknown_outcome_is_retried_and_marked_unsure(
    tmp_path: Path, fault: str
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        UNKNOWN[fault](relay.github.faults)
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert (dispatched_events(relay.github, "org/one"), dispatch_attempts(relay.github, "org/one")) == (
            [],
            1,
        )
        await relay.pass_time(1.4)
        assert dispatch_attempts(relay.github, "org/one") == 1

        await relay.pass_time(0.1)
        assert dispatched_events(relay.github, "org/one") == [("opened", pr.head_sha)]
        assert states_and_doubts(relay) == {"org/one": ("sent", 1), "other/two": ("sent", 0)}


async def test_fault_03_a_lost_answer_can_duplicate_the_dispatch_and_marks_it_unsure(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.lose_answer(on=ONE, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(2)

        first, second = relay.github.dispatches("org/one")
        assert first.delivery_id == second.delivery_id
        assert states_and_doubts(relay)["org/one"] == ("sent", 1)


async def test_fault_03_a_callback_that_proves_the_dispatch_cancels_its_retry(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2:\n  - org/one\n", downstreams=("org/one",)) as relay:
        relay.github.faults.lose_answer(on=ONE, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(1)
        started = await relay.github.start_job(relay.github.runs("org/one")[0], "build")
        await relay.pass_time(600)

        assert started.status_code == 200
        assert dispatched_actions(relay.github, "org/one") == ["opened"]
        assert states_and_doubts(relay)["org/one"][0] == "sent"


@pytest.mark.parametrize("limit", LIMITS)
async def test_fault_03_a_rate_limit_is_waited_out_to_the_second_and_uses_no_attempt(
    tmp_path: Path, limit: str
) -> None:
    fault, wait_s = LIMITS[limit]
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        fault(relay.github.faults)
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        calls = len(relay.github.calls)
        assert newest_effect(relay, "org/one")["attempts"] == 0
        await relay.pass_time(wait_s - 1)
        assert len(relay.github.calls) == calls

        await relay.pass_time(2)
        assert dispatched_events(relay.github, "org/one") == [("opened", pr.head_sha)]
        assert dispatched_events(relay.github, "other/two") == [("opened", pr.head_sha)]
        assert states_and_doubts(relay)["org/one"] == ("sent", 0)


async def test_fault_03_a_rate_limit_holds_back_its_whole_installation_and_no_other(tmp_path: Path) -> None:
    listed, them = "L1:\n  - org/one\n  - org/mate\n  - other/two\n", ("org/one", "org/mate", "other/two")
    async with running_relay(tmp_path, listed, downstreams=them) as relay:
        relay.github.faults.secondary_limit(retry_after_s=30, on=ONE, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert dispatched_actions(relay.github, "other/two") == ["opened", "opened"]
        assert (
            dispatch_attempts(relay.github, "org/one"),
            len(dispatched_events(relay.github, "org/mate")),
        ) in {
            (1, 0),
            (1, 1),
        }

        await relay.pass_time(31)
        assert [len(dispatched_events(relay.github, name)) for name in them] == [2, 2, 2]


async def test_fault_03_consecutive_rate_limits_are_waited_out_longer(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.secondary_limit(retry_after_s=None, on=ONE, times=2)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(61)
        await relay.pass_time(100)
        assert dispatch_attempts(relay.github, "org/one") == 2

        await relay.pass_time(30)
        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_a_permanent_refusal_parks_the_dispatch_with_githubs_message(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.answer(403, message="Resource not accessible by integration", on=ONE)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(3600)

        assert dispatch_attempts(relay.github, "org/one") == 1
        parked = newest_effect(relay, "org/one")
        assert parked["state"] == "parked"
        assert "Resource not accessible by integration" in str(parked["last_error"])


async def test_after_24_hours_of_failures_a_dispatch_is_parked_with_its_last_error_and_can_be_retried(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        fault = relay.github.faults.answer(500, message="the disk is full", on=ONE)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        for _ in range(23 * 4):
            await relay.pass_time(900)
        assert newest_effect(relay, "org/one")["state"] == "waiting"
        for _ in range(2 * 4):
            await relay.pass_time(900)
        parked = newest_effect(relay, "org/one")
        assert (parked["state"], "the disk is full" in str(parked["last_error"])) == ("parked", True)

        relay.github.faults.remove(fault)
        retried_count = await relay.services.acts.retry_parked(
            repo(UPSTREAM), ParkedFilter(target=repo("org/one")), who="ann", now=relay.clock.now()
        )
        await relay.drain()
        assert (retried_count, dispatched_actions(relay.github, "org/one")) == (1, ["opened"])
        assert states_and_doubts(relay)["org/one"] == ("sent", 1)


async def test_parked_effects_are_retried_by_id_by_target_or_by_time(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.answer(422, message="no", on=Match("POST", "/repos/*/dispatches"), times=4)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        noon = relay.clock.advance(3600)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        async def retry(parked_filter: ParkedFilter) -> int:
            return await relay.services.acts.retry_parked(repo(UPSTREAM), parked_filter, who="ann", now=noon)

        oldest = relay.rows("SELECT min(effect_id) AS it FROM effects WHERE state = 'parked'")[0]["it"]
        assert await retry(ParkedFilter(effect_id=oldest)) == 1
        assert await retry(ParkedFilter(since=noon, target=repo("org/one"))) == 1
        assert await retry(ParkedFilter(until=noon)) == 2
        assert await retry(ParkedFilter()) == 0
        await relay.drain()
        assert [dispatched_actions(relay.github, name) for name in DOWNSTREAMS] == [["opened"] * 2] * 2
        audited = relay.rows("SELECT who, act, detail FROM audit WHERE act = 'retry'")
        assert [(row["who"], len(json.loads(row["detail"])["ids"])) for row in audited] == [
            ("ann", 1),
            ("ann", 1),
            ("ann", 2),
        ]


def states_and_doubts(relay: RunningRelay) -> dict[str, tuple[str, int]]:
    """State and `unsure` mark of each downstream's dispatch."""
    rows = relay.rows("SELECT downstream, state, unsure FROM dispatches")
    return {row["downstream"]: (row["state"], row["unsure"]) for row in rows}
