"""A backend's matrix on a real store: paging without gaps or duplicates, and filters."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.statistics.figures import CountedAs
from crcr.decide.statistics.window import ResultKind
from crcr.errors import BadRequest
from crcr.record.schema import main_tables
from support.data.backend_rows import (
    GOOD,
    NOW,
    PROBING,
    all_deliveries,
    backend_page,
    dispatched_delivery,
    dispatched_push,
)
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, now=NOW) as store:
        yield store


# Pages


@pytest.mark.parametrize("limit", [1, 2, 3, 7, 50])
async def test_pages_contain_each_event_once_even_with_equal_times(store: StoreRows, limit: int) -> None:
    store.allowlist()
    older = [dispatched_delivery(store, hours_ago=5) for _ in range(6)]
    at_once = [dispatched_delivery(store, hours_ago=3) for _ in range(9)]
    assert await all_deliveries(store, limit=limit) == [*at_once[::-1], *older[::-1]]


@pytest.mark.parametrize("limit", [1, 2, 5])
async def test_pages_of_pushes_and_merge_groups_contain_each_event_once(store: StoreRows, limit: int) -> None:
    store.allowlist()
    mixed = []
    for place in range(12):
        kind: dict[str, Any] = {"event": "merge_group", "action": "checks_requested"} if place % 3 else {}
        mixed.append(dispatched_push(store, hours_ago=9 - place // 4, **kind))
    assert await all_deliveries(store, kind=ResultKind.PUSH, limit=limit) == mixed[::-1]
    assert await all_deliveries(store, kind=ResultKind.PUSH, limit=limit, text="MAIN") == mixed[::-1]


async def test_a_filter_that_searches_more_than_one_page_misses_nothing(store: StoreRows) -> None:
    store.allowlist()
    for number, author in ((1, "ada"), (2, "bob")):
        store.pull(number, author=author)
    matching = {0, 1, 1_999, 2_000, 2_001, 3_333, 4_499}  # at most 2,000 events are searched at a time
    store.add(
        main_tables.dispatches,
        *(_dispatch(store, index, 1 if index in matching else 2) for index in range(4_500)),
    )
    deliveries = await all_deliveries(store, author="ADA", limit=3)
    assert deliveries == [f"e-{index:04d}" for index in sorted(matching, reverse=True)]


def _dispatch(store: StoreRows, index: int, number: int) -> dict[str, Any]:
    at = store.ago(hours=9, minutes=-(index // 10))
    row = {"upstream": UPSTREAM.key, "delivery": f"e-{index:04d}", "downstream": GOOD.key, "level": 2}
    columns = {"event": "pull_request", "action": "opened", "number": number, "head_sha": f"{index:040x}"}
    return {**row, **columns, "state": "sent", "lane": "pull/1", "created_at": at, "sent_at": at}


async def test_a_forged_cursor_is_refused(store: StoreRows) -> None:
    store.allowlist()
    for after in (("x", 1), (1,), (1, 2)):
        with pytest.raises(BadRequest):
            await backend_page(store, after=after)


# Filters


async def test_a_text_filter_ignores_case_and_treats_wildcards_literally(store: StoreRows) -> None:
    store.allowlist()
    titles = {
        1: "100% of _all_ tests!",
        2: "1000 or so of call tests",
        3: "Grüße ÄPFEL",
        4: "plain",
    }
    for number, title in titles.items():
        store.pull(number, title=title, author=f"author-{number}")
        dispatched_delivery(store, number=number, head_sha=f"{number:x}abc".ljust(40, "0"))

    async def find_numbers(text: str) -> list[int]:
        rows = (await backend_page(store, text=text)).matrix.rows
        return sorted(row.number for row in rows if row.number)

    assert await find_numbers("100%") == [1]
    assert await find_numbers("_ALL_") == [1]
    assert await find_numbers("!") == [1]
    assert await find_numbers("GRüße") == await find_numbers("ÄPFEL") == await find_numbers("Äpfel") == [3]
    assert (
        await find_numbers("#4")
        == await find_numbers("4")
        == await find_numbers("4ABC")
        == await find_numbers("Author-4")
        == [4]
    )
    assert await find_numbers("") == [1, 2, 3, 4]
    assert await find_numbers("%") == [1]


async def test_the_author_filter_matches_the_whole_name(store: StoreRows) -> None:
    store.allowlist()
    for number, author in ((1, "Ada"), (2, "adamant")):
        store.pull(number, author=author)
        dispatched_delivery(store, number=number)
    assert [row.author for row in (await backend_page(store, author="ada")).matrix.rows] == ["Ada"]


async def test_a_result_filter_matches_the_results_that_the_cells_show(store: StoreRows) -> None:
    store.allowlist()
    failed, running, silent, skipped = (dispatched_delivery(store) for _ in range(4))
    repaired, replaced, old = (
        dispatched_delivery(store),
        dispatched_delivery(store),
        dispatched_delivery(store, superseded_at=store.ago(hours=1)),
    )
    store.job(failed, "failure")
    store.job(failed, "success", job_name="other")
    store.job(running, None)
    store.job(silent, None, state="timed_out", swept_at=store.ago(hours=1))
    store.job(skipped, "skipped")
    store.job(repaired, None)
    store.job(repaired, "success", attempt=2)  # the first attempt is no longer awaited
    store.job(replaced, "failure", run_id="1", superseded=1)
    store.job(replaced, "success", run_id="2")
    store.job(old, "failure")

    async def find_deliveries(result: CountedAs, *, older: bool = False) -> set[str]:
        rows = (await backend_page(store, result=result, older=older)).matrix.rows
        for row in rows:
            assert result in {cell.counted for cell in row.cells if cell}
        return {row.delivery for row in rows}

    assert await find_deliveries(CountedAs.FAILURE) == {failed, silent}
    assert await find_deliveries(CountedAs.FAILURE, older=True) == {failed, silent, old}
    assert await find_deliveries(CountedAs.RUNNING) == {running}
    assert await find_deliveries(CountedAs.SUCCESS) == {failed, repaired, replaced}
    assert await find_deliveries(CountedAs.OTHER) == {skipped}


async def test_an_expected_failure_matches_the_success_filter(store: StoreRows) -> None:
    store.allowlist(PROBING)
    expected, unexpected = dispatched_delivery(store), dispatched_delivery(store)
    store.job(expected, "failure", expected="failure")
    store.job(unexpected, "success", expected="failure")
    [row] = (await backend_page(store, result=CountedAs.SUCCESS)).matrix.rows
    assert row.delivery == expected
    [row] = (await backend_page(store, result=CountedAs.FAILURE)).matrix.rows
    assert row.delivery == unexpected


async def test_a_job_filter_removes_columns_and_keeps_all_rows(store: StoreRows) -> None:
    store.allowlist()
    for names in (("build cpu", "test"), ("test",)):
        guid = dispatched_delivery(store)
        for name in names:
            store.job(guid, job_name=name)
    matrix = (await backend_page(store, job="BUILD")).matrix
    assert [column.job_name for column in matrix.columns] == ["build cpu"]
    assert len(matrix.rows) == 2


async def test_superseded_commits_and_close_events_are_shown_with_the_older_option(store: StoreRows) -> None:
    store.allowlist()
    current = dispatched_delivery(store)
    old = dispatched_delivery(store, superseded_at=store.ago(hours=1))
    closed = dispatched_delivery(store, action="closed")
    assert await all_deliveries(store) == [current]
    assert set(await all_deliveries(store, older=True)) == {current, old, closed}
    rows = (await backend_page(store, older=True)).matrix.rows
    assert {row.delivery for row in rows if row.superseded} == {old}
