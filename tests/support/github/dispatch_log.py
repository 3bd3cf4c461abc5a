"""Dispatches that downstreams received, the effects that send them, and a running worker."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from crcr.record.store.signals import EFFECTS
from github_sim.github import GitHub
from support.running_relay import RunningRelay, in_postgresql

TWO = "L1:\n  - org/one\n  - org/two\n"
BOTH = ("org/one", "org/two")


def dispatched_events(github: GitHub, downstream: str) -> list[tuple[str, str]]:
    """(action, head) of every pull request event that this downstream got, in order."""
    payloads = [each.client_payload["payload"] for each in github.dispatches(downstream)]
    return [
        (each["action"], each["pull_request"]["head"]["sha"]) for each in payloads if "pull_request" in each
    ]


def dispatched_actions(github: GitHub, downstream: str) -> list[str]:
    return [action for action, _ in dispatched_events(github, downstream)]


def dispatch_attempts(github: GitHub, downstream: str) -> int:
    """The number of dispatch calls to this downstream."""
    return len(github.calls_to("POST", f"/repos/{downstream}/dispatches"))


def newest_effect(relay: RunningRelay, downstream: str) -> dict[str, object]:
    """The newest effect with this downstream as its target."""
    found = relay.rows(
        "SELECT * FROM effects WHERE target = ? AND kind = 'send_dispatch' ORDER BY effect_id DESC",
        downstream,
    )
    return found[0]


def row_states(relay: RunningRelay, table: str, **where: str) -> list[str]:
    """The states of a table's rows, oldest first."""
    named = " AND ".join(f"{name} = ?" for name in where) or "1 = 1"
    noted = "received_at, (SELECT min(change_id) FROM changes c WHERE c.delivery = deliveries.guid), guid"
    order = {"effects": "effect_id", "dispatches": "created_at", "deliveries": noted}[table]
    rows = relay.rows(f"SELECT state FROM {table} WHERE {named} ORDER BY {order}", *where.values())  # noqa: S608
    return [row["state"] for row in rows]


@asynccontextmanager
async def running_worker(relay: RunningRelay) -> AsyncIterator[None]:
    """Run the worker as a task, as `crcr serve` does; the clock stands still."""
    wake, stopping = relay.services.signals.subscribe(EFFECTS), asyncio.Event()
    task = asyncio.create_task(relay.services.worker.run(wake, stopping))
    try:
        yield
    finally:
        stopping.set()
        relay.github.faults.clear()
        await task


async def wait_until_true(fact: Callable[[], object]) -> None:
    """Let tasks run until the condition holds; the relay's clock does not move."""
    # A query on PostgreSQL blocks the event loop, so poll it less often.
    between_s, most_s = (0.05, 30) if in_postgresql() else (0.001, 8)
    async with asyncio.timeout(most_s):
        while not fact():
            await asyncio.sleep(between_s)
