"""The attention items of the front page, on both databases: red jobs, silent backends, blocked pull requests."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from sqlalchemy import update

from crcr.decide.in_tree.checks import InTreeCheck
from crcr.decide.statistics.window import Span
from crcr.decide.views.attention import Attention, AttentionItem, AttentionKind
from crcr.decide.views.failing import FailingQuery
from crcr.decide.views.overview import Summary
from crcr.record.schema import checks, main_tables
from crcr.record.views.sql_views import SqlViews
from support.data.base_history import BaseHistory, sha_of
from support.data.store_rows import UPSTREAM, StoreRows, open_store_rows

LISTED = """
L1: [listen/only]
L2:
  - Good/Backend: {oncalls: [ada, grace]}
  - flaky/backend
  - secret/one: {visibility: hidden}
  - shy/one: {visibility: name}
  - probe/one: {expect: {'*': failure}}
L4:
  - gate/one: {oncalls: [mia], jobs: [build]}
  - gate/mute: {oncalls: [ira], jobs: [build]}
"""


@pytest.fixture(params=["sqlite", "postgresql"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[StoreRows]:
    async with open_store_rows(tmp_path, on_postgresql=request.param == "postgresql") as rows:
        rows.allowlist(LISTED)
        yield rows


@pytest.fixture
def base(store: StoreRows) -> BaseHistory:
    return BaseHistory(store)


async def read(store: StoreRows, views: SqlViews | None = None) -> Summary:
    return await (views or store.views).summary(UPSTREAM, Span.FORTNIGHT, store.clock.now())


async def attention(store: StoreRows) -> Attention:
    return (await read(store)).attention


def deliver(store: StoreRows, *positions: int) -> None:
    """Add the push deliveries whose results a `BaseHistory` adds."""
    for position in positions:
        sha = sha_of(position)
        store.delivery(number=None, guid=f"d-{sha}", head_sha=sha, hours_ago=1)


def item_summaries(items: tuple[AttentionItem, ...]) -> list[tuple[str, str]]:
    return [(item.kind.value, str(item.backend or item.number or item.branch or "")) for item in items]


async def test_newly_failing_jobs_are_listed_by_backend_and_older_ones_in_one_item(
    store: StoreRows, base: BaseHistory
) -> None:
    deliver(store, 1, 2, 3, 4)
    base.push(1, "success", hours_ago=90)
    base.push(2, hours_ago=9)
    base.push(3, hours_ago=5)
    base.push(3, job_name="lint", hours_ago=4)
    base.push(2, "success", job_name="test", hours_ago=9)
    for position, hours in ((1, 80), (2, 70), (4, 1)):
        base.push(position, downstream="flaky/backend", hours_ago=hours)
    base.push(1, downstream="gate/one", hours_ago=8)
    base.push(2, "success", downstream="gate/one", hours_ago=7)

    attention_view = await attention(store)
    assert [(item.kind.value, item.text) for item in attention_view.items] == [
        ("backend_red", "2 jobs fail on main: build, lint"),
        ("base_red", "1 job of 1 backend has failed on main for more than 24 hours"),
    ]
    assert attention_view.items[0].oncalls == ("ada", "grace")
    failing = (await store.views.failing(FailingQuery(upstream=UPSTREAM), store.clock.now())).items
    since = {(str(job.backend), job.job): job.since for job in failing}
    assert set(since) == {("Good/Backend", "build"), ("Good/Backend", "lint"), ("flaky/backend", "build")}
    assert attention_view.items[0].since == since["Good/Backend", "build"]
    assert attention_view.items[1].since == since["flaky/backend", "build"]


async def test_jobs_that_the_failing_jobs_list_omits_are_no_attention_item(
    store: StoreRows, base: BaseHistory
) -> None:
    deliver(store, 1, 2)
    base.push(1, "cancelled", hours_ago=3)
    base.push(1, verdict="infrastructure", job_name="sick", hours_ago=3)
    base.push(1, verdict="flaky", job_name="once", hours_ago=3)
    base.push(1, job_name="later", hours_ago=3)
    base.push(2, "success", job_name="later", hours_ago=4)  # of a later commit, although it arrived first
    base.push(2, job_name="rerun", passed_at=store.ago(hours=1), hours_ago=2)
    assert (await attention(store)).items == ()


async def test_hidden_backends_and_probes_are_neither_listed_nor_counted(
    store: StoreRows, base: BaseHistory
) -> None:
    deliver(store, 1, 2)
    for name in ("secret/one", "shy/one", "probe/one", "gone/one", "listen/only"):
        for position in (1, 2):
            base.push(position, downstream=name, hours_ago=3)
            base.push(position, downstream=name, job_name="old", hours_ago=50)
    row = {"name": "x", "confirmed": 0, "suspended_at": store.ago(hours=1), "upstream": UPSTREAM.key}
    store.add(main_tables.repositories, {**row, "downstream": "secret/one"})
    public = await attention(store)
    assert (public.items, public.more_backends) == ((), 0)
    for_admins = (await read(store, store.views.for_admins())).attention
    names = {name for _, name in item_summaries(for_admins.items)}
    assert {"secret/one", "shy/one"} <= names
    assert not {"probe/one", "gone/one", "listen/only"} & names


async def test_a_silent_backend_is_an_attention_item_for_a_day(store: StoreRows) -> None:
    for hours in (30, 20, 10, 5):
        delivery = store.delivery(hours_ago=hours)
        store.dispatch(delivery, "gate/one", hours_ago=hours, level=4)
        if hours >= 20:
            store.dispatch(delivery, "good/backend", hours_ago=hours)
    store.job(delivery, "success", downstream="gate/one", hours_ago=25)
    summary = await read(store)
    assert {str(backend.name) for backend in summary.backends if backend.silent} == {
        "gate/one",
        "Good/Backend",
    }
    [item] = (
        summary.attention.items
    )  # the other backend has been silent since its first dispatch, 29 hours ago
    assert (item.kind, str(item.backend), item.oncalls) == (
        AttentionKind.BACKEND_SILENT,
        "gate/one",
        ("mia",),
    )
    assert item.since is not None
    assert (
        round((store.clock.now() - item.since).total_seconds() / 3600) == 4
    )  # the third answer was due then


async def test_a_backend_that_never_reported_is_marked(store: StoreRows) -> None:
    delivery = store.delivery()
    store.job(delivery, downstream="gate/one")
    store.sum_up()
    summary = await read(store)
    never_reported = {str(backend.name) for backend in summary.backends if backend.never_reported}
    assert never_reported == {"Good/Backend", "flaky/backend", "probe/one", "gate/mute"}
    assert [str(backend.name) for backend in summary.levels[0][1]] == ["gate/mute", "gate/one"]


async def test_blocked_pull_requests_are_counted_and_the_longest_blocked_are_listed(store: StoreRows) -> None:
    blocked_hours = {1: 2, 2: 6, 3: 4, 4: 1, 5: 3, 6: 5, 8: 9}
    for number in range(1, 9):
        store.pull(number, title=f"Change {number}", updated_at=store.ago(days=30 if number == 8 else 0.1))
        store.gate(f"{number:040x}", "failed" if number != 7 else "passed", title="secret/one failed")
    store.pull(20, is_open=0)
    store.gate(f"{20:040x}", "failed")
    with store.engine.begin() as connection:
        for number, hours in blocked_hours.items():
            gate = update(checks.gates).where(checks.gates.c.head_sha == f"{number:040x}")
            connection.execute(gate.values(decided_at=store.ago(hours=hours)))
    sha = f"{2:040x}"
    more = {"head_sha": sha, "conclusion": "failure"}
    store.check("crcr/gate/one", "gate/one", title="failed: build (1 of 4 jobs)", **more)
    store.check("crcr/secret/one", "secret/one", title="failed: hush", **more)
    attention_view = await attention(store)
    assert attention_view.blocked_pulls == 7
    assert [item.number for item in attention_view.items] == [2, 6, 3, 5, 1]
    assert attention_view.items[0].text == "Change 2 by ada is blocked: gate/one: failed: build (1 of 4 jobs)"
    assert attention_view.items[0].oncalls == ("mia",)
    assert attention_view.items[1].text == "Change 6 by ada is blocked"
    assert "secret" not in str(attention_view)


async def test_a_red_in_tree_commit_and_a_suspended_backend_are_listed(
    store: StoreRows, base: BaseHistory
) -> None:
    sha = base.place(1)
    store.in_tree(sha, InTreeCheck(1, "lint", 1, 2, "failure", None))
    with store.engine.begin() as connection:
        table = main_tables.upstreams
        connection.execute(update(table).where(table.c.upstream == UPSTREAM.key).values(installation_id=3))
    row = {"name": "x", "confirmed": 0, "upstream": UPSTREAM.key, "suspended_at": store.ago(days=9)}
    store.add(main_tables.repositories, {**row, "downstream": "flaky/backend"})
    summary = await read(store)
    assert item_summaries(summary.attention.items) == [
        ("in_tree_red", "main"),
        ("backend_suspended", "flaky/backend"),
    ]
    assert summary.health.installed
