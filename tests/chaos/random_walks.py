"""Random walks of the relay: steps drawn from weighted rules, a failing walk cut down to the steps that it needs."""

from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any

import pytest

from support.running_relay import RunningRelay

Step = tuple[str, dict[str, Any]]
Draw = Callable[[Random], dict[str, Any]]
Rule = tuple[int, str, Draw]
"""How often a step is taken, its name, and how its choices are drawn."""
Walk = Callable[[list[Step]], Awaitable[str | None]]
"""Take these steps on a relay of their own; return what went wrong, if anything did."""


def draw_steps(rules: Sequence[Rule], chance: Random, count: int) -> list[Step]:
    drawn = chance.choices(rules, weights=[weight for weight, _, _ in rules], k=count)
    return [(name, draw(chance)) for _, name, draw in drawn]


async def check_walk(seed: int, steps: list[Step], walk: Walk) -> None:
    """Fail with the fewest steps that go wrong; the first step always stays."""
    if await walk(steps) is None:
        return
    needed = await _cut_down(steps, walk)
    wrong = await walk(needed)
    shown = "\n".join(f"  {name} {choices}" for name, choices in needed)
    pytest.fail(f"seed {seed}: {wrong}\n{shown}", pytrace=False)


async def _cut_down(steps: list[Step], walk: Walk) -> list[Step]:
    size = len(steps) // 2
    while size:
        place = 1
        while place < len(steps):
            fewer = steps[:place] + steps[place + size :]
            if await walk(fewer) is not None:
                steps = fewer
            else:
                place += size
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
    """Run the reconciler; where it waits for GitHub, the clock is moved for it."""
    await relay.clock.run_to_end(relay.services.reconciler.run_quietly(), step_s=10)
