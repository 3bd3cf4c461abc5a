"""Runs histories one after the other, each in a relay of its own, and scores the answers."""

import asyncio
from collections.abc import Callable, Iterable, Iterator

from bench.answers.api_answers import PullAnswers, read_answers
from bench.answers.history import History
from bench.answers.playback import Playback, Played
from bench.answers.relay import run_relay
from bench.answers.scenarios import write_history
from bench.answers.scoring import GroupScore, Judged, Score, score_groups
from bench.answers.truth import Truth, judge_history

OnHistory = Callable[[History, Score], None]


def run_histories(
    numbers: Iterable[int],
    seed: int,
    scenario: str | None = None,
    on_history: OnHistory = lambda _history, _score: None,
) -> Score:
    score = Score()
    for number in numbers:
        history = write_history(number, seed, scenario)
        asyncio.run(run_history(history, score))
        on_history(history, score)
    return score


async def run_history(history: History, score: Score) -> Played:
    """Play one history and add its answers to the score."""
    async with run_relay(history) as relay:
        played = await Playback(relay, history).play()
        truths = judge_history(history, played)
        for key in sorted({truth.pull for truth in truths}):
            number = played.pulls[key].record.number
            own = [truth for truth in truths if truth.pull == key]
            answers = await read_answers(relay.http, number)
            score.judged += judge_answers(history, number, own, answers)
            score.groups.append(_score_groups(own, played, answers))
            score.refused += [
                f"history {history.number}: pull request {number} does not show {truth.backend}: {truth.job}"
                for truth in own
                if truth.run is not None and not answers.shows(truth.backend, truth.job or "", truth.attempt)
            ]
    score.refused += [f"history {history.number}: {refused}" for refused in played.refused]
    score.histories += 1
    return played


def judge_answers(
    history: History, number: int, truths: list[Truth], answers: PullAnswers
) -> Iterator[Judged]:
    for truth in truths:
        place = f"{truth.backend}: {truth.job or 'all jobs'}"
        yield Judged(
            history=history.number,
            scenario=history.scenario,
            what="job",
            pull=number,
            place=place,
            kind=truth.kind,
            accepted=truth.accepted,
            causes=truth.causes,
            answer=answers.about(truth.backend, truth.job),
        )
        for test in truth.tests:
            answer = answers.tests.get((truth.backend, truth.job or "", test.test))
            if answer is None:
                continue  # The answer lists a job's first failed tests only.
            yield Judged(
                history=history.number,
                scenario=history.scenario,
                what="test",
                pull=number,
                place=f"{place}, {test.test}",
                kind=test.kind,
                accepted=test.accepted,
                causes=(test.cause,),
                answer=answer,
            )


def _score_groups(truths: list[Truth], played: Played, answers: PullAnswers) -> GroupScore:
    """A symptom is a cause with a text; a job that lists no tests has none, and is in no group."""
    wanted = {(truth.backend, truth.job, truth.run, truth.attempt) for truth in truths}
    symptoms: dict[tuple[str, str], set[str]] = {}
    for result in played.results:
        if result.lists_tests and (result.backend, result.job, result.run, result.attempt) in wanted:
            symptoms[result.backend, result.job] = {
                f"{failure.cause.name}/{failure.symptom.text}"
                for failure in result.failures
                if failure.symptom
            }
    return score_groups(answers.groups, symptoms)
