"""Contents of a merge group as GitHub reports them, and whether a passed head with the same content can be reused."""

from datetime import datetime

from sqlalchemy import text

from crcr.decide.dispatch.plan import GroupToRead, base_branch, queued_pull_number
from crcr.decide.github.requests_and_answers import ChangedFiles
from crcr.decide.model import RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.check_runs import CommitChecks
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.merge_groups import (
    live_groups,
    load_group,
    record_group_contents,
    release_group,
    reuse,
)
from crcr.record.deliveries.pull_requests import load_pull
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.store.database import Database, Tx
from crcr.record.store.statement import Statement

# A backend that ignores such events has not tested the content: its pass on a head is not reused for a group.
_GATING = Statement(
    text(
        "SELECT downstream FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND level = 4"
        " AND NOT (state = 'left_out' AND reason = 'events')"
    )
)


class MergeGroups:
    def __init__(
        self, database: Database, allowlists: Allowlists, checks: CommitChecks, refresher: CheckRefresher
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._checks = checks
        self._refresher = refresher

    async def to_read(self, upstream: RepoName, head_sha: str) -> GroupToRead | None:
        """The group, if it is live and its contents are unknown."""

        async def unit(tx: Tx) -> GroupToRead | None:
            group = await load_group(tx, upstream, head_sha)
            if group is None or group["destroyed_at"] is not None or group["numbers"] is not None:
                return None
            return GroupToRead(
                delivery=group["delivery"],
                head_sha=head_sha,
                base_sha=group["base_sha"],
                head_ref=group["head_ref"],
                base_ref=base_branch(group["base_ref"]),
            )

        return await self._database.quick_read(unit)

    async def queued(self, upstream: RepoName) -> dict[str, int]:
        """Pull request numbers that the merge queue has made a group for, by the group's head."""
        groups = await self._database.quick_read(lambda tx: live_groups(tx, upstream))
        named = {row["head_sha"]: queued_pull_number(row["head_ref"]) for row in groups}
        return {head_sha: number for head_sha, number in named.items() if number is not None}

    async def passed_heads(
        self, upstream: RepoName, group: GroupToRead, numbers: tuple[int, ...], now: datetime
    ) -> tuple[str, ...]:
        """Heads of these pull requests that pass now on the group's base, with results of every gating backend of the group."""

        async def unit(tx: Tx) -> tuple[str, ...]:
            pulls = [await load_pull(tx, upstream, number) for number in numbers]
            own = [pull for pull in pulls if pull is not None and pull.base_ref == group.base_ref]
            heads = [pull.head_sha for pull in own if pull.is_open]
            return tuple([head for head in heads if await self._can_reuse(tx, upstream, head, group, now)])

        return await self._database.quick_read(unit)

    async def settle(
        self,
        upstream: RepoName,
        group: GroupToRead,
        *,
        numbers: tuple[int, ...],
        reused_from: str | None,
        files: ChangedFiles | None,
        now: datetime,
    ) -> None:
        """Record GitHub's answer, and release the group's dispatches unless a passed head is reused."""

        async def unit(tx: Tx) -> None:
            row = await load_group(tx, upstream, group.head_sha)
            if row is None or row["destroyed_at"] is not None:
                return
            head = reused_from
            if head is not None and not await self._can_reuse(tx, upstream, head, group, now):
                head = None
            await record_group_contents(tx, upstream, group.head_sha, numbers=numbers, reused_from=head)
            if head is not None:
                await reuse(tx, upstream, group.delivery)
            else:
                allowlist = await self._allowlists.in_force(tx, upstream)
                await release_group(tx, upstream, group.delivery, allowlist, files=files, now=now)
            await note_change(tx, upstream, "delivery", delivery=group.delivery, now=now)
            await self._refresher.request_refresh(tx, upstream, (group.head_sha,), now)

        await self._database.write(unit)

    async def _can_reuse(
        self, tx: Tx, upstream: RepoName, head_sha: str, group: GroupToRead, now: datetime
    ) -> bool:
        """Whether the head passes on the group's base, judged now: the last published state may be out of date."""
        commit, judgement = await self._checks.judge(tx, upstream, head_sha, now)
        if judgement is None or not self._checks.passes_unexcused(commit, now):
            return False
        if not commit.is_for(group.base_ref):
            return False
        required = await self._gating(tx, upstream, group.delivery)
        tested = [await self._gating(tx, upstream, subject.delivery) for subject in commit.subjects]
        return all(required <= backends for backends in tested)

    async def _gating(self, tx: Tx, upstream: RepoName, delivery: str) -> frozenset[str]:
        rows = await tx.all(_GATING, delivery=delivery, upstream=upstream.key)
        return frozenset(row["downstream"] for row in rows)
