"""The loops beside the requests: they start, and when one dies, nobody is left believing that it lives."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from crcr.company import Company
from crcr.deliver.worker import Worker
from stage import stage


class Dying:
    """A worker with a bug that nobody foresaw."""

    async def run(self, *_: Any) -> None:
        raise ZeroDivisionError("a bug in the loop itself")


async def test_a_loop_that_dies_stops_the_process_and_is_told(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2: [org/one]") as it:
        services = replace(it.services, worker=cast("Worker", Dying()))
        company = Company(services, work=True)
        await company.start()
        async with asyncio.timeout(8):
            await services.stopping.wait()
        await company.stop()

        assert [type(each) for each in services.deaths] == [ZeroDivisionError]


async def test_a_company_that_is_asked_to_stop_ends_without_a_death(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2: [org/one]") as it:
        company = Company(it.services, work=True)
        await company.start()
        await company.stop()

        assert it.services.deaths == []
