"""Checks in their table: what should be on a commit, what is there, and the acts that lead from one to the other.

A check is written down before GitHub is asked to create it, and its own id goes along as `external_id`: whoever
comes after a lost answer finds the check by it instead of making a second one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from sqlalchemy import bindparam, case, text, update

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.checks.check_run import GATE_NAME, CheckStatus, CheckToPublish, Shown
from crcr.decide.checks.commit import Backend, Commit
from crcr.decide.checks.completeness import awaits_end
from crcr.decide.checks.confirmation import awaits_github
from crcr.decide.checks.gate import HELD_FOR, GateJudgement, GateState, Policy, judge_gate
from crcr.decide.checks.publication import Act, Published, ending, next_act
from crcr.decide.checks.wanted_checks import CheckPolicy, Tier, Wanted, recheck_at, wanted_checks
from crcr.decide.github.run_lookup import WEBHOOK_GRACE
from crcr.decide.model import Conclusion, DispatchState, RepoName
from crcr.record.checks.commit_facts import load_commit
from crcr.record.checks.gates import gates_due, record_gate
from crcr.record.checks.refresh import Publishing
from crcr.record.deliveries.held_dispatches import reconsider
from crcr.record.deliveries.merge_groups import live_groups, withdraw_reuse
from crcr.record.deliveries.pull_requests import load_pull
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.renames import RENAME
from crcr.record.schema.checks import checks
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from crcr.record.workflow_runs.lookup_effects import ensure_look_up

_ENCODE = msgspec.json.Encoder().encode
_OVER = "superseded or closed"
_NOT_WANTED = "no longer requested"
_AWAITED = "awaited"
"""The status of a check that looks completed to GitHub and is not to us."""

_NEWEST = Statement(
    text(
        "SELECT c.check_id, c.name, c.round, c.tier, c.incarnation, c.attempted_at, c.check_run_id, c.status, c.title,"
        " c.digest, c.conclusion, c.reread_at"
        " FROM checks c WHERE c.head_sha = :head_sha AND c.upstream = :upstream"
        " AND c.round = (SELECT max(n.round) FROM checks n WHERE n.head_sha = c.head_sha"
        " AND n.upstream = c.upstream AND n.name = c.name) ORDER BY c.name"
    )
)
_ADD = Statement(
    inserting(
        checks,
        *(
            "upstream",
            "head_sha",
            "name",
            "round",
            "tier",
            "downstream",
            "incarnation",
            "status",
            "title",
            "digest",
        ),
    ).returning(checks.c.check_id)
)
_ATTEMPT = Statement(
    update(checks).where(checks.c.check_id == bindparam("id")).values(attempted_at=bindparam("at"))
)
_COMPLETED = Statement(
    update(checks)
    .where(checks.c.check_id == bindparam("id"))
    .values(check_run_id=bindparam("run"), status=CheckStatus.COMPLETED.value, incarnation="", digest="")
)
# Only over what was recorded when the publication was worked out: a worker that lost its lease changes nothing.
_PUBLISHED = Statement(
    update(checks)
    .where(checks.c.check_id == bindparam("id"), checks.c.digest == bindparam("digest_before"))
    .values(
        check_run_id=bindparam("run"),
        incarnation=bindparam("shows"),
        status=bindparam("is"),
        conclusion=bindparam("concluded"),
        title=bindparam("says"),
        digest=bindparam("hash"),
        published_at=bindparam("at"),
        reread_at=case((checks.c.reread_at == bindparam("settled"), None), else_=checks.c.reread_at),
    )
)
_DOUBT = Statement(
    update(checks)
    .where(checks.c.check_id == bindparam("id"))
    .values(reread_at=bindparam("at"))
    .returning(checks.c.upstream, checks.c.head_sha)
)
_DOUBTED = Statement(
    text(
        "SELECT DISTINCT c.head_sha FROM checks c WHERE c.reread_at IS NOT NULL AND c.reread_at <= :now"
        " AND c.upstream = :upstream AND NOT EXISTS (SELECT 1 FROM checks n WHERE n.head_sha = c.head_sha"
        " AND n.upstream = c.upstream AND n.name = c.name AND n.round > c.round) LIMIT :most"
    )
)
_STEP = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """What becomes of one name on the commit."""

    wanted: Wanted | None
    row: Row | None
    act: Act
    shown: Shown
    digest: str
    reread_at: int | None = None
    hides: bool = False
    """It must be there, cancelled, whether GitHub has it or not."""


class CommitChecks:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        publishing: Publishing,
        *,
        gate_timeout: timedelta,
        job_timeout: timedelta,
        hud_url: str,
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._publishing = publishing
        self.timeouts = Policy(gate_timeout, job_timeout)
        self._hud_url = hud_url.rstrip("/")

    async def to_publish(
        self, upstream: RepoName, head_sha: str, tier: Tier, now: datetime
    ) -> list[CheckToPublish]:
        """Work out what the commit's checks of one tier should be, and what is to be asked of GitHub for it.

        The gate comes first, and its look queues the other tiers where they differ from what GitHub shows.
        """

        async def unit(tx: Tx) -> list[CheckToPublish]:
            rules = await self._rules(tx, upstream)
            commit, judgement = await self.judged(tx, upstream, head_sha, now)
            judgement = judgement if rules.gate_on else None
            newest = await self._newest(tx, upstream, head_sha)
            tiers = tuple(Tier) if tier is Tier.GATE else (tier,)
            wanted: dict[Tier, dict[str, Wanted]] = {each: {} for each in tiers}
            job_names = frozenset(newest[Tier.JOB])
            for check in wanted_checks(commit, judgement, rules, now, job_names, tiers=tiers):
                wanted[check.tier][check.name] = check
            if tier is Tier.GATE:
                title = wanted[tier][GATE_NAME].shown.title if judgement else ""
                again = recheck_at(commit, judgement, rules, now)
                await record_gate(tx, commit, judgement, title=title, recheck_at=again, now=now)
                await self._follow_reuse(tx, commit, now)
                await self._follow_renames(tx, commit, now)
                await _ask_github(tx, commit, judgement, now)
            changes = {each: _changes(commit, each, wanted[each], newest[each], now) for each in tiers}
            for later in tiers:
                if later is not tier and any(change.act is not Act.NOTHING for change in changes[later]):
                    await self._publishing.queue_tier(tx, upstream, later, head_sha, now)
            planned = [await self._plan(tx, commit, tier, change) for change in changes[tier]]
            return [check for check in planned if check is not None]

        return await self._database.write(unit)

    async def note_attempt(self, check_id: int, now: datetime) -> None:
        await self._database.write(lambda tx: tx.run(_ATTEMPT, id=check_id, at=to_us(now)))

    async def note_completed(self, check_id: int, check_run_id: int) -> None:
        """GitHub has it completed, though nobody heard so, or has it no more: another takes its place."""
        await self._database.write(lambda tx: tx.run(_COMPLETED, id=check_id, run=check_run_id))

    async def note_published(self, check: CheckToPublish, check_run_id: int | None, now: datetime) -> None:
        """Write down what GitHub shows; without a check run's id, that there is nothing to end."""
        shown = check.shown

        async def unit(tx: Tx) -> None:
            recorded = await tx.run(
                _PUBLISHED,
                id=check.check_id,
                digest_before=check.digest_before,
                run=check_run_id,
                shows=check.incarnation,
                **{"is": _AWAITED if shown.awaited else shown.status.value},
                concluded=shown.conclusion.value if shown.conclusion else None,
                says=shown.title,
                hash=check.digest,
                at=to_us(now),
                settled=-1 if check.reread_at is None else check.reread_at,
            )
            if not recorded:
                await self._doubt(tx, check.check_id, now, at=now)

        await self._database.write(unit)

    async def reread(self, check_id: int, now: datetime, *, at: datetime) -> None:
        """Ask GitHub at this time what the check shows: another worker may have written it too."""
        await self._database.write(lambda tx: self._doubt(tx, check_id, now, at=at))

    async def _doubt(self, tx: Tx, check_id: int, now: datetime, *, at: datetime) -> None:
        [row] = await tx.all(_DOUBT, id=check_id, at=to_us(at))
        if at <= now:
            await self._publishing.again(tx, RepoName(row["upstream"]), (row["head_sha"],), now)

    async def look_again(self, now: datetime) -> int:
        """Have the gates looked at that time alone may have changed; return how many."""

        async def unit(tx: Tx) -> int:
            looked = 0
            for upstream in self._publishing.upstreams:
                due = await gates_due(tx, upstream, now, _STEP)
                due += await tx.all(_DOUBTED, upstream=upstream.key, now=to_us(now), most=_STEP)
                await self._publishing.again(tx, upstream, [row["head_sha"] for row in due], now)
                looked += len(due)
            return looked

        return await self._database.write(unit)

    async def judged(
        self, tx: Tx, upstream: RepoName, head_sha: str, now: datetime
    ) -> tuple[Commit, GateJudgement | None]:
        """The commit and its gate as they stand now; without a judgement when nobody wants it merged."""
        allowlist = await self._allowlists.in_force(tx, upstream)
        commit = await load_commit(tx, upstream, head_sha, allowlist, now)
        commit = await self._with_valid_reuse(tx, commit, allowlist, now)
        return commit, judge_gate(commit, self.timeouts, now) if commit.subjects else None

    async def _with_valid_reuse(self, tx: Tx, commit: Commit, allowlist: Allowlist, now: datetime) -> Commit:
        """Another commit's pass counts while it is one; after its pull request has ended, it stays what it was."""
        subjects = []
        for subject in commit.subjects:
            if subject.reused_from is not None:
                head = await load_commit(tx, commit.upstream, subject.reused_from, allowlist, now)
                if head.subjects and not self._passes_for(head, subject.base_ref, now):
                    subject = replace(subject, reused_from=None)  # noqa: PLW2901
            subjects.append(subject)
        return replace(commit, subjects=tuple(subjects))

    def _passes_for(self, head: Commit, base_ref: str | None, now: datetime) -> bool:
        passed = judge_gate(head, self.timeouts, now).state is GateState.PASSED
        return passed and head.is_for(base_ref)

    async def _follow_reuse(self, tx: Tx, commit: Commit, now: datetime) -> None:
        """Ask a group's backends when nobody speaks for it any more; look at groups whose judgement hangs on this commit."""
        upstream, head_sha = commit.upstream, commit.head_sha
        for subject in commit.subjects:
            if subject.number is None and subject.reused_from is None:
                allowlist = await self._allowlists.in_force(tx, upstream)
                if await withdraw_reuse(tx, upstream, head_sha, allowlist, now):
                    await self._publishing.again(tx, upstream, (head_sha,), now)
        groups = await live_groups(tx, upstream)
        own = {subject.number for subject in commit.subjects} - {None}
        followers = [
            row["head_sha"]
            for row in groups
            if row["reused_from"] == head_sha or own & set(json.loads(row["numbers"] or "[]"))
        ]
        await self._publishing.again(tx, upstream, followers, now)

    async def _follow_renames(self, tx: Tx, commit: Commit, now: datetime) -> None:
        """Let go of what was held until it was known whether its backend left or was renamed."""
        for subject in commit.subjects:
            if subject.number is None or not any(map(_waits_for_rename, subject.backends)):
                continue
            pull = await load_pull(tx, commit.upstream, subject.number)
            if pull is not None:
                allowlist = await self._allowlists.in_force(tx, commit.upstream)
                await reconsider(tx, commit.upstream, pull, allowlist, now)

    async def _rules(self, tx: Tx, upstream: RepoName) -> CheckPolicy:
        policy = self._publishing.policy(upstream)
        return CheckPolicy(
            gate=self.timeouts,
            gate_on=await self._publishing.gate_on(tx, upstream),
            label_prefixes=policy.label_prefixes,
            l3_fails_red=policy.l3_fails_red,
            l3_pends=policy.l3_pends,
            job_checks=policy.job_checks,
            hud_url=self._hud_url,
        )

    async def _newest(self, tx: Tx, upstream: RepoName, head_sha: str) -> dict[Tier, dict[str, Row]]:
        """The newest check of every name that the commit has."""
        newest: dict[Tier, dict[str, Row]] = {tier: {} for tier in Tier}
        for row in await tx.all(_NEWEST, head_sha=head_sha, upstream=upstream.key):
            newest[Tier(row["tier"])][row["name"]] = row
        return newest

    async def _plan(self, tx: Tx, commit: Commit, tier: Tier, change: _Change) -> CheckToPublish | None:
        """Write down what is about to be published; None where GitHub is not asked for anything."""
        wanted, row = change.wanted, change.row
        if change.act is Act.SETTLE and row is not None:
            await tx.run(_DOUBT, id=row["check_id"], at=None)
            return None
        if change.act is Act.NOTHING:
            return None
        if change.act is Act.CREATE and wanted is not None:
            row = await self._add(tx, commit, wanted, (row["round"] if row else 0) + 1)
        if row is None:
            raise ValueError("only what is there can be changed")
        if change.act is Act.REPLACE:
            again = Wanted(name=row["name"], tier=tier, incarnation=row["incarnation"], shown=change.shown)
            row = await self._add(tx, commit, again, row["round"] + 1)
        return CheckToPublish(
            check_id=row["check_id"],
            check_run_id=row["check_run_id"],
            maybe_created=row["check_run_id"] is None and row["attempted_at"] is not None,
            name=wanted.name if wanted else row["name"],
            head_sha=commit.head_sha,
            incarnation=wanted.incarnation if wanted else row["incarnation"],
            shown=change.shown,
            digest=change.digest,
            digest_before=row["digest"],
            reread_at=change.reread_at,
            annotated=row["attempted_at"] is not None and row["status"] == CheckStatus.COMPLETED.value,
            ends=change.act is Act.END and not change.hides,
        )

    async def _add(self, tx: Tx, commit: Commit, wanted: Wanted, round_: int) -> dict[str, Any]:
        rows = await tx.all(
            _ADD,
            upstream=commit.upstream.key,
            head_sha=commit.head_sha,
            name=wanted.name,
            round=round_,
            tier=wanted.tier.value,
            downstream=wanted.downstream,
            incarnation=wanted.incarnation,
            status=CheckStatus.QUEUED.value,
            title="",
            digest="",
        )
        return {
            "check_id": rows[0]["check_id"],
            "name": wanted.name,
            "check_run_id": None,
            "attempted_at": None,
            "status": CheckStatus.QUEUED.value,
            "title": "",
            "digest": "",
            "incarnation": wanted.incarnation,
        }


def _changes(
    commit: Commit, tier: Tier, wanted: Mapping[str, Wanted], newest: Mapping[str, Row], now: datetime
) -> list[_Change]:
    """What becomes of every name of a tier, in the order in which it is published."""
    return [
        _change(commit, tier, wanted=wanted.get(name), row=newest.get(name), now=now)
        for name in dict.fromkeys((*wanted, *newest))
    ]


def _change(commit: Commit, tier: Tier, *, wanted: Wanted | None, row: Row | None, now: datetime) -> _Change:
    shown = wanted.shown if wanted else ending(tier, _NOT_WANTED if commit.subjects else _OVER)
    digest = digest_of(shown, wanted.brief if wanted else None)
    abandoned = not commit.subjects and not commit.landed
    # Below a gate that is not on GitHub for sure, an older one may show green: there must be one that is cancelled.
    hides = abandoned and tier is Tier.GATE and row is not None and row["round"] > 1
    change = _Change(wanted=wanted, row=row, act=Act.NOTHING, shown=shown, digest=digest, hides=hides)
    # A check that was never asked for need not be ended.
    if wanted is None and row is not None and row["attempted_at"] is None and not hides:
        return change
    act = next_act(_published(row), wanted, digest, abandoned=abandoned)
    if row is None or not _is_due(row["reread_at"], now):
        return replace(change, act=act)
    if act is Act.NOTHING and wanted is None and not (abandoned and tier is Tier.GATE):
        return replace(change, act=Act.SETTLE)  # a finished check of a merged commit stays
    return replace(change, act=Act.UPDATE if act is Act.NOTHING else act, reread_at=row["reread_at"])


def _waits_for_rename(backend: Backend) -> bool:
    held = backend.state is DispatchState.HELD and backend.reason not in HELD_FOR
    return held and not backend.possible_renames and (backend.reason == RENAME or bool(backend.dispatched_as))


async def _ask_github(tx: Tx, commit: Commit, judgement: GateJudgement | None, now: datetime) -> None:
    """Whatever waits for GitHub's word is being asked about, however it came to wait."""
    for one in judgement.subjects if judgement else ():
        for judged in one.backends:
            late = judged.deadline is not None and now >= judged.deadline
            where = (commit.upstream, one.subject.delivery, judged.backend.recorded_name)
            if awaits_github(judged.backend, late=late):
                await ensure_look_up(tx, *where, now)
            elif not late and awaits_end(judged.backend):
                await ensure_look_up(tx, *where, now, after=WEBHOOK_GRACE)


def _is_due(at: int | None, now: datetime) -> bool:
    return at is not None and at <= to_us(now)


def digest_of(shown: Shown, brief: str | None = None) -> str:
    """Two checks of one digest need not be told apart: by all that they show, or by what is published at once of it."""
    if brief is not None:
        return hashlib.sha256(_ENCODE([shown.status, shown.conclusion, shown.awaited, brief])).hexdigest()
    return hashlib.sha256(_ENCODE(shown)).hexdigest()


def _published(row: Row | None) -> Published | None:
    if row is None:
        return None
    return Published(
        tier=Tier(row["tier"]),
        incarnation=row["incarnation"],
        is_open=row["status"] != CheckStatus.COMPLETED.value,
        digest=row["digest"],
        awaited=row["status"] == _AWAITED,
        conclusion=Conclusion(row["conclusion"]) if row["conclusion"] else None,
    )
