import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import jwt
import pytest

from github_sim.clock import ManualClock
from github_sim.github import GitHub, HostileToken, Workflow, WorkflowRun

TokenFor = Callable[..., Awaitable[dict[str, str]]]
RELAY = {"callback_url": "http://relay.test/github/callback", "audience": "crcr-test"}
REFUSALS: dict[HostileToken, tuple[type[Exception], str]] = {
    HostileToken.ALG_NONE: (jwt.InvalidAlgorithmError, "alg value is not allowed"),
    HostileToken.HS256_PUBLIC_KEY: (jwt.InvalidAlgorithmError, "alg value is not allowed"),
    HostileToken.OTHER_AUDIENCE: (jwt.InvalidAudienceError, "Audience doesn't match"),
    HostileToken.OTHER_ISSUER: (jwt.InvalidIssuerError, "Invalid issuer"),
    HostileToken.UNKNOWN_KID: (KeyError, "never-published"),
    HostileToken.STRANGERS_KEY: (jwt.InvalidSignatureError, "Signature verification failed"),
    HostileToken.NO_KID: (KeyError, "^'kid'$"),
    HostileToken.TAMPERED: (jwt.InvalidSignatureError, "Signature verification failed"),
    HostileToken.NOT_JWT: (jwt.DecodeError, "Not enough segments"),
}
"""Why the library refuses a token. It checks neither its time, since the clock is moved, nor its length."""


@pytest.fixture
async def run(github: GitHub, api: httpx.AsyncClient, token_for: TokenFor) -> WorkflowRun:
    payload = {"event_type": "push", "delivery_id": "guid-1", "payload": {"ref": "x"}, "relay": RELAY}
    body = {"event_type": "push", "client_payload": payload}
    answer = await api.post(
        "/repos/acme/backend/dispatches", json=body, headers=await token_for("acme/backend")
    )
    assert answer.status_code == 204
    return github.runs("acme/backend")[0]


async def verified_claims(github: GitHub, api: httpx.AsyncClient, token: str) -> dict[str, Any]:
    """Verify a token with the issuer's published documents only."""
    document = (await api.get(f"{github.issuer_url}/.well-known/openid-configuration")).json()
    keys = {key["kid"]: key for key in (await api.get(document["jwks_uri"])).json()["keys"]}
    key = jwt.PyJWK(keys[jwt.get_unverified_header(token)["kid"]])
    options: jwt.types.Options = {"verify_exp": False, "verify_nbf": False, "verify_iat": False}
    issuer = github.issuer_url
    return dict(
        jwt.decode(token, key, algorithms=["RS256"], audience="crcr-test", issuer=issuer, options=options)
    )


async def test_a_job_report_has_the_body_of_the_protocol(
    github: GitHub, run: WorkflowRun, received_requests: list[httpx.Request], clock: ManualClock
) -> None:
    await github.start_job(run, "build (cuda)")
    clock.advance(60)
    failed = [{"name": "test_a", "file": "a.py", "message": "no"}]
    await github.complete_job(run, "build (cuda)", "failure", tests={"failed": 1}, failed_tests=failed)
    started, completed = (json.loads(each.content) for each in received_requests)
    assert (started["delivery_id"], started["event_type"], started["payload"]) == (
        "guid-1",
        "push",
        {"ref": "x"},
    )
    assert started["workflow"]["status"] == "in_progress"
    assert completed["workflow"]["conclusion"] == "failure"
    assert completed["workflow"]["run_id"] == str(run.id)
    assert completed["workflow"]["failed_tests"] == failed
    assert str(received_requests[0].url) == RELAY["callback_url"]


async def test_a_token_has_githubs_claims_as_strings(
    github: GitHub, api: httpx.AsyncClient, run: WorkflowRun
) -> None:
    claims = await verified_claims(github, api, github.oidc_token(run, "lint"))
    repository = github.repository("acme/backend")
    assert claims["iss"] == github.issuer_url
    assert claims["repository_id"] == str(repository.id)
    assert claims["repository_owner_id"] == str(repository.owner.id)
    assert (claims["run_id"], claims["run_attempt"]) == (str(run.id), "1")
    assert claims["check_run_id"] == str(run.job("lint").id)
    assert claims["workflow_ref"] == "acme/backend/.github/workflows/ci.yml@refs/heads/main"
    numbers = {name for name, value in claims.items() if not isinstance(value, str)}
    assert numbers == {"iat", "nbf", "exp"}


async def test_an_enterprise_server_signs_no_check_run(github: GitHub, run: WorkflowRun) -> None:
    github.issuer.signs_check_run_id = False
    claims = jwt.decode(github.oidc_token(run, "lint"), options={"verify_signature": False})
    assert "check_run_id" not in claims


async def test_claims_can_be_replaced_and_omitted(github: GitHub, run: WorkflowRun) -> None:
    token = github.oidc_token(run, "lint", audience="other", run_id="9", sha=None)
    claims = jwt.decode(token, options={"verify_signature": False})
    assert (claims["aud"], claims["run_id"], "sha" in claims) == ("other", "9", False)


async def test_keys_rotate_and_the_old_key_can_be_retired(
    github: GitHub, api: httpx.AsyncClient, run: WorkflowRun
) -> None:
    old = github.oidc_token(run, "lint")
    github.issuer.rotate()
    assert await verified_claims(github, api, old)
    assert await verified_claims(github, api, github.oidc_token(run, "lint"))
    github.issuer.rotate(retire_old=True)
    keys = (await api.get(github.jwks_url)).json()["keys"]
    assert jwt.get_unverified_header(old)["kid"] not in {each["kid"] for each in keys}


@pytest.mark.parametrize("kind", REFUSALS)
async def test_a_hostile_token_does_not_verify_for_the_reason_of_its_kind(
    github: GitHub, api: httpx.AsyncClient, run: WorkflowRun, kind: HostileToken
) -> None:
    refusal, message = REFUSALS[kind]
    with pytest.raises(refusal, match=message) as raised:
        await verified_claims(github, api, github.hostile_token(kind, run, "lint"))
    assert raised.type is refusal


@pytest.mark.parametrize("kind", [None, *(kind for kind in HostileToken if kind not in REFUSALS)])
async def test_a_hostile_token_that_verifies_is_out_of_time_or_too_long(
    github: GitHub, api: httpx.AsyncClient, run: WorkflowRun, clock: ManualClock, kind: HostileToken | None
) -> None:
    token = github.hostile_token(kind, run, "lint") if kind else github.oidc_token(run, "lint")
    claims = await verified_claims(github, api, token)
    now = clock.now().timestamp()
    flaws = {
        HostileToken.EXPIRED: claims["exp"] <= now,
        HostileToken.NOT_YET_VALID: claims["nbf"] > now,
        HostileToken.OVERSIZED: len(token) > 200_000,
    }
    assert [flaw for flaw, found in flaws.items() if found] == ([kind] if kind else [])


async def test_a_rerun_is_a_new_attempt_with_new_check_runs(github: GitHub, run: WorkflowRun) -> None:
    before = run.job("lint").id
    github.ci.cancel(run)
    await github.rerun(run)
    assert (run.attempt, run.status, run.job("lint").id == before) == (2, "queued", False)
    claims = jwt.decode(github.oidc_token(run, "lint"), options={"verify_signature": False})
    assert claims["run_attempt"] == "2"


async def test_rerunning_failed_jobs_keeps_the_successful_ones(github: GitHub, run: WorkflowRun) -> None:
    for name, conclusion in (("lint", "success"), ("build (cpu)", "failure"), ("build (cuda)", "success")):
        github.ci.complete(run, run.job(name), conclusion)
    kept = run.job("lint").id
    await github.rerun(run, failed_only=True)
    assert run.job("lint").id == kept
    assert run.job("build (cpu)").status == "queued"


async def test_cancelling_reports_the_started_jobs(
    github: GitHub, run: WorkflowRun, received_requests: list[httpx.Request]
) -> None:
    await github.start_job(run, "lint")
    await github.cancel(run)
    cancelled_job = json.loads(received_requests[-1].content)["workflow"]
    assert (len(received_requests), cancelled_job["job_name"], cancelled_job["conclusion"]) == (
        2,
        "lint",
        "cancelled",
    )
    assert run.conclusion == "cancelled"


async def test_the_response_of_the_relay_is_logged(
    github: GitHub, run: WorkflowRun, answers: list[httpx.Response]
) -> None:
    answers.append(httpx.Response(409, json={"ok": False, "error": {"code": "no_in_progress"}}))
    answer = await github.complete_job(run, "lint")
    assert answer.status_code == 409
    entry = github.callback_log[-1]
    assert (entry.repository, entry.job, entry.status, entry.code) == (
        "acme/backend",
        "lint",
        409,
        "no_in_progress",
    )


async def test_a_nightly_run_starts_without_a_dispatch(
    github: GitHub, received_requests: list[httpx.Request]
) -> None:
    github.ci.callback_url = RELAY["callback_url"]
    github.repository("acme/backend").workflows[:] = [Workflow(listens=("schedule",))]
    nightly = github.start_run("acme/backend", event="schedule")
    body = {"event_type": "nightly", "delivery_id": "a" * 40, "workflow": {"status": "completed"}}
    await github.report(nightly, "build", body=body)
    assert json.loads(received_requests[-1].content) == body
    claims = jwt.decode(github.oidc_token(nightly, "build"), options={"verify_signature": False})
    assert claims["event_name"] == "schedule"
