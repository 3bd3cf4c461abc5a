"""History queries give the same results on SQLite, PostgreSQL and ClickHouse."""

import pytest

from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.record.views.backends.figures import make_figures
from support.data.clickhouse_feed import (
    Answers,
    ClickHouseFeed,
    answers_by_clickhouse,
    answers_by_sql,
    names_by_clickhouse,
    names_by_sql,
)
from support.data.random_walk import BACKENDS
from support.services.clickhouse import new_database
from support.stores.databases import CORE, Stores

STEPS = 150


def different(one: Answers, other: Answers) -> list[str]:
    return [f"{query}: {one[query]} and {other[query]}" for query in one if one[query] != other[query]]


@pytest.mark.parametrize("seed", [0, 2, 4])
async def test_clickhouse_returns_the_same_results_as_the_main_store(stores: Stores, seed: int) -> None:
    fed = await ClickHouseFeed.begin(stores, new_database(), seed)
    for _ in range(3):
        await fed.steps(STEPS // 3)
        assert await fed.feed()
        now = fed.walk.now
        expected = await answers_by_sql(stores, now)
        assert different(expected, await answers_by_clickhouse(fed.history, now)) == []
    kinds_with_jobs = {kind for (_, kind, _), (_, jobs) in expected.items() if jobs}
    assert len(kinds_with_jobs) >= len(ResultKind) - 1  # kinds that were never generated are not compared
    window = Window.of(Span.WEEK, now)
    all_figures = await fed.history.figures(CORE.key, ResultKind.PUSH, window)
    for backend in BACKENDS:
        figures = await fed.history.figures(CORE.key, ResultKind.PUSH, window, backend)
        assert make_figures(figures.get(backend, []), window) == make_figures(
            all_figures.get(backend, []), window
        )
    for part in ("build", "TEST", "s", "no such"):
        names = await names_by_sql(stores, part, now)
        assert names == (await names_by_clickhouse(fed.history, part, now) if len(part) > 1 else set())
    await fed.link.close()
