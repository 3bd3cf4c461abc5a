"""The callback's HTTP edge: which layer refuses first, the shape of its refusals, and what it never does."""

import json
from collections.abc import AsyncIterator
from itertools import product
from pathlib import Path

from github_sim.github import HostileToken
from support.downstream.callbacks import BACKEND, CALLBACK, LISTED, bearer, dispatched_run, refusal_code
from support.running_relay import UPSTREAM, WORKFLOW, running_relay

GARBAGE = b"\xff{"


async def test_the_first_failing_layer_determines_the_refusal(tmp_path: Path) -> None:
    """One report in which every layer finds an error, corrected layer by layer."""
    async with dispatched_run(tmp_path, CRCR_RATE_LIMIT_PER_MIN="1") as (relay, run):
        build = run.job("build")
        bad, wrong_event = (
            relay.github.hostile_token(HostileToken.TAMPERED, run, build),
            relay.github.oidc_token(run, build, event_name="push"),
        )
        stranger = relay.github.oidc_token(run, build, repository="stranger/repo", event_name="push")
        body = {**relay.github.ci.report_body(run, build, "completed", run_id="7"), "delivery_id": "unknown"}

        async def answer(token: str, content: bytes) -> tuple[int, str]:
            return refusal_code(await relay.http.post(CALLBACK, content=content, headers=bearer(token)))

        whole = json.dumps(body).encode()
        assert await answer(bad, GARBAGE) == (401, "not_authentic")
        assert await answer(stranger, GARBAGE) == (400, "bad_report")
        assert await answer(stranger, whole) == (403, "not_allowlisted")
        assert await answer(wrong_event, whole) == (404, "unknown_delivery")
        assert await answer(wrong_event, whole) == (429, "rate_limited")
        relay.clock.advance(61)
        known = json.dumps({**body, "delivery_id": run.delivery_id}).encode()
        assert await answer(wrong_event, known) == (403, "claim_mismatch")
        relay.clock.advance(61)
        own_run = json.dumps(relay.github.ci.report_body(run, build, "completed")).encode()
        assert await answer(wrong_event, own_run) == (403, "wrong_event")
        relay.clock.advance(61)
        token = relay.github.oidc_token(run, build)
        assert await answer(token, own_run) == (409, "no_in_progress")
        assert relay.jobs() == []


async def test_fault_32_identity_is_checked_before_the_body_is_read(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        token = relay.github.hostile_token(HostileToken.STRANGERS_KEY, run, "build")
        for content in (GARBAGE, b"", b"x" * (3 * 1024 * 1024)):
            answer = await relay.http.post(CALLBACK, content=content, headers=bearer(token))
            assert refusal_code(answer) == (401, "not_authentic")


async def test_the_callback_path_with_and_without_a_trailing_slash_answers_without_a_redirect(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for path, repeat in ((CALLBACK, False), (f"{CALLBACK}/", True)):
            body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
            headers = bearer(relay.github.oidc_token(run, "build"))
            answer = await relay.http.post(path, json=body, headers=headers)

            assert (answer.status_code, answer.history) == (200, [])
            assert answer.json() == {"ok": True, "status": "in_progress", "repeat": repeat}


async def test_methods_other_than_post_are_refused(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED) as relay:
        for method, path in product(("GET", "HEAD", "PUT", "DELETE", "OPTIONS"), (CALLBACK, f"{CALLBACK}/")):
            answer = await relay.http.request(method, path)
            assert (method, path, answer.status_code) == (method, path, 405)


async def test_a_body_over_2_mib_is_refused_with_or_without_content_length(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):

        async def drip() -> AsyncIterator[bytes]:
            for _ in range(3):
                yield b" " * (1024 * 1024)

        headers = bearer(relay.github.oidc_token(run, "build"))
        announced = await relay.http.post(CALLBACK, content=b" " * (2 * 1024 * 1024 + 1), headers=headers)
        streamed = await relay.http.post(CALLBACK, content=drip(), headers=headers)
        lying = await relay.http.post(CALLBACK, content=b"{}", headers={**headers, "content-length": "-1"})

        assert refusal_code(announced) == refusal_code(streamed) == (413, "too_large")
        assert refusal_code(lying) == (400, "bad_request")


async def test_a_large_report_under_the_size_limit_is_accepted(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
        body["payload"] = {"text": "x" * (2 * 1024 * 1024 - 4096)}
        assert (await relay.github.report(run, "build", body=body)).status_code == 200


async def test_all_refusals_have_one_json_shape_and_a_unique_request_id(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        good = bearer(relay.github.oidc_token(run, "build"))
        answers = [
            await relay.http.get(CALLBACK),
            await relay.http.post(CALLBACK),
            await relay.http.post(CALLBACK, content=GARBAGE, headers=good),
            await relay.github.complete_job(run, "build"),
            await relay.github.report(run, "build", run_id="1"),
            await relay.http.get("/no/such/page"),
        ]
        ids = set()
        for answer in answers:
            refusal = answer.json()
            assert answer.headers["content-type"] == "application/json"
            assert set(refusal) == {"ok", "error"}
            assert refusal["ok"] is False
            assert {"code", "detail", "request_id"} <= set(refusal["error"]) <= {
                "code", "detail", "hint", "request_id",
            }  # fmt: skip
            ids.add(refusal["error"]["request_id"])
        assert len(ids) == len(answers)


async def test_a_missing_or_malformed_authorization_is_not_authentic_and_hints_what_to_send(
    tmp_path: Path,
) -> None:
    odd = ["", "Bearer", "Bearer ", "Basic dXNlcjpwdw==", "token abc", "Bearer\tx", "a" * 9000]
    async with running_relay(tmp_path, LISTED) as relay:
        for headers in ({}, *({"authorization": text} for text in odd)):
            answer = await relay.http.post(CALLBACK, content=b"{}", headers=headers)
            assert (headers, *refusal_code(answer)) == (headers, 401, "not_authentic")
            assert "token" in answer.json()["error"]["hint"]


async def test_a_relay_without_a_valid_allowlist_answers_503_with_retry_after(tmp_path: Path) -> None:
    async with running_relay(tmp_path, "L2: [", downstreams=(BACKEND,)) as relay:
        run = relay.github.start_run(
            BACKEND, event="repository_dispatch", client_payload={"delivery_id": "x"}
        )
        relay.github.ci.audience = "crcr-test"
        answer = await relay.github.report(run, "build", url=f"http://relay.test{CALLBACK}")

        assert refusal_code(answer) == (503, "no_allowlist")
        assert int(answer.headers["retry-after"]) > 0


async def test_a_report_needs_no_request_to_github_once_the_keys_are_cached(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        before = len(relay.github.calls)
        await relay.github.complete_job(run, "build")
        assert len(relay.github.calls) == before


async def test_pushes_are_dispatched_and_reported_like_pull_requests(tmp_path: Path) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        relay.github.repository(BACKEND).workflows = [WORKFLOW]
        await relay.github.push(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[0]
        await relay.github.start_job(run, "build")
        await relay.github.complete_job(run, "build")

        [job] = relay.jobs()
        head = relay.github.repository(UPSTREAM).head_sha
        assert (job["event"], job["number"], job["head_sha"]) == ("push", None, head)
