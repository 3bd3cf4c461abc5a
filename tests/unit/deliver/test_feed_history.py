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
    """What is unfed of an upstream, and ClickHouse, which may be broken."""

    unfed: int = 0
    fault: Exception | None = None
    asked_again: list[datetime] = field(default_factory=list)

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
        self.asked_again.append(due_at)


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
async def test_all_that_is_unfed_is_fed_in_batches(unfed: int) -> None:
    made = FakeFeeder(unfed)
    assert await FeedHistory(made, ManualClock(NOW))(effect())
    assert (made.unfed, made.asked_again) == (0, [])


async def test_a_long_queue_is_left_to_the_next_effect() -> None:
    made = FakeFeeder(25_000)
    assert await FeedHistory(made, ManualClock(NOW))(effect())
    assert (made.unfed, made.asked_again) == (5_000, [NOW])


FAULTS = [
    OutsideUnreachable("away"),
    OutsideRefused("no such column", status=400),
    NotPossible("ClickHouse's tables are of schema 99"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
async def test_whatever_is_wrong_it_is_tried_again_in_half_a_minute(
    fault: OutsideFault | NotPossible,
) -> None:
    made = FakeFeeder(5, fault)
    with pytest.raises(OutsideLimited, match=str(fault.detail)) as caught:
        await FeedHistory(made, ManualClock(NOW))(effect(timedelta(hours=11)))
    assert (caught.value.retry_after_s, made.unfed) == (30.0, 5)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.code)
async def test_before_an_effect_is_given_up_another_takes_its_place(
    fault: OutsideFault | NotPossible,
) -> None:
    made = FakeFeeder(5, fault)
    assert not await FeedHistory(made, ManualClock(NOW))(effect(timedelta(hours=12)))
    assert (made.unfed, made.asked_again) == (5, [NOW + timedelta(seconds=30)])
