"""The metrics of PostgreSQL's two pools are separate: a full one is visible while the other is idle."""

from contextlib import AsyncExitStack

from crcr.record.store.database import NoCounters, PostgresLocation
from crcr.record.store.postgres.connection import PostgresLink
from support.services.postgres import drop_database, new_database


class ReportedPools(NoCounters):
    def __init__(self) -> None:
        self.reported: dict[str, tuple[int, int]] = {}

    def connections(self, *, pool: str, used: int, most: int) -> None:
        self.reported[pool] = used, most


async def test_a_full_pool_is_reported_as_full_while_the_other_is_idle() -> None:
    url, pools = new_database(empty=True), ReportedPools()
    link = PostgresLink(PostgresLocation(url, connections=5), pools)
    try:
        async with link.reading(), AsyncExitStack() as writers:
            for _ in range(2):
                await writers.enter_async_context(link.writing())
            assert pools.reported == {"writing": (2, 2), "reading": (1, 3)}
        assert pools.reported == {"writing": (0, 2), "reading": (0, 3)}
    finally:
        await link.close()
        drop_database(url)
