"""Nightly and periodic self-reports through the running relay: taken, refused, repeated, disputed, counted."""

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
async def test_fault_46_a_self_report_is_a_completed_job_of_its_commit(
    tmp_path: Path, event_type: str
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run, sha = nightly_run(relay), upstream_head(relay)
        answer = await send_self_report(
            relay, run, commit=sha.upper(), event_type=event_type, test_results={"passed": 3}
        )

        assert answer.json() == {"ok": True, "status": "completed", "repeat": False}
        [job] = relay.jobs()
        told = {
            name: job[name] for name in ("delivery", "head_sha", "event", "state", "conclusion", "ended_as")
        }
        assert told == {
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


async def test_a_self_report_is_never_in_progress(tmp_path: Path) -> None:
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
async def test_the_commit_is_found_wherever_reporters_put_it(tmp_path: Path, where: dict[str, Any]) -> None:
    async with relay_with_backend(tmp_path) as relay:
        assert report_outcome(await send_self_report(relay, nightly_run(relay), **where)) == "applied"
        assert [job["head_sha"] for job in relay.jobs()] == ["a" * 40]


@pytest.mark.parametrize(
    "where", [{}, {"commit": "main"}, {"commit": "a" * 39}, {"payload": {"after": "0" * 40}}]
)
async def test_without_a_commit_the_report_is_taken_as_of_its_run(
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


async def test_fault_24_the_guid_of_a_real_delivery_does_not_put_a_result_on_it(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        guid = run.delivery_id
        assert (
            report_outcome(
                await send_self_report(relay, nightly_run(relay), conclusion="failure", commit=guid)
            )
            == "applied"
        )

        assert [job["delivery"] for job in relay.jobs()] == [""]
        [told] = (await relay.http.get(f"/api/v1/deliveries/{guid}")).json()["dispatches"]
        assert told["jobs"] == []
        pull = (await relay.http.get("/api/v1/pulls/1")).json()
        assert [backend["jobs"] for backend in pull["backends"]] == [[]]


async def test_fault_28_a_run_may_answer_a_dispatch_and_report_on_its_own(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert report_outcome(await send_self_report(relay, run, commit=upstream_head(relay))) == "applied"
        await relay.github.start_job(run, "build")
        assert report_outcome(await relay.github.complete_job(run, "build", "failure")) == "applied"
        assert (
            report_outcome(await send_self_report(relay, run, "test", commit=upstream_head(relay)))
            == "applied"
        )

        told = {(job["event"], job["job_name"]): job["conclusion"] for job in relay.jobs()}
        assert told == {
            ("nightly", "build"): "success",
            ("pull_request", "build"): "failure",
            ("nightly", "test"): "success",
        }
        [row] = relay.rows("SELECT * FROM runs")
        assert row["delivery"] == run.delivery_id


@pytest.mark.parametrize("claims", [{"run_id": "1"}, {"run_attempt": "2"}])
async def test_fault_28_a_run_speaks_for_itself_only(tmp_path: Path, claims: dict[str, Any]) -> None:
    async with relay_with_backend(tmp_path) as relay:
        answer = await send_self_report(relay, nightly_run(relay), commit=upstream_head(relay), claims=claims)
        assert refusal_code(answer) == (403, "claim_mismatch")
        assert relay.jobs() == []


@pytest.mark.parametrize("event", ["repository_dispatch", "schedule", "workflow_dispatch", "push"])
async def test_who_may_start_a_run_that_reports_on_its_own(tmp_path: Path, event: str) -> None:
    async with relay_with_backend(tmp_path) as relay:
        assert (
            report_outcome(await send_self_report(relay, nightly_run(relay), claims={"event_name": event}))
            == "applied"
        )


@pytest.mark.parametrize("event", ["pull_request", "pull_request_target", "issue_comment"])
async def test_fault_27_what_a_stranger_can_start_does_not_report(tmp_path: Path, event: str) -> None:
    async with relay_with_backend(tmp_path) as relay:
        answer = await send_self_report(relay, nightly_run(relay), claims={"event_name": event})
        assert refusal_code(answer) == (403, "wrong_event")


async def test_an_entry_can_allow_further_events(tmp_path: Path) -> None:
    allowed = f"L2:\n  - {BACKEND}: {{allow_events: [release]}}\n"
    async with relay_with_backend(tmp_path, allowed) as relay:
        assert (
            report_outcome(
                await send_self_report(relay, nightly_run(relay), claims={"event_name": "release"})
            )
            == "applied"
        )


async def test_who_is_not_listed_is_refused_and_who_only_listens_is_ignored(tmp_path: Path) -> None:
    async with running_relay(
        tmp_path, "L1:\n  - org/ears\n", downstreams=("org/ears", "org/nobody")
    ) as relay:
        answer = await send_self_report(relay, nightly_run(relay, "org/nobody"), commit=upstream_head(relay))
        assert refusal_code(answer) == (403, "not_allowlisted")
        ignored = await send_self_report(relay, nightly_run(relay, "org/ears"), commit=upstream_head(relay))
        assert (ignored.status_code, ignored.json()["status"]) == (202, "ignored")
        assert relay.jobs() == []
        assert relay.rows("SELECT * FROM commits") == []


async def test_an_event_that_its_entry_does_not_list_is_refused_plainly(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path, f"L2:\n  - {BACKEND}: {{events: [push, nightly]}}\n") as relay:
        assert report_outcome(await send_self_report(relay, nightly_run(relay))) == "applied"
        answer = await send_self_report(relay, nightly_run(relay), event_type="periodic")
        assert refusal_code(answer) == (403, "not_allowlisted")
        assert "periodic" in answer.json()["error"]["hint"]


async def test_who_is_suspended_is_refused(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        upstream, backend = relay.services.upstreams[0], relay.services.allowlists
        listed = (await backend.current(upstream)).entries[0].name
        await relay.services.targets.suspend(upstream, listed, who="ann", now=relay.clock.now())
        assert refusal_code(await send_self_report(relay, nightly_run(relay))) == (403, "suspended")


async def test_fault_26_a_released_name_taken_by_a_stranger_is_refused_with_an_alarm(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        await send_self_report(relay, nightly_run(relay))
        stranger = relay.github.replace_repository(BACKEND)
        answer = await send_self_report(relay, nightly_run(relay))
        assert refusal_code(answer) == (403, "identity_changed")
        assert str(stranger.id) in answer.json()["error"]["detail"]
        [row] = relay.rows("SELECT alarm FROM repositories")
        assert row["alarm"]
        assert len(relay.jobs()) == 1


async def test_fault_26_a_first_self_report_binds_the_name(tmp_path: Path) -> None:
    def uninstall(github: Any) -> None:
        github.installation(BACKEND).repository_ids.clear()

    async with relay_with_backend(tmp_path, prepare=uninstall) as relay:
        await send_self_report(relay, nightly_run(relay))
        [row] = relay.rows("SELECT repository_id, confirmed FROM repositories")
        assert row == {"repository_id": relay.github.repository(BACKEND).id, "confirmed": 0}


async def test_self_reports_count_against_the_rate_limit(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path, CRCR_RATE_LIMIT_PER_MIN="2") as relay:
        run = nightly_run(relay)
        told = [await send_self_report(relay, run, job_name=f"job {number}") for number in range(3)]
        assert [each.status_code for each in told] == [200, 200, 429]
        assert int(told[-1].headers["retry-after"]) > 0
        relay.clock.advance(61)
        assert report_outcome(await send_self_report(relay, run, job_name="job 2")) == "applied"


async def test_the_same_again_is_a_repeat_and_another_result_a_dispute(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run, sha = nightly_run(relay), upstream_head(relay)
        answers = [
            await send_self_report(relay, run, conclusion=each, commit=sha)
            for each in ("success", "success", "failure")
        ]
        assert [report_outcome(each) for each in answers] == ["applied", "repeat", "conflicting_result"]
        assert report_outcome(await send_self_report(relay, run, commit=sha)) == "repeat"
        [job] = relay.jobs()
        assert (job["conclusion"], job["first_conclusion"], job["ended_as"]) == (
            "failure",
            "success",
            "failure",
        )
        assert job_marks(job) == {"disputed"}


async def test_legs_of_a_matrix_are_told_apart_by_what_github_signs(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        jobs = (JobSpec("build", matrix=("a", "b")),)
        run = nightly_run(relay, workflow=replace(NIGHTLY, jobs=jobs))
        told = [await send_self_report(relay, run, job, job_name="build") for job in run.jobs]
        assert "build (2)" in told[1].json()["warning"]
        assert report_outcome(await send_self_report(relay, run, run.jobs[1], job_name="build")) == "repeat"
        assert [job["job_name"] for job in relay.jobs()] == ["build", "build (2)"]


async def test_one_job_may_report_for_all_of_its_run(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run = nightly_run(relay)
        for name in ("linux", "windows", "linux"):
            await send_self_report(relay, run, "build", job_name=name)
        assert [job["job_name"] for job in relay.jobs()] == ["linux", "windows"]


async def test_fault_45_a_second_attempt_takes_the_first_ones_place_whichever_comes_first(
    tmp_path: Path,
) -> None:
    async with relay_with_backend(tmp_path) as relay:
        run, sha = nightly_run(relay), upstream_head(relay)
        first = run.job("build")
        await relay.github.rerun(run)
        await send_self_report(relay, run, conclusion="success", commit=sha)
        late = {"run_attempt": "1", "check_run_id": str(first.id)}
        answer = await send_self_report(
            relay, run, first, "failure", commit=sha, run_attempt="1", claims=late
        )
        assert report_outcome(answer) == "applied"
        places = {job["attempt"]: job["ended_as"] for job in relay.jobs()}
        assert places == {1: "earlier", 2: "success"}


async def test_fault_47_one_run_of_65_jobs_is_one_nightly_however_its_jobs_are_keyed(tmp_path: Path) -> None:
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


async def test_another_upstreams_name_does_not_count_where_it_does_not_list_the_caller(
    tmp_path: Path,
) -> None:
    lists = {UPSTREAM: LISTED, OTHER: "L2:\n  - org/else\n"}
    async with running_relay(tmp_path, lists, downstreams=(BACKEND,)) as relay:
        said = {"repository": {"full_name": OTHER}}
        assert report_outcome(await send_self_report(relay, nightly_run(relay), payload=said)) == "applied"
        assert [job["upstream"] for job in relay.jobs()] == [UPSTREAM]


async def test_of_two_upstreams_that_list_it_the_named_one_gets_the_report(tmp_path: Path) -> None:
    async with running_relay(tmp_path, {UPSTREAM: LISTED, OTHER: LISTED}, downstreams=(BACKEND,)) as relay:
        run = nightly_run(relay)
        for name in (OTHER.upper(), UPSTREAM):
            said = {"repository": {"full_name": name}}
            assert (
                report_outcome(
                    await send_self_report(relay, run, commit=upstream_head(relay, OTHER), payload=said)
                )
                == "applied"
            )
        assert {job["upstream"] for job in relay.jobs()} == {UPSTREAM, OTHER}
        for nonsense in ({}, {"repository": 7}, {"repository": {"full_name": "some/else"}}):
            answer = await send_self_report(relay, run, payload=nonsense)
            assert refusal_code(answer) == (400, "bad_report")
            assert "payload.repository.full_name" in answer.json()["error"]["detail"]


async def test_a_self_report_says_nothing_on_pull_requests(tmp_path: Path) -> None:
    allowlist = f"L4:\n  - {BACKEND}: {{oncalls: [ann], jobs: [build]}}\n"
    async with dispatched_run(tmp_path, allowlist) as (relay, _):
        pull = relay.github.world.pulls[relay.github.repository(UPSTREAM).id, 1]
        await send_self_report(relay, nightly_run(relay), conclusion="success", commit=pull.head_sha)
        await relay.drain()
        checks = relay.github.latest_checks(UPSTREAM, pull.head_sha)
        assert checks["crcr/gate"].conclusion is None


async def test_the_store_being_away_is_told_as_such(tmp_path: Path) -> None:
    async with relay_with_backend(tmp_path, "L2: [org/backend\n") as relay:
        answer = await send_self_report(relay, nightly_run(relay))
        assert refusal_code(answer) == (503, "no_allowlist")


async def test_with_a_sandbox_the_unlisted_try_and_the_listed_are_told(tmp_path: Path) -> None:
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
