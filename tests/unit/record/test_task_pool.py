"""A task pool serves every queued item, with bounded concurrency, and survives failures."""

import asyncio
from collections import deque

from crcr.record.store.postgres.batched_reads import TaskPool


async def test_an_item_queued_just_as_the_last_task_ends_is_served() -> None:
    waiting: deque[asyncio.Future[int]] = deque()

    async def serve() -> None:
        while waiting:
            await asyncio.sleep(0)
            waiting.popleft().set_result(1)

    pool, served = TaskPool(1, serve), 0
    for _ in range(10):
        item: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting.append(item)
        pool.start()
        served += await asyncio.wait_for(item, 5)
    assert served == 10


async def test_the_number_of_running_tasks_is_bounded() -> None:
    here, most = 0, 0
    go = asyncio.Event()

    async def work() -> None:
        nonlocal here, most
        here, most = here + 1, max(most, here + 1)
        await go.wait()
        here -= 1

    pool = TaskPool(2, work)
    for _ in range(5):
        pool.start()
        await asyncio.sleep(0)
    go.set()
    await pool.join()
    assert (here, most) == (0, 2)


async def test_a_failed_task_frees_its_slot() -> None:
    runs: list[int] = []

    async def fail() -> None:
        runs.append(1)
        raise ValueError

    pool = TaskPool(1, fail)
    for _ in range(3):
        pool.start()
        await pool.join()
    assert len(runs) == 3
