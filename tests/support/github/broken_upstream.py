"""`broken_upstream`: a job that upstream commits broke, with commits between that were not tested."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from github_sim.github import WorkflowRun
from support.github.gated_upstream import gated_upstream, run_all
from support.running_relay import UPSTREAM, RunningRelay

BISECTED = "org/bisected"
BISECTABLE = f"L2:\n  - {BISECTED}: {{bisect: manual}}\n"


@asynccontextmanager
async def broken_upstream(
    folder: Path, allowlist: str = BISECTABLE, *, began_at: datetime | None = None, **more: Any
) -> AsyncIterator[RunningRelay]:
    """Two pushes on which `build` passes, three that are not tested, and one on which it fails; two hours later."""
    async with gated_upstream(folder, allowlist, downstreams=(BISECTED,), **more) as relay:
        if began_at is not None:
            relay.clock.advance(began_at - relay.clock.now())
        for conclusion in ("success", "success", None, None, None, "failure"):
            relay.clock.advance(60)
            await relay.github.push(UPSTREAM)
            await relay.drain()
            if conclusion is not None:
                await run_all(relay, BISECTED, build=conclusion)
        relay.clock.advance(7200)
        yield relay


def pushed_commits(relay: RunningRelay) -> list[str]:
    """Those of the base branch, oldest first."""
    return [row["sha"] for row in relay.rows("SELECT sha FROM base_commits ORDER BY position")]


def bisection_runs(relay: RunningRelay) -> list[WorkflowRun]:
    """Runs of the backend that a bisection sent."""
    runs = relay.github.runs(BISECTED)
    return [run for run in runs if run.client_payload["relay"]["purpose"] == "bisection"]
