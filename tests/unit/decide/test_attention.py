"""The attention list: the facts that become a line, their order, and the text of each line."""

from datetime import UTC, datetime, timedelta

import pytest

from crcr.decide.model import Level, RepoName
from crcr.decide.number_format import count_things, format_count, format_percent
from crcr.decide.views.attention import (
    MOST_BACKENDS,
    MOST_PULLS,
    AttentionFacts,
    AttentionItem,
    AttentionKind,
    BlockedPull,
    RedBaseJob,
    TroubledBackend,
    fails_continuously,
    list_attention,
    silent_since,
    turned_lately,
)
from crcr.decide.views.in_tree import InTreeCommit, InTreeTrend

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
GATE = TroubledBackend(RepoName("gate/one"), Level.L4, ("ada", "grace"))
REPORT = TroubledBackend(RepoName("report/one"), Level.L2)


def ago(hours: float) -> datetime:
    return NOW - timedelta(hours=hours)


def red(job: str = "build", hours: float = 2.0, backend: TroubledBackend = GATE, **more: bool) -> RedBaseJob:
    return RedBaseJob(backend=backend, job=job, since=ago(hours), **more)


def lines(facts: AttentionFacts) -> list[tuple[AttentionKind, str]]:
    return [(item.kind, item.text) for item in list_attention(facts, NOW).items]


def test_without_problems_there_is_no_line() -> None:
    attention = list_attention(AttentionFacts(branch="main"), NOW)
    assert (attention.items, attention.blocked_pulls, attention.more_backends) == ((), 0, 0)


@pytest.mark.parametrize(("hours", "recent"), [(0.0, True), (23.99, True), (24.0, False), (999.0, False)])
def test_a_change_within_24_hours_is_recent(hours: float, recent: bool) -> None:
    assert turned_lately(ago(hours), NOW) is recent


@pytest.mark.parametrize(
    ("repeated", "flaky", "listed"),
    [(True, True, True), (True, False, True), (False, False, True), (False, True, False)],
)
def test_a_single_flaky_failure_is_not_listed(repeated: bool, flaky: bool, listed: bool) -> None:
    job = red(repeated=repeated, flaky=flaky)
    assert fails_continuously(job) is listed
    assert bool(lines(AttentionFacts(branch="main", red_jobs=(job,)))) is listed


def test_new_red_jobs_have_one_line_per_backend_and_old_ones_share_one_line() -> None:
    jobs = (
        red("a", 3, REPORT),
        red("b", 1),
        red("c", 5),
        red("d", 9),
        red("old", 48),
        red("older", 90, REPORT),
    )
    attention = list_attention(AttentionFacts(branch="main", red_jobs=jobs), NOW)
    assert [(item.kind.value, item.text, item.since, item.oncalls) for item in attention.items] == [
        ("backend_red", "3 jobs fail on main: b, c and 1 more", ago(9), ("ada", "grace")),
        ("backend_red", "a fails on main", ago(3), ()),
        (
            "base_red",
            "2 jobs of 2 backends have failed on main for more than 24 hours",
            ago(90),
            ("ada", "grace"),
        ),
    ]


def test_items_are_ordered_by_highest_level_and_then_newest_first() -> None:
    names = ("gate/b", "gate/a", "report/x")
    backends = [TroubledBackend(RepoName(name), Level.L4 if "gate" in name else Level.L2) for name in names]
    silent = [(backends[2], ago(1)), (backends[0], ago(20)), (backends[1], ago(3))]
    items = list_attention(AttentionFacts(silent=silent), NOW).items
    assert [str(item.backend) for item in items] == ["gate/a", "gate/b", "report/x"]
    assert {item.kind for item in items} == {AttentionKind.BACKEND_SILENT}


@pytest.mark.parametrize(
    ("reported", "hours", "since"),
    [
        (True, (9.0, 8.0, 7.0), 6.0),
        (False, (9.0, 8.0, 7.0), 8.0),
        (False, (4.0,), 3.0),
        (True, (4.0, 3.0), 2.0),
    ],
)
def test_silence_begins_when_the_deciding_missing_answer_was_due(
    reported: bool, hours: tuple[float, ...], since: float
) -> None:
    unanswered = [ago(age) for age in hours]
    assert silent_since(unanswered, reported=reported, after=3, within=timedelta(hours=1)) == ago(since)


def test_long_lists_are_truncated_and_counted() -> None:
    backends = [
        (TroubledBackend(RepoName(f"org/b{number}"), Level.L2), ago(1)) for number in range(MOST_BACKENDS + 4)
    ]
    pulls = [
        BlockedPull(number=number, title="Fuse", author="ada", since=ago(number), reason=None)
        for number in range(1, MOST_PULLS + 3)
    ]
    attention = list_attention(AttentionFacts(silent=backends, blocked=pulls, blocked_pulls=1_234), NOW)
    assert (attention.more_backends, attention.blocked_pulls) == (4, 1_234)
    assert [item.number for item in attention.items if item.number] == [1, 2, 3, 4, 5]


def in_tree(*failed: int | None) -> InTreeTrend:
    """Return commits with these numbers of failed checks, oldest first; None for one that still runs."""
    return InTreeTrend(
        "main",
        tuple(
            InTreeCommit(
                sha=f"{index:040x}",
                pushed_at=ago(100 - index),
                passed=10,
                failed=number or 0,
                running=int(number is None),
            )
            for index, number in enumerate(failed)
        ),
    )


@pytest.mark.parametrize(
    ("trend", "text", "since"),
    [
        (in_tree(0, 2, 1), "1 in-tree check fails on main, red for 2 commits", ago(99)),
        (in_tree(0, 0, 4_812), "4,812 in-tree checks fail on main", ago(98)),
        (in_tree(0, 3, None), "3 in-tree checks fail on main", ago(99)),
        (in_tree(3, 0), None, None),
        (in_tree(None), None, None),
        (None, None, None),
    ],
)
def test_the_upstreams_own_ci_is_red_since_the_first_failed_commit(
    trend: InTreeTrend | None, text: str | None, since: datetime | None
) -> None:
    items = [(item.text, item.since) for item in list_attention(AttentionFacts(in_tree=trend), NOW).items]
    assert items == ([(text, since)] if text else [])


def test_a_blocked_pull_request_names_its_reason_and_its_on_calls() -> None:
    pull = BlockedPull(
        number=7,
        title="Fuse it",
        author="mia",
        since=ago(5),
        reason="gate/one: failed: build",
        oncalls=("ada",),
    )
    suspended = ((REPORT, ago(700)),)
    items = list_attention(AttentionFacts(blocked=(pull,), suspended=suspended), NOW).items
    assert items[0] == AttentionItem(
        kind=AttentionKind.PULL_BLOCKED,
        text="Fuse it by mia is blocked: gate/one: failed: build",
        since=ago(5),
        oncalls=("ada",),
        number=7,
    )
    assert (items[1].kind, items[1].backend) == (AttentionKind.BACKEND_SUSPENDED, REPORT.name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (format_count(3_999), "3,999"),
        (format_count(999), "999"),
        (format_percent(0.9271), "92.7%"),
        (format_percent(0.9999), "99.9%"),
        (format_percent(1.0), "100.0%"),
        (format_percent(None), "—"),
        (count_things(1, "job"), "1 job"),
        (count_things(12_345, "job"), "12,345 jobs"),
    ],
)
def test_numbers_are_grouped_and_rates_never_rounded_up(text: str, expected: str) -> None:
    assert text == expected
