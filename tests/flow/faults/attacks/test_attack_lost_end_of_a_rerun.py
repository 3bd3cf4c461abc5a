"""GitHub reports that a rerun started, and the webhook of its end is lost: the gate waited for it until its deadline."""

from pathlib import Path

import pytest

from support.github.gated_upstream import GATING, gate_state, gated_upstream, open_pull, run_all, sweep_after

ONE = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"


@pytest.mark.parametrize("conclusion", ["success", "failure"])
async def test_attack_the_end_of_a_rerun_is_polled_when_its_webhooks_are_lost(
    tmp_path: Path, conclusion: str
) -> None:
    async with gated_upstream(tmp_path, ONE, downstreams=(GATING,)) as relay:
        relay.github.repository(GATING).sends_run_webhooks = True
        pull = await open_pull(relay)
        run = await run_all(relay)
        await sweep_after(relay, 60)
        assert gate_state(relay, pull) == "success"
        await relay.github.rerun(run)
        for job in run.jobs:
            relay.github.ci.start(run, job)
        await relay.github.send_queued_webhooks()
        await relay.drain()
        assert gate_state(relay, pull) == "pending"
        for event in ("workflow_run", "workflow_job"):
            relay.github.faults.webhooks.lose(event=event)
        for job in run.jobs:
            relay.github.ci.complete(run, job, conclusion)
        await relay.github.send_queued_webhooks()
        await sweep_after(relay, 60)

        assert gate_state(relay, pull) == conclusion
