"""Two peak hours of a large upstream in simulated time, within one installation's budget of GitHub's."""

from functools import partial
from pathlib import Path

from bench.figures import Figures, figures_of, rows_of
from bench.in_process import log_errors_only, simulated_relay
from bench.peak_world import BACKENDS, UPSTREAM, PeakTraffic, peak_world
from bench.simulated_time import run_simulated
from bench.world import Row
from crcr.demo.run import simulated_settings


async def at_peak(folder: Path, seconds: float, *, seed: int = 1) -> Figures:
    settings_for = partial(simulated_settings, upstream=UPSTREAM)
    async with simulated_relay(folder, seed=seed, make_world=peak_world, settings_for=settings_for) as peak:
        await PeakTraffic(peak.github, seed).run(seconds)
        peak.check()
        return figures_of(peak, UPSTREAM, BACKENDS, seconds)


def peak_run(folder: Path, hours: float) -> list[Row]:
    log_errors_only()
    folder.mkdir()
    return rows_of("peak", run_simulated(at_peak(folder, hours * 3600)))
