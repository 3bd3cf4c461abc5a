"""A failing target loses no event: it is retried and arrives, or is parked and shown."""

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
THEM = ("org/one", "other/two")
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
async def test_fault_03_after_an_unknown_outcome_it_is_sent_again_and_marked(
    tmp_path: Path, fault: str
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=THEM) as relay:
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
        assert marks(relay) == {"org/one": ("sent", 1), "other/two": ("sent", 0)}


async def test_fault_03_a_lost_answer_may_double_the_dispatch_and_is_known_to(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=THEM) as relay:
        relay.github.faults.lose_answer(on=ONE, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(2)

        first, second = relay.github.dispatches("org/one")
        assert first.delivery_id == second.delivery_id
        assert marks(relay)["org/one"] == ("sent", 1)


async def test_fault_03_a_callback_that_proves_a_lost_answer_spares_the_repeat(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2:\n  - org/one\n", downstreams=("org/one",)) as relay:
        relay.github.faults.lose_answer(on=ONE, times=1)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(1)
        started = await relay.github.start_job(relay.github.runs("org/one")[0], "build")
        await relay.pass_time(600)

        assert started.status_code == 200
        assert dispatched_actions(relay.github, "org/one") == ["opened"]
        assert marks(relay)["org/one"][0] == "sent"


@pytest.mark.parametrize("limit", LIMITS)
async def test_fault_03_a_limit_is_waited_out_to_the_second_and_costs_no_attempt(
    tmp_path: Path, limit: str
) -> None:
    fault, told_to_wait = LIMITS[limit]
    async with running_relay(tmp_path, LISTED, downstreams=THEM) as relay:
        fault(relay.github.faults)
        pr = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        calls = len(relay.github.calls)
        assert newest_effect(relay, "org/one")["attempts"] == 0
        await relay.pass_time(told_to_wait - 1)
        assert len(relay.github.calls) == calls

        await relay.pass_time(2)
        assert dispatched_events(relay.github, "org/one") == [("opened", pr.head_sha)]
        assert dispatched_events(relay.github, "other/two") == [("opened", pr.head_sha)]
        assert marks(relay)["org/one"] == ("sent", 0)


async def test_fault_03_a_limit_holds_back_the_whole_installation_and_no_other(tmp_path: Path) -> None:
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


async def test_fault_03_limits_that_follow_one_another_are_waited_out_longer(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=THEM) as relay:
        relay.github.faults.secondary_limit(retry_after_s=None, on=ONE, times=2)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(61)
        await relay.pass_time(100)
        assert dispatch_attempts(relay.github, "org/one") == 2

        await relay.pass_time(30)
        assert dispatched_actions(relay.github, "org/one") == ["opened"]


async def test_a_refusal_for_good_parks_the_dispatch_with_what_github_said(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=THEM) as relay:
        relay.github.faults.answer(403, message="Resource not accessible by integration", on=ONE)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(3600)

        assert dispatch_attempts(relay.github, "org/one") == 1
        parked = newest_effect(relay, "org/one")
        assert parked["state"] == "parked"
        assert "Resource not accessible by integration" in str(parked["last_error"])


async def test_after_24_hours_of_faults_it_is_parked_with_its_last_error_and_can_be_retried(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=THEM) as relay:
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
        again = await relay.services.acts.retry_parked(
            repo(UPSTREAM), ParkedFilter(target=repo("org/one")), who="ann", now=relay.clock.now()
        )
        await relay.drain()
        assert (again, dispatched_actions(relay.github, "org/one")) == (1, ["opened"])
        assert marks(relay)["org/one"] == ("sent", 1)


async def test_parked_effects_are_retried_by_id_by_target_or_by_time(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=THEM) as relay:
        relay.github.faults.answer(422, message="no", on=Match("POST", "/repos/*/dispatches"), times=4)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        noon = relay.clock.advance(3600)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        async def retry(which: ParkedFilter) -> int:
            return await relay.services.acts.retry_parked(repo(UPSTREAM), which, who="ann", now=noon)

        oldest = relay.rows("SELECT min(effect_id) AS it FROM effects WHERE state = 'parked'")[0]["it"]
        assert await retry(ParkedFilter(effect_id=oldest)) == 1
        assert await retry(ParkedFilter(since=noon, target=repo("org/one"))) == 1
        assert await retry(ParkedFilter(until=noon)) == 2
        assert await retry(ParkedFilter()) == 0
        await relay.drain()
        assert [dispatched_actions(relay.github, name) for name in THEM] == [["opened"] * 2] * 2
        audited = relay.rows("SELECT who, act, detail FROM audit WHERE act = 'retry'")
        assert [(each["who"], len(json.loads(each["detail"])["ids"])) for each in audited] == [
            ("ann", 1),
            ("ann", 1),
            ("ann", 2),
        ]


def marks(relay: RunningRelay) -> dict[str, tuple[str, int]]:
    """State and doubt of each downstream's dispatch."""
    rows = relay.rows("SELECT downstream, state, unsure FROM dispatches")
    return {row["downstream"]: (row["state"], row["unsure"]) for row in rows}
