"""Attacks on excuses: no history, report or crafted failure lets a pull request that breaks a job pass the gate."""

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
WITH_NIGHTLIES = JUDGED.replace("merge_group]", "merge_group, nightly]")


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


# Regressions that resemble a known failure


async def another_test_fails_with_the_base_message(relay: RunningRelay) -> PullRequest:
    await push_base(relay)
    for _ in range(2):
        await push_base(relay, BROKEN, message=MESSAGE)
    return await fail_pull(relay, BROKEN, OTHER, message=MESSAGE)


async def one_of_two_failures_has_little_history(relay: RunningRelay) -> PullRequest:
    for tests in ([], [OTHER], [], [BROKEN], [BROKEN]):
        await push_base(relay, *tests)
    return await fail_pull(relay, BROKEN, OTHER)


async def only_pull_requests_show_the_flake(relay: RunningRelay) -> PullRequest:
    for author in ("ann", "ben", "cid"):
        await flake_on_pull(relay, BROKEN, author=author)
    return await fail_pull(relay, BROKEN)


async def reported_passes_of_the_base_failed_on_github(relay: RunningRelay) -> PullRequest:
    """The base was broken and fixed. Re-runs of its broken commits reported success but failed on GitHub."""
    for _ in range(2):
        run = await push_base(relay, BROKEN)
        await relay.github.rerun(run)
        await end_build(relay, run, BROKEN, conclusion="success", on_github="failure")
        await sweep_after(relay, 60)
    await push_base(relay)
    return await fail_pull(relay, BROKEN)


Story = Callable[[RunningRelay], Awaitable[PullRequest]]
STORIES: list[Story] = [
    another_test_fails_with_the_base_message,
    one_of_two_failures_has_little_history,
    only_pull_requests_show_the_flake,
    reported_passes_of_the_base_failed_on_github,
]


@pytest.mark.parametrize("story", STORIES)
async def test_a_regression_that_resembles_a_known_failure_is_not_excused(
    tmp_path: Path, story: Story
) -> None:
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
async def test_a_relanded_change_is_not_excused_before_the_result_of_its_revert(
    tmp_path: Path, tests: list[str], state: str
) -> None:
    """The base failed up to the commit before its head; the result of the head arrives last."""
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


# History from other authors


async def test_many_failures_of_other_authors_do_not_hide_failures_of_the_base(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, JUDGED, downstreams=(GATING,)) as relay:
        for tests in ([], [], [], [BROKEN], [BROKEN]):
            await push_base(relay, *tests)
        await fail_pull(relay, OTHER, author="mallory", files=["src/m.py"])
        await _repeat_newest_failure(relay, 300)
        pull = await fail_pull(relay, BROKEN)

        assert verdict_of(relay, pull) == ("pre-existing", "high")


async def test_an_excuse_ends_with_its_evidence_regardless_of_many_newer_failures(tmp_path: Path) -> None:
    """A re-run of the base's failure passes: the verdict pre-existing becomes flaky, which is not excused here."""
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
    """Insert the newest failure again, once per run, as if its job had run that often."""
    newest = relay.rows("SELECT * FROM failures ORDER BY failure_id DESC LIMIT 1")[0]
    columns = [column.name for column in failures.columns if column.name != "failure_id"]
    add = Statement(inserting(failures, *columns))
    rows = [{name: newest[name] for name in columns} | {"run_id": f"again-{n}"} for n in range(times)]

    async def unit(tx: Tx) -> None:
        await tx.many(add, rows)

    await relay.services.database.write(unit)


async def test_a_nightly_result_does_not_count_for_another_nightly_or_another_branch(tmp_path: Path) -> None:
    """Reports without a commit are of different commits, all of the default branch."""
    async with gated_upstream(tmp_path, WITH_NIGHTLIES, downstreams=(GATING,)) as relay:
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
