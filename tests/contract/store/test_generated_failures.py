"""Generated history has failures with fingerprints, groups and base commits for the window of the verdicts."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from crcr.decide.failures.verdict import VerdictKind
from crcr.demo.history.backends import DAY_US, BackendSpec
from crcr.demo.history.failures import WINDOW_US
from crcr.demo.history.fill import fill_database
from crcr.demo.history.generate import HistoryPlan, generate_history

UNTIL = 1_780_000_000_000_000
BACKENDS = [BackendSpec("org/one", 2, 4), BackendSpec("org/two", 4, 6)]


def plan(upstream: str = "org/upstream") -> HistoryPlan:
    return HistoryPlan(
        upstream=upstream,
        backends=BACKENDS,
        until=UNTIL,
        days=20,
        jobs=6_000,
    )


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("history") / "crcr.db"
    fill_database(path, plan())
    return path


@pytest.fixture
def database(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path)) as connection:
        yield connection


def test_every_failed_job_of_the_window_is_a_failure_with_a_verdict(database: sqlite3.Connection) -> None:
    since = UNTIL - WINDOW_US
    failed = database.execute(
        "SELECT count(*) FROM jobs WHERE conclusion IN ('failure', 'timed_out') AND superseded = 0"
        " AND in_progress_at >= ?",
        (since + DAY_US,),
    ).fetchone()
    recorded = database.execute(
        "SELECT count(*) FROM failures f JOIN jobs j USING (delivery, upstream, downstream, workflow, run_id, attempt,"
        " job_name) WHERE j.conclusion IN ('failure', 'timed_out') AND j.in_progress_at >= ?",
        (since + DAY_US,),
    ).fetchone()
    assert recorded == failed
    assert recorded[0] > 50
    assert database.execute("SELECT min(at) >= ? FROM failures", (since,)).fetchone() == (1,)
    kinds = {kind for (kind,) in database.execute("SELECT DISTINCT verdict FROM failures")}
    assert kinds >= {VerdictKind.NEW.value, VerdictKind.PRE_EXISTING.value, VerdictKind.FLAKY.value}


def test_groups_count_their_members_and_span_backends(database: sqlite3.Connection) -> None:
    counted = database.execute(
        "SELECT m.fingerprint, f.downstream, count(*), min(f.at), max(f.at) FROM failure_fingerprints m"
        " JOIN failures f USING (failure_id) GROUP BY 1, 2 ORDER BY 1, 2"
    ).fetchall()
    groups = database.execute(
        "SELECT fingerprint, downstream, number, first_at, last_at FROM failure_groups ORDER BY 1, 2"
    ).fetchall()
    assert groups == counted
    backends_of = [
        number for (number,) in database.execute("SELECT count(*) FROM failure_groups GROUP BY fingerprint")
    ]
    assert max(backends_of) == len(BACKENDS)


def test_base_commits_are_in_the_order_of_their_pushes(database: sqlite3.Connection) -> None:
    rows = database.execute(
        "SELECT sha, before, pushed_at FROM base_commits WHERE ref = 'main' ORDER BY position"
    ).fetchall()
    assert len(rows) > 20
    assert [row[2] for row in rows] == sorted(row[2] for row in rows)
    assert [row[1] for row in rows] == [None, *(row[0] for row in rows[:-1])]
    unknown_bases = database.execute(
        "SELECT count(*) FROM failures WHERE number IS NOT NULL AND built_on NOT IN (SELECT sha FROM base_commits)"
    )
    assert unknown_bases.fetchone() == (0,)


def test_a_second_upstream_in_the_same_database_has_its_own_groups(tmp_path: Path) -> None:
    path = tmp_path / "crcr.db"
    fill_database(path, plan())
    with closing(sqlite3.connect(path)) as connection:
        generate_history(connection, plan("org/other"))
        members, counted = (
            connection.execute(statement).fetchall()
            for statement in (
                "SELECT upstream, count(*) FROM failure_fingerprints GROUP BY 1 ORDER BY 1",
                "SELECT upstream, sum(number) FROM failure_groups GROUP BY 1 ORDER BY 1",
            )
        )
    assert members == counted
    assert [upstream for upstream, _ in members] == ["org/other", "org/upstream"]
