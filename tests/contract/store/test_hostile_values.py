"""Texts and numbers that one database takes and another does not: kept alike, or refused at the door (faults 15, 29)."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.dispatch.plan import ReceivedDelivery
from crcr.decide.jobs.refusal import RefusedReport
from crcr.decide.model import DeliveryState, RepoName
from crcr.decide.oidc.identity import IssuerKind
from crcr.decide.outbox.effect import FailedAttempt
from crcr.decide.outbox.retry import TryAgain
from crcr.decide.views.backend import BackendQuery, JobKey
from crcr.decide.views.joining import SandboxQuery
from crcr.decide.views.logs import AuditQuery, DeliveryQuery, EffectQuery, WaiverQuery
from crcr.decide.views.overview import JobQuery
from crcr.decide.views.search import SearchQuery
from crcr.errors import BadReport, BadRequest, CrcrError, NotFound
from crcr.receive.callback.parse_report import MAX_ATTEMPT, parse_report
from crcr.receive.ingest.parse_envelope import parse_envelope
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.ingested import IngestedResults
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.refusals import Refusals
from crcr.record.jobs.reports import Reports
from crcr.record.jobs.sandbox import SandboxJobs
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement, storable
from crcr.record.views.sql_views import SqlViews
from crcr.show.urls import cursors
from support.data.events_and_reports import a_caller, a_pull, a_push, a_start
from support.stores.databases import CORE, UPSTREAMS, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BACKEND = RepoName("org/backend")
NASTY = ("a\0b", "\ud800", "x\udfff\0", "'; DROP TABLE jobs; --", "\u202e\u2028", "🦆" * 300, "%_!\\")
INT4, INT8 = 2**31 - 1, 2**63 - 1


def report_body(**workflow: Any) -> bytes:
    said = {"status": "in_progress", "name": "CI", "run_id": "10", "job_name": "build", **workflow}
    return json.dumps({"delivery_id": "d1", "workflow": said}).encode()


@pytest.fixture
async def relay(stores: Stores) -> Reports:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    await stores.inbox.take(
        ReceivedDelivery("d1", "pull_request", "test", b"", 0, NOW), a_pull(upstream=CORE, updated_at=NOW)
    )
    [effect] = await stores.outbox("w").claim(9, NOW)
    await stores.outbox("w").finish(effect, began_at=NOW, now=NOW)
    return Reports(
        stores.database,
        allowlists=stores.allowlists,
        targets=stores.targets,
        outcomes=JobOutcomes(Forwards(enabled=True)),
        refresher=CheckRefresher({}),
        upstreams=UPSTREAMS,
        job_timeout=NOW - NOW.replace(hour=0),
    )


# Numbers


@pytest.mark.parametrize("attempt", [2**31, 2**40, 2**63, 10**30, -1, 0, MAX_ATTEMPT + 1])
def test_an_attempt_that_no_run_has_is_refused_whoever_says_it(attempt: int) -> None:
    with pytest.raises(BadReport, match=r"run_attempt|number"):
        parse_report(report_body(run_attempt=attempt))
    if attempt > 0:
        with pytest.raises(BadReport, match="run_attempt"):
            parse_report(report_body(), signed_attempt=attempt)


@pytest.mark.parametrize("count", [INT4, INT4 + 1, 10**12, 2**62, 10**17, -5])
async def test_counts_beyond_all_tests_there_are_lose_no_result(
    relay: Reports, stores: Stores, count: int
) -> None:
    counts = {"passed": count, "failed": 1, "skipped": str(count), "total": count}
    for body in (report_body(), report_body(status="completed", conclusion="success", test_results=counts)):
        standing = (await relay.read_standings(BACKEND, "d1"))[0]
        await relay.take(parse_report(body), a_caller(), standing, body, NOW)
    [job] = await stores.rows("SELECT state, tests_passed, tests_failed, tests_total FROM jobs")
    known = count if 0 <= count <= INT4 else None
    assert job == {"state": "completed", "tests_passed": known, "tests_failed": 1, "tests_total": known}


async def test_a_pull_request_with_the_largest_number_is_kept_and_found(stores: Stores) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    event = a_pull(upstream=CORE, number=INT4, updated_at=NOW, repository_id=INT8, installation_id=INT8)
    await stores.inbox.take(ReceivedDelivery("d9", "pull_request", "test", b"", 0, NOW), event)
    views = SqlViews(stores.database, stores.allowlists, (CORE,))
    assert (await views.pull(CORE, INT4, NOW)).number == INT4
    assert [
        each.guid for each in (await views.deliveries(DeliveryQuery(upstream=CORE, number=INT4))).deliveries
    ] == ["d9"]


@pytest.mark.parametrize("number", [0, -1, INT4, INT4 + 1, 2**40, INT8, -(2**63)])
async def test_numbers_in_a_cursor_are_answered_or_refused_and_break_nothing(
    relay: Reports, stores: Stores, number: int
) -> None:
    """A cursor is opaque, and anybody can write one."""
    views = SqlViews(stores.database, stores.allowlists, (CORE,), sandbox=True)
    lists: tuple[Callable[[tuple[Any, ...]], Any], ...] = (
        lambda after: views.jobs(JobQuery(upstream=CORE, after=after)),
        lambda after: views.deliveries(DeliveryQuery(upstream=CORE, after=after)),
        lambda after: views.effect_page(EffectQuery(upstream=CORE, after=after)),
        lambda after: views.audit(AuditQuery(upstream=CORE, after=after)),
        lambda after: views.waiver_page(WaiverQuery(upstream=CORE, after=after), NOW),
        lambda after: views.sandbox(SandboxQuery(after=after), NOW),
        lambda after: views.backend(BackendQuery(upstream=CORE, downstream=BACKEND, after=after), NOW),
    )
    shapes = (
        (number, "a", "b", "c", "d", number, "e"),
        (number, "a", "b", "c", "d", 1, "e"),
        *(
            (number, "guid"),
            (number, number),
            (0, number, number),
            (1, "a/b", number, number),
            (1, number, number),
        ),
        (2, number, number),
    )
    for read in lists:
        for shape in shapes:
            after = cursors.decode(cursors.encode(shape))
            assert after is not None
            with suppress(BadRequest):
                await read(after)


# Texts


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
async def test_whatever_somebody_writes_can_be_kept_and_is_the_same_everywhere(
    stores: Stores, nasty: str
) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    event = a_pull(upstream=CORE, updated_at=NOW, title=nasty, author=nasty, labels=(nasty,))
    await stores.inbox.take(ReceivedDelivery("d1", "pull_request", "test", b"", 0, NOW), event)
    await stores.allowlists.take_reading(CORE, AllowlistReading(nasty, f"L2: [{nasty}"), NOW)
    await stores.acts.pause(CORE, who=nasty, now=NOW, reason=nasty)
    said = RefusedReport(
        caller=BACKEND, code="gone", detail=nasty, hint=nasty, run_id=nasty, job_name=nasty, delivery_id=nasty
    )
    await Refusals(stores.database, stores.allowlists, stores.targets, UPSTREAMS).note(said, NOW)
    failed = FailedAttempt(decision=TryAgain(NOW), error=nasty, unsure=True, counts=True)
    for effect in await stores.outbox("w").claim(9, NOW):
        await stores.outbox("w").fail(effect, failed, NOW)
    [pull] = await stores.rows("SELECT title, author FROM pulls")
    assert pull == {"title": storable(nasty), "author": storable(nasty)}
    assert "\0" not in str(pull)


@pytest.mark.parametrize("nasty", NASTY, ids=range(len(NASTY)))
async def test_whatever_somebody_asks_for_is_answered(relay: Reports, stores: Stores, nasty: str) -> None:
    views = SqlViews(stores.database, stores.allowlists, (CORE,), sandbox=True)
    one = BackendQuery(upstream=CORE, downstream=BACKEND)
    asked = (
        views.search(SearchQuery(upstream=CORE, text=nasty), NOW),
        views.suggest(SearchQuery(upstream=CORE, text=nasty), NOW),
        views.backend(replace(one, text=nasty), NOW),
        views.backend(replace(one, author=nasty, job=nasty), NOW),
        views.commit(CORE, nasty, NOW),
        views.job(
            CORE, BACKEND, JobKey(delivery=nasty, workflow=nasty, run_id=nasty, attempt=1, job_name=nasty)
        ),
        views.delivery(CORE, nasty),
        views.jobs(JobQuery(upstream=CORE, delivery=nasty)),
        views.deliveries(DeliveryQuery(upstream=CORE, head_sha=nasty)),
        views.deliveries(DeliveryQuery(upstream=CORE, event=nasty, state=DeliveryState.ACCEPTED)),
        views.effect_page(EffectQuery(upstream=CORE, target=nasty)),
        views.effect_page(EffectQuery(upstream=CORE, delivery=nasty)),
        views.audit(AuditQuery(upstream=CORE, who=nasty, act=nasty)),
        views.waiver_page(WaiverQuery(upstream=CORE, who=nasty, backend=nasty), NOW),
        views.sandbox(SandboxQuery(repository=nasty), NOW),
        relay.read_standings(BACKEND, nasty),
    )
    for each in asked:
        with suppress(NotFound, BadRequest):
            await each


async def test_what_names_a_job_is_refused_with_a_nul_and_kept_with_everything_else(
    relay: Reports, stores: Stores
) -> None:
    for name in ("a\0b", "\ud800"):
        with pytest.raises(BadReport, match="NUL"):
            parse_report(report_body(job_name=name))
    names = ["3", "build:linux", "a/b", "🦆", "x" * 256, "'; --", "\u202e", "%_!", "İ", "\x01\x7f"]
    for name in names:
        body = report_body(job_name=name)
        standing = (await relay.read_standings(BACKEND, "d1"))[0]
        await relay.take(parse_report(body), a_caller(), standing, body, NOW)
        await relay.take(parse_report(body), a_caller(), standing, body, NOW)
    found = await stores.rows("SELECT job_name FROM jobs")
    assert sorted(row["job_name"] for row in found) == sorted(names)


def long_name(bytes_: int, seed: int) -> str:
    """Text that does not get shorter by packing it."""
    chance = Random(seed)
    return "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(bytes_ // 3))


async def test_the_longest_names_of_all_can_be_kept_together(relay: Reports, stores: Stores) -> None:
    """A key in PostgreSQL has an end."""
    run, job, workflow = (long_name(600, seed) for seed in range(3))
    other = a_caller(
        kind=IssuerKind.GENERIC, run_id=None, check_run_id=None, workflow_path=None, event_name=None
    )
    body = report_body(run_id=run, job_name=job, name=workflow)
    standing = (await relay.read_standings(BACKEND, "d1"))[0]
    await relay.take(parse_report(body), other, standing, body, NOW)
    await SandboxJobs(stores.database, stores.allowlists, UPSTREAMS).take(parse_report(body), a_caller(), NOW)
    [row] = await stores.rows("SELECT job_name, workflow_name, run_id FROM jobs")
    assert row == {"job_name": job, "workflow_name": workflow, "run_id": run}
    for name in ("run_id", "job_name", "name"):
        with pytest.raises(BadReport, match="603 bytes; at most 600"):
            parse_report(report_body(**{"job_name": "x", name: long_name(603, 1)}))


async def test_the_longest_branch_of_all_can_be_pushed_to(stores: Stores) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    ref = f"refs/heads/{long_name(3_000, 4)}"
    await stores.inbox.take(
        ReceivedDelivery("d1", "push", "test", b"", 0, NOW), a_push(upstream=CORE, ref=ref)
    )
    assert [row["state"] for row in await stores.rows("SELECT state FROM dispatches")] == ["waiting"]


async def test_nasty_details_of_a_result_lose_no_result(relay: Reports, stores: Stores) -> None:
    details: dict[str, Any] = {
        "failed_tests": [{"name": f"t {nasty}", "file": nasty, "message": nasty} for nasty in NASTY],
        "environment": {"cc": "a\0b", "\ud800": 1},
        "url": "https://ci.example/\0",
        "started_at": "9999-12-31T23:59:59Z",
        "completed_at": "0001-01-01T00:00:00Z",
        "check_run_id": 10**30,
    }
    for body in (report_body(), report_body(status="completed", conclusion="failure", **details)):
        standing = (await relay.read_standings(BACKEND, "d1"))[0]
        await relay.take(parse_report(body), a_caller(), standing, body, NOW)
    assert [row["state"] for row in await stores.rows("SELECT state FROM jobs")] == ["completed"]
    views = SqlViews(stores.database, stores.allowlists, (CORE,))
    page = await views.backend(BackendQuery(upstream=CORE, downstream=BACKEND), NOW)
    assert page.failures


async def test_nasty_results_of_other_relays_and_of_the_sandbox_are_kept_or_refused(stores: Stores) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    box = SandboxJobs(stores.database, stores.allowlists, UPSTREAMS)
    results = IngestedResults(stores.database, stores.allowlists, UPSTREAMS)
    for number, nasty in enumerate(NASTY):
        await box.take(
            a_start(job_name=nasty, workflow_name=nasty), a_caller(repository_id=INT8 - number), NOW
        )
        callback = {
            "delivery_id": f"d{number}",
            "payload": {"pull_request": {"number": 2**40, "title": nasty}},
        }
        workflow = {"status": "in_progress", "name": "CI", "run_id": "1", "job_name": f"b {nasty}"}
        metrics = {"queue_time": 1e308, "execution_time": -1}
        envelope = {
            "trusted": {"verified_repo": "org/backend", "downstream_repo_level": "L2", "ci_metrics": metrics},
            "untrusted": {"callback_payload": {**callback, "workflow": workflow}},
        }
        try:
            told_us = parse_envelope(json.dumps(envelope).encode())
        except CrcrError:
            continue
        await results.take(told_us, nasty, NOW)
    assert len(await stores.rows("SELECT job_name FROM sandbox_jobs")) == len(
        {storable(each) for each in NASTY}
    )


async def test_a_text_is_found_by_what_was_asked_to_be_kept(stores: Stores) -> None:
    """What is written and what is looked for are made storable alike."""
    put = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0)"))
    get = Statement(text("SELECT name FROM upstreams WHERE upstream = :name"))

    async def unit(tx: Tx) -> list[Any]:
        await tx.many(put, [{"name": f"{each}{place}"} for place, each in enumerate(NASTY)])
        return [await tx.one(get, name=f"{each}{place}") for place, each in enumerate(NASTY)]

    found = await stores.database.write(unit)
    assert [row["name"] for row in found] == [storable(f"{each}{place}") for place, each in enumerate(NASTY)]
