"""Examples for the API's description: one small story across several responses.

No field is null in them, because FastAPI drops nulls from a description. A test validates them against their models.
"""

from typing import Any

from crcr.decide.views.backend import JobKey
from crcr.show.urls.job_tokens import encode_job_token

Json = dict[str, Any]

_AT = "2026-05-04T12:00:00Z"
_NEXT = "WzE3Nzc4OTYwMDAsMV0"
_SHA = "4b825dc642cb6eb9a060e54bf8d69288fbee4904"
_GUID = "3f1c6e2a-47a5-11f1-8000-000000000000"
_TALLY: Json = {
    "pass_rate": 0.9375,
    "success": 15,
    "failure": 1,
    "timed_out": 0,
    "running": 2,
    "other": 0,
    "decided": 16,
    "total": 18,
}
_TIMES: Json = {"known": 16, "average_s": 41.5, "p50_s": 37.5, "p95_s": 112.0}
_LAST: Json = {
    "state": "completed",
    "conclusion": "success",
    "job_name": "build",
    "at": _AT,
    "counted": "success",
}
_FIGURES: Json = {
    "tally": _TALLY,
    "left_out": {"superseded": 3, "earlier": 1},
    "queue": _TIMES,
    "execution": _TIMES,
    "sent": 9,
    "average_delay_s": 0.21,
    "last_result": _LAST,
    "parts": [{"at": _AT, "tally": _TALLY}],
}
_PART: Json = {"at": _AT, "tally": _TALLY, "queue": _TIMES, "execution": _TIMES, "sent": 9}
_BACKEND: Json = {
    "name": "org/backend",
    "level": "L3",
    "device": "npu",
    "oncalls": ["ada"],
    "hardware": "one accelerator",
    "name_only": False,
    "probe": False,
    "hidden": False,
    "suspended": False,
    "silent": False,
    "never_reported": False,
    "figures": _FIGURES,
    "sent": 9,
    "waiting": 0,
    "parked": 0,
    "last_sent_at": _AT,
    "alarm": "its repository id has changed",
    "demotion": "silent",
}
_WORKFLOW = ".github/workflows/ci.yml"
_KEY: Json = {
    "delivery": _GUID,
    "workflow": _WORKFLOW,
    "run_id": "987654321",
    "attempt": 1,
    "job_name": "build",
}
_JOB: Json = {
    **_KEY,
    "token": encode_job_token(JobKey(**_KEY)),
    "downstream": "org/backend",
    "workflow_name": "CI",
    "state": "completed",
    "conclusion": "success",
    "expected": "success",
    "counted": "success",
    "ended": "success",
    "disputed_conclusion": "failure",
    "marks": ["disputed"],
    "event": "pull_request",
    "number": 7,
    "head_sha": _SHA,
    "url": "https://github.com/org/backend/actions/runs/987654321",
    "artifact_url": "https://artifacts.example/987654321",
    "started_at": _AT,
    "completed_at": _AT,
    "queue_s": 12.5,
    "execution_s": 41.5,
    "tests_passed": 42,
    "tests_failed": 0,
    "tests_skipped": 3,
    "tests_total": 45,
    "verification": "confirmed",
    "github_conclusion": "success",
}
VERDICT: dict[str, object] = {
    "kind": "pre-existing",
    "confidence": "high",
    "sentence": "The base failed alike 3 times in a row, last at the commit that this was built on.",
    "evidence": [
        {
            "kind": "base",
            "url": "/crcr/commit/4f0a5f8c1d2e3b4a5968778695a4b3c2d1e0f9a8?upstream=org/framework",
            "text": "base failed alike, 14 Nov 09:12 UTC",
        }
    ],
    "by": "rules",
    "was": "new",
}
_DISPATCH: Json = {
    "downstream": "org/backend",
    "level": "L3",
    "state": "sent",
    "reason": "ready for review",
    "test": False,
    "unsure": False,
    "created_at": _AT,
    "sent_at": _AT,
    "superseded_at": _AT,
    "answer": "running",
    "trimmed": ["pull_request.body"],
}
_COLUMN: Json = {"workflow": _WORKFLOW, "workflow_name": "CI", "job_name": "build"}

ERROR: Json = {
    "ok": False,
    "error": {
        "code": "not_found",
        "detail": "org/other is not a backend of this upstream",
        "hint": "see /api/v1/allowlist",
        "request_id": "0f8fad5bd9cb469fa16570867728950e",
    },
}
_REASON: Json = {
    "code": "held_back",
    "state": "amber",
    "text": "Backend checks of 12 commits are held back by GitHub's rate limit until 05:35 UTC (requests per hour).",
    "effects": "backend_checks",
    "number": 12,
    "since": _AT,
    "until": _AT,
}
HEALTH: Json = {
    "upstream": "owner/repo",
    "at": _AT,
    "state": "amber",
    "reasons": [_REASON],
    "held": [
        {
            "effects": "backend_checks",
            "number": 12,
            "held_by": "hour",
            "until": _AT,
            "text": _REASON["text"],
        }
    ],
}
IN_TREE: Json = {
    "passed": 481,
    "failed": 1,
    "running": 12,
    "failing": [
        {
            "name": "linux-jammy-py3.12 / test (default, 2, 5)",
            "url": "https://github.com/owner/repo/actions/runs/17200000001/job/48100000002",
            "conclusion": "failure",
            "on_base": "passed",
            "since": {"sha": "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00", "number": 1234},
        }
    ],
}
SUMMARY: Json = {
    "upstream": "owner/repo",
    "span": "14d",
    "kind": "pull_request",
    "at": _AT,
    "cursor": 1234,
    "ingests": False,
    "history": "database",
    "health": {
        "state": "amber",
        "reasons": [_REASON],
        "deliveries": 31,
        "last_delivery_at": _AT,
        "last_result_at": _AT,
        "waiting": 0,
        "parked": 0,
        "lag_s": 0.4,
        "paused_at": _AT,
        "probes": [],
        "installed": True,
    },
    "allowlist": {
        "version": 4,
        "source": "allowlist.yml",
        "read_at": _AT,
        "newest_is_bad": False,
        "problems": [],
    },
    "in_tree": {
        "branch": "main",
        "commits": [
            {"sha": _SHA, "pushed_at": _AT, "passed": 481, "failed": 1, "running": 12, "outcome": "failed"}
        ],
    },
    "attention": {
        "items": [
            {
                "kind": "backend_red",
                "text": "test (py3.12) fails on main",
                "since": _AT,
                "oncalls": ["ada"],
                "backend": "org/backend",
                "level": "L4",
                "number": 7,
                "sha": _SHA,
                "branch": "main",
            }
        ],
        "blocked_pulls": 0,
        "more_backends": 0,
        "branch": "main",
    },
    "tally": _TALLY,
    "backends": [_BACKEND],
    "matching": 1,
    "next": None,
}
BACKEND: Json = {
    "upstream": "owner/repo",
    "span": "14d",
    "kind": "pull_request",
    "at": _AT,
    "cursor": 1234,
    "ingests": False,
    "history": "database",
    "backend": {**_BACKEND, "figures": {**_FIGURES, "parts": [{**_PART, "average_delay_s": 0.21}]}},
    "columns": [_COLUMN],
    "columns_left_out": 0,
    "rows": [
        {
            "key": "d1",
            "delivery": _GUID,
            "event": "pull_request",
            "action": "synchronize",
            "number": 7,
            "head_sha": _SHA,
            "at": _AT,
            "title": "Fuse it",
            "author": "grace",
            "ref": "refs/pull/7/head",
            "superseded": True,
            "test": False,
            "dispatch": _DISPATCH,
            "place": {"standing": "base", "branch": "main"},
            "cells": [_JOB],
        }
    ],
    "searched": 1,
    "next": _NEXT,
    "jobs": [{"column": _COLUMN, "tally": _TALLY, "execution_s": 41.5}],
    "jobs_left_out": 0,
    "failures": [],
    "causes": [],
    "levels": [{"at": _AT, "level": "L3", "version": 4}],
}
BADGE: Json = {
    "name": "org/backend",
    "kind": "push",
    "span": "14d",
    "state": "success",
    "stale": False,
    "tally": _TALLY,
}
JOBS: Json = {"jobs": [{**_JOB, "verdict": VERDICT}], "next": _NEXT}
DELIVERIES: Json = {
    "deliveries": [
        {
            "guid": _GUID,
            "event": "pull_request",
            "action": "synchronize",
            "state": "superseded",
            "reason": "a newer head is known",
            "source": "webhook",
            "number": 7,
            "head_sha": _SHA,
            "ref": "refs/pull/7/head",
            "received_at": _AT,
            "body_bytes": 21034,
            "dispatches": [_DISPATCH],
        }
    ],
    "next": _NEXT,
}
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

FAILING: dict[str, object] = {
    "items": [
        {
            "backend": "org/backend",
            "workflow": ".github/workflows/ci.yml",
            "job": "test (3.12)",
            "since": _AT,
            "failures_in_a_row": 7,
            "first_bad": "4f0a5f8c1d2e3b4a5968778695a4b3c2d1e0f9a8",
            "last_good": "9b1c2d3e4f5061728394a5b6c7d8e9f001122334",
            "fingerprint": "7d3f0c5ab1e24986",
            "oncalls": ["ada"],
            "known": {
                "url": "https://github.com/org/backend/issues/12",
                "state": "open",
                "by": "grace",
                "until": _AT,
            },
            "sample": "NotImplementedError: aten::foo",
            "last_bad": "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
            "last_failed_at": _AT,
        }
    ],
    "next": _NEXT,
}
JOB_CULPRITS: Json = {
    "backend": "org/backend",
    "job": "test (3.12)",
    "range": {
        "good": "9b1c2d3e4f5061728394a5b6c7d8e9f001122334",
        "bad": "4f0a5f8c1d2e3b4a5968778695a4b3c2d1e0f9a8",
        "commits": 12,
    },
    "candidates": [
        {
            "sha": "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
            "number": 1234,
            "score": 0.815,
            "reasons": [
                "#1234 was merged while this failed on it",
                "one of 10 changes since the last pass: 3 before the first failing commit",
            ],
        }
    ],
    "bisection": 17,
}
_CULPRIT: Json = {
    "sha": "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
    "number": 1234,
    "title": "Rename an operator (#1234)",
    "finding": "bad",
    "is_candidate": True,
}
BISECTION: Json = {
    "id": 17,
    "backend": "org/backend",
    "workflow": ".github/workflows/ci.yml",
    "job": "test (3.12)",
    "branch": "main",
    "state": "finished",
    "outcome": "found",
    "reason": "",
    "good": "9b1c2d3e4f5061728394a5b6c7d8e9f001122334",
    "bad": "4f0a5f8c1d2e3b4a5968778695a4b3c2d1e0f9a8",
    "commits": 12,
    "left": 1,
    "left_good": "9b1c2d3e4f5061728394a5b6c7d8e9f001122334",
    "left_bad": "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
    "culprit": _CULPRIT,
    "runs": 6,
    "most_runs": 12,
    "flake_rate": 0.01,
    "who": "grace",
    "created_at": _AT,
    "ends_at": _AT,
    "finished_at": _AT,
    "sentence": "c0ffee00c0 (#1234) broke it: the job fails there and passes at 9b1c2d3e4f before it.",
}
BISECTIONS: Json = {"items": [BISECTION], "next": _NEXT}
BISECTION_DETAIL: Json = {
    "bisection": BISECTION,
    "commits": [_CULPRIT],
    "runs": [
        {
            "number": 1,
            "sha": "c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
            "delivery": _GUID,
            "result": "failed",
            "sample": "NotImplementedError: aten::foo",
            "url": "https://github.com/org/backend/actions/runs/987654321",
            "sent_at": _AT,
            "finished_at": _AT,
        }
    ],
}
_SEEN: Json = {"sha": _SHA, "number": 7, "at": _AT}
_GROUP: Json = {
    "fingerprint": "5f0c1e9ab2d34c77",
    "sample": "NotImplementedError: aten::foo",
    "backends": ["org/backend", "org/other"],
    "jobs": ["org/backend:build"],
    "first_seen": _SEEN,
    "last_seen": _SEEN,
    "count": 12,
    "known": {"url": "https://github.com/owner/repo/issues/12", "state": "open", "by": "grace", "until": _AT},
}
FAILURES: Json = {"items": [_GROUP], "next": _NEXT}
FAILURE_GROUP: Json = {
    "group": _GROUP,
    "is_open": True,
    "failures": [
        {
            **_KEY,
            "token": encode_job_token(JobKey(**_KEY)),
            "downstream": "org/backend",
            "event": "pull_request",
            "number": 7,
            "head_sha": _SHA,
            "at": _AT,
            "ended": "failure",
            "passed_at": _AT,
            "verdict": "pre-existing",
            "confidence": "high",
        }
    ],
    "next": _NEXT,
}

_BACKEND_CELL: Json = {
    "backend": "org/backend",
    "level": "L4",
    "state": "failed",
    "failed": 1,
    "running": 0,
    "passed": 13,
    "other": 0,
}
PULL_LIST: Json = {
    "items": [
        {
            "number": 4711,
            "title": "Fuse scatter kernels",
            "author": "ada",
            "draft": False,
            "state": "open",
            "opened_at": _AT,
            "updated_at": _AT,
            "base_ref": "main",
            "head_sha": _SHA,
            "delivery": _GUID,
            "gate": "failed",
            "verdict": "new",
            "waits_for": "org/backend failed (build): new",
            "backends": [_BACKEND_CELL],
        }
    ],
    "next": _NEXT,
}
COMMIT_LIST: Json = {
    "items": [
        {
            "sha": _SHA,
            "title": "Fuse scatter kernels (#4711)",
            "number": 4711,
            "author": "ada",
            "pushed_at": _AT,
            "delivery": _GUID,
            "in_tree": {"passed": 180, "failed": 1, "running": 2},
            "backends": [_BACKEND_CELL],
        }
    ],
    "next": _NEXT,
    "branch": "main",
}
