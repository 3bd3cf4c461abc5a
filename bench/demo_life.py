"""Two hours of the demo's life at its default speed, in simulated time: nothing may wait for GitHub's limits."""

import asyncio
from pathlib import Path

from bench.figures import Figures, figures_of, rows_of
from bench.in_process import log_errors_only, simulated_relay
from bench.simulated_time import run_simulated
from bench.world import Row
from crcr.cli.run.demo import SEED, SPEED
from crcr.decide.github.repository_setup import relay_pin
from crcr.demo.run import AUDIENCE, demo_settings
from crcr.demo.traffic import UPSTREAM, demo_world, run_traffic
from crcr.demo.world import BACKENDS


async def live(folder: Path, seconds: float, *, seed: int = SEED) -> Figures:
    """The world, the traffic and the speed of `crcr demo`, for so many seconds."""
    async with simulated_relay(
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
        return figures_of(demo, UPSTREAM, tuple(BACKENDS), seconds)


def demo_run(folder: Path, hours: float) -> list[Row]:
    log_errors_only()
    folder.mkdir()
    return rows_of("demo", run_simulated(live(folder, hours * 3600)))
