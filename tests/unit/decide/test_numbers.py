"""Definitions of the figures: what a job counts as, how figures add up, and which hours a window has."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from crcr.decide.model import Conclusion, JobState, Level
from crcr.decide.statistics.figures import (
    BUCKETS,
    EDGES_S,
    TIMED,
    CountedAs,
    Durations,
    Figures,
    LastResult,
    LeftOut,
    Part,
    Tally,
    count_as,
    ended_as,
    find_bucket,
    is_silent,
    is_stale,
)
from crcr.decide.statistics.window import HOUR, ResultKind, Span, Window, result_kind

NOW = datetime(2026, 3, 29, 12, 34, 56, 789, tzinfo=UTC)
BERLIN_SUMMER = timezone(timedelta(hours=2))
CONCLUDED = [None, *Conclusion]
PASSES, SAYS_NOTHING = {"success"}, {"cancelled", "skipped", "neutral"}


# What a job counts as


@pytest.mark.parametrize("conclusion", CONCLUDED)
def test_a_job_without_an_expectation_counts_by_its_conclusion(conclusion: Conclusion | None) -> None:
    category = (
        "success" if conclusion in PASSES else "other" if conclusion in SAYS_NOTHING else "failure"
    )  # a missing conclusion is no pass
    assert count_as(JobState.COMPLETED, conclusion) == category


@pytest.mark.parametrize(("conclusion", "expected"), list(product(CONCLUDED, Conclusion)))
def test_only_the_expected_outcome_is_a_pass(conclusion: Conclusion | None, expected: Conclusion) -> None:
    category = "success" if conclusion is expected else "failure"
    assert count_as(JobState.COMPLETED, conclusion, expected) == category


@pytest.mark.parametrize(("conclusion", "expected"), list(product(CONCLUDED, CONCLUDED)))
def test_a_silent_job_is_a_failure_and_a_running_job_is_neither_pass_nor_failure(
    conclusion: Conclusion | None, expected: Conclusion | None
) -> None:
    assert count_as(JobState.TIMED_OUT, conclusion, expected) is CountedAs.FAILURE
    assert count_as(JobState.IN_PROGRESS, conclusion, expected) is CountedAs.RUNNING
    assert count_as(JobState.DISPATCHED, conclusion, expected) is CountedAs.RUNNING


@pytest.mark.parametrize(
    ("state", "superseded", "earlier"), list(product(JobState, (False, True), (False, True)))
)
def test_every_ended_job_has_exactly_one_category_and_a_running_one_has_none(
    state: JobState, superseded: bool, earlier: bool
) -> None:
    for conclusion, expected in product(CONCLUDED, CONCLUDED):
        ended = ended_as(state, conclusion, expected, superseded=superseded, earlier=earlier)
        assert ended == _expected_category(
            state, conclusion, expected, superseded=superseded, earlier=earlier
        )


def _expected_category(
    state: JobState,
    conclusion: Conclusion | None,
    expected: Conclusion | None,
    *,
    superseded: bool,
    earlier: bool,
) -> str | None:
    if state in ("dispatched", "in_progress"):
        return None
    if superseded or earlier:
        return "superseded" if superseded else "earlier"
    if state == "timed_out":
        return "silent"
    if conclusion == expected and expected is not None:
        return "success"
    if conclusion == "timed_out":
        return "timed_out"
    if expected is not None:
        return "failure"
    return "success" if conclusion in PASSES else "other" if conclusion in SAYS_NOTHING else "failure"


def test_superseded_and_inconclusive_jobs_do_not_count_in_the_times() -> None:
    assert {category.value for category in TIMED} == {"success", "failure", "timed_out", "silent"}


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ("pull_request", ResultKind.PULLS),
        ("push", ResultKind.PUSH),
        ("merge_group", ResultKind.PUSH),
        ("nightly", ResultKind.NIGHTLY),
        ("periodic", ResultKind.NIGHTLY),
        ("ingested", ResultKind.INGESTED),
        ("crcr_test", None),
        ("", None),
    ],
)
def test_each_event_has_one_result_kind_and_a_test_has_none(event: str, kind: ResultKind | None) -> None:
    assert result_kind(event) is kind


# How figures add up

numbers = st.integers(0, 10_000)
tallies = st.builds(Tally, numbers, numbers, numbers, numbers, numbers)
seconds = st.floats(0, 200_000, allow_nan=False).map(
    lambda second: round(second * 1024) / 1024
)  # sums are exact
durations = st.lists(seconds, max_size=20).map(Durations.from_seconds)
moments = st.integers(0, 100).map(lambda hours: NOW - hours * HOUR)
results = st.none() | st.builds(
    LastResult, st.just(JobState.COMPLETED), st.sampled_from(Conclusion), st.just("job"), moments
)
STARTS = Window.of(Span.DAY, NOW).starts()[:3]
parts = st.tuples(
    *(
        st.builds(
            Part,
            at=st.just(at),
            tally=tallies,
            queue=durations,
            execution=durations,
            sent=numbers,
            delay_s=seconds,
        )
        for at in STARTS
    )
)
figures = st.builds(
    Figures,
    parts=parts,
    running=numbers,
    left_out=st.builds(LeftOut, numbers, numbers),
    last_result=results,
)
NOTHING = Figures(parts=tuple(Part(at=at) for at in STARTS))


@given(st.lists(st.lists(st.integers(0, 100_000).map(float), max_size=12), max_size=5), st.booleans())
def test_durations_of_many_parts_add_up_to_those_of_all_their_jobs(
    parts: list[list[float]], exact: bool
) -> None:
    durations = [Durations.from_seconds(part) for part in parts]
    every = Durations.from_seconds([second for part in parts for second in part])
    if not exact:
        durations, every = [replace(part, few=None) for part in durations], replace(every, few=None)
    assert Durations.sum_up(durations) == every
    unknown = [replace(part, low_s=None) for part in durations]
    assert Durations.sum_up(unknown) == replace(every, low_s=None)


@given(tallies, tallies, tallies)
def test_tallies_add_up_in_any_order(one: Tally, two: Tally, three: Tally) -> None:
    assert one + two == two + one
    assert (one + two) + three == one + (two + three)
    assert one + Tally() == Tally() + one == one
    assert (one + two).total == one.total + two.total


@given(tallies)
def test_the_pass_rate_counts_decided_jobs_only_and_is_none_without_any(tally: Tally) -> None:
    if tally.success + tally.failure == 0:
        assert tally.pass_rate is None
    else:
        assert tally.pass_rate == tally.success / (tally.success + tally.failure)
        assert 0 <= tally.pass_rate <= 1
    undecided = replace(tally, running=tally.running + 9, other=tally.other + 9)
    assert undecided.pass_rate == tally.pass_rate


@given(st.lists(seconds), st.lists(seconds))
def test_the_sum_of_two_durations_equals_the_durations_of_both_lists(
    one: list[float], two: list[float]
) -> None:
    both = Durations.from_seconds(one) + Durations.from_seconds(two)
    assert (
        both == Durations.from_seconds(one + two) == Durations.from_seconds(two) + Durations.from_seconds(one)
    )
    assert both.known == sum(both.buckets) == len(one) + len(two)


@given(figures, figures, figures)
def test_figures_add_up_in_any_order(one: Figures, two: Figures, three: Figures) -> None:
    assert (one + two).tally == one.tally + two.tally == (two + one).tally
    assert (one + two) + three == one + (two + three)
    assert (one + NOTHING, NOTHING + one) == (one, one)
    assert (one + two).sent == one.sent + two.sent
    assert (one + two).queue == one.queue + two.queue
    assert (one + two).left_out == one.left_out + two.left_out


@given(figures)
def test_the_strip_and_the_tally_have_the_same_totals(sums: Figures) -> None:
    whole = sum(sums.strip, Tally())
    assert replace(whole, running=whole.running + sums.running) == sums.tally


@given(figures, numbers, results, st.booleans())
def test_updating_the_latest_facts_changes_no_sum(
    sums: Figures, running: int, last: LastResult | None, read_before: bool
) -> None:
    """Check the sums whether or not the sums were read before; the tally includes the jobs that run now."""
    same = Figures(parts=sums.parts, left_out=sums.left_out, running=running, last_result=last)
    if read_before:
        _ = sums.tally, sums.queue, sums.execution
    changed = sums.with_latest(running=running, last_result=last)
    assert changed == same
    assert (changed.tally, changed.queue, changed.execution) == (same.tally, same.queue, same.execution)


@given(figures, figures)
def test_the_newer_of_two_last_results_is_the_last(one: Figures, two: Figures) -> None:
    known = [sums.last_result.at for sums in (one, two) if sums.last_result]
    last = (one + two).last_result
    assert (last.at if last else None) == max(known, default=None)


def test_figures_of_different_windows_are_not_added() -> None:
    shorter = Figures(parts=NOTHING.parts[:2])
    with pytest.raises(ValueError, match="zip"):
        _ = NOTHING + shorter


def test_empty_durations_have_no_average_and_no_quantile() -> None:
    nothing = Durations()
    assert (nothing.average_s, nothing.p50_s, nothing.p95_s, nothing.quantile(1)) == (None,) * 4
    assert NOTHING.average_delay_s is None
    assert Part(at=NOW).average_delay_s is None


# Quantiles


@given(st.lists(seconds, min_size=1), st.floats(0, 1), st.floats(0, 1))
def test_a_larger_share_never_has_a_smaller_quantile(sample_s: list[float], one: float, two: float) -> None:
    sample = Durations.from_seconds(sample_s)
    low, high = sample.quantile(min(one, two)), sample.quantile(max(one, two))
    assert low is not None
    assert high is not None
    assert low <= high


@given(st.lists(st.floats(0, 100_000, allow_nan=False), min_size=1), st.floats(0.001, 1))
def test_a_quantile_lies_in_the_bucket_of_the_job_at_its_rank(sample_s: list[float], share: float) -> None:
    quantile = Durations.from_seconds(sample_s).quantile(share)
    rank = next(position for position in range(1, len(sample_s) + 1) if position >= share * len(sample_s))
    bucket = find_bucket(sorted(sample_s)[rank - 1])
    low, high = (0, *EDGES_S)[bucket], (*EDGES_S, 115_200)[bucket]
    assert quantile is not None
    assert low <= quantile <= high


@given(st.lists(seconds, min_size=1, max_size=19), st.floats(0.001, 1))
def test_with_few_jobs_a_quantile_is_the_duration_at_its_rank(sample_s: list[float], share: float) -> None:
    rank = next(
        position for position in range(1, len(sample_s) + 1) if position >= share * len(sample_s) - 1e-9
    )
    assert Durations.from_seconds(sample_s).quantile(share) == sorted(sample_s)[rank - 1]


@given(st.lists(seconds, min_size=20, max_size=60), st.floats(0, 1))
def test_with_many_jobs_a_quantile_is_not_beyond_the_shortest_and_the_longest(
    sample_s: list[float], share: float
) -> None:
    quantile = Durations.from_seconds(sample_s).quantile(share)
    assert quantile is not None
    assert min(sample_s) - 1e-6 <= quantile <= max(sample_s) + 1e-6


def test_every_percentile_of_equal_durations_is_that_duration() -> None:
    for number in (1, 19, 20, 500):
        equal = Durations.from_seconds([7.0] * number)
        assert (equal.average_s, equal.p50_s, equal.p95_s) == (7.0, 7.0, 7.0)


@pytest.mark.parametrize("position", range(len(EDGES_S)))
def test_a_quantile_at_a_bucket_edge_is_exact(position: int) -> None:
    edge = EDGES_S[position]
    half_below = Durations.from_seconds([edge, edge + 0.5])
    assert half_below.p50_s == edge
    assert Durations.from_seconds([edge]).quantile(1) == edge


@pytest.mark.parametrize("edge", EDGES_S)
def test_a_duration_at_the_upper_end_of_a_bucket_is_in_it_and_a_longer_one_is_not(edge: int) -> None:
    assert EDGES_S[find_bucket(edge)] == edge
    assert find_bucket(edge + 1e-6) == find_bucket(edge) + 1


def test_the_buckets_cover_every_duration() -> None:
    assert (find_bucket(0), find_bucket(10**9)) == (0, BUCKETS - 1)


# Silence


@pytest.mark.parametrize(
    ("level", "ever_reported", "unanswered", "silent"),
    [
        (Level.L1, False, 9, False),
        (Level.L2, False, 0, False),
        (Level.L2, False, 1, True),
        (Level.L2, True, 2, False),
        (Level.L2, True, 3, True),
        (Level.L4, True, 3, True),
    ],
)
def test_a_backend_that_should_report_and_does_not_is_silent(
    level: Level, ever_reported: bool, unanswered: int, silent: bool
) -> None:
    assert is_silent(level, ever_reported=ever_reported, unanswered=unanswered) is silent


def test_fault_42_a_probe_without_a_recent_result_is_stale() -> None:
    last = LastResult(JobState.COMPLETED, Conclusion.SUCCESS, "probe", NOW, CountedAs.SUCCESS)
    assert is_stale(None, NOW, silent=False)
    assert is_stale(last, NOW, silent=True)
    assert not is_stale(last, NOW + timedelta(hours=24), silent=False)
    assert is_stale(last, NOW + timedelta(hours=24, seconds=1), silent=False)


# Windows

nows = st.integers(0, 10**17).map(
    lambda us: datetime(2000, 1, 1, tzinfo=UTC) + timedelta(microseconds=us) / 32
)
edges = nows.map(lambda at: at.replace(minute=0, second=0, microsecond=0))
midnights = edges.map(lambda at: at.replace(hour=0))


@given(st.sampled_from(Span), nows | edges | midnights)
def test_the_parts_cover_the_window_without_gap_or_overlap(span: Span, now: datetime) -> None:
    window = Window.of(span, now)
    starts = window.starts()
    ends = (*starts[1:], window.until)
    assert starts[0] == window.since
    assert {end - start for start, end in zip(starts, ends, strict=True)} == {window.width}
    assert window.until - window.since == span.length == window.width * window.parts
    assert window.width == (timedelta(days=1) if window.whole_days else HOUR), (
        "a part is one row of the store's sums"
    )


@given(st.sampled_from(Span), nows | edges | midnights)
def test_a_window_contains_now_and_has_whole_hours_or_whole_days(span: Span, now: datetime) -> None:
    window = Window.of(span, now)
    assert window.since <= now < window.until
    for edge in (window.since, window.until):
        assert (edge.minute, edge.second, edge.microsecond, edge.utcoffset()) == (0, 0, 0, timedelta(0))
        assert edge.hour == 0 or not window.whole_days
    assert window.until - now <= (timedelta(days=1) if window.whole_days else HOUR)
    assert window.whole_days is (span is not Span.DAY)


def test_a_moment_on_the_hour_begins_its_own_hour() -> None:
    on_the_hour = datetime(2026, 1, 2, 3, tzinfo=UTC)
    assert Window.of(Span.DAY, on_the_hour).until == on_the_hour + HOUR
    assert Window.of(Span.DAY, on_the_hour - timedelta(microseconds=1)).until == on_the_hour


def test_a_moment_at_midnight_begins_its_own_day() -> None:
    midnight = datetime(2026, 1, 2, tzinfo=UTC)
    assert Window.of(Span.WEEK, midnight).until == midnight + timedelta(days=1)
    assert Window.of(Span.WEEK, midnight - timedelta(microseconds=1)).until == midnight


@given(st.sampled_from(Span), nows)
def test_the_readers_time_zone_and_summer_time_do_not_change_the_window(span: Span, now: datetime) -> None:
    assert Window.of(span, now.astimezone(BERLIN_SUMMER)) == Window.of(span, now)


def test_a_day_with_a_clock_change_still_has_24_hours() -> None:
    window = Window.of(Span.WEEK, NOW)  # in the night before, Europe switched to summer time
    assert window.since == datetime(2026, 3, 23, tzinfo=UTC)
    assert {start.hour for start in window.starts()} == {0}
