"""An allowlist that is emptied by mistake: no dispatch is cancelled, or the cancelled ones can be replayed."""

from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest
from support.github.dispatch_log import BOTH, TWO, dispatched_actions, dispatched_events, row_states
from support.running_relay import UPSTREAM, RunningRelay, repo, running_relay

ONE = Match("POST", "/repos/org/one/dispatches")
ONLY_TWO = "L1:\n  - org/two\n"
APPROVED = "L1:\n  - org/one: {authors: approved}\n  - org/two\n"
AT_HOME = f"http://127.0.0.1:9/{UPSTREAM}/blob/main/allowlist.yml"


async def list_backends(relay: RunningRelay, text: str) -> None:
    relay.write_allowlist(text)
    await relay.refresh()
    await relay.drain()


async def replay(relay: RunningRelay, guid: str) -> int:
    return await relay.services.acts.replay(repo(UPSTREAM), guid, who="ann", now=relay.clock.now())


def last_delivery_guid(pull: PullRequest) -> str:
    assert pull.last_delivery is not None
    return pull.last_delivery.guid


@pytest.mark.parametrize("text", ["", "# L1: nobody\n", "{}\n"])
async def test_a_pushed_allowlist_without_levels_cancels_no_waiting_dispatch(
    tmp_path: Path, text: str
) -> None:
    async with running_relay(
        tmp_path,
        "",
        downstreams=BOTH,
        prepare=lambda github: github.write_file(UPSTREAM, "allowlist.yml", TWO),
        CRCR_ALLOWLIST=AT_HOME,
    ) as relay:
        relay.github.faults.answer(500, on=ONE, times=1)
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.github.push(UPSTREAM, files={"allowlist.yml": text})
        await relay.drain()
        await relay.pass_time(3600)

        assert ("opened", pull.head_sha) in dispatched_events(relay.github, "org/one")
        assert [
            row["good"] for row in relay.rows("SELECT good FROM allowlist_versions ORDER BY version")
        ] == [
            1,
            0,
        ]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_dispatches_cancelled_by_an_allowlist_change_are_replayed_to_a_relisted_backend(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRCR_TEST_STORE", store)
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=3)
        started_at = relay.clock.now()
        pulls = [await relay.github.open_pr(UPSTREAM) for _ in range(3)]
        await relay.drain()
        await list_backends(relay, ONLY_TWO)
        assert row_states(relay, "dispatches", downstream="org/one") == ["cancelled"] * 3
        assert [await replay(relay, last_delivery_guid(pull)) for pull in pulls] == [0, 0, 0]

        await list_backends(relay, TWO)
        await relay.github.close_pr(pulls[2])
        await relay.pass_time(3600)
        cut_off_guids = await relay.services.acts.find_cut_off(repo(UPSTREAM), started_at)
        assert cut_off_guids == [last_delivery_guid(pull) for pull in pulls[:2]]
        assert [await replay(relay, guid) for guid in cut_off_guids] == [1, 1]
        await relay.drain()

        assert [
            dispatched_events(relay.github, "org/one").count(("opened", pull.head_sha)) for pull in pulls
        ] == [1, 1, 0]
        assert dispatched_actions(relay.github, "org/two") == ["opened"] * 3 + ["closed"]
        assert await relay.services.acts.find_cut_off(repo(UPSTREAM), started_at) == []


async def test_a_replay_does_not_send_a_dispatch_that_is_held_for_approval(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        relay.github.faults.answer(500, on=ONE, times=1)
        pull = await relay.github.open_pr(UPSTREAM, author_association="NONE")
        await relay.drain()
        await list_backends(relay, ONLY_TWO)
        await list_backends(relay, APPROVED)
        assert await replay(relay, last_delivery_guid(pull)) == 0
        await relay.pass_time(3600)

        assert dispatched_events(relay.github, "org/one") == []
        [held] = relay.rows("SELECT state, reason FROM dispatches WHERE downstream = 'org/one'")
        assert held == {"state": "held", "reason": "approval"}
