"""Asks the relay who broke jobs of the base branch, on histories with known culprits, and counts the right answers."""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from bench.answers.causes import Breakage
from bench.answers.culprit_answers import CulpritAnswer
from bench.answers.history import History
from bench.answers.landed_breakages import write_landed_history
from bench.answers.playback import AskedCulprits, Playback, Played, Result
from bench.answers.relay import UPSTREAM, run_relay
from bench.answers.report import Figure

_FIRST_BAR, _THREE_BAR = 0.6, 0.9
_FEW = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One job that a breakage made red, with its culprit and the relay's candidates."""

    history: int
    breakage: str
    place: str
    culprit: str
    width: int
    """How many commits nobody can tell apart by the job's own results."""
    is_decidable: bool
    """False where the job had failed before, without listed tests: nobody can tell when it failed for another reason too."""
    place_in_list: int | None
    """Of the culprit, counted from 0; None where it is not among the candidates."""
    candidates: int
    why: str = ""


@dataclass(slots=True)
class CulpritScore:
    questions: list[Question] = field(default_factory=list)
    undecidable: int = 0
    blamed_passes: int = 0
    """Candidates at or before a commit where the job passed."""
    named_in_vain: int = 0
    """Answers about a job that no breakage had."""
    answers: int = 0
    refused: list[str] = field(default_factory=list)
    histories: int = 0
    red_checks: int = 0
    """Answers about in-tree checks that a known change broke."""
    red_checks_right: int = 0
    """Of these, answers whose first candidate is the change."""
    checks_in_vain: int = 0
    """Candidates of in-tree checks that nothing broke."""

    @property
    def breakages(self) -> int:
        return len({(one.history, one.breakage) for one in self.questions})

    def share_within(self, number: int) -> float:
        """Of the breakages, each counted once, however many jobs it made red."""
        by_breakage: dict[tuple[int, str], list[bool]] = {}
        for one in self.questions:
            is_right = one.place_in_list is not None and one.place_in_list < number
            by_breakage.setdefault((one.history, one.breakage), []).append(is_right)
        shares = [sum(rights) / len(rights) for rights in by_breakage.values()]
        return sum(shares) / len(shares) if shares else 0.0

    def figures(self) -> list[Figure]:
        first, three = self.share_within(1), self.share_within(_FEW)
        return [
            Figure("culprit is the first candidate", first, "≥ 60 %", first >= _FIRST_BAR),
            Figure("culprit is among the first three", three, "≥ 90 %", three >= _THREE_BAR),
            Figure(
                "candidates at or before a pass",
                self.blamed_passes,
                "0",
                not self.blamed_passes,
                in_percent=False,
            ),
            Figure(
                "refused webhooks and callbacks", len(self.refused), "0", not self.refused, in_percent=False
            ),
        ]


def run_breakages(number: int, seed: int, console: Console, *, with_in_tree: bool = False) -> CulpritScore:
    """Play histories until the relay was asked about so many breakages."""
    score = CulpritScore()
    while score.breakages < number:
        history = write_landed_history(score.histories, seed, with_in_tree=with_in_tree)
        played = asyncio.run(_play(history))
        score_history(history, played, score)
        if score.histories % 10 == 0:
            console.print(f"{score.histories} histories, {score.breakages} breakages")
    return score


async def _play(history: History) -> Played:
    async with run_relay(history) as relay:
        return await Playback(relay, history).play()


def score_history(history: History, played: Played, score: CulpritScore) -> None:
    score.histories += 1
    score.refused += [f"history {history.number}: {refused}" for refused in played.refused]
    for asked in played.asked:
        results = [result for result in played.results[: asked.results] if result.event == "push"]
        questions = list(_question(history, played, asked, results))
        score.questions += [question for question in questions if question.is_decidable]
        score.undecidable += sum(not question.is_decidable for question in questions)
        for answer in asked.answers:
            if answer.backend == UPSTREAM:
                _score_in_tree(history, played, asked, answer, score)
                continue
            score.answers += 1
            score.blamed_passes += _count_blamed_passes(answer, played, results)
            score.named_in_vain += not _has_breakage(history, asked, answer)


def _score_in_tree(
    history: History, played: Played, asked: AskedCulprits, answer: CulpritAnswer, score: CulpritScore
) -> None:
    culprits = history.in_tree.culprits(answer.job, asked.tip) if history.in_tree else set()
    if not culprits:
        score.checks_in_vain += bool(answer.candidates)
        return
    score.red_checks += 1
    first = played.base.index(answer.candidates[0]) if answer.candidates else None
    score.red_checks_right += first in culprits


def _question(
    history: History, played: Played, asked: AskedCulprits, results: list[Result]
) -> Iterator[Question]:
    for breakage in _active(history, asked):
        for backend, jobs in sorted(breakage.where.items()):
            for job in sorted(jobs):
                own = [one for one in results if (one.backend, one.job) == (backend, job)]
                if not _shows(own, breakage):
                    continue
                culprit = played.base[breakage.start]
                answers = [one for one in asked.answers if (one.backend, one.job) == (backend, job)]
                answer = _choose(answers, culprit)
                yield Question(
                    history=history.number,
                    breakage=breakage.name,
                    place=f"{backend}: {job}",
                    culprit=culprit,
                    width=_width(own, breakage),
                    is_decidable=_is_decidable(own, breakage),
                    place_in_list=_find(answer, culprit),
                    candidates=len(answer.candidates) if answer else 0,
                    why=_explain(answer, culprit),
                )


def _active(history: History, asked: AskedCulprits) -> list[Breakage]:
    return [
        cause
        for cause in history.causes
        if isinstance(cause, Breakage)
        and cause.start <= asked.tip
        and (cause.end is None or asked.tip < cause.end)
    ]


def _shows(own: list[Result], breakage: Breakage) -> bool:
    """Whether the newest result of the job that is not sick shows the breakage."""
    newest = max(own, key=lambda one: (one.code.base, one.at), default=None)
    return newest is not None and any(failure.cause is breakage for failure in newest.failures)


def _width(own: list[Result], breakage: Breakage) -> int:
    before = [one.code.base for one in own if one.code.base < breakage.start]
    since = [one.code.base for one in own if one.code.base >= breakage.start]
    return min(since) - max(before, default=0)


def _is_decidable(own: list[Result], breakage: Breakage) -> bool:
    """Whether a failure that looks the same was not there before: without listed tests all failures look the same."""
    before = [one for one in own if one.code.base < breakage.start]
    nearest = max(before, key=lambda one: (one.code.base, one.at), default=None)
    if nearest is None:
        return False
    shown = [one for one in own if one.code.base >= breakage.start]
    if all(_lists_tests(one) for one in (nearest, *shown)):
        return True
    return not nearest.failures


def _lists_tests(result: Result) -> bool:
    return result.lists_tests and all(failure.symptom is not None for failure in result.failures)


def _choose(answers: list[CulpritAnswer], culprit: str) -> CulpritAnswer | None:
    """A job that was broken twice has two answers: the one that has the culprit counts for its breakage."""
    return min(answers, key=lambda one: _rank(one, culprit), default=None)


def _rank(answer: CulpritAnswer, culprit: str) -> int:
    return (
        answer.candidates.index(culprit) if culprit in answer.candidates else len(answer.candidates) + 1_000
    )


def _find(answer: CulpritAnswer | None, culprit: str) -> int | None:
    return answer.candidates.index(culprit) if answer and culprit in answer.candidates else None


def _explain(answer: CulpritAnswer | None, culprit: str) -> str:
    if answer is None:
        return "no answer"
    told = [
        f"{sha[:8]}{'*' * (sha == culprit)} {reasons}"
        for sha, reasons in zip(answer.candidates, answer.reasons, strict=True)
    ]
    return "\n      ".join((f"range {str(answer.good)[:8]} to {answer.bad[:8]}", *told[:8]))


def _count_blamed_passes(answer: CulpritAnswer, played: Played, results: list[Result]) -> int:
    passed = max(
        (
            result.code.base
            for result in results
            if (result.backend, result.job) == (answer.backend, answer.job) and not result.failures
        ),
        default=-1,
    )
    return sum(played.base.index(candidate) <= passed for candidate in answer.candidates)


def _has_breakage(history: History, asked: AskedCulprits, answer: CulpritAnswer) -> bool:
    return any(answer.job in breakage.where.get(answer.backend, ()) for breakage in _active(history, asked))


def print_culprits(score: CulpritScore, console: Console, explain: int = 0) -> bool:
    """Return whether every bar is reached."""
    table = Table(
        "what", "measured", "bar", "", title=f"{score.breakages} breakages in {score.histories} histories"
    )
    for figure in score.figures():
        table.add_row(figure.what, figure.text, figure.bar, "ok" if figure.is_reached else "missed")
    widths = sorted(one.width for one in score.questions)
    table.add_row("jobs that were asked about", str(len(score.questions)), "", "")
    table.add_row("undecidable, not counted above", str(score.undecidable), "", "")
    table.add_row(
        "commits in a range, median and largest", f"{widths[len(widths) // 2]}, {widths[-1]}", "", ""
    )
    table.add_row(
        "culprit is no candidate", str(sum(one.place_in_list is None for one in score.questions)), "", ""
    )
    table.add_row(
        "answers about jobs that nothing broke", f"{score.named_in_vain} of {score.answers}", "", ""
    )
    if score.red_checks:
        right = f"{score.red_checks_right} of {score.red_checks}"
        table.add_row("in-tree check's culprit is its first candidate", right, "", "")
        table.add_row("candidates for in-tree checks that nothing broke", str(score.checks_in_vain), "", "")
    console.print(table)
    wrong = [one for one in score.questions if one.place_in_list != 0]
    for one in wrong[:explain]:
        place = "none" if one.place_in_list is None else one.place_in_list + 1
        console.print(
            f"history {one.history}, {one.breakage}, {one.place}: place {place} of {one.candidates}, "
            f"{one.width} commits untested\n      {one.why}",
            markup=False,
            highlight=False,
            soft_wrap=True,
        )
    return all(figure.is_reached for figure in score.figures())
