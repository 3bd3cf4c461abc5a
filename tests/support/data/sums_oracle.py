"""A second implementation of the statistics: every sum, computed from the rows of jobs and dispatches.

It is written without reference to `decide.statistics.figures`, `sums` or `counting`, so that it does not repeat their
mistakes.
"""

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
Sums = dict[tuple[Any, ...], dict[str, float]]

HOUR_US = 60 * 60 * 1_000_000
DAY_US = 24 * HOUR_US
UPPER_ENDS_S = (1, 5, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 57600)
KINDS = {
    "pull_request": "pull_request",
    "push": "push",
    "merge_group": "push",
    "nightly": "nightly",
    "periodic": "nightly",
}
PASSES, FAILS = {"success"}, {"failure", "timed_out", "action_required", "none", None}
OWN: Row = {"test": 0, "superseded_at": None}
"""Stands for the dispatch of a self-reported job: not a test, never superseded."""
DECIDED = ("success", "failure", "timed_out", "silent")
EXTREMES = ("queue_low_s", "queue_high_s", "execution_low_s", "execution_high_s")
"""Not sums: the shortest and longest durations."""


def read_rows(path: Path, table: str) -> list[dict[str, Any]]:
    connection = sqlite3.connect(path)
    try:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(f"SELECT * FROM {table}")]  # noqa: S608 - our own name
    finally:
        connection.close()


def job_categories(jobs: Iterable[Row], dispatches: Iterable[Row]) -> dict[tuple[Any, ...], str | None]:
    """The category in which each job is counted, by its key; None for running jobs and for tests."""
    rows = list(jobs)
    sent_for = {_dispatch_key(each): each for each in dispatches}
    newest: dict[tuple[Any, ...], int] = defaultdict(int)
    for row in rows:
        name = _name_key(row)
        newest[name] = max(newest[name], row["attempt"])
    return {
        job_key(row): _job_category(row, sent_for.get(_dispatch_key(row), OWN), newest[_name_key(row)])
        for row in rows
    }


def backend_sums(jobs: Iterable[Row], dispatches: Iterable[Row], width_us: int) -> Sums:
    """Sums by upstream, backend, kind and hour or day, without zeros."""
    rows, sends = list(jobs), list(dispatches)
    where, found = job_categories(rows, sends), _empty()
    for row in rows:
        place, kind = where[job_key(row)], KINDS.get(row["event"])
        if place is None or kind is None:
            continue
        sums = found[row["upstream"], row["downstream"], kind, _floor(row["in_progress_at"], width_us)]
        sums[place] += 1
        if place in DECIDED and row["queue_s"] is not None:
            sums["queue_sum_s"] += row["queue_s"]
            sums[f"q{_bucket(row['queue_s'])}"] += 1
        if _ran(place) and row["execution_s"] is not None:
            sums["execution_sum_s"] += row["execution_s"]
            sums[f"e{_bucket(row['execution_s'])}"] += 1
    for each in sends:
        kind = KINDS.get(each["event"])
        if each["sent_at"] is None or each["test"] or kind is None:
            continue
        sums = found[each["upstream"], each["downstream"], kind, _floor(each["sent_at"], width_us)]
        sums["sent"] += 1
        sums["delay_sum_s"] += each["delay_s"]
    return {key: dict(sums) for key, sums in found.items()}


def day_sums(jobs: Iterable[Row], dispatches: Iterable[Row]) -> Sums:
    """Sums by upstream, backend, kind, day, workflow and job."""
    rows = list(jobs)
    where, found = job_categories(rows, dispatches), _empty()
    for row in rows:
        place, kind = where[job_key(row)], KINDS.get(row["event"])
        if place is None or kind is None:
            continue
        day = _floor(row["in_progress_at"], DAY_US)
        sums = found[row["upstream"], row["downstream"], kind, day, row["workflow"], row["job_name"]]
        sums[place] += 1
        if _ran(place) and row["execution_s"] is not None:
            sums["execution_sum_s"] += row["execution_s"]
            sums["execution_known"] += 1
    return {key: dict(sums) for key, sums in found.items()}


def stored_sums(rows: Iterable[Row], *key: str) -> Sums:
    """A table of stored sums in the same shape: by key, without zeros."""
    found: Sums = {}
    left_out = {*key, *EXTREMES, "workflow_name"}
    for row in rows:
        sums = {name: value for name, value in row.items() if name not in left_out and value}
        tiny = {name for name in sums if name.endswith("_sum_s") and abs(sums[name]) < 1e-6}
        if kept := {name: value for name, value in sums.items() if name not in tiny}:
            found[tuple(row[name] for name in key)] = kept
    return found


def differences(expected: Sums, stored: Sums) -> list[str]:
    """The differences: counts are compared exactly, seconds to one millionth."""
    found = []
    for key in sorted({*expected, *stored}, key=repr):
        want, have = expected.get(key, {}), stored.get(key, {})
        for name in sorted({*want, *have}):
            one, other = want.get(name, 0), have.get(name, 0)
            near = abs(one - other) <= 1e-6 * max(1.0, abs(one))
            if one != other and not (name.endswith("_sum_s") and near):
                found.append(f"{key} {name}: {one} expected, {other} stored")
    return found


def durations(
    jobs: Iterable[Row], dispatches: Iterable[Row], width_us: int
) -> dict[tuple[Any, ...], dict[str, list[float]]]:
    """The queue and execution times that count, by upstream, backend, kind and period."""
    rows, found = (
        list(jobs),
        defaultdict[tuple[Any, ...], dict[str, list[float]]](lambda: {"queue": [], "execution": []}),
    )
    where = job_categories(rows, dispatches)
    for row in rows:
        place, kind = where[job_key(row)], KINDS.get(row["event"])
        if place not in DECIDED or kind is None:
            continue
        key = row["upstream"], row["downstream"], kind, _floor(row["in_progress_at"], width_us)
        if row["queue_s"] is not None:
            found[key]["queue"].append(row["queue_s"])
        if _ran(place) and row["execution_s"] is not None:
            found[key]["execution"].append(row["execution_s"])
    return dict(found)


def too_narrow(
    counted: Mapping[tuple[Any, ...], Mapping[str, list[float]]], rows: Iterable[Row], *key: str
) -> list[str]:
    """Durations that lie outside the stored shortest and longest."""
    stored = {tuple(row[name] for name in key): row for row in rows}
    return [
        f"{where}: {what} {seconds} beyond what is stored"
        for where, times in counted.items()
        for what, seconds in times.items()
        if seconds
        and not stored[where][f"{what}_low_s"]
        <= min(seconds)
        <= max(seconds)
        <= stored[where][f"{what}_high_s"]
    ]


def percentile(seconds: list[float], share: float) -> float | None:
    """The first value that at least this share of all values does not exceed."""
    ordered = sorted(seconds)
    return next((each for at, each in enumerate(ordered, 1) if at >= share * len(ordered) - 1e-9), None)


def pass_rate(
    jobs: Iterable[Row],
    dispatches: Iterable[Row],
    *,
    downstream: str,
    kind: str,
    since_us: int,
    until_us: int,
) -> tuple[int, int, float | None]:
    """Passes, failures and their rate of one backend, over the jobs that began in the window."""
    rows = list(jobs)
    where = job_categories(rows, dispatches)
    counted = [
        where[job_key(row)]
        for row in rows
        if row["downstream"] == downstream
        and KINDS.get(row["event"]) == kind
        and since_us <= row["in_progress_at"] < until_us
    ]
    passed = sum(place == "success" for place in counted)
    failed = sum(place in ("failure", "timed_out", "silent") for place in counted)
    return passed, failed, passed / (passed + failed) if passed + failed else None


def page_counts(
    jobs: Iterable[Row],
    dispatches: Iterable[Row],
    *,
    downstream: str,
    kind: str,
    since_us: int,
    until_us: int,
) -> dict[str, int | None]:
    """The counts of one backend's page: results in the window, running jobs, the time of the last result."""
    sends = [each for each in dispatches if each["downstream"] == downstream]
    rows = [row for row in jobs if row["downstream"] == downstream]
    where = job_categories(rows, sends)
    own = [row for row in rows if KINDS.get(row["event"]) == kind]
    counted = [where[job_key(row)] for row in own if since_us <= row["in_progress_at"] < until_us]
    newest = {_name_key(row): row["attempt"] for row in sorted(own, key=lambda row: row["attempt"])}
    gone = {_dispatch_key(each) for each in sends if each["superseded_at"] is not None or each["test"]}
    running = [
        row
        for row in own
        if row["state"] == "in_progress"
        and not row["superseded"]
        and _dispatch_key(row) not in gone
        and row["attempt"] == newest[_name_key(row)]
    ]
    ended = [row for row in own if where[job_key(row)] in ("success", "failure", "timed_out", "other")]
    sent = [
        each for each in sends if KINDS.get(each["event"]) == kind and not each["test"] and each["sent_at"]
    ]
    return {
        "success": counted.count("success"),
        "failure": sum(place in ("failure", "timed_out", "silent") for place in counted),
        "timed_out": counted.count("timed_out") + counted.count("silent"),
        "other": counted.count("other"),
        "superseded": counted.count("superseded"),
        "earlier": counted.count("earlier"),
        "running": len(running),
        "sent": sum(since_us <= each["sent_at"] < until_us for each in sent),
        "last": max((row["completed_at"] for row in ended), default=None),
    }


def job_key(row: Row) -> tuple[Any, ...]:
    return (*_name_key(row), row["attempt"])


def _job_category(job: Row, dispatch: Row, newest_attempt: int) -> str | None:
    if dispatch["test"] or job["state"] == "in_progress":
        return None
    if job["superseded"] or dispatch["superseded_at"] is not None:
        return "superseded"
    if job["attempt"] < newest_attempt:
        return "earlier"
    if job["state"] == "timed_out":
        return "silent"
    conclusion, expected = job["conclusion"], job["expected"]
    if expected is not None:
        passed, failed = conclusion == expected, conclusion != expected
    else:
        passed, failed = conclusion in PASSES, conclusion in FAILS
    if passed:
        return "success"
    if not failed:
        return "other"
    return "timed_out" if conclusion == "timed_out" else "failure"


def _ran(place: str) -> bool:
    """Whether the execution time is known: the end of a silent job is not."""
    return place in DECIDED and place != "silent"


def _bucket(seconds: float) -> int:
    return sum(seconds > end for end in UPPER_ENDS_S)


def _floor(at_us: int, width_us: int) -> int:
    return at_us // width_us * width_us


_name_key = itemgetter("upstream", "delivery", "downstream", "workflow", "run_id", "job_name")
_dispatch_key = itemgetter("upstream", "delivery", "downstream")


def _empty() -> defaultdict[tuple[Any, ...], dict[str, float]]:
    return defaultdict(lambda: defaultdict(int))
