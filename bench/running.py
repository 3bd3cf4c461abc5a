"""Real processes for a run: the stand-in for everything outside, and the relay itself."""

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.world import AUDIENCE, World, free_port, process

_IDLE_WITHIN_S = 240


@contextmanager
def running(targets: int, folder: Path) -> Iterator[tuple[World, float]]:
    """A relay with this many targets, each in its own installation, identified and ready."""
    folder.mkdir()
    world = World(folder, targets)
    with serving(world) as ready_s:
        wait_until_idle(world, 3 * targets)
        yield world, ready_s


@contextmanager
def serving(world: World) -> Iterator[float]:
    """The relay of a world and what is outside of it; yields how long it took to be ready."""
    environment = world.environment()
    with outside(world), process("-m", "crcr", "serve", "--port", str(world.relay), environment=environment):
        yield world.wait_for("/healthz")


@contextmanager
def outside(world: World) -> Iterator[None]:
    """What stands for GitHub and for who signs the tokens."""
    with process("-m", "bench.outside", str(world.outside)):
        _wait_for_outside(world)
        world.ask_outside("/issuer/jwks", json.dumps({"keys": [world.public_jwk()]}).encode())
        yield


def _wait_for_outside(world: World) -> None:
    while True:
        try:
            world.ask_outside("/reset")
        except OSError:
            time.sleep(0.02)
        else:
            return


@contextmanager
def bare_app(world: World, database: str) -> Iterator[int]:
    """The yardstick, on a file or on PostgreSQL; yields its port."""
    port = free_port()
    with process("-m", "bench.bare", str(port), database, json.dumps(world.public_jwk()), AUDIENCE):
        _wait_for_port(port)
        yield port


def _wait_for_port(port: int) -> None:
    async def knock() -> None:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.close()

    for _ in range(500):
        try:
            asyncio.run(knock())
        except OSError:
            time.sleep(0.02)
        else:
            return


def wait_until_idle(world: World, calls: int) -> None:
    """Until a new relay has identified its targets: that many calls of it have arrived."""
    deadline = time.monotonic() + _IDLE_WITHIN_S
    while (seen := world.ask_outside("/arrivals")["calls"]) < calls:
        if time.monotonic() > deadline:
            raise SystemExit(f"only {seen} of {calls} calls arrived within {_IDLE_WITHIN_S} s")
        time.sleep(0.05)
    time.sleep(0.2)
