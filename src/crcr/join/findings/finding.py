"""A finding of the doctor: state, text and advice."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.github.repository_setup import WorkflowFacts


class State(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """It works, but needs attention."""
    PROBLEM = "problem"
    UNKNOWN = "unknown"
    """It could not be checked."""


@dataclass(frozen=True, slots=True)
class SetupFinding:
    name: str
    """Stable, for programs: `allowlist`, `app`, `workflow`…"""
    state: State
    text: str
    hint: str | None = None
    """How to fix it."""


def ok(name: str, text: str, hint: str | None = None) -> SetupFinding:
    return SetupFinding(name, State.OK, text, hint)


def warning(name: str, text: str, hint: str) -> SetupFinding:
    return SetupFinding(name, State.WARNING, text, hint)


def problem(name: str, text: str, hint: str) -> SetupFinding:
    return SetupFinding(name, State.PROBLEM, text, hint)


def unknown(name: str, text: str, hint: str | None = None) -> SetupFinding:
    return SetupFinding(name, State.UNKNOWN, text, hint)


def describe_workflows(workflows: Sequence[WorkflowFacts], *, show_names: bool) -> str:
    """Return their paths; only their number without `show_names`."""
    if show_names:
        return join_words([workflow.path for workflow in workflows])
    return "One workflow" if len(workflows) == 1 else f"{len(workflows):,} workflows"


_UNITS = (("day", timedelta(days=1)), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1)))


def format_age(at: datetime, now: datetime) -> str:
    past = now - at
    for unit, size in _UNITS:
        if past >= size:
            number = past // size
            return f"{number} {unit}{'s' if number > 1 else ''} ago"
    return "just now"


def join_words(words: tuple[str, ...] | list[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = words or ("nothing",)
    return f"{', '.join(first)} and {last}" if first else last
