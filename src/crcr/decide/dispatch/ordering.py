"""Where a webhook stands in its pull request's history.

GitHub neither orders nor dates deliveries; `pull_request.updated_at` does, to the second. Within one second
the next link of the chain of heads (`before` → head) tells; all else is DOUBT, and GitHub is asked. Nobody is
expected to leave a head and to come back to it by another way within one second. The base is in every event and is
ordered by `updated_at` alone: two bases of one second are a doubt.
"""

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from enum import StrEnum

from crcr.decide.events import PullRequestEvent
from crcr.decide.github.values import PullFacts
from crcr.decide.model import KnownPull


class EventOrder(StrEnum):
    NEWER = "newer"
    STALE = "stale"
    DOUBT = "doubt"


def order_head(event: PullRequestEvent, known: KnownPull | None) -> EventOrder:
    """Place an event that moves, opens or closes the head."""
    if known is None or known.head_at is None or event.updated_at > known.head_at:
        return EventOrder.NEWER
    if event.updated_at < known.head_at:
        return EventOrder.STALE
    return _order_within_second(event, known)


def order_base(event: PullRequestEvent, known: KnownPull | None) -> EventOrder | None:
    """Place an event by its base: NEWER when that is another one now; None when it is the one that is known."""
    if known is None:
        return EventOrder.NEWER if event.changes_base else None
    if event.base_ref == known.base_ref:
        # It may have left and come back, and the news of its leaving been lost.
        return EventOrder.NEWER if event.changes_base and event.updated_at > known.updated_at else None
    if event.updated_at == known.updated_at:
        return EventOrder.DOUBT
    return EventOrder.NEWER if event.updated_at > known.updated_at else EventOrder.STALE


def _order_within_second(event: PullRequestEvent, known: KnownPull) -> EventOrder:
    if event.action == "opened":
        return EventOrder.STALE  # whatever else is known of this pull request came after its opening
    if event.action == "closed":
        return EventOrder.DOUBT  # bots close and reopen within a second
    if event.head_sha == known.previous_sha:
        return EventOrder.DOUBT  # the head before this one, or a push back to it
    if event.before is not None and event.before == known.head_sha:
        return EventOrder.NEWER if known.is_open else EventOrder.DOUBT
    if event.head_sha == known.head_sha and event.is_open == known.is_open:
        return EventOrder.NEWER
    return EventOrder.DOUBT


def with_newest_details(event: PullRequestEvent, known: KnownPull | None) -> PullRequestEvent:
    """The event with the labels and draft state of today, when a newer event has already brought them."""
    if known is None or known.updated_at < event.updated_at:
        return event
    if known.updated_at == event.updated_at and event.action != "opened":
        return event  # what is known of a pull request came after its opening, if within the same second
    return replace(event, labels=known.labels, draft=known.draft, title=known.title)


def move_head(event: PullRequestEvent, known: KnownPull | None) -> KnownPull:
    """The pull request after an event that moved, opened or closed its head."""
    moved = known is not None and known.head_sha != event.head_sha
    previous = known.head_sha if known and moved else event.before or (known.previous_sha if known else None)
    updated_at = max(event.updated_at, known.updated_at) if known else event.updated_at
    head_at = max(event.updated_at, known.head_at) if known and known.head_at else event.updated_at
    after = replace(
        _pull_from_event(with_newest_details(event, known)),
        previous_sha=previous,
        head_at=head_at,
        updated_at=updated_at,
    )
    if known is not None and order_base(event, known) in (EventOrder.STALE, EventOrder.DOUBT):
        return replace(after, base_ref=known.base_ref, base_at=known.base_at)
    return replace(after, base_at=_base_changed_at(event.base_ref, event.updated_at, known))


def update_details(event: PullRequestEvent, known: KnownPull | None) -> KnownPull | None:
    """The pull request after a label, draft or text event; None when a newer one is known.

    The head stays as known: an event that overtook its `synchronize` must not make that one look stale.
    """
    if known is None:
        return _pull_from_event(event)
    if event.updated_at < known.updated_at:
        return None
    after = _pull_from_event(event)
    if event.action == "labeled" and event.updated_at == known.updated_at:
        # Bots set several labels within one second, and each event has those of its own moment.
        after = replace(after, labels=tuple(dict.fromkeys((*known.labels, *event.labels))))
    return replace(
        after,
        head_sha=known.head_sha,
        previous_sha=known.previous_sha,
        head_at=known.head_at,
        is_open=known.is_open,
        merged=known.merged,
        base_at=_base_changed_at(event.base_ref, event.updated_at, known),
    )


def _base_changed_at(base_ref: str, at: datetime, known: KnownPull | None) -> datetime | None:
    """When the pull request got this base, if that is known to have changed."""
    if known is None:
        return None
    return known.base_at if base_ref == known.base_ref else at


def has_landed(labels: Iterable[str], *, merged: bool) -> bool:
    """Whether a closed pull request was merged: by GitHub, or by a bot that pushes, closes and says so by a label."""
    return merged or any(label.casefold() == "merged" for label in labels)


def agrees_with_github(head_sha: str, base_ref: str | None, action: str, facts: PullFacts) -> bool:
    """Whether GitHub's present answer is what this event said; whatever its base was, a closed one is closed."""
    if action == "closed":
        return head_sha == facts.head_sha and not facts.is_open
    return facts.is_open and (head_sha, base_ref) == (facts.head_sha, facts.base_ref)


def apply_github_answer(known: KnownPull, facts: PullFacts) -> KnownPull:
    """The pull request after GitHub told us its head and its base."""
    return replace(
        known,
        head_sha=facts.head_sha,
        previous_sha=known.head_sha if known.head_sha != facts.head_sha else known.previous_sha,
        base_ref=facts.base_ref,
        base_at=_base_changed_at(facts.base_ref, facts.updated_at, known),
        is_open=facts.is_open,
        merged=facts.merged,
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
    )
