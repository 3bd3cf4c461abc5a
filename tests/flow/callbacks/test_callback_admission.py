"""Admission and proof: a report counts for a dispatch that may have arrived, and only while its sender may speak."""

from dataclasses import replace
from pathlib import Path

from crcr.decide.model import RepoName
from crcr.receive.oidc.issuers import GITHUB_ACTIONS
from crcr.wiring.web_app import build_app
from github_sim.world.faults import Match
from support.downstream.callbacks import BACKEND, client_from, dispatched_run, post_report, refusal_code
from support.stage import AUDIENCE, UPSTREAM, Stage, stage

DISPATCHES = Match(method="POST", path="*/dispatches")


async def test_a_report_for_a_dispatch_that_github_refused_to_take_yet_does_not_drop_it(
    tmp_path: Path,
) -> None:
    async with stage(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as it:
        await it.github.open_pr(UPSTREAM, title="First")
        await it.act()
        run = it.github.runs("org/one")[0]
        it.github.faults.answer(429, on=DISPATCHES, times=1, retry_after_s=30)
        pr = await it.github.open_pr(UPSTREAM, title="Second")
        await it.act()
        assert pr.last_delivery is not None
        told = {
            "name": "CI",
            "status": "in_progress",
            "run_id": run.id,
            "run_attempt": 1,
            "job_name": "build",
        }
        body = {"event_type": "pull_request", "delivery_id": pr.last_delivery.guid, "workflow": told}
        answer = await it.github.report(run, run.jobs[0], status="in_progress", body=body)
        await it.pass_time(40)

        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_delivery")
        assert len(it.github.dispatches("org/one")) == 2


async def test_a_run_that_answered_while_the_answer_got_lost_makes_a_retry_pointless(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as it:
        it.github.faults.early_callback(times=1)
        it.github.faults.lose_answer(on=DISPATCHES, times=1)
        await it.github.open_pr(UPSTREAM, title="Lost answer")
        await it.act()
        await it.pass_time(60)

        assert len(it.github.dispatches("org/one")) == 1
        assert set(it.dispatch_states().values()) == {"sent"}


class SuspendedMeanwhile:
    """Limits in whose time an operator suspends the caller: between the first look at it and the second."""

    def __init__(self, it: Stage) -> None:
        self._it = it

    async def check(self, scope: str, subject: str) -> None:
        await self._it.services.limits.check(scope, subject)

    async def take(self, scope: str, subject: str) -> None:
        await self._it.services.limits.take(scope, subject)
        core, one = RepoName(UPSTREAM), RepoName(BACKEND)
        await self._it.services.targets.suspend(core, one, who="ann", now=self._it.clock.now())


async def test_a_suspension_that_lands_between_the_two_looks_is_obeyed(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (it, run):
        callback = replace(it.services.callback, limits=SuspendedMeanwhile(it))
        app = build_app(replace(it.services, callback=callback), work=False)
        async with client_from(app) as http:
            answer = await post_report(it, run, "build", "in_progress", http=http)

        assert refusal_code(answer) == (403, "suspended")
        assert it.jobs() == []


async def test_a_re_run_that_leaves_its_attempt_out_means_the_signed_one(tmp_path: Path) -> None:
    async with stage(tmp_path, "L2: [org/one]", downstreams=("org/one",)) as it:
        await it.github.open_pr(UPSTREAM, title="Again")
        await it.act()
        run = it.github.runs("org/one")[0]
        await it.github.start_job(run, "build")
        await it.github.complete_job(run, "build", "failure")
        await it.github.complete_job(run, "test", "failure")
        await it.github.cancel(run, report=False)
        run = await it.github.rerun(run)
        answer = await it.github.start_job(run, "build", run_attempt=None)

        assert answer.status_code == 200, answer.text
        assert [job["attempt"] for job in it.jobs()] == [1, 2]


async def test_beside_a_server_of_its_own_the_tokens_of_public_github_are_not_known(tmp_path: Path) -> None:
    """The same names mean other repositories there."""
    async with dispatched_run(tmp_path) as (it, run):
        token = it.github.oidc_token(run, run.jobs[0], audience=AUDIENCE, iss=GITHUB_ACTIONS)
        answer = await it.github.report(run, run.jobs[0], status="in_progress", token=token)

        assert refusal_code(answer) == (401, "not_authentic")
        assert "is not known" in answer.json()["error"]["detail"]


async def test_an_upstream_without_a_list_does_not_hide_the_answer_of_the_other(tmp_path: Path) -> None:
    lists = {UPSTREAM: f"L2: [{BACKEND}]", "other/core": "L2: [not a name]"}
    async with stage(tmp_path, lists, downstreams=(BACKEND,)) as it:
        await it.github.open_pr(UPSTREAM)
        await it.act()
        run = it.github.runs(BACKEND)[0]
        body = it.github.ci.report_body(run, run.jobs[0], "in_progress") | {"delivery_id": "made-up"}
        answer = await it.github.report(run, run.jobs[0], status="in_progress", body=body)

        assert refusal_code(answer) == (404, "unknown_delivery")
