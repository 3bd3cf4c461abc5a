"""Bisections through the whole relay: dispatched commits, results by callbacks, a culprit that was tested."""

import math
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.bisection.request import AUTOMATIC
from crcr.decide.model import RepoName
from crcr.errors import BadRequest, NotFound, NotPossible
from support.downstream.callbacks import BACKEND, post_report, workflow_with_jobs
from support.failures.bisection import (
    BISECTED,
    BROKEN,
    OTHER,
    REQUEST,
    BrokenBase,
    broken_base,
    end_run,
    failed_with,
    push_commits,
)
from support.running_relay import UPSTREAM, RunningRelay, running_relay

HOUR = 3600.0
GATING = f"L4:\n  - {BACKEND}: {{bisect: manual, jobs: [test], oncalls: [ada]}}\n"


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with running_relay(tmp_path, BISECTED, downstreams=(BACKEND,)) as running:
        running.github.repository(BACKEND).workflows = list(workflow_with_jobs("test"))
        yield running


async def sweep(relay: RunningRelay, seconds: float = 0.0) -> None:
    relay.clock.advance(seconds)
    await relay.services.sweeper.sweep()
    await relay.drain()


@pytest.mark.parametrize(("commits", "culprit"), [(1, 1), (2, 1), (9, 9), (16, 5)])
async def test_the_commit_that_broke_the_job_is_found_by_testing(
    relay: RunningRelay, commits: int, culprit: int
) -> None:
    base = await broken_base(relay, commits=commits, culprit=culprit)
    bisection = await base.start()
    ended = await base.finish(bisection)
    assert (ended["outcome"], ended["culprit"]) == ("found", base.commits[culprit])
    runs = base.runs(bisection)
    assert len(runs) <= math.ceil(math.log2(commits)) + 2
    assert [position for position, _ in runs[:2]] == [commits, 0]
    assert all((result == "failed") is (position >= culprit) for position, result in runs)


async def test_a_run_is_a_push_to_its_own_branch_with_purpose_bisection(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=4, culprit=2)
    bisection = await base.start()
    dispatch = relay.github.dispatches(BACKEND)[-1]
    payload, relay_fields = dispatch.client_payload["payload"], dispatch.client_payload["relay"]
    assert dispatch.event_type == dispatch.client_payload["event_type"] == "push"
    assert payload["ref"] == f"refs/heads/crcr-bisect/{bisection}"
    assert (payload["after"], payload["deleted"]) == (base.commits[-1], False)
    assert payload["repository"]["full_name"] == UPSTREAM
    assert payload["repository"]["id"] == relay.github.repository(UPSTREAM).id
    assert relay_fields["purpose"] == "bisection"
    assert "test" not in relay_fields
    first = dispatch.client_payload["delivery_id"]
    await base.answer()
    assert relay.github.dispatches(BACKEND)[-1].client_payload["delivery_id"] != first


NUMBERS = (
    "/api/v1/summary",
    "/api/v1/summary?kind=push",
    f"/api/v1/backends/{BACKEND}?kind=push",
    "/api/v1/metrics?kind=push",
    "/api/v1/failing",
    "/api/v1/failures",
    f"/badge/{BACKEND}.svg?kind=push",
    "/api/v1/failing?kind=nightly",
)


COUNTED = (
    "failures",
    "failure_groups",
    "failure_fingerprints",
    "checks",
    "gates",
    "hours",
    "days",
    "job_days",
)


async def read_numbers(relay: RunningRelay, commits: list[str]) -> dict[str, Any]:
    """All figures, the commits of a range, and the rows that figures come from."""
    responses: dict[str, Any] = {}
    for path in (*NUMBERS, *(f"/api/v1/commits/{sha}" for sha in commits)):
        answer = await relay.http.get(path)
        assert answer.status_code == 200, (path, answer.text)
        # The newest change grows with each run, the lookups of L4 results wait in the outbox, and the commit names the
        # bisection that found it.
        responses[path] = re.sub(
            r'"(change|cursor|waiting)":\s*"?\d+|"bisections":\[[^]]*\]', "", answer.text
        )
    return responses | {name: relay.rows(f"SELECT * FROM {name} ORDER BY 1, 2, 3") for name in COUNTED}  # noqa: S608


@pytest.mark.parametrize("listed", [BISECTED, GATING])
async def test_bisection_runs_count_in_no_number_check_or_gate(relay: RunningRelay, listed: str) -> None:
    relay.write_allowlist(listed)
    await relay.refresh()
    base = await broken_base(relay, commits=6, culprit=3)
    base.pace_s = 0
    pull = await relay.github.open_pr(UPSTREAM)
    await relay.drain()
    relay.clock.advance(HOUR)
    await relay.drain()
    before = await read_numbers(relay, [*base.commits, pull.head_sha])
    checks = relay.github.calls_to("POST", f"/repos/{UPSTREAM}/check-runs")
    ended = await base.finish(await base.start())
    assert ended["outcome"] == "found"
    assert await read_numbers(relay, [*base.commits, pull.head_sha]) == before
    assert relay.github.calls_to("POST", f"/repos/{UPSTREAM}/check-runs") == checks


async def test_the_commit_that_a_bisection_found_is_the_first_culprit(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=8, culprit=2)
    bisection = await base.start()
    (running,) = (await relay.http.get("/api/v1/culprits")).json()
    assert running["bisection"] == bisection
    await base.finish(bisection)
    (breakage,) = (await relay.http.get("/api/v1/culprits")).json()
    first = breakage["candidates"][0]
    assert (breakage["bisection"], first["sha"]) == (bisection, base.commits[2])
    assert first["reasons"][0] == f"bisection {bisection} found it"
    assert first["score"] > 0.99


# Other outcomes


async def test_a_failing_good_end_means_that_the_downstream_changed(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=8, culprit=0)
    ended = await base.finish(await base.start())
    assert (ended["outcome"], ended["culprit"]) == ("downstream_changed", None)
    assert base.runs(ended["bisection_id"]) == [(8, "failed"), (0, "failed"), (0, "failed")]


async def test_a_passing_bad_end_ends_the_bisection_after_one_run(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=8, culprit=99)
    ended = await base.finish(await base.start())
    assert (ended["outcome"], base.runs(ended["bisection_id"])) == ("not_reproduced", [(8, "passed")])


async def test_a_spent_budget_leaves_the_narrowed_range(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=16, culprit=5)
    ended = await base.finish(await base.start(most_runs=4))
    assert (ended["outcome"], ended["culprit"]) == ("budget_spent", None)
    assert (ended["left_good"], ended["left_bad"]) == (4, 8)


async def test_the_time_limit_ends_a_waiting_bisection_and_cancels_its_unsent_dispatch(
    relay: RunningRelay,
) -> None:
    base = await broken_base(relay, commits=8, culprit=3)
    await relay.services.acts.pause(RepoName(UPSTREAM), who="ada", now=relay.clock.now())
    bisection = await base.start(time=timedelta(hours=2))
    await sweep(relay, HOUR)
    assert base.row(bisection)["state"] == "running"
    await sweep(relay, HOUR)
    ended = base.row(bisection)
    assert (ended["outcome"], ended["reason"]) == ("budget_spent", "its time is over")
    (dispatch,) = relay.rows("SELECT state FROM dispatches WHERE event = 'crcr_bisection'")
    assert dispatch["state"] == "cancelled"


async def test_a_downstream_that_never_reports_ends_the_bisection_after_two_runs(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=8, culprit=3)
    bisection = await base.start(time=timedelta(days=7))
    for _ in range(10):
        await sweep(relay, 7 * HOUR)
    ended = base.row(bisection)
    assert (ended["state"], ended["outcome"]) == ("finished", "no_answer")
    assert base.runs(bisection) == [(8, "no_result"), (8, "no_result")]


async def test_a_job_that_hangs_or_is_cancelled_has_no_result_and_is_run_once_more(
    relay: RunningRelay,
) -> None:
    base = await broken_base(relay, commits=2, culprit=2)
    bisection = await base.start()
    await base.answer(conclusion="cancelled")
    ended = await base.finish(bisection)
    assert ended["outcome"] == "found"
    assert base.runs(bisection)[:2] == [(2, "no_result"), (2, "failed")]


async def test_a_commit_with_a_different_failure_is_skipped_and_not_called_good(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=4, culprit=3)
    base.otherwise[2] = failed_with(OTHER)
    ended = await base.finish(await base.start())
    assert ended["outcome"] == "narrowed"
    assert (ended["left_good"], ended["left_bad"], ended["culprit"]) == (1, 3, None)


async def test_an_additional_unrelated_failure_does_not_change_the_culprit(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=4, culprit=3)
    base.otherwise = {
        1: failed_with(OTHER, ran=40),
        2: failed_with(OTHER, ran=40),
        3: failed_with(OTHER, BROKEN, ran=40),
        4: failed_with(OTHER, BROKEN, ran=40),
    }
    ended = await base.finish(await base.start())
    assert (ended["outcome"], ended["culprit"]) == ("found", base.commits[3])


async def test_a_flaky_job_repeats_failures_and_a_pass_clears_the_commit(relay: RunningRelay) -> None:
    for _ in range(2):
        await push_commits(relay, [failed_with(BROKEN)])
        await relay.github.rerun(relay.github.runs(BACKEND)[-1])
        await end_run(relay, relay.github.runs(BACKEND)[-1])
    base = await broken_base(relay, commits=4, culprit=3)
    with pytest.raises(NotPossible, match="no lasting failure"):
        await base.start()
    bisection = await base.start(good=base.commits[0], bad=base.commits[4])
    assert base.row(bisection)["flake_rate"] > 0.1
    for _ in range(3):
        await base.answer()
    assert base.runs(bisection)[:3] == [(4, "failed")] * 3
    await base.answer()
    await base.answer(**failed_with(BROKEN))
    await base.answer(conclusion="success")
    assert base.runs(bisection)[3:6] == [(0, "passed"), (2, "failed"), (2, "passed")]
    ended = await base.finish(bisection)
    assert (ended["outcome"], ended["culprit"]) == ("found", base.commits[3])


# Conditions for starting a bisection


async def test_only_one_bisection_of_a_job_runs_at_a_time(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=4, culprit=2)
    first = await base.start()
    with pytest.raises(NotPossible, match=f"bisection {first} of this job is running"):
        await base.start()
    assert len(relay.rows("SELECT 1 FROM bisections")) == 1
    await base.finish(first)
    assert await base.start() != first


@pytest.mark.parametrize(
    ("listed", "error"),
    [
        ("L2:\n  - org/backend\n", "bisection is off"),
        ("L2:\n  - org/backend: {bisect: off}\n", "bisection is off"),
        ("L1:\n  - org/backend: {bisect: manual}\n", "at L1"),
        ("L2:\n  - org/backend: {bisect: manual, events: [nightly]}\n", "takes no pushes"),
        ("L2:\n  - org/other\n", "not on the allowlist"),
    ],
)
async def test_the_allowlist_decides_whether_a_backend_is_bisected(
    relay: RunningRelay, listed: str, error: str
) -> None:
    base = await broken_base(relay, commits=4, culprit=2)
    relay.write_allowlist(listed)
    await relay.refresh()
    with pytest.raises((NotPossible, NotFound), match=error):
        await base.start()
    assert relay.rows("SELECT 1 FROM bisections") == []


@pytest.mark.parametrize("listed", ["L2:\n  - org/other\n", "L2:\n  - org/backend: {bisect: off}\n"])
async def test_an_allowlist_change_ends_a_running_bisection(relay: RunningRelay, listed: str) -> None:
    base = await broken_base(relay, commits=8, culprit=3)
    bisection = await base.start()
    await base.answer()
    relay.write_allowlist(listed)
    await relay.refresh()
    sent = len(relay.github.dispatches(BACKEND))
    await sweep(relay)
    assert base.row(bisection)["outcome"] == "withdrawn"
    await sweep(relay, HOUR)
    assert len(relay.github.dispatches(BACKEND)) == sent


async def test_a_stopped_bisection_sends_no_further_run(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=8, culprit=3)
    bisection = await base.start()
    bisections, now = relay.services.bisections, relay.clock.now()
    await bisections.stop(RepoName(UPSTREAM), bisection, who="ada", now=now)
    sent = len(relay.github.dispatches(BACKEND))
    await base.answer()
    await sweep(relay, HOUR)
    assert len(relay.github.dispatches(BACKEND)) == sent
    assert (base.row(bisection)["outcome"], base.row(bisection)["reason"]) == ("stopped", "stopped by ada")
    with pytest.raises(NotPossible):
        await bisections.stop(RepoName(UPSTREAM), bisection, who="ada", now=now)
    with pytest.raises(NotFound):
        await bisections.stop(RepoName(UPSTREAM), 99, who="ada", now=now)


async def test_an_explicit_range_and_budget_are_validated(relay: RunningRelay) -> None:
    base = await broken_base(relay, commits=8, culprit=3)
    good, bad = base.commits[1], base.commits[6]
    for options, error in (
        ({"good": "zzz"}, "is not a commit"),
        ({"good": "0" * 40, "bad": bad}, "not among the recorded commits"),
        ({"good": bad, "bad": good}, "does not come before"),
        ({"most_runs": 1}, "3 to 100 runs"),
        ({"time": timedelta(minutes=1)}, "1 hour"),
        ({"workflow": "none.yml"}, "no recorded result"),
    ):
        with pytest.raises((BadRequest, NotFound), match=error):
            await base.start(**options)
    ended = await base.finish(await base.start(good=good[:12], bad=bad[:12]))
    assert (ended["outcome"], ended["culprit"]) == ("found", base.commits[3])
    assert len(base.runs(ended["bisection_id"])) <= math.ceil(math.log2(5)) + 2


async def test_a_job_that_is_green_or_unknown_is_refused(relay: RunningRelay) -> None:
    await push_commits(relay, [{"conclusion": "success"}] * 2)
    base = BrokenBase(relay, [], 0)
    with pytest.raises(NotPossible, match="no lasting failure on main"):
        await base.start()
    request = replace(REQUEST, job="no such job")
    with pytest.raises(NotFound, match="no recorded result of the job 'no such job'"):
        await relay.services.bisections.start(RepoName(UPSTREAM), request, relay.clock.now())
    assert relay.rows("SELECT 1 FROM bisections") == []


async def test_a_backend_with_auto_is_bisected_once_per_breakage(relay: RunningRelay) -> None:
    relay.write_allowlist(BISECTED.replace("manual", "auto"))
    await relay.refresh()
    base = await broken_base(relay, commits=6, culprit=3)
    begin = relay.services.sweeper.begin_bisections
    await begin()
    assert relay.rows("SELECT 1 FROM bisections") == [], "one failing commit may be chance"
    base.commits += await push_commits(relay, [failed_with(BROKEN)])
    await begin()
    await begin()
    await relay.drain()
    (row,) = relay.rows("SELECT bisection_id, who FROM bisections")
    assert row["who"] == AUTOMATIC
    ended = await base.finish(row["bisection_id"])
    assert (ended["outcome"], ended["culprit"]) == ("found", base.commits[3])
    relay.clock.advance(2 * HOUR)
    await begin()
    assert len(relay.rows("SELECT 1 FROM bisections")) == 1


async def test_a_backend_without_auto_is_not_bisected(relay: RunningRelay) -> None:
    await broken_base(relay, commits=6, culprit=3)
    await push_commits(relay, [failed_with(BROKEN)])
    await relay.services.sweeper.begin_bisections()
    assert relay.rows("SELECT 1 FROM bisections") == []


async def test_results_of_other_jobs_and_repeated_reports_do_not_advance_a_bisection(
    relay: RunningRelay,
) -> None:
    relay.github.repository(BACKEND).workflows = list(workflow_with_jobs("test", "lint"))
    base = await broken_base(relay, commits=8, culprit=3)
    bisection = await base.start()
    run = base.run
    await post_report(relay, run, "lint", "in_progress")
    await post_report(relay, run, "lint", "completed", conclusion="success")
    await relay.drain()
    assert base.runs(bisection) == [(8, None)]
    await base.answer(run)
    await base.answer(run)
    assert base.runs(bisection) == [(8, "failed"), (0, None)]
