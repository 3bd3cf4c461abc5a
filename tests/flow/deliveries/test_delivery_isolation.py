"""A failing target does not delay others; dispatches do not wait for a poll; a failing target is backed off."""

from pathlib import Path

from github_sim.github import Match
from support.github.dispatch_log import (
    BOTH,
    TWO,
    dispatch_attempts,
    dispatched_actions,
    dispatched_events,
    row_states,
    running_worker,
    wait_until_true,
)
from support.running_relay import UPSTREAM, running_relay

ONE = Match("POST", "/repos/org/one/dispatches")


async def test_fault_02_one_hanging_target_does_not_delay_the_other_199(tmp_path: Path) -> None:
    names = tuple(f"org{number % 5}/backend{number}" for number in range(200))
    allowlist = "L1:\n" + "".join(f"  - {name}\n" for name in names)
    async with running_relay(tmp_path, allowlist, downstreams=names) as relay:
        dead, *others = names
        gate = relay.github.faults.hang(on=Match("POST", f"/repos/{dead}/dispatches"))
        async with running_worker(relay):
            await relay.github.open_pr(UPSTREAM)
            await wait_until_true(lambda: all(dispatched_events(relay.github, name) for name in others))
            await relay.github.open_pr(UPSTREAM)
            await wait_until_true(
                lambda: all(len(dispatched_events(relay.github, name)) == 2 for name in others)
            )

            assert gate.reached.is_set()
            assert dispatched_events(relay.github, dead) == []
            gate.release()
            await wait_until_true(lambda: len(dispatched_events(relay.github, dead)) == 2)


async def test_fault_02_a_target_that_only_fails_does_not_delay_the_others(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE)
        for _ in range(3):
            await relay.github.open_pr(UPSTREAM)
        await relay.drain()

        assert dispatched_actions(relay.github, "org/two") == ["opened"] * 3
        assert dispatched_events(relay.github, "org/one") == []


async def test_a_slow_target_does_not_block_others_when_targets_exceed_worker_concurrency(
    tmp_path: Path,
) -> None:
    names = tuple(f"org/backend{number}" for number in range(12))
    allowlist = "L1:\n" + "".join(f"  - {name}\n" for name in names)
    async with running_relay(tmp_path, allowlist, downstreams=names, CRCR_WORKER_CONCURRENCY="2") as relay:
        relay.github.faults.hang(on=Match("POST", "/repos/org/backend0/dispatches"))
        async with running_worker(relay):
            await relay.github.open_pr(UPSTREAM)
            await wait_until_true(lambda: all(dispatched_events(relay.github, name) for name in names[1:]))


async def test_a_delivery_is_dispatched_at_once_without_waiting_for_a_poll(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        async with running_worker(relay):
            await relay.github.open_pr(UPSTREAM)
            await wait_until_true(lambda: len(relay.github.dispatches()) == 2)
            await relay.github.open_pr(UPSTREAM)
            await wait_until_true(lambda: len(relay.github.dispatches()) == 4)

        assert {dispatch.received_at for dispatch in relay.github.dispatches()} == {relay.clock.now()}


async def test_a_retry_runs_when_it_is_due_without_a_new_event(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=1)
        async with running_worker(relay):
            await relay.github.open_pr(UPSTREAM)
            await wait_until_true(lambda: row_states(relay, "effects", target="org/one", state="waiting"))

            def dispatched_after_a_tick() -> object:
                relay.clock.advance(0.1)
                return dispatched_events(relay.github, "org/one")

            await wait_until_true(dispatched_after_a_tick)


async def test_a_claimed_dispatch_cancelled_before_it_starts_is_neither_sent_nor_recorded_as_sent(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH, CRCR_WORKER_CONCURRENCY="1") as relay:
        gate = relay.github.faults.hang(on=ONE, times=1)
        async with running_worker(relay):
            pr = await relay.github.open_pr(UPSTREAM)
            await gate.reached.wait()
            relay.clock.advance(1)
            await relay.github.close_pr(pr)  # the other target's `opened` is claimed, and not begun
            gate.release()
            await wait_until_true(lambda: dispatched_actions(relay.github, "org/two") == ["closed"])
            await wait_until_true(lambda: "waiting" not in row_states(relay, "dispatches"))

        opened = {
            row["downstream"]: row["state"]
            for row in relay.rows("SELECT downstream, state FROM dispatches WHERE action = 'opened'")
        }
        assert opened == {"org/one": "sent", "org/two": "cancelled"}
        assert dispatched_actions(relay.github, "org/one") == ["opened", "closed"]


async def test_after_five_failures_a_target_is_backed_off_and_probed_by_one_dispatch(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE)
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        for seconds in (1.5, 3, 6, 12):
            await relay.pass_time(seconds)
        assert dispatch_attempts(relay.github, "org/one") == 5
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.pass_time(29)
        assert dispatch_attempts(relay.github, "org/one") == 5

        await relay.pass_time(1)
        assert dispatch_attempts(relay.github, "org/one") == 6
        await relay.pass_time(59)
        assert dispatch_attempts(relay.github, "org/one") == 6
        assert dispatched_actions(relay.github, "org/two") == ["opened", "opened"]


async def test_a_recovered_target_gets_the_newest_waiting_event_of_each_pull_request(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        fault = relay.github.faults.answer(502, on=ONE)
        first = await relay.github.open_pr(UPSTREAM)
        for seconds in (0, 1.5, 3, 6, 12, 24):
            await relay.pass_time(seconds)
        second = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(1)
        await relay.github.push_to_pr(first)
        relay.clock.advance(1)
        await relay.github.close_pr(second)
        relay.github.faults.remove(fault)
        await relay.pass_time(60)

        assert dispatched_events(relay.github, "org/one") == [
            ("synchronize", first.head_sha),
            ("closed", second.head_sha),
        ]
        assert row_states(relay, "effects", target="org/one", state="waiting") == []
