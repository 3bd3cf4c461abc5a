"""Calls are counted per installation as GitHub counts them: hours, POSTs, points, and no cost for a 304."""

from datetime import UTC, datetime, timedelta

from github_sim.world.call_counts import CallCounts, count_calls
from github_sim.world.records import Call

AT = datetime(2026, 11, 16, 12, tzinfo=UTC)
CHECKS = "/repos/{owner}/{repo}/check-runs"


def call(method: str, *, after_s: float = 0, installation: int | None = 7, status: int = 200) -> Call:
    return Call(
        method, "/repos/org/up/check-runs", CHECKS, status, installation, b"", AT + timedelta(seconds=after_s)
    )


def test_calls_are_counted_for_the_installation_whose_token_they_carry() -> None:
    counts = count_calls(
        [call("POST"), call("GET"), call("GET", installation=8), call("POST", installation=None)]
    )
    assert [(each.installation_id, each.calls) for each in counts.installations] == [
        (7, 2),
        (8, 1),
        (None, 1),
    ]
    assert counts.for_installation(7).routes == {("POST", CHECKS): 1, ("GET", CHECKS): 1}


def test_a_304_costs_no_call_of_the_hour_but_its_points() -> None:
    counts = count_calls([call("GET"), call("GET", status=304)]).for_installation(7)
    assert (counts.calls, counts.not_modified, counts.most_in_an_hour) == (1, 1, 1)
    assert counts.most_points_in_a_minute == 2


def test_the_busiest_minute_and_hour_are_sliding_windows() -> None:
    counts = CallCounts()
    for after_s in (0, 59, 61, 3600, 3601):
        counts.add(call("POST", after_s=after_s))
    counts_of_installation = counts.for_installation(7)
    assert counts_of_installation.posts == 5
    assert counts_of_installation.most_points_in_a_minute == 10  # at 0 and 59, or 59 and 61
    assert counts_of_installation.most_posts_in_an_hour == 4  # from 59 to 3601
