"""The sandbox: a newcomer tries its workflow before it is listed, and nothing else notices."""

import csv
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from crcr.record.schema.all_tables import metadata
from github_sim.github import GitHub, WorkflowRun
from support.downstream.callbacks import BACKEND, CALLBACK, LISTED, bearer, refusal_code, report_outcome
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM, WORKFLOW, RunningRelay, running_relay
from support.sign_in import ADMIN, TOKENS

NEW, QUIET = "new/comer", "quiet/place"
EYES = {"authorization": f"Bearer {ADMIN}"}
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


def _newcomers(github: GitHub) -> None:
    github.create_repository(NEW, installed=False, workflows=[WORKFLOW])
    github.create_repository(QUIET, installed=False, private=True, workflows=[WORKFLOW])


@asynccontextmanager
async def sandbox(folder: Path, **more: Any) -> AsyncIterator[RunningRelay]:
    settings = {"CRCR_SANDBOX": "on", **TOKENS, **more}
    async with running_relay(folder, LISTED, downstreams=(BACKEND,), prepare=_newcomers, **settings) as relay:
        yield relay


def a_run(relay: RunningRelay, name: str = NEW) -> WorkflowRun:
    return relay.github.start_run(name, event="repository_dispatch", event_type="pull_request")


async def say(
    relay: RunningRelay,
    run: WorkflowRun,
    status: str = "in_progress",
    *,
    event: str = "pull_request",
    **workflow: Any,
) -> httpx.Response:
    chosen = run.job("build")
    body = relay.github.ci.report_body(run, chosen, status, **workflow)
    told = {**body, "event_type": event, "delivery_id": "anything"}
    token = relay.github.oidc_token(run, chosen, audience=AUDIENCE)
    return await relay.http.post(CALLBACK, json=told, headers=bearer(token))


async def tried(relay: RunningRelay, **asked: Any) -> list[dict[str, Any]]:
    headers = asked.pop("headers", {})
    answer = await relay.http.get("/api/v1/sandbox", params=asked, headers=headers)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["jobs"]
    return found


async def test_a_newcomer_sees_its_run_from_start_to_end(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay)
        repository_id = relay.github.repository(NEW).id
        started = (await say(relay, run)).json()
        assert (started["ok"], started["status"], started["repeat"], started["sandbox"]) == (
            True,
            "in_progress",
            False,
            True,
        )
        assert f"{RELAY_URL}/crcr/sandbox?repository={repository_id} " in started["hint"]
        assert "decide nothing" in started["hint"]
        failed = [{"name": "test_attention", "file": "test_ops.py", "message": "1.0 != 2.0"}]
        told: dict[str, Any] = {
            "conclusion": "failure",
            "failed_tests": failed,
            "test_results": {"passed": 4, "failed": 1},
        }
        assert report_outcome(await say(relay, run, "completed", **told)) == "applied"
        assert report_outcome(await say(relay, run, "completed", **told)) == "repeat"

        [job] = await tried(relay)
        assert (job["repository"], job["repository_id"], job["job_name"]) == (NEW, repository_id, "build")
        assert (job["state"], job["conclusion"], job["tests_failed"]) == ("completed", "failure", 1)
        assert job["failed_tests"] == failed
        page = (await relay.http.get("/crcr/sandbox")).text
        for words in (NEW, "test_attention", "1.0 != 2.0", "do not count", "are deleted after 48 hours"):
            assert words in page


async def test_the_life_of_a_job_is_the_real_one(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay)
        early = await say(relay, run, "completed", conclusion="success")
        assert refusal_code(early) == (409, "no_in_progress")
        assert "late" in early.json()["error"]["hint"]
        assert report_outcome(await say(relay, run, late=True)) == "applied"
        assert report_outcome(await say(relay, run, "completed", conclusion="success")) == "applied"
        assert refusal_code(await say(relay, run, "completed", conclusion="failure")) == (
            409,
            "conflicting_result",
        )
        assert refusal_code(await say(relay, run, run_id="1")) == (403, "claim_mismatch")
        assert refusal_code(await say(relay, run, status="what")) == (400, "bad_report")
        [job] = await tried(relay)
        assert (job["conclusion"], job["late"]) == ("success", True)


@pytest.mark.parametrize("event", ["nightly", "periodic"])
async def test_a_self_report_is_tried_with_its_end_alone(tmp_path: Path, event: str) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay)
        assert (
            report_outcome(await say(relay, run, "completed", event=event, conclusion="success")) == "applied"
        )
        assert (
            report_outcome(await say(relay, run, "completed", event=event, conclusion="success")) == "repeat"
        )
        [job] = await tried(relay)
        assert (job["event_type"], job["state"]) == (event, "completed")


async def test_nothing_else_notices(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        tables = list(metadata.tables)

        def everything() -> dict[str, list[dict[str, Any]]]:
            return {name: relay.rows(f"SELECT * FROM {name}") for name in tables if name != "sandbox_jobs"}  # noqa: S608

        before = everything()
        run = a_run(relay)
        link = {"url": "https://ci.example/1", "artifact_url": "https://ci.example/2"}
        await say(relay, run, **link)
        await say(relay, run, "completed", conclusion="failure", **link)
        await say(relay, run, "completed", conclusion="success")
        assert await relay.drain() == 0
        assert everything() == before
        assert "ci.example" not in (await relay.http.get("/crcr/sandbox")).text
        assert NEW not in (await relay.http.get("/crcr")).text
        for path in (f"/badge/{NEW}.svg", f"/crcr/{NEW}", f"/api/v1/backends/{NEW}"):
            assert (await relay.http.get(path)).status_code == 404


async def test_results_tried_out_are_counted_apart(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await say(relay, a_run(relay))
        counted = (await relay.http.get("/metrics")).text
        assert 'crcr_callbacks_total{outcome="sandbox"} 1.0' in counted
        assert 'outcome="in_progress"' not in counted


async def test_who_is_listed_anywhere_is_not_for_the_sandbox(tmp_path: Path) -> None:
    lists = {"up/one": "L2: [org/backend]\n", "up/two": "L2: [org/other]\n"}
    async with running_relay(tmp_path, lists, downstreams=(BACKEND, "org/other"), CRCR_SANDBOX="on") as relay:
        await relay.github.open_pr("up/two")
        await relay.drain()
        theirs = relay.github.runs("org/other")[0]
        mine = a_run(relay, BACKEND)
        body = relay.github.ci.report_body(mine, mine.job("build"), "in_progress")
        told = {**body, "delivery_id": theirs.delivery_id}
        token = relay.github.oidc_token(mine, "build", audience=AUDIENCE)
        answer = await relay.http.post(CALLBACK, json=told, headers=bearer(token))
        assert refusal_code(answer) == (403, "not_allowlisted")
        assert relay.rows("SELECT * FROM sandbox_jobs") == []


async def test_where_it_is_off_a_newcomer_is_refused_as_ever_and_told_of_no_sandbox(tmp_path: Path) -> None:
    async with sandbox(tmp_path, CRCR_SANDBOX="off") as relay:
        answer = await say(relay, a_run(relay))
        assert refusal_code(answer) == (403, "not_allowlisted")
        assert "sandbox" not in answer.text
        page = await relay.http.get("/crcr/sandbox", headers={"accept": "text/html"})
        assert page.status_code == 404
        assert "the sandbox is off" in page.text
        for path in ("/api/v1/sandbox", "/api/v1/sandbox.csv"):
            told = await relay.http.get(path)
            assert refusal_code(told) == (404, "not_found")
            assert "the sandbox is off" in told.json()["error"]["detail"]
        assert "sandbox" not in (await relay.http.get("/crcr")).text.lower()


async def test_where_it_is_on_pages_lead_to_it(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        assert 'href="/crcr/sandbox"' in (await relay.http.get("/crcr")).text


async def test_the_page_has_the_command_that_tries_a_workflow(tmp_path: Path) -> None:
    async with sandbox(tmp_path, CRCR_GITHUB_API_URL="https://api.github.com") as relay:
        empty = (await relay.http.get("/crcr/sandbox")).text
        assert "gh api &#39;repos/{owner}/{repo}/dispatches&#39; --input -" in empty
        for words in (f"{RELAY_URL}/github/callback", AUDIENCE, UPSTREAM):
            assert f"&#34;{words}&#34;" in empty
        named = (await relay.http.get("/crcr/sandbox", params={"repository": NEW})).text
        assert f"gh api repos/{NEW}/dispatches --input -" in named
        await say(relay, a_run(relay))
        assert "gh api" in (await relay.http.get("/crcr/sandbox")).text


async def test_twenty_reports_an_hour_are_taken_whatever_the_repository_is_called(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay)
        answers = [await say(relay, run) for _ in range(19)]
        await relay.github.rename_repository(NEW, "other")
        answers += [await say(relay, run) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429]
        assert refusal_code(answers[-1]) == (429, "rate_limited")
        assert int(answers[-1].headers["retry-after"]) <= 3600
        relay.clock.advance(3600)
        assert report_outcome(await say(relay, run)) == "repeat"


async def test_after_48_hours_nothing_is_shown_and_the_sweeper_takes_it(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await say(relay, a_run(relay))
        relay.clock.advance(48 * 3600)
        assert await tried(relay) == []
        assert NEW not in (await relay.http.get("/crcr/sandbox")).text
        await relay.services.sweeper.forget()
        assert relay.rows("SELECT * FROM sandbox_jobs") == []


async def test_a_private_repository_is_named_to_admins_alone(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay, QUIET)
        repository_id = relay.github.repository(QUIET).id
        hint = (await say(relay, run)).json()["hint"]
        assert f"?repository={repository_id} " in hint
        secret = {"job_name": "project-heron", "name": "heron nightly"}
        await say(relay, run, **secret)
        failed = [{"name": "test_secret", "message": "quiet words"}]
        await say(relay, run, "completed", conclusion="failure", failed_tests=failed, **secret)

        for path in (
            "/crcr/sandbox",
            f"/crcr/sandbox?repository={repository_id}",
            "/api/v1/sandbox",
            "/api/v1/sandbox.csv",
        ):
            text = (await relay.http.get(path)).text
            assert str(repository_id) in text
            for word in ("quiet", "test_secret", "heron"):
                assert word not in text
        assert f"a private repository (id {repository_id})" in (await relay.http.get("/crcr/sandbox")).text
        assert await tried(relay, repository="quiet/") == []
        for job in await tried(relay):
            assert (job["repository"], job["workflow_name"], job["job_name"]) == (None, None, None)
        admins = await tried(relay, headers=EYES)
        assert {job["repository"] for job in admins} == {QUIET}
        assert [job["job_name"] for job in admins] == ["project-heron", "build"]
        assert QUIET in (await relay.http.get("/crcr/sandbox?repository=quiet", headers=EYES)).text


async def test_what_was_made_private_meanwhile_is_kept_back_too(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay)
        await say(relay, run)
        assert [job["repository"] for job in await tried(relay)] == [NEW]
        relay.github.repository(NEW).private = True
        await say(relay, run, "completed", conclusion="success")
        assert [(job["repository"], job["job_name"]) for job in await tried(relay)] == [(None, None)]


async def test_a_reader_finds_a_repository_by_name_or_id(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await say(relay, a_run(relay))
        for asked in ("new/comer", "COMER", str(relay.github.repository(NEW).id)):
            assert [job["repository"] for job in await tried(relay, repository=asked)] == [NEW]
        assert await tried(relay, repository="nobody") == []
        page = await relay.http.get("/crcr/sandbox?repository=nobody")
        assert "No reports from this repository" in page.text


async def test_fault_29_hostile_text_is_text_on_the_page_and_harmless_in_csv(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay)
        said = {"job_name": f"=1+1{HOSTILE}", "name": HOSTILE}
        failed = [{"name": HOSTILE, "file": f"javascript:{HOSTILE}", "message": HOSTILE}]
        await say(relay, run, **said)
        done = await say(relay, run, "completed", conclusion="failure", failed_tests=failed, **said)
        assert report_outcome(done) == "applied"
        page = (await relay.http.get("/crcr/sandbox", params={"repository": HOSTILE})).text
        page += (await relay.http.get("/crcr/sandbox")).text
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
        assert 'href="javascript' not in page

        sheet = (await relay.http.get("/api/v1/sandbox.csv")).text
        [line] = list(csv.DictReader(io.StringIO(sheet)))
        assert line["job_name"].startswith("'=1+1<script>")
        assert "\x1b" not in sheet


async def test_no_token_is_kept_or_shown(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = a_run(relay)
        token = relay.github.oidc_token(run, "build", audience=AUDIENCE)
        body = relay.github.ci.report_body(run, run.job("build"), "in_progress", secret=token)
        await relay.http.post(CALLBACK, json={**body, "delivery_id": "x"}, headers=bearer(token))
        assert token not in str(relay.rows("SELECT * FROM sandbox_jobs"))
        assert token not in (await relay.http.get("/crcr/sandbox")).text


@pytest.mark.parametrize("access", ["token", "proxy"])
async def test_access_is_as_everywhere(tmp_path: Path, access: str) -> None:
    more = {"CRCR_TRUSTED_PROXIES": "198.51.100.0/24"} if access == "proxy" else {}
    async with sandbox(tmp_path, CRCR_HUD_ACCESS=access, **more) as relay:
        assert report_outcome(await say(relay, a_run(relay))) == "applied"
        assert (await relay.http.get("/api/v1/sandbox")).status_code == 401
        assert NEW not in (await relay.http.get("/crcr/sandbox")).text
        assert [job["repository"] for job in await tried(relay, headers=EYES)] == [NEW]


async def test_once_it_is_listed_its_reports_are_real(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await say(relay, a_run(relay))
        relay.write_allowlist(f"{LISTED}  - {NEW}\n")
        await relay.refresh()
        assert refusal_code(await say(relay, a_run(relay))) == (404, "unknown_delivery")
        assert len(relay.rows("SELECT * FROM sandbox_jobs")) == 1
        assert relay.rows("SELECT downstream FROM refusals") == [{"downstream": NEW}]
        assert UPSTREAM in (await relay.http.get("/crcr/sandbox")).text
