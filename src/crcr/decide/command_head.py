"""Which head of a pull request a command is about: the one that its writer looked at, and no other.

An author may push just before a maintainer's comment, or choose two commits that begin alike. So a command that opens
a gate or releases code names the head, or comes at least a minute after the push; by GitHub's times of both. No command
names the base: where that has changed, only the minute counts.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crcr.decide.commands import HEAD_DIGITS, Approve, Command, Retry, Waive, spell
from crcr.decide.markdown import code

YOUNGEST_HEAD = timedelta(minutes=1)
_MOST_COMMAND = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHead:
    """The head of a pull request as it is recorded when the command is obeyed."""

    sha: str
    moved_at: datetime
    """GitHub's time of the event that brought this head, or the base that it is on."""
    base_changed: bool = False
    """Whether the head has come to its base from another one: who named the head may have seen it there."""
    earlier: tuple[str, ...] = ()
    """Other heads of the same pull request."""


def refuse_head(command: Command, head: KnownHead, spoke_at: datetime) -> str | None:
    """Say in words, with the command to paste, why this command is not about the present head; None when it is."""
    if not isinstance(command, Waive | Approve | Retry):
        return None
    reason = _names_another(command.head, head) if command.head is not None else None
    opens = not isinstance(command, Retry)  # that runs what failed again, and opens nothing
    if reason is None and opens and (command.head is None or head.base_changed):
        reason = _is_young(head, spoke_at)
        if reason is not None and head.base_changed:
            return f"{reason}. Look at its base and its head, and if you mean them, say it again in a minute"
    if reason is None:
        return None
    digits = len(head.sha) if _is_ambiguous(head.sha[:HEAD_DIGITS], head) else HEAD_DIGITS
    ready = code(spell(replace(command, head=head.sha[:digits])), _MOST_COMMAND)
    return f"{reason}. Look at the head, and if you mean it, say it again with the head in it: {ready}"


def _names_another(named: str, head: KnownHead) -> str | None:
    if not head.sha.startswith(named):
        return f"it names the head {code(named)}, and the head is {code(head.sha[:HEAD_DIGITS])}"
    if _is_ambiguous(named, head):
        return f"more than one head of this pull request begins with {code(named)}"
    return None


def _is_ambiguous(digits: str, head: KnownHead) -> bool:
    return any(sha.startswith(digits) for sha in head.earlier if sha != head.sha)


def _is_young(head: KnownHead, spoke_at: datetime) -> str | None:
    if spoke_at - head.moved_at >= YOUNGEST_HEAD:
        return None
    moved = "base" if head.base_changed else "head"
    if spoke_at < head.moved_at:
        return f"the {moved} of this pull request has moved since"
    return f"the {moved} of this pull request is less than a minute older than the comment"
