"""The contract of `SelfReports` and `ReportedCommits`, on every store: recorded once, also with concurrent writers."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn

import pytest
from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.github.commit_origin import ELSEWHERE, UNKNOWN, CommitPlace, CommitStanding
from crcr.decide.jobs.judge import IgnoredReport, RejectedReport
from crcr.decide.jobs.self_report import SelfReportedJob, SelfReportOutcome
from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import Identity
from crcr.errors import NoAllowlist
from crcr.receive.callback.parse_report import parse_report
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.reports import Reports
from crcr.record.jobs.self_reports import SelfReports
from crcr.record.jobs.tested_commits import ReportedCommits
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from support.data.events_and_reports import a_caller, count_outcomes
from support.stores.databases import CORE, OTHER, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SHA = "a" * 40
WHO = a_caller(event_name="schedule")
LISTED = "L2:\n  - org/backend\n"
_DONE = Statement(text("UPDATE effects SET state = 'done'"))


class Killed(Exception):
    """Simulates a killed process: the unit never ends."""


class FailingForwards(Forwards):
    async def add(self, *_: object) -> NoReturn:
        raise Killed


class Relay:
    def __init__(self, stores: Stores, forwards: Forwards | None = None) -> None:
        self.stores = stores
        self.forwards = forwards or Forwards(enabled=True)
        reports = Reports(
            stores.database,
            allowlists=stores.allowlists,
            targets=stores.targets,
            outcomes=JobOutcomes(self.forwards),
            refresher=CheckRefresher({}),
            upstreams=(CORE, OTHER),
            job_timeout=timedelta(hours=6),
        )
        self.self_reports = SelfReports(
            stores.database, reports=reports, targets=stores.targets, outcomes=JobOutcomes(self.forwards)
        )
        self.commits = ReportedCommits(stores.database)

    async def report(
        self, conclusion: str = "success", *, who: Identity = WHO, now: datetime = NOW, **body_fields: Any
    ) -> SelfReportOutcome | IgnoredReport:
        fields = {"status": "completed", "conclusion": conclusion, "name": "CI", "run_id": who.run_id}
        workflow = {**fields, "job_name": "build", **body_fields.pop("workflow", {})}
        body = json.dumps(
            {"event_type": "nightly", "delivery_id": SHA, "workflow": workflow, **body_fields}
        ).encode()
        report = parse_report(body, signed_attempt=who.run_attempt)
        admission = await self.self_reports.admit(report, who)
        if isinstance(admission, RejectedReport):
            return admission
        return await self.self_reports.take(report, who, admission[0], body, now)


@pytest.fixture
async def open_relay(open_database: OpenDatabase) -> Callable[..., Relay]:
    await Stores.over(open_database()).prepare({CORE: LISTED}, NOW)
    return lambda forwards=None: Relay(Stores.over(open_database()), forwards)


async def test_of_equal_concurrent_self_reports_in_two_processes_one_is_recorded(
    open_relay: Callable[..., Relay],
) -> None:
    one, other = open_relay(), open_relay()
    outcomes = await asyncio.gather(*(relay.report() for relay in (one, other) * 30))
    assert count_outcomes(outcomes) == {"SelfReportedJob": 1, "RepeatedReport": 59}
    [job] = await other.stores.rows("SELECT * FROM jobs")
    assert (job["conclusion"], job["ended_as"]) == ("success", "success")
    [hour] = await other.stores.rows("SELECT success, failure FROM hours")
    assert hour == {"success": 1, "failure": 0}


async def test_of_conflicting_concurrent_results_one_is_recorded_and_the_worse_counts(
    open_relay: Callable[..., Relay],
) -> None:
    one, other = open_relay(), open_relay()
    outcomes = await asyncio.gather(
        *(one.report("success") for _ in range(20)), *(other.report("failure") for _ in range(20))
    )
    assert count_outcomes(outcomes) == {"SelfReportedJob": 1, "RepeatedReport": 19, "conflicting_result": 20}
    [job] = await one.stores.rows("SELECT conclusion, ended_as, disputed FROM jobs")
    assert job == {"conclusion": "failure", "ended_as": "failure", "disputed": 1}
    [hour] = await one.stores.rows("SELECT success, failure FROM hours")
    assert hour == {"success": 0, "failure": 1}


async def test_a_crash_before_the_commit_leaves_nothing_and_the_retry_is_applied(
    open_relay: Callable[..., Relay],
) -> None:
    dying, healthy = open_relay(FailingForwards(enabled=True)), open_relay()
    with pytest.raises(Killed):
        await dying.report()
    for table in ("jobs", "commits", "effects", "hours", "changes"):
        assert await healthy.stores.rows(f"SELECT * FROM {table}") == []  # noqa: S608  our own names
    assert isinstance(await healthy.report(), SelfReportedJob)


async def test_a_self_report_is_stored_with_its_effects_change_and_repository(
    open_relay: Callable[..., Relay],
) -> None:
    relay = open_relay()
    await relay.report()
    effects = await relay.stores.rows("SELECT kind, lane, delivery FROM effects ORDER BY kind")
    assert effects == [
        {"kind": "forward_result", "lane": SHA, "delivery": None},
        {"kind": "verify_commit", "lane": SHA, "delivery": None},
    ]
    [change] = await relay.stores.rows("SELECT kind, downstream, delivery FROM changes")
    assert change == {"kind": "job", "downstream": "org/backend", "delivery": SHA}
    [repository] = await relay.stores.rows("SELECT repository_id, confirmed FROM repositories")
    assert repository == {"repository_id": 5, "confirmed": 0}
    assert await relay.stores.rows("SELECT * FROM runs") == []


async def test_forwarded_self_reports_have_a_delivery_id_that_identifies_them(
    open_relay: Callable[..., Relay],
) -> None:
    relay = open_relay()
    await relay.report(delivery_id=None)
    await relay.report(delivery_id="", workflow={"job_name": "test", "pytorch_head_sha": SHA})
    rows = await relay.stores.rows("SELECT payload FROM effects WHERE kind = 'forward_result'")
    bodies = [json.loads(row["payload"])["untrusted"]["callback_payload"] for row in rows]
    assert [body["delivery_id"] for body in bodies] == ["10", SHA]


async def test_admission_is_checked_again_when_the_report_is_recorded(
    open_relay: Callable[..., Relay],
) -> None:
    relay = open_relay()
    body = b'{"event_type": "nightly", "workflow": {"status": "completed", "name": "CI", "run_id": "10", "job_name": "b"}}'
    report = parse_report(body)
    admission = await relay.self_reports.admit(report, WHO)
    assert isinstance(admission, tuple)
    backend = RepoName("org/backend")
    await relay.stores.targets.suspend(CORE, backend, who="ann", now=NOW)
    refusal = await relay.self_reports.take(report, WHO, admission[0], body, NOW)
    assert isinstance(refusal, RejectedReport)
    assert refusal.code == "suspended"
    assert await relay.stores.rows("SELECT * FROM jobs") == []


async def test_a_report_for_an_upstream_without_a_read_allowlist_is_retryable(
    open_relay: Callable[..., Relay],
) -> None:
    relay = open_relay()
    body_fields: dict[str, Any] = {"payload": {"repository": {"full_name": str(OTHER)}}}
    with pytest.raises(NoAllowlist):
        await relay.report(**body_fields)
    await relay.stores.allowlists.take_reading(OTHER, AllowlistReading("test", LISTED), NOW)
    assert isinstance(await relay.report(**body_fields), SelfReportedJob)
    [job] = await relay.stores.rows("SELECT upstream FROM jobs")
    assert job == {"upstream": OTHER.key}


async def test_a_commit_is_looked_up_once_until_the_result_may_have_changed(
    open_relay: Callable[..., Relay],
) -> None:
    relay = open_relay()

    async def count_look_ups(run: str, minutes: int) -> int:
        """Report a run, then return how many look-ups have been queued in total."""
        await relay.report(who=replace(WHO, run_id=run), now=NOW + timedelta(minutes=minutes))
        return len(await relay.stores.rows("SELECT * FROM effects WHERE kind = 'verify_commit'"))

    assert [await count_look_ups("1", 0), await count_look_ups("2", 1)] == [1, 1]
    await relay.stores.database.write(_finish_effects)
    await relay.commits.settle(CORE, SHA, ELSEWHERE, NOW + timedelta(minutes=2))
    assert [await count_look_ups("3", 3), await count_look_ups("4", 61), await count_look_ups("5", 62)] == [
        1,
        1,
        2,
    ]
    await relay.stores.database.write(_finish_effects)
    await relay.commits.settle(CORE, SHA, CommitPlace(CommitStanding.BASE, "main"), NOW)
    assert await count_look_ups("6", 600) == 2


async def _finish_effects(tx: Tx) -> None:
    await tx.run(_DONE)


async def test_a_commit_found_in_the_base_keeps_that_standing(open_relay: Callable[..., Relay]) -> None:
    relay = open_relay()
    await relay.report()
    assert await relay.commits.is_open(CORE, SHA)
    await relay.commits.settle(CORE, SHA, CommitPlace(CommitStanding.BASE, "main"), NOW)
    assert not await relay.commits.is_open(CORE, SHA)
    await relay.commits.settle(CORE, SHA, UNKNOWN, NOW)
    [row] = await relay.stores.rows("SELECT standing, branch FROM commits")
    assert row == {"standing": "base", "branch": "main"}
    assert not await relay.commits.is_open(OTHER, SHA)
