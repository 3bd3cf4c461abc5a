"""Known failures: groups that a maintainer linked to an issue, their ends, and the reads of their issues' states.

A link ends by its time, when it is taken back, or when GitHub says that the issue is closed: by a webhook, or by a read once an
hour. An issue that the App cannot read stays open here, and its link ends by its time.
"""
# ruff: noqa: S608 - every name in these statements is our own

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.dispatch.plan import AcceptedDelivery, AlreadyProcessed, IgnoredEvent, ReceivedDelivery
from crcr.decide.dispatch.webhook_body import is_too_old
from crcr.decide.events import IssueClosedEvent
from crcr.decide.failures.known import (
    KNOWN_FOR,
    LONGEST_KNOWN,
    READ_EVERY,
    IssueReference,
    may_be_readable,
    parse_issue_url,
)
from crcr.decide.model import DeliveryState, EffectKind, RepoName
from crcr.errors import BadRequest, NotFound
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.deliveries.webhooks import is_new_body
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.schema.failures import known_failures
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_COLUMNS = ("fingerprint", "upstream", "url", "state", "who", "reason", "created_at", "until_at")
_INSERT = inserting(known_failures, *_COLUMNS)
_LINK = Statement(
    _INSERT.on_conflict_do_update(
        index_elements=["fingerprint", "upstream"],
        set_={
            **{name: _INSERT.excluded[name] for name in _COLUMNS[2:]},
            "checked_at": None,
            "ended_at": None,
        },
    )
)
_GROUP = Statement(
    text("SELECT 1 FROM failure_groups WHERE fingerprint = :fingerprint AND upstream = :upstream LIMIT 1")
)
_IN_FORCE = "upstream = :upstream AND ended_at IS NULL AND until_at > :at"
_UNLINK = Statement(
    text(f"UPDATE known_failures SET ended_at = :at WHERE fingerprint = :fingerprint AND {_IN_FORCE}")
)
_UNLINK_ISSUE = Statement(
    text(f"UPDATE known_failures SET ended_at = :at WHERE lower(url) = :url AND {_IN_FORCE}")
)
_LINKED = Statement(
    text(
        "SELECT DISTINCT upstream FROM known_failures WHERE lower(url) = :url AND ended_at IS NULL AND until_at > :at"
        " ORDER BY upstream"
    )
)
_CLOSE = Statement(
    text(
        f"UPDATE known_failures SET state = 'closed', ended_at = :at WHERE lower(url) = :url AND {_IN_FORCE}"
    )
)
_DUE = Statement(
    text(
        "SELECT DISTINCT upstream, url FROM known_failures WHERE ended_at IS NULL AND until_at > :at"
        " AND (checked_at IS NULL OR checked_at <= :before) ORDER BY upstream, url LIMIT 100"
    )
)
_CHECKED = Statement(
    text("UPDATE known_failures SET checked_at = :at WHERE upstream = :upstream AND url = :url")
)
# The failures of a head that count: not those that the same job has passed since.
_ON_HEAD = Statement(
    text(
        "SELECT f.downstream, f.job_name, f.fingerprint, f.sample FROM deliveries v JOIN failures f"
        " ON f.delivery = v.guid AND f.upstream = v.upstream WHERE v.head_sha = :head_sha AND v.upstream = :upstream"
        " AND f.fingerprint IS NOT NULL AND f.passed_at IS NULL ORDER BY f.failure_id"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKnownFailure:
    fingerprint: str
    url: str
    who: str
    reason: str | None
    duration: timedelta = KNOWN_FOR


@dataclass(frozen=True, slots=True)
class HeadFailure:
    """A group that a head has failures of, by the most frequent message of each failed job."""

    fingerprint: str
    sample: str
    downstreams: frozenset[str]


async def find_head_failures(
    tx: Tx, upstream: RepoName, head_sha: str, downstream: RepoName | None = None, job: str | None = None
) -> list[HeadFailure]:
    """The groups of a head's failed jobs; with `downstream` or `job` only theirs."""
    rows = [
        row
        for row in await tx.all(_ON_HEAD, head_sha=head_sha, upstream=upstream.key)
        if (downstream is None or row["downstream"] == downstream.key) and job in (None, row["job_name"])
    ]
    by_fingerprint: dict[str, list[Row]] = {}
    for row in rows:
        by_fingerprint.setdefault(row["fingerprint"], []).append(row)
    return [
        HeadFailure(fingerprint, alike[0]["sample"] or "", frozenset(row["downstream"] for row in alike))
        for fingerprint, alike in by_fingerprint.items()
    ]


async def link_failure(tx: Tx, upstream: RepoName, new: NewKnownFailure, now: datetime) -> bool:
    """Link the group to the issue, in place of any other; False when there is no such group."""
    if await tx.one(_GROUP, fingerprint=new.fingerprint, upstream=upstream.key) is None:
        return False
    await tx.run(
        _LINK,
        fingerprint=new.fingerprint,
        upstream=upstream.key,
        url=new.url,
        state="open",
        who=new.who,
        reason=new.reason,
        created_at=to_us(now),
        until_at=to_us(now + new.duration),
    )
    await note_change(tx, upstream, "failure", now=now)
    return True


async def unlink_failures(tx: Tx, upstream: RepoName, fingerprints: Iterable[str], now: datetime) -> int:
    """End the links of these groups; return how many there were."""
    ended = 0
    for fingerprint in fingerprints:
        ended += await tx.run(_UNLINK, fingerprint=fingerprint, upstream=upstream.key, at=to_us(now))
    if ended:
        await note_change(tx, upstream, "failure", now=now)
    return ended


async def unlink_issue(tx: Tx, upstream: RepoName, url: str, now: datetime) -> int:
    """End the links of all groups to this issue; return how many there were."""
    ended = await tx.run(_UNLINK_ISSUE, url=url.lower(), upstream=upstream.key, at=to_us(now))
    if ended:
        await note_change(tx, upstream, "failure", now=now)
    return ended


class KnownFailures:
    def __init__(self, database: Database, github_url: str) -> None:
        self._database = database
        self._github_url = github_url

    async def link(self, upstream: RepoName, new: NewKnownFailure, now: datetime) -> None:
        """Link a group to an issue, as an administrator."""
        issue = parse_issue_url(new.url, self._github_url)
        if issue is None:
            raise BadRequest(
                f"{new.url[:200]!r} is not the address of an issue",
                hint=f"such as {self._github_url}/owner/repo/issues/12",
            )
        if not timedelta(0) < new.duration <= LONGEST_KNOWN:
            raise BadRequest(f"a known failure holds for 1 to {LONGEST_KNOWN.days} days")
        link = replace(new, url=issue.url(self._github_url))

        async def unit(tx: Tx) -> None:
            if not await link_failure(tx, upstream, link, now):
                raise NotFound(f"no failure with the fingerprint {link.fingerprint} is recorded")
            await note_act(
                tx,
                upstream,
                who=link.who,
                act="known",
                subject=link.fingerprint,
                now=now,
                url=link.url,
                days=link.duration.days,
                reason=link.reason,
            )

        await self._database.write(unit)

    async def unlink(self, upstream: RepoName, fingerprint: str, *, who: str, now: datetime) -> None:
        async def unit(tx: Tx) -> None:
            if not await unlink_failures(tx, upstream, (fingerprint,), now):
                raise NotFound(f"no known failure has the fingerprint {fingerprint}")
            await note_act(tx, upstream, who=who, act="unknown", subject=fingerprint, now=now)

        await self._database.write(unit)

    # Whether the issues are still open

    async def request_reads(self, now: datetime) -> None:
        """Have the state of each issue read that was not read in the last hour and that the App may be able to read."""
        due = {"at": to_us(now), "before": to_us(now - READ_EVERY)}
        if not await self._database.quick_read(lambda tx: tx.all(_DUE, **due)):
            return

        async def unit(tx: Tx) -> None:
            for row in await tx.all(_DUE, **due):
                await tx.run(_CHECKED, at=due["at"], upstream=row["upstream"], url=row["url"])
                issue = parse_issue_url(row["url"], self._github_url)
                if issue is not None and may_be_readable(issue, RepoName(row["upstream"])):
                    await add_once(tx, _read_effect(row["upstream"], row["url"], now))

        await self._database.write(unit)

    async def find_linked(self, upstream: RepoName, url: str, now: datetime) -> IssueReference | None:
        """The issue of an address that a group of the upstream is still linked to."""
        issue = parse_issue_url(url, self._github_url)
        if issue is None:
            return None
        rows = await self._database.quick_read(lambda tx: tx.all(_LINKED, **self._linked(issue, now)))
        return issue if any(row["upstream"] == upstream.key for row in rows) else None

    async def close_issue(self, issue: IssueReference, now: datetime) -> int:
        """GitHub says that the issue is closed: end the links to it, of all upstreams; return how many there were."""
        return await self._database.write(lambda tx: self._close(tx, issue, now))

    async def record_event(
        self, receipt: ReceivedDelivery, event: IssueClosedEvent
    ) -> AcceptedDelivery | AlreadyProcessed | IgnoredEvent:
        """End the links to an issue that was closed; nearly all issues have none, and cost one read."""
        issue, now = IssueReference(event.repository, event.number), receipt.received_at
        if is_too_old(event, now):
            return IgnoredEvent("the issue was closed more than three days ago")
        if not await self._database.quick_read(lambda tx: tx.all(_LINKED, **self._linked(issue, now))):
            return IgnoredEvent("no failure is linked to this issue")

        async def unit(tx: Tx) -> AcceptedDelivery | AlreadyProcessed:
            if not await is_new_body(tx, receipt, event):
                return AlreadyProcessed()
            await self._close(tx, issue, now)
            return AcceptedDelivery(0, DeliveryState.ACCEPTED)

        return await self._database.write(unit)

    async def _close(self, tx: Tx, issue: IssueReference, now: datetime) -> int:
        linked, ended = self._linked(issue, now), 0
        for row in await tx.all(_LINKED, **linked):
            upstream = RepoName(row["upstream"])
            closed = await tx.run(_CLOSE, upstream=upstream.key, **linked)
            subject = issue.url(self._github_url)
            await note_act(
                tx, upstream, who="crcr", act="issue_closed", subject=subject, now=now, failures=closed
            )
            await note_change(tx, upstream, "failure", now=now)
            ended += closed
        return ended

    def _linked(self, issue: IssueReference, now: datetime) -> dict[str, Any]:
        return {"url": issue.url(self._github_url).lower(), "at": to_us(now)}


def _read_effect(upstream: str, url: str, now: datetime) -> dict[str, Any]:
    return effect_row(
        upstream, EffectKind.READ_ISSUE, target="issues", lane=url.lower(), payload=url.encode(), now=now
    )
