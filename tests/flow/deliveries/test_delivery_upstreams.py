"""Two upstreams with different allowlists in one relay stay apart."""

from pathlib import Path

from github_sim.github import Match
from support.github.dispatch_log import dispatched_events, row_states, running_worker, wait_until_true
from support.stage import repo, stage

ALLOWLISTS = {
    "pytorch-like/core": "L1:\n  - org/one\n  - org/both\n",
    "other-up/stream": "L2:\n  - org/both\n",
}
THEM = ("org/one", "org/both")


async def test_each_upstreams_events_go_to_its_own_downstreams(tmp_path: Path) -> None:
    async with stage(tmp_path, ALLOWLISTS, downstreams=THEM) as it:
        first = await it.github.open_pr("pytorch-like/core")
        second = await it.github.open_pr("other-up/stream")
        await it.act()

        assert dispatched_events(it.github, "org/one") == [("opened", first.head_sha)]
        levels = {
            each.client_payload["relay"]["upstream"]: each.client_payload["relay"]["level"]
            for each in it.github.dispatches("org/both")
        }
        assert levels == {"pytorch-like/core": "L1", "other-up/stream": "L2"}
        assert second.head_sha not in dict(dispatched_events(it.github, "org/one")).values()


async def test_the_same_pull_request_number_is_two_pull_requests(tmp_path: Path) -> None:
    async with stage(tmp_path, ALLOWLISTS, downstreams=THEM) as it:
        acts = it.services.acts
        for name in ALLOWLISTS:
            await acts.pause(repo(name), who="ann", now=it.clock.now())
        first = await it.github.open_pr("pytorch-like/core")
        second = await it.github.open_pr("other-up/stream")
        it.clock.advance(1)
        await it.github.close_pr(second)
        for name in ALLOWLISTS:
            await acts.pause(repo(name), who="ann", now=it.clock.now(), lift=True)
        await it.act()

        assert first.number == second.number
        assert dispatched_events(it.github, "org/one") == [("opened", first.head_sha)]
        assert sorted(dispatched_events(it.github, "org/both")) == [
            ("closed", second.head_sha),
            ("opened", first.head_sha),
        ]


async def test_a_pause_a_suspension_or_a_bad_allowlist_of_one_is_not_the_others(tmp_path: Path) -> None:
    async with stage(tmp_path, ALLOWLISTS, downstreams=THEM) as it:
        core, stream = (repo(name) for name in ALLOWLISTS)
        await it.services.acts.pause(core, who="ann", now=it.clock.now())
        await it.services.targets.suspend(core, repo("org/both"), who="ann", now=it.clock.now())
        it.write_allowlist("}{", "pytorch-like.core.yml")
        await it.refresh()
        await it.github.open_pr(str(core))
        pr = await it.github.open_pr(str(stream))
        await it.act()

        assert dispatched_events(it.github, "org/both") == [("opened", pr.head_sha)]
        assert row_states(it, "dispatches", upstream="pytorch-like/core") == ["waiting"]
        newest = [await it.services.allowlists.newest(each) for each in (core, stream)]
        assert [each.good for each in newest if each] == [False, True]


async def test_one_target_may_hang_for_one_upstream_and_be_served_for_the_other(tmp_path: Path) -> None:
    async with stage(tmp_path, ALLOWLISTS, downstreams=THEM) as it:
        gate = it.github.faults.hang(on=Match("POST", "/repos/org/both/dispatches"), times=1)
        async with running_worker(it):
            await it.github.open_pr("pytorch-like/core")
            await gate.reached.wait()
            pr = await it.github.open_pr("other-up/stream")
            await wait_until_true(
                lambda: dispatched_events(it.github, "org/both") == [("opened", pr.head_sha)]
            )
            gate.release()
            await wait_until_true(lambda: set(row_states(it, "dispatches")) == {"sent"})


async def test_leaving_one_allowlist_ends_only_that_queue(tmp_path: Path) -> None:
    async with stage(tmp_path, ALLOWLISTS, downstreams=THEM) as it:
        it.github.faults.answer(500, on=Match("POST", "/repos/org/both/dispatches"), times=2)
        await it.github.open_pr("pytorch-like/core")
        pr = await it.github.open_pr("other-up/stream")
        await it.act()
        it.write_allowlist("L1:\n  - org/one\n", "pytorch-like.core.yml")
        await it.refresh()
        await it.pass_time(60)

        assert dispatched_events(it.github, "org/both") == [("opened", pr.head_sha)]
