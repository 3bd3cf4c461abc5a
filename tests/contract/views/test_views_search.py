"""The search and its suggestions: what is found, page by page, with which status, and what stays hidden."""

from typing import Any

import pytest

from crcr.decide.model import Level
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.commit import GateShown, PullState
from crcr.decide.views.search import Hit, HitKind, SearchQuery, SearchView
from crcr.errors import BadRequest
from crcr.record.schema import statistics
from crcr.record.store.times import from_us
from support.data.store_rows import OTHER, UPSTREAM, StoreRows

LISTED = """
L2:
  - Good/Backend
  - flaky/backend
  - secret/one: {visibility: hidden}
  - shy/one: {visibility: name}
L4:
  - gate/one: [ada]
  - secret/gate: {visibility: hidden, oncalls: [bob]}
"""
DAY_US = 86_400_000_000


def ran(
    store: StoreRows, job_name: str, downstream: str = "good/backend", days: float = 1, **more: Any
) -> None:
    day = store.ago(days=days) // DAY_US * DAY_US
    row = {"upstream": UPSTREAM.key, "downstream": downstream, "kind": "pull_request", "day_at": day}
    what = {"workflow": "ci.yml", "workflow_name": "CI", "job_name": job_name}
    store.add(statistics.job_days, {**row, **what, **more})


async def look(store: StoreRows, wanted: str, **more: Any) -> SearchView:
    return await store.views.search(SearchQuery(upstream=UPSTREAM, text=wanted, **more), store.clock.now())


async def test_a_number_is_found_however_it_is_written(store: StoreRows) -> None:
    store.allowlist()
    store.pull(123, title="Fuse it")
    for wanted in ("123", "#123", " 123 ", f"https://github.com/{UPSTREAM}/pull/123/files#diff"):
        found = await look(store, wanted)
        assert found.exact is not None
        assert (found.exact.kind, found.exact.number) == (HitKind.PULL, 123)
    for wanted in ("124", "#0123", "https://github.com/other/repo/pull/123", "#123x"):
        assert (await look(store, wanted)).exact is None


async def test_a_commit_is_found_by_its_first_digits_and_exact_by_all(store: StoreRows) -> None:
    store.allowlist()
    head, group, pushed = "abcdef1" + "1" * 33, "abcdef1" + "2" * 33, "abcdef1" + "3" * 33
    store.pull(7, head_sha=head)
    store.group(group)
    newest = store.delivery(number=None, head_sha=pushed, hours_ago=1)
    store.delivery(number=None, head_sha=pushed, hours_ago=3)
    store.delivery(OTHER, number=None, head_sha="abcdef1" + "4" * 33)
    found = await look(store, "ABCDEF1")
    assert {hit.head_sha for hit in found.hits} == {head, group, pushed}
    assert found.exact is None
    exact = (await look(store, pushed)).exact
    assert exact is not None
    assert exact.delivery == newest
    assert (await look(store, f"https://github.com/{UPSTREAM}/commit/{group}")).exact is not None
    assert (await look(store, "abcdef")).hits == ()


async def test_digits_that_may_be_a_number_or_a_commit_lead_nowhere_by_themselves(store: StoreRows) -> None:
    store.allowlist()
    store.pull(1234567, head_sha="1234567" + "a" * 33)
    found = await look(store, "1234567")
    assert {hit.kind for hit in found.hits} == {HitKind.PULL, HitKind.COMMIT}
    assert found.exact is None


async def test_an_author_is_found_in_any_case_newest_first(store: StoreRows) -> None:
    store.allowlist()
    for number in (5, 9, 7):
        store.pull(number, author="Ada", is_open=number % 2)
    store.pull(6, author="adam")
    for wanted in ("@ada", "ADA"):
        hits = [hit for hit in (await look(store, wanted)).hits if hit.kind is HitKind.AUTHOR]
        assert [hit.number for hit in hits] == [9, 7, 5]


async def test_titles_are_found_by_all_their_words_the_open_ones_first(store: StoreRows) -> None:
    store.allowlist()
    store.pull(5, title="Fuse the Add kernels")
    store.pull(6, title="Fuse the mul kernels")
    store.pull(7, title="Fuse the add kernels", is_open=0)
    store.pull(4, title="Kernels that add", is_open=0, merged=1)
    store.pull(8, title="Fuse the add kernels", upstream=OTHER.key)
    hits = (await look(store, "kernels add")).hits
    assert [(hit.number, hit.state) for hit in hits] == [
        (5, PullState.OPEN),
        (7, PullState.CLOSED),
        (4, PullState.MERGED),
    ]


async def test_backends_and_jobs_are_found_by_part_of_their_names_if_they_may_be_seen(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    for name in ("good/backend", "secret/one", "shy/one", "left/long-ago"):
        ran(store, "build one", name)
    ran(store, "build one", kind="push", days=3)
    ran(store, "build ages ago", days=40)
    found = await look(store, "ONE")
    assert [hit.title for hit in found.hits if hit.kind is HitKind.BACKEND] == ["gate/one", "shy/one"]
    jobs = [(hit.title, str(hit.backend)) for hit in (await look(store, "build")).hits]
    assert jobs == [("build one", "Good/Backend")]
    query = SearchQuery(upstream=UPSTREAM, text="build")
    eyes = await store.views.for_admins().search(query, store.clock.now())
    assert {str(hit.backend) for hit in eyes.hits} == {"Good/Backend", "secret/one", "shy/one"}


@pytest.mark.parametrize(
    ("wanted", "found"), [("0%_c", 1), ("%%", 0), ("__", 0), ("!_", 0), ("a!b", 1), ("'--", 0)]
)
async def test_wildcards_in_a_search_are_only_letters(store: StoreRows, wanted: str, found: int) -> None:
    store.allowlist(LISTED)
    for name in ("100%_cover", "plain", "a!b"):
        ran(store, name)
    assert len((await look(store, wanted)).hits) == found


async def test_the_most_recent_come_first_and_more_is_told(store: StoreRows) -> None:
    store.allowlist(LISTED)
    for number in range(25):
        ran(store, f"shard {number}", days=number % 3)
    found = await look(store, "shard")
    assert (len(found.hits), [page.kind for page in found.more]) == (20, [HitKind.JOB])
    days = [(hit.detail or "").partition("last on ")[2] for hit in found.hits]
    assert days == sorted(days, reverse=True)


async def test_a_found_job_has_the_time_when_it_last_began_and_the_latest_comes_first(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery()
    for hours, name in ((1, "shard b"), (2, "shard c"), (3, "shard a"), (4, "shard b")):
        at = store.ago(hours=hours)
        store.job(delivery, run_id=str(hours), job_name=name, in_progress_at=at, ended_as="success")
    for name in ("shard a", "shard b", "shard c"):
        ran(store, name, days=0)
    ran(store, "shard forgotten", days=3)
    found = [(hit.title, hit.at) for hit in (await look(store, "shard")).hits]
    last = [("shard b", 1), ("shard c", 2), ("shard a", 3)]
    assert found == [
        *((name, from_us(store.ago(hours=hours))) for name, hours in last),
        ("shard forgotten", None),
    ]


async def test_an_authors_pull_requests_are_listed_page_by_page(store: StoreRows) -> None:
    store.allowlist()
    for number in range(1, 46):
        store.pull(number, author="Ada")
    listed: list[int | None] = []
    page = await look(store, "ada")
    while True:
        listed += [hit.number for hit in page.hits]
        if page.next is None:
            break
        page = await look(store, "ada", after=page.next)
        assert {hit.kind for hit in page.hits} == {HitKind.AUTHOR}
    assert listed == list(range(45, 0, -1))


@pytest.mark.parametrize(
    "wanted", ["", " ", "\x00", "#", "@", "x" * 100_000, "\u202e", "🦀", "https://", "%", "a"]
)
async def test_any_text_can_be_searched_for(store: StoreRows, wanted: str) -> None:
    store.allowlist(LISTED)
    ran(store, "build")
    found = await look(store, wanted)
    assert (found.hits, found.exact) == ((), None)
    assert len(found.text) <= 200


async def test_open_pull_requests_have_the_state_of_their_gate_and_closed_ones_have_none(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    for number, is_open in ((5, 1), (6, 1), (7, 0)):
        store.pull(number, title="Fuse it", is_open=is_open, author="Ada")
    for number in (5, 7):
        store.gate(f"{number:040x}", "failed")
    found = {(hit.kind, hit.number): hit.gate for hit in (await look(store, "fuse")).hits}
    assert found == {
        (HitKind.PULL, 5): GateShown.FAILED,
        (HitKind.PULL, 6): None,
        (HitKind.PULL, 7): None,
    }
    assert (await look(store, "#5")).hits[0].gate is GateShown.FAILED
    commits = (await look(store, "0" * 39)).hits
    assert {hit.number: hit.gate for hit in commits}[5] is GateShown.FAILED


async def test_backends_and_jobs_have_their_level_and_newest_result(store: StoreRows) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery()
    for hours, conclusion in ((3, "success"), (1, "failure")):
        at = store.ago(hours=hours)
        ended = {"in_progress_at": at, "completed_at": at, "ended_as": conclusion}
        store.job(delivery, conclusion, run_id=str(hours), job_name="backend build", **ended)
    ran(store, "backend build", days=0)
    hits = {hit.title: hit for hit in (await look(store, "backend")).hits}
    assert (hits["Good/Backend"].level, hits["Good/Backend"].result) == (Level.L2, CountedAs.FAILURE)
    assert hits["flaky/backend"].result is None
    assert hits["backend build"].result is CountedAs.FAILURE


def fail_in(store: StoreRows, *names: str, message: str, **more: Any) -> str:
    delivery = store.delivery()
    return [store.failure(delivery, name, message, **more) for name in names][-1]


async def test_failed_tests_and_messages_are_found_where_they_may_be_seen(store: StoreRows) -> None:
    store.allowlist(LISTED)
    message = "RuntimeError: no kernel for Fused_Add"
    seen = ("good/backend", "flaky/backend")
    group = fail_in(store, *seen, "secret/one", "shy/one", message=message, test="TestOps::test_addmm")
    fail_in(store, "secret/one", message="RuntimeError: secretly", test="TestOps::test_addmm_hidden")
    fail_in(store, "good/backend", message="ValueError: too old", test="test_addmm_old", hours_ago=15 * 24)
    store.known(group)
    tests = (await look(store, "TEST_addmm")).hits
    assert [(hit.kind, hit.title, hit.detail) for hit in tests] == [
        (HitKind.TEST, "TestOps::test_addmm", message)
    ]
    (found,) = (await look(store, "fused_add")).hits
    assert (found.kind, found.fingerprint, found.count, found.known) == (HitKind.FAILURE, group, 2, True)
    assert {name.key for name in found.backends} == {name.key for name in tests[0].backends} == set(seen)
    assert (await look(store, "secretly")).hits == ()
    query = SearchQuery(upstream=UPSTREAM, text="addmm")
    eyes = await store.views.for_admins().search(query, store.clock.now())
    assert {hit.title for hit in eyes.hits} == {"TestOps::test_addmm", "TestOps::test_addmm_hidden"}


def fill_with_many(store: StoreRows) -> None:
    names = [f"many/thing-{number:02d}" for number in range(45)]
    store.allowlist(
        "L2:\n" + "".join(f"  - {name}\n" for name in names) + "  - secret/one: {visibility: hidden}\n"
    )
    for number, name in enumerate(names, 1):
        store.pull(number, title=f"One thing {number}", is_open=number % 2, author="thing")
        ran(store, f"thing {number}", name, days=number % 3)
        fail_in(
            store, name, message=f"KeyError: thing {chr(64 + number)}{'x' * number}", test=f"thing_{number}"
        )
        fail_in(store, "secret/one", message=f"KeyError: thing {'s' * number}", test=f"thing_s{number}")


@pytest.mark.parametrize("kind", [kind for kind in HitKind if kind is not HitKind.COMMIT])
async def test_every_kind_is_listed_page_by_page_without_gaps_or_doubles(
    store: StoreRows, kind: HitKind
) -> None:
    fill_with_many(store)
    hits: list[Hit] = []
    first = {page.kind: page.next for page in (await look(store, "thing")).more}
    page = await look(store, "thing", kind=kind)
    assert str(first[kind]) == str(page.next)
    hits += page.hits
    while (after := page.next) is not None:
        assert len(page.hits) == 20
        assert "secret" not in str(after)
        page = await look(store, "thing", kind=kind, after=after)
        hits += page.hits
    assert {hit.kind for hit in hits} == {kind}
    assert len({(hit.title, hit.backend) for hit in hits}) == len(hits) == 45


@pytest.mark.parametrize("kind", [kind for kind in HitKind if kind is not HitKind.COMMIT])
@pytest.mark.parametrize("after", [("x",), (0,), (-1,), (2**62,), (1, "a"), (1, 2, 3, 4)])
async def test_a_cursor_of_another_list_is_refused_or_harmless(
    store: StoreRows, kind: HitKind, after: tuple[str | int, ...]
) -> None:
    store.allowlist(LISTED)
    try:
        found = await look(store, "thing", kind=kind, after=after)
    except BadRequest:
        return
    assert found.hits == ()


async def test_suggestions_are_few_of_every_kind_and_never_of_what_is_hidden(store: StoreRows) -> None:
    fill_with_many(store)
    query = SearchQuery(upstream=UPSTREAM, text="thing")
    found = await store.views.suggest(query, store.clock.now())
    kinds = [hit.kind for hit in found.hits]
    assert kinds[:3] == [HitKind.BACKEND] * 3
    assert len(kinds) == 10
    assert max(kinds.count(kind) for kind in kinds) == 3
    for hidden in ("secret", "thing_s1", "thing sss"):
        query = SearchQuery(upstream=UPSTREAM, text=hidden)
        assert (await store.views.suggest(query, store.clock.now())).hits == ()
