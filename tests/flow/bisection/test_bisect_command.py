"""`/crcr bisect` on a pull request: who can start and stop a bisection, the reply, and what a refusal records."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import Match, PullRequest
from support.github.broken_upstream import (
    BISECTABLE,
    BISECTED,
    bisection_runs,
    broken_upstream,
    pushed_commits,
)
from support.github.commands import audit_entries, reaction_names, relay_comments, was_obeyed
from support.github.gated_upstream import open_pull, write_comment
from support.running_relay import UPSTREAM, RunningRelay

BEGIN = f"/crcr bisect {BISECTED}:build"
COMMENTS = "*/issues/*/comments"


@asynccontextmanager
async def relay_with_broken_pull(
    folder: Path, allowlist: str = BISECTABLE
) -> AsyncIterator[tuple[RunningRelay, PullRequest]]:
    async with broken_upstream(folder, allowlist) as relay:
        yield relay, await open_pull(relay)


def bisections(relay: RunningRelay) -> list[dict[str, Any]]:
    return relay.rows("SELECT * FROM bisections ORDER BY bisection_id")


async def test_a_maintainer_starts_a_bisection_and_the_reply_has_number_range_and_page(
    tmp_path: Path,
) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        assert was_obeyed(await write_comment(relay, pull, BEGIN))
        [row] = bisections(relay)
        assert (row["bisection_id"], row["job_name"], row["who"]) == (1, "build", "maintainer")
        *_, good, _, _, _, bad = pushed_commits(relay)
        [answer] = relay_comments(relay, pull)
        assert f"Bisection 1 of `build` of `{BISECTED}` has begun" in answer
        assert f"4 commits after `{good[:12]}`, up to `{bad[:12]}`" in answer
        assert f"/crcr/bisections/1?upstream={UPSTREAM})" in answer
        [run] = bisection_runs(relay)
        assert run.client_payload["payload"]["after"] == bad
        assert {entry["who"] for entry in audit_entries(relay, "bisect")} == {"maintainer"}


async def test_good_bad_and_a_quoted_job_name_are_accepted(tmp_path: Path) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        *_, good, bad, _ = pushed_commits(relay)
        command = f'/crcr bisect {BISECTED}:"build" good {good[:9]} bad {bad[:9]}'
        assert was_obeyed(await write_comment(relay, pull, command))
        assert f"1 commit after `{good[:12]}`, up to `{bad[:12]}`" in relay_comments(relay, pull)[-1]


async def test_a_maintainer_stops_a_bisection(tmp_path: Path) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        await write_comment(relay, pull, BEGIN)
        assert was_obeyed(await write_comment(relay, pull, "/crcr bisect stop 1"))
        [row] = bisections(relay)
        assert (row["state"], row["outcome"], row["reason"]) == (
            "finished",
            "stopped",
            "stopped by maintainer",
        )
        assert [entry["who"] for entry in audit_entries(relay, "stop_bisection")] == ["maintainer"]
        assert not was_obeyed(await write_comment(relay, pull, "/crcr bisect stop 1"))
        assert "bisection 1 has ended: stopped" in relay_comments(relay, pull)[-1]


@pytest.mark.parametrize("role", ["none", "read", "triage", "write", "maintain", "admin"])
async def test_only_maintainers_and_administrators_can_start_and_stop_a_bisection(
    tmp_path: Path, role: str
) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        relay.github.set_permission(UPSTREAM, "somebody", role)
        for command in (BEGIN, "/crcr bisect stop 1"):
            comment = await write_comment(relay, pull, command, author="somebody")
            assert was_obeyed(comment) == (role in {"maintain", "admin"})
        assert len(bisections(relay)) == (role in {"maintain", "admin"})


async def test_the_author_of_the_pull_request_cannot_start_a_bisection(tmp_path: Path) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, _):
        own_pull = await open_pull(relay, author="newcomer")
        assert not was_obeyed(await write_comment(relay, own_pull, BEGIN, author="newcomer"))
        assert "`bisect` needs the maintain role" in relay_comments(relay, own_pull)[-1]
        assert bisections(relay) == []


async def test_a_user_named_like_the_relay_can_start_a_bisection(tmp_path: Path) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        relay.github.set_permission(UPSTREAM, "crcr", "maintain")
        assert was_obeyed(await write_comment(relay, pull, BEGIN, author="crcr"))


async def test_a_bot_cannot_start_a_bisection_in_any_role(tmp_path: Path) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        relay.github.set_permission(UPSTREAM, "helper[bot]", "admin")
        relay.clock.advance(60)
        comment = await relay.github.comment_pr(pull, BEGIN, author="helper[bot]", author_type="Bot")
        await relay.drain()
        assert reaction_names(comment) == ["-1"]
        assert (bisections(relay), relay_comments(relay, pull)) == ([], [])


@pytest.mark.parametrize(
    ("allowlist", "command", "reason"),
    [
        (f"L2:\n  - {BISECTED}: {{bisect: off}}\n", BEGIN, "write `bisect: manual` into its allowlist entry"),
        (BISECTABLE, "/crcr bisect org/unlisted:build", "org/unlisted is not on the allowlist"),
        (BISECTABLE, f"/crcr bisect {BISECTED}:nothing", "has no recorded result of the job 'nothing'"),
        (BISECTABLE, f"/crcr bisect {BISECTED}:test", f"the job 'test' of {BISECTED}"),
        (BISECTABLE, f"{BEGIN} good 1234567", "the commit 1234567 is not among the recorded commits"),
        (BISECTABLE, "/crcr bisect stop 7", "there is no bisection"),
    ],
)
async def test_a_refusal_gives_the_reason_and_leaves_only_an_audit_entry(
    tmp_path: Path, allowlist: str, command: str, reason: str
) -> None:
    async with relay_with_broken_pull(tmp_path, allowlist) as (relay, pull):
        deliveries = len(relay.rows("SELECT guid FROM deliveries"))
        assert not was_obeyed(await write_comment(relay, pull, command))
        [answer] = relay_comments(relay, pull)
        assert reason in answer
        assert (bisections(relay), bisection_runs(relay)) == ([], [])
        assert relay.rows("SELECT * FROM bisection_runs") == []
        assert len(relay.rows("SELECT guid FROM deliveries")) == deliveries + 1
        [entry] = audit_entries(relay, "bisect")
        assert (entry["who"], entry["obeyed"]) == ("maintainer", False)


async def test_a_second_bisection_of_a_job_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        comment = await write_comment(relay, pull, f"{BEGIN}\n{BEGIN}")
        assert not was_obeyed(comment)
        assert len(bisections(relay)) == 1
        [answer] = relay_comments(relay, pull)
        assert "Bisection 1 of `build`" in answer
        assert "bisection 1 of this job is running" in answer


async def test_a_lost_answer_to_the_reply_starts_no_second_bisection(tmp_path: Path) -> None:
    async with relay_with_broken_pull(tmp_path) as (relay, pull):
        relay.github.faults.lose_answer(on=Match("POST", COMMENTS), times=1)
        await write_comment(relay, pull, BEGIN)
        await relay.pass_time(600)
        assert len(bisections(relay)) == 1
        assert len(relay_comments(relay, pull)) == 1


async def test_the_page_of_a_hidden_backend_is_not_linked(tmp_path: Path) -> None:
    listed = f"L2:\n  - {BISECTED}: {{bisect: manual, visibility: hidden}}\n"
    async with relay_with_broken_pull(tmp_path, listed) as (relay, pull):
        assert was_obeyed(await write_comment(relay, pull, BEGIN))
        [answer] = relay_comments(relay, pull)
        assert "Bisection 1" in answer
        assert "/crcr/bisections" not in answer
