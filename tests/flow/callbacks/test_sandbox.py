"""The sandbox: an unlisted repository tries its workflow, and no other table or page changes."""

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
ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN}"}
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e"


def _create_newcomers(github: GitHub) -> None:
    github.create_repository(NEW, installed=False, workflows=[WORKFLOW])
    github.create_repository(QUIET, installed=False, private=True, workflows=[WORKFLOW])


@asynccontextmanager
async def sandbox(folder: Path, **more: Any) -> AsyncIterator[RunningRelay]:
    settings = {"CRCR_SANDBOX": "on", **TOKENS, **more}
    async with running_relay(
        folder, LISTED, downstreams=(BACKEND,), prepare=_create_newcomers, **settings
    ) as relay:
        yield relay


def start_run(relay: RunningRelay, name: str = NEW) -> WorkflowRun:
    return relay.github.start_run(name, event="repository_dispatch", event_type="pull_request")


async def send_report(
    relay: RunningRelay,
    run: WorkflowRun,
    status: str = "in_progress",
    *,
    event: str = "pull_request",
    **workflow: Any,
) -> httpx.Response:
    chosen = run.job("build")
    body = relay.github.ci.report_body(run, chosen, status, **workflow)
    sent = {**body, "event_type": event, "delivery_id": "anything"}
    token = relay.github.oidc_token(run, chosen, audience=AUDIENCE)
    return await relay.http.post(CALLBACK, json=sent, headers=bearer(token))


async def fetch_sandbox_jobs(relay: RunningRelay, **params: Any) -> list[dict[str, Any]]:
    headers = params.pop("headers", {})
    answer = await relay.http.get("/api/v1/sandbox", params=params, headers=headers)
    assert answer.status_code == 200, answer.text
    jobs: list[dict[str, Any]] = answer.json()["jobs"]
    return jobs


async def test_an_unlisted_repository_sees_its_run_from_start_to_end(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay)
        repository_id = relay.github.repository(NEW).id
        started = (await send_report(relay, run)).json()
        assert (started["ok"], started["status"], started["repeat"], started["sandbox"]) == (
            True,
            "in_progress",
            False,
            True,
        )
        assert f"{RELAY_URL}/crcr/sandbox?repository={repository_id} " in started["hint"]
        assert "decide nothing" in started["hint"]
        failed = [{"name": "test_attention", "file": "test_ops.py", "message": "1.0 != 2.0"}]
        result: dict[str, Any] = {
            "conclusion": "failure",
            "failed_tests": failed,
            "test_results": {"passed": 4, "failed": 1},
        }
        assert report_outcome(await send_report(relay, run, "completed", **result)) == "applied"
        assert report_outcome(await send_report(relay, run, "completed", **result)) == "repeat"

        [job] = await fetch_sandbox_jobs(relay)
        assert (job["repository"], job["repository_id"], job["job_name"]) == (NEW, repository_id, "build")
        assert (job["state"], job["conclusion"], job["tests_failed"]) == ("completed", "failure", 1)
        assert job["failed_tests"] == failed
        page = (await relay.http.get("/crcr/sandbox")).text
        for words in (NEW, "test_attention", "1.0 != 2.0", "do not count", "are deleted after 48 hours"):
            assert words in page


async def test_a_sandbox_job_has_the_lifecycle_of_a_real_job(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay)
        early = await send_report(relay, run, "completed", conclusion="success")
        assert refusal_code(early) == (409, "no_in_progress")
        assert "late" in early.json()["error"]["hint"]
        assert report_outcome(await send_report(relay, run, late=True)) == "applied"
        assert report_outcome(await send_report(relay, run, "completed", conclusion="success")) == "applied"
        assert refusal_code(await send_report(relay, run, "completed", conclusion="failure")) == (
            409,
            "conflicting_result",
        )
        assert refusal_code(await send_report(relay, run, run_id="1")) == (403, "claim_mismatch")
        assert refusal_code(await send_report(relay, run, status="what")) == (400, "bad_report")
        [job] = await fetch_sandbox_jobs(relay)
        assert (job["conclusion"], job["late"]) == ("success", True)


@pytest.mark.parametrize("event", ["nightly", "periodic"])
async def test_a_self_report_to_the_sandbox_needs_only_the_completed_report(
    tmp_path: Path, event: str
) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay)
        assert (
            report_outcome(await send_report(relay, run, "completed", event=event, conclusion="success"))
            == "applied"
        )
        assert (
            report_outcome(await send_report(relay, run, "completed", event=event, conclusion="success"))
            == "repeat"
        )
        [job] = await fetch_sandbox_jobs(relay)
        assert (job["event_type"], job["state"]) == (event, "completed")


async def test_sandbox_reports_change_no_other_table_and_no_other_page(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        tables = list(metadata.tables)

        def everything() -> dict[str, list[dict[str, Any]]]:
            return {name: relay.rows(f"SELECT * FROM {name}") for name in tables if name != "sandbox_jobs"}  # noqa: S608

        before = everything()
        run = start_run(relay)
        link = {"url": "https://ci.example/1", "artifact_url": "https://ci.example/2"}
        await send_report(relay, run, **link)
        await send_report(relay, run, "completed", conclusion="failure", **link)
        await send_report(relay, run, "completed", conclusion="success")
        assert await relay.drain() == 0
        assert everything() == before
        assert "ci.example" not in (await relay.http.get("/crcr/sandbox")).text
        assert NEW not in (await relay.http.get("/crcr")).text
        for path in (f"/badge/{NEW}.svg", f"/crcr/{NEW}", f"/api/v1/backends/{NEW}"):
            assert (await relay.http.get(path)).status_code == 404


async def test_sandbox_reports_are_counted_separately_in_the_metrics(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await send_report(relay, start_run(relay))
        counted = (await relay.http.get("/metrics")).text
        assert 'crcr_callbacks_total{outcome="sandbox"} 1.0' in counted
        assert 'outcome="in_progress"' not in counted


async def test_a_repository_that_any_upstream_lists_cannot_use_the_sandbox(tmp_path: Path) -> None:
    lists = {"up/one": "L2: [org/backend]\n", "up/two": "L2: [org/other]\n"}
    async with running_relay(tmp_path, lists, downstreams=(BACKEND, "org/other"), CRCR_SANDBOX="on") as relay:
        await relay.github.open_pr("up/two")
        await relay.drain()
        theirs = relay.github.runs("org/other")[0]
        mine = start_run(relay, BACKEND)
        body = relay.github.ci.report_body(mine, mine.job("build"), "in_progress")
        sent = {**body, "delivery_id": theirs.delivery_id}
        token = relay.github.oidc_token(mine, "build", audience=AUDIENCE)
        answer = await relay.http.post(CALLBACK, json=sent, headers=bearer(token))
        assert refusal_code(answer) == (403, "not_allowlisted")
        assert relay.rows("SELECT * FROM sandbox_jobs") == []


async def test_with_the_sandbox_off_an_unlisted_repository_is_refused_without_mention_of_it(
    tmp_path: Path,
) -> None:
    async with sandbox(tmp_path, CRCR_SANDBOX="off") as relay:
        answer = await send_report(relay, start_run(relay))
        assert refusal_code(answer) == (403, "not_allowlisted")
        assert "sandbox" not in answer.text
        page = await relay.http.get("/crcr/sandbox", headers={"accept": "text/html"})
        assert page.status_code == 404
        assert "the sandbox is off" in page.text
        for path in ("/api/v1/sandbox", "/api/v1/sandbox.csv"):
            refusal = await relay.http.get(path)
            assert refusal_code(refusal) == (404, "not_found")
            assert "the sandbox is off" in refusal.json()["error"]["detail"]
        assert "sandbox" not in (await relay.http.get("/crcr")).text.lower()


async def test_with_the_sandbox_on_the_pages_link_to_it(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        assert 'href="/crcr/sandbox"' in (await relay.http.get("/crcr")).text


async def test_the_sandbox_page_shows_the_command_that_dispatches_a_workflow(tmp_path: Path) -> None:
    async with sandbox(tmp_path, CRCR_GITHUB_API_URL="https://api.github.com") as relay:
        empty = (await relay.http.get("/crcr/sandbox")).text
        assert "gh api &#39;repos/{owner}/{repo}/dispatches&#39; --input -" in empty
        for words in (f"{RELAY_URL}/github/callback", AUDIENCE, UPSTREAM):
            assert f"&#34;{words}&#34;" in empty
        named = (await relay.http.get("/crcr/sandbox", params={"repository": NEW})).text
        assert f"gh api repos/{NEW}/dispatches --input -" in named
        await send_report(relay, start_run(relay))
        assert "gh api" in (await relay.http.get("/crcr/sandbox")).text


async def test_the_limit_of_twenty_reports_an_hour_survives_a_rename_of_the_repository(
    tmp_path: Path,
) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay)
        answers = [await send_report(relay, run) for _ in range(19)]
        await relay.github.rename_repository(NEW, "other")
        answers += [await send_report(relay, run) for _ in range(2)]
        assert [answer.status_code for answer in answers] == [200] * 20 + [429]
        assert refusal_code(answers[-1]) == (429, "rate_limited")
        assert int(answers[-1].headers["retry-after"]) <= 3600
        relay.clock.advance(3600)
        assert report_outcome(await send_report(relay, run)) == "repeat"


async def test_after_48_hours_a_job_is_not_shown_and_the_sweeper_deletes_it(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await send_report(relay, start_run(relay))
        relay.clock.advance(48 * 3600)
        assert await fetch_sandbox_jobs(relay) == []
        assert NEW not in (await relay.http.get("/crcr/sandbox")).text
        await relay.services.sweeper.forget()
        assert relay.rows("SELECT * FROM sandbox_jobs") == []


async def test_a_private_repository_is_named_only_to_admins(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay, QUIET)
        repository_id = relay.github.repository(QUIET).id
        hint = (await send_report(relay, run)).json()["hint"]
        assert f"?repository={repository_id} " in hint
        secret = {"job_name": "project-heron", "name": "heron nightly"}
        await send_report(relay, run, **secret)
        failed = [{"name": "test_secret", "message": "quiet words"}]
        await send_report(relay, run, "completed", conclusion="failure", failed_tests=failed, **secret)

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
        assert await fetch_sandbox_jobs(relay, repository="quiet/") == []
        for job in await fetch_sandbox_jobs(relay):
            assert (job["repository"], job["workflow_name"], job["job_name"]) == (None, None, None)
        admins = await fetch_sandbox_jobs(relay, headers=ADMIN_HEADERS)
        assert {job["repository"] for job in admins} == {QUIET}
        assert [job["job_name"] for job in admins] == ["project-heron", "build"]
        assert QUIET in (await relay.http.get("/crcr/sandbox?repository=quiet", headers=ADMIN_HEADERS)).text


async def test_a_repository_made_private_later_is_hidden_too(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay)
        await send_report(relay, run)
        assert [job["repository"] for job in await fetch_sandbox_jobs(relay)] == [NEW]
        relay.github.repository(NEW).private = True
        await send_report(relay, run, "completed", conclusion="success")
        assert [(job["repository"], job["job_name"]) for job in await fetch_sandbox_jobs(relay)] == [
            (None, None)
        ]


async def test_the_sandbox_is_filtered_by_repository_name_or_id(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await send_report(relay, start_run(relay))
        for query in ("new/comer", "COMER", str(relay.github.repository(NEW).id)):
            assert [job["repository"] for job in await fetch_sandbox_jobs(relay, repository=query)] == [NEW]
        assert await fetch_sandbox_jobs(relay, repository="nobody") == []
        page = await relay.http.get("/crcr/sandbox?repository=nobody")
        assert "No reports from this repository" in page.text


async def test_fault_29_hostile_text_is_escaped_on_the_page_and_harmless_in_csv(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay)
        fields = {"job_name": f"=1+1{HOSTILE}", "name": HOSTILE}
        failed = [{"name": HOSTILE, "file": f"javascript:{HOSTILE}", "message": HOSTILE}]
        await send_report(relay, run, **fields)
        done = await send_report(relay, run, "completed", conclusion="failure", failed_tests=failed, **fields)
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


async def test_no_token_is_stored_or_shown(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        run = start_run(relay)
        token = relay.github.oidc_token(run, "build", audience=AUDIENCE)
        body = relay.github.ci.report_body(run, run.job("build"), "in_progress", secret=token)
        await relay.http.post(CALLBACK, json={**body, "delivery_id": "x"}, headers=bearer(token))
        assert token not in str(relay.rows("SELECT * FROM sandbox_jobs"))
        assert token not in (await relay.http.get("/crcr/sandbox")).text


@pytest.mark.parametrize("access", ["token", "proxy"])
async def test_the_sandbox_follows_the_access_setting_of_the_pages(tmp_path: Path, access: str) -> None:
    more = {"CRCR_TRUSTED_PROXIES": "198.51.100.0/24"} if access == "proxy" else {}
    async with sandbox(tmp_path, CRCR_HUD_ACCESS=access, **more) as relay:
        assert report_outcome(await send_report(relay, start_run(relay))) == "applied"
        assert (await relay.http.get("/api/v1/sandbox")).status_code == 401
        assert NEW not in (await relay.http.get("/crcr/sandbox")).text
        assert [job["repository"] for job in await fetch_sandbox_jobs(relay, headers=ADMIN_HEADERS)] == [NEW]


async def test_reports_of_a_repository_are_real_once_it_is_listed(tmp_path: Path) -> None:
    async with sandbox(tmp_path) as relay:
        await send_report(relay, start_run(relay))
        relay.write_allowlist(f"{LISTED}  - {NEW}\n")
        await relay.refresh()
        assert refusal_code(await send_report(relay, start_run(relay))) == (404, "unknown_delivery")
        assert len(relay.rows("SELECT * FROM sandbox_jobs")) == 1
        assert relay.rows("SELECT downstream FROM refusals") == [{"downstream": NEW}]
        assert UPSTREAM in (await relay.http.get("/crcr/sandbox")).text
