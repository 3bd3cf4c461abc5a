"""Pairs: recorded from texts and commands, read from GitHub, and dispatched; each step is one transaction.

A pair's step is computed from the recorded facts alone (`decide.pairs.pair`), and the GUID of its dispatch is made from the
heads that it tests: a repeated step sends nothing twice. The dispatch is a delivery of its own, of the event `crcr_pair`,
without a number or commit, and is marked as not counted: nothing that reads a pull request's results finds it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import NAMESPACE_URL, uuid5

from sqlalchemy import text

from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry
from crcr.decide.dispatch.plan import (
    AcceptedDelivery,
    IgnoredEvent,
    PlannedDispatch,
    ReceivedDelivery,
)
from crcr.decide.events import PullRequestEvent
from crcr.decide.github.requests_and_answers import Target
from crcr.decide.model import (
    PAIR_EVENT,
    DeliveryState,
    DispatchState,
    KnownPull,
    Level,
    RepoName,
)
from crcr.decide.pairs.depends_on import MOST_DEPENDENCIES, PullReference
from crcr.decide.pairs.pair import (
    RETEST_FOR,
    DependencyState,
    PairFacts,
    PairStep,
    PlainDispatch,
    ReadDependency,
    Refusal,
    next_read_after,
    next_step,
)
from crcr.errors import NoAllowlist
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.checks.reruns import redispatch
from crcr.record.deliveries.dispatches import write_dispatches
from crcr.record.deliveries.pull_requests import find_newest_delivery, load_pull
from crcr.record.pairs.named_dependencies import (
    ONE_PAIR,
    PAIR_KEY,
    PAIRS_OF_PULL,
    SET_DUE,
    drop_pair,
    request_reads,
    row_key,
)
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us

LOOK_AGAIN = timedelta(minutes=1)
"""For what changes here and not on GitHub: a held plain dispatch is released, or fails after the merge."""
_MOST_DUE = 50
"""Pairs that one sweep looks at: the reads of many wait for each other, and for GitHub's hourly budget."""
_LOCAL = frozenset({Refusal.TOO_MANY, Refusal.NOT_LISTED, Refusal.NOT_RECORDED})
"""Refusals that GitHub is not asked about."""

_REFUSE = Statement(
    text(f"UPDATE pairs SET refusal = :refusal, state = :state, changed_at = :at WHERE {PAIR_KEY}")  # noqa: S608
)
_READ = Statement(
    text(
        "UPDATE pairs SET state = :state, refusal = :refusal, head_sha = :head_sha, clone_url = :clone_url,"  # noqa: S608
        " approved_by = :approved_by, read_at = :at,"
        " changed_at = CASE WHEN CAST(:changed AS INTEGER) = 1 THEN :at ELSE changed_at END,"
        # One that is merged when it is first read causes no dispatch: a text could name it again and again.
        " merged_seen_at = CASE WHEN CAST(:merged AS INTEGER) = 1 THEN"
        " coalesce(merged_seen_at, CASE WHEN state <> 'unread' THEN CAST(:at AS BIGINT) END) END"
        f" WHERE {PAIR_KEY}"
    )
)
_SENT = Statement(
    text(
        "UPDATE pairs SET delivery = :delivery, plain = :plain, tested_sha = :tested_sha, tested_round = round"  # noqa: S608
        f" WHERE {PAIR_KEY}"
    )
)
# A dispatch that was never sent is not what the pair was tested with: the same heads may be dispatched later.
_RESET = Statement(
    text(
        "UPDATE pairs SET delivery = NULL, plain = NULL, tested_sha = NULL, tested_round = NULL, round = round + 1"  # noqa: S608
        f" WHERE {PAIR_KEY} AND EXISTS (SELECT 1 FROM dispatches d WHERE d.delivery = pairs.delivery"
        " AND d.upstream = pairs.upstream AND d.state = 'cancelled')"
    )
)
_OWN_DISPATCH = Statement(
    text(
        "SELECT state FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
    )
)
_NEXT_ROUND = Statement(text(f"UPDATE pairs SET round = round + 1 WHERE {PAIR_KEY}"))  # noqa: S608
_MOST_ROUNDS = 20
_RETESTED = Statement(text(f"UPDATE pairs SET retested = :plain WHERE {PAIR_KEY}"))  # noqa: S608  our own words
_NAMING = Statement(
    text(
        "SELECT q.* FROM pairs q JOIN pulls p ON p.upstream = q.upstream AND p.number = q.number"
        " WHERE q.downstream = :downstream AND q.dependency = :dependency AND p.is_open = 1"
        " ORDER BY q.upstream, q.number"
    )
)
_CHANGED = Statement(text(f"UPDATE pairs SET changed_at = :at, due_at = :at WHERE {PAIR_KEY}"))  # noqa: S608
_DUE = Statement(
    text(
        "SELECT number FROM pairs WHERE due_at IS NOT NULL AND due_at <= :now AND upstream = :upstream"
        " ORDER BY due_at LIMIT :most"
    )
)
_REPOSITORY = Statement(
    text(
        "SELECT name, repository_id, installation_id FROM repositories"
        " WHERE upstream = :upstream AND downstream = :downstream"
    )
)
# A job that passed in a later attempt, or that a newer run replaced, has not failed.
_PLAIN = Statement(
    text(
        "SELECT d.state, d.sent_at, d.action, d.labels, d.downgraded, EXISTS (SELECT 1 FROM jobs j"
        " WHERE j.delivery = d.delivery AND j.upstream = d.upstream AND j.downstream = d.downstream"
        " AND j.superseded = 0 AND j.state <> 'in_progress'"
        " AND coalesce(j.conclusion, 'none') NOT IN ('success', 'skipped', 'neutral')"
        " AND NOT EXISTS (SELECT 1 FROM jobs n WHERE n.delivery = j.delivery AND n.upstream = j.upstream"
        " AND n.downstream = j.downstream AND n.workflow = j.workflow AND n.run_id = j.run_id"
        " AND n.job_name = j.job_name AND n.attempt > j.attempt)) AS has_failed"
        " FROM dispatches d WHERE d.delivery = :delivery AND d.upstream = :upstream AND d.downstream = :downstream"
    )
)
# The same body as the plain delivery's, under a GUID of its own.
_TAKE = Statement(
    text(
        "INSERT INTO deliveries (guid, upstream, event, action, state, source, received_at, body_bytes, body)"
        " SELECT :guid, upstream, :event, action, :state, 'pair', CAST(:now AS bigint), body_bytes, body FROM deliveries"
        " WHERE guid = :plain AND upstream = :upstream AND body IS NOT NULL ON CONFLICT DO NOTHING RETURNING guid"
    )
)
_NOT_COUNTED = Statement(
    text(
        "UPDATE dispatches SET test = 1, labels = :labels WHERE upstream = :upstream AND delivery = :delivery"
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DependencyQuestion:
    """A dependency to read from GitHub."""

    upstream: RepoName
    number: int
    reference: PullReference
    target: Target | None
    """Its repository with the App's installation there; None where that is not known."""
    repository_id: int | None
    """The backend's, as far as it is known: another repository may have its name by now."""
    listed: frozenset[str]
    """Keys of the backends whose pull requests may be read."""

    @property
    def key(self) -> dict[str, Any]:
        return {
            "upstream": self.upstream.key,
            "number": self.number,
            "downstream": self.reference.repository.key,
            "dependency": self.reference.number,
        }


class Pairs:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        refresher: CheckRefresher,
        upstreams: tuple[RepoName, ...],
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._refresher = refresher
        self._upstreams = upstreams

    async def record_event(
        self, delivery: ReceivedDelivery, event: PullRequestEvent
    ) -> AcceptedDelivery | IgnoredEvent:
        """Read the pull request of a downstream again that an open pull request depends on; nearly all cost one read.

        The webhook decides nothing: what GitHub answers does.
        """
        named = {"downstream": event.upstream.key, "dependency": event.number}
        if not await self._database.quick_read(lambda tx: tx.all(_NAMING, **named)):
            return IgnoredEvent("no open pull request depends on it")
        now = delivery.received_at

        async def unit(tx: Tx) -> None:
            rows = await tx.all(_NAMING, **named)
            for row in rows:
                await tx.run(_CHANGED, at=to_us(now), **row_key(row))
            await request_reads(tx, rows, now)

        await self._database.write(unit)
        return AcceptedDelivery(0, DeliveryState.ACCEPTED)

    async def find_question(self, upstream: RepoName, asked: dict[str, Any]) -> DependencyQuestion | None:
        """What to read for an effect; None where the pair is gone, its pull request closed, or GitHub need not be asked."""

        async def unit(tx: Tx) -> DependencyQuestion | None:
            key = {name: asked[name] for name in ("number", "downstream", "dependency")}
            rows = await tx.all(PAIRS_OF_PULL, upstream=upstream.key, number=key["number"])
            pull = await load_pull(tx, upstream, key["number"])
            allowlist = await self._read_allowlist(tx, upstream)
            row = next((row for row in rows if all(row[name] == key[name] for name in key)), None)
            if row is None or pull is None or not pull.is_open or allowlist is None:
                return None
            if refuse_locally(row, rows, allowlist) is not None:
                return None
            return DependencyQuestion(
                upstream=upstream,
                number=key["number"],
                reference=_reference(row),
                target=await _find_target(tx, upstream, row),
                repository_id=await _find_repository_id(tx, upstream, row),
                listed=frozenset(entry.name.key for entry in allowlist.entries),
            )

        return await self._database.quick_read(unit)

    async def find_target(self, upstream: RepoName, repository: RepoName) -> Target | None:
        """A listed repository with the App's installation there."""
        row = {"downstream": repository.key, "name": repository.full_name}
        return await self._database.quick_read(lambda tx: _find_target(tx, upstream, row))

    async def read_dependencies(self, upstream: RepoName, number: int) -> tuple[PullReference, ...]:
        """The recorded dependencies of one of the upstream's own pull requests."""
        rows = await self._database.quick_read(
            lambda tx: tx.all(PAIRS_OF_PULL, upstream=upstream.key, number=number)
        )
        return tuple(map(_reference, rows))

    async def settle(self, question: DependencyQuestion, read: ReadDependency, now: datetime) -> None:
        """Record what GitHub answered, and take the next step."""

        async def unit(tx: Tx) -> None:
            row = await tx.one(ONE_PAIR, **question.key)
            if row is None:
                return
            found = {
                "state": read.state.value,
                "refusal": read.refusal.value if read.refusal else None,
                "head_sha": read.head_sha,
                "clone_url": read.clone_url,
                "approved_by": read.approved_by,
            }
            changed = any(row[name] != value for name, value in found.items())
            merged = read.state is DependencyState.MERGED
            await tx.run(
                _READ, **found, at=to_us(now), changed=int(changed), merged=int(merged), **question.key
            )
            await self._advance(tx, question.upstream, question.number, now, is_news=changed)

        await self._database.write(unit)

    async def advance(self, upstream: RepoName, number: int, now: datetime) -> None:
        """Take the next steps of a pull request's pairs by what is recorded."""
        await self._database.write(lambda tx: self._advance(tx, upstream, number, now, is_news=False))

    async def look_at_due(self, now: datetime) -> int:
        """Read the dependencies that were not read for a while, and take the steps that wait for something recorded here."""
        looked = 0
        for upstream in self._upstreams:
            due: dict[str, Any] = {"upstream": upstream.key, "now": to_us(now), "most": _MOST_DUE}
            rows = await self._database.quick_read(partial(_read_due, **due))
            for number in dict.fromkeys(row["number"] for row in rows):
                await self._look_at(upstream, number, now)
            looked += len(rows)
        return looked

    async def _look_at(self, upstream: RepoName, number: int, now: datetime) -> None:
        async def unit(tx: Tx) -> None:
            await self._advance(tx, upstream, number, now, is_news=False)
            pull = await load_pull(tx, upstream, number)
            if pull is not None and pull.is_open:
                rows = await tx.all(PAIRS_OF_PULL, upstream=upstream.key, number=number)
                await request_reads(tx, [row for row in rows if _is_read_due(row, now)], now)

        await self._database.write(unit)

    async def _read_allowlist(self, tx: Tx, upstream: RepoName) -> Allowlist | None:
        try:
            return await self._allowlists.in_force(tx, upstream)
        except NoAllowlist:
            return None

    async def _advance(
        self, tx: Tx, upstream: RepoName, number: int, now: datetime, *, is_news: bool
    ) -> None:
        pull, allowlist = await load_pull(tx, upstream, number), await self._read_allowlist(tx, upstream)
        rows = await tx.all(PAIRS_OF_PULL, upstream=upstream.key, number=number)
        if pull is None:
            for row in rows:
                await tx.run(SET_DUE, due_at=None, **row_key(row))
        if pull is None or allowlist is None:
            return
        plain = None
        if pull.is_open:
            where = {"head_sha": pull.head_sha, "base_ref": pull.base_ref}
            plain = await find_newest_delivery(tx, upstream, number, **where)
        guid = plain["guid"] if plain is not None and plain["state"] == "accepted" else None
        steps = []
        admitted = [await _refuse_or_admit(tx, row, rows, allowlist, now) for row in rows]
        is_news = is_news or admitted != list(rows)
        for row in admitted:
            entry = allowlist.find(_reference(row).repository)
            pair = _PairRows(row, pull, entry, guid, await _read_plain(tx, row, guid))
            steps.append(await self._take_step(tx, pair, now))
        if is_news or any(steps):
            await note_change(tx, upstream, "delivery", number=number, now=now)
            if pull.is_open:
                await self._refresher.request_refresh_if_shown(tx, upstream, (pull.head_sha,), now)

    async def _take_step(self, tx: Tx, pair: "_PairRows", now: datetime) -> bool:
        """Take the pair's next step; return whether anything was sent."""
        row, facts = pair.row, pair.facts
        step, done = next_step(facts, now), False
        if step is PairStep.SEND:
            done = await self._send(tx, pair, now)
        elif step is PairStep.DROP:
            await drop_pair(tx, row, "the pull request that it depends on no longer counts", now)
            await tx.run(_RESET, **row_key(row))
        elif step is PairStep.SEND_PLAIN_AGAIN:
            done = await self._send_plain_again(tx, pair, now)
        await tx.run(SET_DUE, due_at=_due_at(facts, row, now), **row_key(row))
        return done

    async def _send(self, tx: Tx, pair: "_PairRows", now: datetime) -> bool:
        row, plain = pair.row, pair.plain
        if pair.entry is None or plain is None:
            return False
        upstream, key, head = RepoName(row["upstream"]), row_key(row), row["head_sha"]
        guid, state = await self._find_round(tx, pair)
        sent = {"plain": pair.delivery, "tested_sha": head, **key}
        if state is not None:
            # The text named it before, with the same heads: what was sent then is what would be sent now.
            return bool(await tx.run(_SENT, delivery=guid, **sent))
        delivery = {"upstream": upstream.key, "guid": guid, "plain": pair.delivery, "now": to_us(now)}
        if not await tx.all(_TAKE, event=PAIR_EVENT, state=DeliveryState.ACCEPTED.value, **delivery):
            return False  # the plain body is no longer kept
        await drop_pair(tx, row, f"superseded by {head[:12]} of {_reference(row)}", now)
        shared = {
            "upstream": upstream.key, "delivery": guid, "event": PAIR_EVENT, "action": plain["action"], "number": None,
            "head_sha": None, "lane": f"pair/{row['number']}/{row['dependency']}", "created_at": to_us(now),
        }  # fmt: skip
        planned = PlannedDispatch(pair.entry, DispatchState.WAITING, downgraded=bool(plain["downgraded"]))
        await write_dispatches(tx, shared, (planned,), now)
        await tx.run(_NOT_COUNTED, labels=plain["labels"], upstream=upstream.key, delivery=guid)
        await tx.run(_SENT, delivery=guid, **sent)
        subject = {"downstream": row["downstream"], "delivery": guid, "number": row["number"]}
        await note_change(tx, upstream, "dispatch", now=now, **subject)
        return True

    async def _find_round(self, tx: Tx, pair: "_PairRows") -> tuple[str, str | None]:
        """The GUID of the dispatch for the present heads, and its state; None where it is still to be made.

        The text may name the same pull request again after a dispatch of it was cancelled: then the next round is sent.
        """
        for _ in range(_MOST_ROUNDS):
            guid, row = pair.guid, pair.row
            where = {"upstream": row["upstream"], "downstream": row["downstream"]}
            known = await tx.one(_OWN_DISPATCH, delivery=guid, **where)
            if known is None or known["state"] != DispatchState.CANCELLED.value:
                return guid, known["state"] if known else None
            await tx.run(_NEXT_ROUND, **row_key(row))
            pair = replace(pair, row={**row, "round": row["round"] + 1})
        return guid, DispatchState.CANCELLED.value

    async def _send_plain_again(self, tx: Tx, pair: "_PairRows", now: datetime) -> bool:
        """The dependency is merged: test without it again, whose result the gate waits for."""
        row, upstream, delivery = pair.row, RepoName(pair.row["upstream"]), pair.delivery or ""
        if not await redispatch(tx, upstream, delivery, row["downstream"], now):
            return False
        await tx.run(_RETESTED, plain=delivery, **row_key(row))
        detail = {"dependency": str(_reference(row)), "head": pair.pull.head_sha}
        subject = f"#{pair.pull.number}"
        await note_act(tx, upstream, who="crcr", act="dependency_merged", subject=subject, now=now, **detail)
        await self._refresher.request_refresh(tx, upstream, (pair.pull.head_sha,), now)
        return True


@dataclass(frozen=True, slots=True)
class _PairRows:
    """A pair with what its next step depends on."""

    row: Row
    pull: KnownPull
    entry: AllowlistEntry | None
    delivery: str | None
    """The upstream pull request's delivery that counts."""
    plain: Row | None
    """The backend's dispatch of it."""

    @property
    def guid(self) -> str:
        """The GUID of the dispatch for the present heads."""
        key = "/".join(map(str, row_key(self.row).values()))
        name = f"crcr/pair/{key}/{self.delivery}/{self.row['head_sha']}/{self.row['round']}"
        return str(uuid5(NAMESPACE_URL, name))

    @property
    def facts(self) -> PairFacts:
        return _facts(self.row, self.pull, self.delivery, self.plain)


async def _read_due(tx: Tx, **due: Any) -> list[Row]:
    return await tx.all(_DUE, **due)


def refuse_locally(row: Row, rows: Sequence[Row], allowlist: Allowlist) -> Refusal | None:
    """Why a dependency is refused without a question to GitHub: strangers choose the repositories that texts name."""
    entry = allowlist.find(_reference(row).repository)
    if entry is None:
        return Refusal.NOT_LISTED
    if entry.level < Level.L2:
        return Refusal.NOT_RECORDED
    counted = [row_key(one) for one in rows[:MOST_DEPENDENCIES]]
    return None if row_key(row) in counted else Refusal.TOO_MANY


async def _refuse_or_admit(tx: Tx, row: Row, rows: Sequence[Row], allowlist: Allowlist, now: datetime) -> Row:
    """Record a refusal that GitHub is not asked about, or its end; return the row as it is then."""
    refusal = refuse_locally(row, rows, allowlist)
    known = Refusal(row["refusal"]) if row["refusal"] else None
    if refusal is known or (refusal is None and known not in _LOCAL):
        return row
    changed = {"refusal": refusal.value if refusal else None, "state": DependencyState.UNREAD.value}
    await tx.run(_REFUSE, at=to_us(now), **changed, **row_key(row))
    if refusal is None:
        await request_reads(tx, [row], now)
    return {**row, **changed, "changed_at": to_us(now)}


async def _find_target(tx: Tx, upstream: RepoName, row: Row | dict[str, Any]) -> Target | None:
    known = await tx.one(_REPOSITORY, upstream=upstream.key, downstream=row["downstream"])
    if known is None or known["installation_id"] is None:
        return None
    return Target(RepoName(known["name"] or row["name"]), known["repository_id"], known["installation_id"])


async def _find_repository_id(tx: Tx, upstream: RepoName, row: Row) -> int | None:
    known = await tx.one(_REPOSITORY, upstream=upstream.key, downstream=row["downstream"])
    return None if known is None else known["repository_id"]


async def _read_plain(tx: Tx, row: Row, delivery: str | None) -> Row | None:
    if delivery is None:
        return None
    return await tx.one(_PLAIN, delivery=delivery, upstream=row["upstream"], downstream=row["downstream"])


def _reference(row: Row) -> PullReference:
    return PullReference(RepoName(row["name"]), row["dependency"])


def _facts(row: Row, pull: KnownPull, delivery: str | None, plain: Row | None) -> PairFacts:
    sent_with = None
    if row["delivery"] is not None:
        sent_with = (row["plain"], row["tested_sha"], row["tested_round"])
    return PairFacts(
        is_open=pull.is_open,
        state=DependencyState(row["state"]),
        refusal=Refusal(row["refusal"]) if row["refusal"] else None,
        head_sha=row["head_sha"],
        plain=None
        if plain is None or delivery is None
        else PlainDispatch(
            delivery=delivery,
            state=DispatchState(plain["state"]),
            sent_at=from_us_or_none(plain["sent_at"]),
            has_failed=bool(plain["has_failed"]),
        ),
        sent_with=sent_with,
        round=row["round"],
        merged_seen_at=from_us_or_none(row["merged_seen_at"]),
        retested=row["retested"],
    )


def _due_at(facts: PairFacts, row: Row, now: datetime) -> int | None:
    if not facts.is_open:
        return None
    if facts.state is DependencyState.MERGED:
        over = facts.merged_seen_at is None or now >= facts.merged_seen_at + RETEST_FOR
        return None if over else to_us(now + LOOK_AGAIN)
    if facts.is_honoured and facts.wanted is None:
        return to_us(now + LOOK_AGAIN)
    return to_us(now + next_read_after(from_us(row["changed_at"]), now))


def _is_read_due(row: Row, now: datetime) -> bool:
    """Whether GitHub is to be asked again; never about what is refused without it."""
    is_local = row["refusal"] is not None and Refusal(row["refusal"]) in _LOCAL
    if is_local or row["state"] == DependencyState.MERGED.value:
        return False
    if row["read_at"] is None:
        return True
    read_at, changed_at = from_us(row["read_at"]), from_us(row["changed_at"])
    return now >= read_at + next_read_after(changed_at, read_at)
