"""A relay as real processes and the processor time that they and PostgreSQL have used."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bench.model.constants import CpuCost
from bench.relay_process.process_usage import cpu_seconds, memory
from bench.relay_process.processes import run_github_stub, wait_until_idle
from bench.relay_process.relay_setup import RelaySetup, start_process

sys.path.append(
    str(Path(__file__).parents[2] / "tests")
)  # support.services.postgres starts the PostgreSQL cluster
if TYPE_CHECKING:
    from support.services.postgres import Cluster

_SETTLE_S = 0.3
_PATIENCE = 5


@dataclass(frozen=True, slots=True)
class MeasuredRelay:
    setup: RelaySetup
    relay_pid: int
    database_pid: int | None

    def cpu(self) -> "CpuReading":
        """Return the processor time so far, after work that follows an answer has ended."""
        time.sleep(_SETTLE_S)
        database_s = cpu_seconds(self.database_pid) if self.database_pid else 0.0
        return CpuReading(cpu_seconds(self.relay_pid), database_s)

    def memory_bytes(self) -> float:
        """PSS of the relay's processes: the intake's and the pages'."""
        return memory(self.relay_pid).proportional_mb * 1e6


@dataclass(frozen=True, slots=True)
class CpuReading:
    """Processor seconds since the start of the relay's processes and of PostgreSQL's."""

    relay_s: float
    database_s: float

    def minus(self, before: "CpuReading", *, per: int) -> CpuCost:
        return CpuCost((self.relay_s - before.relay_s) / per, (self.database_s - before.database_s) / per)


@contextmanager
def run_measured_relay(setup: RelaySetup, *, database_pid: int | None = None) -> Iterator[MeasuredRelay]:
    """Start `crcr serve` and the GitHub stub; yield when every target is identified."""
    setup.folder.mkdir(exist_ok=True)
    with (
        run_github_stub(setup),
        start_process(
            "-m", "crcr", "serve", "--port", str(setup.relay_port), environment=setup.environment()
        ) as relay,
    ):
        _wait_until_ready(setup)
        wait_until_idle(setup, 3 * setup.targets)
        yield MeasuredRelay(setup, relay.pid, database_pid)


def _wait_until_ready(setup: RelaySetup) -> None:
    """Wait for longer than other benchmarks do: no time is measured here, and the machine may be busy."""
    for _ in range(_PATIENCE):
        with suppress(OSError):
            setup.wait_for("/healthz")
            setup.wait_for("/crcr")  # The page process starts after the intake.
            return
    raise SystemExit("the relay did not start")


@contextmanager
def run_postgres() -> Iterator["Cluster"]:
    from support.services.postgres import Cluster  # noqa: PLC0415  sys.path has it only from here on

    cluster = Cluster.make(durable=True)
    try:
        yield cluster
    finally:
        cluster.remove()


def postmaster_pid(cluster: "Cluster") -> int:
    return int((cluster.folder / "data" / "postmaster.pid").read_text().splitlines()[0])


def create_database(cluster: "Cluster", name: str) -> str:
    """Create an empty database; return its URL."""
    from support.services.postgres import run_on  # noqa: PLC0415  sys.path has it only from here on

    run_on(cluster.admin_url, f"CREATE DATABASE {name}")
    return cluster.url(name)
