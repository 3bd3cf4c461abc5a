"""A downstream's setup findings over the API: what is wrong, how to fix it, and that the fix clears the finding."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from github_sim.github import Match
from support.downstream.callbacks import BACKEND, LISTED, post_report
from support.downstream.setup import (
    EYES,
    GOOD,
    NO_TOKEN,
    PATH,
    PINNED,
    SETUP,
    UNPINNED,
    answer_code,
    examine_again,
    finding_state,
    finding_text,
    oidc_header,
    relay_with_downstream,
    setup_findings,
)
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM, RunningRelay, running_relay
from support.sign_in import READER, audit_log

HIDDEN = f"L2:\n  - {BACKEND}: {{visibility: hidden}}\n"
NAMED = f"L2:\n  - {BACKEND}: {{visibility: name}}\n"


def count_calls(relay: RunningRelay, path_part: str) -> int:
    return sum(call.method == "GET" and path_part in call.path for call in relay.github.calls)


async def test_a_correct_setup_has_no_problems(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        setup = await examine_again(relay)
        assert (setup["listed"], setup["level"], setup["being_inspected"]) == (True, "L2", False)
        assert setup["inspected_at"] is not None
        states = {finding["name"]: finding["state"] for finding in setup["findings"]}
        assert states == {
            **dict.fromkeys(("allowlist", "standing", "app", "permissions", "identity"), "ok"),
            **dict.fromkeys(("workflow", "events", "id_token", "pins", "refusal"), "ok"),
            **dict.fromkeys(("dispatch", "callback"), "unknown"),
        }


@pytest.mark.parametrize(
    ("pins", "problem"),
    [
        ("", "pins no relay, so the reporter stops there"),
        (
            PINNED.replace("relay.test", "other.test").replace("http:", "https:"),
            "pins other relays and not this one",
        ),
        (PINNED.replace(AUDIENCE, "sts.amazonaws.com"), "pins other relays and not this one"),
        (
            "env: {CRCR_RELAYS: '${{ github.event.client_payload.relay.callback_url }} x'}\n",
            "so a dispatch decides who gets a token",
        ),
    ],
)
async def test_an_unpinned_workflow_is_a_problem_whose_hint_gives_the_two_lines_to_add(
    tmp_path: Path, pins: str, problem: str
) -> None:
    async with relay_with_downstream(tmp_path, workflow=UNPINNED + pins) as relay:
        setup = await examine_again(relay)
        assert finding_state(setup, "pins") == "problem"
        hint = finding_text(setup, "pins")
        assert problem in hint
        assert f'`env:` and `  CRCR_RELAYS: "{RELAY_URL}/github/callback {AUDIENCE}"`' in hint
        relay.github.write_file(BACKEND, PATH, GOOD)
        relay.clock.advance(61)
        assert finding_state(await examine_again(relay), "pins") == "ok"


async def test_reading_the_findings_makes_no_call_to_github(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        before = len(relay.github.calls)
        setup = await setup_findings(relay)
        await relay.drain()
        assert (finding_state(setup, "app"), len(relay.github.calls)) == ("unknown", before)
        assert relay.rows("SELECT * FROM inspections") == []


async def test_a_missing_app_is_a_problem_until_it_is_installed(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, installed=False) as relay:
        setup = await examine_again(relay)
        assert (finding_state(setup, "app"), finding_state(setup, "workflow")) == ("problem", "absent")
        assert "install it" in finding_text(setup, "app")
        await relay.github.install(BACKEND)
        relay.clock.advance(61)
        setup = await examine_again(relay)
        assert {finding_state(setup, name) for name in ("app", "permissions", "identity", "workflow")} == {
            "ok"
        }


async def test_a_missing_permission_is_a_problem_until_it_is_granted(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        granted = relay.github.installation(BACKEND).permissions
        granted["contents"] = "read"
        setup = await examine_again(relay)
        assert finding_state(setup, "permissions") == "problem"
        granted["contents"] = "write"
        relay.clock.advance(61)
        assert finding_state(await examine_again(relay), "permissions") == "ok"


async def test_a_suspended_installation_is_a_problem(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.suspend_installation(BACKEND)
        setup = await examine_again(relay)
        assert (finding_state(setup, "app"), finding_state(setup, "permissions")) == ("problem", "absent")
        assert "suspended" in finding_text(setup, "app")


async def test_a_missing_workflow_is_a_problem_until_it_is_committed(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, workflow=None) as relay:
        setup = await examine_again(relay)
        assert (finding_state(setup, "workflow"), finding_state(setup, "id_token")) == ("problem", "absent")
        relay.github.write_file(BACKEND, PATH, NO_TOKEN)
        relay.clock.advance(61)
        setup = await examine_again(relay)
        assert (finding_state(setup, "workflow"), finding_state(setup, "id_token")) == ("ok", "problem")
        relay.github.write_file(BACKEND, PATH, GOOD)
        relay.clock.advance(61)
        assert finding_state(await examine_again(relay), "id_token") == "ok"


async def test_a_workflow_on_another_branch_does_not_count(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, workflow=None) as relay:
        await relay.github.push(BACKEND, ref="refs/heads/join", created=True, files={PATH: GOOD})
        assert finding_state(await examine_again(relay), "workflow") == "problem"


async def test_a_workflow_that_does_not_listen_or_is_disabled_is_reported(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, workflow="on: push\njobs: {}\n") as relay:
        setup = await examine_again(relay)
        assert (finding_state(setup, "workflow"), "The only workflow" in finding_text(setup, "workflow")) == (
            "problem",
            True,
        )
        relay.github.write_file(BACKEND, PATH, GOOD.replace("push, ", ""))
        relay.clock.advance(61)
        setup = await examine_again(relay)
        assert (finding_state(setup, "events"), "listens to push" in finding_text(setup, "events")) == (
            "warning",
            True,
        )
        relay.github.repository(BACKEND).disabled_workflows.add(PATH)
        relay.clock.advance(61)
        assert "disabled manually" in finding_text(await examine_again(relay), "workflow")


async def test_the_workflows_of_a_private_repository_are_read_with_the_apps_own_token(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, private=True) as relay:
        assert finding_state(await examine_again(relay), "id_token") == "ok"


async def test_the_files_of_a_private_repository_are_named_to_administrators_only(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, private=True) as relay:
        setup = await examine_again(relay)
        assert finding_text(setup, "workflow").startswith("One workflow on the default branch listens")
        page = (await relay.http.get("/crcr/onboarding", params={"repository": BACKEND})).text
        assert "One workflow" in page
        assert PATH not in str(setup["findings"])
        assert PATH in finding_text(await setup_findings(relay, **EYES), "workflow")
        relay.github.repository(BACKEND).disabled_workflows.add(PATH)
        relay.clock.advance(61)
        setup = await examine_again(relay)
        assert (finding_state(setup, "workflow"), PATH in str(setup["findings"])) == ("problem", False)


async def test_a_repository_that_took_over_the_name_is_a_problem_and_is_not_inspected(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        bound_id = relay.github.repository(BACKEND).id
        assert finding_state(await examine_again(relay), "identity") == "ok"
        stranger = relay.github.replace_repository(BACKEND)
        relay.github.write_file(BACKEND, ".github/workflows/strange.yml", GOOD)
        relay.clock.advance(61)
        setup = await examine_again(relay)
        assert (finding_state(setup, "identity"), finding_state(setup, "app")) == ("problem", "unknown")
        assert finding_state(setup, "workflow") == finding_state(setup, "permissions") == "absent"
        identity_text = finding_text(setup, "identity")
        assert (str(stranger.id) in identity_text, str(bound_id) in identity_text) == (True, True)
        [row] = relay.rows("SELECT found FROM inspections")
        assert ("strange" in row["found"], "permissions" in row["found"]) == (False, False)
        assert count_calls(relay, "strange.yml") == 0

        rebound = {"repository": BACKEND, "repository_id": stranger.id}
        answer = await relay.http.post("/api/v1/admin/rebind", json=rebound, headers=EYES)
        assert answer.status_code == 200, answer.text
        assert finding_state(await setup_findings(relay), "app") == "unknown"
        relay.clock.advance(61)
        assert "strange.yml" in finding_text(await examine_again(relay), "workflow")


async def test_a_workflow_that_the_app_may_not_read_is_unknown(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, private=True) as relay:
        relay.github.installation(BACKEND).permissions.pop("contents")
        setup = await examine_again(relay)
        assert (finding_state(setup, "permissions"), finding_state(setup, "workflow")) == (
            "problem",
            "unknown",
        )


async def test_a_second_inspection_within_a_minute_is_skipped_and_a_later_one_rereads_no_file(
    tmp_path: Path,
) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        first = await relay.http.post(SETUP)
        second = await relay.http.post(SETUP)
        assert (first.json()["asked"], second.json()["asked"]) == (True, False)
        assert (await setup_findings(relay))["being_inspected"] is True
        await relay.drain()
        await relay.http.post(SETUP)
        await relay.drain()
        assert count_calls(relay, "/contents/.github/workflows/crcr.yml") == 1
        assert count_calls(relay, f"{BACKEND}/actions/workflows") == 1
        relay.clock.advance(61)
        await examine_again(relay)
        assert count_calls(relay, f"{BACKEND}/actions/workflows") == 2
        assert count_calls(relay, "/contents/.github/workflows/crcr.yml") == 1
        assert "on:" not in str(relay.rows("SELECT found FROM inspections"))


async def test_findings_of_an_earlier_release_are_still_shown_and_its_files_are_reread(
    tmp_path: Path,
) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await examine_again(relay)
        await relay.http.post(SETUP)
        [row] = relay.rows("SELECT found FROM inspections WHERE found IS NOT NULL")
        findings = json.loads(row["found"])
        del findings["workflows"][0]["pinning"], findings["workflows"][0]["pins"]
        relay.rows("UPDATE inspections SET found = ?", json.dumps(findings))
        assert "pinning" not in str(relay.rows("SELECT found FROM inspections"))
        assert finding_state(await setup_findings(relay), "workflow") == "ok"
        relay.clock.advance(61)
        await examine_again(relay)
        assert count_calls(relay, "/contents/.github/workflows/crcr.yml") == 2


async def test_inspections_are_limited_to_30_per_address(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        answers = [(await relay.http.post(SETUP)).status_code for _ in range(31)]
        assert (answers[:30], answers[30]) == ([202] * 30, 429)


async def test_a_github_outage_is_not_a_problem_of_the_downstream(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        relay.github.faults.answer(500, on=Match("GET", f"/repos/{BACKEND}/installation"), times=None)
        setup = await examine_again(relay)
        assert (finding_state(setup, "app"), "did not answer" in finding_text(setup, "app")) == (
            "unknown",
            True,
        )
        assert relay.rows("SELECT state FROM effects WHERE kind = 'inspect_repository'") == [
            {"state": "done"}
        ]
        relay.github.faults.clear()


async def test_a_parked_dispatch_is_summarized_for_readers_and_shown_in_full_to_administrators(
    tmp_path: Path,
) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        relay.github.faults.answer(422, on=Match("POST", f"/repos/{BACKEND}/dispatches"), message="odd words")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        summary = finding_text(await setup_findings(relay), "dispatch")
        assert "GitHub rejected the dispatch" in summary
        assert "odd words" not in summary
        assert "odd words" in finding_text(await setup_findings(relay, **EYES), "dispatch")


async def test_refused_and_accepted_reports_are_shown(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[0]
        assert finding_state(await setup_findings(relay), "dispatch") == "ok"
        refused = await post_report(relay, run, "build", "in_progress", run_id="1")
        assert refused.status_code == 403
        setup = await setup_findings(relay)
        assert (finding_state(setup, "refusal"), "claim_mismatch" in finding_text(setup, "refusal")) == (
            "problem",
            True,
        )
        relay.clock.advance(5)
        assert (await post_report(relay, run, "build", "in_progress")).status_code == 200
        setup = await setup_findings(relay)
        assert (finding_state(setup, "callback"), finding_state(setup, "refusal")) == ("ok", "warning")


@pytest.mark.parametrize(("sends_webhooks", "subject"), [(False, "first dispatch"), (True, "first run")])
async def test_the_first_run_is_in_progress_until_its_report_is_overdue(
    tmp_path: Path, sends_webhooks: bool, subject: str
) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        backend = relay.github.repository(BACKEND)
        backend.sends_run_webhooks = sends_webhooks
        backend.workflows[:] = [
            replace(workflow, run_name="CI {delivery_id}") for workflow in backend.workflows
        ]
        sent_at = relay.clock.now()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(240)
        setup = await setup_findings(relay)
        assert finding_state(setup, "callback") == "unknown"
        assert f"{subject} is in progress since {sent_at:%Y-%m-%d %H:%M} UTC (4 minutes ago)" in finding_text(
            setup, "callback"
        )
        relay.clock.advance(3600)
        assert finding_state(await setup_findings(relay), "callback") == "warning"


async def test_a_refusal_is_settled_once_the_jobs_result_is_accepted(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        [run] = relay.github.runs(BACKEND)
        assert (await post_report(relay, run, "build", "completed")).status_code == 409
        relay.clock.advance(1)
        await post_report(relay, run, "build", "in_progress")
        assert finding_state(await setup_findings(relay), "refusal") == "warning"
        await post_report(relay, run, "build", "completed")
        setup = await setup_findings(relay)
        assert (finding_state(setup, "refusal"), "settled" in finding_text(setup, "refusal")) == ("ok", True)


async def test_the_path_of_the_allowlist_is_shown_to_administrators_only(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        assert "(allowlist.yml)" in finding_text(await setup_findings(relay), "allowlist")
        assert str(tmp_path) not in str(await setup_findings(relay))
        assert str(tmp_path / "allowlist.yml") in finding_text(
            await setup_findings(relay, **EYES), "allowlist"
        )
        pages = [
            (await relay.http.get(path)).text for path in ("/crcr", "/api/v1/summary", "/api/v1/allowlist")
        ]
        assert str(tmp_path) not in "".join(pages)


async def test_a_downstream_that_never_reports_gets_a_silence_finding(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert finding_state(await setup_findings(relay), "silence") == "absent"
        await relay.pass_time(2 * 3600)
        assert finding_state(await setup_findings(relay), "silence") == "problem"


@pytest.mark.parametrize("listed", [HIDDEN, NAMED, "L2:\n  - org/other\n"])
async def test_a_hidden_or_name_only_backend_looks_unlisted(tmp_path: Path, listed: str) -> None:
    async with relay_with_downstream(tmp_path, listed) as relay:
        setup, refused = await setup_findings(relay), await relay.http.post(SETUP)
        assert (setup["listed"], setup["level"]) == (False, None)
        only, *rest = setup["findings"]
        assert only["text"].startswith(f"{BACKEND} is not on the allowlist of {UPSTREAM}")
        assert f"/crcr/onboarding?repository={BACKEND}" in only["hint"]
        assert [(finding["name"], finding["state"]) for finding in rest] == [
            ("app", "unknown"),
            ("workflow", "unknown"),
        ]
        assert answer_code(refused) == (404, "not_found")
        assert relay.rows("SELECT * FROM inspections") == []


async def test_administrators_see_the_setup_of_a_hidden_backend(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, HIDDEN) as relay:
        setup = await examine_again(relay, **EYES)
        assert (setup["listed"], finding_state(setup, "workflow")) == (True, "ok")


async def test_a_suspended_downstream_and_a_paused_upstream_are_reported(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.http.post("/api/v1/admin/pause", json={}, headers=EYES)
        assert finding_state(await setup_findings(relay), "standing") == "warning"
        await relay.http.post("/api/v1/admin/suspend", json={"repository": BACKEND}, headers=EYES)
        assert finding_state(await setup_findings(relay), "standing") == "problem"


async def test_an_inspection_runs_while_dispatching_is_paused(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.http.post("/api/v1/admin/pause", json={}, headers=EYES)
        assert finding_state(await examine_again(relay), "workflow") == "ok"


async def test_a_test_dispatch_by_an_administrator_is_sent_and_audited(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        answer = await relay.http.post(f"{SETUP}/test", headers=EYES)
        assert answer.status_code == 202
        await relay.drain()
        guid = answer.json()["delivery"]
        assert relay.dispatch_states() == {(guid, BACKEND): "sent"}
        assert [dispatch.event_type for dispatch in relay.github.dispatches(BACKEND)] == ["crcr_test"]
        assert ("ann", "dispatch_test", BACKEND) in audit_log(relay)
        delivery = (await relay.http.get(f"/api/v1/deliveries/{guid}")).json()
        assert [dispatch["state"] for dispatch in delivery["dispatches"]] == ["sent"]


async def test_a_repository_can_request_a_test_dispatch_for_itself_only_with_its_own_token(
    tmp_path: Path,
) -> None:
    both = f"L2:\n  - {BACKEND}\n  - org/other\n"
    async with running_relay(tmp_path, both, downstreams=(BACKEND, "org/other")) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        own_run, other_run = (relay.github.runs(name)[0] for name in (BACKEND, "org/other"))
        own_answer = await relay.http.post(f"{SETUP}/test", headers=oidc_header(relay, own_run))
        other_answer = await relay.http.post(f"{SETUP}/test", headers=oidc_header(relay, other_run))
        assert (answer_code(own_answer), answer_code(other_answer)) == ((202, None), (403, "not_admin"))
        assert (f"{BACKEND} (its own token)", "dispatch_test", BACKEND) in audit_log(relay)


async def test_a_token_of_a_repository_that_took_over_the_name_starts_no_test(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        relay.github.replace_repository(BACKEND)
        run = relay.github.ci.start_runs(relay.github.repository(BACKEND), "repository_dispatch", "push", {})[
            0
        ]
        answer = await relay.http.post(f"{SETUP}/test", headers=oidc_header(relay, run))
        assert answer_code(answer) == (403, "not_admin")


@pytest.mark.parametrize("access", ["public", "token"])
async def test_a_test_dispatch_is_refused_without_a_valid_admin_token_or_from_another_origin(
    tmp_path: Path, access: str
) -> None:
    async with relay_with_downstream(tmp_path, CRCR_HUD_ACCESS=access) as relay:
        address = f"{SETUP}/test"
        assert answer_code(await relay.http.post(address)) == (401, "not_signed_in")
        assert answer_code(await relay.http.post(address, headers={"authorization": "Bearer no"})) == (
            401,
            "not_authentic",
        )
        reader = {"authorization": f"Bearer {READER}"}
        assert answer_code(await relay.http.post(address, headers=reader)) == (403, "not_admin")
        cross_origin = {**EYES, "origin": "https://evil.example"}
        assert answer_code(await relay.http.post(address, headers=cross_origin)) == (403, "cross_origin")
        assert relay.github.dispatches(BACKEND) == []


async def test_test_dispatches_are_limited_to_six_an_hour_per_repository(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        answers = [(await relay.http.post(f"{SETUP}/test", headers=EYES)).status_code for _ in range(7)]
        assert answers == [202] * 6 + [429]
        relay.clock.advance(3601)
        assert (await relay.http.post(f"{SETUP}/test", headers=EYES)).status_code == 202


async def test_wrong_tokens_are_rate_limited(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        wrong = {"authorization": "Bearer guess"}
        answers = [(await relay.http.post(f"{SETUP}/test", headers=wrong)).status_code for _ in range(11)]
        assert (answers[:10], answers[10]) == ([401] * 10, 429)


async def test_unlisted_and_suspended_backends_get_no_test_dispatch(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        assert answer_code(await relay.http.post("/api/v1/setup/no/body/test", headers=EYES)) == (
            404,
            "not_found",
        )
        await relay.http.post("/api/v1/admin/suspend", json={"repository": BACKEND}, headers=EYES)
        assert answer_code(await relay.http.post(f"{SETUP}/test", headers=EYES)) == (409, "not_possible")


async def test_the_setup_api_needs_a_token_where_the_pages_need_one(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, CRCR_HUD_ACCESS="token") as relay:
        assert answer_code(await relay.http.get(SETUP)) == (401, "not_signed_in")
        assert answer_code(await relay.http.post(SETUP)) == (401, "not_signed_in")
        assert (await examine_again(relay, authorization=f"Bearer {READER}"))["listed"] is True


async def test_the_findings_are_per_upstream(tmp_path: Path) -> None:
    allowlists = {UPSTREAM: LISTED, "second/up": "L1:\n  - org/else\n"}
    async with running_relay(tmp_path, allowlists, downstreams=(BACKEND, "org/else")) as relay:
        assert (await setup_findings(relay))["listed"] is True
        assert (await setup_findings(relay, f"{SETUP}?upstream=second/up"))["listed"] is False
        assert answer_code(await relay.http.get(f"{SETUP}?upstream=no/where")) == (404, "not_found")
