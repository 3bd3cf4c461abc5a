"""The views of failure groups: order and counts of open groups, visibility, and one group with its failures."""

from dataclasses import replace
from typing import Any

import pytest

from crcr.decide.views.failures import FailurePage, FailureQuery, GroupPage, KnownFilter, SeenAt
from crcr.errors import BadRequest, NotFound
from crcr.record.store.times import from_us
from support.data.store_rows import UPSTREAM, StoreRows
from support.page_reader import HOSTILE

LISTED = """
L2:
  - Good/Backend
  - flaky/backend
  - secret/one: {visibility: hidden}
"""
MESSAGE, OTHER_MESSAGE = (
    "NotImplementedError: aten::foo has no kernel",
    "RuntimeError: device ran out of memory",
)


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist(LISTED)
    return store


async def list_groups(store: StoreRows, **query: Any) -> FailurePage:
    return await store.views.failures(FailureQuery(upstream=UPSTREAM, **query), store.clock.now())


async def read_group(store: StoreRows, fingerprint: str, **query: Any) -> GroupPage:
    options: dict[str, Any] = {"after": None, "limit": 50, **query}
    return await store.views.failure_group(UPSTREAM, fingerprint, store.clock.now(), **options)


async def test_a_group_spans_backends_and_commits(store: StoreRows) -> None:
    store.failure("d-1", "good/backend", MESSAGE, hours_ago=30, number=3, head_sha="3" * 40)
    store.failure("d-2", "flaky/backend", MESSAGE, hours_ago=2, job_name="test")
    fingerprint = store.failure("d-3", "good/backend", MESSAGE, hours_ago=5, job_name="test")
    (group,) = (await list_groups(store)).items
    assert (group.fingerprint, group.sample, group.count) == (fingerprint, MESSAGE, 3)
    assert group.backends == ("flaky/backend", "Good/Backend")
    assert set(group.jobs) == {"Good/Backend:build", "flaky/backend:test", "Good/Backend:test"}
    assert group.first_seen == SeenAt(sha="3" * 40, number=3, at=from_us(store.ago(hours=30)))
    assert group.last_seen == SeenAt(sha=f"{7:040x}", number=7, at=from_us(store.ago(hours=2)))
    assert group.known is None


async def test_groups_are_listed_by_their_last_failure_and_old_ones_are_omitted(store: StoreRows) -> None:
    old = store.failure("d-1", "good/backend", "ValueError: an old fault of the loader", hours_ago=24 * 15)
    first = store.failure("d-2", "good/backend", OTHER_MESSAGE, hours_ago=20)
    second = store.failure("d-3", "flaky/backend", MESSAGE, hours_ago=1)
    assert [group.fingerprint for group in (await list_groups(store)).items] == [second, first]
    assert not (await read_group(store, old)).is_open


async def test_groups_are_paged_without_a_gap(store: StoreRows) -> None:
    words = ["kernel", "driver", "loader", "planner", "fuser"]
    expected = [
        store.failure(f"d-{hours}", "good/backend", f"RuntimeError: the {word} is missing", hours_ago=hours)
        for hours, word in enumerate(words, start=1)
    ]
    query, fingerprints = FailureQuery(upstream=UPSTREAM, limit=2), []
    for _ in range(4):
        page = await store.views.failures(query, store.clock.now())
        fingerprints += [group.fingerprint for group in page.items]
        if page.next is None:
            break
        query = replace(query, after=page.next)
    assert fingerprints == expected
    with pytest.raises(BadRequest):
        await list_groups(store, after=("x", 1))


async def test_groups_with_equal_times_are_each_listed_once(store: StoreRows) -> None:
    words = ["kernel", "driver", "loader"]
    added = {store.failure(f"d-{word}", "good/backend", f"OSError: no {word} installed") for word in words}
    first = await list_groups(store, limit=1)
    second = await list_groups(store, limit=2, after=first.next)
    fingerprints = [group.fingerprint for group in (*first.items, *second.items)]
    assert (set(fingerprints), len(fingerprints), second.next) == (added, 3, None)


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({"text": "ATEN::FOO"}, [MESSAGE]),
        ({"text": "100%_"}, []),
        ({"backend": "Flaky"}, [MESSAGE]),
        ({"backend": "good"}, [MESSAGE, OTHER_MESSAGE]),
        ({"backend": "secret"}, []),
        ({"known": KnownFilter.YES}, [OTHER_MESSAGE]),
        ({"known": KnownFilter.NO}, [MESSAGE]),
    ],
)
async def test_groups_can_be_filtered_by_text_backend_and_known_state(
    store: StoreRows, query: dict[str, Any], expected: list[str]
) -> None:
    store.failure("d-1", "good/backend", MESSAGE, hours_ago=1)
    store.failure("d-2", "flaky/backend", MESSAGE, hours_ago=2)
    store.known(store.failure("d-3", "good/backend", OTHER_MESSAGE, hours_ago=3))
    assert [group.sample for group in (await list_groups(store, **query)).items] == expected


async def test_failures_of_a_hidden_backend_are_neither_shown_nor_counted(store: StoreRows) -> None:
    store.failure(
        "d-1", "secret/one", MESSAGE, hours_ago=40, number=3, head_sha="3" * 40, job_name="secret job"
    )
    shown = store.failure("d-2", "good/backend", MESSAGE, hours_ago=3)
    store.failure("d-3", "secret/one", MESSAGE, hours_ago=1, job_name="secret job")
    alone = store.failure("d-4", "secret/one", OTHER_MESSAGE)
    (group,) = (await list_groups(store)).items
    assert (group.fingerprint, group.backends, group.count, group.jobs) == (
        shown,
        ("Good/Backend",),
        1,
        ("Good/Backend:build",),
    )
    assert {group.first_seen.number, group.last_seen.number} == {7}
    assert [member.downstream for member in (await read_group(store, shown)).failures] == ["Good/Backend"]
    with pytest.raises(NotFound):
        await read_group(store, alone)
    everything = store.views.for_admins()
    page = await everything.failures(FailureQuery(upstream=UPSTREAM), store.clock.now())
    assert [group.count for group in page.items] == [3, 1]


async def test_a_known_failure_shows_its_issue_until_the_link_expires(store: StoreRows) -> None:
    fingerprint = store.failure("d-1", "good/backend", MESSAGE)
    store.known(fingerprint, until_at=store.ago(days=-2))
    known = (await list_groups(store)).items[0].known
    assert known is not None
    assert (known.url, known.issue, known.state.value, known.by, known.reason) == (
        "https://github.com/torch/torch/issues/12",
        "torch/torch#12",
        "open",
        "mia",
        "a driver bug",
    )
    store.clock.advance(3 * 86_400)
    assert (await list_groups(store)).items[0].known is None


async def test_a_group_closes_with_its_issue_and_reopens_on_the_next_failure(store: StoreRows) -> None:
    fingerprint = store.failure("d-1", "good/backend", MESSAGE, hours_ago=5)
    store.known(fingerprint, state="closed", ended_at=store.ago(hours=2))
    assert (await list_groups(store)).items == ()
    assert not (await read_group(store, fingerprint)).is_open
    store.failure("d-2", "good/backend", MESSAGE, hours_ago=1)
    (group,) = (await list_groups(store)).items
    assert (group.count, group.known) == (2, None)


async def test_the_failures_of_a_group_are_paged_newest_first(store: StoreRows) -> None:
    for hours in (9, 6, 3):
        fingerprint = store.failure(f"d-{hours}", "good/backend", MESSAGE, hours_ago=hours)
    page = await read_group(store, fingerprint, limit=2)
    assert [member.delivery for member in page.failures] == ["d-3", "d-6"]
    rest = await read_group(store, fingerprint, limit=2, after=page.next)
    assert ([member.delivery for member in rest.failures], rest.next) == (["d-9"], None)
    with pytest.raises(BadRequest):
        await read_group(store, fingerprint, after=("x",))


async def test_the_time_of_a_deleted_first_failure_is_kept(store: StoreRows) -> None:
    store.failure("d-1", "good/backend", MESSAGE, hours_ago=30)
    fingerprint = store.failure("d-2", "good/backend", MESSAGE, hours_ago=2)
    with store.engine.begin() as connection:
        connection.exec_driver_sql("DELETE FROM failures WHERE delivery = 'd-1'")
    group = (await read_group(store, fingerprint)).group
    assert group.first_seen == SeenAt(sha=None, number=None, at=from_us(store.ago(hours=30)))
    assert group.count == 2


@pytest.mark.parametrize("text", [text for text in HOSTILE if "\0" not in text])
async def test_a_failure_with_any_message_text_is_found(store: StoreRows, text: str) -> None:
    store.failure("d-1", "good/backend", f"RuntimeError: broken kernel {text}")
    (group,) = (await list_groups(store, text="broken kernel")).items
    assert group.sample.startswith("RuntimeError: broken kernel")
