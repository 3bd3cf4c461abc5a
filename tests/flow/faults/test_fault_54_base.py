"""Fault 54: results, waivers and approvals of a pull request on one base do not count on another.

The simulator's merge rule decides: whether GitHub would merge the pull request into the default branch.
"""

from pathlib import Path
from typing import Any

from github_sim.github import PullRequest
from support.github.checks import open_twin
from support.github.commands import WAIVE
from support.github.gated_upstream import (
    GATE,
    GATING,
    gate_state,
    gated_upstream,
    open_pull,
    run_all,
    write_comment,
)
from support.github.merge_queue import dispatched_groups, enqueue, settle_queue
from support.running_relay import UPSTREAM, RunningRelay

STACK = "stack"
ATEN = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], paths: ['aten/**']}}\n"
ANY = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
APPROVED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], authors: approved}}\n"


async def push_stack(relay: RunningRelay, *paths: str) -> None:
    """A branch of the upstream with these files; none of it was tested."""
    await relay.github.push(
        UPSTREAM, ref=f"refs/heads/{STACK}", created=True, files=dict.fromkeys(paths, "evil")
    )
    await relay.drain()
    relay.github.world.dispatches.clear()


async def retarget(relay: RunningRelay, pull: PullRequest, base: str = "main") -> None:
    relay.clock.advance(1)
    await relay.github.edit_pr(pull, base=base)
    await relay.drain()


def dispatched_pulls(relay: RunningRelay) -> list[tuple[str, str, str | None]]:
    """(action, base, relay.reason) of every pull request event that was dispatched to the backend."""
    bodies: list[dict[str, Any]] = [dispatch.client_payload for dispatch in relay.github.dispatches(GATING)]
    return [
        (
            body["payload"]["action"],
            body["payload"]["pull_request"]["base"]["ref"],
            body["relay"].get("reason"),
        )
        for body in bodies
        if "pull_request" in body["payload"]
    ]


def mergeable(relay: RunningRelay, pull: PullRequest) -> bool:
    return relay.github.merge_state(pull).mergeable


async def open_green_on_stack(relay: RunningRelay) -> PullRequest:
    """A pull request whose gate is green on an unprotected branch."""
    pull = await open_pull(relay, base=STACK, files=["docs/a.md"])
    if gate_state(relay, pull) != "success":
        await run_all(relay)
    assert gate_state(relay, pull) == "success"
    return pull


async def test_fault_54_a_retargeted_pull_request_is_tested_on_its_new_base_before_it_merges(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_green_on_stack(relay)
        await retarget(relay, pull)

        assert (gate_state(relay, pull), mergeable(relay, pull)) == ("pending", False)
        assert dispatched_pulls(relay) == [("opened", STACK, None), ("synchronize", "main", "base_changed")]
        checks = [check for check in relay.github.checks(UPSTREAM, pull.head_sha) if check.name == GATE]
        assert len(checks) == 2
        page = (await relay.http.get(f"/crcr/pr/{pull.number}")).text
        assert "base changed to main" in page

        await run_all(relay, build="failure")
        assert not mergeable(relay, pull)
        [delivery] = relay.rows("SELECT action, relay_reason FROM deliveries WHERE relay_reason IS NOT NULL")
        assert delivery == {"action": "edited", "relay_reason": "base_changed"}


async def test_fault_54_files_of_the_stack_below_affect_a_backend_before_any_retarget(
    tmp_path: Path,
) -> None:
    """The webhook of the retarget is lost: GitHub continues to show the gate of the stack."""
    async with gated_upstream(tmp_path, ATEN, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_pull(relay, base=STACK, files=["docs/a.md"])
        relay.github.faults.webhooks.lose(event="pull_request")
        relay.clock.advance(1)
        await relay.github.edit_pr(pull, base="main")
        assert not mergeable(relay, pull)
        assert [action for action, _, _ in dispatched_pulls(relay)] == ["opened"]

        await run_all(relay, build="failure")
        assert not mergeable(relay, pull)


async def test_fault_54_more_files_than_github_compares_affect_every_backend(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ATEN, downstreams=(GATING,)) as relay:
        await push_stack(relay, *(f"a/{number:04}.py" for number in range(300)), "aten/evil.cpp")
        await open_pull(relay, base=STACK, files=["docs/a.md"])

        assert [action for action, _, _ in dispatched_pulls(relay)] == ["opened"]


async def test_fault_54_changed_files_are_read_again_for_the_new_base(tmp_path: Path) -> None:
    """No stack is involved, and the new base lacks a file of the default branch."""
    async with gated_upstream(tmp_path, ATEN, downstreams=(GATING,)) as relay:
        await relay.github.push(UPSTREAM, ref="refs/heads/release", created=True, commits=0)
        relay.github.write_file(UPSTREAM, "aten/new.cpp", "on main only")
        pull = await open_pull(relay, files=["docs/a.md"])
        assert (gate_state(relay, pull), dispatched_pulls(relay)) == ("success", [])
        await retarget(relay, pull, "release")

        assert dispatched_pulls(relay) == [("synchronize", "release", "base_changed")]
        assert gate_state(relay, pull) == "pending"


async def test_fault_54_the_first_event_after_a_lost_edited_reveals_the_new_base(tmp_path: Path) -> None:
    """The `edited` event is lost; a later `labeled` event has the new base."""
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_green_on_stack(relay)
        lost = relay.github.faults.webhooks.lose(event="pull_request")
        relay.clock.advance(1)
        await relay.github.edit_pr(pull, base="main")
        relay.github.faults.webhooks.remove(lost)
        relay.clock.advance(1)
        await relay.github.label_pr(pull, "bug")
        await relay.drain()

        assert (gate_state(relay, pull), mergeable(relay, pull)) == ("pending", False)
        assert dispatched_pulls(relay)[1:] == [("synchronize", "main", "base_changed")]
        await run_all(relay)
        assert mergeable(relay, pull)


async def test_fault_54_a_push_that_arrives_after_its_later_retarget_is_superseded(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_green_on_stack(relay)
        held = relay.github.faults.webhooks.hold(event="pull_request")
        relay.clock.advance(1)
        await relay.github.push_to_pr(pull)
        relay.clock.advance(1)
        await relay.github.edit_pr(pull, base="main")
        relay.github.faults.webhooks.remove(held)
        await relay.github.release_webhooks([1, 0])
        await relay.drain()

        assert dispatched_pulls(relay)[1:] == [("synchronize", "main", "base_changed")]
        states = relay.rows(
            "SELECT action, state FROM deliveries WHERE number IS NOT NULL ORDER BY received_at, guid"
        )
        assert {row["action"]: row["state"] for row in states}["synchronize"] == "superseded"
        assert not mergeable(relay, pull)
        await run_all(relay)
        assert mergeable(relay, pull)


async def test_fault_54_a_retarget_within_one_second_is_resolved_by_github_and_closes_the_gate(
    tmp_path: Path,
) -> None:
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_green_on_stack(relay)
        lookup = ("GET", f"/repos/{UPSTREAM}/pulls/{pull.number}")
        before = len(relay.github.calls_to(*lookup))
        await relay.github.edit_pr(pull, base="main")
        assert len(relay.github.calls_to(*lookup)) == before
        await relay.services.worker.drain()

        assert len(relay.github.calls_to(*lookup)) == before + 1
        assert (gate_state(relay, pull), mergeable(relay, pull)) == ("pending", False)
        assert dispatched_pulls(relay)[1:] == [("synchronize", "main", "base_changed")]
        [row] = relay.rows("SELECT base_ref FROM pulls")
        assert row["base_ref"] == "main"


async def test_fault_54_a_waiver_for_one_base_waives_nothing_on_another(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_pull(relay, base=STACK)
        await run_all(relay, build="failure")
        await write_comment(relay, pull, WAIVE.replace(" because", " until 3d because"))
        await write_comment(relay, pull, WAIVE)
        assert gate_state(relay, pull) == "success"
        await retarget(relay, pull)
        assert (gate_state(relay, pull), mergeable(relay, pull)) == ("pending", False)
        await run_all(relay, build="failure")
        assert not mergeable(relay, pull)

        await write_comment(relay, pull, WAIVE)
        assert mergeable(relay, pull)


async def test_fault_54_an_approval_for_one_base_releases_nothing_on_another(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_pull(relay, base=STACK)
        await write_comment(relay, pull, "/crcr approve")
        assert [action for action, _, _ in dispatched_pulls(relay)] == ["opened"]
        await retarget(relay, pull)

        assert [action for action, _, _ in dispatched_pulls(relay)] == ["opened"]
        assert not mergeable(relay, pull)
        await write_comment(relay, pull, "/crcr approve")
        assert dispatched_pulls(relay)[1:] == [("synchronize", "main", "base_changed")]


async def test_fault_54_the_merge_queue_reuses_no_result_of_another_base(tmp_path: Path) -> None:
    """The `edited` event is lost, and the group has the same tree that passed on the stack."""
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await relay.github.push(UPSTREAM, ref=f"refs/heads/{STACK}", created=True, commits=0)
        await relay.drain()
        pull = await open_green_on_stack(relay)
        relay.github.faults.webhooks.lose(event="pull_request", times=1)
        relay.clock.advance(1)
        await relay.github.edit_pr(pull, base="main")
        relay.clock.advance(1)
        group = await enqueue(relay, pull)

        assert dispatched_groups(relay, GATING) == [("checks_requested", group.head_sha)]
        await settle_queue(relay)
        assert pull.state == "open"
        await run_all(relay)
        await settle_queue(relay)
        assert pull.merged


async def test_fault_54_two_pull_requests_on_one_head_are_judged_each_on_its_own_base(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_green_on_stack(relay)
        twin = await open_twin(relay, pull, base="main")
        assert twin.head_sha == pull.head_sha
        assert not mergeable(relay, twin)
        await run_all(relay, build="failure")
        assert not mergeable(relay, twin)

        await retarget(relay, twin, STACK)
        await run_all(relay)
        assert gate_state(relay, twin) == "success"
        await retarget(relay, pull)
        assert not mergeable(relay, pull)


async def test_fault_54_a_return_to_the_first_base_is_tested_again(tmp_path: Path) -> None:
    """The webhook of the first retarget is lost; the one of the return names the other base."""
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_pull(relay)
        await run_all(relay)
        assert mergeable(relay, pull)
        relay.github.faults.webhooks.lose(event="pull_request", times=1)
        await retarget(relay, pull, STACK)
        await retarget(relay, pull)

        assert not mergeable(relay, pull)
        assert dispatched_pulls(relay)[1:] == [("synchronize", "main", "base_changed")]


async def test_fault_54_an_old_event_does_not_move_the_base_back(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, ANY, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_green_on_stack(relay)
        held = relay.github.faults.webhooks.hold(event="pull_request")
        relay.clock.advance(1)
        await relay.github.label_pr(pull, "bug")
        relay.github.faults.webhooks.remove(held)
        await retarget(relay, pull)
        await relay.github.release_webhooks()
        await relay.drain()

        assert not mergeable(relay, pull)
        assert [row["base_ref"] for row in relay.rows("SELECT base_ref FROM pulls")] == ["main"]
        assert len(dispatched_pulls(relay)) == 2


async def test_fault_54_a_held_dispatch_for_the_old_base_is_not_sent(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, APPROVED, downstreams=(GATING,)) as relay:
        await push_stack(relay, "aten/evil.cpp")
        pull = await open_pull(relay, base=STACK)
        await retarget(relay, pull)
        await write_comment(relay, pull, "/crcr approve")

        assert dispatched_pulls(relay) == [("synchronize", "main", "base_changed")]
