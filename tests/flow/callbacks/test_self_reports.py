"""Nightly and periodic self-reports through the running relay: accepted, refused, repeated, disputed, counted."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from github_sim.github import JobSpec
from support.downstream.callbacks import (
    BACKEND,
    LISTED,
    dispatched_run,
    job_marks,
    refusal_code,
    report_outcome,
)
from support.downstream.self_reports import (
    NIGHTLY,
    nightly_run,
    relay_with_backend,
    send_self_report,
    upstream_head,
)
from support.running_relay import UPSTREAM, running_relay

OTHER = "other-up/core"


@pytest.mark.parametrize("event_type", ["nightly", "periodic"])
async def test_fault_46_a_self_report_is_stored_as_a_completed_job_of_its_commit(
    tmp_path: Path, event_type: str
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run, sha = nightly_run(relay), upstream_head(relay)
        answer = await send_self_report(
            relay, run, commit=sha.upper(), event_type=event_type, test_results={"passed": 3}
        )

        assert answer.json() == {"ok": True, "status": "completed", "repeat": False}
        [job] = relay.jobs()
        stored = {
            name: job[name] for name in ("delivery", "head_sha", "event", "state", "conclusion", "ended_as")
        }
        assert stored == {
            "delivery": sha,
            "head_sha": sha,
            "event": event_type,
            "state": "completed",
            "conclusion": "success",
            "ended_as": "success",
        }
        assert (job["in_progress_at"], job["queue_s"], job["execution_s"]) == (
            job["completed_at"],
            None,
            None,
        )
        assert (job["level"], job["number"], job["tests_passed"], job_marks(job)) == (2, None, 3, set())
        assert relay.rows("SELECT * FROM runs") == []
        assert relay.rows("SELECT * FROM dispatches") == []


async def test_a_self_report_with_status_in_progress_is_refused(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        answer = await send_self_report(
            relay, nightly_run(relay), commit=upstream_head(relay), status="in_progress"
        )
        assert refusal_code(answer) == (400, "bad_report")
        assert "workflow.status" in answer.json()["error"]["detail"]


@pytest.mark.parametrize(
    "where",
    [
        {"payload": {"head_sha": "A" * 40}},
        {"payload": {"after": "a" * 40, "head_sha": "short"}},
        {"pytorch_head_sha": "a" * 40},
        {"commit": "0" * 40, "payload": {"head_sha": 7, "after": "a" * 40}},
        {"commit": "3f1c6e2a-47a5-11f1-8000-000000000000", "pytorch_head_sha": "a" * 40},
    ],
)
async def test_the_commit_is_read_from_any_field_that_reporters_use(
    tmp_path: Path, where: dict[str, Any]
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        assert report_outcome(await send_self_report(relay, nightly_run(relay), **where)) == "applied"
        assert [job["head_sha"] for job in relay.jobs()] == ["a" * 40]


@pytest.mark.parametrize(
    "where", [{}, {"commit": "main"}, {"commit": "a" * 39}, {"payload": {"after": "0" * 40}}]
)
async def test_a_self_report_without_a_commit_is_stored_with_its_run_id(
    tmp_path: Path, where: dict[str, Any]
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run = nightly_run(relay)
        assert report_outcome(await send_self_report(relay, run, **where)) == "applied"
        assert report_outcome(await send_self_report(relay, run, "test", "failure", **where)) == "applied"
        assert [(job["delivery"], job["head_sha"], job["run_id"]) for job in relay.jobs()] == [
            ("", None, str(run.id)),
        ] * 2
        assert relay.rows("SELECT * FROM commits") == []


async def test_fault_24_a_self_report_with_the_guid_of_a_real_delivery_adds_no_result_to_it(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        guid = run.delivery_id
        assert (
            report_outcome(
                await send_self_report(relay, nightly_run(relay), conclusion="failure", commit=guid)
            )
            == "applied"
        )

        assert [job["delivery"] for job in relay.jobs()] == [""]
        [dispatch] = (await relay.http.get(f"/api/v1/deliveries/{guid}")).json()["dispatches"]
        assert dispatch["jobs"] == []
        pull = (await relay.http.get("/api/v1/pulls/1")).json()
        assert [backend["jobs"] for backend in pull["backends"]] == [[]]


async def test_fault_28_a_run_may_report_for_a_dispatch_and_send_self_reports(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert report_outcome(await send_self_report(relay, run, commit=upstream_head(relay))) == "applied"
        await relay.github.start_job(run, "build")
        assert report_outcome(await relay.github.complete_job(run, "build", "failure")) == "applied"
        assert (
            report_outcome(await send_self_report(relay, run, "test", commit=upstream_head(relay)))
            == "applied"
        )

        conclusions = {(job["event"], job["job_name"]): job["conclusion"] for job in relay.jobs()}
        assert conclusions == {
            ("nightly", "build"): "success",
            ("pull_request", "build"): "failure",
            ("nightly", "test"): "success",
        }
        [row] = relay.rows("SELECT * FROM runs")
        assert row["delivery"] == run.delivery_id


@pytest.mark.parametrize("claims", [{"run_id": "1"}, {"run_attempt": "2"}])
async def test_fault_28_a_run_may_send_self_reports_only_for_itself(
    tmp_path: Path, claims: dict[str, Any]
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        answer = await send_self_report(relay, nightly_run(relay), commit=upstream_head(relay), claims=claims)
        assert refusal_code(answer) == (403, "claim_mismatch")
        assert relay.jobs() == []


@pytest.mark.parametrize("event", ["repository_dispatch", "schedule", "workflow_dispatch", "push"])
async def test_runs_of_these_events_may_send_self_reports(tmp_path: Path, event: str) -> None:
    async with relay_with_backend(tmp_path) as relay:
        assert (
            report_outcome(await send_self_report(relay, nightly_run(relay), claims={"event_name": event}))
            == "applied"
        )


@pytest.mark.parametrize("event", ["pull_request", "pull_request_target", "issue_comment"])
async def test_fault_27_runs_of_events_that_strangers_can_trigger_may_not_self_report(
    tmp_path: Path, event: str
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        answer = await send_self_report(relay, nightly_run(relay), claims={"event_name": event})
        assert refusal_code(answer) == (403, "wrong_event")


async def test_an_allowlist_entry_can_allow_further_events(tmp_path: Path) -> None:
    allowed = f"L2:\n  - {BACKEND}: {{allow_events: [release]}}\n"
    async with relay_with_backend(tmp_path, allowed) as relay:
        assert (
            report_outcome(
                await send_self_report(relay, nightly_run(relay), claims={"event_name": "release"})
            )
            == "applied"
        )


async def test_self_reports_of_unlisted_backends_are_refused_and_of_l1_backends_ignored(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, "L1:\n  - org/ears\n", downstreams=("org/ears", "org/nobody")
    ) as relay:
        answer = await send_self_report(relay, nightly_run(relay, "org/nobody"), commit=upstream_head(relay))
        assert refusal_code(answer) == (403, "not_allowlisted")
        ignored = await send_self_report(relay, nightly_run(relay, "org/ears"), commit=upstream_head(relay))
        assert (ignored.status_code, ignored.json()["status"]) == (202, "ignored")
        assert relay.jobs() == []
        assert relay.rows("SELECT * FROM commits") == []


async def test_an_event_that_the_entry_does_not_list_is_refused_with_a_hint(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path, f"L2:\n  - {BACKEND}: {{events: [push, nightly]}}\n") as relay:
        assert report_outcome(await send_self_report(relay, nightly_run(relay))) == "applied"
        answer = await send_self_report(relay, nightly_run(relay), event_type="periodic")
        assert refusal_code(answer) == (403, "not_allowlisted")
        assert "periodic" in answer.json()["error"]["hint"]


async def test_a_self_report_of_a_suspended_backend_is_refused(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        upstream, backend = relay.services.upstreams[0], relay.services.allowlists
        listed = (await backend.current(upstream)).entries[0].name
        await relay.services.targets.suspend(upstream, listed, who="ann", now=relay.clock.now())
        assert refusal_code(await send_self_report(relay, nightly_run(relay))) == (403, "suspended")


async def test_fault_26_a_repository_that_took_over_a_released_name_is_refused_with_an_alarm(
    tmp_path: Path,
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        await send_self_report(relay, nightly_run(relay))
        stranger = relay.github.replace_repository(BACKEND)
        answer = await send_self_report(relay, nightly_run(relay))
        assert refusal_code(answer) == (403, "identity_changed")
        assert str(stranger.id) in answer.json()["error"]["detail"]
        [row] = relay.rows("SELECT alarm FROM repositories")
        assert row["alarm"]
        assert len(relay.jobs()) == 1


async def test_fault_26_the_first_self_report_binds_the_name_to_a_repository_id(tmp_path: Path) -> None:
    def uninstall(github: Any) -> None:
        github.installation(BACKEND).repository_ids.clear()

    async with relay_with_backend(tmp_path, prepare=uninstall) as relay:
        await send_self_report(relay, nightly_run(relay))
        [row] = relay.rows("SELECT repository_id, confirmed FROM repositories")
        assert row == {"repository_id": relay.github.repository(BACKEND).id, "confirmed": 0}


async def test_self_reports_count_against_the_rate_limit(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path, CRCR_RATE_LIMIT_PER_MIN="2") as relay:
        run = nightly_run(relay)
        answers = [await send_self_report(relay, run, job_name=f"job {number}") for number in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert int(answers[-1].headers["retry-after"]) > 0
        relay.clock.advance(61)
        assert report_outcome(await send_self_report(relay, run, job_name="job 2")) == "applied"


async def test_a_repeated_self_report_is_a_repeat_and_another_result_is_a_dispute(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run, sha = nightly_run(relay), upstream_head(relay)
        answers = [
            await send_self_report(relay, run, conclusion=conclusion, commit=sha)
            for conclusion in ("success", "success", "failure")
        ]
        assert [report_outcome(answer) for answer in answers] == ["applied", "repeat", "conflicting_result"]
        assert report_outcome(await send_self_report(relay, run, commit=sha)) == "repeat"
        [job] = relay.jobs()
        assert (job["conclusion"], job["first_conclusion"], job["ended_as"]) == (
            "failure",
            "success",
            "failure",
        )
        assert job_marks(job) == {"disputed"}


async def test_matrix_legs_are_distinguished_by_the_signed_check_run_id(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        jobs = (JobSpec("build", matrix=("a", "b")),)
        run = nightly_run(relay, workflow=replace(NIGHTLY, jobs=jobs))
        answers = [await send_self_report(relay, run, job, job_name="build") for job in run.jobs]
        assert "build (2)" in answers[1].json()["warning"]
        assert report_outcome(await send_self_report(relay, run, run.jobs[1], job_name="build")) == "repeat"
        assert [job["job_name"] for job in relay.jobs()] == ["build", "build (2)"]


async def test_one_job_may_report_for_all_jobs_of_its_run(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run = nightly_run(relay)
        for name in ("linux", "windows", "linux"):
            await send_self_report(relay, run, "build", job_name=name)
        assert [job["job_name"] for job in relay.jobs()] == ["linux", "windows"]


async def test_fault_45_a_second_attempt_replaces_the_first_whichever_reports_first(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run, sha = nightly_run(relay), upstream_head(relay)
        first = run.job("build")
        await relay.github.rerun(run)
        await send_self_report(relay, run, conclusion="success", commit=sha)
        first_claims = {"run_attempt": "1", "check_run_id": str(first.id)}
        answer = await send_self_report(
            relay, run, first, "failure", commit=sha, run_attempt="1", claims=first_claims
        )
        assert report_outcome(answer) == "applied"
        outcomes = {job["attempt"]: job["ended_as"] for job in relay.jobs()}
        assert outcomes == {1: "earlier", 2: "success"}


async def test_fault_47_a_run_of_65_jobs_is_one_nightly_whatever_commits_its_jobs_report(
    tmp_path: Path,
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run, sha = nightly_run(relay), upstream_head(relay)
        for number in range(65):
            key = (sha, None, f"guid-{number}")[number % 3]
            assert (
                report_outcome(await send_self_report(relay, run, commit=key, job_name=f"test {number}"))
                == "applied"
            )
        await relay.drain()
        page = (await relay.http.get(f"/api/v1/backends/{BACKEND}?kind=nightly")).json()
        [row] = page["rows"]
        assert len([cell for cell in row["cells"] if cell]) == 65
        assert row["head_sha"] == sha
        assert page["backend"]["figures"]["tally"]["success"] == 65


async def test_the_name_of_an_upstream_that_does_not_list_the_backend_is_ignored(tmp_path: Path) -> None:
    lists = {UPSTREAM: LISTED, OTHER: "L2:\n  - org/else\n"}
    async with running_relay(tmp_path, lists, downstreams=(BACKEND,)) as relay:
        payload = {"repository": {"full_name": OTHER}}
        assert report_outcome(await send_self_report(relay, nightly_run(relay), payload=payload)) == "applied"
        assert [job["upstream"] for job in relay.jobs()] == [UPSTREAM]


async def test_a_self_report_of_a_backend_with_two_upstreams_goes_to_the_named_one(tmp_path: Path) -> None:
    async with running_relay(tmp_path, {UPSTREAM: LISTED, OTHER: LISTED}, downstreams=(BACKEND,)) as relay:
        run = nightly_run(relay)
        for name in (OTHER.upper(), UPSTREAM):
            payload = {"repository": {"full_name": name}}
            assert (
                report_outcome(
                    await send_self_report(relay, run, commit=upstream_head(relay, OTHER), payload=payload)
                )
                == "applied"
            )
        assert {job["upstream"] for job in relay.jobs()} == {UPSTREAM, OTHER}
        for nonsense in ({}, {"repository": 7}, {"repository": {"full_name": "some/else"}}):
            answer = await send_self_report(relay, run, payload=nonsense)
            assert refusal_code(answer) == (400, "bad_report")
            assert "payload.repository.full_name" in answer.json()["error"]["detail"]


async def test_a_self_report_does_not_affect_the_gate_of_a_pull_request(tmp_path: Path) -> None:
    allowlist = f"L4:\n  - {BACKEND}: {{oncalls: [ann], jobs: [build]}}\n"
    async with dispatched_run(tmp_path, allowlist) as (relay, _):
        pull = relay.github.world.pulls[relay.github.repository(UPSTREAM).id, 1]
        await send_self_report(relay, nightly_run(relay), conclusion="success", commit=pull.head_sha)
        await relay.drain()
        checks = relay.github.latest_checks(UPSTREAM, pull.head_sha)
        assert checks["crcr/gate"].conclusion is None


async def test_a_self_report_without_a_valid_allowlist_is_answered_503(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path, "L2: [org/backend\n") as relay:
        answer = await send_self_report(relay, nightly_run(relay))
        assert refusal_code(answer) == (503, "no_allowlist")


async def test_with_the_sandbox_unlisted_backends_use_it_and_listed_ones_are_refused(tmp_path: Path) -> None:
    listed = f"L2:\n  - {BACKEND}: {{events: [push]}}\n"
    async with running_relay(
        tmp_path, listed, downstreams=(BACKEND, "org/nobody"), CRCR_SANDBOX="on"
    ) as relay:
        tried = await send_self_report(relay, nightly_run(relay, "org/nobody"), commit=upstream_head(relay))
        assert (tried.status_code, tried.json()["sandbox"]) == (200, True)
        assert refusal_code(
            await send_self_report(relay, nightly_run(relay), commit=upstream_head(relay))
        ) == (
            403,
            "not_allowlisted",
        )
        assert relay.jobs() == []
        assert relay.rows("SELECT * FROM commits") == []
