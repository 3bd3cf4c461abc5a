"""A page's values are released with its rendering, not by the garbage collector, whose run would delay another reader."""

import gc
from pathlib import Path

import pytest

from crcr.decide.views.backend import Column
from crcr.decide.views.overview import JobCell, JobView
from support.downstream.callbacks import BACKEND, dispatched_run, post_report

READ_AGAIN = 10


@pytest.mark.parametrize("path", ["/crcr/pr/1", f"/crcr/{BACKEND}", "/crcr/failing", "/crcr/metrics"])
async def test_a_rendered_page_leaves_no_values_to_the_garbage_collector(tmp_path: Path, path: str) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await post_report(relay, run, "build", "in_progress")
        await post_report(relay, run, "build", "completed", conclusion="failure")
        assert (await relay.http.get(path)).status_code == 200  # fills the caches
        gc.collect()
        was_enabled, before = gc.isenabled(), count_view_values()
        gc.disable()
        try:
            for number in range(READ_AGAIN):
                assert (await relay.http.get(f"{path}?x={number}")).status_code == 200
            after = count_view_values()
        finally:
            if was_enabled:
                gc.enable()
        assert after - before < READ_AGAIN / 2  # a page or two may be kept, not all of them


def count_view_values() -> int:
    """Count the view values in this process, including those of other tests."""
    return sum(isinstance(value, Column | JobCell | JobView) for value in gc.get_objects())
