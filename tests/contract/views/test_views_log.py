"""The views of the log pages: filters, paging without gaps or duplicates, and visibility."""

import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from time import process_time
from types import ModuleType
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.model import DeliveryState
from crcr.decide.views.commit import WaiverState
from crcr.decide.views.logs import AuditQuery, DeliveryQuery, EffectQuery, WaiverQuery
from crcr.errors import BadRequest
from crcr.record.schema import main_tables
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from crcr.record.views import paging
from crcr.record.views.commits import waivers
from crcr.record.views.logs import audit as views_audit
from crcr.record.views.logs import deliveries, effects
from crcr.record.views.paging import Key
from crcr.record.views.search import failed_tests, jobs, pulls_and_commits
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
DELIVERIES = DeliveryQuery(upstream=UPSTREAM)
EFFECTS = EffectQuery(upstream=UPSTREAM)
AUDIT = AuditQuery(upstream=UPSTREAM)
WAIVERS = WaiverQuery(upstream=UPSTREAM)
DAY_US = 86_400_000_000
ALL = Statement(
    text(
        "SELECT guid, event, row_number() OVER (ORDER BY received_at DESC) AS place FROM deliveries ORDER BY place"
    )
)


async def read_all_pages(read: Callable[[Any], Awaitable[Any]], query: Any, field: str) -> list[Any]:
    """All items of a list, read page by page; every page except the last is full."""
    all_items: list[Any] = []
    while True:
        page = await read(query)
        items = getattr(page, field)
        all_items += items
        if page.next is None:
            return all_items
        assert len(items) == query.limit
        query = replace(query, after=page.next)


async def guids(store: StoreRows, query: DeliveryQuery) -> list[str]:
    return [delivery.guid for delivery in await read_all_pages(store.views.deliveries, query, "deliveries")]


def audit(store: StoreRows, act: str = "pause", subject: str = "Torch/torch", **more: Any) -> None:
    detail = more.pop("detail", {})
    row = {"upstream": UPSTREAM.key, "at": store.ago(hours=1), "who": "ops", "act": act, "subject": subject}
    store.add(main_tables.audit, {**row, "detail": json.dumps(detail), **more})


# Deliveries


async def test_deliveries_are_filtered_by_event_state_number_and_commit(store: StoreRows) -> None:
    store.allowlist()
    plain = store.delivery(number=7, head_sha="abcdef12" + "0" * 32)
    pushed = store.delivery(number=None, head_sha="abcdef13" + "0" * 32)
    late = store.delivery(number=7, state="superseded", head_sha="9" * 40)
    store.delivery(OTHER, number=7, head_sha="abcdef12" + "0" * 32)
    cases: dict[str, tuple[Any, set[str]]] = {
        "event": ("push", {pushed}),
        "state": (DeliveryState.SUPERSEDED, {late}),
        "number": (7, {plain, late}),
        "head_sha": ("ABCDEF1", {plain, pushed}),
    }
    for name, (value, expected) in cases.items():
        for oldest_first in (False, True):
            query = replace(DELIVERIES, **{name: value}, oldest_first=oldest_first)
            assert set(await guids(store, query)) == expected
    by_number_and_sha = replace(DELIVERIES, number=7, head_sha="abcdef12" + "0" * 32)
    assert await guids(store, by_number_and_sha) == [plain]
    assert await guids(store, replace(DELIVERIES, head_sha="abcdef12" + "1" * 32)) == []


@pytest.mark.parametrize("oldest_first", [False, True])
@pytest.mark.parametrize("by", [{}, {"number": 7}, {"head_sha": "abcdef1"}, {"event": "pull_request"}])
async def test_pages_of_deliveries_with_equal_times_contain_each_once(
    store: StoreRows, by: dict[str, Any], oldest_first: bool
) -> None:
    store.allowlist()
    added = [store.delivery(hours_ago=1 + number // 4, head_sha="abcdef1" + "0" * 33) for number in range(11)]
    query = replace(DELIVERIES, **by, oldest_first=oldest_first, limit=3)
    deliveries_read = await read_all_pages(store.views.deliveries, query, "deliveries")
    assert sorted(delivery.guid for delivery in deliveries_read) == sorted(added)
    times = [delivery.received_at for delivery in deliveries_read]
    assert times == sorted(times, reverse=not oldest_first)


async def test_rare_rows_are_searched_in_steps_without_missing_any(store: StoreRows) -> None:
    store.allowlist()
    rare = {store.delivery(hours_ago=hours, number=None) for hours in (9, 30, 50)}
    for hours in range(60):
        store.delivery(hours_ago=hours)

    async def unit(tx: Tx) -> tuple[set[str], int]:
        async def read(after: Key, limit: int) -> list[Row]:
            return (await tx.all(ALL))[int(after[0]) : int(after[0]) + limit]

        matching, steps = set[str](), 0
        key: Key | None = (0,)
        while key is not None:
            rows, key = await paging.read_matching(
                read,
                key,
                4,
                make_key=lambda row: (row["place"],),
                keep=lambda row: row["event"] == "push",
                most=10,
            )
            matching |= {row["guid"] for row in rows}
            steps += 1
        return matching, steps

    matching, steps = await store.database.read(unit)
    assert matching == rare
    assert steps > 3


async def test_a_delivery_shows_the_dispatches_to_public_backends_only(store: StoreRows) -> None:
    store.allowlist(LISTED)
    delivery = store.delivery()
    for name in ("good/backend", "secret/one", "shy/one", "left/long-ago"):
        store.dispatch(delivery, name)
    page = await store.views.deliveries(DELIVERIES)
    assert [dispatch.downstream for dispatch in page.deliveries[0].dispatches] == ["Good/Backend"]
    admin_page = await store.views.for_admins().deliveries(DELIVERIES)
    assert {dispatch.downstream for dispatch in admin_page.deliveries[0].dispatches} == {
        "Good/Backend",
        "secret/one",
        "shy/one",
    }


async def test_pages_contain_the_newest_change_and_the_pause_of_dispatching(store: StoreRows) -> None:
    store.allowlist()
    assert (await store.views.deliveries(DELIVERIES)).outbox.paused_at is None
    store.change()
    with store.engine.begin() as connection:
        connection.execute(main_tables.upstreams.update().values(paused_at=to_us(store.clock.now())))
    for page in (await store.views.deliveries(DELIVERIES), await store.views.effect_page(EFFECTS)):
        assert (page.cursor, page.outbox.paused_at) == (1, store.clock.now())
    assert (await store.views.audit(AUDIT)).cursor == 1
    assert (await store.views.waiver_page(WAIVERS, store.clock.now())).cursor == 1


@pytest.mark.parametrize("after", [("x", 1), (1,), (1, 2, 3, 4), ("",), (9, 1, 1), (0, "x", 1)])
async def test_a_cursor_of_another_list_is_refused(store: StoreRows, after: tuple[str | int, ...]) -> None:
    now = store.clock.now()
    for read in (
        store.views.deliveries(replace(DELIVERIES, after=after)),
        store.views.effect_page(replace(EFFECTS, after=after)),
        store.views.audit(replace(AUDIT, after=after)),
        store.views.waiver_page(replace(WAIVERS, after=after), now),
    ):
        with pytest.raises(BadRequest):
            await read


# Effects


async def test_effects_are_listed_parked_first_then_by_target_and_due_time(store: StoreRows) -> None:
    store.allowlist()
    store.effect("waiting", "good/backend", due_at=store.ago(minutes=1))
    store.effect("claimed", "flaky/backend", due_at=store.ago(minutes=9))
    store.effect("waiting", "good/backend", due_at=store.ago(minutes=5))
    store.effect("parked", finished_at=store.ago(hours=2))
    store.effect("parked", finished_at=store.ago(hours=1))
    store.effect("done")
    all_effects = await read_all_pages(store.views.effect_page, replace(EFFECTS, limit=2), "effects")
    assert [effect.effect_id for effect in all_effects] == [5, 4, 2, 3, 1]


async def test_a_page_that_ends_with_the_last_parked_effect_continues_with_the_others(
    store: StoreRows,
) -> None:
    store.allowlist()
    for state in ("parked", "parked", "waiting"):
        store.effect(state)
    first = await store.views.effect_page(replace(EFFECTS, limit=2))
    assert (len(first.effects), first.next is None) == (2, False)
    second = await store.views.effect_page(replace(EFFECTS, limit=2, after=first.next))
    assert ([effect.state for effect in second.effects], second.next) == (["waiting"], None)
    parked_only = await store.views.effect_page(replace(EFFECTS, limit=2, state="parked"))
    assert parked_only.next is None


@pytest.mark.parametrize("state", [None, "waiting", "parked", "done"])
async def test_pages_of_effects_with_equal_times_contain_each_once(
    store: StoreRows, state: str | None
) -> None:
    store.allowlist()
    for number in range(9):
        store.effect(state or "waiting", ("good/backend", "flaky/backend")[number % 2])
    all_effects = await read_all_pages(
        store.views.effect_page, replace(EFFECTS, state=state, limit=2), "effects"
    )
    assert sorted(effect.effect_id for effect in all_effects) == list(range(1, 10))


async def test_effects_can_be_filtered_by_state_target_and_delivery(store: StoreRows) -> None:
    store.allowlist()
    store.effect("waiting", attempts=0)
    store.effect("waiting", "flaky/backend", attempts=2, delivery="d-1")
    store.effect("claimed", attempts=1)
    store.effect("parked", "flaky/backend", delivery="d-1")
    store.effect("cancelled")
    store.effect("cancelled", upstream=OTHER.key)
    cases: list[tuple[dict[str, str], set[int]]] = [
        ({"state": "waiting"}, {1, 2}),
        ({"state": "retried"}, {2, 3}),
        ({"state": "claimed"}, {3}),
        ({"state": "parked"}, {4}),
        ({"state": "cancelled"}, {5}),
        ({"target": "Flaky/Backend"}, {2, 4}),
        ({"delivery": "d-1"}, {2, 4}),
    ]
    for filters, ids in cases:
        page = await store.views.effect_page(replace(EFFECTS, **filters))  # type: ignore[arg-type]
        assert {effect.effect_id for effect in page.effects} == ids
    with pytest.raises(BadRequest):
        await store.views.effect_page(replace(EFFECTS, state="lost"))


async def test_effects_of_non_public_backends_and_errors_are_shown_to_administrators_only(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    targets = (
        "secret/one",
        "shy/one",
        "left/long-ago",
        "good/backend",
        "checks/gate",
        "commands",
        UPSTREAM.key,
    )
    for target in targets:
        store.effect("parked", target, last_error="a token was refused")
    shown = (await store.views.effect_page(EFFECTS)).effects
    assert {effect.target for effect in shown} == {"Good/Backend", "checks/gate", "commands", UPSTREAM.key}
    assert {effect.last_error for effect in shown} == {None}
    assert (await store.views.effect_page(replace(EFFECTS, target="secret/one"))).effects == ()
    for_admins = (await store.views.for_admins().effect_page(EFFECTS)).effects
    assert {effect.target.lower() for effect in for_admins} == set(targets)
    assert {effect.last_error for effect in for_admins} == {"a token was refused"}


async def test_a_hidden_backends_backlog_neither_shortens_a_page_nor_appears_in_its_cursor(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    store.effect("waiting", "flaky/backend")
    row = {"upstream": UPSTREAM.key, "kind": "send_dispatch", "lane": "x", "state": "waiting"}
    times = {"due_at": store.ago(minutes=1), "created_at": store.ago(minutes=1)}
    hidden = {**row, **times, "target": "secret/one"}
    store.add(main_tables.effects, *[hidden] * (paging.LOOKED_THROUGH + 10))
    store.effect("waiting", UPSTREAM.key)
    first = await store.views.effect_page(replace(EFFECTS, limit=1))
    assert first.next is not None
    assert first.next[1] == "flaky/backend"
    both_visible = await store.views.effect_page(replace(EFFECTS, limit=2))
    assert ([effect.target for effect in both_visible.effects], both_visible.next) == (
        ["flaky/backend", UPSTREAM.key],
        None,
    )
    hidden_page = await store.views.effect_page(replace(EFFECTS, target="secret/one"))
    assert (hidden_page.effects, hidden_page.next) == ((), None)


async def test_the_cursor_of_a_full_page_is_its_last_shown_row(store: StoreRows) -> None:
    store.allowlist(LISTED)
    for subject in ("good/backend", "secret/one", "secret/one", "good/backend"):
        audit(store, "suspend", subject)
        store.effect("parked", subject)
    acts = await store.views.audit(replace(AUDIT, limit=1))
    assert acts.next is not None
    assert acts.next[-1] == acts.acts[-1].audit_id == 4
    parked = await store.views.effect_page(replace(EFFECTS, state="parked", limit=1))
    assert parked.next is not None
    assert parked.next[-1] == parked.effects[-1].effect_id == 4


# The audit log


async def test_the_audit_log_is_filtered_ordered_and_paged(store: StoreRows) -> None:
    store.allowlist()
    for number in range(7):
        audit(store, "pause" if number % 2 else "unpause", who="Ops" if number < 5 else "mia")
    newest = await read_all_pages(store.views.audit, replace(AUDIT, limit=2), "acts")
    assert [act.audit_id for act in newest] == [7, 6, 5, 4, 3, 2, 1]
    oldest = await read_all_pages(store.views.audit, replace(AUDIT, limit=2, oldest_first=True), "acts")
    assert [act.audit_id for act in oldest] == [1, 2, 3, 4, 5, 6, 7]
    by_name = await store.views.audit(replace(AUDIT, who="ops", act="pause"))
    assert [act.audit_id for act in by_name.acts] == [4, 2]


@pytest.mark.parametrize(
    ("subject", "detail"),
    [
        ("secret/one", {}),
        ("Shy/One", {}),
        ("left/long-ago", {}),
        ("#7", {"command": "/crcr waive Secret/Gate it is down"}),
        ("#7", {"downstream": "secret/gate"}),
        ("#7", {"reason": "as in https://github.com/secret/one/issues/4"}),
        ("#7", {"reason": "https://github.com/good/backend,secret/one"}),
        ("#7", {"several": [{"deep": "secret/one."}]}),
        ("#7", {"secret/one": 1}),
    ],
)
async def test_an_act_that_names_a_non_public_backend_is_hidden(
    store: StoreRows, subject: str, detail: dict[str, Any]
) -> None:
    store.allowlist(LISTED)
    audit(store, "waive", subject, detail=detail)
    assert (await store.views.audit(AUDIT)).acts == ()
    assert len((await store.views.for_admins().audit(AUDIT)).acts) == 1


async def test_a_very_long_act_is_checked_in_linear_time(store: StoreRows) -> None:
    """Twice the length takes twice the time, not four times."""
    store.allowlist(LISTED)
    audit(store, "waive", "#7", detail={"reason": "a" * 100_000, "more": "http://" + "b." * 50_000})
    began = process_time()
    assert len((await store.views.audit(AUDIT)).acts) == 1
    assert process_time() - began < 2
    audit(store, "waive", "#8", detail={"reason": "a" * 100_000 + " secret/one"})
    assert [act.subject for act in (await store.views.audit(AUDIT)).acts] == ["#7"]


async def test_acts_on_checks_of_hidden_backends_are_hidden_and_of_public_ones_shown(
    store: StoreRows,
) -> None:
    store.allowlist(LISTED)
    audit(store, "rerun", "crcr/secret/one/CI/build")
    audit(store, "rerun", "crcr/good/backend/CI/read/write")
    audit(store, "rerun", "crcr/gate")
    audit(store, "waive", "#7", detail={"command": "crcr/good/backend/x secret/one"})
    assert [act.audit_id for act in (await store.views.audit(AUDIT)).acts] == [3, 2]


async def test_acts_about_public_backends_and_the_upstream_are_shown(store: StoreRows) -> None:
    store.allowlist(LISTED)
    audit(store, "suspend", "good/backend", detail={"reason": None, "obeyed": True, "runs": 3})
    audit(store, "waive", "#7", detail={"reason": f"see https://github.com/{UPSTREAM}/issues/12#note"})
    audit(store, "retry", "2 effects", detail={"ids": [4, 5]})
    retried, waiver_ids, suspended = (await store.views.audit(AUDIT)).acts
    assert dict(suspended.detail) == {"obeyed": "yes", "runs": "3"}
    assert "issues/12" in waiver_ids.detail["reason"]
    assert dict(retried.detail) == {}
    for_admins = (await store.views.for_admins().audit(AUDIT)).acts
    assert dict(for_admins[0].detail) == {"ids": "4, 5"}


async def test_sign_ins_are_shown_to_administrators_only(store: StoreRows) -> None:
    store.allowlist(LISTED)
    audit(store, "sign_in_failed", "pages", who="unknown")
    audit(store, "sign_in", "pages")
    assert (await store.views.audit(AUDIT)).acts == ()
    assert len((await store.views.for_admins().audit(AUDIT)).acts) == 2


# Waivers


async def add_waivers(store: StoreRows) -> None:
    """Add waivers in each state, two of each of the first two, with equal times."""
    store.allowlist(LISTED)
    store.pull(7)
    store.pull(8, is_open=0)
    for _ in range(2):
        store.waiver()
        store.waiver(ended_at=store.ago(minutes=1), ended_by="zoe", who="Zoe")
    store.waiver(until_at=store.ago(minutes=1))
    store.waiver(head_sha="0" * 40)
    store.waiver(number=8, head_sha=f"{8:040x}")
    store.waiver("secret/gate")


async def waiver_ids(store: StoreRows, **filters: Any) -> list[int]:
    async def read(query: WaiverQuery) -> Any:
        return await store.views.waiver_page(query, store.clock.now())

    waivers_read = await read_all_pages(read, replace(WAIVERS, limit=2, **filters), "waivers")
    return [waiver.waiver_id for waiver in waivers_read]


async def test_waivers_in_force_are_listed_first_and_each_once(store: StoreRows) -> None:
    await add_waivers(store)
    assert await waiver_ids(store) == [3, 1, 7, 6, 5, 4, 2]
    assert await waiver_ids(store, newest_first=True) == [7, 6, 5, 4, 3, 2, 1]


async def test_waivers_can_be_filtered(store: StoreRows) -> None:
    await add_waivers(store)
    assert await waiver_ids(store, state=WaiverState.IN_FORCE) == [3, 1]
    assert await waiver_ids(store, state=WaiverState.TAKEN_BACK) == [4, 2]
    assert await waiver_ids(store, state=WaiverState.OVER) == [7]
    assert await waiver_ids(store, who="zoe") == [4, 2]
    assert await waiver_ids(store, number=8) == [7]
    assert await waiver_ids(store, number=7, newest_first=True) == [6, 5, 4, 3, 2, 1]
    assert await waiver_ids(store, backend="Gate/One", state=WaiverState.RUN_OUT) == [5]
    assert await waiver_ids(store, backend="secret/gate") == []


async def test_an_administrator_sees_the_waivers_of_hidden_backends(store: StoreRows) -> None:
    await add_waivers(store)
    page = await store.views.for_admins().waiver_page(WAIVERS, store.clock.now())
    assert page.waivers[0].downstream == "secret/gate"


@pytest.mark.parametrize(
    "module", [deliveries, effects, views_audit, waivers, pulls_and_commits, failed_tests, jobs]
)
async def test_no_list_query_searches_by_upstream_alone(store: StoreRows, module: ModuleType) -> None:
    """Without statistics, the planner assumes that `upstream` is selective."""
    statements = [statement for statement in vars(module).values() if isinstance(statement, Statement)]
    assert statements
    for statement in statements:
        sql = statement.for_dialect("sqlite").sql
        params = dict.fromkeys(re.findall(r":(\w+)", sql), "1")
        with store.engine.begin() as connection:
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", params)]
        upstream_only = r"(deliveries|pulls|waivers|audit|[pw]) USING .*\(upstream=\?\)"
        assert not [step for step in plan if re.search(upstream_only, step)], sql
