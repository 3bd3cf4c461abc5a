"""Questions of `crcr init`: an answer that cannot be used is asked for again, with the reason.

Where nobody can answer, what is missing is collected and told at once, each with its flag.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import typer

from crcr.cli.printing import complain, plain
from crcr.decide.model import Level, RepoName
from crcr.join.ci_kinds import Ci
from crcr.join.request import Wanted, check_wanted

Read = TypeVar("Read")

_PLAIN = Wanted(
    ci=Ci.GITHUB,
    upstream=RepoName("owner/upstream"),
    repository=RepoName("owner/name"),
    relay_url="https://relay.example.org",
    audience="crcr",
)


@dataclass(frozen=True, slots=True)
class Question:
    words: str
    missing: str
    """What to tell who cannot be asked: what is missing, and the flag for it."""


@dataclass(slots=True)
class Questions:
    """Asks where somebody can answer."""

    can_ask: bool
    missing: list[str] = field(default_factory=list)

    def need(
        self, question: Question, read: Callable[[str], Read], default: str | None = None
    ) -> Read | None:
        """Return the answer; None, with a note of it, where there is nobody to ask and no default."""
        if self.can_ask:
            return self._ask(question.words, read, default)
        if default is not None:
            return read(default)
        self.missing.append(question.missing)
        return None

    def offer(self, words: str, read: Callable[[str], Read], default: str) -> Read:
        return self._ask(words, read, default) if self.can_ask else read(default)

    def agree(self, words: str, *, default: bool) -> bool:
        return typer.confirm(words, default=default) if self.can_ask else default

    def refuse_missing(self) -> None:
        if self.missing:
            complain("\n".join(self.missing))
            raise typer.Exit(2)

    def _ask(self, words: str, read: Callable[[str], Read], default: str | None) -> Read:
        answer: Read = typer.prompt(words, default=default, value_proc=lambda text: read(text.strip()))
        return answer


def read_ci(text: str) -> Ci:
    if text.lower() not in set(Ci):
        raise typer.BadParameter(
            f"{plain(text)!r} is not one of {', '.join(Ci)}. Any other CI can report with action/report.py, "
            f'which runs anywhere: see "Another CI" in docs/downstream.md'
        )
    return Ci(text.lower())


def read_level(text: str) -> Level:
    if text.upper() not in Level.__members__:
        raise typer.BadParameter(f"{plain(text)!r} is not one of {', '.join(Level.__members__)}")
    return Level[text.upper()]


def problems_of(**values: Any) -> tuple[str, ...]:
    """What is wrong with these values of a wish by themselves."""
    before = check_wanted(replace(_PLAIN, ci=values.get("ci", Ci.GITHUB)))
    return tuple(each for each in check_wanted(replace(_PLAIN, **values)) if each not in before)


def judged(**values: Any) -> None:
    """Refuse values that no file may hold."""
    if problems := problems_of(**values):
        raise typer.BadParameter("; ".join(problems))
