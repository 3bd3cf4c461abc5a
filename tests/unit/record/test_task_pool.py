"""A task pool runs all queued tasks, whenever they are added."""

import asyncio
from collections import deque

from crcr.record.store.postgres.batched_reads import TaskPool


async def test_who_comes_just_as_the_last_one_goes_is_served() -> None:
    waiting: deque[asyncio.Future[int]] = deque()

    async def serve() -> None:
        while waiting:
            await asyncio.sleep(0)
            waiting.popleft().set_result(1)

    crew, served = TaskPool(1, serve), 0
    for _ in range(10):
        turn: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting.append(turn)
        crew.start()
        served += await asyncio.wait_for(turn, 5)
    assert served == 10


async def test_no_more_are_at_work_than_may_be() -> None:
    here, most = 0, 0
    go = asyncio.Event()

    async def work() -> None:
        nonlocal here, most
        here, most = here + 1, max(most, here + 1)
        await go.wait()
        here -= 1

    crew = TaskPool(2, work)
    for _ in range(5):
        crew.start()
        await asyncio.sleep(0)
    go.set()
    await crew.join()
    assert (here, most) == (0, 2)


async def test_one_who_failed_makes_room() -> None:
    turns: list[int] = []

    async def fail() -> None:
        turns.append(1)
        raise ValueError

    crew = TaskPool(1, fail)
    for _ in range(3):
        crew.start()
        await crew.join()
    assert len(turns) == 3
