"""Who gave a command, and what is said to them; and the comment that a gate's button posts."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from crcr.decide.checks.gate import GateJudgement
from crcr.decide.checks.status import BLOCKED
from crcr.decide.commands.grammar import HEAD_DIGITS, WaiveCommand, format_command
from crcr.decide.github.values import Role

MOST_OFFERED = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    obeyed: bool
    comment: str | None
    """What to say in words; None when a reaction says it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAuthor:
    """Who wrote the comment, and what GitHub says they may do."""

    who: str
    role: Role
    number: int
    comment_id: int
    spoke_at: datetime


def comment_marker(kind: str, subject: str) -> str:
    """A line that nobody sees, by which our own comment is found again after a lost answer."""
    return f"<!-- crcr {kind} {subject} -->"


def waiver_offer(judgement: GateJudgement, number: int, head_sha: str) -> str | None:
    """The commands that would open the gate of a pull request's head, as text to copy; None when nothing blocks it."""
    commands = list(_waivers(judgement, number, head_sha))
    if not commands:
        return None
    lines = [
        "To merge without a backend, a maintainer writes its line as a comment of their own, with the reason:",
        "",
        "```",
        *commands[:MOST_OFFERED],
        "```",
        "",
        f"A waiver holds for the head `{head_sha[:HEAD_DIGITS]}`, and is refused once another is pushed.",
        "`until 3d` before `at` keeps it across later pushes, for at most 7 days.",
    ]
    return "\n".join(lines)


def _waivers(judgement: GateJudgement, number: int, head_sha: str) -> Iterable[str]:
    for one in judgement.subjects:
        if one.subject.number != number:
            continue
        for each in one.backends:
            if each.standing in BLOCKED:
                yield format_command(
                    WaiveCommand(each.backend.name, None, None, "<reason>", head_sha[:HEAD_DIGITS])
                )
