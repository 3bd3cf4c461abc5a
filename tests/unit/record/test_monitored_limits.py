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


@pytest.mark.parametrize("asks", ["take", "check"])
@pytest.mark.parametrize(
    ("answer", "answered"), [(None, True), (RateLimited("full"), True), (LimiterUnavailable("away"), False)]
)
async def test_an_answer_is_told_apart_from_none_and_passed_on(
    asks: str, answer: Exception | None, answered: bool
) -> None:
    told = RecordedAnswers()
    limits = MonitoredLimits(Limiter(answer), told)
    if answer is None:
        await getattr(limits, asks)("callback", "org/repo")
    else:
        with pytest.raises(type(answer)):
            await getattr(limits, asks)("callback", "org/repo")
    assert told.answers == [answered]


async def test_a_limiter_that_nobody_calls_is_asked_all_the_same_and_its_return_is_noted() -> None:
    told, limiter = RecordedAnswers(), Limiter(LimiterUnavailable("away"))
    answers: list[Exception | None] = [LimiterUnavailable("away"), RateLimited("full"), None]

    async def pause(_: float) -> None:
        if not answers:
            raise asyncio.CancelledError
        limiter.answer = answers.pop(0)

    with pytest.raises(asyncio.CancelledError):
        await MonitoredLimits(limiter, told).probe_forever("callback", pause)
    assert told.answers == [False, False, True, True]
