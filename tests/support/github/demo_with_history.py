"""The demo's world on a simulated GitHub, with the history that `crcr demo` generates by default."""

from pathlib import Path

from bench.github_budget.relay_in_process import RELAY_URL
from bench.github_budget.simulated_time import START

from crcr.cli.run.demo import SEED, SPEED
from crcr.decide.github.repository_setup import relay_pin
from crcr.demo.run import AUDIENCE, GeneratedHistory, start_with_history
from crcr.demo.traffic import demo_world
from github_sim.github import GitHub

HISTORY_ENDS_WITH = 1000
"""Number of its last pull request."""


def make_demo_with_history(github: GitHub, folder: Path) -> None:
    demo_world(github, relay_pin(RELAY_URL, AUDIENCE))
    start_with_history(folder, github, GeneratedHistory(), seed=SEED, speed=SPEED, now=START)
