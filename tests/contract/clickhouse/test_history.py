"""Generated history: the same for the same seed, consistent, and summed by the rules of the statistics."""
# ruff: noqa: S608 - the statements are our own

import hashlib
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.model import Conclusion, JobState
from crcr.decide.statistics.figures import TIMED, EndedAs, ended_as, find_bucket
from crcr.decide.statistics.window import result_kind
from crcr.demo.history.backends import BackendSpec
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan, generate_history
from crcr.record.schema.statistics import EXECUTION, QUEUE

BACKENDS = (
    BackendSpec("Big/Backend", 4, 12),
    BackendSpec("org/backend", 3, 5),
    BackendSpec("org/probe", 2, 3, probe=True),
    BackendSpec("org/silent", 2, 3, silent=True),
    BackendSpec("org/told", 1, 3),
)
HOUR_US, DAY_US = 3_600_000_000, 86_400_000_000
UNTIL = 1_785_898_800_000_000
"""Three in the morning, while the nightlies run."""
TABLES = ("pulls", "deliveries", "dispatches", "runs", "jobs", "merge_groups", "gates", "hours", "job_days")


def make(path: Path, **more: Any) -> sqlite3.Connection:
    plan = {
        "upstream": "Torch/torch",
        "backends": BACKENDS,
        "until": UNTIL,
        "days": 12,
        "jobs": 4_000,
        **more,
    }
    fill_database(path, HistoryPlan(**plan))
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    return connection


@pytest.fixture(scope="module")
def main_store(tmp_path_factory: pytest.TempPathFactory) -> sqlite3.Connection:
    return make(tmp_path_factory.mktemp("history") / "crcr.db", all_end=False)


def digest(connection: sqlite3.Connection) -> str:
    rows = [tuple(row) for table in TABLES for row in connection.execute(f"SELECT * FROM {table}")]
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def count(connection: sqlite3.Connection, sql: str) -> int:
    row_count: int = connection.execute(f"SELECT count(*) FROM {sql}").fetchone()[0]
    return row_count


def test_equal_seeds_make_equal_histories_and_different_seeds_different_ones(tmp_path: Path) -> None:
    one, same, other = (
        digest(make(tmp_path / name, seed=seed, jobs=1_500)) for name, seed in (("a", 1), ("b", 1), ("c", 2))
    )
    assert one == same
    assert one != other


def test_the_number_of_jobs_is_about_the_number_in_the_plan(main_store: sqlite3.Connection) -> None:
    assert 2_800 < count(main_store, "jobs") < 5_600


def test_every_row_has_the_rows_that_it_refers_to(main_store: sqlite3.Connection) -> None:
    run = "SELECT 1 FROM runs r WHERE r.run_id = j.run_id AND r.downstream = j.downstream AND r.delivery = j.delivery"
    sent = (
        "SELECT 1 FROM dispatches d WHERE d.delivery = j.delivery AND d.downstream = j.downstream AND d.state = 'sent'"
        " AND d.level = j.level AND d.head_sha = j.head_sha AND d.sent_at < j.in_progress_at"
    )
    delivery = "SELECT 1 FROM deliveries v WHERE v.guid = d.delivery AND v.event = d.event AND v.received_at = d.created_at"
    assert count(main_store, f"jobs j WHERE j.event <> 'nightly' AND NOT EXISTS ({run})") == 0
    assert count(main_store, f"jobs j WHERE j.event <> 'nightly' AND NOT EXISTS ({sent})") == 0
    assert count(main_store, f"dispatches d WHERE NOT EXISTS ({delivery})") == 0
    assert count(main_store, "jobs WHERE event = 'nightly' AND head_sha <> delivery") == 0
    commit = (
        "SELECT 1 FROM commits c WHERE c.sha = j.head_sha AND c.upstream = j.upstream AND c.standing = 'base'"
    )
    assert count(main_store, f"jobs j WHERE j.event = 'nightly' AND NOT EXISTS ({commit})") == 0
    assert (
        count(
            main_store, "pulls p WHERE NOT EXISTS (SELECT 1 FROM deliveries v WHERE v.head_sha = p.head_sha)"
        )
        == 0
    )
    assert count(main_store, "jobs WHERE completed_at < in_progress_at") == 0


def test_a_nightly_is_reported_once_at_its_end_and_has_no_recorded_run(
    main_store: sqlite3.Connection,
) -> None:
    nights = "jobs j WHERE j.event = 'nightly'"
    assert count(main_store, nights) > 0
    measured = "(queue_s IS NOT NULL OR execution_s IS NOT NULL OR in_progress_at <> completed_at)"
    assert (
        count(main_store, f"{nights} AND (state <> 'completed' OR superseded = 1 OR late = 1 OR {measured})")
        == 0
    )
    assert count(main_store, f"{nights} AND EXISTS (SELECT 1 FROM runs r WHERE r.run_id = j.run_id)") == 0


def test_generated_history_contains_every_event_and_ending(main_store: sqlite3.Connection) -> None:
    events = {row[0] for row in main_store.execute("SELECT DISTINCT event FROM jobs")}
    ended = {row[0] for row in main_store.execute("SELECT DISTINCT ended_as FROM jobs")}
    assert events == {"pull_request", "push", "merge_group", "nightly"}
    assert {"success", "failure", "other", "superseded", "earlier"} <= ended
    assert count(main_store, "jobs WHERE superseded = 1") > 0
    assert count(main_store, "jobs WHERE failed_tests IS NOT NULL") > 0
    assert count(main_store, "jobs WHERE state = 'in_progress'") > 0
    assert count(main_store, "pulls WHERE is_open = 1") > 0
    assert count(main_store, "jobs WHERE downstream IN ('org/silent', 'org/told')") == 0


def test_a_history_that_has_ended_leaves_nothing_open(tmp_path: Path) -> None:
    history = make(tmp_path / "over.db", jobs=1_500)
    assert count(history, "jobs WHERE state = 'in_progress'") == 0
    assert count(history, f"jobs WHERE completed_at >= {UNTIL}") == 0
    assert count(history, "pulls WHERE is_open = 1") == 0


def test_every_job_has_the_ending_that_the_rules_give_it(main_store: sqlite3.Connection) -> None:
    last_attempts: Counter[tuple[Any, ...]] = Counter()
    rows = main_store.execute(
        "SELECT j.*, d.superseded_at FROM jobs j LEFT JOIN dispatches d USING (delivery, upstream, downstream)"
    ).fetchall()
    for row in rows:
        last_attempts[_job(row)] = max(last_attempts[_job(row)], row["attempt"])
    for row in rows:
        expected = ended_as(
            JobState(row["state"]),
            Conclusion(row["conclusion"]) if row["conclusion"] else None,
            Conclusion(row["expected"]) if row["expected"] else None,
            superseded=bool(row["superseded"]) or row["superseded_at"] is not None,
            earlier=row["attempt"] < last_attempts[_job(row)],
        )
        assert (row["ended_as"] and EndedAs(row["ended_as"])) == expected


def test_the_generator_writes_the_same_endings_as_the_rules(
    tmp_path: Path, main_store: sqlite3.Connection
) -> None:
    """The sums then need not rewrite millions of rows."""
    summed = {row[0]: row[1] for row in main_store.execute("SELECT ended_as, count(*) FROM jobs GROUP BY 1")}
    path = tmp_path / "raw.db"
    make(path, jobs=0, days=0.01).close()
    raw = sqlite3.connect(path)
    raw.execute("DELETE FROM jobs")
    raw.commit()
    generate_history(
        raw,
        HistoryPlan(
            upstream="Torch/torch", backends=BACKENDS, until=UNTIL, days=12, jobs=4_000, all_end=False
        ),
    )
    assert {row[0]: row[1] for row in raw.execute("SELECT ended_as, count(*) FROM jobs GROUP BY 1")} == summed


def test_the_sums_count_every_job_once(main_store: sqlite3.Connection) -> None:
    hours: dict[tuple[Any, ...], Counter[str]] = {}
    days: dict[tuple[Any, ...], Counter[str]] = {}
    for row in main_store.execute("SELECT * FROM jobs WHERE ended_as IS NOT NULL"):
        key = (row["upstream"], row["downstream"], result_kind(row["event"]))
        hour = hours.setdefault((*key, row["in_progress_at"] // HOUR_US * HOUR_US), Counter())
        day = (*key, row["in_progress_at"] // DAY_US * DAY_US, row["workflow"], row["job_name"])
        for counter in (hour, days.setdefault(day, Counter())):
            counter[row["ended_as"]] += 1
        if EndedAs(row["ended_as"]) in TIMED:
            if row["queue_s"] is not None:
                hour[QUEUE[find_bucket(row["queue_s"])]] += 1
            if row["execution_s"] is not None:
                hour[EXECUTION[find_bucket(row["execution_s"])]] += 1
    names = (*(counter.value for counter in EndedAs), *QUEUE, *EXECUTION)
    sums = {
        tuple(row[:4]): Counter({name: row[name] for name in names if row[name]})
        for row in main_store.execute("SELECT * FROM hours")
    }
    assert {key: counter for key, counter in sums.items() if counter} == hours
    sums_of_days = {
        tuple(row[:6]): Counter(
            {counter.value: row[counter.value] for counter in EndedAs if row[counter.value]}
        )
        for row in main_store.execute("SELECT * FROM job_days")
    }
    assert sums_of_days == days


def _job(row: sqlite3.Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("delivery", "downstream", "workflow", "run_id", "job_name"))
