"""The comparison of two relays, and the parsing of the old relay's result lines."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.jobs.workflow_job_record import Record, write_attributes
from crcr.decide.model import Conclusion, DispatchState, Level, RepoName
from crcr.decide.shadow import (
    DifferenceKind,
    OwnDispatch,
    OwnRecords,
    RecordedResult,
    compare_relays,
    select_results,
)
from crcr.receive.ingest.result_lines import MOST_LINE_BYTES, UnreadLines, read_result_lines

NOW = datetime(2026, 3, 28, 12, tzinfo=UTC)
A, UPSTREAM = RepoName("org/a"), RepoName("org/core")


def result(conclusion: str | None = "success", **more: Any) -> RecordedResult:
    fields: dict[str, Any] = {
        "delivery": "d1",
        "backend": A,
        "event": "pull_request",
        "workflow": "CI",
        "job": "build",
        "check_run": "1",
        "attempt": 1,
        "conclusion": Conclusion(conclusion) if conclusion else None,
        **more,
    }
    return RecordedResult(**fields)


def dispatch(**more: Any) -> OwnDispatch:
    fields: dict[str, Any] = {"delivery": "d1", "backend": A, "level": Level.L2, "state": DispatchState.SENT}
    return OwnDispatch(**{**fields, "reason": None, "action": "opened", **more})


def compare(
    old: list[RecordedResult],
    new: list[RecordedResult],
    dispatches: list[OwnDispatch] | None = None,
    **more: Any,
) -> list[str]:
    decided = [dispatch()] if dispatches is None else dispatches
    own = OwnRecords(tuple(decided), tuple(new), {"d1": None, "d2": "superseded by abc"}, **more)
    return [
        f"{difference.kind.name}: {difference.why or f'{difference.old}, {difference.new}'}"
        for difference in compare_relays(old, own).differences
    ]


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ([result()], [result()], []),
        ([result()], [], []),  # the backend does not report to the new relay: nothing to compare
        ([result()], [result(job="test")], ["RESULT_IN_OLD: success, None", "RESULT_IN_NEW: None, success"]),
        ([result()], [result("failure")], ["CONCLUSION: success, failure"]),
        ([result(None), result()], [result()], []),  # one line for each report
        ([result(None, check_run="0"), result()], [result()], []),  # the ids of a separate reporting job differ
        ([result("failure"), result(attempt=2)], [result(attempt=2)], []),
        ([result(attempt=2), result("failure")], [result()], []),
        ([result(None)], [result()], ["CONCLUSION: in progress, success"]),
        ([result(), result("failure", check_run="2")], [result(), result("failure", check_run="9")], []),
        ([result(), result(check_run="2")], [result(), result("failure", check_run="9")], ["CONCLUSION: success, success, failure, success"]),
        ([result(event="nightly")], [], ["DISPATCHED_BY_NEW: the old relay has no record: it did not dispatch, or the backend did not report"]),
    ],
)  # fmt: skip
def test_results_are_compared_by_job_and_newest_attempt(
    old: list[RecordedResult], new: list[RecordedResult], expected: list[str]
) -> None:
    assert compare(old, new) == expected


@pytest.mark.parametrize(
    ("own", "why"),
    [
        ([], "the allowlist does not select the backend"),
        ([dispatch(state=DispatchState.LEFT_OUT, reason="paths")], "left out by paths"),
        ([dispatch(state=DispatchState.HELD, reason="approval")], "held for approval"),
        ([dispatch(state=DispatchState.CANCELLED, reason="suspended")], "cancelled: suspended"),
    ],
)
def test_a_dispatch_by_the_old_relay_only_has_a_reason(own: list[OwnDispatch], why: str) -> None:
    assert compare([result()], [], own) == [f"DISPATCHED_BY_OLD: {why}"]
    assert "superseded by abc" in compare([result(delivery="d2")], [], [])[0]
    assert "did not receive the webhook" in compare([result(delivery="d3")], [], [])[0]
    assert compare([result(delivery="d3")], [], [], other_deliveries=frozenset({"d3"})) == []


@pytest.mark.parametrize(
    ("own", "is_missing"),
    [
        (dispatch(delivery="d2"), True),
        (dispatch(delivery="d2", state=DispatchState.PARKED), True),
        (dispatch(delivery="d2", action="closed"), False),
        (dispatch(delivery="d2", action=None, head_sha="0" * 40), False),
        (dispatch(delivery="d2", level=Level.L1), False),
        (dispatch(delivery="d2", state=DispatchState.LEFT_OUT), False),
        (dispatch(delivery="d2", backend=RepoName("org/silent")), False),
    ],
)
def test_a_dispatch_without_a_record_counts_only_where_the_old_relay_could_have_one(
    own: OwnDispatch, is_missing: bool
) -> None:
    assert bool(compare([result()], [], [dispatch(), own])) is is_missing
    comparison = compare_relays([result()], OwnRecords((dispatch(), own), (), {}))
    assert comparison.unreported_backends == (A,)
    assert comparison.unread_backends == ((own.backend,) if own.backend.name == "silent" else ())
    assert {difference.kind for difference in comparison.differences} <= {DifferenceKind.DISPATCHED_BY_NEW}


def test_results_are_selected_by_upstream_and_time() -> None:
    own = OwnRecords((), (), {"d1": None})
    late = NOW + timedelta(hours=2)
    rows = [
        result(at=late),  # its delivery arrived in time
        result(delivery="x", at=late),
        result(delivery="y", at=NOW),
        result(delivery="z", at=NOW, upstream="Org/Core"),
        result(delivery="o", at=NOW, upstream="other/core"),
        result(delivery="n"),
    ]
    selected = select_results(rows, own, UPSTREAM, NOW, NOW + timedelta(hours=1))
    assert [row.delivery for row in selected] == ["d1", "y", "z", "n"]


def test_envelopes_and_rows_are_parsed_and_other_lines_are_counted() -> None:
    row = {
        "delivery_id": "d1",
        "downstream_repo": "org/a",
        "workflow_name": "CI",
        "job_name": "build",
        "check_run_id": "7",
        "run_attempt": "2",
        "status": "completed",
        "conclusion": "failure",
        "started_at": "2026-03-28 12:00:00.123456789",
    }
    workflow = {
        "status": "completed",
        "conclusion": "success",
        "name": "CI",
        "run_id": "1",
        "job_name": "build",
    }
    callback = {"event_type": "push", "delivery_id": "d1", "workflow": {**workflow, "check_run_id": "9"}}
    envelope = {"trusted": {"verified_repo": "org/a"}, "untrusted": {"callback_payload": callback}}
    lines = [
        json.dumps(row).encode(),
        b"",
        json.dumps(envelope).encode(),
        b"[" * 100_000,
        b'{"a": 1}',
        b"x" * (MOST_LINE_BYTES + 1),
        json.dumps({**row, "downstream_repo": "../etc"}).encode(),
        json.dumps({**row, "conclusion": "exploded", "run_attempt": "9" * 40}).encode(),
    ]
    unread = UnreadLines()
    first, second, third = read_result_lines(lines, unread)
    at = datetime(2026, 3, 28, 12, 0, 0, 123456, tzinfo=UTC)
    assert first == result("failure", check_run="7", attempt=2, at=at)
    assert (second.event, second.check_run, second.conclusion) == ("push", "9", Conclusion.SUCCESS)
    assert (third.conclusion, third.attempt) == (Conclusion.NONE, 999_999_999)
    assert unread.number == 4
    assert [problem.partition(":")[0] for problem in unread.problems] == [
        "line 4",
        "line 5",
        "line 6",
        "line 7",
    ]


def test_an_export_of_the_dynamodb_table_is_read_like_its_rows() -> None:
    row: Record = {
        "delivery_id": "d1",
        "downstream_repo": "org/a",
        "workflow_name": "CI",
        "job_name": "build",
    }
    row |= {"check_run_id": "1", "status": "completed", "conclusion": "success", "run_attempt": 1}
    exported = {"Item": write_attributes(row)}
    lines = [json.dumps(line).encode() for line in (row, exported, {"Item": 7}, {"Item": {"status": "x"}})]
    unread = UnreadLines()
    assert list(read_result_lines(lines, unread)) == [result(), result()]
    assert unread.number == 2
