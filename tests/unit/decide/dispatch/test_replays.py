"""How long an equal webhook body counts as a repeat (fault 66)."""

from datetime import timedelta

import pytest

from crcr.decide.dispatch.webhook_body import (
    CLICK_REPEATS_WITHIN,
    REMEMBERED_FOR,
    is_too_old,
    repeats_within,
)
from crcr.decide.events import CheckSuiteEvent, Event, IssueCommentEvent, PingEvent
from support.data.events_and_reports import NOW, UPSTREAM, a_pull, a_push

CLICK = CheckSuiteEvent(UPSTREAM, 1, "a" * 40, app_id=None, sender="ann", installation_id=None)
COMMENT = IssueCommentEvent(
    upstream=UPSTREAM,
    repository_id=1,
    number=7,
    comment_id=1,
    author="ann",
    author_is_person=True,
    body="/crcr status",
    created_at=NOW,
    installation_id=None,
)


@pytest.mark.parametrize("event", [a_pull(), a_push(), PingEvent("zen"), COMMENT])
def test_an_event_is_deduplicated_as_long_as_github_keeps_its_delivery_log(event: Event) -> None:
    assert repeats_within(event) == REMEMBERED_FOR == timedelta(days=3)


def test_a_button_click_counts_as_a_repeat_only_within_a_minute() -> None:
    assert repeats_within(CLICK) == CLICK_REPEATS_WITHIN == timedelta(seconds=60)


def test_a_comment_older_than_the_deduplication_window_is_too_old() -> None:
    assert not is_too_old(COMMENT, NOW + REMEMBERED_FOR)
    assert is_too_old(COMMENT, NOW + REMEMBERED_FOR + timedelta(seconds=1))
    assert not is_too_old(CLICK, NOW + 9 * REMEMBERED_FOR)
