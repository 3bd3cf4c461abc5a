"""The contract of the sandbox table, on every store: reports are applied once, limited, short-lived and separate."""

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from crcr.decide.jobs.judge import RejectedReport, RepeatedReport
from crcr.decide.jobs.report import FailedTest, Report, ReportStatus, TestCounts
from crcr.decide.jobs.sandbox import SandboxOutcome
from crcr.decide.model import Conclusion, JobState, RepoName
from crcr.decide.views.joining import SandboxJob, SandboxQuery
from crcr.errors import BadRequest, NotFound
from crcr.record.jobs.sandbox import SandboxJobs
from crcr.record.schema.all_tables import metadata
from crcr.record.store.database import Database
from crcr.record.upkeep.retention import Retention
from crcr.record.views.sql_views import SqlViews
from support.data.events_and_reports import a_caller, a_start
from support.data.retention_data import KEEP_ALL
from support.stores.databases import CORE, OTHER, UPSTREAMS, OpenDatabase, Stores

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LISTED = {CORE: "L2: [org/listed]\n", OTHER: "L1: [org/told]\n"}
HOUR = timedelta(hours=1)


def sandbox(stores: Stores, most: int = 10_000) -> SandboxJobs:
    return SandboxJobs(stores.database, stores.allowlists, UPSTREAMS, most=most)


def views(stores: Stores, *, enabled: bool = True) -> SqlViews:
    return SqlViews(stores.database, stores.allowlists, UPSTREAMS, sandbox=enabled)


def an_end(conclusion: Conclusion = Conclusion.SUCCESS, **changes: Any) -> Report:
    return replace(a_start(status=ReportStatus.COMPLETED, conclusion=conclusion), **changes)


async def read_sandbox_jobs(stores: Stores, now: datetime = NOW, **filters: Any) -> tuple[SandboxJob, ...]:
    return (await views(stores).sandbox(SandboxQuery(**filters), now)).jobs


def kinds(outcomes: list[SandboxOutcome]) -> Counter[str]:
    return Counter(
        outcome.code
        if isinstance(outcome, RejectedReport)
        else "repeat"
        if isinstance(outcome, RepeatedReport)
        else outcome.value
        for outcome in outcomes
    )


async def test_a_jobs_start_and_end_are_stored_and_shown(stores: Stores) -> None:
    await stores.prepare(LISTED, NOW)
    sandbox_jobs = sandbox(stores)
    assert await sandbox_jobs.take(a_start(), a_caller(), NOW) is JobState.IN_PROGRESS
    tests = [FailedTest(f"test_{n}", "t.py", "x" * 900) for n in range(30)]
    end = an_end(
        Conclusion.FAILURE, tests=TestCounts(1, 30, 2, 33), failed_tests=tuple(tests), failed_tests_cut=4
    )
    assert await sandbox_jobs.take(end, a_caller(), NOW + HOUR) is JobState.COMPLETED

    [job] = await read_sandbox_jobs(stores, NOW + HOUR)
    assert (job.repository, job.repository_id, job.conclusion) == ("org/backend", 5, Conclusion.FAILURE)
    assert (job.started_at, job.completed_at, job.reported_at) == (NOW, NOW + HOUR, NOW + HOUR)
    assert (job.tests_failed, job.tests_total) == (30, 33)
    assert len(job.failed_tests) + job.failed_tests_more == 34
    assert all(len(test.message or "") <= 500 for test in job.failed_tests)


async def test_of_many_equal_reports_by_two_writers_one_is_applied(open_database: OpenDatabase) -> None:
    one, other = Stores.over(open_database()), Stores.over(open_database())
    await one.prepare(LISTED, NOW)
    writers = (sandbox(one), sandbox(other))
    starts = await asyncio.gather(*(writers[n % 2].take(a_start(), a_caller(), NOW) for n in range(20)))
    assert kinds(list(starts)) == {"in_progress": 1, "repeat": 19}
    ends = await asyncio.gather(
        *(
            writers[n % 2].take(an_end(Conclusion.SUCCESS if n % 3 else Conclusion.FAILURE), a_caller(), NOW)
            for n in range(20)
        )
    )
    assert kinds(list(ends))["completed"] == 1
    assert len(await read_sandbox_jobs(one)) == 1


async def test_sandbox_reports_write_no_other_table(stores: Stores) -> None:
    await stores.prepare(LISTED, NOW)
    others = [name for name in metadata.tables if name != "sandbox_jobs"]

    async def counts() -> dict[str, int]:
        return {name: (await stores.rows(f"SELECT count(*) AS n FROM {name}"))[0]["n"] for name in others}  # noqa: S608

    before = await counts()
    for report in (a_start(url="https://ci.example/1", artifact_url="https://a.example/1"), an_end()):
        await sandbox(stores).take(report, a_caller(), NOW)
    assert await counts() == before
    assert "example" not in str(await stores.rows("SELECT * FROM sandbox_jobs"))


async def test_the_oldest_reports_are_deleted_when_the_sandbox_is_full(stores: Stores) -> None:
    await stores.prepare(LISTED, NOW)
    sandbox_jobs = sandbox(stores, most=5)
    for number in range(8):
        await sandbox_jobs.take(
            a_start(job_name=str(number)), a_caller(), NOW + number * timedelta(seconds=1)
        )
    await sandbox_jobs.take(an_end(job_name="3"), a_caller(), NOW + timedelta(seconds=9))
    await sandbox_jobs.take(a_start(job_name="last"), a_caller(), NOW + timedelta(seconds=10))

    names = [job.job_name for job in await read_sandbox_jobs(stores, NOW + HOUR)]
    assert names == ["last", "3", "7", "6", "5"]


async def test_reports_older_than_48_hours_are_hidden_ignored_and_swept(
    stores: Stores, database: Database
) -> None:
    await stores.prepare(LISTED, NOW)
    sandbox_jobs = sandbox(stores)
    await sandbox_jobs.take(a_start(job_name="old"), a_caller(), NOW)
    await sandbox_jobs.take(a_start(job_name="new"), a_caller(), NOW + HOUR)
    later = NOW + timedelta(hours=48)

    assert len(await read_sandbox_jobs(stores, later - timedelta(microseconds=1))) == 2
    assert [job.job_name for job in await read_sandbox_jobs(stores, later)] == ["new"]
    assert len(await stores.rows("SELECT * FROM sandbox_jobs")) == 2
    await Retention(database, KEEP_ALL).forget(later)
    assert len(await stores.rows("SELECT * FROM sandbox_jobs")) == 1
    assert await sandbox_jobs.take(a_start(job_name="new"), a_caller(), later + HOUR) is JobState.IN_PROGRESS


async def test_a_repository_on_any_allowlist_is_listed(stores: Stores) -> None:
    await stores.prepare({CORE: LISTED[CORE]}, NOW)
    sandbox_jobs = sandbox(stores)
    assert await sandbox_jobs.is_listed(RepoName("ORG/Listed"))
    assert not await sandbox_jobs.is_listed(RepoName("org/told"))
    await stores.prepare(LISTED, NOW)
    assert await sandbox_jobs.is_listed(RepoName("org/told"))


async def test_a_private_repository_is_shown_and_found_by_its_id_only(stores: Stores) -> None:
    await stores.prepare(LISTED, NOW)
    private_caller = a_caller(repository=RepoName("secret/place"), repository_id=9, private=True)
    failed = (FailedTest("test_secret", None, "secret text"),)
    for report in (a_start(), an_end(Conclusion.FAILURE, failed_tests=failed, tests=TestCounts(1, 1, 0, 2))):
        await sandbox(stores).take(report, private_caller, NOW)
    await sandbox(stores).take(a_start(), a_caller(), NOW)

    public_jobs = await read_sandbox_jobs(stores)
    assert {job.repository for job in public_jobs} == {None, "org/backend"}
    assert "secret" not in str(public_jobs)
    assert [job.repository_id for job in await read_sandbox_jobs(stores, repository="9")] == [9]
    assert await read_sandbox_jobs(stores, repository="secret") == ()
    admins = views(stores).for_admins()
    jobs = (await admins.sandbox(SandboxQuery(repository="SECRET/p"), NOW)).jobs
    assert [job.repository for job in jobs] == ["secret/place"]


async def test_a_repository_listed_later_is_shown_according_to_its_visibility(stores: Stores) -> None:
    await stores.prepare(LISTED, NOW)
    for number, name in enumerate(("org/hidden", "org/named", "org/open"), start=1):
        caller = a_caller(repository=RepoName(name), repository_id=number)
        await sandbox(stores).take(a_start(), caller, NOW)
    listed = "L2:\n  - org/hidden: {visibility: hidden}\n  - org/named: {visibility: name}\n  - org/open\n"
    await stores.prepare({OTHER: listed}, NOW)

    assert [job.repository for job in await read_sandbox_jobs(stores)] == ["org/open"]
    assert await read_sandbox_jobs(stores, repository="1") == ()
    assert len((await views(stores).for_admins().sandbox(SandboxQuery(), NOW)).jobs) == 3


@pytest.mark.parametrize("size", [1, 2, 3, 7])
async def test_pages_contain_every_row_once_even_with_equal_times(stores: Stores, size: int) -> None:
    await stores.prepare(LISTED, NOW)
    for number in range(9):
        when = NOW + timedelta(seconds=number // 4)
        await sandbox(stores).take(a_start(job_name=f"job {number}"), a_caller(), when)
    job_names: list[str] = []
    after = None
    while True:
        page = await views(stores).sandbox(SandboxQuery(after=after, limit=size), NOW + HOUR)
        job_names += [job.job_name or "" for job in page.jobs]
        after = page.next
        if after is None:
            break
        assert len(page.jobs) == size
        assert all(isinstance(part, int) for part in after)
    assert sorted(job_names) == [f"job {number}" for number in range(9)]


@pytest.mark.parametrize("after", [("x", 1), (1,), (-1, 1), (1, 0), (1, 2, 3)])
async def test_a_forged_cursor_is_refused(stores: Stores, after: tuple[Any, ...]) -> None:
    await stores.prepare(LISTED, NOW)
    with pytest.raises(BadRequest):
        await views(stores).sandbox(SandboxQuery(after=after), NOW)


async def test_a_disabled_sandbox_raises_not_found(stores: Stores) -> None:
    with pytest.raises(NotFound, match="off"):
        await views(stores, enabled=False).sandbox(SandboxQuery(), NOW)
