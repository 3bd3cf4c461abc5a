"""Two hours of `crcr demo` at its default speed, in simulated time: nothing may wait for GitHub's rate limits."""

import asyncio
from pathlib import Path

from bench.github_budget.figures import Figures, collect_figures, figure_rows
from bench.github_budget.relay_in_process import log_errors_only, run_simulated_relay
from bench.github_budget.simulated_time import run_simulated
from bench.relay_process.relay_setup import Row
from crcr.cli.run.demo import SEED, SPEED
from crcr.decide.github.repository_setup import relay_pin
from crcr.demo.run import AUDIENCE, demo_settings
from crcr.demo.traffic import UPSTREAM, demo_world, run_traffic
from crcr.demo.world import BACKENDS


async def run_demo(folder: Path, seconds: float, *, seed: int = SEED) -> Figures:
    """Run the world and the traffic of `crcr demo` for so many simulated seconds."""
    async with run_simulated_relay(
        folder,
        seed=seed,
        make_world=lambda github: demo_world(github, relay_pin("http://relay.test", AUDIENCE)),
        settings_for=demo_settings,
    ) as demo:
        over = asyncio.Event()
        traffic = asyncio.create_task(run_traffic(demo.github, UPSTREAM, seed=seed, speed=SPEED, stop=over))
        await asyncio.wait([traffic], timeout=seconds)
        over.set()
        await traffic
        demo.check()
        return collect_figures(demo, UPSTREAM, tuple(BACKENDS), seconds)


def measure_demo(folder: Path, hours: float) -> list[Row]:
    log_errors_only()
    folder.mkdir()
    return figure_rows("demo", run_simulated(run_demo(folder, hours * 3600)))
