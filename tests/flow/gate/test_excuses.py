"""Excuses: if the upstream allows it, a failure with a high-confidence verdict does not block the gate; nothing else is excused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import PullRequest
from support.github.checks import write_upstream_settings
from support.github.commands import audit_entries
from support.github.gated_upstream import (
    GATE,
    GATING,
    gate_state,
    gate_summary,
    gate_title,
    gated_upstream,
    latest_check,
    newest_run,
    open_pull,
    sweep_after,
    write_comment,
)
from support.github.merge_queue import enqueue, enqueue_together, move_base
from support.github.verdict_history import (
    BROKEN,
    JUDGED,
    OTHER,
    end_build,
    fail_pull,
    flake_on_base,
    push_base,
)
from support.running_relay import UPSTREAM, RunningRelay, settings_for

BOTH = ["pre-existing", "flaky"]


@pytest.fixture
def upstream(tmp_path: Path) -> Callable[..., Any]:
    def run(excuses: list[str] | None = BOTH, allowlist: str = JUDGED) -> Any:
        if excuses is not None:
            write_upstream_settings(tmp_path, excuses=excuses)
        return gated_upstream(tmp_path, allowlist, downstreams=(GATING,))

    return run


async def break_base(relay: RunningRelay) -> None:
    """The base fails twice in a row, which makes the same failure pre-existing with high confidence."""
    await push_base(relay)
    await push_base(relay, BROKEN)
    await push_base(relay, BROKEN)


async def record_known_flake(relay: RunningRelay) -> None:
    """Two commits of the base fail and pass in a re-run: flaky with high confidence."""
    for _ in range(2):
        await flake_on_base(relay, BROKEN)


def verdict_of(relay: RunningRelay, sha: str) -> tuple[str, str]:
    [row] = relay.rows("SELECT verdict, confidence FROM failures WHERE head_sha = '%s'" % sha)  # noqa: S608, UP031
    return row["verdict"], row["confidence"]


async def restart(relay: RunningRelay, excuses: list[str]) -> None:
    write_upstream_settings(relay.folder, excuses=excuses)
    await relay.close()
    await relay.github.aclose()
    await relay.open(settings_for(relay.folder, relay.github, relay.folder / "allowlist.yml"))
    await relay.services.reconciler.run(thorough=True)
    await relay.drain()


HISTORIES = {"pre-existing": break_base, "flaky": record_known_flake}


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("excuses", [None, [], ["pre-existing"], ["flaky"], BOTH])
async def test_a_failure_is_excused_only_if_the_upstream_excuses_its_verdict(
    upstream: Callable[..., Any], kind: str, excuses: list[str] | None
) -> None:
    async with upstream(excuses) as relay:
        await HISTORIES[kind](relay)
        pull = await fail_pull(relay, BROKEN)

        assert verdict_of(relay, pull.head_sha) == (kind, "high")
        excused = kind in (excuses or ())
        assert gate_state(relay, pull) == ("success" if excused else "failure")
        assert len(audit_entries(relay, "excuse")) == excused


async def test_an_excuse_is_shown_in_the_gate_summary_and_logged_once_in_the_audit_log(
    upstream: Callable[..., Any],
) -> None:
    async with upstream() as relay:
        await break_base(relay)
        pull = await fail_pull(relay, BROKEN)
        await sweep_after(relay, 60)
        await relay.services.reconciler.run(thorough=True)
        await relay.drain()

        assert gate_title(relay, pull.head_sha) == f"{GATING} excused (build; pre-existing)"
        summary = gate_summary(relay, pull.head_sha)
        assert "| excused | `build` failure, pre-existing: `the base failed alike 2 times in a row" in summary
        assert latest_check(relay, f"crcr/{GATING}", pull.head_sha).conclusion == "neutral"
        [entry] = audit_entries(relay, "excuse")
        assert (entry["who"], entry["subject"], entry["job"]) == ("relay", f"#{pull.number}", "build")
        assert (entry["verdict"], entry["confidence"]) == ("pre-existing", "high")
        page = await relay.http.get(f"/api/v1/pulls/{pull.number}", params={"upstream": UPSTREAM})
        [row] = page.json()["gate"]["subjects"][0]["rows"]
        assert row["standing"] == "excused"
        assert row["parts"][0]["reason"].startswith("failure, pre-existing: the base failed alike 2 times")


# Never excused


async def medium_confidence(relay: RunningRelay) -> PullRequest:
    await push_base(relay)
    await push_base(relay, BROKEN)
    return await fail_pull(relay, BROKEN)


async def with_a_new_failure(relay: RunningRelay) -> PullRequest:
    for _ in range(2):
        await push_base(relay)
    await break_base(relay)
    return await fail_pull(relay, BROKEN, OTHER)


async def with_unlisted_failures(relay: RunningRelay) -> PullRequest:
    await break_base(relay)
    return await fail_pull(relay, BROKEN, counted=2)


async def cancelled(relay: RunningRelay) -> PullRequest:
    await break_base(relay)
    return await fail_pull(relay, BROKEN, conclusion="cancelled")


async def timed_out(relay: RunningRelay) -> PullRequest:
    await break_base(relay)
    return await fail_pull(relay, BROKEN, conclusion="timed_out")


async def disputed(relay: RunningRelay) -> PullRequest:
    """The report says failure, GitHub says that the job timed out."""
    await break_base(relay)
    return await fail_pull(relay, BROKEN, on_github="timed_out")


@pytest.mark.parametrize(
    "story", [medium_confidence, with_a_new_failure, with_unlisted_failures, cancelled, timed_out, disputed]
)
async def test_an_uncertain_or_unusual_failure_is_not_excused(
    upstream: Callable[..., Any], story: Callable[[RunningRelay], Any]
) -> None:
    async with upstream() as relay:
        pull = await story(relay)
        await sweep_after(relay, 60)
        assert gate_state(relay, pull) == "failure"
        assert audit_entries(relay, "excuse") == []


async def test_without_literal_job_names_a_failure_is_not_excused(
    upstream: Callable[..., Any],
) -> None:
    async with upstream(allowlist=JUDGED.replace("[build]", "['b*']")) as relay:
        await break_base(relay)
        pull = await fail_pull(relay, BROKEN)
        await sweep_after(relay, 180)

        assert verdict_of(relay, pull.head_sha) == ("pre-existing", "high")
        assert gate_state(relay, pull) == "failure"


async def test_an_excused_failure_waits_for_a_requested_retry(upstream: Callable[..., Any]) -> None:
    async with upstream() as relay:
        await break_base(relay)
        pull = await fail_pull(relay, BROKEN)
        await write_comment(relay, pull, f"/crcr retry {GATING}")
        states = [gate_state(relay, pull)]
        await end_build(relay, newest_run(relay), OTHER)

        assert [*states, gate_state(relay, pull)] == ["pending", "failure"]


# Later changes


async def test_an_excuse_ends_with_its_verdict_and_a_new_excuse_is_logged_separately(
    upstream: Callable[..., Any],
) -> None:
    async with upstream(["pre-existing"]) as relay:
        await push_base(relay)
        first = await push_base(relay, BROKEN)
        second = await push_base(relay, BROKEN)
        pull = await fail_pull(relay, BROKEN)
        assert gate_state(relay, pull) == "success"

        for run in (second, first):
            await relay.github.rerun(run)
            await end_build(relay, run)
        assert verdict_of(relay, pull.head_sha)[0] == "flaky"
        assert gate_state(relay, pull) == "failure"
        await restart(relay, BOTH)
        assert gate_state(relay, pull) == "success"
        assert [entry["verdict"] for entry in audit_entries(relay, "excuse")] == ["pre-existing", "flaky"]


async def test_open_pull_requests_fail_again_after_the_excuse_policy_is_withdrawn(
    upstream: Callable[..., Any],
) -> None:
    async with upstream() as relay:
        await break_base(relay)
        pull = await fail_pull(relay, BROKEN)
        states = [gate_state(relay, pull)]
        for excuses in (["flaky"], BOTH):
            await restart(relay, excuses)
            states.append(gate_state(relay, pull))

        assert states == ["success", "failure", "success"]


# Merge groups


def group_state(relay: RunningRelay, sha: str) -> str:
    check = latest_check(relay, GATE, sha)
    return str(check.conclusion) if check.status == "completed" else "pending"


async def test_a_group_does_not_reuse_the_excused_result_of_a_head_with_the_same_tree(
    upstream: Callable[..., Any],
) -> None:
    async with upstream() as relay:
        await break_base(relay)
        pull = await fail_pull(relay, BROKEN)
        assert gate_state(relay, pull) == "success"
        group = await enqueue(relay, pull)
        states = [group_state(relay, group.head_sha)]
        await end_build(relay, newest_run(relay), OTHER)

        assert [*states, group_state(relay, group.head_sha)] == ["pending", "failure"]


async def test_a_group_is_excused_only_by_its_own_results(upstream: Callable[..., Any]) -> None:
    async with upstream() as relay:
        await break_base(relay)
        pull = await fail_pull(relay, BROKEN)
        group = await enqueue(relay, pull)
        await end_build(relay, newest_run(relay), BROKEN)

        assert verdict_of(relay, group.head_sha) == ("pre-existing", "high")
        assert group_state(relay, group.head_sha) == "success"
        subjects = {entry["subject"] for entry in audit_entries(relay, "excuse")}
        assert subjects == {f"#{pull.number}", f"merge group {group.head_sha[:12]}"}


async def test_the_gate_of_a_group_is_evaluated_again_when_its_verdict_changes(
    upstream: Callable[..., Any],
) -> None:
    async with upstream(["pre-existing"]) as relay:
        await push_base(relay)
        pull = await open_pull(relay, files=["src/a.py"])
        await end_build(relay, newest_run(relay))
        first = await push_base(relay, BROKEN)
        second = await push_base(relay, BROKEN)
        group = await enqueue(relay, pull)
        await end_build(relay, newest_run(relay), BROKEN)
        assert group_state(relay, group.head_sha) == "success"

        for run in (second, first):
            await relay.github.rerun(run)
            await end_build(relay, run)
        assert verdict_of(relay, group.head_sha)[0] != "pre-existing"
        assert group_state(relay, group.head_sha) == "failure"


async def test_a_failure_that_reached_the_base_after_the_group_does_not_excuse_the_group(
    upstream: Callable[..., Any],
) -> None:
    async with upstream() as relay:
        for _ in range(3):
            await push_base(relay)
        pull = await open_pull(relay, files=["src/a.py"])
        await end_build(relay, newest_run(relay))
        await move_base(relay)
        await end_build(relay, newest_run(relay))
        group = await enqueue(relay, pull)
        run = newest_run(relay)
        for _ in range(2):
            await push_base(relay, BROKEN)
        await end_build(relay, run, BROKEN)

        assert verdict_of(relay, group.head_sha)[0] == "new"
        assert group_state(relay, group.head_sha) == "failure"


async def test_a_group_of_two_is_not_excused_by_the_failure_of_one_of_its_pull_requests(
    upstream: Callable[..., Any],
) -> None:
    """A failed merge group is not a result of the base branch: it explains no failure of its pull requests."""
    async with upstream() as relay:
        for _ in range(3):
            await push_base(relay)
        fine = await open_pull(relay, author="ann", files=["src/a.py"])
        await end_build(relay, newest_run(relay))
        await move_base(relay)
        await end_build(relay, newest_run(relay))
        bad = await fail_pull(relay, BROKEN, author="ben", files=["src/b.py"])
        group_sha = await enqueue_together(relay, fine, bad)
        await end_build(relay, newest_run(relay), BROKEN)

        assert group_state(relay, group_sha) == "failure"
        assert gate_state(relay, bad) == "failure"
        again = await fail_pull(relay, BROKEN, author="cid", files=["src/c.py"])
        assert gate_state(relay, again) == "failure"
        assert audit_entries(relay, "excuse") == []
