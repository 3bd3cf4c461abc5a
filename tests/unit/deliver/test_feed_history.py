"""Feeding ClickHouse as an effect: in bounded batches, and never given up."""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest

from crcr.decide.model import EffectKind, RepoName
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.deliver.handlers.feed_clickhouse import FeedHistory
from crcr.errors import NotPossible, OutsideFault, OutsideLimited, OutsideRefused, OutsideUnreachable
from support.clock import ManualClock

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class FakeFeeder:
    """The number of unfed rows of an upstream, and a ClickHouse that may fail."""

    unfed: int = 0
    fault: Exception | None = None
    scheduled: list[datetime] = field(default_factory=list)

    async def make_ready(self) -> None:
        if self.fault is not None:
            raise self.fault

    async def feed(self, upstream: str, most: int) -> int:
        assert upstream == "up/stream"
        taken = min(self.unfed, most)
        self.unfed -= taken
        return taken

    async def again(self, upstream: str, now: datetime, due_at: datetime) -> None:
        assert (upstream, now) == ("up/stream", NOW)
        self.scheduled.append(due_at)


def effect(tried_for: timedelta = timedelta()) -> ClaimedEffect:
    return ClaimedEffect(
        effect_id=1,
        upstream=RepoName("Up/Stream"),
        kind=EffectKind.FEED_HISTORY,
        target="history",
        lane="",
        delivery=None,
        payload=None,
        attempts=1,
        unsure=False,
        created_at=NOW - tried_for,
        first_attempt_at=NOW - tried_for,
        lease_until=NOW + timedelta(seconds=120),
    )


@pytest.mark.parametrize("unfed", [0, 1, 999, 1_000, 1_001, 15_500])
async def test_all_unfed_rows_are_fed_in_batches(unfed: int) -> None:
    feeder = FakeFeeder(unfed)
    assert await FeedHistory(feeder, ManualClock(NOW))(effect())
    assert (feeder.unfed, feeder.scheduled) == (0, [])


async def test_an_effect_feeds_a_bounded_number_of_rows_and_schedules_the_next() -> None:
    feeder = FakeFeeder(25_000)
    assert await FeedHistory(feeder, ManualClock(NOW))(effect())
    assert (feeder.unfed, feeder.scheduled) == (5_000, [NOW])


FAULTS = [
    OutsideUnreachable("away"),
    OutsideRefused("no such column", status=400),
    NotPossible("ClickHouse's tables are of schema 99"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
async def test_any_fault_is_retried_after_half_a_minute(
    fault: OutsideFault | NotPossible,
) -> None:
    feeder = FakeFeeder(5, fault)
    with pytest.raises(OutsideLimited, match=str(fault.detail)) as caught:
        await FeedHistory(feeder, ManualClock(NOW))(effect(timedelta(hours=11)))
    assert (caught.value.retry_after_s, feeder.unfed) == (30.0, 5)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
async def test_an_effect_about_to_expire_is_replaced_by_a_new_one(
    fault: OutsideFault | NotPossible,
) -> None:
    feeder = FakeFeeder(5, fault)
    assert not await FeedHistory(feeder, ManualClock(NOW))(effect(timedelta(hours=12)))
    assert (feeder.unfed, feeder.scheduled) == (5, [NOW + timedelta(seconds=30)])
