"""Field values of a report: unusual names, unusual ids, missing fields; all of it through the running app."""

import json
from pathlib import Path
from typing import Any

import pytest

from support.downstream.callbacks import (
    CALLBACK,
    bearer,
    dispatched_run,
    post_report,
    refusal_code,
    report_outcome,
)
from support.running_relay import UPSTREAM, running_relay

ODD_NAMES = [
    "3",
    "build:linux",
    "a/b",
    "🚀",
    "x" * 256,
    " ",
    "%2F..",
    "' OR 1=1 --",
    "\u202egnp.exe",
    "build (2)",
]


async def test_fault_15_any_job_name_identifies_a_separate_job(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for name in ODD_NAMES:
            assert report_outcome(await relay.github.report(run, "build", job_name=name)) == "applied"
        for name in ODD_NAMES:
            assert report_outcome(await relay.github.report(run, "build", job_name=name)) == "repeat"
            closed = await relay.github.report(
                run, "build", status="completed", conclusion="success", job_name=name
            )
            assert report_outcome(closed) == "applied"

        assert {job["job_name"] for job in relay.jobs()} == set(ODD_NAMES)
        assert {job["state"] for job in relay.jobs()} == {"completed"}


async def test_fault_15_a_job_name_of_10_000_characters_is_refused_with_the_field_name(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        answer = await relay.github.report(run, "build", job_name="x" * 10_000)

        assert refusal_code(answer) == (400, "bad_report")
        assert "workflow.job_name" in answer.json()["error"]["detail"]
        assert relay.jobs() == []


RUN_IDS = [
    ("6f9d3a0e-9c1b-4a3a-8f57-0a6f2f1f9c11", (403, "claim_mismatch"), "run 6f9d3a0e"),
    (7, (403, "claim_mismatch"), "run 7"),
    ("-7", (400, "bad_report"), "workflow.run_id is negative"),
    (-7, (400, "bad_report"), "workflow.run_id is negative"),
    (None, (400, "bad_report"), "workflow.run_id is missing"),
    ("", (400, "bad_report"), "workflow.run_id is missing"),
    (1.5, (400, "bad_report"), "workflow.run_id"),
    ({"id": 1}, (400, "bad_report"), "workflow.run_id"),
]


async def test_fault_16_a_run_id_that_is_not_the_signed_one_is_refused(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for run_id, expected, named in RUN_IDS:
            answer = await relay.github.report(run, "build", run_id=run_id)
            assert (run_id, refusal_code(answer)) == (run_id, expected)
            assert named in answer.json()["error"]["detail"]

        assert relay.jobs() == []


async def test_fault_16_a_run_id_may_be_a_number_or_text(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        first = await relay.github.report(run, "build", run_id=run.id, run_attempt=1)
        second = await relay.github.report(run, "build", run_id=str(run.id), run_attempt="1")

        assert [report_outcome(first), report_outcome(second)] == ["applied", "repeat"]


async def test_fault_17_completed_without_a_conclusion_is_accepted_and_counts_as_a_failure(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for job, conclusion in (("build", None), ("test", "")):
            await relay.github.start_job(run, job)
            assert (
                report_outcome(await relay.github.report(run, job, status="completed", conclusion=conclusion))
                == "applied"
            )

        assert {(job["state"], job["conclusion"]) for job in relay.jobs()} == {("completed", "none")}
        [backend] = (await relay.http.get("/api/v1/summary")).json()["backends"]
        tally = backend["figures"]["tally"]
        assert (tally["failure"], tally["total"]) == (2, 2)


async def test_fault_17_an_unknown_conclusion_is_refused_and_a_corrected_report_is_applied(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        for conclusion in ("passed", "SUCCESS", "none", "stale", 1, {"a": 1}):
            refusal = await relay.github.report(run, "build", status="completed", conclusion=conclusion)
            assert refusal_code(refusal) == (400, "bad_report")
            assert "workflow.conclusion" in refusal.json()["error"]["detail"]
        corrected = await relay.github.report(run, "build", status="completed", conclusion="neutral")

        assert report_outcome(corrected) == "applied"


async def test_fault_17_in_progress_after_completed_changes_nothing(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build", "failure")
        before = relay.jobs()
        relay.clock.advance(10)

        assert report_outcome(await relay.github.report(run, "build")) == "repeat"
        assert relay.jobs() == before


@pytest.mark.parametrize("listed", ["ascend/pytorch", "Ascend/PyTorch"])
async def test_fault_20_repository_names_are_case_insensitive(tmp_path: Path, listed: str) -> None:
    async with running_relay(tmp_path, f"L2:\n  - {listed}\n", downstreams=("Ascend/pytorch",)) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs("Ascend/pytorch")[0]
        await relay.github.start_job(run, "build")
        answer = await relay.github.complete_job(run, "build")

        assert report_outcome(answer) == "applied"
        assert [(job["downstream"], job["state"]) for job in relay.jobs()] == [
            ("ascend/pytorch", "completed")
        ]


async def test_descriptive_fields_are_stored_and_invalid_ones_do_not_lose_the_result(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        description: dict[str, Any] = {"url": "https://ci.example/1", "environment": {"device": "npu"}}
        await post_report(relay, run, "build", "in_progress", **description)
        result: dict[str, Any] = {
            "conclusion": "failure",
            "test_results": {"passed": 42, "failed": "1", "skipped": -3, "total": 43},
            "failed_tests": [{"name": "t", "file": "a.py", "message": "m" * 1200}] * 1500,
            "url": "javascript:alert(1)",
            "artifact_url": "https://ci.example/a",
            "started_at": "yesterday",
            "check_run_id": "9-1",
            "future_field": {"deep": [1]},
        }
        assert report_outcome(await post_report(relay, run, "build", "completed", **result)) == "applied"

        [job] = relay.jobs()
        assert (job["url"], job["artifact_url"]) == ("https://ci.example/1", "https://ci.example/a")
        assert (job["tests_passed"], job["tests_failed"], job["tests_skipped"]) == (42, 1, None)
        assert (job["check_run_text"], json.loads(job["environment"])) == ("9-1", {"device": "npu"})
        stored_tests = json.loads(job["failed_tests"])
        assert (len(stored_tests), job["failed_tests_cut"], len(stored_tests[0]["message"])) == (
            1000,
            500,
            1024,
        )
        assert json.loads(job["untrusted"])["workflow"]["future_field"] == {"deep": [1]}


MALFORMED = [
    (b"", "JSON"),
    (b"[]", "object"),
    (b'{"delivery_id": "x"}', "workflow"),
    (b'{"workflow": {"status": "in_progress"}}', "delivery_id"),
    (b'{"delivery_id": 7, "workflow": {}}', "delivery_id"),
    (b'{"delivery_id": "\xff"}', "UTF-8"),
    (b'{"delivery_id": ' + b"[" * 100_000, "deep"),
    (b'{"delivery_id": "x", "workflow": {"status": "queued"}}', "workflow.status"),
    (b'{"delivery_id": "x", "workflow": {"status": "in_progress"}}', "workflow.name"),
    (b'{"delivery_id": "x", "n": ' + b"9" * 5000 + b', "workflow": {}}', "range"),
]


async def test_a_malformed_report_is_refused_with_the_field_name(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        headers = bearer(relay.github.oidc_token(run, "build"))
        for body, named in MALFORMED:
            answer = await relay.http.post(CALLBACK, content=body, headers=headers)
            assert (body[:60], *refusal_code(answer)) == (body[:60], 400, "bad_report")
            assert named in answer.json()["error"]["detail"]
