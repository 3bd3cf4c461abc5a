"""Answers to `/crcr` commands: the author's rights, the head that a command refers to, and the text of the waive button.

An author may push or retarget just before a maintainer's comment, or choose two commits that begin alike. So a command
that opens a gate or releases code names the head, or is written at least a minute after the push, and always at least
a minute after a change of the base; by GitHub's timestamps.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from crcr.decide.checks.commit import BackendResults, CommitFacts, JobResult
from crcr.decide.checks.gate import GateJudgement
from crcr.decide.checks.status import BLOCKED
from crcr.decide.checks.text.markdown import code, join_items, link, prose
from crcr.decide.checks.text.parts import NAME_CHARACTERS, person
from crcr.decide.checks.text.verdict import verdict_text
from crcr.decide.commands.grammar import (
    HEAD_DIGITS,
    ApproveCommand,
    BisectionTarget,
    Command,
    RetryCommand,
    VerdictCommand,
    WaiveCommand,
    format_command,
)
from crcr.decide.github.requests_and_answers import Role

MOST_OFFERED = 10
MOST_FAILING = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAnswer:
    obeyed: bool
    comment: str | None
    """The text of the answer; None when a reaction is enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandAuthor:
    """The author of the comment, with their role on GitHub."""

    who: str
    role: Role
    number: int
    comment_id: int
    spoke_at: datetime


def comment_marker(kind: str, subject: str) -> str:
    """Return an invisible line by which our own comment is found again after a lost response."""
    return f"<!-- crcr {kind} {subject} -->"


def waiver_offer(judgement: GateJudgement, number: int, head_sha: str) -> str | None:
    """Return the commands that would open the gate of a pull request's head, as text to copy; None when nothing blocks it."""
    commands = list(_waive_commands(judgement, number, head_sha))
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


def _waive_commands(judgement: GateJudgement, number: int, head_sha: str) -> Iterable[str]:
    for judged in judgement.subjects:
        if judged.subject.number != number:
            continue
        for backend in judged.backends:
            if backend.standing in BLOCKED:
                yield format_command(
                    WaiveCommand(backend.backend.name, None, None, "<reason>", head_sha[:HEAD_DIGITS])
                )


def failing_jobs_text(
    commit: CommitFacts, number: int, contradictions: Mapping[tuple[str, str], tuple[str, str, str]]
) -> tuple[str, ...]:
    """List the failing jobs of a pull request's backends with their verdicts, as Markdown; nothing where none fails.

    `contradictions` are who said what and why, by backend and job.
    """
    lines = [
        _failing_job_line(backend, job, contradictions.get((backend.recorded_name.key, job.name)))
        for subject in commit.subjects
        if subject.number == number
        for backend in subject.backends
        for job in backend.counted_jobs
        if job.verdict is not None
    ]
    if not lines:
        return ()
    more = [f"- and {len(lines) - MOST_FAILING:,} more"] if len(lines) > MOST_FAILING else []
    return ("\n".join(["Failing jobs:", "", *lines[:MOST_FAILING], *more]),)


def _failing_job_line(backend: BackendResults, job: JobResult, said: tuple[str, str, str] | None) -> str:
    verdict = prose(verdict_text(job.verdict)) if job.verdict else ""
    confidence = f" ({job.verdict.confidence.value} confidence)" if job.verdict else ""
    line = f"- {code(str(backend.name), 140)} {code(job.name, NAME_CHARACTERS)}: {verdict}{confidence}"
    if said is None:
        return line
    who, kind, reason = said
    return f"{line}; {person(who)} says {kind}: {code(reason)}"


def refuse_unknown_job(command: VerdictCommand, failed: tuple[str, ...]) -> str:
    """Say that no such job failed on the head, with the names of those that did."""
    backend = code(str(command.downstream), 140)
    if not failed:
        return f"no job of {backend} has failed on this head"
    names = join_items(failed, MOST_OFFERED, lambda name: code(name, NAME_CHARACTERS))
    return (
        f"no job {code(command.job, NAME_CHARACTERS)} of {backend} has failed on this head; failed: {names}"
    )


def bisection_begun_text(
    bisection_id: int, target: BisectionTarget, commits: Sequence[str], url: str | None
) -> str:
    """Say what a bisection searches; `commits` are those of its range, the good end first, and `url` is its page."""
    good, bad = (code(sha[:HEAD_DIGITS]) for sha in (commits[0], commits[-1]))
    number = len(commits) - 1
    searched = f"{number} commit{'' if number == 1 else 's'} after {good}, up to {bad}"
    job = f"{code(target.job, NAME_CHARACTERS)} of {code(str(target.downstream), 140)}"
    words = f"Bisection {bisection_id} of {job} has begun: {searched}."
    page = link("Its page", url)
    return f"{words} {page} shows each run." if page else words


YOUNGEST_HEAD = timedelta(minutes=1)
_MOST_COMMAND = 1_200


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownHead:
    """The recorded head of a pull request when the command is executed."""

    sha: str
    moved_at: datetime
    """GitHub's time of the event that set this head."""
    earlier: tuple[str, ...] = ()
    """Other heads of the same pull request."""
    base_ref: str = ""
    base_at: datetime | None = None
    """GitHub's time of the event that set its base, if that has changed."""


def refuse_head(command: Command, head: KnownHead, spoke_at: datetime) -> str | None:
    """Return why this command does not refer to the current head, with a command to paste; None when it does."""
    if not isinstance(command, WaiveCommand | ApproveCommand | RetryCommand):
        return None
    if not isinstance(command, RetryCommand) and (words := _refuse_young_base(head, spoke_at)) is not None:
        return words
    if command.head is not None:
        reason = _refuse_named_head(command.head, head)
    elif isinstance(command, RetryCommand):
        reason = None  # re-runs failed jobs, and opens nothing
    else:
        reason = _refuse_young_head(head, spoke_at)
    if reason is None:
        return None
    digits = len(head.sha) if _is_ambiguous(head.sha[:HEAD_DIGITS], head) else HEAD_DIGITS
    ready = code(format_command(replace(command, head=head.sha[:digits])), _MOST_COMMAND)
    return f"{reason}. Check the head, and repeat the command with the head in it if you mean it: {ready}"


def _refuse_young_base(head: KnownHead, spoke_at: datetime) -> str | None:
    """Refuse after a recent retarget: it changes what the head merges, and no command names a base."""
    if head.base_at is None or spoke_at - head.base_at >= YOUNGEST_HEAD:
        return None
    return (
        f"the base of this pull request changed to {code(head.base_ref)} less than a minute before the comment, or after it."
        " Check what it changes there, and repeat the command in a minute if you mean it"
    )


def _refuse_named_head(named: str, head: KnownHead) -> str | None:
    if not head.sha.startswith(named):
        return f"it names the head {code(named)}, and the head is {code(head.sha[:HEAD_DIGITS])}"
    if _is_ambiguous(named, head):
        return f"more than one head of this pull request begins with {code(named)}"
    return None


def _is_ambiguous(digits: str, head: KnownHead) -> bool:
    return any(sha.startswith(digits) for sha in head.earlier if sha != head.sha)


def _refuse_young_head(head: KnownHead, spoke_at: datetime) -> str | None:
    if spoke_at - head.moved_at >= YOUNGEST_HEAD:
        return None
    if spoke_at < head.moved_at:
        return "the head of this pull request has moved since"
    return "the head of this pull request is less than a minute older than the comment"
