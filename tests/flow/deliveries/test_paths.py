"""Entries with `paths`: the changed files are read from GitHub before a dispatch; without a list, all backends run."""

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
DOWNSTREAMS = (GATING, SECOND)
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
    """The number of requests to GitHub for the changed files."""
    return sum(
        len(relay.github.calls_to("GET", f"/repos/{UPSTREAM}/{path}")) for path in ("compare/*", "pulls/*")
    )


# Which backends are affected


async def test_only_affected_backends_are_dispatched_to_and_waited_for(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=DOWNSTREAMS) as relay:
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


async def test_no_dispatch_is_sent_and_the_gate_waits_until_the_changed_files_are_known(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        outage = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        assert (gate_state(relay, pull), relay.github.dispatches(GATING)) == ("pending", [])
        relay.github.faults.remove(outage)
        await sweep_after(relay, HOUR)

        assert dispatched_actions(relay.github, GATING) == ["opened"]
        assert shown_check(relay, GATE, pull.head_sha) == ("in_progress", None, f"waiting for {GATING}")


async def test_all_pages_of_the_changed_files_are_read(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        many = [f"a/{number:04}.py" for number in range(350)]
        await open_pull(relay, files=[*many, "docs/last.md"])

        assert len(relay.github.calls_to("GET", f"/repos/{UPSTREAM}/pulls/*/files")) == 4
        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_more_changed_files_than_github_lists_affect_every_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        await open_pull(relay, files=[f"a/{number:04}.py" for number in range(3000)])

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_just_below_githubs_limit_the_changed_files_decide(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[f"a/{number:04}.py" for number in range(2999)])

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


@pytest.mark.parametrize("status", [403, 404, 422])
async def test_a_refusal_to_list_the_changed_files_affects_every_backend(tmp_path: Path, status: int) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(status, on=FILES, message="Not available")
        pull = await open_pull(relay, files=["src/a.py"])

        assert dispatched_actions(relay.github, GATING) == ["opened"]
        assert gate_state(relay, pull) == "pending"


@pytest.mark.parametrize(("old", "new"), [("docs/a.md", "src/a.md"), ("src/a.md", "docs/a.md")])
async def test_a_moved_file_matches_by_its_old_and_by_its_new_path(
    tmp_path: Path, old: str, new: str
) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        relay.github.write_file(UPSTREAM, old, "the same text\n" * 20)
        await open_pull(relay, files={old: None, new: "the same text\n" * 20})

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_a_pull_request_without_changed_files_affects_no_backend_with_paths(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=[])

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


async def test_one_file_lookup_serves_all_entries_of_a_delivery(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=DOWNSTREAMS) as relay:
        await open_pull(relay, files=["docs/a.md", "src/a.py"])

        assert count_path_lookups(relay) == 1
        assert (dispatched_actions(relay.github, GATING), dispatched_actions(relay.github, SECOND)) == (
            ["opened"],
            ["opened"],
        )


async def test_entries_without_paths_need_no_file_lookup(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path) as relay:
        await open_pull(relay)

        assert count_path_lookups(relay) == 0


# Order of holding, file lookup and release


async def test_a_draft_is_held_first_and_its_files_are_looked_up_when_it_is_ready(tmp_path: Path) -> None:
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


async def test_a_pull_request_converted_to_draft_before_the_file_lookup_is_held(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], drafts: false")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as relay:
        outage = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        relay.clock.advance(1)
        await relay.github.convert_to_draft(pull)
        relay.github.faults.remove(outage)
        await sweep_after(relay, HOUR)
        assert relay.github.dispatches(GATING) == []
        relay.clock.advance(1)
        await relay.github.ready_for_review(pull)
        await relay.drain()

        assert dispatched_actions(relay.github, GATING) == ["opened"]


async def test_the_file_lookup_waits_for_the_approval(tmp_path: Path) -> None:
    allowlist = l4("paths: ['docs/**'], authors: approved")
    async with gated_upstream(tmp_path, allowlist, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=["docs/a.md"])
        assert (count_path_lookups(relay), relay.github.dispatches(GATING)) == (0, [])
        await write_comment(relay, pull, "/crcr approve")

        assert (count_path_lookups(relay), dispatched_actions(relay.github, GATING)) == (1, ["opened"])


async def test_a_new_push_looks_up_its_files_again(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay, files=["src/a.py"])
        assert gate_state(relay, pull) == "success"
        await push(relay, pull, "docs/a.md")

        assert count_path_lookups(relay) == 2
        assert dispatched_actions(relay.github, GATING) == ["synchronize"]
        assert gate_state(relay, pull) == "pending"


async def test_a_push_before_the_file_lookup_cancels_the_older_dispatch(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        outage = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        await push(relay, pull, "docs/b.md")
        relay.github.faults.remove(outage)
        await sweep_after(relay, HOUR)

        assert dispatched_actions(relay.github, GATING) == ["synchronize"]
        assert row_states(relay, "dispatches", downstream=GATING) == ["cancelled", "sent"]


async def test_closing_is_dispatched_only_to_affected_backends(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=DOWNSTREAMS) as relay:
        pull = await open_pull(relay, files=["src/a.py"])
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        await relay.drain()

        assert (dispatched_actions(relay.github, GATING), dispatched_actions(relay.github, SECOND)) == (
            [],
            ["opened", "closed"],
        )


async def test_closing_before_the_file_lookup_drops_the_opened_event(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        outage = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        relay.clock.advance(1)
        await relay.github.close_pr(pull)
        relay.github.faults.remove(outage)
        await sweep_after(relay, HOUR)

        assert "opened" not in dispatched_actions(relay.github, GATING)
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "cancelled", "superseded or closed")


async def test_a_backend_delisted_before_the_file_lookup_gets_no_dispatch_and_is_not_waited_for(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, BOTH, downstreams=DOWNSTREAMS) as relay:
        outage = relay.github.faults.answer(502, on=FILES)
        pull = await open_pull(relay, files=["docs/a.md"])
        relay.write_allowlist(BOTH.replace(DOCS, "L4:\n"))
        await relay.refresh()
        relay.github.faults.remove(outage)
        await sweep_after(relay, HOUR)

        assert relay.github.dispatches() == []
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 not affected")


# Pushes


@pytest.mark.parametrize(("path", "pushes"), [("docs/a.md", 1), ("src/a.py", 0)])
async def test_a_push_event_lists_its_own_files_and_needs_no_lookup(
    tmp_path: Path, path: str, pushes: int
) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        await relay.github.push(UPSTREAM, files={path: "text"})
        await relay.drain()

        assert len(relay.github.dispatches(GATING)) == pushes
        assert count_path_lookups(relay) == 0


async def test_a_push_event_without_files_affects_every_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, DOCS, downstreams=(GATING,)) as relay:
        await relay.github.push(UPSTREAM, ref="refs/heads/release/1.0", created=True, commits=0)
        await relay.drain()

        assert len(relay.github.dispatches(GATING)) == 1
