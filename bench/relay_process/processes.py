"""Start the relay, the GitHub stub and the bare app as processes, and wait until they are ready."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.relay_process.relay_setup import AUDIENCE, RelaySetup, free_port, start_process

_IDLE_WITHIN_S = 240
_DISPATCHED_WITHIN_S = 120


@contextmanager
def run_idle_relay(targets: int, folder: Path) -> Iterator[tuple[RelaySetup, float]]:
    """Start a relay with this many targets, each in its own installation; yield when it has identified them all."""
    folder.mkdir()
    setup = RelaySetup(folder, targets)
    with run_relay(setup) as ready_s:
        wait_until_idle(setup, 3 * targets)
        yield setup, ready_s


@contextmanager
def run_relay(setup: RelaySetup) -> Iterator[float]:
    """Start the relay and its GitHub stub; yield the seconds until the relay was ready."""
    environment = setup.environment()
    with (
        run_github_stub(setup),
        start_process(
            "-m", "crcr", "serve", "--port", str(setup.relay_port), environment=environment
        ) as relay,
    ):
        setup.process_id = relay.pid
        yield setup.wait_for("/healthz")


@contextmanager
def run_github_stub(setup: RelaySetup) -> Iterator[None]:
    """Start the stub of GitHub's API and of the OIDC issuer."""
    with start_process("-m", "bench.relay_process.github_stub", str(setup.stub_port)):
        _wait_for_stub(setup)
        setup.request_stub("/issuer/jwks", json.dumps({"keys": [setup.public_jwk()]}).encode())
        yield


def _wait_for_stub(setup: RelaySetup) -> None:
    while True:
        try:
            setup.request_stub("/reset")
        except OSError:
            time.sleep(0.02)
        else:
            return


@contextmanager
def run_bare_app(setup: RelaySetup, database: str) -> Iterator[tuple[int, int]]:
    """Start the bare app on a SQLite file or on PostgreSQL; yield its port and its process id."""
    port = free_port()
    with start_process(
        "-m", "bench.callbacks.bare_app", str(port), database, json.dumps(setup.public_jwk()), AUDIENCE
    ) as bare_app:
        _wait_for_port(port)
        yield port, bare_app.pid


def _wait_for_port(port: int) -> None:
    async def open_connection() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    for _ in range(500):
        try:
            asyncio.run(open_connection())
        except OSError:
            time.sleep(0.02)
        else:
            return


def wait_until_idle(setup: RelaySetup, calls: int) -> None:
    """Wait until the stub has received this many calls: a new relay has then identified its targets."""
    deadline = time.monotonic() + _IDLE_WITHIN_S
    while (received := setup.request_stub("/arrivals")["calls"]) < calls:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {received} of {calls} calls arrived within {_IDLE_WITHIN_S} s")
        time.sleep(0.05)
    time.sleep(0.2)


def wait_for_dispatches(setup: RelaySetup, count: int) -> float:
    """Wait until the stub has received this many dispatches; return the time of the last one."""
    deadline = time.monotonic() + _DISPATCHED_WITHIN_S
    while time.monotonic() < deadline:
        arrivals = setup.request_stub("/arrivals")["arrivals"]
        if len(arrivals) >= count:
            return float(max(at for at, _ in arrivals))
        time.sleep(0.02)
    raise SystemExit(f"only {len(arrivals)} of {count} dispatches arrived within {_DISPATCHED_WITHIN_S} s")
