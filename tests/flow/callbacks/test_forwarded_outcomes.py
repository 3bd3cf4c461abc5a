"""What another HUD shows of our jobs by its own rules: every outcome, on the right pull request, once and in order."""

import json
from collections import Counter
from datetime import datetime, timedelta
from itertools import chain, cycle, repeat
from pathlib import Path
from typing import Any

import httpx
import pytest

from crcr.decide.model import RepoName
from crcr.record.admin.operations import ParkedFilter
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.upkeep.timeouts import Sweeps
from github_sim.github import Workflow, WorkflowJob, WorkflowRun
from support.downstream.callbacks import (
    BACKEND,
    CALLBACK,
    LISTED,
    bearer,
    dispatched_run,
    report_outcome,
    workflow_with_jobs,
)
from support.downstream.other_cis import ALL_OTHER_CIS
from support.downstream.other_hud import HOST, SETTINGS, OtherHud
from support.downstream.reporter import TOKEN as REPORTER_TOKEN
from support.downstream.reporter import ScriptedNetwork, run_reporter
from support.downstream.self_reports import nightly_run, send_self_report, upstream_head
from support.github.gated_upstream import (
    GATING,
    WORKFLOW_WITH_GUID,
    gated_upstream,
    newest_run,
    open_pull,
    run_all,
    sweep_after,
)
from support.github.merge_queue import move_base
from support.running_relay import AUDIENCE, UPSTREAM, RunningRelay, running_relay

MINUTE, HOUR, DAY = 60.0, 3600.0, 86400.0
GATES = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: ['*']}}\n"
OTHER_SHA = "b" * 40


@pytest.fixture(params=["sqlite", "postgresql"])
def both_stores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward and its outcome are written in one transaction, on either store."""
    monkeypatch.setenv("CRCR_TEST_STORE", request.param)


async def send_report(
    relay: RunningRelay,
    run: WorkflowRun,
    job: WorkflowJob | str,
    status: str,
    *,
    payload: Any = None,
    **workflow: Any,
) -> str:
    """Report as our own reporter does: with an empty `payload`, or with the given one."""
    chosen = run.job(job) if isinstance(job, str) else job
    body = relay.github.ci.report_body(run, chosen, status, **workflow)
    body["payload"] = {} if payload is None else payload
    return report_outcome(await _post(relay, run, chosen, json.dumps(body).encode()))


async def _post(relay: RunningRelay, run: WorkflowRun, job: WorkflowJob, body: bytes) -> httpx.Response:
    token = relay.github.oidc_token(run, job, audience=AUDIENCE)
    return await relay.http.post(CALLBACK, content=body, headers=bearer(token))


async def deliver_all(relay: RunningRelay) -> None:
    """Advance the clock until no forward is waiting, without running the sweeper."""
    for _ in range(200):
        if not relay.rows("SELECT 1 FROM effects WHERE kind = 'forward_result' AND state = 'waiting'"):
            return
        await relay.pass_time(MINUTE)
    raise AssertionError("a forward waits for ever")


def histories(hud: OtherHud) -> dict[str, list[str]]:
    """The shown conclusions by job name; fail when the HUD has one job under two keys."""
    names = Counter(hud.records[key]["job_name"] for key in hud.history)
    assert not {name for name, count in names.items() if count > 1}
    return {hud.records[key]["job_name"]: shown for key, shown in hud.history.items()}


# Filled from our own records


async def test_an_empty_payload_is_filled_with_pull_request_commit_upstream_and_event(tmp_path: Path) -> None:
    hud = OtherHud()
    listed = f"L2:\n  - {BACKEND}: {{events: [pull_request, push, merge_group]}}\n"
    async with running_relay(
        tmp_path, listed, downstreams=(BACKEND,), outside={HOST: hud}, **SETTINGS
    ) as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        await relay.github.push(UPSTREAM, ref=f"refs/tags/ciflow/trunk/{pull.number}")
        await move_base(relay)  # otherwise the results of the head are reused for the group
        await relay.github.merge_group(UPSTREAM, pull.number)
        await relay.drain()
        for run in relay.github.runs(BACKEND):
            assert await send_report(relay, run, "build", "in_progress") == "applied"
            assert await send_report(relay, run, "build", "completed", conclusion="success") == "applied"
        await relay.drain()
        sent = {row["guid"]: row for row in relay.rows("SELECT guid, event, ref, head_sha FROM deliveries")}

    assert len(hud.records) == 4
    for key, row in hud.records.items():
        delivery = sent[key.split("/")[2]]
        of_pull = delivery["event"] == "pull_request" or "ciflow" in (delivery["ref"] or "")
        assert row["pr_number"] == (pull.number if of_pull else 0)
        assert (row["upstream_repo"], row["head_sha"]) == (UPSTREAM, delivery["head_sha"])
        assert row["event_type"] == delivery["event"]
    assert len(hud.backend_page(BACKEND, relay.clock.now())) == len(hud.pull_page(pull.number)) == 2


ELSEWHERE = {"repository": {"full_name": "evil/fork"}, "number": 666, "head_sha": OTHER_SHA}
FOREIGN_ECHOES: dict[str, Any] = {
    "another pull request": {"pull_request": {"number": 666, "head": {"sha": OTHER_SHA}}, **ELSEWHERE},
    "another commit": {"pull_request": {"number": 1, "head": {"sha": OTHER_SHA, "ref": "main"}}},
    "a push to a tag of another": {"after": OTHER_SHA, "ref": "refs/tags/ciflow/trunk/666", **ELSEWHERE},
    "a merge group": {"merge_group": {"head_sha": OTHER_SHA}, "action": "destroyed"},
    "a number as text": {"pull_request": {"number": "666", "head": None}, "repository": 7},
    "no object": [{"pull_request": {"number": 666}}],
    "a text": "pull_request",
}


async def test_an_echoed_payload_of_another_event_does_not_reassign_a_result(tmp_path: Path) -> None:
    hud = OtherHud()
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, run):
        nightly = nightly_run(relay)
        for name, echo in FOREIGN_ECHOES.items():
            assert (
                await send_report(relay, run, "build", "in_progress", payload=echo, job_name=name)
                == "applied"
            )
            payload = {**ELSEWHERE, **(echo if isinstance(echo, dict) else {})}
            answer = await send_self_report(
                relay, nightly, "test", commit=upstream_head(relay), payload=payload, job_name=name
            )
            assert report_outcome(answer) == "applied"
        await relay.drain()
        [sha] = {row["head_sha"] for row in relay.jobs() if row["number"]}
        commits = {1: sha, 0: upstream_head(relay)}

    assert len(hud.records) == 2 * len(FOREIGN_ECHOES) == 2 * len(hud.pull_page(1))
    for row in hud.records.values():
        assert (row["upstream_repo"], row["head_sha"]) == (UPSTREAM, commits[row["pr_number"]])
    for trusted in (envelope["trusted"] for envelope in hud.taken):
        # The commit of a nightly is claimed by its sender and not verified by us.
        proved = (1, sha) if trusted["event_type"] == "pull_request" else (None, None)
        assert (trusted["pr_number"], trusted["head_sha"], trusted["upstream"]) == (*proved, UPSTREAM)
        assert not {"666", OTHER_SHA, "evil/fork"} & set(_texts(trusted))


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return list(chain.from_iterable(_texts(item) for item in value.values()))
    return [str(value)]


async def test_an_echoed_payload_of_the_same_event_adds_fields_missing_from_the_records(
    tmp_path: Path,
) -> None:
    hud = OtherHud()
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, run):
        payload = run.client_payload["payload"]
        await send_report(
            relay, run, "build", "in_progress", payload={**payload, "sender": {"login": "zoe", "n": 1}}
        )
        await relay.drain()

    echoed = hud.taken[0]["untrusted"]["callback_payload"]["payload"]
    assert echoed["sender"] == {"login": "zoe", "n": 1}
    assert echoed["pull_request"]["base"] == payload["pull_request"]["base"]
    assert echoed["pull_request"]["head"]["ref"] == payload["pull_request"]["head"]["ref"]


ODD_ECHOES = {
    "twice": b'{"pull_request": {"number": 1, "number": 666}, "pull_request": {"number": 666, "head": {"sha": "x"}}}',
    "beyond Python": b'{"pull_request": {"number": 1e400}, "deep": ' + b"[" * 900 + b"]" * 900 + b"}",
    "half a character": b'{"pull_request": {"number": 666, "head": {"sha": "\\ud800"}}}',
    "giant": b'{"long": "' + b"x" * 2_080_000 + b'"}',
}


async def test_a_malformed_or_giant_echoed_payload_loses_no_result(tmp_path: Path) -> None:
    hud = OtherHud()
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, run):
        for name, odd in ODD_ECHOES.items():
            body = relay.github.ci.report_body(run, run.job("build"), "in_progress", job_name=name)
            sent = json.dumps({**body, "payload": "ECHO"}).encode().replace(b'"ECHO"', odd)
            assert report_outcome(await _post(relay, run, run.job("build"), sent)) == "applied"
        await relay.drain()
        [sha] = {row["head_sha"] for row in relay.jobs()}

    assert {row["job_name"]: row["head_sha"] for row in hud.pull_page(1)} == dict.fromkeys(ODD_ECHOES, sha)


async def test_a_report_of_the_maximum_size_fits_the_size_limit_of_the_other_hud(tmp_path: Path) -> None:
    hud = OtherHud()
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, run):
        await send_report(relay, run, "build", "in_progress")
        counts = {"passed": 1, "failed": 2}
        for size in (2_090_000, 2 * 1024 * 1024 - 1_200):
            name = f"job {size}"
            await send_report(relay, run, "build", "in_progress", job_name=name)
            more = {"job_name": name, "test_results": counts, "conclusion": "failure", "log": "x" * size}
            body = relay.github.ci.report_body(run, run.job("build"), "completed", **more)
            sent = json.dumps({**body, "payload": {}}).encode()
            more["log"] = "x" * (size - max(0, len(sent) - 2 * 1024 * 1024))
            assert await send_report(relay, run, "build", "completed", **more) == "applied"
        await relay.drain()

    rows = [row for row in hud.pull_page(1) if row["status"] == "completed"]
    assert [row["conclusion"] for row in rows] == ["failure", "failure"]
    workflow = hud.taken[-1]["untrusted"]["callback_payload"]["workflow"]
    assert workflow["test_results"] == counts


# Every change of an outcome, once, in order


OUTCOMES = {
    "passed": ["in_progress", "success"],
    "failed": ["in_progress", "failure"],
    "said nothing": ["in_progress", "failure", "success"],
    "corrected": ["in_progress", "success", "failure"],
    "disputed": ["in_progress", "success", "failure"],
    "disputed better": ["in_progress", "failure", "failure"],
    "swept": ["in_progress", "timed_out"],
    "late": ["in_progress", "timed_out", "success"],
    "silent": ["in_progress", "failure"],
}
"""The shown conclusions of each job over time; a dispute that changes no conclusion is sent as a dispute."""
RUNNING = {"swept", "late", "silent"}


async def report_all_outcomes(relay: RunningRelay, run: WorkflowRun) -> None:
    for name in OUTCOMES:
        relay.github.ci.start(run, run.job(name))
        assert await send_report(relay, run, name, "in_progress") == "applied"
        await relay.pass_time(1)
    reported = {"failed": "failure", "disputed better": "failure", "said nothing": None}
    for name in OUTCOMES.keys() - RUNNING:
        assert (
            await send_report(relay, run, name, "completed", conclusion=reported.get(name, "success"))
            == "applied"
        )
    assert (
        await send_report(relay, run, "disputed", "completed", conclusion="failure") == "conflicting_result"
    )
    assert (
        await send_report(relay, run, "disputed better", "completed", conclusion="success")
        == "conflicting_result"
    )
    ends = {"failed": "failure", "corrected": "failure", "disputed": "failure", "disputed better": "failure"}
    for name in OUTCOMES.keys() - RUNNING:
        relay.github.ci.complete(run, run.job(name), ends.get(name, "success"))
    for name, ended in (("silent", "failure"), ("swept", "success"), ("late", "success")):
        relay.github.ci.complete(run, run.job(name), ended)
    for _ in range(9):
        await sweep_after(relay, HOUR)
    assert await send_report(relay, run, "late", "completed", conclusion="success") == "applied"
    for _ in range(3):
        await sweep_after(relay, HOUR)


@pytest.mark.usefixtures("both_stores")
async def test_every_outcome_reaches_the_other_hud_once_and_in_order(tmp_path: Path) -> None:
    hud = OtherHud(answers=cycle([200, 500, 200, 429, 503, 200, 502, 200]))
    async with gated_upstream(
        tmp_path, GATES, downstreams=(GATING,), outside={HOST: hud}, **SETTINGS
    ) as relay:
        [workflow] = workflow_with_jobs(*OUTCOMES)
        relay.github.repository(GATING).workflows = [
            Workflow(jobs=workflow.jobs, run_name=WORKFLOW_WITH_GUID.run_name)
        ]
        pull = await open_pull(relay)
        await report_all_outcomes(relay, newest_run(relay))
        for name in OUTCOMES:
            await send_report(relay, newest_run(relay), name, "in_progress")
        await deliver_all(relay)
        ours = {row["job_name"]: row for row in relay.jobs()}
        page = hud.backend_page(GATING, relay.clock.now())

    assert histories(hud) == OUTCOMES
    assert (
        {row["job_name"] for row in page}
        == {row["job_name"] for row in hud.pull_page(pull.number)}
        == set(OUTCOMES)
    )
    for row in page:
        job = ours[row["job_name"]]
        assert row["conclusion"] == (job["conclusion"] or "timed_out")
        assert row["status"] == "completed"
    disputed = [envelope["trusted"]["outcome"]["disputed"] for envelope in hud.taken]
    assert disputed.count(True) == 3  # a correction by GitHub is a dispute as well


@pytest.mark.usefixtures("both_stores")
async def test_a_deleted_run_a_rerun_and_nightly_jobs_all_reach_the_other_hud(tmp_path: Path) -> None:
    hud = OtherHud(answers=chain([500, 429, 500], repeat(200)))
    async with gated_upstream(
        tmp_path, GATES, downstreams=(GATING,), outside={HOST: hud}, **SETTINGS
    ) as relay:
        first = await open_pull(relay)
        run = await run_all(relay, build="failure")
        await relay.github.rerun(run)
        await run_all(relay)
        relay.clock.advance(MINUTE)
        second = await open_pull(relay)
        gone = newest_run(relay)
        await send_report(relay, gone, "build", "in_progress")
        del relay.github.world.runs[gone.id]
        for _ in range(8):
            await sweep_after(relay, HOUR)
        nightly = nightly_run(relay, GATING)
        for name, conclusion in (("build", "success"), ("test", "failure")):
            answer = await send_self_report(relay, nightly, name, conclusion, commit=upstream_head(relay))
            assert report_outcome(answer) == "applied"
        # The second report contradicts the first: the worse conclusion counts on the other HUD too.
        assert (
            report_outcome(
                await send_self_report(relay, nightly, "build", "failure", commit=upstream_head(relay))
            )
            == "conflicting_result"
        )
        await deliver_all(relay)
        now = relay.clock.now()

    by_pull = {
        (row["pr_number"], row["job_name"]): row["conclusion"] for row in hud.backend_page(GATING, now)
    }
    assert by_pull == {
        (first.number, "build"): "success",
        (first.number, "test"): "success",
        (second.number, "build"): "timed_out",
    }
    assert {row["run_attempt"] for row in hud.pull_page(first.number)} == {1, 2}
    nightlies = {row["job_name"]: row["conclusion"] for row in hud.nightly_page(GATING, now)}
    assert nightlies == {"build": "failure", "test": "failure"}


class Killed(Exception):
    """The process dies here."""


class CrashingForwards(Forwards):
    async def add(self, *args: Any) -> None:
        await super().add(*args)
        raise Killed


@pytest.mark.usefixtures("both_stores")
async def test_an_outcome_and_its_forward_are_committed_together_or_not_at_all(tmp_path: Path) -> None:
    hud = OtherHud()
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, run):
        await send_report(relay, run, "build", "in_progress")
        relay.clock.advance(8 * HOUR)
        await relay.services.sweeper.sweep()  # the first sweep queries GitHub
        relay.clock.advance(2 * HOUR)
        sweeps = Sweeps(
            relay.services.database, CheckRefresher({}), JobOutcomes(CrashingForwards(enabled=True))
        )
        with pytest.raises(Killed):
            await sweeps.time_out_silent(relay.clock.now())
        assert [row["state"] for row in relay.jobs()] == ["in_progress"]
        assert len(relay.rows("SELECT 1 FROM effects WHERE kind = 'forward_result'")) == 1
        await relay.services.sweeper.sweep()
        await deliver_all(relay)

    assert histories(hud) == {"build": ["in_progress", "timed_out"]}


async def test_a_result_detached_from_its_delivery_is_forwarded_as_neutral(tmp_path: Path) -> None:
    hud = OtherHud()
    async with gated_upstream(
        tmp_path, GATES, downstreams=(GATING,), outside={HOST: hud}, **SETTINGS
    ) as relay:
        relay.github.repository(GATING).workflows = [WORKFLOW_WITH_GUID]
        failing = await open_pull(relay)
        honest = await run_all(relay, build="failure")
        relay.clock.advance(MINUTE)
        await open_pull(relay)
        other = await run_all(relay)
        [forged] = await relay.github.send_dispatch(GATING, "pull_request", other.client_payload)
        for status, more in (("in_progress", {}), ("completed", {"conclusion": "success"})):
            body = relay.github.ci.report_body(forged, forged.job("build"), status, **more)
            sent = json.dumps({**body, "delivery_id": honest.delivery_id}).encode()
            assert report_outcome(await _post(relay, forged, forged.job("build"), sent)) == "applied"
        for _ in range(3):
            await sweep_after(relay, MINUTE)

    shown = {
        row["run_id"]: row["conclusion"]
        for row in hud.pull_page(failing.number)
        if row["job_name"] == "build"
    }
    assert shown == {str(honest.id): "failure", str(forged.id): "neutral"}


async def test_a_parked_outcome_is_cancelled_when_a_newer_one_was_forwarded(tmp_path: Path) -> None:
    hud = OtherHud(answers=chain([400], repeat(200)))
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, run):
        await send_report(relay, run, "build", "in_progress")
        await relay.drain()
        await send_report(relay, run, "test", "in_progress")
        await relay.drain()
        await send_report(relay, run, "build", "completed", conclusion="success")
        await relay.drain()
        retried = await relay.services.acts.retry_parked(
            RepoName(UPSTREAM), ParkedFilter(), who="ann", now=relay.clock.now()
        )
        await relay.drain()
        parked = relay.rows("SELECT state, last_error FROM effects WHERE state IN ('parked', 'cancelled')")

    assert retried == 0
    assert parked == [{"state": "cancelled", "last_error": "a newer outcome of the job was forwarded"}]
    assert histories(hud) == {"build": ["success"], "test": ["in_progress"]}


async def test_a_parked_outcome_that_is_still_the_newest_is_sent_on_retry(tmp_path: Path) -> None:
    hud = OtherHud(answers=chain([403], repeat(200)))
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, _):
        assert report_outcome(await send_self_report(relay, nightly_run(relay), commit=None)) == "applied"
        await relay.drain()
        assert hud.taken == []
        await relay.services.acts.retry_parked(
            RepoName(UPSTREAM), ParkedFilter(), who="ann", now=relay.clock.now()
        )
        await relay.drain()

    assert histories(hud) == {"build": ["success"]}


# When a job began


async def test_fields_missing_from_a_completed_report_are_taken_from_the_first_report(tmp_path: Path) -> None:
    hud = OtherHud()
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS) as (relay, run):
        began = relay.clock.now()
        bare: dict[str, Any] = dict.fromkeys(("started_at", "completed_at", "url", "check_run_id"))
        await send_report(relay, run, "build", "in_progress", **{**bare, "url": "https://ci.example.org/1"})
        relay.clock.advance(90)
        await send_report(relay, run, "build", "completed", conclusion="success", **bare)
        await relay.drain()

    [row] = hud.backend_page(BACKEND, relay.clock.now())
    assert (row["started_at"], row["completed_at"]) == (stamp(began), stamp(relay.clock.now()))
    assert row["url"] == "https://ci.example.org/1"
    assert len(hud.taken) == 2


CLAIMED_TIMES: dict[str, Any] = {
    "unsaid": None,
    "hours ago": -3 * HOUR,
    "days ago": -8 * DAY,
    "to come": 2 * DAY,
    "no time": "soon",
}


async def test_a_nightly_is_listed_by_its_start_time_whatever_times_its_reporter_claims(
    tmp_path: Path,
) -> None:
    hud = OtherHud()
    async with running_relay(
        tmp_path, LISTED, downstreams=(BACKEND,), outside={HOST: hud}, **SETTINGS
    ) as relay:
        run, now = nightly_run(relay), relay.clock.now()
        for name, claim in CLAIMED_TIMES.items():
            claimed = stamp(now, claim) if isinstance(claim, float) else claim
            times: dict[str, Any] = {"started_at": claimed, "completed_at": claimed, "job_name": name}
            assert (
                report_outcome(await send_self_report(relay, run, commit=upstream_head(relay), **times))
                == "applied"
            )
        await relay.drain()

    listed = {row["job_name"]: row["started_at"] for row in hud.nightly_page(BACKEND, now, days=7)}
    assert listed == {**dict.fromkeys(CLAIMED_TIMES, stamp(now)), "hours ago": stamp(now, -3 * HOUR)}


REPORTERS = {
    "buildkite": {"BUILDKITE": "true", "BUILDKITE_BUILD_ID": "RUN", "BUILDKITE_LABEL": "build"},
    "gitlab": {"GITLAB_CI": "true", "CI_PIPELINE_ID": "RUN", "CI_JOB_NAME": "build"},
    "circleci": {"CIRCLECI": "true", "CIRCLE_WORKFLOW_ID": "RUN", "CIRCLE_JOB": "build"},
}


@pytest.mark.parametrize("name", REPORTERS)
async def test_a_nightly_sent_by_our_reporter_from_another_ci_is_listed(tmp_path: Path, name: str) -> None:
    hud, ci = OtherHud(), ALL_OTHER_CIS[name]
    settings = {**SETTINGS, **ci.settings()}
    async with running_relay(
        tmp_path, LISTED, downstreams=(BACKEND,), outside={HOST: hud}, **settings
    ) as relay:
        now = relay.clock.now()
        own = {key: value.replace("RUN", ci.run_id) for key, value in REPORTERS[name].items()}
        bridged = {
            "CRCR_STARTED_AT": stamp(now, -HOUR),
            "CRCR_HEAD_SHA": upstream_head(relay),
            "CRCR_UPSTREAM": UPSTREAM,
        }
        kind = {"CRCR_EVENT_TYPE": "nightly", "CRCR_RELAYS": "https://relay.test/github/callback crcr"}
        network = ScriptedNetwork(seconds=now.timestamp())
        env = {**own, **bridged, **kind, "CRCR_ID_TOKEN": REPORTER_TOKEN}
        assert (
            run_reporter("--status", "completed", "--conclusion", "failure", env=env, network=network)[0] == 0
        )
        [body] = network.bodies
        answer = await relay.http.post(CALLBACK, json=body, headers=bearer(ci.token(relay.github)))
        assert report_outcome(answer) == "applied"
        await relay.drain()

    [row] = hud.nightly_page(BACKEND, now)
    assert (row["started_at"], row["conclusion"]) == (stamp(now, -HOUR), "failure")
    assert (row["head_sha"], row["upstream_repo"], row["pr_number"]) == (upstream_head(relay), UPSTREAM, 0)


def stamp(at: datetime, more_s: float = 0.0) -> str:
    return str((at + timedelta(seconds=more_s)).strftime("%Y-%m-%dT%H:%M:%SZ"))
