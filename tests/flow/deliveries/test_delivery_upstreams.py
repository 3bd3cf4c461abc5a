"""Two upstreams with different allowlists in one relay are independent."""

from pathlib import Path

from github_sim.github import Match
from support.github.dispatch_log import dispatched_events, row_states, running_worker, wait_until_true
from support.running_relay import repo, running_relay

ALLOWLISTS = {
    "pytorch-like/core": "L1:\n  - org/one\n  - org/both\n",
    "other-up/stream": "L2:\n  - org/both\n",
}
DOWNSTREAMS = ("org/one", "org/both")


async def test_each_upstreams_events_go_to_its_own_downstreams(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLISTS, downstreams=DOWNSTREAMS) as relay:
        first = await relay.github.open_pr("pytorch-like/core")
        second = await relay.github.open_pr("other-up/stream")
        await relay.drain()

        assert dispatched_events(relay.github, "org/one") == [("opened", first.head_sha)]
        levels = {
            dispatch.client_payload["relay"]["upstream"]: dispatch.client_payload["relay"]["level"]
            for dispatch in relay.github.dispatches("org/both")
        }
        assert levels == {"pytorch-like/core": "L1", "other-up/stream": "L2"}
        assert second.head_sha not in dict(dispatched_events(relay.github, "org/one")).values()


async def test_one_pull_request_number_in_two_upstreams_is_two_pull_requests(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLISTS, downstreams=DOWNSTREAMS) as relay:
        acts = relay.services.acts
        for name in ALLOWLISTS:
            await acts.pause(repo(name), who="ann", now=relay.clock.now())
        first = await relay.github.open_pr("pytorch-like/core")
        second = await relay.github.open_pr("other-up/stream")
        relay.clock.advance(1)
        await relay.github.close_pr(second)
        for name in ALLOWLISTS:
            await acts.pause(repo(name), who="ann", now=relay.clock.now(), lift=True)
        await relay.drain()

        assert first.number == second.number
        assert dispatched_events(relay.github, "org/one") == [("opened", first.head_sha)]
        assert sorted(dispatched_events(relay.github, "org/both")) == [
            ("closed", second.head_sha),
            ("opened", first.head_sha),
        ]


async def test_a_pause_suspension_or_bad_allowlist_of_one_upstream_does_not_affect_the_other(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, ALLOWLISTS, downstreams=DOWNSTREAMS) as relay:
        core, stream = (repo(name) for name in ALLOWLISTS)
        await relay.services.acts.pause(core, who="ann", now=relay.clock.now())
        await relay.services.targets.suspend(core, repo("org/both"), who="ann", now=relay.clock.now())
        relay.write_allowlist("}{", "pytorch-like.core.yml")
        await relay.refresh()
        await relay.github.open_pr(str(core))
        pr = await relay.github.open_pr(str(stream))
        await relay.drain()

        assert dispatched_events(relay.github, "org/both") == [("opened", pr.head_sha)]
        assert row_states(relay, "dispatches", upstream="pytorch-like/core") == ["waiting"]
        newest = [await relay.services.allowlists.newest(upstream) for upstream in (core, stream)]
        assert [version.good for version in newest if version] == [False, True]


async def test_a_target_that_hangs_for_one_upstream_is_still_dispatched_to_for_the_other(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, ALLOWLISTS, downstreams=DOWNSTREAMS) as relay:
        gate = relay.github.faults.hang(on=Match("POST", "/repos/org/both/dispatches"), times=1)
        async with running_worker(relay):
            await relay.github.open_pr("pytorch-like/core")
            await gate.reached.wait()
            pr = await relay.github.open_pr("other-up/stream")
            await wait_until_true(
                lambda: dispatched_events(relay.github, "org/both") == [("opened", pr.head_sha)]
            )
            gate.release()
            await wait_until_true(lambda: set(row_states(relay, "dispatches")) == {"sent"})


async def test_delisting_in_one_allowlist_cancels_only_the_queue_of_that_upstream(tmp_path: Path) -> None:
    async with running_relay(tmp_path, ALLOWLISTS, downstreams=DOWNSTREAMS) as relay:
        relay.github.faults.answer(500, on=Match("POST", "/repos/org/both/dispatches"), times=2)
        await relay.github.open_pr("pytorch-like/core")
        pr = await relay.github.open_pr("other-up/stream")
        await relay.drain()
        relay.write_allowlist("L1:\n  - org/one\n", "pytorch-like.core.yml")
        await relay.refresh()
        await relay.pass_time(60)

        assert dispatched_events(relay.github, "org/both") == [("opened", pr.head_sha)]
