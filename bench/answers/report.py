"""Prints a score: the confusion matrix, the figures with their bars, each scenario, and the wrong answers."""

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from bench.answers.api_answers import NO_VERDICT
from bench.answers.causes import KINDS
from bench.answers.scoring import Judged, Score, share

SCENARIO_BAR = 0.85


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    value: float
    bar: str
    is_reached: bool
    in_percent: bool = True

    @property
    def text(self) -> str:
        return f"{self.value:.2%}" if self.in_percent else f"{self.value:g}"


def figures(score: Score) -> list[Figure]:
    """The figures that have a bar."""
    accuracy, false_new = score.accuracy(), score.false_new()
    otherwise, excuses = score.regressions_called_otherwise(), score.wrong_excuses()
    precision, purity = score.precision_at_high(), score.purity()
    return [
        Figure("verdicts that are right", accuracy, "≥ 95 %", accuracy >= 0.95),
        Figure("false `new`, of failures that the change did not make", false_new, "< 2 %", false_new < 0.02),
        Figure("regressions called anything but `new` or `unknown`", otherwise, "< 1 %", otherwise < 0.01),
        Figure("regressions excused at high confidence", excuses, "0", excuses == 0, in_percent=False),
        Figure("precision at high confidence", precision, "≥ 99 %", precision >= 0.99),
        Figure("purity of groups", purity, "≥ 95 %", purity >= 0.95),
        *scenario_figures(score),
        Figure(
            "refused webhooks and callbacks", len(score.refused), "0", not score.refused, in_percent=False
        ),
    ]


def scenario_figures(score: Score) -> Iterator[Figure]:
    for scenario in dict.fromkeys(each.scenario for each in score.jobs()):
        accuracy = score.accuracy(scenario)
        number = sum(each.scenario == scenario for each in score.jobs())
        yield Figure(f"{scenario} ({number})", accuracy, "≥ 85 %", accuracy >= SCENARIO_BAR)


def print_score(score: Score, console: Console) -> bool:
    """Return whether every bar is reached."""
    console.print(_confusion(score))
    table = Table("what", "measured", "bar", "", title=f"{score.histories} histories")
    found = figures(score)
    for figure in found:
        table.add_row(figure.what, figure.text, figure.bar, "ok" if figure.is_reached else "missed")
    for what, text in _without_bar(score):
        table.add_row(what, text, "", "")
    console.print(table)
    return all(figure.is_reached for figure in found)


def _without_bar(score: Score) -> Iterator[tuple[str, str]]:
    yield "judged jobs and silences", str(len(score.jobs()))
    yield "tests whose own verdict is right", f"{share(score.tests(), lambda each: each.is_right):.2%}"
    yield "judged tests", str(len(score.tests()))
    yield "completeness of groups", f"{score.completeness():.2%}"
    yield "undecidable jobs, not counted above", str(len(score.undecidable()))
    yield "of these, regressions excused at high confidence", str(score.undecidable_excuses())


def _confusion(score: Score) -> Table:
    counts = score.confusion()
    answers = (*KINDS, NO_VERDICT)
    table = Table("truth ↓ / answer →", *answers, title="Decidable failures; bold: right or also accepted")
    for kind in KINDS:
        if any(counts[kind, answer] for answer in answers):
            table.add_row(kind, *(_cell(score, kind, answer) for answer in answers))
    return table


def _cell(score: Score, kind: str, answer: str) -> str:
    found = [each for each in score.jobs() if (each.kind, each.answer.kind) == (kind, answer)]
    right = sum(each.is_right for each in found)
    if not found:
        return ""
    return f"[bold]{right}[/]" + (f" + {len(found) - right} wrong" if right < len(found) else "")


def print_wrong(score: Score, number: int, console: Console) -> None:
    """The first wrong answers of jobs, then of tests, each with its truth and the relay's sentence."""
    wrong = sorted(score.wrong(), key=lambda each: each.what)
    for each in wrong[:number]:
        console.print(describe(each), markup=False, highlight=False, soft_wrap=True)
    if len(wrong) > number:
        console.print(f"… and {len(wrong) - number} more")


def describe(judged: Judged) -> str:
    accepted = " or ".join(sorted(judged.accepted)) or "undecidable"
    answer = judged.answer
    return (
        f"history {judged.history} ({judged.scenario}), pull request {judged.pull}, {judged.place}:\n"
        f"    truth {judged.kind}, accepted {accepted}; {', '.join(judged.causes)}\n"
        f"    answer {answer.kind} {answer.confidence} {answer.sentence!r}"
    )
