"""Text from callers is data, in records, responses and the log; and no secret is in any of them."""

import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest
import structlog

from crcr import log
from crcr.record.store.database import Unit
from github_sim.github import HostileToken
from support.downstream.callbacks import (
    BACKEND,
    FailingDatabase,
    callbacks_on_outage,
    callbacks_on_store,
    dispatched_run,
    post_report,
    refusal_code,
    report_outcome,
)
from support.running_relay import UPSTREAM, RunningRelay

HOSTILE_TEXTS = [
    "<script>alert(1)</script>",
    "javascript:alert(1)",
    "'; DROP TABLE jobs; --",
    'x"}\n{"level":"error","event":"forged"}',
    "\x1b[31mred\x07\r\nforged",
    "\u202eevil\u2066",
    "=cmd|' /C calc'!A0",
    "{{7*7}}${7*7}%s%n",
]


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """The relay's log as an operator configures it, in JSON at level debug."""
    stream, root, level = io.StringIO(), logging.getLogger(), logging.getLogger().level
    log.configure("json", "debug", stream)
    yield stream
    for handler in [handler for handler in root.handlers if isinstance(handler, log._Handler)]:
        root.removeHandler(handler)
    root.setLevel(level)
    structlog.reset_defaults()


def hostile_fields(text: str) -> dict[str, Any]:
    return {
        "name": text[:200],
        "url": text,
        "artifact_url": text,
        "check_run_id": text[:200],
        "started_at": text,
        "test_results": {"passed": text},
        "failed_tests": [{"name": text, "file": text, "message": text}],
        "environment": {text: text},
        "unknown": {text: [text]},
    }


async def test_fault_24_the_callers_commit_and_pull_request_do_not_override_the_dispatch(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        [dispatch] = relay.rows("SELECT event, number, head_sha, level FROM dispatches")
        body = relay.github.ci.report_body(
            run, run.job("build"), "in_progress", pytorch_head_sha="e" * 40, number=999, level="L4"
        )
        body |= {
            "event_type": "push",
            "payload": {"number": 999, "pull_request": {"head": {"sha": "e" * 40}, "labels": ["x"]}},
            "head_sha": "e" * 40,
            "trusted": {"downstream_repo_level": "L4"},
        }
        assert report_outcome(await relay.github.report(run, "build", body=body)) == "applied"

        [job] = relay.jobs()
        assert {name: job[name] for name in dispatch} == dispatch
        assert json.loads(job["trusted"])["downstream_repo_level"] == "L2"


async def test_fault_29_hostile_text_in_every_field_is_stored_as_data(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for text in HOSTILE_TEXTS:
            fields = {**hostile_fields(text), "job_name": text}
            assert (
                report_outcome(await post_report(relay, run, "build", "in_progress", **fields)) == "applied"
            )
            closed = await post_report(relay, run, "build", "completed", conclusion="failure", **fields)
            assert report_outcome(closed) == "applied"

        jobs = {job["job_name"]: job for job in relay.jobs()}
        assert set(jobs) == set(HOSTILE_TEXTS)
        for text, job in jobs.items():
            assert (job["workflow_name"], job["check_run_text"]) == (text, text)
            assert (job["url"], job["artifact_url"], job["tests_passed"]) == (None, None, None)
            assert json.loads(job["failed_tests"]) == [{"name": text, "file": text, "message": text}]
            assert json.loads(job["environment"]) == {text: text}
            assert json.loads(job["untrusted"])["workflow"]["unknown"] == {text: [text]}


async def test_fault_29_hostile_text_is_escaped_on_pages(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        text = '<script>alert(1)</script>"><img src=x onerror=alert(1)>'
        fields = {**hostile_fields(text), "job_name": text}
        await post_report(relay, run, "build", "in_progress", **fields)
        await post_report(relay, run, "build", "completed", conclusion="failure", **fields)
        for path in ("/crcr", f"/crcr/{BACKEND}"):
            page = await relay.http.get(path)
            assert page.status_code == 200
            assert "<script>alert" not in page.text
            assert "<img src=x" not in page.text


async def test_fault_29_a_string_of_a_megabyte_is_refused_with_its_field_name_or_truncated(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        megabyte = "x" * 1_000_000
        body = relay.github.ci.report_body(run, run.job("build"), "completed")
        for field in ("job_name", "name", "run_id", "status", "conclusion"):
            oversized = {**body, "workflow": {**body["workflow"], field: megabyte}}
            answer = await relay.github.report(run, "build", body=oversized)
            assert refusal_code(answer) == (400, "bad_report")
            assert f"workflow.{field}" in answer.json()["error"]["detail"]
            assert len(answer.content) < 2_000
        started = await post_report(
            relay, run, "build", "in_progress", url=megabyte, environment={"e": megabyte}
        )
        completed = await post_report(relay, run, "build", "completed", failed_tests=[megabyte])

        assert [report_outcome(started), report_outcome(completed)] == ["applied", "applied"]
        [job] = relay.jobs()
        assert (len(json.loads(job["failed_tests"])[0]["name"]), job["environment"]) == (1024, None)


async def test_fault_29_hostile_text_cannot_forge_a_log_line_or_a_response(
    tmp_path: Path, lines: io.StringIO
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
        answers = []
        for text in HOSTILE_TEXTS:
            answers += [
                await post_report(relay, run, "build", "completed", conclusion="success", job_name=text),
                await post_report(relay, run, "build", "in_progress", run_id=text),
                await relay.github.report(run, "build", body={**body, "delivery_id": text}),
                await post_report(relay, run, "build", text),
            ]

    codes = ["no_in_progress", "claim_mismatch", "unknown_delivery"]
    assert [refusal_code(answer)[1] for answer in answers] == [*codes, "bad_report"] * len(HOSTILE_TEXTS)
    log_lines = lines.getvalue().splitlines()
    assert all(line.isprintable() for line in log_lines)
    events = [json.loads(line) for line in log_lines]
    assert "forged" not in {line["event"] for line in events}
    assert [line["code"] for line in events if line["event"] == "report_refused"] == codes * len(
        HOSTILE_TEXTS
    )


class LeakingDatabase(FailingDatabase):
    """A store whose driver quotes secrets in its error."""

    def __init__(self, inner: Any, secrets: list[str]) -> None:
        super().__init__(inner)
        self._secrets = secrets

    async def write(self, unit: Unit[Any], *, lane: str | None = None) -> NoReturn:
        raise RuntimeError(f"cannot store: {' '.join(self._secrets)}")


async def open_one_more(relay: RunningRelay) -> None:
    await relay.github.open_pr(UPSTREAM)
    await relay.pass_time(3000)


async def trigger_all_failures(relay: RunningRelay) -> list[str]:
    """Cause every kind of failure that handles a secret; return the response texts."""
    github = relay.github
    run = github.runs(BACKEND)[0]
    responses = [
        await github.report(run, "build", token=github.hostile_token(kind, run, "build"))
        for kind in HostileToken
    ]
    responses.append(await post_report(relay, run, "build", "completed", conclusion="success"))
    responses.append(await github.report(run, "build", body=b"{", token=github.oidc_token(run, "build")))
    for status, message in ((401, "Bad credentials"), (500, "Oops"), (403, "Resource not accessible")):
        github.faults.answer(status, times=2, message=message)
        await open_one_more(relay)
    github.faults.malformed(times=2)
    await open_one_more(relay)
    github.faults.lose_answer(times=2)
    await open_one_more(relay)
    github.faults.clear()
    wrong = {"x-hub-signature-256": f"sha256={'0' * 64}", "x-github-event": "push", "x-github-delivery": "g"}
    responses.append(await relay.http.post("/github/webhook", content=b"{}", headers=wrong))
    return [answer.text for answer in responses]


async def test_fault_31_no_secret_appears_in_a_log_line_or_a_response(
    tmp_path: Path, lines: io.StringIO
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        answers = await trigger_all_failures(relay)
        oidc_token = relay.github.oidc_token(run, "build")
        async with callbacks_on_outage(relay) as (store, http):
            store.writes_to_fail = 1
            answers.append((await post_report(relay, run, "build", "in_progress", http=http)).text)
        secrets = [
            relay.github.webhook_secret,
            relay.github.private_key_pem.splitlines()[1],
            oidc_token.split(".")[1],
            *(token for token in relay.github.world.tokens),
        ]
        errors = " ".join(str(row["last_error"]) for row in relay.rows("SELECT last_error FROM effects"))
        everything = "\n".join([lines.getvalue(), errors, *answers])

    assert len(secrets) > 3
    assert "ghs_" not in everything
    assert "PRIVATE KEY" not in everything
    assert not [secret for secret in secrets if secret in everything]
    assert "effect_retried" in everything


async def test_fault_31_a_crash_response_has_no_details_and_its_log_no_secret(
    tmp_path: Path, lines: io.StringIO
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        token = relay.github.oidc_token(run, "build")
        secrets = [
            f"Bearer {token}",
            f"token={relay.github.webhook_secret}",
            "ghs_16C7e42F292c6912E7710c838347Ae178B4a",
        ]
        secrets.append(relay.github.private_key_pem)
        async with callbacks_on_store(relay, LeakingDatabase(relay.services.database, secrets)) as http:
            answer = await post_report(relay, run, "build", "in_progress", http=http)

        assert refusal_code(answer) == (500, "internal")
        assert set(answer.json()["error"]) == {"code", "detail", "request_id"}
        assert [str(crash)[:12] for crash in relay.crashes] == ["cannot store"]
        relay.crashes.clear()
        [crash] = [json.loads(x) for x in lines.getvalue().splitlines() if "request_crashed" in x]
        assert crash["request_id"] == answer.json()["error"]["request_id"]
        assert "RuntimeError: cannot store" in crash["exception"]
        for secret in (
            token.split(".")[1],
            relay.github.webhook_secret,
            "16C7e42F",
            relay.github.private_key_pem[200:240],
        ):
            assert secret not in lines.getvalue() + answer.text
