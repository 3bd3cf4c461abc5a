"""The pages of a pull request and of a commit: the delivery whose backends they show, and the timeline.

There is no index from a commit to its deliveries: a commit is found as the head of an open pull request, as a merge
group, by a delivery in the page's address, among the newest deliveries, by self-reports about it, or by its in-tree checks.
"""

import json
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.model import DeliveryState, DispatchState, KnownPull, RepoName
from crcr.decide.notices.announcements import AnnouncementState, announcement_state
from crcr.decide.views.bisections import CulpritBisection
from crcr.decide.views.commit import (
    AnnouncedBackend,
    AnnouncementView,
    Arrival,
    CommitBackend,
    CommitView,
    GateShown,
    GroupView,
    PullState,
    PullView,
    StateCount,
)
from crcr.decide.views.failures import CommitGroup
from crcr.decide.views.in_tree import InTreeView, describe_in_tree
from crcr.decide.views.timeline import TimelineFacts, build_timeline
from crcr.errors import NotFound
from crcr.record.deliveries.merge_groups import load_group
from crcr.record.deliveries.pull_requests import load_pull
from crcr.record.jobs.tested_commits import read_commit_place
from crcr.record.notices.announcements import read_answers, read_concerned, read_notified
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none
from crcr.record.views.commits.commit_backends import CommitReader
from crcr.record.views.commits.in_tree import ComparedBase, read_in_tree
from crcr.record.views.commits.pairs import read_pairs_of_pull
from crcr.record.views.commits.waivers import read_waivers_of_pulls
from crcr.record.views.culprits.bisections import read_bisections_that_found
from crcr.record.views.relay.health import unpublished_gate
from crcr.record.views.relay.state import newest_change
from crcr.record.views.visibility import VisibleBackends

_MOST_ARRIVALS = 50
_MOST_OF_PULL = 500
_MOST_OF_COMMIT = 2_000
_MOST_COMPARED = 5
TESTED_ACTIONS = ("opened", "reopened", "synchronize", "checks_requested", None)
"""Those of a pull request first; a push has none."""

_DELIVERY = (
    "SELECT guid, event, action, state, reason, number, head_sha, base_ref, relay_reason, ref, received_at"
    " FROM deliveries WHERE upstream = :upstream"
)
_OF_PULL = Statement(
    text(f"{_DELIVERY} AND number = :number ORDER BY received_at DESC, guid DESC LIMIT :most")
)
_HEADS = Statement(
    text(
        "SELECT number FROM pulls WHERE head_sha = :head_sha AND upstream || '' = :upstream AND is_open = 1 ORDER BY number"
    )
)
_BY_GUID = Statement(text(f"{_DELIVERY} AND guid = :guid"))
_OF_COMMIT = Statement(
    text(f"{_DELIVERY} AND head_sha = :head_sha ORDER BY received_at DESC, guid DESC LIMIT :most")
)
_STATES = Statement(
    text(
        "SELECT downstream, state FROM dispatches WHERE delivery = :delivery AND upstream = :upstream ORDER BY downstream"
    )
)
_LIVE_GROUPS = Statement(
    text(
        "SELECT m.*, g.state AS gate FROM merge_groups m LEFT JOIN gates g ON g.head_sha = m.head_sha"
        " AND g.upstream = m.upstream WHERE m.upstream = :upstream AND m.destroyed_at IS NULL"
        " ORDER BY m.created_at DESC, m.head_sha"
    )
)
_GATE = Statement(text("SELECT state FROM gates WHERE head_sha = :head_sha AND upstream = :upstream"))


_NOT_ARRIVED = (
    "it appears with its next push; if it has been open for longer, check that the App's webhook is on; "
    "very old pull requests are no longer kept"
)


async def pull_view(reader: CommitReader, number: int) -> PullView:
    tx, upstream = reader.tx, reader.upstream
    pull = await load_pull(tx, upstream, number)
    if pull is None:
        raise NotFound(f"no event of {upstream}#{number} has arrived", hint=_NOT_ARRIVED)
    deliveries = await tx.all(_OF_PULL, upstream=upstream.key, number=number, most=_MOST_OF_PULL)
    head_deliveries = [
        row for row in deliveries if row["head_sha"] == pull.head_sha and row["event"] == "pull_request"
    ]
    # Deliveries of an earlier release have no base.
    tested = [row for row in head_deliveries if row["base_ref"] in (None, pull.base_ref)]
    tested_delivery = find_tested_delivery(tested, *TESTED_ACTIONS[:3])
    closing_delivery = None if pull.is_open else _find_closing_delivery(head_deliveries)
    gate = await reader.gate(pull.head_sha, tested_delivery)
    backends = await reader.backends(tested_delivery) if tested_delivery else ()
    after_closing = await reader.backends(closing_delivery) if closing_delivery else ()
    facts = TimelineFacts(
        arrivals=await _read_arrivals(reader, deliveries[:_MOST_ARRIVALS], pull.head_sha, pull.base_ref),
        backends=(*backends, *after_closing),
        waivers=await read_waivers_of_pulls(tx, upstream, reader.visible, (number,), reader.now),
        checks=await reader.checks(pull.head_sha, gate),
        gate=gate,
        groups=await _read_groups_with(tx, upstream, number, reader.now),
        pull=_pull_state(pull),
    )
    moments, left_out = build_timeline(facts)
    in_tree = await read_in_tree(tx, upstream, pull.head_sha, _base_of(pull))
    groups = await reader.groups(tested_delivery, backends) if tested_delivery else ()
    return PullView(
        upstream=upstream,
        number=number,
        at=reader.now,
        cursor=await newest_change(tx),
        state=_pull_state(pull),
        gate=gate,
        backends=backends,
        after_closing=after_closing,
        waivers=facts.waivers,
        checks=facts.checks,
        timeline=moments,
        timeline_left_out=left_out + max(0, len(deliveries) - _MOST_ARRIVALS),
        merge_groups=facts.groups,
        groups=_add_in_tree(groups, in_tree),
        in_tree=in_tree,
        bisections=await _read_bisections(reader, pull.merge_commit_sha),
        announcement=await _read_announcement(reader, pull),
        pairs=await read_pairs_of_pull(reader, number, tested_delivery),
        **{name: getattr(pull, name) for name in _AS_STORED},
    )


_AS_STORED: tuple[Any, ...] = ("title", "author", "draft", "labels", "base_ref", "head_sha")


async def _read_announcement(reader: CommitReader, pull: KnownPull) -> AnnouncementView | None:
    """The announced breakage with the backends that the reader may see; None where none is announced."""
    state = announcement_state(pull)
    if state is None:
        return None
    tx, upstream, public = reader.tx, reader.upstream, reader.visible.public
    told = await read_notified(tx, upstream, pull.number)
    found = await read_concerned(tx, upstream, pull, reader.allowlist)
    concerned = set(found.concerned) if state is AnnouncementState.ANNOUNCED else set()
    answers = await read_answers(tx, upstream, pull)
    backends = [
        AnnouncedBackend(
            name=public[key].name,
            oncalls=public[key].oncalls,
            notified_at=thread.opened_at if thread and thread.has_channel else None,
            ended_at=thread.closed_at if thread else None,
            has_channel=thread.has_channel if thread else None,
            answers=answers.get(key, ()),
        )
        for key in sorted({*told, *concerned} & public.keys())
        for thread in [told.get(key)]
    ]
    return AnnouncementView(
        state=state,
        note=pull.downstream_note or "",
        changed_at=pull.downstream_note_at,
        backends=tuple(sorted(backends, key=lambda backend: bool(backend.answers))),
    )


async def commit_view(reader: CommitReader, head_sha: str, delivery: str | None) -> CommitView:
    tx, upstream = reader.tx, reader.upstream
    group = await load_group(tx, upstream, head_sha)
    heads = await tx.all(_HEADS, head_sha=head_sha, upstream=upstream.key)
    named = [delivery, group["delivery"] if group else None]
    deliveries = await _read_deliveries(reader, head_sha, [row["number"] for row in heads], named)
    self_reporting = await reader.read_self_reporting(head_sha)
    numbers = {row["number"] for row in deliveries if row["number"] is not None}
    base = await _find_base(tx, upstream, head_sha, numbers, group)
    in_tree = await read_in_tree(tx, upstream, head_sha, base)
    if not deliveries and not self_reporting and in_tree is None:
        raise NotFound(
            f"no delivery of {upstream} about the commit {head_sha[:64]} is known by its SHA",
            hint="give all 40 digits; the relay knows only commits that were pushed, proposed or tested since it "
            "was set up, and very old ones are no longer kept",
        )
    tested_delivery = find_tested_delivery(deliveries, *TESTED_ACTIONS)
    gate = await reader.gate(head_sha, tested_delivery)
    related_pulls = numbers | set(json.loads(group["numbers"] or "[]") if group else ())
    group_shown = await _read_group(tx, upstream, group, reader.now) if group else None
    dispatched = await reader.backends(tested_delivery) if tested_delivery else ()
    facts = TimelineFacts(
        arrivals=await _read_arrivals(reader, deliveries[:_MOST_ARRIVALS], head_sha),
        backends=(*dispatched, *self_reporting),
        waivers=await read_waivers_of_pulls(tx, upstream, reader.visible, sorted(related_pulls), reader.now),
        checks=await reader.checks(head_sha, gate),
        gate=gate,
        groups=(group_shown,) if group_shown else (),
    )
    moments, left_out = build_timeline(facts)
    return CommitView(
        upstream=upstream,
        head_sha=head_sha,
        at=reader.now,
        cursor=await newest_change(tx),
        event=_find_event(deliveries, self_reporting),
        ref=deliveries[0]["ref"] if deliveries else None,
        place=await read_commit_place(tx, upstream, head_sha) if self_reporting else None,
        numbers=tuple(sorted(numbers)),
        group=group_shown,
        gate=gate,
        backends=facts.backends,
        waivers=facts.waivers,
        checks=facts.checks,
        timeline=moments,
        timeline_left_out=left_out + max(0, len(deliveries) - _MOST_ARRIVALS),
        groups=_add_in_tree(await reader.groups(tested_delivery or head_sha, facts.backends), in_tree),
        in_tree=in_tree,
        bisections=await _read_bisections(reader, head_sha),
    )


def _base_of(pull: KnownPull) -> ComparedBase:
    return ComparedBase(pull.base_ref, pull.merge_base or pull.base_sha, with_newest=pull.is_open)


async def _find_base(
    tx: Tx, upstream: RepoName, head_sha: str, numbers: Collection[int], group: Row | None
) -> ComparedBase | None:
    """The base of the first pull request with this head, or of the merge group."""
    for number in sorted(numbers)[:_MOST_COMPARED]:
        pull = await load_pull(tx, upstream, number)
        if pull is not None and pull.head_sha == head_sha:
            return _base_of(pull)
    if group is None:
        return None
    ref = str(group["base_ref"]).removeprefix("refs/heads/")
    return ComparedBase(ref, group["base_sha"], with_newest=False)


def _add_in_tree(groups: Iterable[CommitGroup], in_tree: InTreeView | None) -> tuple[CommitGroup, ...]:
    """The groups, each with what in-tree CI shows on the same commit: names of checks join no failures of other commits."""
    sentence = None if in_tree is None else describe_in_tree(in_tree)
    return tuple(replace(group, in_tree=sentence) for group in groups)


async def _read_deliveries(
    reader: CommitReader, head_sha: str, numbers: list[int], guids: list[str | None]
) -> list[Row]:
    """The deliveries about the commit, as far as they can be found, newest first."""
    tx, key = reader.tx, reader.upstream.key
    rows = await tx.all(_OF_COMMIT, upstream=key, head_sha=head_sha, most=_MOST_OF_COMMIT)
    for number in numbers:
        rows += await tx.all(_OF_PULL, upstream=key, number=number, most=_MOST_OF_PULL)
    for guid in filter(None, guids):
        rows += await tx.all(_BY_GUID, guid=guid, upstream=key)
    by_guid = {row["guid"]: row for row in rows if row["head_sha"] == head_sha}
    return sorted(by_guid.values(), key=lambda row: (row["received_at"], row["guid"]), reverse=True)


def find_tested_delivery(newest_first: list[Row], *actions: str | None) -> str | None:
    """The newest delivery with one of these actions that dispatched; a superseded one did not."""
    for row in newest_first:
        tested = row["action"] in actions or row["relay_reason"] is not None
        if tested and row["state"] != DeliveryState.SUPERSEDED.value:
            return str(row["guid"])
    return None


def _find_event(newest_first: list[Row], self_reporting: Sequence[CommitBackend]) -> str:
    """The event that made the commit known; only a push reaches no backend and still has in-tree checks."""
    if newest_first:
        event: str = newest_first[0]["event"]
        return event
    return self_reporting[0].event if self_reporting else "push"


def _find_closing_delivery(newest_first: list[Row]) -> str | None:
    closings = [row for row in newest_first if row["action"] == "closed"]
    return find_tested_delivery(closings, "closed")


async def _read_arrivals(
    reader: CommitReader, rows: list[Row], head_sha: str, base_ref: str | None = None
) -> tuple[Arrival, ...]:
    of_other_base = [base_ref is not None and row["base_ref"] not in (None, base_ref) for row in rows]
    return tuple(
        [
            await _read_arrival(reader.tx, reader.upstream, reader.visible, row, head_sha, older=older)
            for row, older in zip(rows, of_other_base, strict=True)
        ]
    )


async def _read_arrival(
    tx: Tx, upstream: RepoName, visible: VisibleBackends, row: Row, head_sha: str, *, older: bool
) -> Arrival:
    dispatches = await tx.all(_STATES, delivery=row["guid"], upstream=upstream.key)
    counted = Counter(
        dispatch["state"] for dispatch in dispatches if dispatch["downstream"] in visible.public
    )
    state = DeliveryState(row["state"])
    older = older or (row["head_sha"] is not None and row["head_sha"] != head_sha)
    return Arrival(
        guid=row["guid"],
        event=row["event"],
        action=row["action"],
        state=state,
        reason=row["reason"],
        head_sha=row["head_sha"],
        superseded=older or state is DeliveryState.SUPERSEDED,
        received_at=from_us(row["received_at"]),
        dispatches=tuple(StateCount(state, counted[state]) for state in DispatchState if counted[state]),
    )


async def _read_bisections(reader: CommitReader, sha: str | None) -> tuple[CulpritBisection, ...]:
    """`sha` is None for a pull request that became no commit of the base."""
    if sha is None:
        return ()
    return await read_bisections_that_found(reader.tx, reader.upstream, sha, reader.visible)


def _pull_state(pull: KnownPull) -> PullState:
    if pull.is_open:
        return PullState.OPEN
    return PullState.MERGED if pull.merged else PullState.CLOSED


async def _read_groups_with(tx: Tx, upstream: RepoName, number: int, now: datetime) -> tuple[GroupView, ...]:
    rows = await tx.all(_LIVE_GROUPS, upstream=upstream.key)
    containing = [row for row in rows if number in json.loads(row["numbers"] or "[]")]
    return tuple([await _group_view(tx, upstream, row, row["gate"], now) for row in containing])


async def _read_group(tx: Tx, upstream: RepoName, row: Row, now: datetime) -> GroupView:
    gate = await tx.one(_GATE, head_sha=row["head_sha"], upstream=upstream.key)
    return await _group_view(tx, upstream, row, gate["state"] if gate else None, now)


async def _group_view(tx: Tx, upstream: RepoName, row: Row, gate: str | None, now: datetime) -> GroupView:
    live = gate is not None and row["destroyed_at"] is None
    return GroupView(
        head_sha=row["head_sha"],
        head_ref=row["head_ref"],
        base_ref=row["base_ref"],
        numbers=None if row["numbers"] is None else tuple(json.loads(row["numbers"])),
        reused_from=row["reused_from"],
        gate=GateShown(gate) if gate else None,
        created_at=from_us(row["created_at"]),
        destroyed_at=from_us_or_none(row["destroyed_at"]),
        unpublished=await unpublished_gate(tx, upstream, row["head_sha"], gate, now)
        if gate and live
        else None,
    )
