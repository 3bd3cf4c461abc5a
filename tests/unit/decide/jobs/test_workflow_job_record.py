"""Records of the public HUD: converted from envelopes by its rules, and back; hostile ones are refused or truncated."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.jobs.workflow_job_record import (
    NotARecord,
    make_envelope,
    make_record,
    read_attributes,
    write_attributes,
)

SHA = "a" * 40
WORKFLOW: dict[str, Any] = {
    "status": "completed",
    "conclusion": "failure",
    "name": "CI",
    "job_name": "build",
    "check_run_id": 7,
    "run_id": "1",
    "run_attempt": "2",
    "url": "https://example.org/1",
    "started_at": "2026-01-01T00:00:00Z",
    "completed_at": "2026-01-01T00:10:00Z",
    "test_results": {"passed": 2, "failed": 1, "total": None},
}
TRUSTED: dict[str, Any] = {
    "verified_repo": "Org/Backend",
    "ci_metrics": {"queue_time": None, "execution_time": 5},
}


def record(payload: Any = None, workflow: Any = None, **trusted: Any) -> dict[str, Any]:
    callback = {"delivery_id": "d", "payload": payload, "workflow": {**WORKFLOW, **(workflow or {})}}
    return dict(make_record({**TRUSTED, **trusted}, callback))


def test_a_record_has_the_public_defaults() -> None:
    assert record() == {
        "dynamoKey": "Org/Backend/d/CI/build/7",
        "status": "completed",
        "downstream_repo": "Org/Backend",
        "upstream_repo": "pytorch/pytorch",
        "pr_number": 0,
        "pytorch_head_sha": "d",
        "delivery_id": "d",
        "workflow_run_url": "https://example.org/1",
        "workflow_name": "CI",
        "job_name": "build",
        "check_run_id": "7",
        "run_id": "1",
        "run_attempt": 2,
        "execution_time": 5.0,
        "started_at": "2026-01-01T00:00:00Z",
        "conclusion": "failure",
        "completed_at": "2026-01-01T00:10:00Z",
        "passed_tests": 2,
        "failed_tests": 1,
        "total_tests": 3,
    }


PULLS: list[tuple[Any, tuple[int, str]]] = [
    ({"pull_request": {"number": 5, "head": {"sha": SHA}}}, (5, SHA)),
    ({"pull_request": {"number": 5}, "head_sha": SHA}, (0, SHA)),
    ({"after": SHA, "ref": "refs/tags/ciflow/trunk/77"}, (77, SHA)),
    ({"after": SHA, "ref": "refs/heads/main"}, (0, SHA)),
    ({"after": SHA, "ref": ["refs/tags/ciflow/trunk/77"]}, (0, SHA)),
    ({"head_sha": SHA}, (0, SHA)),
    ({"pull_request": {"number": True, "head": {"sha": SHA}}}, (0, "d")),
    ({"pull_request": [], "repository": 7}, (0, "d")),
    ("no object", (0, "d")),
]


@pytest.mark.parametrize(("payload", "expected"), PULLS)
def test_pull_request_and_commit_are_derived_like_in_the_public_hud(
    payload: Any, expected: tuple[int, str]
) -> None:
    made_record = record(payload)
    assert (made_record["pr_number"], made_record["pytorch_head_sha"]) == expected


def test_the_record_of_a_start_has_no_result_fields() -> None:
    started = record(workflow={"status": "in_progress"})
    assert not {"conclusion", "completed_at", "passed_tests", "total_tests"} & set(started)


def test_oversized_or_malformed_input_is_truncated_and_never_breaks_a_record() -> None:
    detail = [{"name": "n" * 9_000, "message": "m" * 9_000, "duration": "nan"}] * 500 + ["text", None]
    made_record = record(
        workflow={"failed_tests_detail": detail, "test_results": {"passed": -1, "failed": "x" * 99}}
    )
    assert len(made_record["failed_tests_json"]) < 60_000
    assert made_record["total_tests"] == 0
    # A control character takes six bytes in JSON; an item of DynamoDB holds 400 KB.
    control_characters = [dict.fromkeys(("name", "classname", "message"), "\x01" * 500)] * 50
    assert (
        200_000
        < len(record(workflow={"failed_tests_detail": control_characters})["failed_tests_json"])
        < 300_000
    )
    deep: dict[str, Any] = {}
    for _ in range(5_000):
        deep = {"x": deep}
    refused: list[Any] = [deep, {"x": "y" * 9_000}, {}, [], "text"]
    for environment in refused:
        assert "environment" not in record(workflow={"environment": environment})
    assert record(workflow={"environment": {"device": "npu"}})["environment"] == '{"device":"npu"}'


@given(
    st.dictionaries(
        st.sampled_from(
            ["status", "downstream_repo", "delivery_id", "workflow_name", "job_name", "run_id", "x"]
        ),
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.just("completed")
        ),
    )
)
def test_any_record_is_converted_to_an_envelope_or_refused(fields: dict[str, Any]) -> None:
    try:
        envelope = make_envelope(fields)
    except NotARecord:
        return
    assert envelope["untrusted"]["callback_payload"]["workflow"]["status"] in {"completed", "in_progress"}


def test_a_record_converted_to_an_envelope_converts_back_to_the_same_record() -> None:
    for payload in ({"pull_request": {"number": 5, "head": {"sha": SHA}}}, {"head_sha": SHA}, {}):
        original = record(
            {"repository": {"full_name": "o/r"}, **payload}, downstream_repo_level="L3", outcome={"number": 4}
        )
        envelope = make_envelope(read_attributes(write_attributes(original)))
        callback = envelope["untrusted"]["callback_payload"]
        converted = make_record(envelope["trusted"], callback)
        assert {name: value for name, value in converted.items() if name != "event_type"} == original


TIMES = [
    ("2026-01-01 00:00:00.123456789", "2026-01-01T00:00:00.123456Z"),
    ("2026-01-01 00:00:00", "2026-01-01T00:00:00Z"),
    ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
    ("1970-01-01 00:00:00.000000000", None),
]


@pytest.mark.parametrize(("written", "read"), TIMES)
def test_times_of_clickhouse_are_parsed(written: str, read: str | None) -> None:
    envelope = make_envelope({**record(), "started_at": written})
    assert envelope["untrusted"]["callback_payload"]["workflow"].get("started_at") == read
