"""Refused reports are shown as text to the backend and the admins that they concern, and reveal nothing to others."""

import csv
import io
from pathlib import Path
from typing import Any

import httpx
import pytest

from github_sim.github import HostileToken, WorkflowRun
from support.downstream.callbacks import (
    BACKEND,
    CALLBACK,
    bearer,
    callbacks_on_outage,
    dispatched_run,
    post_report,
    refusal_code,
    report_outcome,
)
from support.downstream.self_reports import nightly_run, send_self_report
from support.running_relay import AUDIENCE, UPSTREAM, WORKFLOW, RunningRelay, running_relay
from support.sign_in import ADMIN, TOKENS

API = f"/api/v1/backends/{BACKEND}/refusals"
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202e=HYPERLINK(1)"
ADMIN_HEADERS = {"authorization": f"Bearer {ADMIN}"}


async def read_refusals(relay: RunningRelay, path: str = API, **headers: str) -> list[dict[str, Any]]:
    answer = await relay.http.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    refusals: list[dict[str, Any]] = answer.json()["refusals"]
    return refusals


async def test_a_refused_report_is_shown_on_its_senders_page_and_in_the_api(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        page = await relay.http.get(f"/crcr/{BACKEND}")
        assert "Refused" not in page.text
        answer = await post_report(relay, run, "build", "completed")
        assert refusal_code(answer) == (409, "no_in_progress")

        [one] = await read_refusals(relay)
        error = answer.json()["error"]
        assert (one["code"], one["detail"], one["hint"]) == (error["code"], error["detail"], error["hint"])
        assert (one["run_id"], one["job_name"], one["workflow_name"]) == (
            str(run.id),
            "build",
            run.workflow.name,
        )
        assert (one["delivery"], one["delivery_known"]) == (run.delivery_id, True)
        assert one["meaning"] == "The job's start was never reported"
        page = await relay.http.get(f"/crcr/{BACKEND}")
        assert "Refused reports" in page.text
        assert "The job&#39;s start was never reported" in page.text
        assert f'href="/crcr/deliveries/{run.delivery_id}"' in page.text


async def test_a_refusal_is_settled_when_a_result_of_the_same_job_is_accepted_later(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert refusal_code(await post_report(relay, run, "build", "completed")) == (409, "no_in_progress")
        await post_report(relay, run, "build", "in_progress")
        assert [refusal["settled"] for refusal in await read_refusals(relay)] == [False]
        assert "Next step:" in (await relay.http.get(f"/crcr/{BACKEND}")).text
        assert report_outcome(await post_report(relay, run, "build", "completed")) == "applied"

        assert [refusal["settled"] for refusal in await read_refusals(relay)] == [True]
        page = (await relay.http.get(f"/crcr/{BACKEND}")).text
        assert "Settled: the result was accepted." in page
        assert "Next step:" not in page
        assert 'id="refused-line"' not in page
        table = list(csv.DictReader(io.StringIO((await relay.http.get(f"{API}.csv")).text)))
        assert [line["settled"] for line in table] == ["true"]


async def test_an_earlier_result_does_not_settle_a_conflicting_result(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await post_report(relay, run, "build", "in_progress")
        await post_report(relay, run, "build", "completed")
        relay.clock.advance(1)
        assert refusal_code(await post_report(relay, run, "build", "completed", conclusion="failure")) == (
            409,
            "conflicting_result",
        )
        assert [refusal["settled"] for refusal in await read_refusals(relay)] == [False]


async def test_accepted_and_repeated_reports_are_not_listed_as_refusals(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert report_outcome(await post_report(relay, run, "build", "in_progress")) == "applied"
        assert report_outcome(await post_report(relay, run, "build", "in_progress")) == "repeat"
        assert await read_refusals(relay) == []


async def test_reports_answered_503_are_not_listed_as_refusals(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        keys_down = relay.github.faults.jwks(503)
        answer = await post_report(relay, run, "build", "in_progress")
        assert refusal_code(answer) == (503, "keys_unavailable")
        relay.github.faults.remove(keys_down)
        relay.clock.advance(int(answer.headers["retry-after"]))

        async with callbacks_on_outage(relay) as (store, http):
            for failures in ("reads_to_fail", "writes_to_fail", "answers_to_lose"):
                setattr(store, failures, 1)
                answer = await post_report(relay, run, "build", "in_progress", http=http)
                assert refusal_code(answer) == (503, "store_unavailable")
        assert relay.rows("SELECT * FROM refusals") == []


async def test_a_refusal_of_an_unparsable_body_names_no_run(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        token = relay.github.oidc_token(run, "build", audience=AUDIENCE)
        await relay.http.post(CALLBACK, content=b"{nonsense", headers=bearer(token))
        [one] = await read_refusals(relay)
        assert (one["code"], one["run_id"], one["job_name"], one["delivery"]) == (
            "bad_report",
            None,
            None,
            None,
        )


async def test_a_refusal_is_recorded_for_an_expired_token_or_a_wrong_audience(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for kind in (HostileToken.OTHER_AUDIENCE, HostileToken.EXPIRED):
            token = relay.github.hostile_token(kind, run, "build")
            await relay.github.report(run, "build", token=token)
            [one] = await read_refusals(relay)
            assert one["code"] == "not_authentic"
            assert token not in str(one)
        assert "expired" in one["detail"]


@pytest.mark.parametrize("kind", [HostileToken.TAMPERED, HostileToken.ALG_NONE, HostileToken.UNKNOWN_KID])
async def test_a_forged_token_writes_no_refusal(tmp_path: Path, kind: HostileToken) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await relay.github.report(run, "build", token=relay.github.hostile_token(kind, run, "build"))
        assert relay.rows("SELECT * FROM refusals") == []


async def test_an_unlisted_repository_writes_no_refusal(tmp_path: Path) -> None:
    def prepare(github: Any) -> None:
        github.create_repository("new/comer", workflows=[WORKFLOW])

    async with dispatched_run(tmp_path, prepare=prepare) as (relay, _):
        run = start_undispatched_run(relay, "new/comer")
        assert refusal_code(await send_unknown_delivery(relay, run)) == (403, "not_allowlisted")
        assert relay.rows("SELECT * FROM refusals") == []


def start_undispatched_run(relay: RunningRelay, name: str = BACKEND) -> WorkflowRun:
    """Start a run that no dispatch of the relay started."""
    return relay.github.start_run(name, event="repository_dispatch", event_type="pull_request")


async def send_unknown_delivery(relay: RunningRelay, run: WorkflowRun, **more: Any) -> httpx.Response:
    body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
    sent = {**body, "delivery_id": "made-up", **more}
    token = relay.github.oidc_token(run, "build", audience=AUDIENCE)
    return await relay.http.post(CALLBACK, json=sent, headers=bearer(token))


async def test_fault_26_a_repository_with_a_taken_over_name_leaves_one_refusal_without_its_text(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await post_report(relay, run, "build", "completed")
        relay.github.replace_repository(BACKEND)
        stranger = start_undispatched_run(relay)
        evil = {"run_id": stranger.id, "job_name": "EVIL", "status": "in_progress", "name": "EVIL"}
        for number in range(60):
            relay.clock.advance(3)
            fields = {"workflow": evil if number % 2 else {**evil, "status": f"EVIL {number}"}}
            await send_unknown_delivery(relay, stranger, **fields)

        refusals = await read_refusals(relay)
        assert [refusal["code"] for refusal in refusals] == ["identity_changed", "no_in_progress"]
        assert "EVIL" not in str(refusals)
        page = (await relay.http.get(f"/crcr/{BACKEND}")).text
        assert "Another repository of this name reported" in page
        assert "EVIL" not in page


async def test_fault_29_hostile_text_is_escaped_on_the_page_and_harmless_in_csv(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        fields = {"job_name": f"=1+1{HOSTILE}", "name": HOSTILE}
        body = relay.github.ci.report_body(run, run.job("build"), "completed", **fields)
        await relay.github.report(run, "build", body={**body, "delivery_id": "../../<b>x"})
        page = (await relay.http.get(f"/crcr/{BACKEND}")).text
        assert "<script>alert" not in page
        assert "\x1b" not in page
        assert "\u202e" not in page
        assert "<b>x" not in page
        assert 'href="/crcr/deliveries/..' not in page

        sheet = await relay.http.get(f"{API}.csv")
        assert sheet.headers["content-type"].startswith("text/csv")
        [line] = list(csv.DictReader(io.StringIO(sheet.text)))
        assert line["job_name"].startswith("'=1+1<script>")
        assert "\x1b" not in sheet.text
        assert (line["code"], line["delivery_known"]) == ("unknown_delivery", "false")


async def test_refusals_of_hidden_and_name_only_backends_are_shown_only_to_admins(tmp_path: Path) -> None:
    listed = "L2:\n  - org/shy: {visibility: name}\n  - org/hush: {visibility: hidden}\n"
    names = ("org/shy", "org/hush")
    async with running_relay(tmp_path, listed, downstreams=names, **TOKENS) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        for name in names:
            await relay.github.report(relay.github.runs(name)[0], "build", status="completed")
        shy, hush = (f"/api/v1/backends/{name}/refusals" for name in names)

        assert await read_refusals(relay, shy) == []
        assert "Refused" not in (await relay.http.get("/crcr/org/shy")).text
        for path in (hush, f"{hush}.csv", "/crcr/org/hush"):
            assert (await relay.http.get(path)).status_code == 404
        for path in (shy, hush):
            assert [refusal["code"] for refusal in await read_refusals(relay, path, **ADMIN_HEADERS)] == [
                "no_in_progress"
            ]


async def test_a_repository_sees_its_own_refusals_of_each_upstream_that_lists_it(tmp_path: Path) -> None:
    lists = {
        "up/one": "L2: [org/backend]\n",
        "up/two": "L2: [org/backend]\n",
        "up/three": "L2: [org/other]\n",
    }
    async with running_relay(tmp_path, lists, downstreams=(BACKEND, "org/other")) as relay:
        run = start_undispatched_run(relay)
        answer = await send_unknown_delivery(relay, run)
        assert refusal_code(answer) == (404, "unknown_delivery")
        for upstream, number in (("up/one", 200), ("up/two", 200), ("up/three", 404)):
            answer = await relay.http.get(API, params={"upstream": upstream})
            assert answer.status_code == number
            if number == 200:
                assert len(answer.json()["refusals"]) == 1


HIDDEN_UPSTREAM = "secret/upstream"


def public_and_hidden_listing(more: str = "") -> dict[str, str]:
    return {
        UPSTREAM: f"L2:\n  - {BACKEND}\n",
        HIDDEN_UPSTREAM: f"L2:\n  - {BACKEND}: {{visibility: hidden{more}}}\n",
    }


async def read_public_texts(relay: RunningRelay) -> str:
    """All public text about the refusals of the public listing."""
    paths = (f"{API}?", f"{API}.csv?", f"/crcr/{BACKEND}?", f"/api/v1/setup/{BACKEND}?")
    return "".join([(await relay.http.get(f"{path}upstream={UPSTREAM}")).text for path in paths])


async def test_a_refusal_without_a_named_upstream_does_not_reveal_which_upstreams_list_the_backend(
    tmp_path: Path,
) -> None:
    async with running_relay(
        tmp_path, public_and_hidden_listing(), downstreams=(BACKEND,), **TOKENS
    ) as relay:
        answer = await send_self_report(relay, nightly_run(relay), commit="a" * 40)
        assert refusal_code(answer) == (400, "bad_report")
        assert HIDDEN_UPSTREAM not in answer.text
        [one] = await read_refusals(relay, f"{API}?upstream={UPSTREAM}")
        assert "names no upstream" in one["detail"]
        assert HIDDEN_UPSTREAM not in str(one)
        assert (one["run_id"], one["workflow_name"], one["job_name"]) == (None, None, None)
        [theirs] = await read_refusals(relay, f"{API}?upstream={HIDDEN_UPSTREAM}", **ADMIN_HEADERS)
        assert theirs["job_name"] == "build"


async def test_a_refusal_is_shown_only_with_the_upstream_that_it_is_about(tmp_path: Path) -> None:
    lists = public_and_hidden_listing(", events: [pull_request]")
    async with running_relay(tmp_path, lists, downstreams=(BACKEND,), **TOKENS) as relay:
        named = {"repository": {"full_name": HIDDEN_UPSTREAM}}
        answer = await send_self_report(relay, nightly_run(relay), commit="a" * 40, payload=named)
        assert refusal_code(answer) == (403, "not_allowlisted")
        await relay.github.open_pr(HIDDEN_UPSTREAM)
        await relay.drain()
        [run] = [candidate for candidate in relay.github.runs(BACKEND) if candidate.delivery_id]
        assert refusal_code(await post_report(relay, run, "build", "completed")) == (409, "no_in_progress")

        assert await read_refusals(relay, f"{API}?upstream={UPSTREAM}") == []
        for code in ("not_allowlisted", "no_in_progress"):
            assert code not in await read_public_texts(relay)
        theirs = await read_refusals(relay, f"{API}?upstream={HIDDEN_UPSTREAM}", **ADMIN_HEADERS)
        assert [refusal["code"] for refusal in theirs] == ["no_in_progress", "not_allowlisted"]


async def test_at_most_thirty_refusals_a_minute_are_recorded(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        for _ in range(40):
            assert refusal_code(await post_report(relay, run, "build", "completed")) == (
                409,
                "no_in_progress",
            )
        assert len(await read_refusals(relay)) == 30


async def test_refusals_follow_the_access_setting_of_the_pages(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path, CRCR_HUD_ACCESS="token", **TOKENS) as (relay, _):
        assert (await relay.http.get(API)).status_code == 401
        assert await read_refusals(relay, **ADMIN_HEADERS) == []
