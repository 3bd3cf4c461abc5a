"""API calls of the upstream's installation per head, with jobs that report one by one over minutes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crcr.record.checks.refresh import COALESCE_DELAY
from github_sim.github import PullRequest
from github_sim.world.call_counts import InstallationCalls, count_calls
from support.github.checks import check_names, check_states, named_workflow, write_upstream_settings
from support.github.gated_upstream import (
    LABEL,
    check_names_on,
    gate_state,
    gated_upstream,
    open_pull,
    sweep_after,
)
from support.running_relay import UPSTREAM, RunningRelay

FIRST, SECOND, THIRD = "one/gating", "two/gating", "three/informing"
BACKENDS = (FIRST, SECOND, THIRD)
JOBS = tuple(f"job {number}" for number in range(10))
LISTED = (
    f"L3:\n  npu:\n    {THIRD}: {{oncalls: [ann], jobs: ['job *']}}\n"
    f"L4:\n  - {FIRST}: {{oncalls: [bob], jobs: ['job *'], paths: ['**']}}\n  - {SECOND}: {{oncalls: [cat], jobs: ['job *']}}\n"
)


@asynccontextmanager
async def relay_with_three_backends(
    folder: Path, allowlist: str = LISTED, **settings: str
) -> AsyncIterator[RunningRelay]:
    """Two L4 backends and an L3 backend of ten jobs each, each in its own account; checks are coalesced as in production."""
    if settings:
        write_upstream_settings(folder, **settings)
    async with gated_upstream(
        folder, allowlist, downstreams=BACKENDS, check_gathering=COALESCE_DELAY
    ) as relay:
        for name in BACKENDS:
            relay.github.repository(name).workflows = [named_workflow(*JOBS)]
        yield relay


async def run_pull_request(
    relay: RunningRelay,
    *,
    labels: tuple[str, ...] = (LABEL,),
    failing: dict[str, tuple[str, ...]] | None = None,
) -> tuple[PullRequest, InstallationCalls]:
    """Run a pull request from its opening until all backends are done; return it and its API calls on the upstream."""
    await sweep_after(relay, 60)
    mark = len(relay.github.calls)
    pull = await open_pull(relay, labels=list(labels))
    await relay.pass_time(5)
    for step in ("start", "complete"):
        for job in JOBS:
            for backend in BACKENDS:
                run = relay.github.runs(backend)[-1]
                if step == "start":
                    await relay.github.start_job(run, job)
                else:
                    fails = job in (failing or {}).get(backend, ())
                    await relay.github.complete_job(run, job, "failure" if fails else "success")
                await relay.pass_time(11)
    for _ in range(6):
        await sweep_after(relay, 60)
    counts = count_calls(relay.github.calls[mark:])
    return pull, counts.for_installation(relay.github.installation(UPSTREAM).id)


FAILING: dict[str, Any] = {
    "nobody fails": ({}, 10),
    "one L4 fails in five jobs": ({FIRST: JOBS[2:7]}, 14),
    "two L4 fail": ({FIRST: JOBS[2:7], SECOND: JOBS[1:2]}, 18),
    "all three fail": (dict.fromkeys(BACKENDS, JOBS[3:9]), 22),
}


@pytest.mark.parametrize(("failing", "most"), FAILING.values(), ids=FAILING)
async def test_a_head_needs_no_more_api_calls_than_its_budget(
    tmp_path: Path, failing: dict[str, tuple[str, ...]], most: int
) -> None:
    async with relay_with_three_backends(tmp_path) as relay:
        pull, cost = await run_pull_request(relay, failing=failing)

        assert cost.calls <= most, cost.routes
        red = bool({FIRST, SECOND} & set(failing))
        assert gate_state(relay, pull) == ("failure" if red else "success")
        ended = {FIRST: "failure", SECOND: "failure", THIRD: "neutral"}
        for backend in BACKENDS:
            shown = failing.get(backend, ())[:3]
            expected = [ended[backend] if backend in failing else "success"] + [ended[backend]] * len(shown)
            assert check_states(relay, pull.head_sha, check_names(backend, *shown)) == expected
        assert len(check_names_on(relay, pull.head_sha)) == 4 + sum(
            len(jobs[:3]) for jobs in failing.values()
        )


async def test_an_l3_backend_without_its_label_needs_no_api_calls(tmp_path: Path) -> None:
    alone = f"L3:\n  npu:\n    {THIRD}: {{oncalls: [ann], jobs: ['job *']}}\nL2:\n  - {FIRST}\n  - {SECOND}\n"
    async with relay_with_three_backends(tmp_path, alone) as relay:
        _, cost = await run_pull_request(relay, labels=(), failing={THIRD: JOBS[:5]})

        assert cost.routes == {}


@pytest.mark.parametrize(("job_checks", "shown"), [("all", JOBS), ("none", ())])
async def test_an_upstream_chooses_which_jobs_have_checks(
    tmp_path: Path, job_checks: str, shown: tuple[str, ...]
) -> None:
    async with relay_with_three_backends(tmp_path, job_checks=job_checks) as relay:
        pull, cost = await run_pull_request(relay, failing={FIRST: JOBS[2:7]})

        job_check_names = {
            name for name in check_names_on(relay, pull.head_sha) if name.startswith(f"crcr/{FIRST}/")
        }
        assert job_check_names == set(check_names(FIRST, *shown)[1:])
        assert cost.calls == 11 + 2 * len(shown) * len(BACKENDS)


async def test_changes_within_seconds_are_coalesced_into_one_write_but_the_gate_is_immediate(
    tmp_path: Path,
) -> None:
    async with relay_with_three_backends(tmp_path) as relay:
        pull = await open_pull(relay, labels=[LABEL])
        await relay.pass_time(5)
        run = relay.github.runs(FIRST)[-1]
        for job in JOBS:
            await relay.github.start_job(run, job)
        await relay.drain()
        mark = len(relay.github.calls)
        for number, job in enumerate(JOBS):
            await relay.github.complete_job(run, job, "failure" if number < 3 else "success")
            await relay.pass_time(0.1)
        assert gate_state(relay, pull) == "failure"
        assert check_states(relay, pull.head_sha, check_names(FIRST)) == ["in_progress"]
        await relay.pass_time(5)

        assert check_states(relay, pull.head_sha, check_names(FIRST, *JOBS[:3])) == ["failure"] * 4
        cost = count_calls(relay.github.calls[mark:]).for_installation(relay.github.installation(UPSTREAM).id)
        assert cost.calls == 1 + 1 + 3  # gate, backend, jobs


@pytest.mark.parametrize(
    ("sends_run_webhooks", "look_ups"), [(False, 2), (True, 1)], ids=["polled", "notified by webhook"]
)
async def test_a_dispatch_of_ten_jobs_is_looked_up_only_once_with_run_webhooks(
    tmp_path: Path, *, sends_run_webhooks: bool, look_ups: int
) -> None:
    async with relay_with_three_backends(tmp_path) as relay:
        for name in BACKENDS:
            relay.github.repository(name).sends_run_webhooks = sends_run_webhooks
        mark = len(relay.github.calls)
        pull, _ = await run_pull_request(relay)

        assert gate_state(relay, pull) == "success"
        counts = count_calls(relay.github.calls[mark:])
        spent = [counts.for_installation(relay.github.installation(name).id) for name in BACKENDS]
        # A look-up lists the dispatch's runs, then the run's jobs.
        assert [(account.dispatches, account.calls) for account in spent] == [(1, 1 + 2 * look_ups)] * 3
