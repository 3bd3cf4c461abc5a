"""For how long the same webhook body again is a repeat, whatever GUID it comes under.

GitHub signs the body alone: whoever has captured one can send it again under a GUID of their own. Bodies of two events
differ, because they hold an id that is given once (a comment, a run's attempt) or the second in which something changed
(`updated_at`, `pushed_at`). Only a person's click holds neither: the same button may be meant twice.
"""

from datetime import datetime, timedelta

from crcr.decide.events import CheckRunEvent, CheckSuiteEvent, Event, IssueCommentEvent, PushEvent

REMEMBERED_FOR = timedelta(days=3)
"""As long as GitHub keeps its own log of deliveries."""
CLICK_REPEATS_WITHIN = timedelta(seconds=60)


def repeats_within(event: Event) -> timedelta:
    """The time in which an equal body is the same event again."""
    return CLICK_REPEATS_WITHIN if isinstance(event, CheckRunEvent | CheckSuiteEvent) else REMEMBERED_FOR


def is_too_old(event: Event, now: datetime) -> bool:
    """Whether a comment or a push is older than bodies are remembered: nobody could tell whether it was taken before.

    Events of pull requests need no such rule: `updated_at` orders them.
    """
    if isinstance(event, IssueCommentEvent):
        return now - event.created_at > REMEMBERED_FOR
    return (
        isinstance(event, PushEvent)
        and event.pushed_at is not None
        and now - event.pushed_at > REMEMBERED_FOR
    )
