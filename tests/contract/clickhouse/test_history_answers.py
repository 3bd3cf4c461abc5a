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
    return [f"{asked}: {one[asked]} and {other[asked]}" for asked in one if one[asked] != other[asked]]


@pytest.mark.parametrize("seed", [0, 2, 4])
async def test_clickhouse_answers_what_the_main_store_answers(stores: Stores, seed: int) -> None:
    fed = await ClickHouseFeed.begin(stores, new_database(), seed)
    for _ in range(3):
        await fed.steps(STEPS // 3)
        assert await fed.feed()
        now = fed.walk.now
        wanted = await answers_by_sql(stores, now)
        assert different(wanted, await answers_by_clickhouse(fed.history, now)) == []
    answered = {kind for (_, kind, _), (_, jobs) in wanted.items() if jobs}
    assert len(answered) >= len(ResultKind) - 1  # what was never generated is not compared
    window = Window.of(Span.WEEK, now)
    together = await fed.history.figures(CORE.key, ResultKind.PUSH, window)
    for backend in BACKENDS:
        alone = await fed.history.figures(CORE.key, ResultKind.PUSH, window, backend)
        assert make_figures(alone.get(backend, []), window) == make_figures(together.get(backend, []), window)
    for part in ("build", "TEST", "s", "no such"):
        named = await names_by_sql(stores, part, now)
        assert named == (await names_by_clickhouse(fed.history, part, now) if len(part) > 1 else set())
    await fed.link.close()
