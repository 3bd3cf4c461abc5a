"""Thousands of backends: a page reads its own rows in full and the figures of all others in a few statements."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import text
from starlette.applications import Starlette

from crcr.decide.statistics.figures import Figures
from crcr.decide.statistics.window import ResultKind, Span
from crcr.show.pages import routes as pages_routes
from crcr.show.pages.frame import Frame
from crcr.show.urls.sorting import NUMBERS
from support.data.store_rows import OTHER, UPSTREAM, StoreRows, open_store_rows
from support.page_reader import ParsedPage

LISTED = """
L1: [listen/only]
L2:
  - Good/Backend
  - flaky/backend
  - quiet/backend
  - silent/backend
  - probe/one: {expect: {'*': failure}}
  - name/only: {visibility: name}
L4:
  - gate/one: {oncalls: [ada], jobs: [build]}
"""


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StoreRows]:
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)
    async with open_store_rows(tmp_path) as store:
        yield store


def add_backends(store: StoreRows) -> None:
    store.allowlist(LISTED)
    for hours in (1.5, 30, 80):
        delivery = store.delivery(hours_ago=hours)
        for name in (
            "good/backend",
            "flaky/backend",
            "probe/one",
            "listen/only",
            "silent/backend",
            "name/only",
        ):
            store.dispatch(delivery, name, hours_ago=hours)
        times = {"hours_ago": hours - 0.5, "queue_s": hours, "execution_s": 60 * hours}
        store.job(delivery, "success", **times)
        store.job(delivery, "failure" if hours < 40 else "success", downstream="flaky/backend", **times)
        store.job(delivery, "failure", downstream="probe/one", **times)
    running = store.delivery(hours_ago=0.5)
    store.dispatch(running, "gate/one", hours_ago=0.5, level=4)
    store.job(running, None, downstream="gate/one", state="in_progress", hours_ago=0.4)
    store.sum_up()


def comparable_figures(figures: Figures | None) -> dict[str, Any] | None:
    """All figures except percentiles, which are exact only in rows that are read in full."""
    if figures is None:
        return None
    rounded = {
        name: number(figures) for name, number in NUMBERS.items() if "p50" not in name and "p95" not in name
    }
    return {
        **{name: round(value, 6) if isinstance(value, float) else value for name, value in rounded.items()},
        "tally": figures.tally,
        "left_out": figures.left_out,
    }


@pytest.mark.parametrize("span", [Span.DAY, Span.FORTNIGHT])
async def test_reading_few_backends_in_full_gives_the_same_figures_as_reading_all(
    store: StoreRows, span: Span
) -> None:
    add_backends(store)
    now = store.clock.now()
    for kind in ResultKind:
        full = await store.views.summary(UPSTREAM, span, now, kind=kind)
        few = await store.views.summary(UPSTREAM, span, now, kind=kind, pick=lambda every: every[:2])
        by_name = {backend.name: backend for backend in full.backends}
        assert [backend for backend in few.rows if backend != by_name[backend.name]] == []
        assert {backend.name: comparable_figures(backend.figures) for backend in few.backends} == {
            backend.name: comparable_figures(backend.figures) for backend in full.backends
        }
        bare: dict[str, Any] = {"figures": None, "last_sent_at": None}
        assert [replace(backend, **bare) for backend in few.backends] == [
            replace(backend, **bare) for backend in full.backends
        ]
        assert (few.health, few.tally) == (full.health, full.tally)
        metrics = await store.views.metrics(UPSTREAM, span, now, kind=kind)
        shown = {backend.name: backend.figures for backend in full.backends if backend.figures}
        assert {
            backend.name: backend.figures for backend in metrics.backends if backend.name in shown
        } == shown


async def test_a_backend_that_does_not_report_is_silent_also_outside_the_shown_page(store: StoreRows) -> None:
    add_backends(store)
    few = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now(), pick=lambda _: ())
    assert {backend.name.key for backend in few.backends if backend.silent} == {"silent/backend"}


MANY = 10_000
MOST_BYTES = 400_000


@pytest.mark.slow
async def test_ten_thousand_backends_are_shown_in_pages_of_a_hundred(tmp_path: Path) -> None:
    async with open_store_rows(tmp_path) as store:
        names = [f"org{number % 97}/backend{number:05}" for number in range(MANY - 1)]
        store.allowlist("L4:\n  - gate/one: [ada]\nL2:\n" + "".join(f"  - {name}\n" for name in names))
        delivery = store.delivery()
        store.job(delivery, "failure", downstream=names[7_777].lower())
        store.sum_up()
        routes = pages_routes.routes(Frame(store.views, upstreams=(UPSTREAM, OTHER), clock=store.clock))
        transport = httpx.ASGITransport(Starlette(routes=routes))
        async with httpx.AsyncClient(transport=transport, base_url="http://relay") as browser:
            for path in ("/crcr", "/crcr/metrics", "/crcr?sort=last", "/crcr?page=57", "/crcr?page=99999"):
                response = await browser.get(path)
                rows = [row for row in _rows(response.text) if "/" in row]
                assert (path, response.status_code, len(rows)) == (path, 200, 100)
                assert len(response.content) < MOST_BYTES
                if path == "/crcr":  # gating and failing backends come first, across all pages
                    assert rows[:2] == ["gate/one", names[7_777]]
                    assert "1 to 100 of 10" in response.text
                    assert 'rel="next" data-in-place href="/crcr?page=2"' in response.text
            search_page = await browser.get("/crcr?q=backend0777&level=L2")
            assert len([row for row in _rows(search_page.text) if "/" in row]) == 10
            assert 'aria-label="Pages of' not in search_page.text


def _rows(text: str) -> list[str]:
    return [
        attrs["data-key"] or ""
        for tag, attrs in ParsedPage(text).elements
        if tag == "tr" and "data-key" in attrs
    ]


async def test_sums_without_minimum_and_maximum_use_the_bucket_bounds_for_percentiles(
    store: StoreRows,
) -> None:
    """Sums of an older release have none, and the extremes of newer rows do not apply to them."""
    store.allowlist(LISTED)
    for hours, seconds in ((30.0, 62.0), (1.5, 110.0)):
        delivery = store.delivery(hours_ago=hours)
        store.dispatch(delivery, "good/backend", hours_ago=hours)
        for number in range(20):
            store.job(
                delivery, job_name=f"job {number}", hours_ago=hours - 0.5, queue_s=1.0, execution_s=seconds
            )
    store.sum_up()

    async def p50_s() -> float | None:
        summary = await store.views.summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())
        figures = next(backend.figures for backend in summary.backends if backend.name.key == "good/backend")
        assert figures is not None
        return figures.execution.p50_s

    assert await p50_s() == pytest.approx((62 + 110) / 2)
    with store.engine.begin() as connection:
        for table, at in (("hours", "hour_at"), ("days", "day_at")):
            connection.execute(
                text(f"UPDATE {table} SET execution_low_s = NULL, execution_high_s = NULL WHERE {at} < :at"),  # noqa: S608
                {"at": store.ago(hours=26)},
            )
    assert await p50_s() == pytest.approx((60 + 120) / 2)
