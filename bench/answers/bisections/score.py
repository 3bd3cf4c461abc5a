"""Scores bisections: which commits broke the job by the truth, what could be known about it, and what the relay answered."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from rich.console import Console
from rich.table import Table

from bench.answers.bisections.bisection_playback import BisectionPlayback
from bench.answers.bisections.histories import DownstreamChange, write_bisected_history
from bench.answers.bisections.relay_bisections import BisectionAnswer
from bench.answers.causes import Breakage, Flake
from bench.answers.history import History
from bench.answers.playback import Played
from bench.answers.relay import run_relay
from bench.answers.report import Figure

_CHANCE_BAR = 0.9
_CHANCE_RUNS = 3
_FOUND = "found"


class Difficulty(StrEnum):
    """What the truth makes of a search; the first that holds."""

    CHANGED = "downstream changed"
    OUTSIDE = "no culprit in the range"
    """Chance made the job fail at the bad end of the recorded range, or nothing broke it."""
    UNTESTABLE = "commits that cannot be tested"
    """Runs do not report, or the job ends before the failing test."""
    CHANCE = "fails by chance"
    CAME_AND_WENT = "came and went before"
    """The same failure was there before on one tested commit, and was fixed: nothing recorded tells it from chance."""
    DETERMINISTIC = "deterministic"


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedBisection:
    history: int
    answer: BisectionAnswer
    difficulty: Difficulty
    culprits: frozenset[str]
    """The commits of the range that broke the job; several where it was fixed in between."""
    blames_pass: bool

    @property
    def candidates(self) -> int:
        return len(self.answer.commits) - 1

    @property
    def bound(self) -> int:
        return (self.candidates - 1).bit_length() + 2

    @property
    def is_found(self) -> bool:
        return self.answer.outcome == _FOUND

    @property
    def is_right(self) -> bool:
        return self.is_found and self.answer.culprit in self.culprits

    @property
    def is_wrong(self) -> bool:
        return self.is_found and not self.is_right

    @property
    def has_culprit_left(self) -> bool:
        return bool(self.culprits.intersection(self.answer.left))


@dataclass(slots=True)
class BisectionScore:
    judged: list[JudgedBisection] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    histories: int = 0
    without_good_end: int = 0

    def of(self, difficulty: Difficulty) -> list[JudgedBisection]:
        return [one for one in self.judged if one.difficulty is difficulty]

    def share_within(self, difficulty: Difficulty, times: int) -> float:
        """How many were found right with so many times the bound's runs."""
        judged = self.of(difficulty)
        within = [one for one in judged if one.is_right and len(one.answer.runs) <= times * one.bound]
        return len(within) / len(judged) if judged else 1.0

    def figures(self) -> list[Figure]:
        sure = self.share_within(Difficulty.DETERMINISTIC, 1)
        by_chance = self.share_within(Difficulty.CHANCE, _CHANCE_RUNS)
        came_and_went = self.share_within(Difficulty.CAME_AND_WENT, _CHANCE_RUNS)
        blamed = sum(one.blames_pass for one in self.judged)
        return [
            Figure("deterministic: found within ⌈log2 n⌉ + 2 runs", sure, "100 %", sure == 1),
            Figure(
                "fails by chance: found within three times that",
                by_chance,
                "≥ 90 %",
                by_chance >= _CHANCE_BAR,
            ),
            Figure(
                "came and went before: found within three times that",
                came_and_went,
                "100 %",
                came_and_went == 1,
            ),
            Figure("blamed commits that passed", blamed, "0", not blamed, in_percent=False),
            Figure(
                "refused webhooks and callbacks", len(self.refused), "0", not self.refused, in_percent=False
            ),
        ]


def run_bisections(number: int, seed: int, console: Console) -> BisectionScore:
    """Play histories until so many bisections have ended."""
    score = BisectionScore()
    while len(score.judged) < number:
        history = write_bisected_history(score.histories, seed)
        asyncio.run(_play(history, score))
        score.histories += 1
        if score.histories % 10 == 0:
            console.print(f"{score.histories} histories, {len(score.judged)} bisections")
    return score


async def _play(history: History, score: BisectionScore) -> None:
    async with run_relay(history) as relay:
        playback = BisectionPlayback(relay, history)
        played = await playback.play()
        for answer in await playback.read_answers():
            score.judged.append(judge_bisection(history, played, answer))
        score.refused += [f"history {history.number}: {refused}" for refused in played.refused]
        score.without_good_end += playback.without_good_end


def judge_bisection(history: History, played: Played, answer: BisectionAnswer) -> JudgedBisection:
    truth = _RangeTruth(history, played, answer)
    return JudgedBisection(
        history=history.number,
        answer=answer,
        difficulty=truth.find_difficulty(),
        culprits=frozenset(played.base[breakage.start] for breakage in truth.find_culprits()),
        blames_pass=_blames_pass(played, answer),
    )


def _blames_pass(played: Played, answer: BisectionAnswer) -> bool:
    """Whether the job passed on the blamed commit: in a run of the bisection, or after the push."""
    pushed = {
        result.code.sha
        for result in played.results
        if (result.backend, result.job, result.event) == (answer.backend, answer.job, "push")
        and not result.failures
    }
    return answer.culprit in pushed or (answer.culprit, "passed") in answer.runs


class _RangeTruth:
    """What the causes of a history do to one job on the commits of a range."""

    def __init__(self, history: History, played: Played, answer: BisectionAnswer) -> None:
        self._history, self._answer = history, answer
        self._good, self._bad = (played.base.index(answer.commits[end]) for end in (0, -1))
        self._lists_tests = history.backend(answer.backend).job(answer.job).lists_tests
        self._breakages = [
            cause
            for cause in history.causes
            if isinstance(cause, Breakage) and answer.job in cause.where.get(answer.backend, ())
        ]

        self._tested = {
            result.code.base: {failure.cause for failure in result.failures}
            for result in played.results
            if (result.backend, result.job, result.event) == (answer.backend, answer.job, "push")
        }

    def find_difficulty(self) -> Difficulty:
        changes = [cause for cause in self._history.causes if isinstance(cause, DownstreamChange)]
        if any(self._is_changed(change) for change in changes):
            return Difficulty.CHANGED
        if not self.find_culprits():
            return Difficulty.OUTSIDE
        if not all(self._tells(position) for position in range(self._good, self._bad + 1)):
            return Difficulty.UNTESTABLE
        if self._fails_by_chance():
            return Difficulty.CHANCE
        if self._came_and_went():
            return Difficulty.CAME_AND_WENT
        return Difficulty.DETERMINISTIC

    def _is_changed(self, change: DownstreamChange) -> bool:
        return change.breakage in self._at(self._bad) and change.breakage in self._breakages

    def _fails_by_chance(self) -> bool:
        answer = self._answer
        flakes = [cause for cause in self._history.causes if isinstance(cause, Flake)]
        return any(answer.job in flake.where.get(answer.backend, ()) for flake in flakes)

    def _came_and_went(self) -> bool:
        """Whether an earlier breakage that looks like this one was seen on one commit only, or there were several."""
        alike = {breakage.symptoms for breakage in self.find_culprits()}
        earlier = [
            breakage
            for breakage in self._breakages
            if breakage.start <= self._good and (breakage.symptoms in alike or not self._lists_tests)
        ]
        seen = {breakage: sum(breakage in causes for causes in self._tested.values()) for breakage in earlier}
        return len(earlier) > 1 or 1 in seen.values()

    def _at(self, position: int) -> list[Breakage]:
        ends = ((one, self._bad + 1 if one.end is None else one.end) for one in self._breakages)
        return [one for one, end in ends if one.start <= position < end]

    def find_culprits(self) -> list[Breakage]:
        """The breakages that came within the range and show what the bad end shows."""
        shown = {breakage.symptoms for breakage in self._at(self._bad)}
        return [
            breakage
            for breakage in self._breakages
            if self._good < breakage.start <= self._bad
            and (breakage.symptoms in shown or (shown and not self._lists_tests))
        ]

    def _tells(self, position: int) -> bool:
        """Whether a run of the commit can tell that it is good, or bad."""
        if self._history.is_untestable(position):
            return False
        here = self._at(position)
        if not here or not self._lists_tests:
            return True
        # A job that ends before its tests lists none, and is compared only with its like.
        return _ends_before_tests(here) == _ends_before_tests(self._at(self._bad))


def _ends_before_tests(breakages: Sequence[Breakage]) -> bool:
    return any(not breakage.symptoms for breakage in breakages)


def print_bisections(score: BisectionScore, console: Console, explain: int = 0) -> bool:
    """Return whether every bar is reached."""
    title = f"{len(score.judged)} bisections in {score.histories} histories"
    table = Table("what", "measured", "bar", "", title=title)
    for figure in score.figures():
        table.add_row(figure.what, figure.text, figure.bar, "ok" if figure.is_reached else "missed")
    candidates = sorted(one.candidates for one in score.judged)
    table.add_row(
        "commits in a range, median and largest", f"{candidates[len(candidates) // 2]}, {candidates[-1]}"
    )
    table.add_row("breakages without a good end, not bisected", str(score.without_good_end))
    console.print(table)
    console.print(_outcomes(score))
    for one in [one for one in score.judged if _is_noteworthy(one)][:explain]:
        console.print(describe_bisection(one), markup=False, highlight=False, soft_wrap=True)
    return all(figure.is_reached for figure in score.figures())


def _outcomes(score: BisectionScore) -> Table:
    table = Table(
        "by the truth", "number", "right", "wrong", "narrowed", "other outcomes", "runs, of the bound"
    )
    for difficulty in Difficulty:
        judged = score.of(difficulty)
        others = Counter(
            one.answer.outcome for one in judged if one.answer.outcome not in (_FOUND, "narrowed")
        )
        narrowed = [one for one in judged if one.answer.outcome == "narrowed"]
        runs, bounds = sum(len(one.answer.runs) for one in judged), sum(one.bound for one in judged)
        table.add_row(
            difficulty.value,
            str(len(judged)),
            str(sum(one.is_right for one in judged)),
            str(sum(one.is_wrong for one in judged)),
            f"{len(narrowed)}, {sum(one.has_culprit_left for one in narrowed)} with the culprit",
            ", ".join(f"{outcome} {number}" for outcome, number in others.most_common()),
            f"{runs} of {bounds}",
        )
    return table


def _is_noteworthy(one: JudgedBisection) -> bool:
    if one.blames_pass or one.is_wrong:
        return True
    if one.difficulty in (Difficulty.CHANGED, Difficulty.OUTSIDE):
        return False
    is_long = one.difficulty is Difficulty.DETERMINISTIC and len(one.answer.runs) > one.bound
    return is_long or not one.is_right


def describe_bisection(one: JudgedBisection) -> str:
    answer = one.answer
    places = {sha: place for place, sha in enumerate(answer.commits)}
    culprits = sorted(places[sha] for sha in one.culprits)
    runs = ", ".join(f"{places[sha]} {result}" for sha, result in answer.runs)
    blamed = places[answer.culprit] if answer.culprit else None
    return (
        f"{'BLAMES A PASS ' if one.blames_pass else ''}history {one.history}, {answer.backend}: {answer.job}, {one.difficulty.value}: {answer.outcome} {blamed}"
        f" of {one.candidates}, truth {culprits}, flake rate {answer.flake_rate:.3f}, {len(answer.runs)} runs of"
        f" {one.bound}: {runs} {answer.reason or ''}"
    )
