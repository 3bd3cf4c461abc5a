"""Excuses under attack: no history, report or crafted failure lets a pull request that breaks a job pass the gate."""

from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from crcr.record.schema.failures import failures
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, inserting
from github_sim.github import PullRequest
from support.downstream.self_reports import nightly_run, send_self_report, upstream_head
from support.github.checks import write_upstream_settings
from support.github.commands import audit_entries
from support.github.gated_upstream import (
    GATING,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    sweep_after,
)
from support.github.verdict_history import (
    BROKEN,
    JUDGED,
    OTHER,
    end_build,
    fail_pull,
    failed_tests,
    flake_on_base,
    flake_on_pull,
    push_base,
)
from support.running_relay import UPSTREAM, RunningRelay

MESSAGE = "RuntimeError: aten::foo has no kernel"
WITH_NIGHTS = JUDGED.replace("merge_group]", "merge_group, nightly]")


@pytest.fixture(autouse=True, params=["sqlite", "postgresql"])
def _store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)


@pytest.fixture(autouse=True)
def _excuses(tmp_path: Path) -> None:
    write_upstream_settings(tmp_path, excuses=["pre-existing", "flaky"])


def verdict_of(relay: RunningRelay, pull: PullRequest) -> tuple[str, str]:
    row = relay.rows(
        "SELECT verdict, confidence FROM failures WHERE head_sha = ? ORDER BY failure_id DESC", pull.head_sha
    )[0]
    return row["verdict"], row["confidence"]


# What breaks the job hides behind what is known


async def another_test_says_what_the_base_says(relay: RunningRelay) -> PullRequest:
    await push_base(relay)
    for _ in range(2):
        await push_base(relay, BROKEN, message=MESSAGE)
    return await fail_pull(relay, BROKEN, OTHER, message=MESSAGE)


async def one_of_two_tests_is_hardly_known(relay: RunningRelay) -> PullRequest:
    for tests in ([], [OTHER], [], [BROKEN], [BROKEN]):
        await push_base(relay, *tests)
    return await fail_pull(relay, BROKEN, OTHER)


async def pull_requests_fail_and_pass_alike(relay: RunningRelay) -> PullRequest:
    for author in ("ann", "ben", "cid"):
        await flake_on_pull(relay, BROKEN, author=author)
    return await fail_pull(relay, BROKEN)


async def passes_of_the_base_were_failures(relay: RunningRelay) -> PullRequest:
    """The base was broken and fixed. Re-runs of its broken commits reported success, and GitHub saw them fail."""
    for _ in range(2):
        run = await push_base(relay, BROKEN)
        await relay.github.rerun(run)
        await end_build(relay, run, BROKEN, conclusion="success", on_github="failure")
        await sweep_after(relay, 60)
    await push_base(relay)
    return await fail_pull(relay, BROKEN)


Story = Callable[[RunningRelay], Awaitable[PullRequest]]
STORIES: list[Story] = [
    another_test_says_what_the_base_says,
    one_of_two_tests_is_hardly_known,
    pull_requests_fail_and_pass_alike,
    passes_of_the_base_were_failures,
]


@pytest.mark.parametrize("story", STORIES)
async def test_a_regression_that_looks_known_is_not_excused(tmp_path: Path, story: Story) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        pull = await story(relay)
        await sweep_after(relay, 60)

        assert gate_state(relay, pull) == "failure"
        assert audit_entries(relay, "excuse") == []


async def test_a_known_flake_is_excused_until_it_fails_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        for _ in range(2):
            await flake_on_base(relay, BROKEN)
        pull = await fail_pull(relay, BROKEN)
        states, run = [gate_state(relay, pull)], newest_run(relay)
        await relay.github.rerun(run)
        await end_build(relay, run, BROKEN)

        assert [*states, gate_state(relay, pull)] == ["success", "failure"]
        assert verdict_of(relay, pull) == ("flaky", "medium")


@pytest.mark.parametrize(("tests", "state"), [([], "failure"), ([BROKEN], "success")])
async def test_a_change_that_lands_again_waits_for_the_result_of_its_revert(
    tmp_path: Path, tests: list[str], state: str
) -> None:
    """The base failed until the commit below the head, whose own result comes last."""
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        for broken in ([], [BROKEN], [BROKEN]):
            await push_base(relay, *broken)
        await relay.github.push(UPSTREAM, files={"base.txt": "reverted"})
        await relay.drain()
        revert = newest_run(relay)
        pull = await fail_pull(relay, BROKEN)
        states = [gate_state(relay, pull)]
        await end_build(relay, revert, *tests)

        assert [*states, gate_state(relay, pull)] == ["failure", state]


# History that strangers write


async def test_failures_of_others_do_not_hide_those_of_the_base(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        for tests in ([], [], [], [BROKEN], [BROKEN]):
            await push_base(relay, *tests)
        await fail_pull(relay, OTHER, author="mallory", files=["src/m.py"])
        await _repeat_newest_failure(relay, 300)
        pull = await fail_pull(relay, BROKEN)

        assert verdict_of(relay, pull) == ("pre-existing", "high")


async def test_an_excuse_ends_with_what_it_rests_on_however_many_failures_came_since(tmp_path: Path) -> None:
    """A re-run of the base's failure passes: what was pre-existing is flaky, which is no excuse here."""
    write_upstream_settings(tmp_path, excuses=["pre-existing"])
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        for tests in ([], [BROKEN], [BROKEN]):
            newest = await push_base(relay, *tests)
        pull = await fail_pull(relay, BROKEN)
        states = [gate_state(relay, pull)]
        await fail_pull(relay, OTHER, author="mallory", files=["src/m.py"])
        await _repeat_newest_failure(relay, 300)
        await relay.github.rerun(newest)
        await end_build(relay, newest)

        assert [*states, gate_state(relay, pull)] == ["success", "failure"]


async def _repeat_newest_failure(relay: RunningRelay, times: int) -> None:
    """As if its job had run that often; each run is a row."""
    newest = relay.rows("SELECT * FROM failures ORDER BY failure_id DESC LIMIT 1")[0]
    columns = [column.name for column in failures.columns if column.name != "failure_id"]
    add = Statement(inserting(failures, *columns))
    rows = [{name: newest[name] for name in columns} | {"run_id": f"again-{n}"} for n in range(times)]

    async def unit(tx: Tx) -> None:
        await tx.many(add, rows)

    await relay.services.database.write(unit)


async def test_a_night_is_no_result_of_another_night_or_of_another_branch(tmp_path: Path) -> None:
    """Reports that name no commit are of different commits, and all of the default branch."""
    async with gated_upstream(tmp_path, WITH_NIGHTS, downstreams=(GATING,)) as relay:
        for conclusion, tests in (("failure", [BROKEN]), ("success", []), ("failure", [BROKEN])):
            relay.clock.advance(3600)
            run = nightly_run(relay, GATING)
            answer = await send_self_report(relay, run, "build", conclusion, failed_tests=failed_tests(tests))
            assert answer.status_code == 200, answer.text
        await relay.drain()
        assert {row["passed_at"] for row in relay.rows("SELECT passed_at FROM failures")} == {None}

        relay.github.repository(UPSTREAM).branches["release"] = upstream_head(relay)
        verdicts = []
        for base in ("release", "main"):
            pull = await open_pull(relay, author=f"author-{base}", base=base, files=[f"src/{base}.py"])
            await end_build(relay, newest_run(relay), BROKEN)
            verdicts.append(verdict_of(relay, pull)[0])
        assert verdicts == ["unknown", "flaky"]
