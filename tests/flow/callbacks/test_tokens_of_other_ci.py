"""Faults 25 to 28 for every issuer but GitHub: which builds may report for a repository, for which run, how long."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse

from crcr.decide.oidc.identity import IssuerKind
from crcr.errors import KeysUnavailable
from crcr.receive.oidc.issuers import complete_issuer
from crcr.receive.oidc.jwks import parse_discovery
from github_sim.github import GitHub, HostileToken, WorkflowRun
from github_sim.oidc.github_actions import hostile_token
from support.downstream.callbacks import (
    BACKEND,
    CALLBACK,
    LISTED,
    bearer,
    dispatched_run,
    job_marks,
    refusal_code,
    report_outcome,
)
from support.downstream.other_cis import ALL_OTHER_CIS, IDS, ORGANIZATION, ORIGIN, SIM, OtherCi
from support.running_relay import AUDIENCE, RunningRelay


@pytest.fixture(params=ALL_OTHER_CIS)
def ci(request: pytest.FixtureRequest) -> OtherCi:
    return ALL_OTHER_CIS[request.param]


@asynccontextmanager
async def relay_with_registered_ci(
    folder: Path, ci: OtherCi
) -> AsyncIterator[tuple[RunningRelay, WorkflowRun]]:
    more: dict[str, Any] = ci.settings()
    async with dispatched_run(folder, LISTED, **more) as (relay, run):
        yield relay, run


async def report(
    relay: RunningRelay, run: WorkflowRun, token: str, *, status: str = "in_progress", **workflow: Any
) -> httpx.Response:
    """A report of another CI for the delivery that `run` answers."""
    own = {"status": status, "name": "CI", "job_name": "build", "run_id": "run-1", **workflow}
    if status == "completed":
        own.setdefault("conclusion", "success")
    body = {"event_type": "pull_request", "delivery_id": run.delivery_id, "workflow": own}
    return await relay.http.post(CALLBACK, json=body, headers=bearer(token))


async def test_a_registered_pipeline_reports_for_its_repository(tmp_path: Path, ci: OtherCi) -> None:
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        token = ci.token(relay.github)

        assert report_outcome(await report(relay, run, token, run_id=ci.run_id)) == "applied"
        assert (
            report_outcome(await report(relay, run, token, status="completed", run_id=ci.run_id)) == "applied"
        )
        assert (
            report_outcome(await report(relay, run, token, status="completed", run_id=ci.run_id)) == "repeat"
        )

        job = relay.jobs()[0]
        assert (job["downstream"], job["run_id"], job["conclusion"]) == (BACKEND, ci.run_id, "success")
        assert (job["verification"], job_marks(job)) == ("self-reported", set())
        # Only GitHub binds repository ids, whichever CI is registered.
        assert relay.rows("SELECT confirmed FROM repositories") == [{"confirmed": 1}]


async def test_fault_25_every_hostile_token_is_refused_and_stores_nothing(
    tmp_path: Path, ci: OtherCi
) -> None:
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        claims = ci.issuer_in(relay.github).claims(AUDIENCE, **ci.claims)
        for kind in HostileToken:
            token = hostile_token(ci.issuer_in(relay.github), kind, claims, relay.clock.now())
            assert (kind, *refusal_code(await report(relay, run, token, run_id=ci.run_id))) == (
                kind,
                401,
                "not_authentic",
            )

        assert relay.jobs() == relay.rows("SELECT * FROM runs") == relay.rows("SELECT * FROM builds") == []


async def test_fault_25_a_token_expires_at_the_maximum_age_of_its_issuer_kind(
    tmp_path: Path, ci: OtherCi
) -> None:
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        now = int(relay.clock.now().timestamp())
        token = ci.token(relay.github, exp=now + ci.max_age_s)
        relay.clock.advance(ci.max_age_s - 1)
        assert report_outcome(await report(relay, run, token, run_id=ci.run_id)) == "applied"
        relay.clock.advance(62)
        assert refusal_code(await report(relay, run, token, run_id=ci.run_id)) == (401, "not_authentic")


@pytest.mark.parametrize(("name", "max_age_s"), [("buildkite", 600), ("circleci", 3600), ("gitlab", 86_400)])
async def test_fault_25_a_token_with_a_later_exp_still_expires_at_the_maximum_age_of_its_kind(
    tmp_path: Path, name: str, max_age_s: int
) -> None:
    ci = ALL_OTHER_CIS[name]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        now = int(relay.clock.now().timestamp())
        token = ci.token(relay.github, exp=now + 7 * 86_400)
        relay.clock.advance(max_age_s + 61)

        answer = await report(relay, run, token, run_id=ci.run_id)
        assert refusal_code(answer) == (401, "not_authentic")
        assert f"at most {max_age_s} s" in answer.json()["error"]["detail"]


FORKS: dict[str, tuple[str, dict[str, Any], str]] = {
    "buildkite, a fork's branch": ("buildkite", {}, "'build_branch' is 'mallory:main'"),
    "buildkite, another branch": ("buildkite", {"build_branch": "feature"}, "'build_branch' is 'feature'"),
    "buildkite, no branch": ("buildkite", {"build_branch": None}, "'build_branch' is missing"),
    "buildkite, an empty branch": ("buildkite", {"build_branch": ""}, "'build_branch' is missing"),
    "gitlab, a fork's merge request": ("gitlab", {}, "no registration names this pipeline"),
    "gitlab, the parent's id and an unprotected ref": (
        "gitlab",
        {"project_id": "20617"},
        "'ref_protected' is 'false'",
    ),
    "gitlab, the job ran in the fork": (
        "gitlab",
        {"project_id": "20617", "ref_protected": "true", "job_project_id": "66601"},
        "the job ran in project '66601'",
    ),
    "gitlab, protection not told": (
        "gitlab",
        {"project_id": "20617", "ref_protected": None},
        "'ref_protected' is missing",
    ),
    "gitlab, protection as a truth value of the wrong kind": (
        "gitlab",
        {"project_id": "20617", "ref_protected": ["true"]},
        "'ref_protected' is missing",
    ),
    "circleci, a fork's change": ("circleci", {}, "vcs-ref' is 'refs/heads/pull/7'"),
    "circleci, a fork's origin on our branch": (
        "circleci",
        {"vcs_ref": "refs/heads/main"},
        "vcs-origin' is 'github.com/mallory/backend'",
    ),
    "circleci, our origin on a pull request's ref": (
        "circleci",
        {"vcs_origin": ORIGIN},
        "vcs-ref' is 'refs/heads/pull/7'",
    ),
    "circleci, a tag named like the branch": (
        "circleci",
        {"vcs_origin": ORIGIN, "vcs_ref": "refs/tags/main"},
        "vcs-ref' is 'refs/tags/main'",
    ),
    "circleci, origin not told": (
        "circleci",
        {"vcs_origin": None, "vcs_ref": "refs/heads/main"},
        "vcs-origin' is missing",
    ),
    "circleci, a person inside": (
        "circleci",
        {"vcs_origin": ORIGIN, "vcs_ref": "refs/heads/main", "ssh_rerun": True},
        "started again with SSH",
    ),
}
FORKS_WITH_AN_UNREGISTERED_ID = {"gitlab, a fork's merge request"}


@pytest.mark.parametrize("case", FORKS)
async def test_fault_27_a_build_of_a_fork_may_not_report_for_the_project(tmp_path: Path, case: str) -> None:
    name, changes, reason = FORKS[case]
    ci = ALL_OTHER_CIS[name]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        own = {key: value for key, value in ci.claims.items() if key != "vcs_origin"}
        token = ci.issuer_in(relay.github).fork_token(AUDIENCE, **{**own, **changes})
        answer = await report(relay, run, token, run_id=ci.run_id)

        unregistered = case in FORKS_WITH_AN_UNREGISTERED_ID
        assert refusal_code(answer) == ((403, "not_registered") if unregistered else (401, "not_authentic"))
        assert reason in answer.json()["error"]["detail"]
        assert relay.jobs() == relay.rows("SELECT * FROM runs") == []


async def test_fault_27_every_token_needs_the_extra_claims_that_the_operator_configured(
    tmp_path: Path,
) -> None:
    strict = {**ALL_OTHER_CIS["buildkite"].registration, "claims": {"build_source": ["api", "schedule"]}}
    ci = OtherCi("buildkite", strict, {"wanted": IDS})
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        forks = ci.issuer_in(relay.github).fork_token(AUDIENCE, build_branch="main", wanted=IDS)
        answer = await report(relay, run, forks)

        assert refusal_code(answer) == (401, "not_authentic")
        assert "'build_source' is 'webhook'; registered for api or schedule" in answer.text
        assert report_outcome(await report(relay, run, ci.token(relay.github))) == "applied"


UNREGISTERED: dict[str, tuple[str, dict[str, Any], str]] = {
    "buildkite": ("buildkite", {"wanted": ("organization_id",), "pipeline_id": "another"}, '"another"'),
    "gitlab": ("gitlab", {"project_id": "9", "job_project_id": "9"}, 'project_id = "9"'),
    "circleci": ("circleci", {"project_id": "another"}, 'project_id = "another"'),
    "generic": ("generic", {"project_id": "9"}, "ids = "),
}


FORGED_TOKENS = (
    HostileToken.STRANGERS_KEY,
    HostileToken.EXPIRED,
    HostileToken.OTHER_AUDIENCE,
    HostileToken.ALG_NONE,
)


@pytest.mark.parametrize("case", UNREGISTERED)
async def test_an_unregistered_pipeline_gets_the_ids_to_register_only_with_a_verified_token(
    tmp_path: Path, case: str
) -> None:
    name, changes, expected_hint = UNREGISTERED[case]
    ci = ALL_OTHER_CIS[name]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        claims = ci.issuer_in(relay.github).claims(AUDIENCE, **{**ci.claims, **changes})
        for kind in FORGED_TOKENS:
            forged = hostile_token(ci.issuer_in(relay.github), kind, claims, relay.clock.now())
            answer = await report(relay, run, forged, run_id=ci.run_id)
            assert (kind, *refusal_code(answer)) == (kind, 401, "not_authentic")
        answer = await report(relay, run, ci.token(relay.github, **changes), run_id=ci.run_id)

        assert refusal_code(answer) == (403, "not_registered")
        assert expected_hint in answer.json()["error"]["hint"]
        assert ci.issuer_in(relay.github).url in answer.json()["error"]["hint"]
        assert relay.jobs() == []


async def test_a_buildkite_token_without_ids_is_refused_with_a_hint_how_to_request_them(
    tmp_path: Path,
) -> None:
    ci = ALL_OTHER_CIS["buildkite"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        answer = await report(relay, run, relay.github.buildkite.token(AUDIENCE))

        assert refusal_code(answer) == (403, "not_registered")
        assert "--claim organization_id,pipeline_id" in answer.json()["error"]["hint"]


async def test_a_buildkite_pipeline_may_be_registered_by_slugs_for_tokens_without_ids(tmp_path: Path) -> None:
    slugs = {"organization_slug": "acme-inc", "pipeline_slug": "backend", "branches": ["main"]}
    ci = OtherCi("buildkite", {"issuer": f"{SIM}/_buildkite", "kind": "buildkite", **slugs})
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        assert report_outcome(await report(relay, run, ci.token(relay.github))) == "applied"


async def test_an_unconfigured_circleci_organisation_gets_a_hint_what_to_register(tmp_path: Path) -> None:
    issuer = f"https://oidc.circleci.com/org/{ORGANIZATION}"
    published = JSONResponse(GitHub(base_url=SIM).circleci.jwks())
    async with dispatched_run(tmp_path, outside={"oidc.circleci.com": published}) as (relay, run):
        claims = relay.github.circleci.claims(AUDIENCE, iss=issuer, project_id="p-1")
        forged = hostile_token(relay.github.circleci, HostileToken.STRANGERS_KEY, claims, relay.clock.now())
        assert refusal_code(await report(relay, run, forged)) == (401, "not_authentic")
        answer = await report(relay, run, relay.github.circleci.sign(claims))

        assert refusal_code(answer) == (403, "not_registered")
        hint = answer.json()["error"]["hint"]
        assert issuer in hint
        assert 'project_id = "p-1"' in hint


@pytest.mark.parametrize("name", ["gitlab", "circleci", "generic"])
async def test_fault_28_a_run_of_another_ci_may_not_report_for_another_run(tmp_path: Path, name: str) -> None:
    ci = ALL_OTHER_CIS[name]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        answer = await report(relay, run, ci.token(relay.github), run_id="somebody-elses")
        assert refusal_code(answer) == (403, "claim_mismatch")
        assert relay.jobs() == []


async def test_fault_28_the_signed_attempt_of_a_generic_issuer_is_checked_too(tmp_path: Path) -> None:
    ci = ALL_OTHER_CIS["generic"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        answer = await report(relay, run, ci.token(relay.github), run_id=ci.run_id, run_attempt=2)
        assert refusal_code(answer) == (403, "claim_mismatch")


async def test_fault_28_a_generic_token_without_the_configured_run_claim_is_not_authentic(
    tmp_path: Path,
) -> None:
    ci = ALL_OTHER_CIS["generic"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        token = ci.token(relay.github, build_id=None)
        assert refusal_code(await report(relay, run, token, run_id="anything")) == (401, "not_authentic")


async def test_fault_28_a_buildkite_build_reports_only_for_the_run_that_it_named_first(
    tmp_path: Path,
) -> None:
    ci = ALL_OTHER_CIS["buildkite"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        first, second = ci.token(relay.github), ci.token(relay.github, build_number=1418)
        assert report_outcome(await report(relay, run, first, run_id="uuid-1")) == "applied"

        assert refusal_code(await report(relay, run, first, run_id="uuid-2", job_name="x")) == (
            403,
            "claim_mismatch",
        )
        assert refusal_code(await report(relay, run, second, run_id="uuid-1", job_name="x")) == (
            403,
            "claim_mismatch",
        )
        assert refusal_code(await report(relay, run, second, status="completed", run_id="uuid-1")) == (
            403,
            "claim_mismatch",
        )
        assert report_outcome(await report(relay, run, second, run_id="uuid-2", job_name="x")) == "applied"
        assert (
            report_outcome(await report(relay, run, first, status="completed", run_id="uuid-1")) == "applied"
        )


async def test_fault_28_a_run_of_another_ci_reports_for_one_delivery_only(
    tmp_path: Path, ci: OtherCi
) -> None:
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        await relay.github.open_pr("pytorch-like/core")
        await relay.drain()
        other = relay.github.runs(BACKEND)[-1]
        token = ci.token(relay.github)
        assert report_outcome(await report(relay, run, token, run_id=ci.run_id)) == "applied"

        assert other.delivery_id != run.delivery_id
        assert report_outcome(await report(relay, other, token, run_id=ci.run_id)) == "run_bound_elsewhere"


async def test_a_registered_pipeline_of_an_unlisted_repository_is_refused(
    tmp_path: Path, ci: OtherCi
) -> None:
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        relay.write_allowlist("L2:\n  - org/other\n")
        await relay.refresh()
        answer = await report(relay, run, ci.token(relay.github), run_id=ci.run_id)
        assert refusal_code(answer) == (403, "not_allowlisted")


async def test_two_legs_with_the_same_name_are_distinguished_by_the_signed_job_id(tmp_path: Path) -> None:
    ci = ALL_OTHER_CIS["gitlab"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        first, second = ci.token(relay.github, job_id="71"), ci.token(relay.github, job_id="72")
        assert report_outcome(await report(relay, run, first, run_id=ci.run_id)) == "applied"
        answer = await report(relay, run, second, run_id=ci.run_id)

        assert answer.json()["job_name"] == "build (2)"
        assert (
            report_outcome(await report(relay, run, first, status="completed", run_id=ci.run_id)) == "applied"
        )
        assert [(job["job_name"], job["state"]) for job in relay.jobs()] == [
            ("build", "completed"),
            ("build (2)", "in_progress"),
        ]


async def test_keys_at_the_address_of_the_discovery_document_verify_a_token(tmp_path: Path) -> None:
    ci = ALL_OTHER_CIS["gitlab"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        token = ci.token(relay.github)
        assert report_outcome(await report(relay, run, token, run_id=ci.run_id)) == "applied"

        assert [call.path for call in relay.github.calls_to("GET", "/_gitlab/*")] == [
            "/_gitlab/.well-known/openid-configuration",
            "/_gitlab/oauth/discovery/keys",
        ]


async def test_a_discovery_document_of_another_issuer_is_answered_503_keys_unavailable(
    tmp_path: Path,
) -> None:
    ci = ALL_OTHER_CIS["gitlab"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        relay.github.gitlab.discovery = lambda: {  # type: ignore[method-assign]
            "issuer": "https://gitlab.example",
            "jwks_uri": relay.github.gitlab.jwks_url,
        }
        answer = await report(relay, run, ci.token(relay.github), run_id=ci.run_id)
        assert refusal_code(answer) == (503, "keys_unavailable")
        assert answer.headers["retry-after"]


async def test_fault_28_a_build_of_another_ci_cannot_take_over_a_github_run(tmp_path: Path) -> None:
    ci = ALL_OTHER_CIS["buildkite"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        await relay.github.start_job(run, "build")
        theirs = {"run_id": str(run.id), "name": run.workflow.path, "job_name": "build"}
        token = ci.token(relay.github)

        for status in ("completed", "in_progress"):
            assert refusal_code(await report(relay, run, token, status=status, **theirs)) == (
                403,
                "claim_mismatch",
            )
        assert [job["state"] for job in relay.jobs()] == ["in_progress"]
        assert report_outcome(await relay.github.complete_job(run, "build", "failure")) == "applied"


async def test_fault_28_a_build_cannot_claim_the_id_of_a_github_run_that_has_not_reported(
    tmp_path: Path,
) -> None:
    ci = ALL_OTHER_CIS["buildkite"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        token = ci.token(relay.github)
        assert refusal_code(await report(relay, run, token, run_id=str(run.id))) == (403, "claim_mismatch")
        # The build may use its own number.
        assert report_outcome(await report(relay, run, token, run_id="1417")) == "applied"
        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"


async def test_fault_28_a_signed_run_id_of_another_ci_that_equals_a_github_run_id_is_refused(
    tmp_path: Path,
) -> None:
    ci = ALL_OTHER_CIS["gitlab"]
    async with relay_with_registered_ci(tmp_path, ci) as (relay, run):
        await relay.github.start_job(run, "build")
        token = ci.token(relay.github, pipeline_id=str(run.id))
        answer = await report(
            relay, run, token, status="completed", run_id=str(run.id), name=run.workflow.path
        )
        assert refusal_code(answer) == (403, "claim_mismatch")


def test_an_https_issuer_may_not_name_a_jwks_url_without_tls() -> None:
    issuer = complete_issuer("https://gitlab.example", IssuerKind.GITLAB)
    for address, good in (("https://keys.example/jwks", True), ("http://127.0.0.1:9/jwks", False)):
        document = json.dumps({"issuer": issuer.issuer, "jwks_uri": address}).encode()
        if good:
            assert parse_discovery(document, issuer) == address
        else:
            with pytest.raises(KeysUnavailable):
                parse_discovery(document, issuer)
