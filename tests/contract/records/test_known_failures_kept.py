"""Known failures in the store: linked, replaced, ended manually or by their issue, and read at most once an hour."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.events import IssueClosedEvent
from crcr.decide.failures.known import IssueReference
from crcr.decide.model import RepoName
from crcr.errors import BadRequest, NotFound
from crcr.record.failures.known_failures import KnownFailures, NewKnownFailure, unlink_issue
from crcr.record.store.database import Database
from crcr.record.store.statement import Statement
from support.data.failed_jobs import fingerprint_of, record_failed_job
from support.stores.databases import CORE, OTHER

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
GITHUB = "https://github.com"
ISSUE = IssueReference(RepoName("Pytorch-Like/Driver"), 12)
URL = ISSUE.url(GITHUB)
MESSAGE = "NotImplementedError: aten::foo has no kernel"
FINGERPRINT = fingerprint_of(MESSAGE)
_ROWS = Statement(text("SELECT * FROM known_failures ORDER BY upstream, fingerprint"))
_EFFECTS = Statement(text("SELECT upstream, lane, state FROM effects WHERE kind = 'read_issue'"))
_DONE = Statement(text("UPDATE effects SET state = 'done' WHERE kind = 'read_issue'"))
_ACTS = Statement(text("SELECT who, act, subject FROM audit ORDER BY audit_id"))


@pytest.fixture
async def known(database: Database) -> KnownFailures:
    for upstream in (CORE, OTHER):
        await record_failed_job(database, "d-1", MESSAGE, at=NOW, upstream=upstream)
    return KnownFailures(database, GITHUB)


async def rows(database: Database, statement: Statement = _ROWS) -> list[dict[str, Any]]:
    return [dict(row) for row in await database.read(lambda tx: tx.all(statement))]


async def link(known: KnownFailures, upstream: RepoName = CORE, *, now: datetime = NOW, **more: Any) -> None:
    new = NewKnownFailure(fingerprint=FINGERPRINT, url=URL, who="mia", reason="x")
    await known.link(upstream, replace(new, **more), now)


def closed(**more: Any) -> tuple[ReceivedDelivery, IssueClosedEvent]:
    guid, at = more.pop("guid", "g-1"), more.pop("at", NOW)
    fields: dict[str, Any] = {"closed_at": NOW, "repository_id": 7, "installation_id": None, **more}
    event = IssueClosedEvent(repository=RepoName("pytorch-like/driver"), number=12, **fields)
    return ReceivedDelivery(guid, "issues", "webhook", b"", 9, at, f"digest of {guid}"), event


async def test_a_new_link_replaces_the_old_one_and_starts_open(
    known: KnownFailures, database: Database
) -> None:
    await link(known)
    await known.close_issue(ISSUE, NOW)
    await link(known, url="https://GITHUB.com/other/repo/issues/3", duration=timedelta(days=90), reason=None)
    (row,) = await rows(database)
    assert (row["url"], row["state"], row["ended_at"], row["checked_at"]) == (
        f"{GITHUB}/other/repo/issues/3",
        "open",
        None,
        None,
    )
    assert row["until_at"] - row["created_at"] == 90 * 86_400 * 10**6


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        ({"url": "https://github.com/o/r/pull/1"}, BadRequest),
        ({"url": "https://example.org/o/r/issues/1"}, BadRequest),
        ({"duration": timedelta(days=91)}, BadRequest),
        ({"duration": timedelta(0)}, BadRequest),
    ],
)
async def test_links_to_non_issues_unknown_failures_or_with_bad_durations_are_refused(
    known: KnownFailures, database: Database, wrong: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        await link(known, **wrong)
    with pytest.raises(NotFound):
        await link(known, fingerprint="0" * 16)
    assert await rows(database) == []


async def test_a_link_is_removed_once(known: KnownFailures, database: Database) -> None:
    await link(known)
    await known.unlink(CORE, FINGERPRINT, who="mia", now=NOW)
    with pytest.raises(NotFound):
        await known.unlink(CORE, FINGERPRINT, who="mia", now=NOW)
    assert [row["act"] for row in await rows(database, _ACTS)] == ["known", "unknown"]
    await link(known)
    assert await database.write(lambda tx: unlink_issue(tx, CORE, URL, NOW)) == 1
    (row,) = await rows(database)
    assert (row["state"], row["ended_at"] is None) == ("open", False)


async def test_a_closed_issue_ends_its_links_in_every_upstream(
    known: KnownFailures, database: Database
) -> None:
    await link(known)
    await link(known, OTHER)
    assert isinstance(await known.record_event(*closed()), AcceptedDelivery)
    assert {(row["state"], row["ended_at"] is None) for row in await rows(database)} == {("closed", False)}
    acts = [(row["who"], row["act"], row["subject"]) for row in await rows(database, _ACTS)]
    assert acts[2:] == [("crcr", "issue_closed", "https://github.com/pytorch-like/driver/issues/12")] * 2
    assert isinstance(await known.record_event(*closed(guid="g-2")), IgnoredEvent)


async def test_a_repeated_or_late_close_event_does_not_end_a_new_link(
    known: KnownFailures, database: Database
) -> None:
    await link(known)
    assert isinstance(await known.record_event(*closed()), AcceptedDelivery)
    await link(known, now=NOW + timedelta(hours=1))
    again = NOW + timedelta(hours=2)
    assert isinstance(await known.record_event(*closed(at=again)), AlreadyProcessed)
    later = NOW + timedelta(days=4)
    assert isinstance(await known.record_event(*closed(guid="g-3", at=later)), IgnoredEvent)
    assert [row["ended_at"] for row in await rows(database)] == [None]


async def test_a_linked_issue_is_read_at_most_once_an_hour_while_the_link_is_valid(
    known: KnownFailures, database: Database
) -> None:
    await link(known)
    await link(known, OTHER)
    for minutes in (0, 30, 59):
        await known.request_reads(NOW + timedelta(minutes=minutes))
    effects = await rows(database, _EFFECTS)
    assert [(row["upstream"], row["lane"]) for row in effects] == [(CORE.key, URL.lower())], "one owner only"
    await database.write(lambda tx: tx.run(_DONE))
    await known.request_reads(NOW + timedelta(minutes=61))
    assert len(await rows(database, _EFFECTS)) == 2
    await database.write(lambda tx: tx.run(_DONE))
    await known.request_reads(NOW + timedelta(days=31))
    assert len(await rows(database, _EFFECTS)) == 2, "its time is over"
    assert await known.find_linked(CORE, URL, NOW) == ISSUE
    assert await known.find_linked(CORE, URL, NOW + timedelta(days=31)) is None
