"""Questions of `crcr init`: an answer that cannot be used is asked for again, with the reason.

Where nobody can answer, what is missing is collected and told at once, each with its flag.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import typer

from crcr.cli.printing import escape_unprintable, print_error
from crcr.decide.model import Level, RepoName
from crcr.join.ci_kinds import Ci
from crcr.join.request import JoinRequest, check_request

Read = TypeVar("Read")

_PLAIN = JoinRequest(
    ci=Ci.GITHUB,
    upstream=RepoName("owner/upstream"),
    repository=RepoName("owner/name"),
    relay_url="https://relay.example.org",
    audience="crcr",
)


@dataclass(frozen=True, slots=True)
class Prompt:
    words: str
    missing: str
    """What to tell who cannot be asked: what is missing, and the flag for it."""


@dataclass(slots=True)
class Prompts:
    """Asks where somebody can answer."""

    can_ask: bool
    missing: list[str] = field(default_factory=list)

    def need(self, question: Prompt, read: Callable[[str], Read], default: str | None = None) -> Read | None:
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
            print_error("\n".join(self.missing))
            raise typer.Exit(2)

    def _ask(self, words: str, read: Callable[[str], Read], default: str | None) -> Read:
        answer: Read = typer.prompt(words, default=default, value_proc=lambda text: read(text.strip()))
        return answer


def parse_ci(text: str) -> Ci:
    if text.lower() not in set(Ci):
        raise typer.BadParameter(
            f"{escape_unprintable(text)!r} is not one of {', '.join(Ci)}. Any other CI can report with action/report.py, "
            f'which runs anywhere: see "Another CI" in docs/downstream.md'
        )
    return Ci(text.lower())


def parse_level(text: str) -> Level:
    if text.upper() not in Level.__members__:
        raise typer.BadParameter(f"{escape_unprintable(text)!r} is not one of {', '.join(Level.__members__)}")
    return Level[text.upper()]


def find_problems(**values: Any) -> tuple[str, ...]:
    """What is wrong with these values of a wish by themselves."""
    before = check_request(replace(_PLAIN, ci=values.get("ci", Ci.GITHUB)))
    return tuple(each for each in check_request(replace(_PLAIN, **values)) if each not in before)


def refuse_invalid(**values: Any) -> None:
    """Refuse values that no file may hold."""
    if problems := find_problems(**values):
        raise typer.BadParameter("; ".join(problems))
