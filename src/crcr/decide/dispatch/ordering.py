"""The order of a pull request's webhooks.

GitHub neither orders nor dates deliveries; `pull_request.updated_at` does, to the second. Within one second the chain
of heads (`before` → head) decides; everything else is DOUBT, and GitHub is asked. A head that is left and reached again
by another way within one second is not expected. The base is in every event and is ordered by `updated_at` alone: two
bases within one second are a doubt.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from crcr.decide.events import PullRequestEvent
from crcr.decide.github.requests_and_answers import PullFacts
from crcr.decide.model import KnownPull


class EventOrder(StrEnum):
    NEWER = "newer"
    STALE = "stale"
    DOUBT = "doubt"


def order_head(event: PullRequestEvent, known: KnownPull | None) -> EventOrder:
    """Order an event that moves, opens or closes the head against the known state."""
    if known is None or known.head_at is None or event.updated_at > known.head_at:
        return EventOrder.NEWER
    if event.updated_at < known.head_at:
        return EventOrder.STALE
    return _order_within_second(event, known)


def order_base(event: PullRequestEvent, known: KnownPull | None) -> EventOrder | None:
    """Order an event by its base: NEWER when the base has changed; None when it is the known one."""
    if known is None:
        return EventOrder.NEWER if event.changes_base else None
    if event.base_ref == known.base_ref:
        # It may have changed and changed back, and the first webhook been lost.
        return EventOrder.NEWER if event.changes_base and event.updated_at > known.updated_at else None
    if event.updated_at == known.updated_at:
        return EventOrder.DOUBT
    return EventOrder.NEWER if event.updated_at > known.updated_at else EventOrder.STALE


def _order_within_second(event: PullRequestEvent, known: KnownPull) -> EventOrder:
    if event.action == "opened":
        return EventOrder.STALE  # anything else that is known of this pull request happened after its opening
    if event.action == "closed":
        return EventOrder.DOUBT  # bots close and reopen within one second
    if event.head_sha == known.previous_sha:
        return EventOrder.DOUBT  # the head before this one, or a push back to it
    if event.before is not None and event.before == known.head_sha:
        return EventOrder.NEWER if known.is_open else EventOrder.DOUBT
    if event.head_sha == known.head_sha and event.is_open == known.is_open:
        return EventOrder.NEWER
    return EventOrder.DOUBT


def with_newest_details(event: PullRequestEvent, known: KnownPull | None) -> PullRequestEvent:
    """Return the event with the current labels, draft state and title, when a newer event has already set them."""
    if known is None or known.updated_at < event.updated_at:
        return event
    if known.updated_at == event.updated_at and event.action != "opened":
        return event  # within the same second, the known state is newer than the opening
    return replace(
        event,
        labels=known.labels,
        draft=known.draft,
        title=known.title,
        downstream_note=known.downstream_note,
    )


def move_head(event: PullRequestEvent, known: KnownPull | None) -> KnownPull:
    """Return the pull request after an event that moved, opened or closed its head."""
    moved = known is not None and known.head_sha != event.head_sha
    previous = known.head_sha if known and moved else event.before or (known.previous_sha if known else None)
    updated_at = max(event.updated_at, known.updated_at) if known else event.updated_at
    head_at = max(event.updated_at, known.head_at) if known and known.head_at else event.updated_at
    after = replace(
        _pull_from_event(with_newest_details(event, known)),
        previous_sha=previous,
        head_at=head_at,
        updated_at=updated_at,
        opened_at=event.opened_at or (known.opened_at if known else None),
    )
    if known is not None and order_base(event, known) in (EventOrder.STALE, EventOrder.DOUBT):
        return replace(after, base_ref=known.base_ref, base_at=known.base_at, base_sha=known.base_sha)
    same = known is not None and (known.head_sha, known.base_ref) == (event.head_sha, event.base_ref)
    return replace(
        after,
        base_at=_base_change_time(event.base_ref, event.updated_at, known),
        merge_base=known.merge_base if known and same else None,
    )


def update_details(event: PullRequestEvent, known: KnownPull | None) -> KnownPull | None:
    """Return the pull request after a label, draft or text event; None when a newer state is known.

    The head is kept: an event that overtook its `synchronize` must not make the latter look stale.
    """
    if known is None:
        return _pull_from_event(event)
    if event.updated_at < known.updated_at:
        return None
    after = _pull_from_event(event)
    if event.action == "labeled" and event.updated_at == known.updated_at:
        # Bots set several labels within one second, and each event contains the labels of its own moment.
        after = replace(after, labels=tuple(dict.fromkeys((*known.labels, *event.labels))))
    return replace(
        after,
        head_sha=known.head_sha,
        previous_sha=known.previous_sha,
        head_at=known.head_at,
        is_open=known.is_open,
        merged=known.merged,
        base_at=_base_change_time(event.base_ref, event.updated_at, known),
        base_sha=known.base_sha if event.base_ref == known.base_ref else event.base_sha,
        merge_base=known.merge_base if event.base_ref == known.base_ref else None,
        merge_commit_sha=known.merge_commit_sha or event.merge_commit_sha,
        opened_at=event.opened_at or known.opened_at,
    )


def _base_change_time(base_ref: str, at: datetime, known: KnownPull | None) -> datetime | None:
    """When the pull request got this base; None when no change of the base is known."""
    if known is None:
        return None
    return known.base_at if base_ref == known.base_ref else at


def has_landed(labels: Iterable[str], *, merged: bool) -> bool:
    """Whether a closed pull request was merged: by GitHub, or by a bot that pushes, closes and sets a label."""
    return merged or any(label.casefold() == "merged" for label in labels)


def agrees_with_github(head_sha: str, base_ref: str | None, action: str, facts: PullFacts) -> bool:
    """Whether GitHub's answer agrees with this event; the base of a closed pull request does not matter."""
    if action == "closed":
        return head_sha == facts.head_sha and not facts.is_open
    return facts.is_open and (head_sha, base_ref) == (facts.head_sha, facts.base_ref)


def apply_github_answer(known: KnownPull, facts: PullFacts) -> KnownPull:
    """Return the pull request with the head and the base that GitHub answered."""
    return replace(
        known,
        head_sha=facts.head_sha,
        previous_sha=known.head_sha if known.head_sha != facts.head_sha else known.previous_sha,
        base_ref=facts.base_ref,
        base_at=_base_change_time(facts.base_ref, facts.updated_at, known),
        is_open=facts.is_open,
        merged=facts.merged,
        merge_base=known.merge_base
        if (known.head_sha, known.base_ref) == (facts.head_sha, facts.base_ref)
        else None,
        head_at=facts.updated_at,
        updated_at=max(known.updated_at, facts.updated_at),
    )


def _pull_from_event(event: PullRequestEvent) -> KnownPull:
    return KnownPull(
        number=event.number,
        head_sha=event.head_sha,
        previous_sha=None,
        head_at=None,
        updated_at=event.updated_at,
        is_open=event.is_open,
        draft=event.draft,
        labels=event.labels,
        base_ref=event.base_ref,
        title=event.title,
        author=event.author,
        author_association=event.author_association,
        merged=event.merged,
        base_sha=event.base_sha,
        merge_commit_sha=event.merge_commit_sha,
        opened_at=event.opened_at,
        downstream_note=event.downstream_note,
    )
