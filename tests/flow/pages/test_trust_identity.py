"""Identities: tokens with one fault each, rotated keys, and renamed repositories."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
from starlette.responses import JSONResponse

from github_sim.github import JWKS_PATH, GitHub, HostileToken, Match, WorkflowRun
from support.downstream.callbacks import (
    BACKEND,
    CALLBACK,
    LISTED,
    bearer,
    client_from,
    dispatched_run,
    post_report,
    refusal_code,
    report_outcome,
)
from support.running_relay import AUDIENCE, UPSTREAM, WORKFLOW, RunningRelay, repo, running_relay

JWKS = "*/.well-known/jwks"


@asynccontextmanager
async def from_address(relay: RunningRelay, address: str) -> AsyncIterator[httpx.AsyncClient]:
    async with client_from(relay.app, address) as http:
        yield http


async def post_with_token(http: httpx.AsyncClient, token: str, **headers: str) -> httpx.Response:
    return await http.post(CALLBACK, content=b"{}", headers={**bearer(token), **headers})


async def test_fault_25_every_hostile_token_is_refused_and_records_nothing(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for kind in HostileToken:
            token = relay.github.hostile_token(kind, run, "build")
            answer = await relay.github.report(run, "build", token=token)
            assert (kind, *refusal_code(answer)) == (kind, 401, "not_authentic")
            assert answer.json()["error"]["hint"]

        assert relay.jobs() == relay.rows("SELECT * FROM runs") == []
        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"


async def test_fault_25_a_token_is_refused_once_it_is_ten_minutes_old(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        now = int(relay.clock.now().timestamp())
        token = relay.github.oidc_token(run, "build", exp=now + 6 * 3600)
        assert report_outcome(await relay.github.report(run, "build", token=token)) == "applied"
        relay.clock.advance(11 * 60)

        answer = await relay.github.report(run, "build", token=token)
        assert refusal_code(answer) == (401, "not_authentic")


async def test_fault_25_after_30_failed_authentications_only_that_address_is_rate_limited(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        bad = relay.github.hostile_token(HostileToken.TAMPERED, run, "build")
        async with from_address(relay, "192.0.2.66") as guesser, from_address(relay, "192.0.2.7") as other:
            codes = [refusal_code(await post_with_token(guesser, bad))[0] for _ in range(31)]
            limited = await post_with_token(guesser, bad)

            assert codes == [401] * 30 + [429]
            assert int(limited.headers["retry-after"]) == 60
            assert refusal_code(await post_with_token(other, bad)) == (401, "not_authentic")
            assert (
                report_outcome(await post_report(relay, run, "build", "in_progress", http=other)) == "applied"
            )
            relay.clock.advance(60)
            assert (
                report_outcome(await post_report(relay, run, "build", "in_progress", http=guesser))
                == "repeat"
            )


async def test_fault_25_x_forwarded_for_counts_only_when_sent_by_a_trusted_proxy(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, CRCR_TRUSTED_PROXIES="198.51.100.0/24") as (relay, run):
        bad = relay.github.hostile_token(HostileToken.TAMPERED, run, "build")
        async with from_address(relay, "192.0.2.66") as guesser, from_address(relay, "198.51.100.1") as proxy:
            forged = [
                refusal_code(await post_with_token(guesser, bad, **{"x-forwarded-for": f"203.0.113.{n}"}))[0]
                for n in range(31)
            ]
            via_proxy = [
                refusal_code(await post_with_token(proxy, bad, **{"x-forwarded-for": f"203.0.113.{n}"}))[0]
                for n in range(31)
            ]
        assert forged == [401] * 30 + [429]
        assert via_proxy == [401] * 31


async def test_successful_reports_never_count_against_an_address(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run), from_address(relay, "192.0.2.7") as runner:
        answers = [await post_report(relay, run, "build", "in_progress", http=runner) for _ in range(100)]
        assert {answer.status_code for answer in answers} == {200}


async def test_fault_25_a_report_is_answered_503_and_not_refused_while_keys_cannot_be_fetched(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        down = relay.github.faults.jwks(503)
        answer = await relay.github.start_job(run, "build")
        assert refusal_code(answer) == (503, "keys_unavailable")
        relay.github.faults.remove(down)
        relay.clock.advance(int(answer.headers["retry-after"]))

        assert report_outcome(await relay.github.report(run, "build")) == "applied"


async def test_fault_25_cached_keys_are_used_for_hours_while_their_issuer_is_down(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        relay.github.faults.jwks(503)
        for _ in range(6):
            relay.clock.advance(3600)
            assert report_outcome(await relay.github.report(run, "build")) == "repeat"
        relay.clock.advance(24 * 3600)
        assert refusal_code(await relay.github.report(run, "build")) == (503, "keys_unavailable")


async def test_fault_25_a_rotated_key_is_fetched_and_a_retired_one_is_rejected(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        relay.clock.advance(31)
        old = relay.github.oidc_token(run, "build")
        relay.github.issuer.rotate(retire_old=True)

        assert report_outcome(await relay.github.report(run, "build")) == "repeat"
        assert refusal_code(await relay.github.report(run, "build", token=old)) == (401, "not_authentic")


async def test_fault_25_100_unknown_key_ids_cause_one_request_to_the_issuer(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        bad = relay.github.hostile_token(HostileToken.UNKNOWN_KID, run, "build")
        reads = len(relay.github.calls_to("GET", JWKS))
        relay.clock.advance(31)
        for number in range(100):
            async with from_address(relay, f"192.0.2.{number}") as guesser:
                assert refusal_code(await post_with_token(guesser, bad)) == (401, "not_authentic")

        assert len(relay.github.calls_to("GET", JWKS)) - reads == 1


async def test_fault_25_concurrent_reports_that_wait_for_keys_share_one_request(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        gate = relay.github.faults.hang(on=Match(path=JWKS_PATH))
        waiting = [asyncio.create_task(relay.github.report(run, name)) for name in ("build", "test")]
        await gate.reached.wait()
        gate.release()

        assert [report_outcome(await task) for task in waiting] == ["applied", "applied"]
        assert len(relay.github.calls_to("GET", JWKS)) == 1


def run_of_name_taker(relay: RunningRelay, run: WorkflowRun) -> WorkflowRun:
    """A run of another repository that took the released name."""
    relay.github.replace_repository(BACKEND)
    return relay.github.start_run(BACKEND, event="repository_dispatch", client_payload=run.client_payload)


async def test_fault_26_a_name_taken_by_a_stranger_is_refused_with_one_alarm(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.start_job(run, "build")
        before = relay.jobs()
        strangers_run = run_of_name_taker(relay, run)
        for _ in range(5):
            answer = await relay.github.report(
                strangers_run, "build", status="completed", conclusion="success"
            )
            assert refusal_code(answer) == (403, "identity_changed")

        assert relay.jobs() == before
        [alarm] = relay.rows("SELECT who, act, subject, detail FROM audit WHERE act = 'alarm'")
        assert (alarm["who"], alarm["subject"]) == ("relay", BACKEND)
        new_id = relay.github.repository(BACKEND).id
        assert f"the token says {new_id}" in alarm["detail"]
        assert relay.rows("SELECT alarm FROM repositories")[0]["alarm"] is not None


async def test_fault_26_an_operator_can_accept_the_new_repository(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        strangers_run = run_of_name_taker(relay, run)
        assert refusal_code(await relay.github.report(strangers_run, "build")) == (403, "identity_changed")
        new_id = relay.github.repository(BACKEND).id
        await relay.services.targets.rebind(
            repo(UPSTREAM), repo(BACKEND), new_id, who="ops", now=relay.clock.now()
        )

        assert report_outcome(await relay.github.report(strangers_run, "build")) == "applied"
        [act] = relay.rows("SELECT who, detail FROM audit WHERE act = 'rebind'")
        assert (act["who"], str(new_id) in act["detail"]) == ("ops", True)
        assert relay.rows("SELECT alarm FROM repositories") == [{"alarm": None}]


def fail_repository_lookup(github: GitHub) -> None:
    github.faults.answer(503, on=Match(method="GET", path=f"/repos/{BACKEND}"))


async def test_fault_26_a_first_caller_is_bound_unconfirmed_until_github_confirms_its_id(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, LISTED, downstreams=(BACKEND,), prepare=fail_repository_lookup
    ) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        binding = "SELECT repository_id, confirmed FROM repositories"
        assert relay.rows(binding) == [{"repository_id": None, "confirmed": 0}]
        run = relay.github.runs(BACKEND)[0]
        assert report_outcome(await relay.github.start_job(run, "build")) == "applied"
        bound_id = relay.github.repository(BACKEND).id
        assert relay.rows(binding) == [{"repository_id": bound_id, "confirmed": 0}]
        stranger = relay.github.oidc_token(run, "test", repository_id="999")
        assert refusal_code(await relay.github.report(run, "test", token=stranger)) == (
            403,
            "identity_changed",
        )
        relay.github.faults.clear()
        await relay.pass_time(3600)

        assert relay.rows(binding) == [{"repository_id": bound_id, "confirmed": 1}]


async def test_fault_26_a_refused_first_caller_is_not_bound(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, LISTED, downstreams=(BACKEND,), prepare=fail_repository_lookup
    ) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[0]
        for answer in (
            await relay.github.report(run, "build", run_id="1"),
            await relay.github.report(run, "build", status="completed", conclusion="success"),
        ):
            assert answer.status_code in {403, 409}

        assert relay.rows("SELECT repository_id FROM repositories") == [{"repository_id": None}]


async def test_a_token_that_names_another_ci_issuer_is_verified_with_that_issuers_keys(
    tmp_path: Path,
) -> None:
    published = JSONResponse(GitHub().buildkite.jwks())
    async with dispatched_run(tmp_path, outside={"agent.buildkite.com": published}) as (relay, run):
        unsigned_by_issuer = relay.github.oidc_token(run, "build", iss="https://agent.buildkite.com")
        assert refusal_code(await relay.github.report(run, "build", token=unsigned_by_issuer)) == (
            401,
            "not_authentic",
        )
        signed = relay.github.buildkite.token(AUDIENCE, iss="https://agent.buildkite.com")
        assert refusal_code(await relay.github.report(run, "build", token=signed)) == (403, "not_registered")
        assert relay.jobs() == []


async def test_a_listed_name_in_the_body_does_not_identify_another_repositorys_token(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        relay.github.create_repository("stranger/repo", workflows=[WORKFLOW])
        strangers_run = relay.github.start_run(
            "stranger/repo", event="repository_dispatch", client_payload=run.client_payload
        )
        body = relay.github.ci.report_body(
            strangers_run, strangers_run.job("build"), "in_progress", verified_repo=BACKEND
        )
        body["repository"] = BACKEND

        assert refusal_code(await relay.github.report(strangers_run, "build", body=body)) == (
            403,
            "not_allowlisted",
        )


async def test_fault_26_text_of_a_stranger_with_a_released_name_is_neither_stored_nor_shown(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        stranger = relay.github.oidc_token(run, "build", audience="go to evil.example", repository_id="666")
        answer = await relay.github.report(run, "build", token=stranger)

        assert refusal_code(answer) == (401, "not_authentic")
        assert "evil" not in answer.text
        refusals = relay.rows("SELECT code, detail FROM refusals")
        assert [row["code"] for row in refusals] == ["identity_changed"]
        assert "evil" not in refusals[0]["detail"]
