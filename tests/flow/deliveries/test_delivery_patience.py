"""Dispatches that wait for a long time, are paused, or are retried by hand: none is lost, no stale one is sent."""

from pathlib import Path

from crcr.decide.model import RepoName
from crcr.record.admin.operations import ParkedFilter
from github_sim.world.faults import Match
from support.github.dispatch_log import BOTH, TWO, row_states, running_worker, wait_until_true
from support.running_relay import UPSTREAM, RunningRelay, running_relay

CORE = RepoName(UPSTREAM)
DISPATCHES = Match(method="POST", path="*/dispatches")
DAY = 24 * 3600


def dispatched_actions(relay: RunningRelay, name: str = "org/one") -> list[str]:
    return [dispatch.client_payload["payload"]["action"] for dispatch in relay.github.dispatches(name)]


async def test_retries_last_a_day_from_the_first_attempt_not_from_the_event(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as relay:
        await relay.services.acts.pause(CORE, who="ann", now=relay.clock.now())
        await relay.github.open_pr(UPSTREAM, title="Held back")
        await relay.pass_time(1.5 * DAY)
        relay.github.faults.answer(503, on=DISPATCHES, times=1)
        await relay.services.acts.pause(CORE, who="ann", now=relay.clock.now(), lift=True)
        await relay.drain()
        await relay.pass_time(5)

        assert dispatched_actions(relay) == ["opened"]


async def test_a_draft_held_longer_than_bodies_are_kept_is_still_sent(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "L2:\n  - org/one: {drafts: false}", downstreams=("org/one",)
    ) as relay:
        pr = await relay.github.open_pr(UPSTREAM, title="Slow", draft=True)
        relay.clock.advance(40 * DAY)
        await relay.services.sweeper.forget()
        await relay.github.ready_for_review(pr)
        await relay.drain()

        assert dispatched_actions(relay) == ["opened"]


async def test_a_draft_that_also_needs_approval_is_not_released_by_ready_for_review(tmp_path: Path) -> None:
    allowlist = "L2:\n  - org/one: {drafts: false, authors: approved}"
    async with running_relay(tmp_path, allowlist, downstreams=("org/one",)) as relay:
        pr = await relay.github.open_pr(UPSTREAM, title="By a stranger", draft=True)
        await relay.github.ready_for_review(pr)
        await relay.drain()

        assert dispatched_actions(relay) == []


async def test_fault_08_closing_also_cancels_parked_dispatches_so_that_a_retry_sends_nothing_stale(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as relay:
        relay.github.faults.answer(422, on=DISPATCHES, times=1)
        pr = await relay.github.open_pr(UPSTREAM, title="Refused")
        await relay.drain()
        await relay.github.close_pr(pr)
        await relay.drain()
        retried = await relay.services.acts.retry_parked(
            CORE, ParkedFilter(), who="ann", now=relay.clock.now()
        )
        await relay.drain()

        assert (retried, dispatched_actions(relay)) == (0, ["closed"])


async def test_pausing_stops_dispatches_that_are_claimed_and_not_yet_sent(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH, CRCR_WORKER_CONCURRENCY="1") as relay:
        gate = relay.github.faults.hang(on=DISPATCHES, times=1)
        async with running_worker(relay):
            await relay.github.open_pr(UPSTREAM, title="Just in time")
            await gate.reached.wait()
            await relay.services.acts.pause(CORE, who="ann", now=relay.clock.now())
            gate.release()
            await wait_until_true(lambda: "waiting" in row_states(relay, "effects", kind="send_dispatch"))
        assert sorted(len(dispatched_actions(relay, name)) for name in BOTH) == [0, 1]

        await relay.services.acts.pause(CORE, who="ann", now=relay.clock.now(), lift=True)
        await relay.pass_time(10)
        assert [dispatched_actions(relay, name) for name in BOTH] == [["opened"], ["opened"]]


async def test_fault_26_webhooks_of_a_stranger_who_took_an_upstreams_name_are_ignored(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as relay:
        await relay.github.open_pr(UPSTREAM, title="The real one")
        await relay.drain()
        relay.github.replace_repository(UPSTREAM)
        await relay.github.install(UPSTREAM)
        pr = await relay.github.open_pr(UPSTREAM, title="The stranger")
        await relay.drain()

        assert pr.last_delivery is not None
        assert "another repository id" in pr.last_delivery.answer_body
        assert dispatched_actions(relay) == ["opened"]
        [alarm] = relay.rows("SELECT who FROM audit WHERE act = 'upstream_identity_changed'")
        assert alarm["who"] == "relay"

        accepted = relay.github.repository(UPSTREAM).id
        await relay.services.targets.rebind(CORE, CORE, accepted, who="ann", now=relay.clock.now())
        await relay.github.open_pr(UPSTREAM, title="Accepted")
        await relay.drain()
        assert dispatched_actions(relay) == ["opened", "opened"]


async def test_problems_of_a_bad_allowlist_do_not_reveal_a_hidden_name(tmp_path: Path) -> None:
    allowlist = "L2:\n  - org/one\n  - org/hidden: {visibility: hidden}"
    async with running_relay(tmp_path, allowlist, downstreams=("org/one", "org/hidden")) as relay:
        relay.write_allowlist("L2:\n  - org/one\n  - org/hidden: {visibility: hiden}\nL1:\n  - org/hidden")
        await relay.refresh()
        for path in ("/crcr", "/api/v1/summary", "/api/v1/allowlist"):
            answer = await relay.http.get(path)
            assert answer.status_code == 200
            assert "org/hidden" not in answer.text
