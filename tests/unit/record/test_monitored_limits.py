"""A monitored limiter gives the same answers, and reports whether the limiter answered."""

import asyncio

import pytest

from crcr.errors import LimiterUnavailable, RateLimited
from crcr.record.limits.redis import MonitoredLimits


class Limiter:
    def __init__(self, answer: Exception | None) -> None:
        self.answer = answer

    async def take(self, scope: str, subject: str) -> None:
        if self.answer is not None:
            raise self.answer

    check = take


class RecordedAnswers:
    def __init__(self) -> None:
        self.answers: list[bool] = []

    def limiter(self, *, answered: bool) -> None:
        self.answers.append(answered)


@pytest.mark.parametrize("method", ["take", "check"])
@pytest.mark.parametrize(
    ("answer", "answered"), [(None, True), (RateLimited("full"), True), (LimiterUnavailable("away"), False)]
)
async def test_an_answer_or_an_outage_of_the_limiter_is_recorded_and_passed_on(
    method: str, answer: Exception | None, answered: bool
) -> None:
    recorded = RecordedAnswers()
    limits = MonitoredLimits(Limiter(answer), recorded)
    if answer is None:
        await getattr(limits, method)("callback", "org/repo")
    else:
        with pytest.raises(type(answer)):
            await getattr(limits, method)("callback", "org/repo")
    assert recorded.answers == [answered]


async def test_an_idle_limiter_is_probed_and_its_recovery_is_recorded() -> None:
    recorded, limiter = RecordedAnswers(), Limiter(LimiterUnavailable("away"))
    answers: list[Exception | None] = [LimiterUnavailable("away"), RateLimited("full"), None]

    async def pause(_: float) -> None:
        if not answers:
            raise asyncio.CancelledError
        limiter.answer = answers.pop(0)

    with pytest.raises(asyncio.CancelledError):
        await MonitoredLimits(limiter, recorded).probe_forever("callback", pause)
    assert recorded.answers == [False, False, True, True]
