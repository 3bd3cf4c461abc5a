"""The rules of notices: threads by a table, quiet hours and digests by the clock, texts that are safe from injection."""

from datetime import UTC, datetime, time
from itertools import product
from zoneinfo import ZoneInfo

import pytest

from crcr.decide.model import RepoName
from crcr.decide.notices.notice import (
    GATHERING,
    KINDS,
    THREADS,
    ChannelKind,
    ChannelRules,
    NoticeEvent,
    NoticeKind,
    QuietHours,
    SetupItem,
    ThreadChange,
    ThreadState,
    ThreadStep,
    find_destination,
    send_at,
    thread_state,
)
from crcr.decide.notices.texts import (
    ThreadText,
    comment_body,
    email_subject,
    email_text,
    issue_body,
    issue_title,
    slack_body,
    webhook_body,
)

NOW = datetime(2026, 3, 28, 12, 0, tzinfo=UTC)
UPSTREAM, BACKEND = RepoName("org/core"), RepoName("org/backend")
BERLIN = ZoneInfo("Europe/Berlin")
NIGHT = QuietHours(time(22), time(7))
HOSTILE = "`x` @everyone <!channel> <https://evil.example|click>\r\nBcc: all@example.org ](http://evil) *"


def event(kind: NoticeKind = NoticeKind.RED, **more: object) -> NoticeEvent:
    fields = {"upstream": UPSTREAM, "backend": BACKEND, "summary": "it is so", **more}
    return NoticeEvent(kind=kind, **fields)  # type: ignore[arg-type]


def thread(summary: str = "1 job fails", **more: object) -> ThreadText:
    fields = {
        "thread_id": 7,
        "kind": NoticeKind.RED,
        "change": ThreadChange.OPENED,
        "upstream": UPSTREAM,
        "backend": BACKEND,
        "number": None,
        "details": (summary,),
        "oncalls": ("ann", "org/team"),
        "url": "https://relay.test/crcr/org/backend",
        "opened_at": NOW,
        "closed_at": None,
        "is_open": True,
        **more,
    }
    return ThreadText(summary=summary, **fields)  # type: ignore[arg-type]


def test_every_kind_has_a_rule_and_every_state_and_step_a_change() -> None:
    assert set(KINDS) == set(NoticeKind)
    assert set(THREADS) == set(product(ThreadState, ThreadStep))


@pytest.mark.parametrize("kind", [kind for kind, (_, step) in KINDS.items() if step is ThreadStep.CLOSE])
def test_the_end_of_a_subject_without_an_open_thread_changes_nothing(kind: NoticeKind) -> None:
    for state in (ThreadState.NONE, ThreadState.CLOSED):
        assert THREADS[state, event(kind).step] is ThreadChange.NOTHING


def test_a_subject_that_comes_back_within_a_day_continues_its_thread() -> None:
    closed_at = {ThreadState.CLOSED: NOW.replace(hour=1), ThreadState.NONE: NOW.replace(day=27, hour=11)}
    assert (
        thread_state(is_open=False, closed_at=NOW.replace(day=30), now=NOW) is ThreadState.CLOSED
    )  # clock set back
    for state, at in closed_at.items():
        assert thread_state(is_open=False, closed_at=at, now=NOW) is state
    assert THREADS[ThreadState.CLOSED, ThreadStep.OPEN] is ThreadChange.REOPENED


@pytest.mark.parametrize(
    ("kind", "notice_event", "destination"),
    [
        (ChannelKind.ISSUE, event(), "org/backend"),
        (ChannelKind.ISSUE, event(backend=None), None),
        (ChannelKind.ISSUE, event(NoticeKind.SETUP_BROKEN, item=SetupItem.APP.value), None),
        (ChannelKind.COMMENT, event(), None),
        (ChannelKind.COMMENT, event(NoticeKind.GATE_FAILED, number=5), "5"),
        (ChannelKind.SLACK, event(), ""),
        (ChannelKind.WEBHOOK, event(backend=None), ""),
    ],
)
def test_an_event_has_a_destination_only_in_channels_that_fit_it(
    kind: ChannelKind, notice_event: NoticeEvent, destination: str | None
) -> None:
    assert find_destination(kind, notice_event) == destination


@pytest.mark.parametrize(
    ("rules", "now", "expected"),
    [
        ({}, "2026-03-28T12:00", "2026-03-28T12:01"),
        ({"quiet": NIGHT}, "2026-03-28T12:00", "2026-03-28T12:01"),
        ({"quiet": NIGHT}, "2026-03-28T21:59", "2026-03-29T07:00"),
        ({"quiet": NIGHT}, "2026-03-28T23:30", "2026-03-29T07:00"),
        ({"quiet": NIGHT}, "2026-03-28T06:59:30", "2026-03-28T07:00:30"),
        ({"quiet": QuietHours(time(12), time(13))}, "2026-03-28T12:30", "2026-03-28T13:00"),
        ({"digest": time(9)}, "2026-03-28T08:59", "2026-03-28T09:00"),
        ({"digest": time(9)}, "2026-03-28T09:00", "2026-03-29T09:00"),
        ({"digest": time(6), "quiet": NIGHT}, "2026-03-28T12:00", "2026-03-29T07:00"),
        # The clocks of Berlin change on the 29th at 01:00 UTC: 07:00 is 06:00 UTC before, and 05:00 UTC after it.
        ({"quiet": NIGHT, "zone": BERLIN}, "2026-03-27T23:00", "2026-03-28T06:00"),
        ({"quiet": NIGHT, "zone": BERLIN}, "2026-03-28T23:00", "2026-03-29T05:00"),
        ({"digest": time(2, 30), "zone": BERLIN}, "2026-03-28T12:00", "2026-03-29T01:30"),
    ],
)
def test_nothing_is_sent_in_quiet_hours_and_a_digest_once_a_day(
    rules: dict[str, object], now: str, expected: str
) -> None:
    channel = ChannelRules(name="c", kind=ChannelKind.SLACK, **rules)  # type: ignore[arg-type]
    at = send_at(channel, datetime.fromisoformat(f"{now}+00:00"))
    assert at == datetime.fromisoformat(f"{expected}+00:00")


def test_a_message_is_never_sent_before_its_event_nor_in_quiet_hours_at_any_time() -> None:
    for minute, digest in product(range(0, 2 * 24 * 60, 17), (None, time(23, 45), time(3))):
        rules = ChannelRules(name="c", kind=ChannelKind.EMAIL, quiet=NIGHT, digest=digest, zone=BERLIN)
        now = datetime.fromtimestamp(NOW.timestamp() + 60 * minute, UTC)
        at = send_at(rules, now)
        assert at >= now + (GATHERING if digest is None else now - now)
        assert not NIGHT.contain(at.astimezone(BERLIN).time())
        assert (at - now).total_seconds() <= 2 * 86_400


def test_untrusted_text_mentions_nobody_and_adds_no_header() -> None:
    notice_event = event(summary=HOSTILE, details=(HOSTILE,) * 30)
    assert len(notice_event.details) == 21
    shown = thread(notice_event.summary, details=notice_event.details)
    for body in (issue_body(shown, "<!-- mark -->"), comment_body([shown], "<!-- mark -->")):
        outside_code = "".join(body.replace("``", "`").split("`")[::2])
        assert "@everyone" not in outside_code
        assert "@ann" in outside_code
        assert "http://evil" not in outside_code
    slack = slack_body([shown, thread(), thread(f"commit 1a2b broke it: {HOSTILE}")])["text"]
    outside_code = "".join(slack.split("`")[::2])
    assert "commit 1a2b broke it" in outside_code
    assert "@everyone" not in outside_code
    assert "http://evil" not in outside_code
    assert "<!channel>" not in slack
    assert "<https://evil" not in slack
    assert "\n" not in email_subject([shown]) + issue_title(shown)
    assert "\r" not in email_text([shown])
    [notice] = webhook_body([shown], delivery="1", at=NOW)["notices"]
    assert notice["summary"] == notice_event.summary


@pytest.mark.parametrize("number", [1, 10, 40, 100])
def test_a_comment_stays_below_githubs_limit_and_counts_the_rest(number: int) -> None:
    details = ("\N{SNOWMAN}`" * 150,) * 20
    oncalls = tuple(f"{'o' * 39}{person}" for person in range(20))
    threads = [
        thread("x" * 300, details=details, oncalls=oncalls, backend=RepoName(f"{'o' * 39}/{'r' * 97}{index}"))
        for index in range(number)
    ]
    body = comment_body(threads, "<!-- mark -->")
    assert len(body.encode()) < 65_536
    assert body.endswith("<!-- mark -->")
    shown = body.count("❌")
    assert shown > 0
    assert shown == number or f"and {number - shown} more" in body


def test_a_storm_of_notices_is_one_message_that_counts_the_unlisted_ones() -> None:
    storm = [thread(thread_id=number) for number in range(40)]
    text = slack_body(storm)["text"]
    assert text.startswith("org/core: 40 notices (red)")
    assert text.endswith("and 10 more")
    assert email_subject(storm) == "[crcr] org/core: 40 notices (red)"
    assert len(webhook_body(storm, delivery="1", at=NOW)["notices"]) == 40
