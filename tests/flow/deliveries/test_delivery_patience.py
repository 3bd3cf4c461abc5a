"""What waits for a long time, is paused, or is retried by hand: nothing is lost, and nothing stale is sent."""

from pathlib import Path

from crcr.decide.model import RepoName
from crcr.record.admin.operations import ParkedFilter
from github_sim.world.faults import Match
from support.github.dispatch_log import BOTH, TWO, row_states, running_worker, wait_until_true
from support.stage import UPSTREAM, Stage, stage

CORE = RepoName(UPSTREAM)
DISPATCHES = Match(method="POST", path="*/dispatches")
DAY = 24 * 3600


def told(it: Stage, name: str = "org/one") -> list[str]:
    return [each.client_payload["payload"]["action"] for each in it.github.dispatches(name)]


async def test_what_waited_a_day_before_its_first_try_has_a_day_left(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as it:
        await it.services.acts.pause(CORE, who="ann", now=it.clock.now())
        await it.github.open_pr(UPSTREAM, title="Held back")
        await it.pass_time(1.5 * DAY)
        it.github.faults.answer(503, on=DISPATCHES, times=1)
        await it.services.acts.pause(CORE, who="ann", now=it.clock.now(), lift=True)
        await it.act()
        await it.pass_time(5)

        assert told(it) == ["opened"]


async def test_a_draft_held_longer_than_bodies_are_kept_is_still_sent(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2:\n  - org/one: {drafts: false}", downstreams=("org/one",)) as it:
        pr = await it.github.open_pr(UPSTREAM, title="Slow", draft=True)
        it.clock.advance(40 * DAY)
        await it.services.sweeper.forget()
        await it.github.ready_for_review(pr)
        await it.act()

        assert told(it) == ["opened"]


async def test_a_draft_that_also_needs_approval_is_not_let_out_by_being_ready(tmp_path: Path) -> None:
    allowlist = "L2:\n  - org/one: {drafts: false, authors: approved}"
    async with stage(tmp_path, allowlist, downstreams=("org/one",)) as it:
        pr = await it.github.open_pr(UPSTREAM, title="By a stranger", draft=True)
        await it.github.ready_for_review(pr)
        await it.act()

        assert told(it) == []


async def test_fault_08_closing_ends_dead_letters_too_so_a_retry_sends_nothing_stale(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as it:
        it.github.faults.answer(422, on=DISPATCHES, times=1)
        pr = await it.github.open_pr(UPSTREAM, title="Refused")
        await it.act()
        await it.github.close_pr(pr)
        await it.act()
        retried = await it.services.acts.retry_parked(CORE, ParkedFilter(), who="ann", now=it.clock.now())
        await it.act()

        assert (retried, told(it)) == (0, ["closed"])


async def test_pausing_stops_what_was_claimed_and_not_yet_sent(tmp_path: Path) -> None:
    async with stage(tmp_path, TWO, downstreams=BOTH, CRCR_WORKER_CONCURRENCY="1") as it:
        gate = it.github.faults.hang(on=DISPATCHES, times=1)
        async with running_worker(it):
            await it.github.open_pr(UPSTREAM, title="Just in time")
            await gate.reached.wait()
            await it.services.acts.pause(CORE, who="ann", now=it.clock.now())
            gate.release()
            await wait_until_true(lambda: "waiting" in row_states(it, "effects", kind="send_dispatch"))
        assert sorted(len(told(it, name)) for name in BOTH) == [0, 1]

        await it.services.acts.pause(CORE, who="ann", now=it.clock.now(), lift=True)
        await it.pass_time(10)
        assert [told(it, name) for name in BOTH] == [["opened"], ["opened"]]


async def test_fault_26_an_upstream_whose_name_a_stranger_has_is_not_listened_to(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as it:
        await it.github.open_pr(UPSTREAM, title="The real one")
        await it.act()
        it.github.replace_repository(UPSTREAM)
        await it.github.install(UPSTREAM)
        pr = await it.github.open_pr(UPSTREAM, title="The stranger")
        await it.act()

        assert pr.last_delivery is not None
        assert "another repository id" in pr.last_delivery.answer_body
        assert told(it) == ["opened"]
        [alarm] = it.rows("SELECT who FROM audit WHERE act = 'upstream_identity_changed'")
        assert alarm["who"] == "relay"

        accepted = it.github.repository(UPSTREAM).id
        await it.services.targets.rebind(CORE, CORE, accepted, who="ann", now=it.clock.now())
        await it.github.open_pr(UPSTREAM, title="Accepted")
        await it.act()
        assert told(it) == ["opened", "opened"]


async def test_a_hidden_name_is_not_told_by_the_problems_of_a_bad_allowlist(tmp_path: Path) -> None:
    allowlist = "L2:\n  - org/one\n  - org/hidden: {visibility: hidden}"
    async with stage(tmp_path, allowlist, downstreams=("org/one", "org/hidden")) as it:
        it.write_allowlist("L2:\n  - org/one\n  - org/hidden: {visibility: hiden}\nL1:\n  - org/hidden")
        await it.refresh()
        for path in ("/crcr", "/api/v1/summary", "/api/v1/allowlist"):
            answer = await it.http.get(path)
            assert answer.status_code == 200
            assert "org/hidden" not in answer.text
