"""An allowlist that lost its entries by a slip: nothing is cancelled, or what was cancelled is sent again."""

from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest
from support.github.dispatch_log import BOTH, TWO, dispatched_actions, dispatched_events, row_states
from support.stage import UPSTREAM, Stage, repo, stage

ONE = Match("POST", "/repos/org/one/dispatches")
ONLY_TWO = "L1:\n  - org/two\n"
APPROVED = "L1:\n  - org/one: {authors: approved}\n  - org/two\n"
AT_HOME = f"http://127.0.0.1:9/{UPSTREAM}/blob/main/allowlist.yml"


async def list_backends(it: Stage, text: str) -> None:
    it.write_allowlist(text)
    await it.refresh()
    await it.act()


async def replay(it: Stage, guid: str) -> int:
    return await it.services.acts.replay(repo(UPSTREAM), guid, who="ann", now=it.clock.now())


def guid_of(pull: PullRequest) -> str:
    assert pull.last_delivery is not None
    return pull.last_delivery.guid


@pytest.mark.parametrize("text", ["", "# L1: nobody\n", "{}\n"])
async def test_a_push_of_a_file_without_levels_cancels_nothing_that_waits(tmp_path: Path, text: str) -> None:
    async with stage(
        tmp_path,
        "",
        downstreams=BOTH,
        prepare=lambda github: github.write_file(UPSTREAM, "allowlist.yml", TWO),
        CRCR_ALLOWLIST=AT_HOME,
    ) as it:
        it.github.faults.answer(500, on=ONE, times=1)
        pull = await it.github.open_pr(UPSTREAM)
        await it.act()
        await it.github.push(UPSTREAM, files={"allowlist.yml": text})
        await it.act()
        await it.pass_time(3600)

        assert ("opened", pull.head_sha) in dispatched_events(it.github, "org/one")
        assert [row["good"] for row in it.rows("SELECT good FROM allowlist_versions ORDER BY version")] == [
            1,
            0,
        ]


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
async def test_what_an_allowlist_change_cancelled_is_sent_to_the_backend_that_is_listed_again(
    tmp_path: Path, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CRCR_TEST_STORE", store)
    async with stage(tmp_path, TWO, downstreams=BOTH) as it:
        it.github.faults.answer(500, on=ONE, times=3)
        begun = it.clock.now()
        pulls = [await it.github.open_pr(UPSTREAM) for _ in range(3)]
        await it.act()
        await list_backends(it, ONLY_TWO)
        assert row_states(it, "dispatches", downstream="org/one") == ["cancelled"] * 3
        assert [await replay(it, guid_of(pull)) for pull in pulls] == [0, 0, 0]

        await list_backends(it, TWO)
        await it.github.close_pr(pulls[2])
        await it.pass_time(3600)
        found = await it.services.acts.find_cut_off(repo(UPSTREAM), begun)
        assert found == [guid_of(pull) for pull in pulls[:2]]
        assert [await replay(it, guid) for guid in found] == [1, 1]
        await it.act()

        assert [
            dispatched_events(it.github, "org/one").count(("opened", pull.head_sha)) for pull in pulls
        ] == [1, 1, 0]
        assert dispatched_actions(it.github, "org/two") == ["opened"] * 3 + ["closed"]
        assert await it.services.acts.find_cut_off(repo(UPSTREAM), begun) == []


async def test_a_replay_sends_nothing_that_still_waits_for_an_approval(tmp_path: Path) -> None:
    async with stage(tmp_path, TWO, downstreams=BOTH) as it:
        it.github.faults.answer(500, on=ONE, times=1)
        pull = await it.github.open_pr(UPSTREAM, author_association="NONE")
        await it.act()
        await list_backends(it, ONLY_TWO)
        await list_backends(it, APPROVED)
        assert await replay(it, guid_of(pull)) == 0
        await it.pass_time(3600)

        assert dispatched_events(it.github, "org/one") == []
        [held] = it.rows("SELECT state, reason FROM dispatches WHERE downstream = 'org/one'")
        assert held == {"state": "held", "reason": "approval"}
