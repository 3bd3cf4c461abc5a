"""Fault 60: the allowlist follows the rename of a backend, and every open gate turns green."""

from pathlib import Path

import pytest

from crcr.decide.model import RepoName
from github_sim.github import Match, PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    NAMED,
    Stage,
    finish_jobs,
    gate_state,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    run_all,
    shown_check,
    start_jobs,
    sweep_after,
    write_comment,
)
from support.stage import UPSTREAM

RENAMED = "org/renamed"
MOVED = "elsewhere/gating"
OTHER = "org/other"
JOBS = "{oncalls: [bob], jobs: [build, test]}"


def listing(*names: str, level: str = "L4") -> str:
    return f"{level}:\n" + "".join(f"  - {name}: {JOBS}\n" for name in names)


OLD = listing(GATING)
NEW = listing(RENAMED)


async def list_anew(it: Stage, allowlist: str) -> None:
    """The allowlist is edited; what follows at GitHub is still to be done."""
    it.clock.advance(1)
    it.write_allowlist(allowlist)
    await it.refresh()


async def rename(it: Stage, to: str = RENAMED) -> None:
    it.clock.advance(1)
    if to == MOVED:
        await it.github.transfer_repository(GATING, "elsewhere")
    else:
        await it.github.rename_repository(GATING, to.partition("/")[2])


def blocked(it: Stage, pull: PullRequest) -> bool:
    return not it.github.merge_state(pull).mergeable


def summary(it: Stage, pull: PullRequest) -> str:
    return str(latest_check(it, GATE, pull.head_sha).output["summary"])


def reading(name: str) -> Match:
    return Match("GET", f"/repos/{name}")


@pytest.mark.parametrize("to", [RENAMED, MOVED], ids=["renamed", "transferred"])
async def test_fault_60_a_failed_backend_still_gates_under_its_new_name(tmp_path: Path, to: str) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await rename(it, to)
        await list_anew(it, listing(to))
        await it.act()

        assert blocked(it, pull)
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "failure", f"{to} failed (build)")
        assert f"`{to}` (dispatched as `{GATING}`)" in summary(it, pull)
        # What is asked of GitHub for the old dispatch is asked under the new name.
        await write_comment(it, pull, f"/crcr retry {to}")
        run = newest_run(it, to)
        assert run.attempt == 2
        await start_jobs(it, run, "build")
        await finish_jobs(it, run, build="success")
        assert it.github.merge_state(pull).mergeable


async def test_fault_60_reports_of_the_run_that_began_under_the_old_name_are_taken(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as it:
        pull = await open_pull(it)
        run = newest_run(it)
        await it.github.start_job(run, "build")
        await rename(it)
        # Before the allowlist follows, and while the id of its new entry is not read.
        assert (await it.github.complete_job(run, "build")).status_code == 200
        await list_anew(it, NEW)
        assert (await it.github.start_job(run, "test")).status_code == 200
        await it.act()
        assert blocked(it, pull)
        assert (await it.github.complete_job(run, "test")).status_code == 200
        await it.act()
        await sweep_after(it, 60)

        assert {(row["downstream"], row["conclusion"]) for row in it.jobs()} == {(GATING, "success")}
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "success", "1 backend passed")


async def test_fault_60_while_the_new_entry_has_no_id_the_old_member_keeps_gating(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await rename(it)
        away = it.github.faults.answer(404, on=reading(RENAMED))
        await list_anew(it, NEW)
        await it.act()
        await sweep_after(it, 48 * 3600)  # the question is given up

        assert blocked(it, pull)
        assert gate_state(it, pull) == "pending"
        assert "checking for a rename" in summary(it, pull)
        assert f"install the App on `{RENAMED}`" in summary(it, pull)
        it.github.faults.remove(away)
        await it.github.uninstall(RENAMED)
        await it.github.install(RENAMED)
        await it.act()
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "failure", f"{RENAMED} failed (build)")


async def test_fault_60_a_member_that_truly_left_is_let_go_once_every_new_entry_has_its_id(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        slow = it.github.faults.answer(502, on=reading(OTHER))
        await list_anew(it, listing(OTHER))
        await it.act()
        assert gate_state(it, pull) == "pending"
        assert blocked(it, pull)
        it.github.faults.remove(slow)
        await it.pass_time(60)

        assert it.github.merge_state(pull).mergeable
        assert f"`{GATING}` has left the allowlist" in summary(it, pull)


async def test_fault_60_an_entry_that_was_listed_before_is_asked_about_again(tmp_path: Path) -> None:
    """The new name was another repository's when the relay read its id: that id says nothing now."""
    async with gated_upstream(
        tmp_path, OLD + listing(RENAMED, level="L2"), downstreams=(GATING, RENAMED)
    ) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await it.github.rename_repository(RENAMED, "attic")
        await rename(it)
        await list_anew(it, NEW)
        await it.act()

        assert blocked(it, pull)
        assert "checking for a rename" in summary(it, pull)
        number, now = it.github.repository(RENAMED).id, it.clock.now()
        await it.services.targets.rebind(RepoName(UPSTREAM), RepoName(RENAMED), number, who="op", now=now)
        await it.act()
        assert shown_check(it, GATE, pull.head_sha) == ("completed", "failure", f"{RENAMED} failed (build)")


@pytest.mark.parametrize(
    "edits",
    [
        (OLD + listing(RENAMED, level="L2"), listing(GATING, RENAMED), NEW),
        (listing(OTHER), listing(OTHER, RENAMED)),
        (listing(GATING.upper()), listing(RENAMED.upper())),
    ],
    ids=["the new name first", "the old name leaves first", "in other letters"],
)
async def test_fault_60_however_the_allowlist_is_edited_the_failure_counts_in_the_end(
    tmp_path: Path, edits: tuple[str, ...]
) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await rename(it)
        for edit in edits:
            await list_anew(it, edit)
            await it.act()

        assert blocked(it, pull)
        assert "failed (build)" in latest_check(it, GATE, pull.head_sha).output["title"]


async def test_fault_60_a_rename_that_also_lowers_the_level_gates_no_more_and_says_so(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await rename(it)
        slow = it.github.faults.answer(502, on=reading(OTHER))
        await list_anew(it, listing(RENAMED, level="L2") + listing(OTHER))
        await it.act()
        assert blocked(it, pull)  # as far as anybody knows, the other entry may be it
        it.github.faults.remove(slow)
        await it.pass_time(60)

        assert it.github.merge_state(pull).mergeable
        assert f"`{RENAMED}` is downgraded to L2" in summary(it, pull)


async def test_fault_60_a_dispatch_that_was_not_sent_yet_is_sent_to_the_new_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as it:
        it.github.faults.answer(502, on=Match("POST", f"/repos/{GATING}/dispatches"))
        pull = await open_pull(it)
        assert it.github.dispatches(GATING) == []
        await rename(it)
        await list_anew(it, NEW)
        await it.act()
        await it.pass_time(60)

        assert len(it.github.dispatches(RENAMED)) == 1
        assert shown_check(it, GATE, pull.head_sha) == ("in_progress", None, f"waiting for {RENAMED}")
        await run_all(it, RENAMED)
        assert it.github.merge_state(pull).mergeable


async def test_fault_60_a_waiver_follows_the_repository_and_not_the_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as it:
        pull = await open_pull(it)
        await run_all(it, build="failure")
        await write_comment(it, pull, f"/crcr waive {GATING} until 3d because the runner is on fire")
        assert it.github.merge_state(pull).mergeable
        await rename(it)
        await list_anew(it, NEW)
        await it.act()
        assert it.github.merge_state(pull).mergeable
        # Somebody else takes the free name, and is listed: nobody has waived that repository.
        it.github.create_repository(GATING, workflows=[NAMED])
        number, now = it.github.repository(GATING).id, it.clock.now()
        await it.services.targets.rebind(RepoName(UPSTREAM), RepoName(GATING), number, who="op", now=now)
        await list_anew(it, listing(RENAMED, GATING))
        await it.act()
        it.clock.advance(1)
        await it.github.push_to_pr(pull)
        await it.act()
        await run_all(it, GATING, build="failure")

        assert shown_check(it, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} failed (build)")
        assert f"`{RENAMED}` | waived" in summary(it, pull)
        await write_comment(it, pull, f"/crcr unwaive {RENAMED}")
        assert f"`{RENAMED}` | waiting" in summary(it, pull)
