"""New fingerprint rules: recorded failures are recomputed, newest first, with their groups and known issues."""

import json
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.failures.fingerprint import RULES
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.failures.known_failures import KnownFailures, NewKnownFailure
from crcr.record.failures.recompute import MOST_FAILURES, FingerprintUpdate, count_left, recompute_some
from crcr.record.failures.recorder import FailureRecorder
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement
from crcr.record.store.times import to_us
from support.clock import ManualClock
from support.data.failed_jobs import fingerprint_of, record_failed_job
from support.stores.databases import CORE

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
MISSING, MEMORY = "NotImplementedError: aten::foo has no kernel", "RuntimeError: device ran out of memory"
OLD = "0" * 15
VERDICT = ("verdict", "confidence", "sentence", "evidence", "test_verdicts", "judged_at", "verdict_before")
_OUTDATE = tuple(
    Statement(text(sql))
    for sql in (
        (
            "UPDATE failures SET rules = 0, fingerprint = :old || substr(fingerprint, 1, 1),"
            " fingerprints = :old || substr(fingerprint, 1, 1), sample = 'old'"
        ),
        "UPDATE failure_fingerprints SET fingerprint = :old || substr(fingerprint, 1, 1)",
        "UPDATE failure_groups SET fingerprint = :old || substr(fingerprint, 1, 1), sample = 'old'",
        "UPDATE failed_tests SET fingerprint = :old || substr(fingerprint, 1, 1)",
        "UPDATE known_failures SET fingerprint = :old || substr(fingerprint, 1, 1)",
    )
)
_ROWS = {
    table: Statement(text(f"SELECT * FROM {table} "))  # noqa: S608  ours
    for table in ("failures", "failure_fingerprints", "failure_groups", "failed_tests", "known_failures")
}


async def fail(
    database: Database, delivery: str, message: str, *, at: datetime = NOW, job: bool = True
) -> None:
    await record_failed_job(database, delivery, message, at=at, with_result=job)


async def make_outdated(database: Database) -> None:
    """Change the failures to what an older release wrote, with other fingerprints."""
    for statement in _OUTDATE:
        await run(database, statement, old=OLD)


def update(database: Database, **more: Any) -> FingerprintUpdate:
    clock = ManualClock(NOW + timedelta(hours=6))
    return FingerprintUpdate(database, FailureRecorder(CheckRefresher({})), clock, **more)


async def run(database: Database, statement: Statement, **params: Any) -> None:
    await database.write(lambda tx: tx.run(statement, **params))


async def rows(database: Database, table: str) -> list[dict[str, Any]]:
    table_rows = [dict(row) for row in await database.read(lambda tx: tx.all(_ROWS[table]))]
    return sorted(table_rows, key=lambda row: (row["fingerprint"] or "", row.get("failure_id", 0)))


async def read_all_tables(database: Database) -> dict[str, list[dict[str, Any]]]:
    return {table: await rows(database, table) for table in _ROWS}


async def test_recomputed_failures_and_groups_equal_those_recorded_under_the_new_rules(
    database: Database,
) -> None:
    for number in range(3):
        await fail(database, f"d-{number}", MISSING, at=NOW + timedelta(hours=number))
    await fail(database, "d-3", MEMORY)
    known = KnownFailures(database, "https://github.com")
    url = "https://github.com/o/r/issues/1"
    link = NewKnownFailure(fingerprint=fingerprint_of(MISSING), url=url, who="mia", reason="x")
    await known.link(CORE, link, NOW)
    expected = await read_all_tables(database)
    await make_outdated(database)
    assert await database.read(count_left) == 4

    assert await update(database).run() == 4

    recomputed = await read_all_tables(database)
    for row in (*recomputed["failures"], *expected["failures"]):
        for column in VERDICT:
            del row[column]
    recomputed["known_failures"] = [
        row for row in recomputed["known_failures"] if not row["fingerprint"].startswith(OLD)
    ]
    assert recomputed == expected
    assert await database.read(count_left) == 0
    assert await update(database).run() == 0


async def test_groups_of_log_error_lines_are_recomputed(database: Database) -> None:
    for number in range(2):
        await record_failed_job(database, f"d-{number}", MISSING, at=NOW, in_log=True)
    await fail(database, "d-2", MISSING)
    expected = await read_all_tables(database)
    assert sorted(row["number"] for row in expected["failure_groups"]) == [1, 2]
    old = "UPDATE failures SET rules = 0, log_fingerprint = :old, sample = 'old' WHERE log_fingerprint IS NOT NULL"
    stale = "UPDATE {0} SET fingerprint = :old WHERE fingerprint IN (SELECT log_fingerprint FROM failures)"
    for sql in (stale.format("failure_fingerprints"), stale.format("failure_groups"), old):
        await run(database, Statement(text(sql)), old=OLD)

    assert await update(database).run() == 2

    recomputed = await read_all_tables(database)
    for row in (*recomputed["failures"], *expected["failures"]):
        for column in VERDICT:
            del row[column]
    assert recomputed == expected


async def test_an_upgraded_database_without_fingerprints_gets_them(database: Database) -> None:
    await fail(database, "d-1", MISSING)
    for sql in (
        "UPDATE failures SET rules = 0, fingerprint = NULL, fingerprints = NULL, sample = NULL",
        "DELETE FROM failure_fingerprints",
        "DELETE FROM failure_groups",
    ):
        await run(database, Statement(text(sql)))

    await update(database).run()

    (failure,) = await rows(database, "failures")
    assert (failure["fingerprint"], failure["rules"], failure["sample"]) == (
        fingerprint_of(MISSING),
        RULES,
        MISSING,
    )
    (group,) = await rows(database, "failure_groups")
    assert (group["fingerprint"], group["number"], group["last_at"]) == (
        fingerprint_of(MISSING),
        1,
        to_us(NOW),
    )


async def test_failures_are_judged_by_their_new_fingerprints_even_after_a_restart(database: Database) -> None:
    """Three failures in order: the first and the last are equal, the middle one differs."""
    for number, message in enumerate((MISSING, MEMORY, MISSING)):
        await fail(database, f"d-{number}", message, at=NOW + timedelta(hours=number))
    await make_outdated(database)
    await run(
        database,
        Statement(text("UPDATE failures SET verdict = 'missing', confidence = 'low', judged_at = 1")),
    )
    go_on = iter((True, True, False))
    await update(database, goes_on=lambda: next(go_on)).run()
    assert {row["judged_at"] for row in await rows(database, "failures")} == {None}

    assert await update(database).run() == 0

    for row in await rows(database, "failures"):
        assert (row["verdict_before"], row["judged_at"]) == ("missing", to_us(NOW + timedelta(hours=6)))
        [(judged, _, _)] = json.loads(row["test_verdicts"])
        assert judged == row["fingerprint"]


async def test_a_failure_whose_result_is_gone_has_no_fingerprint(database: Database) -> None:
    await fail(database, "d-1", MISSING, job=False)
    await make_outdated(database)
    await update(database).run()
    (failure,) = await rows(database, "failures")
    assert (failure["fingerprint"], failure["fingerprints"], failure["rules"]) == (None, None, RULES)
    assert await rows(database, "failure_groups") == []


async def test_recomputing_runs_newest_first_in_small_units_and_ends_when_the_process_stops(
    database: Database,
) -> None:
    for number in range(5):
        await fail(database, f"d-{number}", MISSING, at=NOW + timedelta(hours=number))
    await make_outdated(database)
    assert await database.write(partial(recompute_some, most=2)) == 2
    done = {row["delivery"] for row in await rows(database, "failures") if row["rules"] == RULES}
    assert done == {"d-4", "d-3"}
    groups = {row["fingerprint"]: row["number"] for row in await rows(database, "failure_groups")}
    assert sorted(groups.values()) == [2, 3]
    go_on = iter((True, False, False))
    assert await update(database, goes_on=lambda: next(go_on)).run() == 3
    assert MOST_FAILURES <= 200


@pytest.mark.parametrize("column", [None, "[]"])
async def test_a_failure_without_tests_is_recomputed_too(database: Database, column: str | None) -> None:
    await fail(database, "d-1", MISSING)
    await run(database, Statement(text("UPDATE jobs SET failed_tests = :column")), column=column)
    await make_outdated(database)
    assert await update(database).run() == 1
    assert await rows(database, "failure_fingerprints") == []
