"""The contract of `Refusals`, on every store: for which upstreams a refusal is kept, how many, and for how long."""

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
    refused_report = RefusedReport(
        caller=BACKEND, code=code, detail="d", hint="h", run_id="1", job_name="build"
    )
    return replace(refused_report, **changes)


async def stored_refusals(stores: Stores) -> list[dict[str, Any]]:
    return await stores.rows("SELECT * FROM refusals ORDER BY refusal_id")


async def test_a_refusal_is_stored_and_announced_for_each_upstream_that_lists_the_caller(
    stores: Stores,
) -> None:
    await stores.prepare(BOTH, NOW)
    await refusals(stores).note(a_refusal(caller=RepoName("Org/Backend")), NOW)
    await refusals(stores).note(a_refusal(caller=RepoName("org/second")), NOW)

    stored = {(row["upstream"], row["downstream"]) for row in await stored_refusals(stores)}
    assert stored == {
        (CORE.key, "org/backend"),
        (OTHER.key, "org/backend"),
        (CORE.key, "org/second"),
    }
    changes = await stores.rows("SELECT upstream, downstream, delivery FROM changes WHERE kind = 'refusal'")
    assert {(row["upstream"], row["downstream"]) for row in changes} == stored
    assert {row["delivery"] for row in changes} == {None}


async def test_a_refusal_about_one_upstream_is_stored_for_that_upstream_only(stores: Stores) -> None:
    await stores.prepare(BOTH, NOW)
    await refusals(stores).note(a_refusal(upstream=OTHER), NOW)
    assert [row["upstream"] for row in await stored_refusals(stores)] == [OTHER.key]


async def test_a_refusal_about_an_upstream_without_the_caller_is_stored_for_those_that_list_it(
    stores: Stores,
) -> None:
    await stores.prepare(BOTH, NOW)
    await refusals(stores).note(a_refusal(caller=RepoName("org/second"), upstream=OTHER), NOW)
    assert [(row["upstream"], row["job_name"]) for row in await stored_refusals(stores)] == [
        (CORE.key, "build")
    ]


async def test_a_caller_with_a_non_public_listing_elsewhere_is_stored_without_run_names(
    stores: Stores,
) -> None:
    """The run may belong to the upstream with the non-public listing."""
    private_listing = "L2:\n  - org/backend: {visibility: name}\n"
    await stores.prepare({CORE: "L2: [org/backend]\n", OTHER: private_listing}, NOW)
    await refusals(stores).note(a_refusal(workflow_name="CI", delivery_id="d"), NOW)
    names = ("run_id", "workflow_name", "job_name", "delivery")
    run_names = {row["upstream"]: [row[name] for name in names] for row in await stored_refusals(stores)}
    assert run_names == {CORE.key: [None] * 4, OTHER.key: ["1", "CI", "build", "d"]}


async def test_nothing_is_stored_for_a_caller_on_no_allowlist(stores: Stores) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)  # the other upstream has no allowlist yet
    before = await stores.rows("SELECT count(*) AS n FROM changes")
    await refusals(stores).note(a_refusal(caller=RepoName("some/stranger")), NOW)

    assert await stored_refusals(stores) == []
    assert await stores.rows("SELECT count(*) AS n FROM changes") == before


async def test_the_newest_fifty_refusals_of_each_backend_are_kept(stores: Stores) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    recorder = refusals(stores)
    await recorder.note(a_refusal(caller=RepoName("org/second")), NOW)
    for number in range(KEPT_PER_BACKEND + 7):
        await recorder.note(a_refusal(run_id=str(number)), NOW)

    rows = await stored_refusals(stores)
    own = [row["run_id"] for row in rows if row["downstream"] == "org/backend"]
    assert own == [str(number) for number in range(7, KEPT_PER_BACKEND + 7)]
    assert len(rows) == KEPT_PER_BACKEND + 1


async def test_two_concurrent_writers_together_keep_at_most_fifty_refusals(
    open_database: OpenDatabase,
) -> None:
    one, other = Stores.over(open_database()), Stores.over(open_database())
    await one.prepare({CORE: BOTH[CORE]}, NOW)
    recorders = (refusals(one), refusals(other))
    await asyncio.gather(
        *(recorders[n % 2].note(a_refusal(run_id=str(n)), NOW) for n in range(2 * KEPT_PER_BACKEND))
    )

    assert len(await stored_refusals(one)) == KEPT_PER_BACKEND


async def test_repeated_refusals_of_one_code_replace_each_other(stores: Stores) -> None:
    """A caller with an expired token of the repository, or over the rate limit, cannot evict other refusals."""
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    recorder = refusals(stores)
    await recorder.note(a_refusal("bad_report"), NOW)
    for number in range(2 * KEPT_PER_BACKEND):
        await recorder.note(a_refusal("rate_limited", detail=str(number)), NOW)
        await recorder.note(a_refusal("not_authentic", detail=str(number)), NOW)

    assert [(row["code"], row["detail"]) for row in await stored_refusals(stores)] == [
        ("bad_report", "d"),
        ("rate_limited", str(2 * KEPT_PER_BACKEND - 1)),
        ("not_authentic", str(2 * KEPT_PER_BACKEND - 1)),
    ]


async def test_fault_26_an_impostor_with_the_name_leaves_one_refusal_without_its_own_texts(
    stores: Stores,
) -> None:
    await stores.prepare(BOTH, NOW)
    await stores.database.write(lambda tx: tx.run(_BOUND))
    recorder = refusals(stores)
    await recorder.note(a_refusal(caller_id=5, job_name="mine"), NOW)
    for number in range(2 * KEPT_PER_BACKEND):
        await recorder.note(
            a_refusal("bad_report", caller_id=666, job_name="EVIL", detail=f"EVIL {number}"), NOW
        )

    rows = [row for row in await stored_refusals(stores) if row["upstream"] == CORE.key]
    assert [row["code"] for row in rows] == ["unknown_delivery", "identity_changed"]
    assert rows[0]["job_name"] == "mine"
    assert "EVIL" not in str(rows)
    assert (rows[1]["run_id"], rows[1]["job_name"], rows[1]["delivery"]) == (None, None, None)


async def test_long_texts_are_truncated_for_display(stores: Stores) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    vast = "\x00x" * 100_000
    await refusals(stores).note(
        a_refusal(detail=vast, hint=vast, delivery_id=vast, run_id=vast, workflow_name=vast, job_name=vast),
        NOW,
    )
    [row] = await stored_refusals(stores)
    assert all(len(value) <= 600 for value in row.values() if isinstance(value, str))


async def test_refusals_older_than_two_weeks_are_neither_shown_nor_kept(
    stores: Stores, database: Database
) -> None:
    await stores.prepare({CORE: BOTH[CORE]}, NOW)
    recorder, views = refusals(stores), SqlViews(database, stores.allowlists, UPSTREAMS)
    await recorder.note(a_refusal(run_id="old"), NOW)
    await recorder.note(a_refusal(run_id="new"), NOW + timedelta(days=13))

    later = NOW + timedelta(days=14, seconds=1)
    shown = await views.refusals(CORE, BACKEND, later)
    assert [refusal.run_id for refusal in shown.refusals] == ["new"]
    assert len((await views.refusals(CORE, BACKEND, NOW + timedelta(days=13))).refusals) == 2
    await Retention(database, KEEP_ALL).forget(later)
    assert [row["run_id"] for row in await stored_refusals(stores)] == ["new"]


async def test_refusals_of_a_name_only_backend_are_shown_to_administrators_only(
    stores: Stores, database: Database
) -> None:
    listed = "L2:\n  - org/backend: {visibility: name}\n"
    await stores.prepare({CORE: listed}, NOW)
    await refusals(stores).note(a_refusal(), NOW)
    views = SqlViews(database, stores.allowlists, UPSTREAMS)

    assert (await views.refusals(CORE, BACKEND, NOW)).refusals == ()
    assert len((await views.for_admins().refusals(CORE, BACKEND, NOW)).refusals) == 1
