"""A downstream's set-up findings over the API: what is wrong, what to do, and that doing it helps."""

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


def count_calls(relay: RunningRelay, tail: str) -> int:
    return sum(call.method == "GET" and tail in call.path for call in relay.github.calls)


async def test_a_good_set_up_is_found_to_be_good(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        found = await examine_again(relay)
        assert (found["listed"], found["level"], found["being_inspected"]) == (True, "L2", False)
        assert found["inspected_at"] is not None
        told = {each["name"]: each["state"] for each in found["findings"]}
        assert told == {
            **dict.fromkeys(("allowlist", "standing", "app", "permissions", "identity"), "ok"),
            **dict.fromkeys(("workflow", "events", "id_token", "pins", "refusal"), "ok"),
            **dict.fromkeys(("dispatch", "callback"), "unknown"),
        }


@pytest.mark.parametrize(
    ("pins", "said"),
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
async def test_a_workflow_that_does_not_pin_this_relay_is_told_the_two_lines_and_they_help(
    tmp_path: Path, pins: str, said: str
) -> None:
    async with relay_with_downstream(tmp_path, workflow=UNPINNED + pins) as relay:
        found = await examine_again(relay)
        assert finding_state(found, "pins") == "problem"
        told = finding_text(found, "pins")
        assert said in told
        assert f'`env:` and `  CRCR_RELAYS: "{RELAY_URL}/github/callback {AUDIENCE}"`' in told
        relay.github.write_file(BACKEND, PATH, GOOD)
        relay.clock.advance(61)
        assert finding_state(await examine_again(relay), "pins") == "ok"


async def test_reading_asks_nobody(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        before = len(relay.github.calls)
        found = await setup_findings(relay)
        await relay.drain()
        assert (finding_state(found, "app"), len(relay.github.calls)) == ("unknown", before)
        assert relay.rows("SELECT * FROM inspections") == []


async def test_without_the_app_it_is_told_and_installing_it_helps(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, installed=False) as relay:
        found = await examine_again(relay)
        assert (finding_state(found, "app"), finding_state(found, "workflow")) == ("problem", "absent")
        assert "install it" in finding_text(found, "app")
        await relay.github.install(BACKEND)
        relay.clock.advance(61)
        found = await examine_again(relay)
        assert {finding_state(found, name) for name in ("app", "permissions", "identity", "workflow")} == {
            "ok"
        }


async def test_a_missing_permission_is_told_and_granting_it_helps(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        granted = relay.github.installation(BACKEND).permissions
        granted["contents"] = "read"
        found = await examine_again(relay)
        assert finding_state(found, "permissions") == "problem"
        granted["contents"] = "write"
        relay.clock.advance(61)
        assert finding_state(await examine_again(relay), "permissions") == "ok"


async def test_a_suspended_installation_is_told(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.suspend_installation(BACKEND)
        found = await examine_again(relay)
        assert (finding_state(found, "app"), finding_state(found, "permissions")) == ("problem", "absent")
        assert "suspended" in finding_text(found, "app")


async def test_a_workflow_that_is_missing_is_told_and_committing_it_helps(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, workflow=None) as relay:
        found = await examine_again(relay)
        assert (finding_state(found, "workflow"), finding_state(found, "id_token")) == ("problem", "absent")
        relay.github.write_file(BACKEND, PATH, NO_TOKEN)
        relay.clock.advance(61)
        found = await examine_again(relay)
        assert (finding_state(found, "workflow"), finding_state(found, "id_token")) == ("ok", "problem")
        relay.github.write_file(BACKEND, PATH, GOOD)
        relay.clock.advance(61)
        assert finding_state(await examine_again(relay), "id_token") == "ok"


async def test_a_workflow_on_another_branch_does_not_count(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, workflow=None) as relay:
        await relay.github.push(BACKEND, ref="refs/heads/join", created=True, files={PATH: GOOD})
        assert finding_state(await examine_again(relay), "workflow") == "problem"


async def test_a_workflow_that_never_listened_or_is_disabled_is_told(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, workflow="on: push\njobs: {}\n") as relay:
        found = await examine_again(relay)
        assert (finding_state(found, "workflow"), "The only workflow" in finding_text(found, "workflow")) == (
            "problem",
            True,
        )
        relay.github.write_file(BACKEND, PATH, GOOD.replace("push, ", ""))
        relay.clock.advance(61)
        found = await examine_again(relay)
        assert (finding_state(found, "events"), "listens to push" in finding_text(found, "events")) == (
            "warning",
            True,
        )
        relay.github.repository(BACKEND).disabled_workflows.add(PATH)
        relay.clock.advance(61)
        assert "disabled manually" in finding_text(await examine_again(relay), "workflow")


async def test_the_workflows_of_a_private_repository_are_read_with_the_apps_own_right(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, private=True) as relay:
        assert finding_state(await examine_again(relay), "id_token") == "ok"


async def test_the_files_of_a_private_repository_are_named_to_administrators_alone(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, private=True) as relay:
        found = await examine_again(relay)
        assert finding_text(found, "workflow").startswith("One workflow on the default branch listens")
        page = (await relay.http.get("/crcr/onboarding", params={"repository": BACKEND})).text
        assert "One workflow" in page
        assert PATH not in str(found["findings"])
        assert PATH in finding_text(await setup_findings(relay, **EYES), "workflow")
        relay.github.repository(BACKEND).disabled_workflows.add(PATH)
        relay.clock.advance(61)
        found = await examine_again(relay)
        assert (finding_state(found, "workflow"), PATH in str(found["findings"])) == ("problem", False)


async def test_nothing_is_kept_of_a_repository_that_took_over_the_name(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        bound_id = relay.github.repository(BACKEND).id
        assert finding_state(await examine_again(relay), "identity") == "ok"
        stranger = relay.github.replace_repository(BACKEND)
        relay.github.write_file(BACKEND, ".github/workflows/strange.yml", GOOD)
        relay.clock.advance(61)
        found = await examine_again(relay)
        assert (finding_state(found, "identity"), finding_state(found, "app")) == ("problem", "unknown")
        assert finding_state(found, "workflow") == finding_state(found, "permissions") == "absent"
        said = finding_text(found, "identity")
        assert (str(stranger.id) in said, str(bound_id) in said) == (True, True)
        [row] = relay.rows("SELECT found FROM inspections")
        assert ("strange" in row["found"], "permissions" in row["found"]) == (False, False)
        assert count_calls(relay, "strange.yml") == 0

        rebound = {"repository": BACKEND, "repository_id": stranger.id}
        answer = await relay.http.post("/api/v1/admin/rebind", json=rebound, headers=EYES)
        assert answer.status_code == 200, answer.text
        assert finding_state(await setup_findings(relay), "app") == "unknown"
        relay.clock.advance(61)
        assert "strange.yml" in finding_text(await examine_again(relay), "workflow")


async def test_what_the_app_may_not_read_is_not_known(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, private=True) as relay:
        relay.github.installation(BACKEND).permissions.pop("contents")
        found = await examine_again(relay)
        assert (finding_state(found, "permissions"), finding_state(found, "workflow")) == (
            "problem",
            "unknown",
        )


async def test_asking_again_within_a_minute_asks_nobody_and_later_reads_no_file_again(tmp_path: Path) -> None:
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


async def test_what_an_earlier_release_noted_is_still_told_and_its_files_are_read_again(
    tmp_path: Path,
) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await examine_again(relay)
        await relay.http.post(SETUP)
        [noted] = relay.rows("SELECT found FROM inspections WHERE found IS NOT NULL")
        found = json.loads(noted["found"])
        del found["workflows"][0]["pinning"], found["workflows"][0]["pins"]
        relay.rows("UPDATE inspections SET found = ?", json.dumps(found))
        assert "pinning" not in str(relay.rows("SELECT found FROM inspections"))
        assert finding_state(await setup_findings(relay), "workflow") == "ok"
        relay.clock.advance(61)
        await examine_again(relay)
        assert count_calls(relay, "/contents/.github/workflows/crcr.yml") == 2


async def test_one_address_cannot_have_everybody_looked_at_for_ever(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        answers = [(await relay.http.post(SETUP)).status_code for _ in range(31)]
        assert (answers[:30], answers[30]) == ([202] * 30, 429)


async def test_github_in_trouble_is_no_finding_against_the_downstream(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        relay.github.faults.answer(500, on=Match("GET", f"/repos/{BACKEND}/installation"), times=None)
        found = await examine_again(relay)
        assert (finding_state(found, "app"), "did not answer" in finding_text(found, "app")) == (
            "unknown",
            True,
        )
        assert relay.rows("SELECT state FROM effects WHERE kind = 'inspect_repository'") == [
            {"state": "done"}
        ]
        relay.github.faults.clear()


async def test_a_parked_dispatch_is_told_in_words_and_to_administrators_in_full(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        relay.github.faults.answer(422, on=Match("POST", f"/repos/{BACKEND}/dispatches"), message="odd words")
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        told = finding_text(await setup_findings(relay), "dispatch")
        assert "GitHub rejected the dispatch" in told
        assert "odd words" not in told
        assert "odd words" in finding_text(await setup_findings(relay, **EYES), "dispatch")


async def test_what_was_refused_and_what_was_taken_is_told(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[0]
        assert finding_state(await setup_findings(relay), "dispatch") == "ok"
        refused = await post_report(relay, run, "build", "in_progress", run_id="1")
        assert refused.status_code == 403
        found = await setup_findings(relay)
        assert (finding_state(found, "refusal"), "claim_mismatch" in finding_text(found, "refusal")) == (
            "problem",
            True,
        )
        relay.clock.advance(5)
        assert (await post_report(relay, run, "build", "in_progress")).status_code == 200
        found = await setup_findings(relay)
        assert (finding_state(found, "callback"), finding_state(found, "refusal")) == ("ok", "warning")


@pytest.mark.parametrize(("tells", "what"), [(False, "first dispatch"), (True, "first run")])
async def test_the_first_run_is_under_way_until_its_report_is_overdue(
    tmp_path: Path, tells: bool, what: str
) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        backend = relay.github.repository(BACKEND)
        backend.sends_run_webhooks = tells
        backend.workflows[:] = [replace(each, run_name="CI {delivery_id}") for each in backend.workflows]
        sent_at = relay.clock.now()
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        relay.clock.advance(240)
        found = await setup_findings(relay)
        assert finding_state(found, "callback") == "unknown"
        assert f"{what} is in progress since {sent_at:%Y-%m-%d %H:%M} UTC (4 minutes ago)" in finding_text(
            found, "callback"
        )
        relay.clock.advance(3600)
        assert finding_state(await setup_findings(relay), "callback") == "warning"


async def test_a_refusal_is_settled_once_the_jobs_result_was_taken(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        [run] = relay.github.runs(BACKEND)
        assert (await post_report(relay, run, "build", "completed")).status_code == 409
        relay.clock.advance(1)
        await post_report(relay, run, "build", "in_progress")
        assert finding_state(await setup_findings(relay), "refusal") == "warning"
        await post_report(relay, run, "build", "completed")
        found = await setup_findings(relay)
        assert (finding_state(found, "refusal"), "settled" in finding_text(found, "refusal")) == ("ok", True)


async def test_where_the_relay_keeps_the_allowlist_is_for_administrators(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        assert "(allowlist.yml)" in finding_text(await setup_findings(relay), "allowlist")
        assert str(tmp_path) not in str(await setup_findings(relay))
        assert str(tmp_path / "allowlist.yml") in finding_text(
            await setup_findings(relay, **EYES), "allowlist"
        )
        shown = [
            (await relay.http.get(path)).text for path in ("/crcr", "/api/v1/summary", "/api/v1/allowlist")
        ]
        assert str(tmp_path) not in "".join(shown)


async def test_who_never_answers_is_told_so(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        assert finding_state(await setup_findings(relay), "silence") == "absent"
        await relay.pass_time(2 * 3600)
        assert finding_state(await setup_findings(relay), "silence") == "problem"


@pytest.mark.parametrize("listed", [HIDDEN, NAMED, "L2:\n  - org/other\n"])
async def test_what_is_not_to_be_seen_looks_as_if_it_were_not_listed(tmp_path: Path, listed: str) -> None:
    async with relay_with_downstream(tmp_path, listed) as relay:
        found, asked = await setup_findings(relay), await relay.http.post(SETUP)
        assert (found["listed"], found["level"]) == (False, None)
        only, *rest = found["findings"]
        assert only["text"].startswith(f"{BACKEND} is not on the allowlist of {UPSTREAM}")
        assert f"/crcr/onboarding?repository={BACKEND}" in only["hint"]
        assert [(each["name"], each["state"]) for each in rest] == [
            ("app", "unknown"),
            ("workflow", "unknown"),
        ]
        assert answer_code(asked) == (404, "not_found")
        assert relay.rows("SELECT * FROM inspections") == []


async def test_administrators_see_the_set_up_of_who_is_hidden(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, HIDDEN) as relay:
        found = await examine_again(relay, **EYES)
        assert (found["listed"], finding_state(found, "workflow")) == (True, "ok")


async def test_a_suspended_downstream_and_a_paused_upstream_are_told(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        await relay.http.post("/api/v1/admin/pause", json={}, headers=EYES)
        assert finding_state(await setup_findings(relay), "standing") == "warning"
        await relay.http.post("/api/v1/admin/suspend", json={"repository": BACKEND}, headers=EYES)
        assert finding_state(await setup_findings(relay), "standing") == "problem"


async def test_an_inspection_goes_through_while_dispatching_is_paused(tmp_path: Path) -> None:
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
        assert [each.event_type for each in relay.github.dispatches(BACKEND)] == ["crcr_test"]
        assert ("ann", "dispatch_test", BACKEND) in audit_log(relay)
        delivery = (await relay.http.get(f"/api/v1/deliveries/{guid}")).json()
        assert [each["state"] for each in delivery["dispatches"]] == ["sent"]


async def test_a_repository_may_have_itself_tested_with_its_own_token_and_nobody_else(tmp_path: Path) -> None:
    both = f"L2:\n  - {BACKEND}\n  - org/other\n"
    async with running_relay(tmp_path, both, downstreams=(BACKEND, "org/other")) as relay:
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        own, other = (relay.github.runs(name)[0] for name in (BACKEND, "org/other"))
        mine = await relay.http.post(f"{SETUP}/test", headers=oidc_header(relay, own))
        theirs = await relay.http.post(f"{SETUP}/test", headers=oidc_header(relay, other))
        assert (answer_code(mine), answer_code(theirs)) == ((202, None), (403, "not_admin"))
        assert (f"{BACKEND} (its own token)", "dispatch_test", BACKEND) in audit_log(relay)


async def test_a_token_of_whoever_took_the_name_starts_nothing(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        relay.github.replace_repository(BACKEND)
        run = relay.github.ci.start_runs(relay.github.repository(BACKEND), "repository_dispatch", "push", {})[
            0
        ]
        answer = await relay.http.post(f"{SETUP}/test", headers=oidc_header(relay, run))
        assert answer_code(answer) == (403, "not_admin")


@pytest.mark.parametrize("access", ["public", "token"])
async def test_a_test_takes_no_other_token_and_no_cookie(tmp_path: Path, access: str) -> None:
    async with relay_with_downstream(tmp_path, CRCR_HUD_ACCESS=access) as relay:
        address = f"{SETUP}/test"
        assert answer_code(await relay.http.post(address)) == (401, "not_signed_in")
        assert answer_code(await relay.http.post(address, headers={"authorization": "Bearer no"})) == (
            401,
            "not_authentic",
        )
        reader = {"authorization": f"Bearer {READER}"}
        assert answer_code(await relay.http.post(address, headers=reader)) == (403, "not_admin")
        elsewhere = {**EYES, "origin": "https://evil.example"}
        assert answer_code(await relay.http.post(address, headers=elsewhere)) == (403, "cross_origin")
        assert relay.github.dispatches(BACKEND) == []


async def test_six_tests_an_hour_are_enough_for_a_repository(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        answers = [(await relay.http.post(f"{SETUP}/test", headers=EYES)).status_code for _ in range(7)]
        assert answers == [202] * 6 + [429]
        relay.clock.advance(3601)
        assert (await relay.http.post(f"{SETUP}/test", headers=EYES)).status_code == 202


async def test_guessing_tokens_is_limited(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        wrong = {"authorization": "Bearer guess"}
        answers = [(await relay.http.post(f"{SETUP}/test", headers=wrong)).status_code for _ in range(11)]
        assert (answers[:10], answers[10]) == ([401] * 10, 429)


async def test_the_unlisted_and_the_suspended_are_not_tested(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path) as relay:
        assert answer_code(await relay.http.post("/api/v1/setup/no/body/test", headers=EYES)) == (
            404,
            "not_found",
        )
        await relay.http.post("/api/v1/admin/suspend", json={"repository": BACKEND}, headers=EYES)
        assert answer_code(await relay.http.post(f"{SETUP}/test", headers=EYES)) == (409, "not_possible")


async def test_where_the_pages_need_a_token_so_does_the_set_up(tmp_path: Path) -> None:
    async with relay_with_downstream(tmp_path, CRCR_HUD_ACCESS="token") as relay:
        assert answer_code(await relay.http.get(SETUP)) == (401, "not_signed_in")
        assert answer_code(await relay.http.post(SETUP)) == (401, "not_signed_in")
        assert (await examine_again(relay, authorization=f"Bearer {READER}"))["listed"] is True


async def test_each_upstream_has_its_own_view(tmp_path: Path) -> None:
    two = {UPSTREAM: LISTED, "second/up": "L1:\n  - org/else\n"}
    async with running_relay(tmp_path, two, downstreams=(BACKEND, "org/else")) as relay:
        assert (await setup_findings(relay))["listed"] is True
        assert (await setup_findings(relay, f"{SETUP}?upstream=second/up"))["listed"] is False
        assert answer_code(await relay.http.get(f"{SETUP}?upstream=no/where")) == (404, "not_found")
