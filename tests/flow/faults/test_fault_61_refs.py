"""Fault 61: anybody who can push an unprotected branch can start its workflows by hand, and their runs report."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from github_sim.github import GitHub, Workflow
from support.downstream.callbacks import BACKEND, refusal_code, report_outcome
from support.downstream.self_reports import NIGHTLY, send_self_report, upstream_head
from support.github.gated_upstream import (
    GATED,
    GATING,
    finish_jobs,
    gate_state,
    gated_upstream,
    newest_run,
    open_pull,
    start_jobs,
)
from support.running_relay import WORKFLOW, RunningRelay, running_relay

EVIL = "refs/heads/evil"
BY_HAND = Workflow(
    name="By hand", path=".github/workflows/ci.yml", listens=("workflow_dispatch",), jobs=WORKFLOW.jobs
)
NIGHT_BY_HAND = Workflow(
    name="Nightly", path=NIGHTLY.path, listens=("workflow_dispatch", "push"), jobs=NIGHTLY.jobs
)
TWO_STEPS = GATED.replace("oncalls: [bob]", "oncalls: [bob], allow_events: [workflow_dispatch]")


@asynccontextmanager
async def relay_with_nightly(
    folder: Path, allowlist: str = f"L2:\n  - {BACKEND}\n"
) -> AsyncIterator[RunningRelay]:
    """A backend whose nightly workflow can also be started by hand, and by a push."""

    def prepare(github: GitHub) -> None:
        github.repository(BACKEND).workflows = [NIGHT_BY_HAND]

    async with running_relay(folder, allowlist, downstreams=(BACKEND,), prepare=prepare) as relay:
        yield relay


async def test_fault_61_a_run_of_an_unprotected_branch_does_not_open_the_gate(tmp_path: Path) -> None:
    async with gated_upstream(tmp_path, TWO_STEPS) as relay:
        pull = await open_pull(relay)
        honest = newest_run(relay)
        await start_jobs(relay, honest)
        await finish_jobs(relay, honest, build="failure", test="success")
        assert gate_state(relay, pull) == "failure"
        relay.github.repository(GATING).workflows.append(BY_HAND)
        dispatched: dict[str, Any] = {"event": "workflow_dispatch", "client_payload": honest.client_payload}
        forged = relay.github.start_run(GATING, ref=EVIL, **dispatched)
        answers = [await relay.github.start_job(forged, name) for name in ("build", "test")]
        await finish_jobs(relay, forged)

        assert [refusal_code(answer) for answer in answers] == [(403, "wrong_ref")] * 2
        assert "refs/heads/main" in answers[0].json()["error"]["detail"]
        assert gate_state(relay, pull) == "failure"
        assert not relay.github.merge_state(pull).mergeable

        on_main = relay.github.start_run(GATING, **dispatched)
        assert report_outcome(await relay.github.start_job(on_main, "build")) == "applied"


async def test_fault_61_claims_with_another_ref_or_a_foreign_workflow_file_are_refused(
    tmp_path: Path,
) -> None:
    async with relay_with_nightly(tmp_path) as relay:
        run = relay.github.start_run(BACKEND, event="workflow_dispatch")
        workflow = f"{BACKEND}/{NIGHTLY.path}"
        for claims in (
            {"ref": EVIL, "workflow_ref": f"{workflow}@{EVIL}", "ref_protected": "true"},
            {"ref": "refs/tags/main", "workflow_ref": f"{workflow}@refs/tags/main"},
            {"ref": "refs/heads/main", "workflow_ref": f"{workflow}@{EVIL}"},
            {"workflow_ref": f"someone/else/{NIGHTLY.path}@refs/heads/main"},
            {"event_name": "schedule", "workflow_ref": f"{workflow}@{EVIL}"},
            {"workflow_ref": None},
            {"ref": None},
        ):
            answer = await send_self_report(relay, run, commit=upstream_head(relay), claims=claims)
            assert (claims, *refusal_code(answer)) == (claims, 403, "wrong_ref")
        assert relay.jobs() == []
        assert report_outcome(await send_self_report(relay, run, commit=upstream_head(relay))) == "applied"


async def test_fault_61_report_refs_of_the_entry_allow_further_refs(tmp_path: Path) -> None:
    async with relay_with_nightly(
        tmp_path, f"L2:\n  - {BACKEND}: {{report_refs: ['refs/heads/release/*']}}\n"
    ) as relay:
        for ref, expected in (("refs/heads/release/2", "applied"), ("refs/heads/x", "wrong_ref")):
            run = relay.github.start_run(BACKEND, event="push", ref=ref)
            assert report_outcome(await send_self_report(relay, run, commit=upstream_head(relay))) == expected


async def test_fault_61_an_unknown_default_branch_is_looked_up_and_a_change_of_it_is_applied(
    tmp_path: Path,
) -> None:
    async with relay_with_nightly(tmp_path) as relay:
        run = relay.github.start_run(BACKEND, event="workflow_dispatch")
        relay.rows("UPDATE repositories SET default_branch = NULL")  # as after an upgrade
        first = await send_self_report(relay, run, commit=upstream_head(relay))
        assert refusal_code(first) == (503, "default_branch_unknown")
        assert int(first.headers["retry-after"]) > 0
        await relay.pass_time(60)
        assert report_outcome(await send_self_report(relay, run, commit=upstream_head(relay))) == "applied"

        relay.clock.advance(1)
        await relay.github.set_default_branch(BACKEND, "trunk")
        await relay.drain()
        assert (
            report_outcome(await send_self_report(relay, run, "test", commit=upstream_head(relay)))
            == "wrong_ref"
        )
        renamed = relay.github.start_run(BACKEND, event="workflow_dispatch")
        assert (
            report_outcome(await send_self_report(relay, renamed, commit=upstream_head(relay))) == "applied"
        )
