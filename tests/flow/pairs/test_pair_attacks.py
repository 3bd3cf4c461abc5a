"""Attacks with pairs: their results are counted nowhere and do not open a gate."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.model import RepoName
from crcr.record.store.statement import Statement
from github_sim.github import PullRequest
from support.github.gated_upstream import (
    GATE,
    GATED,
    GATING,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    push_to_pull,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.github.pairs import (
    PAIR_EVENT,
    depends_on,
    end_run,
    heads_tested,
    open_other,
    open_pair,
    pair_rows,
    pair_runs,
    plain_runs,
    refusals,
)
from support.running_relay import UPSTREAM, RunningRelay

PRIVATE = "org/private"
LISTED = GATED + f"L2:\n  - {PRIVATE}\n  - {UPSTREAM}\n"
COUNTING_TABLES = ("hours", "days", "job_days", "failures", "failure_groups", "waivers", "merge_groups")
ANSWERS = (
    *(
        "/api/v1/summary",
        f"/api/v1/backends/{GATING}",
        "/api/v1/failing",
        "/api/v1/levels",
        "/api/v1/failures",
    ),
    *("/api/v1/pulls", "/api/v1/metrics", f"/badge/{GATING}.svg"),
)


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with gated_upstream(tmp_path, LISTED) as running:
        running.github.create_repository(PRIVATE, private=True, installed=False)
        yield running


async def read_counted_results(relay: RunningRelay) -> dict[str, Any]:
    """All counted results: the tables of sums and failures, and the responses of the pages about them."""
    results: dict[str, Any] = {}
    for name in COUNTING_TABLES:
        results[name] = relay.rows(f"SELECT * FROM {name} ORDER BY 1, 2, 3")  # noqa: S608  our own names
    for path in ANSWERS:
        answer = await relay.http.get(path, params={"upstream": UPSTREAM})
        # The number of the newest change is in every response, and counts changes of any kind.
        assert answer.status_code == 200
        results[path] = re.sub(r'"cursor":[0-9]+', "", answer.text)
    return results


@pytest.mark.parametrize("event", [PAIR_EVENT, "pull_request"])
async def test_pair_results_count_in_no_number_verdict_or_page(relay: RunningRelay, event: str) -> None:
    pull, _ = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0])
    await sweep_after(relay, 600)
    before = await read_counted_results(relay)
    run = pair_runs(relay)[0]
    failed = {"conclusion": "failure", "failed_tests": [{"name": "t", "message": "RuntimeError: no kernel"}]}
    for job in run.jobs:
        for status, fields in (("in_progress", {}), ("completed", failed)):
            body = {**relay.github.ci.report_body(run, job, status, **fields), "event_type": event}
            assert (await relay.github.report(run, job, body=body)).status_code == 200
        relay.github.ci.complete(run, job, "failure")
    await relay.drain()
    rows = relay.rows(
        "SELECT event, number, head_sha, ended_as FROM jobs WHERE delivery = ?", run.delivery_id
    )
    assert [tuple(row.values()) for row in rows] == [(PAIR_EVENT, None, None, None)] * len(run.jobs)
    assert await read_counted_results(relay) == before
    assert gate_state(relay, pull) == "success"


async def test_the_run_of_a_pair_cannot_report_for_a_plain_delivery(relay: RunningRelay) -> None:
    pull, _ = await open_pair(relay)
    plain, pair = plain_runs(relay)[0], pair_runs(relay)[0]
    body = {
        **relay.github.ci.report_body(pair, pair.jobs[0], "in_progress"),
        "delivery_id": plain.delivery_id,
    }
    forged = await relay.github.report(pair, pair.jobs[0], body=body)
    assert (forged.status_code, forged.json()["error"]["code"]) == (403, "claim_mismatch")
    await start_jobs(relay, pair)
    second = await relay.github.report(pair, pair.jobs[0], body={**body, "event_type": "pull_request"})
    assert second.json()["error"]["code"] == "run_bound_elsewhere"
    assert gate_state(relay, pull) == "pending"


async def test_a_pair_does_not_hold_the_gate_of_a_merge_group(relay: RunningRelay) -> None:
    """A failing backend blocks the group: the pair of its pull request does not hold the group's gate."""
    pull, _ = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    await end_run(relay, pair_runs(relay)[0])
    assert gate_state(relay, pull) == "pending"
    group = await relay.github.enqueue(pull)
    await relay.drain()
    await end_run(relay, newest_run(relay), "failure")
    check = relay.github.latest_checks(UPSTREAM, group.head_sha)["crcr/gate"]
    assert (check.status, check.conclusion) == ("completed", "failure")


async def test_a_private_repository_without_the_app_and_the_upstream_itself_make_no_pair(
    relay: RunningRelay,
) -> None:
    private_pull = await open_other(relay, PRIVATE)
    upstream_pull = await open_pull(relay)
    pull = await open_pull(
        relay, body=f"Depends-On: {PRIVATE}#{private_pull.number}, {UPSTREAM}#{upstream_pull.number}"
    )
    assert refusals(relay)[0] == "unreadable"
    assert not [run for name in (GATING, PRIVATE) for run in pair_runs(relay, name)]
    await end_run(relay, plain_runs(relay)[-1], "failure")
    assert gate_state(relay, pull) == "failure"


async def test_a_pair_does_not_dispatch_a_pull_request_that_is_held_for_approval(tmp_path: Path) -> None:
    allowlist = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build], authors: approved}}\n"
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as relay:
        other = await open_other(relay)
        relay.clock.advance(120)
        pull = await open_pull(relay, body=depends_on(other), author="stranger", author_association="NONE")
        await sweep_after(relay, 120)
        assert relay.github.dispatches(GATING) == []
        await write_comment(relay, pull, "/crcr approve")
        await sweep_after(relay, 60)
        assert (len(plain_runs(relay)), len(pair_runs(relay))) == (1, 1)


async def test_repeated_webhooks_reads_and_sweeps_dispatch_a_pair_once(relay: RunningRelay) -> None:
    pull, other = await open_pair(relay)
    for _ in range(2):
        await relay.github.label_pr(pull, "a label")
        await relay.github.label_pr(other, "another")
        await sweep_after(relay, 3600)
    assert pull.last_delivery is not None
    await relay.github.webhooks.redeliver(pull.last_delivery)
    await relay.services.sweeper.sweep()
    await relay.drain()
    assert len(pair_runs(relay)) == 1


async def test_adding_and_removing_the_dependency_repeatedly_dispatches_once(relay: RunningRelay) -> None:
    pull, other = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    await end_run(relay, pair_runs(relay)[0])
    for body in ("without", depends_on(other)) * 3:
        relay.clock.advance(60)
        await relay.github.edit_pr(pull, body=body)
        await relay.drain()
        assert gate_state(relay, pull) == ("failure" if body == "without" else "pending")
    assert len(pair_runs(relay)) == 1


async def test_a_pair_dropped_before_it_was_sent_is_sent_when_the_dependency_is_added_again(
    relay: RunningRelay,
) -> None:
    await relay.services.acts.pause(RepoName(UPSTREAM), who="ann", now=relay.clock.now())
    pull, other = await open_pair(relay)
    for body in ("without", depends_on(other)) * 2:
        relay.clock.advance(60)
        await relay.github.edit_pr(pull, body=body)
        await relay.drain()
    await relay.services.acts.pause(RepoName(UPSTREAM), who="ann", now=relay.clock.now(), lift=True)
    await sweep_after(relay, 60)
    assert heads_tested(relay) == [other.head_sha]


async def test_a_pair_is_not_dispatched_with_a_head_that_lost_its_approval(relay: RunningRelay) -> None:
    relay.github.set_permission(GATING, "owner-of-gating", "write")
    other = await open_other(relay, author="stranger", fork=True)
    relay.github.review_pr(other, author="owner-of-gating")
    await relay.services.acts.pause(RepoName(UPSTREAM), who="ann", now=relay.clock.now())
    pull = await open_pull(relay, body=depends_on(other))
    assert (refusals(relay), pair_runs(relay)) == ([None], [])
    relay.github.review_pr(other, author="owner-of-gating", state="CHANGES_REQUESTED")
    await sweep_after(relay, 300)
    await relay.services.acts.pause(RepoName(UPSTREAM), who="ann", now=relay.clock.now(), lift=True)
    await sweep_after(relay, 60)
    assert (refusals(relay), pair_runs(relay), len(plain_runs(relay))) == (["not_approved"], [], 1)
    relay.github.review_pr(other, author="owner-of-gating")
    await sweep_after(relay, 300)
    assert heads_tested(relay) == [other.head_sha]
    assert gate_state(relay, pull) == "pending"


async def test_a_clock_that_was_ahead_causes_no_second_dispatch_after_a_merge(relay: RunningRelay) -> None:
    pull, other = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    await relay.github.close_pr(other, merged=True)
    await relay.drain()
    ahead = Statement(text("UPDATE pairs SET merged_seen_at = merged_seen_at + 86400000000"))
    assert await relay.services.database.write(lambda tx: tx.run(ahead)) == 1
    await end_run(relay, plain_runs(relay)[1], "failure")
    for _ in range(3):
        await sweep_after(relay, 3600)
    assert (len(plain_runs(relay)), gate_state(relay, pull)) == (2, "failure")
    await push_to_pull(relay, pull)
    assert [row["state"] for row in pair_rows(relay)] == ["merged"]
    assert len(pair_runs(relay)) == 1


async def open_held_pair(relay: RunningRelay) -> tuple[PullRequest, PullRequest]:
    """A pull request whose gate waits for the backend's pull request: alone it fails, together they pass."""
    pull, other = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    await end_run(relay, pair_runs(relay)[0])
    assert gate_state(relay, pull) == "pending"
    return pull, other


async def test_naming_a_merged_pull_request_repeatedly_dispatches_nothing(
    relay: RunningRelay,
) -> None:
    """Otherwise its author could repeat a flaky backend, without a limit, until it passes."""
    other = await open_other(relay)
    await relay.github.close_pr(other, merged=True)
    pull = await open_pull(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    for body in (depends_on(other), "without") * 2:
        relay.clock.advance(60)
        await relay.github.edit_pr(pull, body=body)
        await relay.drain()
    assert (len(plain_runs(relay)), gate_state(relay, pull)) == (1, "failure")


async def test_a_repository_that_took_a_backends_old_name_cannot_form_a_pair(
    relay: RunningRelay,
) -> None:
    pull, _ = await open_held_pair(relay)
    await relay.github.rename_repository(GATING, "moved")
    relay.github.create_repository(GATING, installed=False)
    foreign = [await open_other(relay) for _ in range(2)][-1]
    relay.clock.advance(60)
    await relay.github.edit_pr(pull, body=depends_on(foreign))
    await relay.drain()
    assert (refusals(relay), gate_state(relay, pull)) == (["unreadable"], "failure")
    assert not relay.rows("SELECT 1 FROM dispatches WHERE event = ? AND state <> 'sent'", PAIR_EVENT)


async def test_a_pair_whose_backend_is_listed_under_another_name_does_not_hold_the_gate(
    relay: RunningRelay,
) -> None:
    pull, _ = await open_held_pair(relay)
    await relay.github.rename_repository(GATING, "renamed")
    relay.write_allowlist(LISTED.replace(GATING, "org/renamed"))
    await relay.refresh()
    await relay.drain()
    await sweep_after(relay, 600)
    assert (refusals(relay), gate_state(relay, pull)) == (["not_listed"], "failure")


async def test_a_rerun_requested_at_a_held_gate_repeats_only_the_plain_run(relay: RunningRelay) -> None:
    pull, _ = await open_held_pair(relay)
    relay.clock.advance(60)
    await relay.github.rerequest_check(latest_check(relay, GATE, pull.head_sha))
    await relay.drain()
    assert [run.attempt for run in (*plain_runs(relay), *pair_runs(relay))] == [2, 1]
