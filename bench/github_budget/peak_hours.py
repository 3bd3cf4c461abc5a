"""Two peak hours of a large upstream in simulated time, within GitHub's rate limit for one installation."""

from functools import partial
from pathlib import Path

from bench.github_budget.figures import Figures, collect_figures, figure_rows
from bench.github_budget.peak_traffic import BACKENDS, UPSTREAM, PeakTraffic, peak_world
from bench.github_budget.relay_in_process import log_errors_only, run_simulated_relay
from bench.github_budget.simulated_time import run_simulated
from bench.relay_process.relay_setup import Row
from crcr.demo.run import simulated_settings


async def run_peak(folder: Path, seconds: float, *, seed: int = 1) -> Figures:
    settings_for = partial(simulated_settings, upstream=UPSTREAM)
    async with run_simulated_relay(
        folder, seed=seed, make_world=peak_world, settings_for=settings_for
    ) as peak:
        await PeakTraffic(peak.github, seed).run(seconds)
        peak.check()
        return collect_figures(peak, UPSTREAM, BACKENDS, seconds)


def measure_peak(folder: Path, hours: float) -> list[Row]:
    log_errors_only()
    folder.mkdir()
    return figure_rows("peak", run_simulated(run_peak(folder, hours * 3600)))
