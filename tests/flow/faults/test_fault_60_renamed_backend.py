"""Fault 60: the allowlist follows the rename of a backend, and every open gate turns green."""

from pathlib import Path

import pytest

from crcr.decide.model import RepoName
from github_sim.github import Match, PullRequest
from support.github.gated_upstream import (
    GATE,
    GATING,
    WORKFLOW_WITH_GUID,
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
from support.running_relay import UPSTREAM, RunningRelay

RENAMED = "org/renamed"
MOVED = "elsewhere/gating"
OTHER = "org/other"
JOBS = "{oncalls: [bob], jobs: [build, test]}"


def listing(*names: str, level: str = "L4") -> str:
    return f"{level}:\n" + "".join(f"  - {name}: {JOBS}\n" for name in names)


OLD = listing(GATING)
NEW = listing(RENAMED)


async def list_anew(relay: RunningRelay, allowlist: str) -> None:
    """The allowlist is edited; what follows at GitHub is still to be done."""
    relay.clock.advance(1)
    relay.write_allowlist(allowlist)
    await relay.refresh()


async def rename(relay: RunningRelay, to: str = RENAMED) -> None:
    relay.clock.advance(1)
    if to == MOVED:
        await relay.github.transfer_repository(GATING, "elsewhere")
    else:
        await relay.github.rename_repository(GATING, to.partition("/")[2])


def blocked(relay: RunningRelay, pull: PullRequest) -> bool:
    return not relay.github.merge_state(pull).mergeable


def summary(relay: RunningRelay, pull: PullRequest) -> str:
    return str(latest_check(relay, GATE, pull.head_sha).output["summary"])


def reading(name: str) -> Match:
    return Match("GET", f"/repos/{name}")


@pytest.mark.parametrize("to", [RENAMED, MOVED], ids=["renamed", "transferred"])
async def test_fault_60_a_failed_backend_still_gates_under_its_new_name(tmp_path: Path, to: str) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await rename(relay, to)
        await list_anew(relay, listing(to))
        await relay.drain()

        assert blocked(relay, pull)
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{to} failed (build)")
        assert f"`{to}` (dispatched as `{GATING}`)" in summary(relay, pull)
        # What is asked of GitHub for the old dispatch is asked under the new name.
        await write_comment(relay, pull, f"/crcr retry {to}")
        run = newest_run(relay, to)
        assert run.attempt == 2
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")
        assert relay.github.merge_state(pull).mergeable


async def test_fault_60_reports_of_the_run_that_began_under_the_old_name_are_taken(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await relay.github.start_job(run, "build")
        await rename(relay)
        # Before the allowlist follows, and while the id of its new entry is not read.
        assert (await relay.github.complete_job(run, "build")).status_code == 200
        await list_anew(relay, NEW)
        assert (await relay.github.start_job(run, "test")).status_code == 200
        await relay.drain()
        assert blocked(relay, pull)
        assert (await relay.github.complete_job(run, "test")).status_code == 200
        await relay.drain()
        await sweep_after(relay, 60)

        assert {(row["downstream"], row["conclusion"]) for row in relay.jobs()} == {(GATING, "success")}
        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "success", "1 backend passed")


async def test_fault_60_while_the_new_entry_has_no_id_the_old_member_keeps_gating(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await rename(relay)
        away = relay.github.faults.answer(404, on=reading(RENAMED))
        await list_anew(relay, NEW)
        await relay.drain()
        await sweep_after(relay, 48 * 3600)  # the question is given up

        assert blocked(relay, pull)
        assert gate_state(relay, pull) == "pending"
        assert "checking for a rename" in summary(relay, pull)
        assert f"install the App on `{RENAMED}`" in summary(relay, pull)
        relay.github.faults.remove(away)
        await relay.github.uninstall(RENAMED)
        await relay.github.install(RENAMED)
        await relay.drain()
        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{RENAMED} failed (build)",
        )


async def test_fault_60_a_member_that_truly_left_is_let_go_once_every_new_entry_has_its_id(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        slow = relay.github.faults.answer(502, on=reading(OTHER))
        await list_anew(relay, listing(OTHER))
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        assert blocked(relay, pull)
        relay.github.faults.remove(slow)
        await relay.pass_time(60)

        assert relay.github.merge_state(pull).mergeable
        assert f"`{GATING}` has left the allowlist" in summary(relay, pull)


async def test_fault_60_an_entry_that_was_listed_before_is_asked_about_again(tmp_path: Path) -> None:
    """The new name was another repository's when the relay read its id: that id says nothing now."""
    async with gated_upstream(
        tmp_path, OLD + listing(RENAMED, level="L2"), downstreams=(GATING, RENAMED)
    ) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await relay.github.rename_repository(RENAMED, "attic")
        await rename(relay)
        await list_anew(relay, NEW)
        await relay.drain()

        assert blocked(relay, pull)
        assert "checking for a rename" in summary(relay, pull)
        number, now = relay.github.repository(RENAMED).id, relay.clock.now()
        await relay.services.targets.rebind(RepoName(UPSTREAM), RepoName(RENAMED), number, who="op", now=now)
        await relay.drain()
        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{RENAMED} failed (build)",
        )


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
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await rename(relay)
        for edit in edits:
            await list_anew(relay, edit)
            await relay.drain()

        assert blocked(relay, pull)
        assert "failed (build)" in latest_check(relay, GATE, pull.head_sha).output["title"]


async def test_fault_60_a_rename_that_also_lowers_the_level_gates_no_more_and_says_so(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await rename(relay)
        slow = relay.github.faults.answer(502, on=reading(OTHER))
        await list_anew(relay, listing(RENAMED, level="L2") + listing(OTHER))
        await relay.drain()
        assert blocked(relay, pull)  # as far as anybody knows, the other entry may be it
        relay.github.faults.remove(slow)
        await relay.pass_time(60)

        assert relay.github.merge_state(pull).mergeable
        assert f"`{RENAMED}` is downgraded to L2" in summary(relay, pull)


async def test_fault_60_a_dispatch_that_was_not_sent_yet_is_sent_to_the_new_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(502, on=Match("POST", f"/repos/{GATING}/dispatches"))
        pull = await open_pull(relay)
        assert relay.github.dispatches(GATING) == []
        await rename(relay)
        await list_anew(relay, NEW)
        await relay.drain()
        await relay.pass_time(60)

        assert len(relay.github.dispatches(RENAMED)) == 1
        assert shown_check(relay, GATE, pull.head_sha) == ("in_progress", None, f"waiting for {RENAMED}")
        await run_all(relay, RENAMED)
        assert relay.github.merge_state(pull).mergeable


async def test_fault_60_a_waiver_follows_the_repository_and_not_the_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, f"/crcr waive {GATING} until 3d because the runner is on fire")
        assert relay.github.merge_state(pull).mergeable
        await rename(relay)
        await list_anew(relay, NEW)
        await relay.drain()
        assert relay.github.merge_state(pull).mergeable
        # Somebody else takes the free name, and is listed: nobody has waived that repository.
        relay.github.create_repository(GATING, workflows=[WORKFLOW_WITH_GUID])
        number, now = relay.github.repository(GATING).id, relay.clock.now()
        await relay.services.targets.rebind(RepoName(UPSTREAM), RepoName(GATING), number, who="op", now=now)
        await list_anew(relay, listing(RENAMED, GATING))
        await relay.drain()
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await run_all(relay, GATING, build="failure")

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} failed (build)")
        assert f"`{RENAMED}` | waived" in summary(relay, pull)
        await write_comment(relay, pull, f"/crcr unwaive {RENAMED}")
        assert f"`{RENAMED}` | waiting" in summary(relay, pull)
