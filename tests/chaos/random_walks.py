"""Random walks of the relay: steps are drawn from weighted rules, and a failing walk is shrunk to the necessary steps."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from support.running_relay import RunningRelay

Step = tuple[str, dict[str, Any]]
Draw = Callable[[Random], dict[str, Any]]
Rule = tuple[int, str, Draw]
"""The weight of a step, its name, and a function that draws its arguments."""
Walk = Callable[[list[Step]], Awaitable[str | None]]
"""Run these steps on a new relay; return the error, if any."""


def draw_steps(rules: Sequence[Rule], chance: Random, count: int) -> list[Step]:
    drawn = chance.choices(rules, weights=[weight for weight, _, _ in rules], k=count)
    return [(name, draw(chance)) for _, name, draw in drawn]


async def check_walk(seed: int, steps: list[Step], walk: Walk) -> None:
    """Fail with a minimal list of failing steps; the first step is always kept."""
    if await walk(steps) is None:
        return
    needed = await _shrink(steps, walk)
    wrong = await walk(needed)
    shown = "\n".join(f"  {name} {choices}" for name, choices in needed)
    pytest.fail(f"seed {seed}: {wrong}\n{shown}", pytrace=False)


async def _shrink(steps: list[Step], walk: Walk) -> list[Step]:
    size = len(steps) // 2
    while size:
        position = 1
        while position < len(steps):
            fewer = steps[:position] + steps[position + size :]
            if await walk(fewer) is not None:
                steps = fewer
            else:
                position += size
        size //= 2
    return steps


async def deliver_some(relay: RunningRelay, amount: int, chance: Random) -> None:
    """Deliver some of the effects that are due, in any order."""
    worker = relay.services.worker
    effects = await worker._outbox.claim(256, relay.clock.now())
    chance.shuffle(effects)
    await worker._outbox.release(effects[amount:])
    for effect in effects[:amount]:
        await worker._do(effect)


async def reconcile(relay: RunningRelay) -> None:
    """Run the reconciler; while it waits for GitHub, the clock is advanced."""
    await relay.clock.run_to_end(relay.services.reconciler.run_quietly(), step_s=10)
