"""Fault 60: the allowlist is edited after a rename of a backend, and every open gate turned green."""

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


async def edit_allowlist(relay: RunningRelay, allowlist: str) -> None:
    """Edit the allowlist; the resulting effects at GitHub are still pending."""
    relay.clock.advance(1)
    relay.write_allowlist(allowlist)
    await relay.refresh()


async def rename(relay: RunningRelay, new_name: str = RENAMED) -> None:
    relay.clock.advance(1)
    if new_name == MOVED:
        await relay.github.transfer_repository(GATING, "elsewhere")
    else:
        await relay.github.rename_repository(GATING, new_name.partition("/")[2])


def blocked(relay: RunningRelay, pull: PullRequest) -> bool:
    return not relay.github.merge_state(pull).mergeable


def summary(relay: RunningRelay, pull: PullRequest) -> str:
    return str(latest_check(relay, GATE, pull.head_sha).output["summary"])


def repository_lookup(name: str) -> Match:
    return Match("GET", f"/repos/{name}")


@pytest.mark.parametrize("new_name", [RENAMED, MOVED], ids=["renamed", "transferred"])
async def test_fault_60_a_failed_backend_still_gates_under_its_new_name(
    tmp_path: Path, new_name: str
) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await rename(relay, new_name)
        await edit_allowlist(relay, listing(new_name))
        await relay.drain()

        assert blocked(relay, pull)
        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{new_name} failed (build)",
        )
        assert f"`{new_name}` (dispatched as `{GATING}`)" in summary(relay, pull)
        # Requests to GitHub about the old dispatch use the new name.
        await write_comment(relay, pull, f"/crcr retry {new_name}")
        run = newest_run(relay, new_name)
        assert run.attempt == 2
        await start_jobs(relay, run, "build")
        await finish_jobs(relay, run, build="success")
        assert relay.github.merge_state(pull).mergeable


async def test_fault_60_reports_of_a_run_that_started_under_the_old_name_are_accepted(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        pull = await open_pull(relay)
        run = newest_run(relay)
        await relay.github.start_job(run, "build")
        await rename(relay)
        # Before the allowlist is edited, and while the id of its new entry is unknown.
        assert (await relay.github.complete_job(run, "build")).status_code == 200
        await edit_allowlist(relay, NEW)
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
        outage = relay.github.faults.answer(404, on=repository_lookup(RENAMED))
        await edit_allowlist(relay, NEW)
        await relay.drain()
        await sweep_after(relay, 48 * 3600)  # the lookup is given up

        assert blocked(relay, pull)
        assert gate_state(relay, pull) == "pending"
        assert "checking for a rename" in summary(relay, pull)
        assert f"install the App on `{RENAMED}`" in summary(relay, pull)
        relay.github.faults.remove(outage)
        await relay.github.uninstall(RENAMED)
        await relay.github.install(RENAMED)
        await relay.drain()
        assert shown_check(relay, GATE, pull.head_sha) == (
            "completed",
            "failure",
            f"{RENAMED} failed (build)",
        )


async def test_fault_60_a_delisted_member_stops_gating_once_every_new_entry_has_its_id(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        slow = relay.github.faults.answer(502, on=repository_lookup(OTHER))
        await edit_allowlist(relay, listing(OTHER))
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        assert blocked(relay, pull)
        relay.github.faults.remove(slow)
        await relay.pass_time(60)

        assert relay.github.merge_state(pull).mergeable
        assert f"`{GATING}` has left the allowlist" in summary(relay, pull)


async def test_fault_60_the_id_of_a_previously_listed_entry_is_read_again(tmp_path: Path) -> None:
    """The new name belonged to another repository when the relay read its id: that id is outdated."""
    async with gated_upstream(
        tmp_path, OLD + listing(RENAMED, level="L2"), downstreams=(GATING, RENAMED)
    ) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await relay.github.rename_repository(RENAMED, "attic")
        await rename(relay)
        await edit_allowlist(relay, NEW)
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
async def test_fault_60_the_failure_counts_after_any_sequence_of_allowlist_edits(
    tmp_path: Path, edits: tuple[str, ...]
) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await rename(relay)
        for edit in edits:
            await edit_allowlist(relay, edit)
            await relay.drain()

        assert blocked(relay, pull)
        assert "failed (build)" in latest_check(relay, GATE, pull.head_sha).output["title"]


async def test_fault_60_a_rename_that_also_lowers_the_level_ends_the_gating_with_an_explanation(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING, OTHER)) as relay:
        pull = await open_pull(relay)
        await run_all(relay, build="failure")
        await rename(relay)
        slow = relay.github.faults.answer(502, on=repository_lookup(OTHER))
        await edit_allowlist(relay, listing(RENAMED, level="L2") + listing(OTHER))
        await relay.drain()
        assert blocked(relay, pull)  # the other entry may still be the renamed one
        relay.github.faults.remove(slow)
        await relay.pass_time(60)

        assert relay.github.merge_state(pull).mergeable
        assert f"`{RENAMED}` is downgraded to L2" in summary(relay, pull)


async def test_fault_60_an_unsent_dispatch_is_sent_to_the_new_name(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, OLD, downstreams=(GATING,)) as relay:
        relay.github.faults.answer(502, on=Match("POST", f"/repos/{GATING}/dispatches"))
        pull = await open_pull(relay)
        assert relay.github.dispatches(GATING) == []
        await rename(relay)
        await edit_allowlist(relay, NEW)
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
        await edit_allowlist(relay, NEW)
        await relay.drain()
        assert relay.github.merge_state(pull).mergeable
        # Somebody else takes the free name, and is listed: nobody has waived that repository.
        relay.github.create_repository(GATING, workflows=[WORKFLOW_WITH_GUID])
        number, now = relay.github.repository(GATING).id, relay.clock.now()
        await relay.services.targets.rebind(RepoName(UPSTREAM), RepoName(GATING), number, who="op", now=now)
        await edit_allowlist(relay, listing(RENAMED, GATING))
        await relay.drain()
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        await relay.drain()
        await run_all(relay, GATING, build="failure")

        assert shown_check(relay, GATE, pull.head_sha) == ("completed", "failure", f"{GATING} failed (build)")
        assert f"`{RENAMED}` | waived" in summary(relay, pull)
        await write_comment(relay, pull, f"/crcr unwaive {RENAMED}")
        assert f"`{RENAMED}` | waiting" in summary(relay, pull)
