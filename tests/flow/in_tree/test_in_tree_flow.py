"""The upstream's own CI, from GitHub's webhooks to the counts of its commits."""

from collections.abc import AsyncIterator
from pathlib import Path
from random import Random

import pytest

from github_sim.github import CheckRun
from support.running_relay import UPSTREAM, RunningRelay, running_relay

ALLOWLIST = "L2: [org/backend]\n"


@pytest.fixture
async def relay(tmp_path: Path) -> AsyncIterator[RunningRelay]:
    async with running_relay(tmp_path, ALLOWLIST) as relay:
        relay.github.create_repository(UPSTREAM)
        relay.github.create_repository("org/backend")
        yield relay


def counts(relay: RunningRelay, sha: str) -> tuple[int, int, int] | None:
    rows = relay.rows("SELECT passed, failed, running FROM in_tree_commits WHERE sha = ?", sha)
    return tuple(rows[0].values()) if rows else None


async def test_checks_of_a_pull_request_are_counted_as_they_run(relay: RunningRelay) -> None:
    pull = await relay.github.open_pr(UPSTREAM)
    checks = [
        await relay.github.start_ci_check(UPSTREAM, pull.head_sha, f"test {number}") for number in (1, 2, 3)
    ]
    assert counts(relay, pull.head_sha) == (0, 0, 3)
    for check, conclusion in zip(checks, ("success", "failure", "skipped"), strict=True):
        delivery = await relay.github.end_ci_check(check, conclusion)
        assert delivery is not None
        assert delivery.status_code == 202
    assert counts(relay, pull.head_sha) == (2, 1, 0)
    second_run = await relay.github.start_ci_check(UPSTREAM, pull.head_sha, "test 2")
    assert counts(relay, pull.head_sha) == (2, 0, 1)
    await relay.github.end_ci_check(second_run, "success")
    assert counts(relay, pull.head_sha) == (3, 0, 0)


async def test_commit_statuses_are_counted_with_check_runs(relay: RunningRelay) -> None:
    sha = relay.github.repository(UPSTREAM).head_sha
    await relay.github.set_status(UPSTREAM, sha, "ci/circleci", "pending")
    await relay.github.set_status(UPSTREAM, sha, "ci/jenkins", "error")
    assert counts(relay, sha) == (0, 1, 1)
    await relay.github.set_status(UPSTREAM, sha, "ci/circleci", "success")
    assert counts(relay, sha) == (1, 1, 0)


async def test_the_relays_own_checks_and_those_of_downstreams_do_not_count(relay: RunningRelay) -> None:
    pull = await relay.github.open_pr(UPSTREAM)
    repository = relay.github.repository(UPSTREAM)
    gate_check = CheckRun(5, repository.id, pull.head_sha, "crcr/gate", "completed", "failure")
    gate_check.started_at = gate_check.completed_at = "2026-08-03T09:00:00Z"
    delivery = await relay.github.announce_check(gate_check, "completed")
    assert delivery is not None
    assert "a check of this relay" in (delivery.answer_body or "")
    backend = relay.github.repository("org/backend").head_sha
    await relay.github.start_ci_check("org/backend", backend, "build")
    assert relay.rows("SELECT * FROM in_tree_commits") == []


async def test_duplicate_and_reordered_webhooks_are_counted_once(relay: RunningRelay) -> None:
    sha, random = relay.github.repository(UPSTREAM).head_sha, Random(19)
    relay.github.faults.webhooks.hold()
    for name in ("build", "test", "lint"):
        for conclusion in ("failure", "success"):
            check = await relay.github.start_ci_check(UPSTREAM, sha, name)
            relay.clock.advance(60)
            await relay.github.end_ci_check(check, conclusion)
    held = len(relay.github.webhooks.held)
    assert held == 12
    await relay.github.release_webhooks(order=random.sample(range(held), held))
    assert counts(relay, sha) == (3, 0, 0)
    for delivery in relay.github.deliveries():
        await relay.github.redeliver(delivery.guid)
    assert counts(relay, sha) == (3, 0, 0)


async def test_an_idle_commit_is_packed_by_the_sweeper_and_a_lost_webhook_is_recovered(
    relay: RunningRelay,
) -> None:
    sha = relay.github.repository(UPSTREAM).head_sha
    check = await relay.github.start_ci_check(UPSTREAM, sha, "build")
    relay.github.faults.webhooks.lose()
    await relay.github.end_ci_check(check, "success")
    assert counts(relay, sha) == (0, 0, 1)
    await relay.pass_time(3_600)
    await relay.services.sweeper.sweep()
    assert relay.rows("SELECT * FROM in_tree_checks") == []
    await relay.services.reconciler.run()
    assert counts(relay, sha) == (1, 0, 0)
