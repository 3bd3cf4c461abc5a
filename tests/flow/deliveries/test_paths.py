"""Entries with `paths`: GitHub is asked for the changed files before a dispatch; without an answer nothing is left out."""

from pathlib import Path

import pytest

from github_sim.github import Match, PullRequest
from support.github.dispatch_log import dispatched_actions, row_states
from support.github.gated_upstream import (
    GATE,
    GATING,
    gate_state,
    gated_upstream,
    latest_check,
    open_pull,
    run_all,
    shown_check,
    sweep_after,
    write_comment,
)
from support.running_relay import UPSTREAM, RunningRelay

HOUR = 3600.0
SECOND = "org/second"
THEM = (GATING, SECOND)
FILES = Match("GET", f"/repos/{UPSTREAM}/compare/*")


def l4(options: str, name: str = GATING) -> str:
    return f"L4:\n  - {name}: {{oncalls: [bob], jobs: [build, test], {options}}}\n"


DOCS = l4("paths: ['docs/**']")
BOTH = f"{DOCS}  - {SECOND}: {{oncalls: [cat], jobs: [build, test], paths: ['src/**', '*.toml']}}\n"


async def push(relay: RunningRelay, pull: PullRequest, *files: str) -> None:
    relay.clock.advance(1)
    await relay.github.push_to_pr(pull, files=files)
    await relay.drain()


def count_path_lookups(relay: RunningRelay) -> int:
    """How often GitHub was asked what changed."""
    return sum(
        len(relay.github.calls_to("GET", f"/repos/{UPSTREAM}/{path}")) for path in ("compare/*", "pulls/*")
    )


# Who is concerned


async def test_only_whoever_is_concerned_is_told_and_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as relay:
        pull = await open_pull(relay, files=["src/a.py"])

        assert (dispatched_actions(relay.github, GATING), dispatched_actions(relay.github, SECOND)) == (
            [],
            ["opened"],
        )
        await run_all(relay, SECOND)
        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "success",
            "1 backend passed, 1 not affected",
        )
        assert (
            "skipped: no changed file matches `paths`"
            in latest_check(relay, GATE, pull.head_sha).output["summary"]
        )
        await relay.github.merge_pr(pull)


async def test_nobody_is_told_inside_the_webhook_and_the_gate_waits_for_the_answer(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        away = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        assert (gate_state(relay, pull), relay.github.dispatches(GATING)) == ("pending", [])
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)

        assert dispatched_actions(relay.github, GATING) == ["opened"]
        assert shown_check(relay, GATE, pull.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_every_page_of_files_is_read(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        many = [f"a/{number:04}.py" for number in range(350)]
        await open_pull(relay, files=[*many, "docs/last.md"])

        assert len(relay.github.calls_to("GET", f"/repos/{UPSTREAM}/pulls/*/files")) == 4
        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_more_files_than_github_lists_concern_everybody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        await open_pull(relay, files=[f"a/{number:04}.py" for number in range(3000)])

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_just_below_the_limit_the_files_decide(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[f"a/{number:04}.py" for number in range(2999)])

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_refusal_to_list_the_files_concerns_everybody(tmp_path: Path, status: int) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(status, on=FILES, message="Not available")
        pull = await open_pull(relay, files=["src/a.py"])

        assert dispatched_actions(relay.github, GATING) == ["opened"]
        assert gate_state(relay, pull) == "pending"


@pytest.mark.parametrize(("old", "new"), [("docs/a.md", "src/a.md"), ("src/a.md", "docs/a.md")])
async def test_a_file_that_moved_concerns_by_where_it_was_and_by_where_it_is(
    tmp_path: Path, old: str, new: str
) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        relay.github.write_file(UPSTREAM, old, "the same text\n" * 20)
        await open_pull(relay, files={old: None, new: "the same text\n" * 20})

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_a_pull_request_that_changes_nothing_concerns_nobody_with_paths(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[])

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


async def test_one_question_serves_all_entries_of_a_delivery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as relay:
        await open_pull(relay, files=["docs/a.md", "src/a.py"])

        assert count_path_lookups(relay) == 1
        assert (dispatched_actions(relay.github, GATING), dispatched_actions(relay.github, SECOND)) == (
            ["opened"],
            ["opened"],
        )


async def test_without_paths_nobody_asks(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)

        assert count_path_lookups(relay) == 0


# One thing after another


async def test_a_draft_is_held_first_and_asked_about_when_it_is_ready(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], drafts: false")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, draft=True, files=["src/a.py"])
        assert (count_path_lookups(relay), shown_check(relay, GATE, pull.head_sha)) == (
            0,
            ("in_progress", None, f"{GATING} is held (draft)"),
        )
        relay.clock.advance(1)
        await relay.github.ready_for_review(pull)
        await relay.drain()

        assert count_path_lookups(relay) == 1
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


async def test_a_draft_again_before_the_answer_is_held_again(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], drafts: false")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as relay:
        away = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        relay.clock.advance(1)
        await relay.github.convert_to_draft(pull)
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)
        assert relay.github.dispatches(GATING) == []
        relay.clock.advance(1)
        await relay.github.ready_for_review(pull)
        await relay.drain()

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_an_approval_is_waited_for_before_the_files_are_asked_for(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], authors: approved")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=["docs/a.md"])
        assert (count_path_lookups(relay), relay.github.dispatches(GATING)) == (0, [])
        await write_comment(relay, pull, "/crcr approve")

        assert (count_path_lookups(relay), dispatched_actions(relay.github, GATING)) == (1, ["opened"])


async def test_a_new_push_asks_anew(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=["src/a.py"])
        assert gate_state(relay, pull) == "success"
        await push(relay, pull, "docs/a.md")

        assert count_path_lookups(relay) == 2
        assert dispatched_actions(relay.github, GATING) == ["synchronize"]
        assert gate_state(relay, pull) == "pending"


async def test_a_push_before_the_answer_drops_the_older_question(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        away = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        await push(relay, pull, "docs/b.md")
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)

        assert dispatched_actions(relay.github, GATING) == ["synchronize"]
        assert row_states(relay, "dispatches", downstream=GATING) == ["cancelled", "sent"]


async def test_closing_tells_whoever_was_concerned_and_nobody_else(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as relay:
        pull = await open_pull(relay, files=["src/a.py"])
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert (dispatched_actions(relay.github, GATING), dispatched_actions(relay.github, SECOND)) == (
            [],
            ["opened", "closed"],
        )


async def test_closing_before_the_answer_leaves_the_opening_untold(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        away = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)

        assert "opened" not in dispatched_actions(relay.github, GATING)
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "cancelled", "superseded or closed")


async def test_a_backend_that_leaves_before_the_answer_is_neither_told_nor_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as relay:
        away = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        relay.write_allowlist(BOTH.replace(DOCS, "L4:\n"))
        await relay.refresh()
        relay.github.faults.remove(away)
        await sweep_after(relay, HOUR)

        assert relay.github.dispatches() == []
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


# Pushes


@pytest.mark.parametrize(("path", "pushes"), [("docs/a.md", 1), ("src/a.py", 0)])
async def test_a_push_names_its_files_itself(tmp_path: Path, path: str, pushes: int) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        await relay.github.push(UPSTREAM, files={path: "text"})
        await relay.drain()

        assert len(relay.github.dispatches(GATING)) == pushes
        assert count_path_lookups(relay) == 0


async def test_a_push_that_names_no_files_concerns_everybody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        await relay.github.push(UPSTREAM, ref="refs/heads/release/1.0", created=True, commits=0)
        await relay.drain()

        assert len(relay.github.dispatches(GATING)) == 1
