import json
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crcr.decide.jobs.report import FailedTest, Report, ReportStatus, TestCounts
from crcr.decide.model import Conclusion
from crcr.errors import BadReport
from crcr.receive.callback.parse_report import parse_report
from support.published_files import example

ABSENT = object()
LEGAL = ["success", "failure", "cancelled", "skipped", "neutral", "timed_out", "action_required"]


def _body(*, top: dict[str, Any] | None = None, **workflow: Any) -> bytes:
    fields = {
        "status": "completed",
        "conclusion": "success",
        "name": "CI",
        "run_id": "123",
        "job_name": "build",
    }
    fields |= workflow
    body: dict[str, Any] = {
        "event_type": "pull_request",
        "delivery_id": "guid-1",
        "payload": {"number": 7},
        "workflow": {key: value for key, value in fields.items() if value is not ABSENT},
        **(top or {}),
    }
    return json.dumps({key: value for key, value in body.items() if value is not ABSENT}).encode()


def _report(**workflow: Any) -> Report:
    return parse_report(_body(**workflow))


def _refusal(body: bytes) -> str:
    with pytest.raises(BadReport) as caught:
        parse_report(body)
    assert len(caught.value.detail) < 300
    return caught.value.detail


def test_the_example_of_the_protocol_is_parsed_in_full() -> None:
    report = _report(
        schema_version="1",
        url="https://ci.example/1",
        run_attempt="2",
        job_name="build (cuda, 3.12)",
        check_run_id="456",
        started_at="2026-08-01T10:00:00Z",
        completed_at="2026-08-01T12:00:00+02:00",
        test_results={"passed": 42, "failed": 0, "skipped": 3, "total": 45},
        failed_tests=[{"name": "test_x", "file": "a.py", "message": "boom"}],
        artifact_url="https://ci.example/a",
        environment={"device": "npu"},
    )
    moment = datetime(2026, 8, 1, 10, tzinfo=UTC)
    untrusted = report.untrusted
    assert report == Report(
        event_type="pull_request",
        delivery_id="guid-1",
        status=ReportStatus.COMPLETED,
        conclusion=Conclusion.SUCCESS,
        workflow_name="CI",
        run_id="123",
        run_attempt=2,
        job_name="build (cuda, 3.12)",
        url="https://ci.example/1",
        artifact_url="https://ci.example/a",
        check_run_text="456",
        started_at=moment,
        completed_at=moment,
        late=False,
        tests=TestCounts(42, 0, 3, 45),
        failed_tests=(FailedTest("test_x", "a.py", "boom"),),
        failed_tests_cut=0,
        environment='{"device":"npu"}',
        untrusted=untrusted,
    )


def test_the_smallest_valid_report_is_accepted() -> None:
    body = {
        "delivery_id": "g",
        "workflow": {"status": "in_progress", "name": "CI", "run_id": 1, "job_name": "x"},
    }
    report = parse_report(json.dumps(body).encode())
    assert (report.event_type, report.run_id, report.run_attempt, report.conclusion) == ("", "1", 1, None)
    assert (report.url, report.tests, report.failed_tests, report.environment) == (None, None, (), None)


@pytest.mark.parametrize("value", [ABSENT, None, ""])
@pytest.mark.parametrize("field", ["status", "name", "run_id", "job_name"])
def test_a_missing_required_field_of_the_workflow_is_named_in_the_error(field: str, value: Any) -> None:
    assert f"workflow.{field} is missing" in _refusal(_body(**{field: value}))


@pytest.mark.parametrize("value", [ABSENT, None, ""])
def test_a_missing_delivery_or_workflow_is_named_in_the_error(value: Any) -> None:
    assert "delivery_id is missing" in _refusal(_body(top={"delivery_id": value}))
    assert "workflow is missing" in _refusal(_body(top={"workflow": value}))


@pytest.mark.parametrize("value", [None, ""])
def test_null_and_empty_text_mean_absent(value: Any) -> None:
    optional = (
        "conclusion",
        "url",
        "run_attempt",
        "check_run_id",
        "started_at",
        "test_results",
        "environment",
    )
    report = _report(**dict.fromkeys(optional, value))
    assert (report.conclusion, report.run_attempt, report.url) == (Conclusion.NONE, 1, None)
    assert (report.check_run_text, report.started_at, report.tests) == (None, None, None)


@pytest.mark.parametrize(
    "name",
    ["3", "build:linux", "a/b", "🚀 test", "x" * 256, "🚀" * 150, "\u202eabc", "tab\there", " ", "'; --"],
)
def test_fault_15_any_text_is_accepted_as_a_job_name(name: str) -> None:
    assert _report(job_name=name).job_name == name


def test_fault_15_a_job_name_of_10_000_characters_is_refused() -> None:
    assert "workflow.job_name has 10,000 characters" in _refusal(_body(job_name="x" * 10_000))


@pytest.mark.parametrize(
    ("given_id", "run_id"),
    [
        ("123", "123"),
        (123, "123"),
        (0, "0"),
        (2**70, str(2**70)),
        ("018f2b5e-7c1e-4f0e-9d4b-1f2e3d4c5b6a", "018f2b5e-7c1e-4f0e-9d4b-1f2e3d4c5b6a"),
        ("build-7", "build-7"),
    ],
)
def test_fault_16_a_run_id_is_a_number_or_any_text(given_id: Any, run_id: str) -> None:
    assert _report(run_id=given_id).run_id == run_id


@pytest.mark.parametrize("run_id", [-1, "-1", 1.5, 1.0, True, False, [], {}, "x" * 257, None, "", ABSENT])
def test_fault_16_an_invalid_run_id_is_named_in_the_error(run_id: Any) -> None:
    assert "workflow.run_id" in _refusal(_body(run_id=run_id))


@pytest.mark.parametrize(("attempt", "number"), [("1", 1), (2, 2), ("10000", 10_000), (None, 1), (ABSENT, 1)])
def test_an_attempt_may_be_a_number_or_its_text(attempt: Any, number: int) -> None:
    assert _report(run_attempt=attempt).run_attempt == number


@pytest.mark.parametrize("attempt", [0, -1, 10_001, "0", "-1", "1.0", 1.0, True, "x", "٣", "9" * 5_000, []])
def test_an_invalid_attempt_is_named_in_the_error(attempt: Any) -> None:
    assert "workflow.run_attempt" in _refusal(_body(run_attempt=attempt))


@pytest.mark.parametrize("conclusion", LEGAL)
def test_the_seven_conclusions_are_accepted(conclusion: str) -> None:
    assert _report(conclusion=conclusion).conclusion == conclusion


@pytest.mark.parametrize("conclusion", [ABSENT, None, ""])
def test_fault_17_completed_without_a_conclusion_is_accepted_and_marked(conclusion: Any) -> None:
    assert _report(conclusion=conclusion).conclusion is Conclusion.NONE


@pytest.mark.parametrize("conclusion", ["passed", "SUCCESS", "none", "stale", 1, ["success"], "x" * 10_000])
def test_fault_17_an_unknown_conclusion_is_refused_with_a_list_of_the_valid_ones(conclusion: Any) -> None:
    detail = _refusal(_body(conclusion=conclusion))
    assert "workflow.conclusion" in detail
    assert all(legal in detail for legal in LEGAL)


@pytest.mark.parametrize("conclusion", ["success", "nonsense", 3, None])
def test_fault_17_in_progress_has_no_conclusion_even_if_it_names_one(conclusion: Any) -> None:
    assert _report(status="in_progress", conclusion=conclusion).conclusion is None


@pytest.mark.parametrize("status", ["queued", "COMPLETED", 1, True])
def test_an_unknown_status_is_named_in_the_error(status: Any) -> None:
    assert "workflow.status" in _refusal(_body(status=status))


@pytest.mark.parametrize("event_type", ["nightly", "periodic"])
def test_a_self_report_must_be_completed(event_type: str) -> None:
    assert parse_report(_body(top={"event_type": event_type})).event_type == event_type
    in_progress = _body(top={"event_type": event_type}, status="in_progress")
    assert "workflow.status" in _refusal(in_progress)


SHA, OTHER_SHA = "a1" * 20, "b2" * 20
OWN = {"event_type": "nightly"}


@pytest.mark.parametrize(
    ("named", "commit"),
    [
        ({"delivery_id": SHA.upper()}, SHA),
        ({"delivery_id": SHA, "payload": {"head_sha": OTHER_SHA}}, SHA),
        ({"payload": {"head_sha": SHA, "after": OTHER_SHA}}, SHA),
        ({"payload": {"head_sha": "", "after": SHA}}, SHA),
        ({"payload": {"head_sha": {"a": 1}, "after": SHA}}, SHA),
        ({"payload": "text", "delivery_id": ABSENT}, None),
        ({"payload": [SHA]}, None),
        ({"delivery_id": f"{SHA}0"}, None),
        ({"delivery_id": SHA[:-1]}, None),
        ({"delivery_id": "0" * 40, "payload": {"after": "0" * 40}}, None),
        ({"delivery_id": f" {SHA}"}, None),
        ({"delivery_id": None, "payload": None}, None),
    ],
)
def test_fault_24_the_commit_of_a_self_report_is_a_full_sha_or_absent(
    named: dict[str, Any], commit: str | None
) -> None:
    assert parse_report(_body(top={**OWN, **named})).said_commit == commit


def test_the_workflows_commit_is_used_only_when_the_payload_names_none() -> None:
    assert parse_report(_body(top=OWN, pytorch_head_sha=SHA)).said_commit == SHA
    first = parse_report(_body(top={**OWN, "payload": {"after": OTHER_SHA}}, pytorch_head_sha=SHA))
    assert first.said_commit == OTHER_SHA


@pytest.mark.parametrize(
    ("payload", "upstream"),
    [
        ({"repository": {"full_name": "Up/stream"}}, "Up/stream"),
        ({"repository": {"full_name": "no name"}}, None),
        ({"repository": {"full_name": ["a/b"]}}, None),
        ({"repository": "Up/stream"}, None),
        ({}, None),
    ],
)
def test_a_self_report_names_its_upstream_by_full_name(payload: Any, upstream: str | None) -> None:
    assert parse_report(_body(top={**OWN, "payload": payload})).said_upstream == upstream


@pytest.mark.parametrize("event_type", ["pull_request", "push", ABSENT, "Nightly"])
def test_a_dispatched_report_ignores_commit_and_upstream_and_must_name_its_delivery(event_type: Any) -> None:
    payload = {"head_sha": SHA, "repository": {"full_name": "up/stream"}}
    report = parse_report(_body(top={"event_type": event_type, "delivery_id": SHA, "payload": payload}))
    assert (report.said_commit, report.said_upstream) == (None, None)
    assert "delivery_id" in _refusal(_body(top={"event_type": event_type, "delivery_id": ABSENT}))


@pytest.mark.parametrize("missing", [ABSENT, None, ""])
def test_a_self_report_needs_no_delivery_id(missing: Any) -> None:
    assert parse_report(_body(top={**OWN, "delivery_id": missing})).delivery_id == ""


@pytest.mark.parametrize("path", ["delivery_id", "event_type", "workflow.name", "workflow.job_name"])
@pytest.mark.parametrize("value", ["a\0b", "a\ud800b", "\udc00", 5, True, [], {"a": 1}, "x" * 257])
def test_a_text_that_cannot_be_stored_is_named_in_the_error(path: str, value: Any) -> None:
    name = path.removeprefix("workflow.")
    body = _body(top={name: value}) if name == path else _body(**{name: value})
    assert path in _refusal(body)


def test_an_invalid_character_in_the_message_of_a_failed_test_is_replaced() -> None:
    body = _body(failed_tests=[{"name": "t", "message": r"c:\ud800 " + "\udc80 🚀"}], job_name="job 🚀")
    report = parse_report(body)
    assert report.failed_tests == (FailedTest("t", None, r"c:\ud800 " + "\ufffd 🚀"),)
    assert report.job_name == "job 🚀"
    json.loads(report.untrusted)["workflow"]["failed_tests"][0]["message"].encode()


@pytest.mark.parametrize(("late", "is_late"), [(True, True), ("true", False), (1, False), (None, False)])
def test_only_the_literal_true_means_late(late: Any, is_late: bool) -> None:
    assert _report(late=late).late is is_late


def test_untrusted_keeps_every_key_except_the_payload_as_compact_json() -> None:
    body = json.loads(_body(top={"surprise": [1, {"x": "é"}]}, pytorch_head_sha="a" * 40))
    untrusted = parse_report(json.dumps(body, indent=2).encode()).untrusted
    del body["payload"]
    assert untrusted == json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def test_the_echoed_payload_is_ignored() -> None:
    payload = json.loads(example("pull_request", "opened"))
    echoes: list[Any] = [payload, None, 5, "x", [], {"workflow": {"status": "completed"}}]
    for echo in echoes:
        assert parse_report(_body(top={"payload": echo})).job_name == "build"


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"[]", b"3", b"{", b"{}", b"{}x", b'{"workflow":NaN}', b"\xef\xbb\xbf{}"),
        b'{"workflow":"\xff"}',
        b'{"payload":"\xff","workflow":{}}',
        b'{"payload":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
        b'{"workflow":' + b"[" * 200_000,
        b'{"delivery_id":"g","workflow":{"x":1e999}}',
        b'{"delivery_id":"g","workflow":{"x":' + b"9" * 5_000 + b"}}",
    ],
)
def test_a_body_that_is_not_a_valid_json_object_is_refused(body: bytes) -> None:
    assert _refusal(body)


def test_the_last_of_two_equal_keys_counts_and_only_it_is_kept() -> None:
    body = _body().replace(b'{"event_type"', b'{"delivery_id": "other", "event_type"', 1)
    report = parse_report(body)
    assert report.delivery_id == json.loads(report.untrusted)["delivery_id"] == "guid-1"


KEYS = [
    *("status", "conclusion", "name", "run_id", "run_attempt", "job_name", "url", "started_at", "late"),
    *("test_results", "failed_tests", "environment", "check_run_id", "artifact_url", "completed_at"),
]
TEXT = st.text(st.characters(exclude_categories=())) | st.sampled_from(["completed", "success", "1"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=15,
)


def _check(body: bytes) -> None:
    """Parse or refuse the body; an accepted report can be stored and read again."""
    with suppress(BadReport):
        report = parse_report(body)
        json.loads(report.untrusted.decode())
        for text in (report.delivery_id, report.workflow_name, report.run_id, report.job_name):
            assert text
            assert "\0" not in text
            assert len(text.encode()) <= 600


@settings(deadline=None)
@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_body_is_a_report_or_a_bad_report(body: bytes) -> None:
    _check(body)


@settings(deadline=None)
@given(
    st.dictionaries(st.sampled_from(KEYS) | TEXT, JSON, max_size=6), st.dictionaries(TEXT, JSON, max_size=3)
)
def test_any_values_in_the_fields_give_a_report_or_a_bad_report(
    workflow: dict[str, Any], top: dict[str, Any]
) -> None:
    _check(_body(top=top, **{key: value for key, value in workflow.items() if key != "top"}))
