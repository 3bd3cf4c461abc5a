"""The search and its suggestions: matches, paging, states and visibility."""

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


def add_job_day(
    store: StoreRows, job_name: str, downstream: str = "good/backend", days: float = 1, **more: Any
) -> None:
    day = store.ago(days=days) // DAY_US * DAY_US
    row = {"upstream": UPSTREAM.key, "downstream": downstream, "kind": "pull_request", "day_at": day}
    job_columns = {"workflow": "ci.yml", "workflow_name": "CI", "job_name": job_name}
    store.add(statistics.job_days, {**row, **job_columns, **more})


async def search(store: StoreRows, search_text: str, **more: Any) -> SearchView:
    return await store.views.search(
        SearchQuery(upstream=UPSTREAM, text=search_text, **more), store.clock.now()
    )


async def test_a_pull_request_number_is_found_in_every_notation(store: StoreRows) -> None:
    store.allowlist()
    store.pull(123, title="Fuse it")
    for search_text in ("123", "#123", " 123 ", f"https://github.com/{UPSTREAM}/pull/123/files#diff"):
        result = await search(store, search_text)
        assert result.exact is not None
        assert (result.exact.kind, result.exact.number) == (HitKind.PULL, 123)
    for search_text in ("124", "#0123", "https://github.com/other/repo/pull/123", "#123x"):
        assert (await search(store, search_text)).exact is None


async def test_a_commit_is_found_by_a_prefix_of_its_sha_and_exactly_by_all_of_it(store: StoreRows) -> None:
    store.allowlist()
    head, group, pushed = "abcdef1" + "1" * 33, "abcdef1" + "2" * 33, "abcdef1" + "3" * 33
    store.pull(7, head_sha=head)
    store.group(group)
    newest = store.delivery(number=None, head_sha=pushed, hours_ago=1)
    store.delivery(number=None, head_sha=pushed, hours_ago=3)
    store.delivery(OTHER, number=None, head_sha="abcdef1" + "4" * 33)
    result = await search(store, "ABCDEF1")
    assert {hit.head_sha for hit in result.hits} == {head, group, pushed}
    assert result.exact is None
    exact = (await search(store, pushed)).exact
    assert exact is not None
    assert exact.delivery == newest
    assert (await search(store, f"https://github.com/{UPSTREAM}/commit/{group}")).exact is not None
    assert (await search(store, "abcdef")).hits == ()


async def test_digits_that_match_a_number_and_a_commit_have_no_exact_result(store: StoreRows) -> None:
    store.allowlist()
    store.pull(1234567, head_sha="1234567" + "a" * 33)
    result = await search(store, "1234567")
    assert {hit.kind for hit in result.hits} == {HitKind.PULL, HitKind.COMMIT}
    assert result.exact is None


async def test_pull_requests_of_an_author_are_found_case_insensitively_newest_first(store: StoreRows) -> None:
    store.allowlist()
    for number in (5, 9, 7):
        store.pull(number, author="Ada", is_open=number % 2)
    store.pull(6, author="adam")
    for search_text in ("@ada", "ADA"):
        hits = [hit for hit in (await search(store, search_text)).hits if hit.kind is HitKind.AUTHOR]
        assert [hit.number for hit in hits] == [9, 7, 5]


async def test_titles_are_found_by_all_words_with_open_pull_requests_first(store: StoreRows) -> None:
    store.allowlist()
    store.pull(5, title="Fuse the Add kernels")
    store.pull(6, title="Fuse the mul kernels")
    store.pull(7, title="Fuse the add kernels", is_open=0)
    store.pull(4, title="Kernels that add", is_open=0, merged=1)
    store.pull(8, title="Fuse the add kernels", upstream=OTHER.key)
    hits = (await search(store, "kernels add")).hits
    assert [(hit.number, hit.state) for hit in hits] == [
        (5, PullState.OPEN),
        (7, PullState.CLOSED),
        (4, PullState.MERGED),
    ]


async def test_visible_backends_and_jobs_are_found_by_part_of_their_names(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    for name in ("good/backend", "secret/one", "shy/one", "left/long-ago"):
        add_job_day(store, "build one", name)
    add_job_day(store, "build one", kind="push", days=3)
    add_job_day(store, "build ages ago", days=40)
    result = await search(store, "ONE")
    assert [hit.title for hit in result.hits if hit.kind is HitKind.BACKEND] == ["gate/one", "shy/one"]
    jobs = [(hit.title, str(hit.backend)) for hit in (await search(store, "build")).hits]
    assert jobs == [("build one", "Good/Backend")]
    query = SearchQuery(upstream=UPSTREAM, text="build")
    for_admins = await store.views.for_admins().search(query, store.clock.now())
    assert {str(hit.backend) for hit in for_admins.hits} == {"Good/Backend", "secret/one", "shy/one"}


@pytest.mark.parametrize(
    ("wanted", "found"), [("0%_c", 1), ("%%", 0), ("__", 0), ("!_", 0), ("a!b", 1), ("'--", 0)]
)
async def test_wildcards_in_a_search_are_taken_literally(store: StoreRows, wanted: str, found: int) -> None:
    store.allowlist(LISTED)
    for name in ("100%_cover", "plain", "a!b"):
        add_job_day(store, name)
    assert len((await search(store, wanted)).hits) == found


async def test_the_most_recent_jobs_come_first_and_further_pages_are_offered(store: StoreRows) -> None:
    store.allowlist(LISTED)
    for number in range(25):
        add_job_day(store, f"shard {number}", days=number % 3)
    result = await search(store, "shard")
    assert (len(result.hits), [page.kind for page in result.more]) == (20, [HitKind.JOB])
    days = [(hit.detail or "").partition("last on ")[2] for hit in result.hits]
    assert days == sorted(days, reverse=True)


async def test_found_jobs_have_their_last_start_time_and_are_sorted_by_it(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery()
    for hours, name in ((1, "shard b"), (2, "shard c"), (3, "shard a"), (4, "shard b")):
        at = store.ago(hours=hours)
        store.job(delivery, run_id=str(hours), job_name=name, in_progress_at=at, ended_as="success")
    for name in ("shard a", "shard b", "shard c"):
        add_job_day(store, name, days=0)
    add_job_day(store, "shard forgotten", days=3)
    titles_and_times = [(hit.title, hit.at) for hit in (await search(store, "shard")).hits]
    expected = [("shard b", 1), ("shard c", 2), ("shard a", 3)]
    assert titles_and_times == [
        *((name, from_us(store.ago(hours=hours))) for name, hours in expected),
        ("shard forgotten", None),
    ]


async def test_an_authors_pull_requests_are_listed_page_by_page(store: StoreRows) -> None:
    store.allowlist()
    for number in range(1, 46):
        store.pull(number, author="Ada")
    listed: list[int | None] = []
    page = await search(store, "ada")
    while True:
        listed += [hit.number for hit in page.hits]
        if page.next is None:
            break
        page = await search(store, "ada", after=page.next)
        assert {hit.kind for hit in page.hits} == {HitKind.AUTHOR}
    assert listed == list(range(45, 0, -1))


@pytest.mark.parametrize(
    "wanted", ["", " ", "\x00", "#", "@", "x" * 100_000, "\u202e", "🦀", "https://", "%", "a"]
)
async def test_any_text_can_be_searched_for(store: StoreRows, wanted: str) -> None:
    store.allowlist(LISTED)
    add_job_day(store, "build")
    result = await search(store, wanted)
    assert (result.hits, result.exact) == ((), None)
    assert len(result.text) <= 200


async def test_only_open_pull_requests_have_the_state_of_their_gate(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    for number, is_open in ((5, 1), (6, 1), (7, 0)):
        store.pull(number, title="Fuse it", is_open=is_open, author="Ada")
    for number in (5, 7):
        store.gate(f"{number:040x}", "failed")
    gates = {(hit.kind, hit.number): hit.gate for hit in (await search(store, "fuse")).hits}
    assert gates == {
        (HitKind.PULL, 5): GateShown.FAILED,
        (HitKind.PULL, 6): None,
        (HitKind.PULL, 7): None,
    }
    assert (await search(store, "#5")).hits[0].gate is GateShown.FAILED
    commits = (await search(store, "0" * 39)).hits
    assert {hit.number: hit.gate for hit in commits}[5] is GateShown.FAILED


async def test_backends_and_jobs_have_their_level_and_newest_result(store: StoreRows) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery()
    for hours, conclusion in ((3, "success"), (1, "failure")):
        at = store.ago(hours=hours)
        ended = {"in_progress_at": at, "completed_at": at, "ended_as": conclusion}
        store.job(delivery, conclusion, run_id=str(hours), job_name="backend build", **ended)
    add_job_day(store, "backend build", days=0)
    hits = {hit.title: hit for hit in (await search(store, "backend")).hits}
    assert (hits["Good/Backend"].level, hits["Good/Backend"].result) == (Level.L2, CountedAs.FAILURE)
    assert hits["flaky/backend"].result is None
    assert hits["backend build"].result is CountedAs.FAILURE


def add_failures(store: StoreRows, *names: str, message: str, **more: Any) -> str:
    delivery = store.delivery()
    return [store.failure(delivery, name, message, **more) for name in names][-1]


async def test_failed_tests_and_messages_of_visible_backends_are_found(store: StoreRows) -> None:
    store.allowlist(LISTED)
    message = "RuntimeError: no kernel for Fused_Add"
    visible = ("good/backend", "flaky/backend")
    group = add_failures(
        store, *visible, "secret/one", "shy/one", message=message, test="TestOps::test_addmm"
    )
    add_failures(store, "secret/one", message="RuntimeError: secretly", test="TestOps::test_addmm_hidden")
    add_failures(
        store, "good/backend", message="ValueError: too old", test="test_addmm_old", hours_ago=15 * 24
    )
    store.known(group)
    tests = (await search(store, "TEST_addmm")).hits
    assert [(hit.kind, hit.title, hit.detail) for hit in tests] == [
        (HitKind.TEST, "TestOps::test_addmm", message)
    ]
    (hit,) = (await search(store, "fused_add")).hits
    assert (hit.kind, hit.fingerprint, hit.count, hit.known) == (HitKind.FAILURE, group, 2, True)
    assert {name.key for name in hit.backends} == {name.key for name in tests[0].backends} == set(visible)
    assert (await search(store, "secretly")).hits == ()
    query = SearchQuery(upstream=UPSTREAM, text="addmm")
    for_admins = await store.views.for_admins().search(query, store.clock.now())
    assert {hit.title for hit in for_admins.hits} == {"TestOps::test_addmm", "TestOps::test_addmm_hidden"}


def add_45_of_each_kind(store: StoreRows) -> None:
    names = [f"many/thing-{number:02d}" for number in range(45)]
    store.allowlist(
        "L2:\n" + "".join(f"  - {name}\n" for name in names) + "  - secret/one: {visibility: hidden}\n"
    )
    for number, name in enumerate(names, 1):
        store.pull(number, title=f"One thing {number}", is_open=number % 2, author="thing")
        add_job_day(store, f"thing {number}", name, days=number % 3)
        add_failures(
            store, name, message=f"KeyError: thing {chr(64 + number)}{'x' * number}", test=f"thing_{number}"
        )
        add_failures(store, "secret/one", message=f"KeyError: thing {'s' * number}", test=f"thing_s{number}")


@pytest.mark.parametrize("kind", [kind for kind in HitKind if kind is not HitKind.COMMIT])
async def test_every_kind_is_paged_without_gaps_or_duplicates(store: StoreRows, kind: HitKind) -> None:
    add_45_of_each_kind(store)
    hits: list[Hit] = []
    first = {page.kind: page.next for page in (await search(store, "thing")).more}
    page = await search(store, "thing", kind=kind)
    assert str(first[kind]) == str(page.next)
    hits += page.hits
    while (after := page.next) is not None:
        assert len(page.hits) == 20
        assert "secret" not in str(after)
        page = await search(store, "thing", kind=kind, after=after)
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
        result = await search(store, "thing", kind=kind, after=after)
    except BadRequest:
        return
    assert result.hits == ()


async def test_suggestions_are_few_of_every_kind_and_contain_nothing_hidden(store: StoreRows) -> None:
    add_45_of_each_kind(store)
    query = SearchQuery(upstream=UPSTREAM, text="thing")
    suggestions = await store.views.suggest(query, store.clock.now())
    kinds = [hit.kind for hit in suggestions.hits]
    assert kinds[:3] == [HitKind.BACKEND] * 3
    assert len(kinds) == 10
    assert max(kinds.count(kind) for kind in kinds) == 3
    for hidden in ("secret", "thing_s1", "thing sss"):
        query = SearchQuery(upstream=UPSTREAM, text=hidden)
        assert (await store.views.suggest(query, store.clock.now())).hits == ()
