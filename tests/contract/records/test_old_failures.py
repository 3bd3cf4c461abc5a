"""Retention of failures: deleted with their results, groups with their last failure; branches keep their newest commit.

Bisections are deleted with their runs after they have ended.
"""
# ruff: noqa: S608 - every name in these statements is our own

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from crcr.record.failures.known_failures import KnownFailures, NewKnownFailure
from crcr.record.schema.bisections import bisection_runs, bisections
from crcr.record.schema.failures import base_commits, person_verdicts
from crcr.record.schema.main_tables import upstreams
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.upkeep.retention import MOST_ROWS
from support.data.failed_jobs import fingerprint_of, record_failed_job
from support.data.retention_data import DAY, KEEP_ALL, CountingDatabase, retention, row_counts
from support.stores.databases import CORE, OTHER, Stores

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
OLD, NEW = NOW - 101 * DAY, NOW - DAY
MESSAGE, OTHER_MESSAGE = (
    "NotImplementedError: aten::foo has no kernel",
    "RuntimeError: device ran out of memory",
)
TABLES = (
    *("failures", "failure_fingerprints", "failure_groups", "failed_tests"),
    *("known_failures", "base_commits", "person_verdicts"),
    *("bisections", "bisection_runs"),
)
_COMMIT = Statement(inserting(base_commits, "sha", "upstream", "ref", "position", "before", "pushed_at"))
_PERSON_VERDICT = Statement(
    inserting(
        person_verdicts,
        *("upstream", "number", "head_sha", "downstream", "job", "verdict", "who", "reason", "at"),
    )
)
_BISECTION = Statement(
    inserting(
        bisections,
        *("bisection_id", "upstream", "downstream", "workflow", "job_name", "ref", "commits", "flake_rate"),
        *("most_runs", "who", "created_at", "ends_at", "state", "left_good", "left_bad", "finished_at"),
    )
)
_BISECTION_RUN = Statement(
    inserting(bisection_runs, "bisection_id", "number", "upstream", "delivery", "position", "created_at")
)
_UPSTREAM = Statement(inserting(upstreams, "upstream", "name", "created_at", "default_branch"))


@pytest.fixture
async def stores(stores: Stores) -> Stores:
    for name in (CORE, OTHER):
        row = {"upstream": name.key, "name": name.full_name, "created_at": 1, "default_branch": "main"}
        await run(stores, _UPSTREAM, **row)
    return stores


async def run(stores: Stores, statement: Statement, **params: Any) -> None:
    await stores.database.write(lambda tx: tx.run(statement, **params))


async def forget(stores: Stores, **more: Any) -> None:
    await retention(stores.database, **more).forget(NOW)


async def fail(stores: Stores, delivery: str, at: datetime, message: str = MESSAGE, **more: Any) -> None:
    await record_failed_job(stores.database, delivery, message, at=at, **more)


async def commit(stores: Stores, ref: str, position: int, at: datetime) -> None:
    row = {"sha": f"{ref}-{position}", "upstream": CORE.key, "ref": ref, "before": f"{ref}-{position - 1}"}
    await run(stores, _COMMIT, position=position, pushed_at=to_us(at), **row)


async def test_failures_are_deleted_with_their_results_and_groups_with_their_last_failure(
    stores: Stores,
) -> None:
    await fail(stores, "d-old", OLD)
    await fail(stores, "d-new", NEW)
    await fail(stores, "d-alone", OLD, OTHER_MESSAGE)
    await record_failed_job(stores.database, "d-log", MESSAGE, at=OLD, in_log=True)
    await fail(stores, "d-other", OLD, upstream=OTHER)
    await fail(stores, "d-last", NEW, OTHER_MESSAGE, upstream=OTHER)
    await forget(stores)
    kept = await stores.rows("SELECT delivery FROM failures ORDER BY delivery")
    assert [row["delivery"] for row in kept] == ["d-last", "d-new"]
    members = await stores.rows("SELECT fingerprint, upstream FROM failure_fingerprints ORDER BY upstream")
    assert {(row["fingerprint"], row["upstream"]) for row in members} == {
        (fingerprint_of(MESSAGE), CORE.key),
        (fingerprint_of(OTHER_MESSAGE), OTHER.key),
    }
    groups = await stores.rows(
        f"SELECT fingerprint, number, first_at FROM failure_groups WHERE upstream = '{CORE.key}'"
    )
    assert [(row["fingerprint"], row["number"], row["first_at"]) for row in groups] == [
        (fingerprint_of(MESSAGE), 2, to_us(OLD))
    ]
    tests = await stores.rows("SELECT fingerprint, upstream FROM failed_tests")
    assert {(row["fingerprint"], row["upstream"]) for row in tests} == {
        (row["fingerprint"], row["upstream"]) for row in members
    }


async def test_a_failure_whose_result_is_kept_is_not_deleted(stores: Stores) -> None:
    await fail(stores, "d-last-result", OLD)  # each backend's newest result is kept
    await forget(stores)
    assert (await row_counts(stores, *TABLES[:4])) == dict.fromkeys(TABLES[:4], 1)


async def test_only_old_known_failures_and_old_person_verdicts_are_deleted(stores: Stores) -> None:
    known = KnownFailures(stores.database, "https://github.com")
    await fail(stores, "d-1", NEW)
    await fail(stores, "d-2", NEW, OTHER_MESSAGE)
    url, verdict_key = (
        "https://github.com/o/r/issues/1",
        {"upstream": CORE.key, "number": 7, "head_sha": "a" * 40},
    )
    verdict_columns = {
        "downstream": "org/one",
        "job": "build",
        "verdict": "flaky",
        "who": "mia",
        "reason": "x",
    }
    for message, at in ((MESSAGE, NOW - 131 * DAY), (OTHER_MESSAGE, NOW - 129 * DAY)):
        fingerprint = fingerprint_of(message)
        await known.link(CORE, NewKnownFailure(fingerprint=fingerprint, url=url, who="mia", reason="x"), at)
        await run(stores, _PERSON_VERDICT, at=to_us(at + 30 * DAY), **verdict_key, **verdict_columns)
    await commit(stores, "feature", 1, NEW)
    before = await row_counts(stores, *TABLES)
    await forget(stores)
    kept = await stores.rows("SELECT fingerprint FROM known_failures")
    assert [row["fingerprint"] for row in kept] == [fingerprint_of(OTHER_MESSAGE)]
    kept = await stores.rows("SELECT at FROM person_verdicts")
    assert [row["at"] for row in kept] == [to_us(NOW - 99 * DAY)]
    assert await row_counts(stores, *TABLES) == {**before, "known_failures": 1, "person_verdicts": 1}


async def test_the_default_branch_and_bases_of_open_pulls_keep_their_newest_commit(stores: Stores) -> None:
    pull = Statement(
        text(
            "INSERT INTO pulls (upstream, number, head_sha, base_ref, updated_at, is_open, draft, labels, title, author)"
            f" VALUES ('{CORE.key}', 7, 'a', 'release', 1, 1, 0, '[]', 't', 'ada')"
        )
    )
    await run(stores, pull)
    for ref in ("main", "release", "feature"):
        for position in (1, 2):
            await commit(stores, ref, position, OLD)
    await commit(stores, "busy", 1, OLD)
    await commit(stores, "busy", 2, NEW)
    await forget(stores)
    kept = await stores.rows("SELECT sha FROM base_commits ORDER BY sha")
    assert [row["sha"] for row in kept] == ["busy-2", "main-2", "release-2"]


async def bisect(
    stores: Stores,
    bisection_id: int,
    finished_at: datetime | None,
    *,
    runs: int = 2,
    upstream: str = CORE.key,
) -> None:
    """Add a bisection that started long ago."""
    key = {"bisection_id": bisection_id, "upstream": upstream}
    row = {"downstream": "org/one", "workflow": "ci.yml", "job_name": f"build-{bisection_id}", "ref": "main"}
    search = {"commits": "[]", "flake_rate": 0.01, "most_runs": 12, "left_good": 0, "left_bad": 1}
    began = {"who": "ada", "created_at": to_us(OLD - DAY), "ends_at": to_us(OLD)}
    ended = {
        "state": "running" if finished_at is None else "finished",
        "finished_at": to_us(finished_at) if finished_at else None,
    }
    await run(stores, _BISECTION, **key, **row, **search, **began, **ended)
    for number in range(1, runs + 1):
        sent = {"delivery": f"d-{bisection_id}-{number}", "position": 1, "created_at": to_us(OLD - DAY)}
        await run(stores, _BISECTION_RUN, **key, number=number, **sent)


async def test_a_bisection_is_deleted_with_its_runs_long_after_its_end(stores: Stores) -> None:
    await bisect(stores, 1, OLD)
    await bisect(stores, 2, NEW)
    await bisect(stores, 3, None)
    await bisect(stores, 4, OLD, runs=0, upstream=OTHER.key)
    await forget(stores)
    kept = await stores.rows("SELECT bisection_id FROM bisections ORDER BY bisection_id")
    assert [row["bisection_id"] for row in kept] == [2, 3]
    runs = await stores.rows("SELECT bisection_id FROM bisection_runs ORDER BY bisection_id, number")
    assert [row["bisection_id"] for row in runs] == [2, 2, 3, 3]


async def test_nothing_is_deleted_when_results_are_kept_forever(stores: Stores) -> None:
    await fail(stores, "d-1", OLD, with_result=False)
    await commit(stores, "feature", 1, OLD)
    await bisect(stores, 1, OLD)
    before = await row_counts(stores, *TABLES)
    await forget(stores, keeps=KEEP_ALL)
    assert await row_counts(stores, *TABLES) == before


async def test_no_unit_deletes_many_rows(stores: Stores) -> None:
    for number in range(150):
        await fail(stores, f"d-{number}", OLD + timedelta(seconds=number), with_result=False)
    for number in range(1, 4):
        await bisect(stores, number, OLD, runs=100)
    counting = CountingDatabase(stores.database)
    await retention(counting).forget(NOW)
    assert max(counting.units) <= MOST_ROWS
    assert await row_counts(stores, *TABLES) == dict.fromkeys(TABLES, 0)
