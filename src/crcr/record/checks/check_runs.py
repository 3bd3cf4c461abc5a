"""The table of check runs: which checks a commit should have, which it has, and the calls that bring GitHub in line.

A check is recorded before GitHub is asked to create it, and its id is sent as `external_id`: after a lost response, the
next attempt finds the check by it instead of creating a second one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import bindparam, case, text, update

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.checks.check_run import (
    GATE_NAME,
    CheckContent,
    CheckStatus,
    CheckToPublish,
    Tier,
    WantedCheck,
)
from crcr.decide.checks.commit import BackendResults, CommitFacts
from crcr.decide.checks.completeness import awaits_end
from crcr.decide.checks.gate import HELD_FOR, GateJudgement, GatePolicies, GateState, judge_gate
from crcr.decide.checks.publication import CheckAction, PublishedCheck, ending_content, next_action
from crcr.decide.checks.verification import awaits_github
from crcr.decide.checks.wanted_checks import CheckPolicy, recheck_at, wanted_checks
from crcr.decide.github.workflow_runs import WEBHOOK_GRACE
from crcr.decide.levels.standings import Demotion
from crcr.decide.model import Conclusion, DispatchState, RepoName
from crcr.record.checks.commit_facts import load_commit
from crcr.record.checks.gates import find_due_gates, record_gate
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.dispatches import reconsider_held
from crcr.record.deliveries.merge_groups import live_groups, withdraw_reuse
from crcr.record.deliveries.pull_requests import load_pull
from crcr.record.levels.demotions import read_demotions
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
"""The status of a check that is completed on GitHub while its backend still runs."""

_NEWEST_ROUNDS = Statement(
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
_RECORD_ATTEMPT = Statement(
    update(checks).where(checks.c.check_id == bindparam("id")).values(attempted_at=bindparam("at"))
)
_RECORD_COMPLETED = Statement(
    update(checks)
    .where(checks.c.check_id == bindparam("id"))
    .values(check_run_id=bindparam("run"), status=CheckStatus.COMPLETED.value, incarnation="", digest="")
)
# Conditional on the digest that the publication was planned from: a worker that lost its lease changes nothing.
_RECORD_PUBLISHED = Statement(
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
_SET_REREAD = Statement(
    update(checks)
    .where(checks.c.check_id == bindparam("id"))
    .values(reread_at=bindparam("at"))
    .returning(checks.c.upstream, checks.c.head_sha)
)
_REREAD_DUE = Statement(
    text(
        "SELECT DISTINCT c.head_sha FROM checks c WHERE c.reread_at IS NOT NULL AND c.reread_at <= :now"
        " AND c.upstream = :upstream AND NOT EXISTS (SELECT 1 FROM checks n WHERE n.head_sha = c.head_sha"
        " AND n.upstream = c.upstream AND n.name = c.name AND n.round > c.round) LIMIT :most"
    )
)
_BATCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """One check of the commit as it is, as it should be, and the action that leads there."""

    wanted: WantedCheck | None
    row: Row | None
    action: CheckAction
    shown: CheckContent
    digest: str
    reread_at: int | None = None
    hides: bool = False
    """It must be published as cancelled, even if this round was never created."""


class CommitChecks:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        refresher: CheckRefresher,
        *,
        gates: GatePolicies,
        hud_url: str,
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._refresher = refresher
        self.gates = gates
        self._hud_url = hud_url.rstrip("/")

    async def plan_publication(
        self, upstream: RepoName, head_sha: str, tier: Tier, now: datetime
    ) -> list[CheckToPublish]:
        """Compute the commit's checks of one tier, and the calls to GitHub that publish them.

        The gate's tier also queues the other tiers where they differ from what was published.
        """

        async def unit(tx: Tx) -> list[CheckToPublish]:
            rules = await self._rules(tx, upstream, now)
            commit, judgement = await self.judge(tx, upstream, head_sha, now)
            judgement = judgement if rules.gate_on else None
            newest = await self._newest(tx, upstream, head_sha)
            tiers = tuple(Tier) if tier is Tier.GATE else (tier,)
            wanted: dict[Tier, dict[str, WantedCheck]] = {tier: {} for tier in tiers}
            job_names = frozenset(newest[Tier.JOB])
            for check in wanted_checks(commit, judgement, rules, now, job_names, tiers=tiers):
                wanted[check.tier][check.name] = check
            if tier is Tier.GATE:
                title = wanted[tier][GATE_NAME].shown.title if judgement else ""
                due_at = recheck_at(commit, judgement, rules, now)
                await record_gate(tx, commit, judgement, title=title, recheck_at=due_at, now=now)
                await self._follow_reuse(tx, commit, now)
                await self._follow_renames(tx, commit, now)
                await _ensure_look_ups(tx, commit, judgement, now)
            changes = {tier: _changes(commit, tier, wanted[tier], newest[tier], now) for tier in tiers}
            for later in tiers:
                if later is not tier and any(
                    change.action is not CheckAction.NOTHING for change in changes[later]
                ):
                    await self._refresher.queue_tier(tx, upstream, later, head_sha, now)
            planned = [await self._plan(tx, commit, tier, change) for change in changes[tier]]
            return [check for check in planned if check is not None]

        return await self._database.write(unit)

    async def record_attempt(self, check_id: int, now: datetime) -> None:
        await self._database.write(lambda tx: tx.run(_RECORD_ATTEMPT, id=check_id, at=to_us(now)))

    async def record_completed(self, check_id: int, check_run_id: int) -> None:
        """Record that GitHub shows the check as completed although no response said so, or has deleted it: a new one replaces it."""
        await self._database.write(lambda tx: tx.run(_RECORD_COMPLETED, id=check_id, run=check_run_id))

    async def record_published(self, check: CheckToPublish, check_run_id: int | None, now: datetime) -> None:
        """Record what GitHub shows now; no `check_run_id` means that there is no check run to end."""
        shown = check.shown

        async def unit(tx: Tx) -> None:
            recorded = await tx.run(
                _RECORD_PUBLISHED,
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
                await self._schedule_reread(tx, check.check_id, now, at=now)

        await self._database.write(unit)

    async def request_reread(self, check_id: int, now: datetime, *, at: datetime) -> None:
        """Read the check from GitHub at this time: another worker may have written it too."""
        await self._database.write(lambda tx: self._schedule_reread(tx, check_id, now, at=at))

    async def _schedule_reread(self, tx: Tx, check_id: int, now: datetime, *, at: datetime) -> None:
        [row] = await tx.all(_SET_REREAD, id=check_id, at=to_us(at))
        if at <= now:
            await self._refresher.request_refresh(tx, RepoName(row["upstream"]), (row["head_sha"],), now)

    async def refresh_due(self, now: datetime) -> int:
        """Refresh the gates that are due by time alone, and the checks to be reread; return how many."""

        async def unit(tx: Tx) -> int:
            refreshed = 0
            for upstream in self._refresher.upstreams:
                due = await find_due_gates(tx, upstream, now, _BATCH)
                due += await tx.all(_REREAD_DUE, upstream=upstream.key, now=to_us(now), most=_BATCH)
                await self._refresher.request_refresh(tx, upstream, [row["head_sha"] for row in due], now)
                refreshed += len(due)
            return refreshed

        return await self._database.write(unit)

    async def judge(
        self, tx: Tx, upstream: RepoName, head_sha: str, now: datetime
    ) -> tuple[CommitFacts, GateJudgement | None]:
        """The commit and its gate as of now; no judgement when no open pull request or merge group has this head."""
        allowlist = await self._allowlists.in_force(tx, upstream)
        commit = await load_commit(tx, upstream, head_sha, allowlist, now)
        commit = await self._with_valid_reuse(tx, commit, allowlist, now)
        return commit, judge_gate(commit, self.gates.find(upstream), now) if commit.subjects else None

    async def _with_valid_reuse(
        self, tx: Tx, commit: CommitFacts, allowlist: Allowlist, now: datetime
    ) -> CommitFacts:
        """Drop a reused pass that is no longer one. After the other pull request has ended, the pass remains valid."""
        subjects = []
        for subject in commit.subjects:
            if subject.reused_from is not None:
                head = await load_commit(tx, commit.upstream, subject.reused_from, allowlist, now)
                if head.subjects and not self._passes_for(head, subject.base_ref, now):
                    subject = replace(subject, reused_from=None)  # noqa: PLW2901
            subjects.append(subject)
        return replace(commit, subjects=tuple(subjects))

    def _passes_for(self, head: CommitFacts, base_ref: str | None, now: datetime) -> bool:
        return self.passes_unexcused(head, now) and head.is_for(base_ref)

    def passes_unexcused(self, head: CommitFacts, now: datetime) -> bool:
        """Whether the head passes without an excuse: an excuse covers results of the commit itself, and no group's."""
        return judge_gate(head, self.gates.timeouts, now).state is GateState.PASSED

    async def _follow_reuse(self, tx: Tx, commit: CommitFacts, now: datetime) -> None:
        """Dispatch a merge group whose reused pass was dropped; refresh the groups whose judgement depends on this commit."""
        upstream, head_sha = commit.upstream, commit.head_sha
        for subject in commit.subjects:
            if subject.number is None and subject.reused_from is None:
                allowlist = await self._allowlists.in_force(tx, upstream)
                if await withdraw_reuse(tx, upstream, head_sha, allowlist, now):
                    await self._refresher.request_refresh(tx, upstream, (head_sha,), now)
        groups = await live_groups(tx, upstream)
        own = {subject.number for subject in commit.subjects} - {None}
        followers = [
            row["head_sha"]
            for row in groups
            if row["reused_from"] == head_sha or own & set(json.loads(row["numbers"] or "[]"))
        ]
        await self._refresher.request_refresh(tx, upstream, followers, now)

    async def _follow_renames(self, tx: Tx, commit: CommitFacts, now: datetime) -> None:
        """Release dispatches that were held until it was known whether their backend was removed or renamed."""
        for subject in commit.subjects:
            if subject.number is None or not any(map(_waits_for_rename, subject.backends)):
                continue
            pull = await load_pull(tx, commit.upstream, subject.number)
            if pull is not None:
                allowlist = await self._allowlists.in_force(tx, commit.upstream)
                await reconsider_held(tx, commit.upstream, pull, allowlist, now)

    async def _rules(self, tx: Tx, upstream: RepoName, now: datetime) -> CheckPolicy:
        policy = self._refresher.policy(upstream)
        return CheckPolicy(
            gate=self.gates.find(upstream),
            gate_on=await self._refresher.gate_on(tx, upstream),
            label_prefixes=policy.label_prefixes,
            l3_fails_red=policy.l3_fails_red,
            show_l3_pending=policy.show_l3_pending,
            l3_pair_neutral=policy.l3_pair_neutral,
            job_checks=policy.job_checks,
            hud_url=self._hud_url,
            silent=await self._read_silent(tx, upstream, now),
        )

    async def _read_silent(self, tx: Tx, upstream: RepoName, now: datetime) -> frozenset[str]:
        allowlist = await self._allowlists.in_force(tx, upstream)
        levels = self._refresher.policy(upstream).levels
        demotions = await read_demotions(tx, upstream, allowlist.entries, levels, now)
        return frozenset(key for key, demotion in demotions.items() if demotion is Demotion.SILENT)

    async def _newest(self, tx: Tx, upstream: RepoName, head_sha: str) -> dict[Tier, dict[str, Row]]:
        """The newest check of every name that the commit has."""
        newest: dict[Tier, dict[str, Row]] = {tier: {} for tier in Tier}
        for row in await tx.all(_NEWEST_ROUNDS, head_sha=head_sha, upstream=upstream.key):
            newest[Tier(row["tier"])][row["name"]] = row
        return newest

    async def _plan(self, tx: Tx, commit: CommitFacts, tier: Tier, change: _Change) -> CheckToPublish | None:
        """Record what is about to be published; None when no call to GitHub is needed."""
        wanted, row = change.wanted, change.row
        if change.action is CheckAction.SETTLE and row is not None:
            await tx.run(_SET_REREAD, id=row["check_id"], at=None)
            return None
        if change.action is CheckAction.NOTHING:
            return None
        if change.action is CheckAction.CREATE and wanted is not None:
            row = await self._add(tx, commit, wanted, (row["round"] if row else 0) + 1)
        if row is None:
            raise ValueError("only an existing check can be updated")
        if change.action is CheckAction.REPLACE:
            replacement = WantedCheck(
                name=row["name"], tier=tier, incarnation=row["incarnation"], shown=change.shown
            )
            row = await self._add(tx, commit, replacement, row["round"] + 1)
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
            ends=change.action is CheckAction.END and not change.hides,
        )

    async def _add(self, tx: Tx, commit: CommitFacts, wanted: WantedCheck, round_: int) -> dict[str, Any]:
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
    commit: CommitFacts,
    tier: Tier,
    wanted: Mapping[str, WantedCheck],
    newest: Mapping[str, Row],
    now: datetime,
) -> list[_Change]:
    """The changes of one tier, in the order in which they are published."""
    return [
        _change(commit, tier, wanted=wanted.get(name), row=newest.get(name), now=now)
        for name in dict.fromkeys((*wanted, *newest))
    ]


def _change(
    commit: CommitFacts, tier: Tier, *, wanted: WantedCheck | None, row: Row | None, now: datetime
) -> _Change:
    shown = wanted.shown if wanted else ending_content(tier, _NOT_WANTED if commit.subjects else _OVER)
    digest = content_digest(shown, wanted.brief if wanted else None)
    abandoned = not commit.subjects and not commit.landed
    # An older green gate may still show on GitHub: publish a cancelled one over it, even if this round was never created.
    hides = abandoned and tier is Tier.GATE and row is not None and row["round"] > 1
    change = _Change(
        wanted=wanted, row=row, action=CheckAction.NOTHING, shown=shown, digest=digest, hides=hides
    )
    # A check that was never sent to GitHub need not be ended.
    if wanted is None and row is not None and row["attempted_at"] is None and not hides:
        return change
    action = next_action(_published_check(row), wanted, digest, abandoned=abandoned)
    if row is None or not _is_due(row["reread_at"], now):
        return replace(change, action=action)
    if action is CheckAction.NOTHING and wanted is None and not (abandoned and tier is Tier.GATE):
        return replace(change, action=CheckAction.SETTLE)  # a finished check of a merged commit stays
    return replace(
        change,
        action=CheckAction.UPDATE if action is CheckAction.NOTHING else action,
        reread_at=row["reread_at"],
    )


def _waits_for_rename(backend: BackendResults) -> bool:
    held = backend.state is DispatchState.HELD and backend.reason not in HELD_FOR
    return held and not backend.possible_renames and (backend.reason == RENAME or bool(backend.dispatched_as))


async def _ensure_look_ups(
    tx: Tx, commit: CommitFacts, judgement: GateJudgement | None, now: datetime
) -> None:
    """Make sure that a look-up is queued for every backend that waits for GitHub's view of its run."""
    for subject in judgement.subjects if judgement else ():
        for judged in subject.backends:
            late = judged.deadline is not None and now >= judged.deadline
            dispatch = (commit.upstream, subject.subject.delivery, judged.backend.recorded_name)
            if awaits_github(judged.backend, late=late):
                await ensure_look_up(tx, *dispatch, now)
            elif not late and awaits_end(judged.backend):
                await ensure_look_up(tx, *dispatch, now, after=WEBHOOK_GRACE)


def _is_due(at: int | None, now: datetime) -> bool:
    return at is not None and at <= to_us(now)


def content_digest(shown: CheckContent, brief: str | None = None) -> str:
    """Checks with the same digest need no update. With a `brief`, only what it holds is published at once."""
    if brief is not None:
        return hashlib.sha256(_ENCODE([shown.status, shown.conclusion, shown.awaited, brief])).hexdigest()
    return hashlib.sha256(_ENCODE(shown)).hexdigest()


def _published_check(row: Row | None) -> PublishedCheck | None:
    if row is None:
        return None
    return PublishedCheck(
        tier=Tier(row["tier"]),
        incarnation=row["incarnation"],
        is_open=row["status"] != CheckStatus.COMPLETED.value,
        digest=row["digest"],
        awaited=row["status"] == _AWAITED,
        conclusion=Conclusion(row["conclusion"]) if row["conclusion"] else None,
    )
