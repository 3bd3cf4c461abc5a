"""Depends-On end to end: pull requests of two repositories are pushed to, approved, merged and closed."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.github.gated_upstream import (
    GATING,
    gate_state,
    gate_summary,
    gate_title,
    gated_upstream,
    open_pull,
    push_to_pull,
    sweep_after,
    write_comment,
)
from support.github.pairs import (
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


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with gated_upstream(tmp_path) as running:
        running.github.set_permission(GATING, "owner-of-gating", "write")
        yield running


async def test_a_backend_that_passes_only_with_its_own_pull_request_is_held_until_that_is_merged(
    relay: RunningRelay,
) -> None:
    pull, other = await open_pair(relay)
    (plain,), (pair,) = plain_runs(relay), pair_runs(relay)
    assert pair.client_payload["relay"]["depends_on"] == {
        "repository": GATING,
        "number": other.number,
        "head_sha": other.head_sha,
        "clone_url": f"{relay.github.base_url}/{GATING}.git",
    }
    assert pair.client_payload["relay"]["purpose"] == "pair"
    assert pair.client_payload["payload"] == plain.client_payload["payload"]
    assert pair.delivery_id != plain.delivery_id

    await end_run(relay, plain, "failure")
    assert gate_state(relay, pull) == "failure"
    await end_run(relay, pair)
    assert gate_state(relay, pull) == "pending"
    assert f"passes with {GATING}#{other.number}, which is not merged" in gate_title(relay, pull.head_sha)

    await relay.github.close_pr(other, merged=True)
    await relay.drain()
    assert gate_state(relay, pull) == "pending"
    old, new = plain_runs(relay)
    assert (new.delivery_id, "depends_on" in new.client_payload["relay"]) == (old.delivery_id, False)
    await end_run(relay, new)
    assert gate_state(relay, pull) == "success"


async def test_after_the_merge_a_plain_failure_counts_again(relay: RunningRelay) -> None:
    pull, other = await open_pair(relay)
    await end_run(relay, pair_runs(relay)[0])
    await relay.github.close_pr(other, merged=True)
    await end_run(relay, plain_runs(relay)[0], "failure")
    await sweep_after(relay, 60)
    assert len(plain_runs(relay)) == 2
    await end_run(relay, plain_runs(relay)[1], "failure")
    assert gate_state(relay, pull) == "failure"
    await sweep_after(relay, 3600)
    assert len(plain_runs(relay)) == 2


async def test_a_pair_that_fails_or_waits_does_not_hold_the_gate(relay: RunningRelay) -> None:
    pull, other = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    assert gate_state(relay, pull) == "failure"
    await end_run(relay, pair_runs(relay)[0], "failure")
    assert gate_state(relay, pull) == "failure"
    assert f"fails with {GATING}#{other.number} too" in gate_summary(relay, pull.head_sha)


async def test_a_plain_pass_opens_the_gate_even_if_the_pair_failed(relay: RunningRelay) -> None:
    pull, _ = await open_pair(relay)
    await end_run(relay, pair_runs(relay)[0], "failure")
    assert gate_state(relay, pull) == "pending"
    await end_run(relay, plain_runs(relay)[0])
    assert gate_state(relay, pull) == "success"


async def test_pushes_and_force_pushes_on_either_side_dispatch_the_new_heads(relay: RunningRelay) -> None:
    pull, other = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    await end_run(relay, pair_runs(relay)[0])
    heads = [other.head_sha]
    relay.clock.advance(60)
    await relay.github.push_to_pr(other)
    await relay.drain()
    heads.append(other.head_sha)
    assert heads_tested(relay) == heads
    assert gate_state(relay, pull) == "failure"  # the passed pair was of another head

    await relay.github.force_push_to_pr(other)
    await relay.drain()
    await push_to_pull(relay, pull)
    heads += [other.head_sha, other.head_sha]
    assert heads_tested(relay) == heads
    newest = pair_runs(relay)[-1]
    assert newest.client_payload["payload"]["pull_request"]["head"]["sha"] == pull.head_sha
    await end_run(relay, pair_runs(relay)[0])
    assert gate_state(relay, pull) == "pending"
    await end_run(relay, plain_runs(relay)[-1], "failure")
    assert gate_state(relay, pull) == "failure"
    await end_run(relay, newest)
    assert gate_state(relay, pull) == "pending"


async def test_a_push_whose_webhook_was_lost_is_found_by_polling(relay: RunningRelay) -> None:
    _, other = await open_pair(relay)
    relay.github.faults.webhooks.lose(event="pull_request", times=1)
    await relay.github.push_to_pr(other)
    await sweep_after(relay, 60)
    assert len(pair_runs(relay)) == 1
    reads = len(relay.github.calls_to("GET", f"/repos/{GATING}/pulls/*"))
    await sweep_after(relay, 90)
    assert heads_tested(relay)[-1] == other.head_sha
    assert len(relay.github.calls_to("GET", f"/repos/{GATING}/pulls/*")) == reads + 1


async def test_a_strangers_pull_request_counts_while_its_head_is_approved_with_write_access(
    relay: RunningRelay,
) -> None:
    pull, other = await open_pair(relay, author="stranger", fork=True)
    assert (pair_runs(relay), refusals(relay)) == ([], ["not_approved"])
    insufficient_reviews = (
        ("passer-by", "APPROVED"),
        ("maintainer", "APPROVED"),
        ("owner-of-gating", "COMMENTED"),
    )
    for author, state in insufficient_reviews:
        relay.github.review_pr(other, author=author, state=state)
        await sweep_after(relay, 150)
        assert pair_runs(relay) == []

    relay.github.review_pr(other, author="owner-of-gating")
    await sweep_after(relay, 300)
    assert heads_tested(relay) == [other.head_sha]
    assert pair_rows(relay)[0]["approved_by"] == "owner-of-gating"
    await end_run(relay, plain_runs(relay)[0], "failure")
    await end_run(relay, pair_runs(relay)[0])
    assert gate_state(relay, pull) == "pending"

    await relay.github.push_to_pr(other)
    await relay.drain()
    assert (len(pair_runs(relay)), refusals(relay)) == (1, ["not_approved"])
    assert gate_state(relay, pull) == "failure"
    assert "nobody with write access" in gate_summary(relay, pull.head_sha)

    relay.github.review_pr(other, author="owner-of-gating")
    relay.github.review_pr(other, author="owner-of-gating", state="CHANGES_REQUESTED")
    await sweep_after(relay, 300)
    assert len(pair_runs(relay)) == 1


async def test_a_dependency_closed_without_a_merge_fails_the_gate_with_an_explanation(
    relay: RunningRelay,
) -> None:
    pull, other = await open_pair(relay)
    await end_run(relay, plain_runs(relay)[0], "failure")
    await end_run(relay, pair_runs(relay)[0])
    assert gate_state(relay, pull) == "pending"
    await relay.github.close_pr(other)
    await relay.drain()
    assert gate_state(relay, pull) == "failure"
    assert f"{GATING}#{other.number}, which it depends on, was closed without being merged" in gate_summary(
        relay, pull.head_sha
    )
    assert len(plain_runs(relay)) == 1
    await relay.github.reopen_pr(other)
    await relay.drain()
    assert gate_state(relay, pull) == "pending"


async def test_pull_requests_that_depend_on_each_other_are_not_tested_together(relay: RunningRelay) -> None:
    """A dependency named only on the backend's side makes no pair: only the upstream's description and commands do."""
    other = await open_other(relay, body=f"Depends-On: {UPSTREAM}#1")
    pull = await open_pull(relay)
    assert (pull.number, pair_rows(relay)) == (1, [])
    await relay.github.edit_pr(pull, body=depends_on(other))
    await relay.drain()
    assert (refusals(relay), pair_runs(relay)) == (["cycle"], [])
    await end_run(relay, plain_runs(relay)[0], "failure")
    assert gate_state(relay, pull) == "failure"
    relay.clock.advance(60)
    await relay.github.edit_pr(other, body="on its own")
    await relay.drain()
    assert (refusals(relay), heads_tested(relay)) == ([None], [other.head_sha])


async def test_a_cycle_through_several_pull_requests_is_detected(relay: RunningRelay) -> None:
    second = await open_other(relay, body=f"Depends-On: {UPSTREAM}#1", author="other")
    first = await open_other(relay, body=f"Depends-On: {relay.github.base_url}/{GATING}/pull/{second.number}")
    await open_pull(relay, body=depends_on(first))
    assert refusals(relay) == ["cycle"]


async def test_only_readable_listed_backends_are_tested_and_at_most_five_dependencies(
    relay: RunningRelay,
) -> None:
    github = relay.github
    github.create_repository("org/unlisted")
    others = [await open_other(relay) for _ in range(6)]
    lines = [f"Depends-On: org/unlisted#1, {GATING}#999"] + [depends_on(other) for other in others]
    calls = len(github.calls_to("GET", "/repos/org/unlisted*"))
    await open_pull(relay, body="\n\n".join(lines))
    assert refusals(relay) == [
        "not_listed",
        "unreadable",
        None,
        None,
        None,
        "too_many",
        "too_many",
        "too_many",
    ]
    assert len(github.calls_to("GET", "/repos/org/unlisted*")) == calls
    assert heads_tested(relay) == [other.head_sha for other in others[:3]]


async def test_editing_the_description_adds_and_removes_a_pair(relay: RunningRelay) -> None:
    other = await open_other(relay)
    pull = await open_pull(relay)
    relay.clock.advance(60)
    await relay.github.edit_pr(pull, body=f"> Depends-On: {GATING}#{other.number}")
    await relay.drain()
    assert pair_rows(relay) == []
    relay.clock.advance(60)
    await relay.github.edit_pr(pull, body=depends_on(other))
    await relay.drain()
    assert len(pair_runs(relay)) == 1
    await end_run(relay, plain_runs(relay)[0], "failure")
    await end_run(relay, pair_runs(relay)[0])
    assert gate_state(relay, pull) == "pending"
    relay.clock.advance(60)
    await relay.github.edit_pr(pull, body="without")
    await relay.drain()
    assert (pair_rows(relay), gate_state(relay, pull)) == ([], "failure")


async def test_test_with_needs_write_access_upstream_and_tests_again(relay: RunningRelay) -> None:
    other = await open_other(relay)
    pull = await open_pull(relay)
    command = f"/crcr test-with {GATING}#{other.number}"
    await write_comment(relay, pull, command, author="contributor")
    assert pair_rows(relay) == []
    await write_comment(relay, pull, command)
    await write_comment(relay, pull, "/crcr test-with org/nobody#1")
    assert len(pair_runs(relay)) == 1
    await write_comment(relay, pull, command)
    assert heads_tested(relay) == [other.head_sha] * 2
    assert [row["requested_by"] for row in pair_rows(relay)] == ["maintainer"]
