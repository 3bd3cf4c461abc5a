"""Entries with `paths`: GitHub is asked what changed before anybody is told, and no answer leaves nobody out."""

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
from support.stage import UPSTREAM, Stage

HOUR = 3600.0
SECOND = "org/second"
THEM = (GATING, SECOND)
FILES = Match("GET", f"/repos/{UPSTREAM}/compare/*")


def l4(options: str, name: str = GATING) -> str:
    return f"L4:\n  - {name}: {{oncalls: [bob], jobs: [build, test], {options}}}\n"


DOCS = l4("paths: ['docs/**']")
BOTH = f"{DOCS}  - {SECOND}: {{oncalls: [cat], jobs: [build, test], paths: ['src/**', '*.toml']}}\n"


async def push(it: Stage, pull: PullRequest, *files: str) -> None:
    it.clock.advance(1)
    await it.github.push_to_pr(pull, files=files)
    await it.act()


def asked(it: Stage) -> int:
    """How often GitHub was asked what changed."""
    return sum(
        len(it.github.calls_to("GET", f"/repos/{UPSTREAM}/{path}")) for path in ("compare/*", "pulls/*")
    )


# Who is concerned


async def test_only_whoever_is_concerned_is_told_and_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as it:
        pull = await open_pull(it, files=["src/a.py"])

        assert (dispatched_actions(it.github, GATING), dispatched_actions(it.github, SECOND)) == (
            [],
            ["opened"],
        )
        await run_all(it, SECOND)
        assert shown_check(it, GATE, pull.head_sha) == (
            "completed",
            "success",
            "1 backend passed, 1 not affected",
        )
        assert (
            "skipped: no changed file matches `paths`"
            in latest_check(it, GATE, pull.head_sha).output["summary"]
        )
        await it.github.merge_pr(pull)


async def test_nobody_is_told_inside_the_webhook_and_the_gate_waits_for_the_answer(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        away = it.github.faults.answer(502, on=FILES)
        pull = await open_pull(it, files=["docs/a.md"])
        assert (gate_state(it, pull), it.github.dispatches(GATING)) == ("pending", [])
        it.github.faults.remove(away)
        await sweep_after(it, HOUR)

        assert dispatched_actions(it.github, GATING) == ["opened"]
        assert shown_check(it, GATE, pull.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_every_page_of_files_is_read(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        many = [f"a/{number:04}.py" for number in range(350)]
        await open_pull(it, files=[*many, "docs/last.md"])

        assert len(it.github.calls_to("GET", f"/repos/{UPSTREAM}/pulls/*/files")) == 4
        assert dispatched_actions(it.github, GATING) == ["opened"]


async def test_more_files_than_github_lists_concern_everybody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        await open_pull(it, files=[f"a/{number:04}.py" for number in range(3000)])

        assert dispatched_actions(it.github, GATING) == ["opened"]


async def test_just_below_the_limit_the_files_decide(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        pull = await open_pull(it, files=[f"a/{number:04}.py" for number in range(2999)])

        assert shown_check(it, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_refusal_to_list_the_files_concerns_everybody(tmp_path: Path, status: int) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        it.github.faults.answer(status, on=FILES, message="Not available")
        pull = await open_pull(it, files=["src/a.py"])

        assert dispatched_actions(it.github, GATING) == ["opened"]
        assert gate_state(it, pull) == "pending"


@pytest.mark.parametrize(("old", "new"), [("docs/a.md", "src/a.md"), ("src/a.md", "docs/a.md")])
async def test_a_file_that_moved_concerns_by_where_it_was_and_by_where_it_is(
    tmp_path: Path, old: str, new: str
) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        it.github.write_file(UPSTREAM, old, "the same text\n" * 20)
        await open_pull(it, files={old: None, new: "the same text\n" * 20})

        assert dispatched_actions(it.github, GATING) == ["opened"]


async def test_a_pull_request_that_changes_nothing_concerns_nobody_with_paths(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        pull = await open_pull(it, files=[])

        assert shown_check(it, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


async def test_one_question_serves_all_entries_of_a_delivery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as it:
        await open_pull(it, files=["docs/a.md", "src/a.py"])

        assert asked(it) == 1
        assert (dispatched_actions(it.github, GATING), dispatched_actions(it.github, SECOND)) == (
            ["opened"],
            ["opened"],
        )


async def test_without_paths_nobody_asks(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as it:
        await open_pull(it)

        assert asked(it) == 0


# One thing after another


async def test_a_draft_is_held_first_and_asked_about_when_it_is_ready(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], drafts: false")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as it:
        pull = await open_pull(it, draft=True, files=["src/a.py"])
        assert (asked(it), shown_check(it, GATE, pull.head_sha)) == (
            0,
            ("in_progress", None, f"{GATING} is held (draft)"),
        )
        it.clock.advance(1)
        await it.github.ready_for_review(pull)
        await it.act()

        assert asked(it) == 1
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


async def test_a_draft_again_before_the_answer_is_held_again(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], drafts: false")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as it:
        away = it.github.faults.answer(502, on=FILES)
        pull = await open_pull(it, files=["docs/a.md"])
        it.clock.advance(1)
        await it.github.convert_to_draft(pull)
        it.github.faults.remove(away)
        await sweep_after(it, HOUR)
        assert it.github.dispatches(GATING) == []
        it.clock.advance(1)
        await it.github.ready_for_review(pull)
        await it.act()

        assert dispatched_actions(it.github, GATING) == ["opened"]


async def test_an_approval_is_waited_for_before_the_files_are_asked_for(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], authors: approved")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as it:
        pull = await open_pull(it, files=["docs/a.md"])
        assert (asked(it), it.github.dispatches(GATING)) == (0, [])
        await write_comment(it, pull, "/crcr approve")

        assert (asked(it), dispatched_actions(it.github, GATING)) == (1, ["opened"])


async def test_a_new_push_asks_anew(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        pull = await open_pull(it, files=["src/a.py"])
        assert gate_state(it, pull) == "success"
        await push(it, pull, "docs/a.md")

        assert asked(it) == 2
        assert dispatched_actions(it.github, GATING) == ["synchronize"]
        assert gate_state(it, pull) == "pending"


async def test_a_push_before_the_answer_drops_the_older_question(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        away = it.github.faults.answer(502, on=FILES)
        pull = await open_pull(it, files=["docs/a.md"])
        await push(it, pull, "docs/b.md")
        it.github.faults.remove(away)
        await sweep_after(it, HOUR)

        assert dispatched_actions(it.github, GATING) == ["synchronize"]
        assert row_states(it, "dispatches", downstream=GATING) == ["cancelled", "sent"]


async def test_closing_tells_whoever_was_concerned_and_nobody_else(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as it:
        pull = await open_pull(it, files=["src/a.py"])
        it.clock.advance(1)
        await it.github.close_pr(pull)
        await it.act()

        assert (dispatched_actions(it.github, GATING), dispatched_actions(it.github, SECOND)) == (
            [],
            ["opened", "closed"],
        )


async def test_closing_before_the_answer_leaves_the_opening_untold(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        away = it.github.faults.answer(502, on=FILES)
        pull = await open_pull(it, files=["docs/a.md"])
        it.clock.advance(1)
        await it.github.close_pr(pull)
        it.github.faults.remove(away)
        await sweep_after(it, HOUR)

        assert "opened" not in dispatched_actions(it.github, GATING)
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "cancelled", "superseded or closed")


async def test_a_backend_that_leaves_before_the_answer_is_neither_told_nor_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=THEM) as it:
        away = it.github.faults.answer(502, on=FILES)
        pull = await open_pull(it, files=["docs/a.md"])
        it.write_allowlist(BOTH.replace(DOCS, "L4:\n"))
        await it.refresh()
        it.github.faults.remove(away)
        await sweep_after(it, HOUR)

        assert it.github.dispatches() == []
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


# Pushes


@pytest.mark.parametrize(("path", "pushes"), [("docs/a.md", 1), ("src/a.py", 0)])
async def test_a_push_names_its_files_itself(tmp_path: Path, path: str, pushes: int) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        await it.github.push(UPSTREAM, files={path: "text"})
        await it.act()

        assert len(it.github.dispatches(GATING)) == pushes
        assert asked(it) == 0


async def test_a_push_that_names_no_files_concerns_everybody(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as it:
        await it.github.push(UPSTREAM, ref="refs/heads/release/1.0", created=True, commits=0)
        await it.act()

        assert len(it.github.dispatches(GATING)) == 1
