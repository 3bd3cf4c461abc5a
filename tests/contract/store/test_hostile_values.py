"""Texts and numbers that only some databases accept: stored in the same form, or refused on receipt (faults 15, 29)."""

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
HOSTILE = ("a\0b", "\ud800", "x\udfff\0", "'; DROP TABLE jobs; --", "\u202e\u2028", "🦆" * 300, "%_!\\")
INT4, INT8 = 2**31 - 1, 2**63 - 1


def report_body(**workflow: Any) -> bytes:
    fields = {"status": "in_progress", "name": "CI", "run_id": "10", "job_name": "build", **workflow}
    return json.dumps({"delivery_id": "d1", "workflow": fields}).encode()


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
def test_an_impossible_run_attempt_is_refused_in_the_report_and_in_the_token(attempt: int) -> None:
    with pytest.raises(BadReport, match=r"run_attempt|number"):
        parse_report(report_body(run_attempt=attempt))
    if attempt > 0:
        with pytest.raises(BadReport, match="run_attempt"):
            parse_report(report_body(), signed_attempt=attempt)


@pytest.mark.parametrize("count", [INT4, INT4 + 1, 10**12, 2**62, 10**17, -5])
async def test_out_of_range_test_counts_do_not_lose_the_result(
    relay: Reports, stores: Stores, count: int
) -> None:
    counts = {"passed": count, "failed": 1, "skipped": str(count), "total": count}
    for body in (report_body(), report_body(status="completed", conclusion="success", test_results=counts)):
        standing = (await relay.read_standings(BACKEND, "d1"))[0]
        await relay.take(parse_report(body), a_caller(), standing, body, NOW)
    [job] = await stores.rows("SELECT state, tests_passed, tests_failed, tests_total FROM jobs")
    known = count if 0 <= count <= INT4 else None
    assert job == {"state": "completed", "tests_passed": known, "tests_failed": 1, "tests_total": known}


async def test_a_pull_request_with_the_largest_number_is_stored_and_found(stores: Stores) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    event = a_pull(upstream=CORE, number=INT4, updated_at=NOW, repository_id=INT8, installation_id=INT8)
    await stores.inbox.take(ReceivedDelivery("d9", "pull_request", "test", b"", 0, NOW), event)
    views = SqlViews(stores.database, stores.allowlists, (CORE,))
    assert (await views.pull(CORE, INT4, NOW)).number == INT4
    assert [
        delivery.guid
        for delivery in (await views.deliveries(DeliveryQuery(upstream=CORE, number=INT4))).deliveries
    ] == ["d9"]


@pytest.mark.parametrize("number", [0, -1, INT4, INT4 + 1, 2**40, INT8, -(2**63)])
async def test_forged_numbers_in_a_cursor_are_accepted_or_refused_without_a_fault(
    relay: Reports, stores: Stores, number: int
) -> None:
    """A cursor is opaque, but any client can forge one."""
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


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_is_stored_in_the_same_form_everywhere(stores: Stores, hostile: str) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    event = a_pull(upstream=CORE, updated_at=NOW, title=hostile, author=hostile, labels=(hostile,))
    await stores.inbox.take(ReceivedDelivery("d1", "pull_request", "test", b"", 0, NOW), event)
    await stores.allowlists.take_reading(CORE, AllowlistReading(hostile, f"L2: [{hostile}"), NOW)
    await stores.acts.pause(CORE, who=hostile, now=NOW, reason=hostile)
    refusal = RefusedReport(
        caller=BACKEND,
        code="gone",
        detail=hostile,
        hint=hostile,
        run_id=hostile,
        job_name=hostile,
        delivery_id=hostile,
    )
    await Refusals(stores.database, stores.allowlists, stores.targets, UPSTREAMS).note(refusal, NOW)
    failed = FailedAttempt(decision=TryAgain(NOW), error=hostile, unsure=True, counts=True)
    for effect in await stores.outbox("w").claim(9, NOW):
        await stores.outbox("w").fail(effect, failed, NOW)
    [pull] = await stores.rows("SELECT title, author FROM pulls")
    assert pull == {"title": storable(hostile), "author": storable(hostile)}
    assert "\0" not in str(pull)


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
async def test_hostile_text_in_a_query_causes_no_fault(relay: Reports, stores: Stores, hostile: str) -> None:
    views = SqlViews(stores.database, stores.allowlists, (CORE,), sandbox=True)
    backend_query = BackendQuery(upstream=CORE, downstream=BACKEND)
    queries = (
        views.search(SearchQuery(upstream=CORE, text=hostile), NOW),
        views.suggest(SearchQuery(upstream=CORE, text=hostile), NOW),
        views.backend(replace(backend_query, text=hostile), NOW),
        views.backend(replace(backend_query, author=hostile, job=hostile), NOW),
        views.commit(CORE, hostile, NOW),
        views.job(
            CORE,
            BACKEND,
            JobKey(delivery=hostile, workflow=hostile, run_id=hostile, attempt=1, job_name=hostile),
        ),
        views.delivery(CORE, hostile),
        views.jobs(JobQuery(upstream=CORE, delivery=hostile)),
        views.deliveries(DeliveryQuery(upstream=CORE, head_sha=hostile)),
        views.deliveries(DeliveryQuery(upstream=CORE, event=hostile, state=DeliveryState.ACCEPTED)),
        views.effect_page(EffectQuery(upstream=CORE, target=hostile)),
        views.effect_page(EffectQuery(upstream=CORE, delivery=hostile)),
        views.audit(AuditQuery(upstream=CORE, who=hostile, act=hostile)),
        views.waiver_page(WaiverQuery(upstream=CORE, who=hostile, backend=hostile), NOW),
        views.sandbox(SandboxQuery(repository=hostile), NOW),
        relay.read_standings(BACKEND, hostile),
    )
    for query in queries:
        with suppress(NotFound, BadRequest):
            await query


async def test_a_job_name_with_a_nul_is_refused_and_any_other_is_stored(
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
    jobs = await stores.rows("SELECT job_name FROM jobs")
    assert sorted(row["job_name"] for row in jobs) == sorted(names)


def long_name(bytes_: int, seed: int) -> str:
    """Text that compression does not shorten."""
    chance = Random(seed)
    return "".join(chr(chance.randrange(0x4E00, 0x9FFF)) for _ in range(bytes_ // 3))


async def test_the_longest_names_fit_into_one_key(relay: Reports, stores: Stores) -> None:
    """PostgreSQL limits the length of a key."""
    run, job, workflow = (long_name(600, seed) for seed in range(3))
    generic_caller = a_caller(
        kind=IssuerKind.GENERIC, run_id=None, check_run_id=None, workflow_path=None, event_name=None
    )
    body = report_body(run_id=run, job_name=job, name=workflow)
    standing = (await relay.read_standings(BACKEND, "d1"))[0]
    await relay.take(parse_report(body), generic_caller, standing, body, NOW)
    await SandboxJobs(stores.database, stores.allowlists, UPSTREAMS).take(parse_report(body), a_caller(), NOW)
    [row] = await stores.rows("SELECT job_name, workflow_name, run_id FROM jobs")
    assert row == {"job_name": job, "workflow_name": workflow, "run_id": run}
    for name in ("run_id", "job_name", "name"):
        with pytest.raises(BadReport, match="603 bytes; at most 600"):
            parse_report(report_body(**{"job_name": "x", name: long_name(603, 1)}))


async def test_a_push_to_the_longest_branch_name_is_dispatched(stores: Stores) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    ref = f"refs/heads/{long_name(3_000, 4)}"
    await stores.inbox.take(
        ReceivedDelivery("d1", "push", "test", b"", 0, NOW), a_push(upstream=CORE, ref=ref)
    )
    assert [row["state"] for row in await stores.rows("SELECT state FROM dispatches")] == ["waiting"]


async def test_hostile_details_do_not_lose_the_result(relay: Reports, stores: Stores) -> None:
    details: dict[str, Any] = {
        "failed_tests": [
            {"name": f"t {hostile}", "file": hostile, "message": hostile} for hostile in HOSTILE
        ],
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


async def test_hostile_results_of_other_relays_and_of_the_sandbox_are_stored_or_refused(
    stores: Stores,
) -> None:
    await stores.prepare({CORE: "L2: [org/backend]\n"}, NOW)
    sandbox = SandboxJobs(stores.database, stores.allowlists, UPSTREAMS)
    results = IngestedResults(stores.database, stores.allowlists, UPSTREAMS)
    for number, hostile in enumerate(HOSTILE):
        await sandbox.take(
            a_start(job_name=hostile, workflow_name=hostile), a_caller(repository_id=INT8 - number), NOW
        )
        callback = {
            "delivery_id": f"d{number}",
            "payload": {"pull_request": {"number": 2**40, "title": hostile}},
        }
        workflow = {"status": "in_progress", "name": "CI", "run_id": "1", "job_name": f"b {hostile}"}
        metrics = {"queue_time": 1e308, "execution_time": -1}
        envelope = {
            "trusted": {"verified_repo": "org/backend", "downstream_repo_level": "L2", "ci_metrics": metrics},
            "untrusted": {"callback_payload": {**callback, "workflow": workflow}},
        }
        try:
            parsed = parse_envelope(json.dumps(envelope).encode())
        except CrcrError:
            continue
        await results.take(parsed, hostile, NOW)
    assert len(await stores.rows("SELECT job_name FROM sandbox_jobs")) == len(
        {storable(value) for value in HOSTILE}
    )


async def test_a_stored_text_is_found_by_its_original_text(stores: Stores) -> None:
    """Written values and search values get the same replacements."""
    put = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0)"))
    get = Statement(text("SELECT name FROM upstreams WHERE upstream = :name"))

    async def unit(tx: Tx) -> list[Any]:
        await tx.many(put, [{"name": f"{value}{index}"} for index, value in enumerate(HOSTILE)])
        return [await tx.one(get, name=f"{value}{index}") for index, value in enumerate(HOSTILE)]

    rows = await stores.database.write(unit)
    assert [row["name"] for row in rows] == [
        storable(f"{value}{index}") for index, value in enumerate(HOSTILE)
    ]
