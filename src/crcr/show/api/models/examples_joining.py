"""Examples for the API's description: a report that was refused, and one that was tried out. See `api_examples`."""

from typing import Any

Json = dict[str, Any]

_AT = "2026-05-04T12:00:00Z"

REFUSALS: Json = {
    "upstream": "owner/repo",
    "backend": "org/backend",
    "refusals": [
        {
            "refusal_id": 31,
            "at": _AT,
            "code": "claim_mismatch",
            "detail": "the token is for run 987654321 attempt 1, the report for run 987654320 attempt 1",
            "hint": "report from the run that did the work, with its own run_id and run_attempt",
            "delivery": "3f1c6e2a-47a5-11f1-8000-000000000000",
            "delivery_known": True,
            "run_id": "987654320",
            "workflow_name": "CI",
            "job_name": "build",
            "settled": False,
            "meaning": "The token belongs to another run than the report",
        }
    ],
}
SANDBOX: Json = {
    "jobs": [
        {
            "repository_id": 4242,
            "repository": "newcomer/backend",
            "private": False,
            "event_type": "pull_request",
            "workflow_name": "CI",
            "run_id": "987654321",
            "attempt": 1,
            "job_name": "build",
            "state": "completed",
            "conclusion": "failure",
            "late": False,
            "started_at": _AT,
            "completed_at": _AT,
            "reported_at": _AT,
            "tests_passed": 41,
            "tests_failed": 1,
            "tests_skipped": 3,
            "tests_total": 45,
            "failed_tests": [
                {"name": "test_attention", "file": "test_ops.py", "message": "AssertionError: 1.0 != 2.0"}
            ],
            "failed_tests_more": 0,
        }
    ],
    "next": "WzE3Nzc4OTYwMDAsMV0",
}
