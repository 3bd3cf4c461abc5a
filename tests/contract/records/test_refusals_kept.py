"""The contract of `Refusals`, over every store: for whom something is kept, how much of it, and for how long."""

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.jobs.refusal import RefusedReport
from crcr.decide.model import RepoName
from crcr.record.jobs.refusals import KEPT_PER_BACKEND, Refusals
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement
from crcr.record.upkeep.retention import Retention
from crcr.record.views.sql_views import SqlViews
from support.data.retention_data import KEEP_ALL
from support.stores.databases import CORE, OTHER, UPSTREAMS, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BACKEND = RepoName("org/backend")
BOTH = {CORE: "L2: [org/backend, org/second]\n", OTHER: "L1: [org/backend]\n"}
_BOUND = Statement(
    text("UPDATE repositories SET repository_id = 5, confirmed = 1 WHERE downstream = 'org/backend'")
)


def refusals(stores: Stores) -> Refusals:
    return Refusals(stores.database, stores.allowlists, stores.targets, UPSTREAMS)


def a_refusal(code: str = "unknown_delivery", **changes: Any) -> RefusedReport:
    made = RefusedReport(caller=BACKEND, code=code, detail="d", hint="h", run_id="1", job_name="build")
    return replace(made, **changes)


async def stored_refusals(stores: Stores) -> list[dict[str, Any]]:
    return await stores.rows("SELECT * FROM refusals ORDER BY refusal_id")


async def test_each_upstream_that_lists_the_caller_has_it_and_pages_are_told(stores: Stores) -> None:
    await stores.prepare(BOTH, NOW)
    await refusals(stores).note(a_refusal(caller=RepoName("Org/Backend")), NOW)
    await refusals(stores).note(a_refusal(caller=RepoName("org/second")), NOW)

    found = {(row["upstream"], row["downstream"]) for row in await stored_refusals(stores)}
    assert found == {
        (CORE.key, "org/backend"),
        (OTHER.key, "org/backend"),
        (CORE.key, "org/second"),
    }
    changes = await stores.rows("SELECT upstream, downstream, delivery FROM changes WHERE kind = 'refusal'")
    assert {(row["upstream"], row["downstream"]) for row in changes} == found
    assert {row["delivery"] for row in changes} == {None}


async def test_the_upstream_that_it_is_about_has_it_alone(stores: Stores) -> None:
    await stores.prepare(BOTH, NOW)
    await refusals(stores).note(a_refusal(upstream=OTHER), NOW)
    assert [row["upstream"] for row in await stored_refusals(stores)] == [OTHER.key]


async def test_where_that_one_does_not_list_the_caller_those_have_it_who_do(stores: Stores) -> None:
    await stores.prepare(BOTH, NOW)
    await refusals(stores).note(a_refusal(caller=RepoName("org/second"), upstream=OTHER), NOW)
    assert [(row["upstream"], row["job_name"]) for row in await stored_refusals(stores)] == [
        (CORE.key, "build")
    ]


async def test_beside_a_listing_that_is_not_public_no_run_is_named(stores: Stores) -> None:
    """It may have been the other's."""
    shy = "L2:\n  - org/backend: {visibility: name}\n"
    await stores.prepare({CORE: "L2: [org/backend]\n", OTHER: shy}, NOW)
    await refusals(stores).note(a_refusal(workflow_name="CI", delivery_id="d"), NOW)
    names = ("run_id", "workflow_name", "job_name", "delivery")
    found = {row["upstream"]: [row[name] for name in names] for row in await stored_refusals(stores)}
    assert found == {CORE.key: [None] * 4, OTHER.key: ["1", "CI", "build", "d"]}


async def test_nothing_is_written_of_who_is_on_no_list(stores: Stores) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)  # and one upstream has none yet
    before = await stores.rows("SELECT count(*) AS n FROM changes")
    await refusals(stores).note(a_refusal(caller=RepoName("some/stranger")), NOW)

    assert await stored_refusals(stores) == []
    assert await stores.rows("SELECT count(*) AS n FROM changes") == before


async def test_the_newest_fifty_of_each_backend_stay(stores: Stores) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    book = refusals(stores)
    await book.note(a_refusal(caller=RepoName("org/second")), NOW)
    for number in range(KEPT_PER_BACKEND + 7):
        await book.note(a_refusal(run_id=str(number)), NOW)

    rows = await stored_refusals(stores)
    own = [row["run_id"] for row in rows if row["downstream"] == "org/backend"]
    assert own == [str(number) for number in range(7, KEPT_PER_BACKEND + 7)]
    assert len(rows) == KEPT_PER_BACKEND + 1


async def test_two_writers_keep_no_more_than_fifty_between_them(open_database: OpenDatabase) -> None:
    one, other = Stores.over(open_database()), Stores.over(open_database())
    await one.prepare({CORE: BOTH[CORE]}, NOW)
    books = (refusals(one), refusals(other))
    await asyncio.gather(
        *(books[n % 2].note(a_refusal(run_id=str(n)), NOW) for n in range(2 * KEPT_PER_BACKEND))
    )

    assert len(await stored_refusals(one)) == KEPT_PER_BACKEND


async def test_a_storm_of_the_same_takes_the_place_of_itself(stores: Stores) -> None:
    """Who only holds an expired token of the repository, or hits the limit, pushes nothing out."""
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    book = refusals(stores)
    await book.note(a_refusal("bad_report"), NOW)
    for number in range(2 * KEPT_PER_BACKEND):
        await book.note(a_refusal("rate_limited", detail=str(number)), NOW)
        await book.note(a_refusal("not_authentic", detail=str(number)), NOW)

    assert [(row["code"], row["detail"]) for row in await stored_refusals(stores)] == [
        ("bad_report", "d"),
        ("rate_limited", str(2 * KEPT_PER_BACKEND - 1)),
        ("not_authentic", str(2 * KEPT_PER_BACKEND - 1)),
    ]


async def test_fault_26_a_stranger_with_the_name_leaves_one_line_in_our_words(stores: Stores) -> None:
    await stores.prepare(BOTH, NOW)
    await stores.database.write(lambda tx: tx.run(_BOUND))
    book = refusals(stores)
    await book.note(a_refusal(caller_id=5, job_name="mine"), NOW)
    for number in range(2 * KEPT_PER_BACKEND):
        await book.note(a_refusal("bad_report", caller_id=666, job_name="EVIL", detail=f"EVIL {number}"), NOW)

    rows = [row for row in await stored_refusals(stores) if row["upstream"] == CORE.key]
    assert [row["code"] for row in rows] == ["unknown_delivery", "identity_changed"]
    assert rows[0]["job_name"] == "mine"
    assert "EVIL" not in str(rows)
    assert (rows[1]["run_id"], rows[1]["job_name"], rows[1]["delivery"]) == (None, None, None)


async def test_texts_are_cut_to_what_a_page_can_show(stores: Stores) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    vast = "\x00x" * 100_000
    await refusals(stores).note(
        a_refusal(detail=vast, hint=vast, delivery_id=vast, run_id=vast, workflow_name=vast, job_name=vast),
        NOW,
    )
    [row] = await stored_refusals(stores)
    assert all(len(value) <= 600 for value in row.values() if isinstance(value, str))


async def test_what_is_two_weeks_old_is_neither_shown_nor_kept(stores: Stores, database: Database) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    book, views = refusals(stores), SqlViews(database, stores.allowlists, UPSTREAMS)
    await book.note(a_refusal(run_id="old"), NOW)
    await book.note(a_refusal(run_id="new"), NOW + timedelta(days=13))

    later = NOW + timedelta(days=14, seconds=1)
    shown = await views.refusals(CORE, BACKEND, later)
    assert [each.run_id for each in shown.refusals] == ["new"]
    assert len((await views.refusals(CORE, BACKEND, NOW + timedelta(days=13))).refusals) == 2
    await Retention(database, KEEP_ALL).forget(later)
    assert [row["run_id"] for row in await stored_refusals(stores)] == ["new"]


async def test_a_name_only_backend_shows_none_and_a_hidden_one_is_not_there(
    stores: Stores, database: Database
) -> None:
    listed = "L2:\n  - org/backend: {visibility: name}\n"
    await stores.prepare({CORE: listed}, NOW)
    await refusals(stores).note(a_refusal(), NOW)
    views = SqlViews(database, stores.allowlists, UPSTREAMS)

    assert (await views.refusals(CORE, BACKEND, NOW)).refusals == ()
    assert len((await views.for_admins().refusals(CORE, BACKEND, NOW)).refusals) == 1
