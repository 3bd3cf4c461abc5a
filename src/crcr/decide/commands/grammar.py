"""The `/crcr` commands of a comment: their grammar, the roles that they need, and the answer to an invalid one.

    waive owner/repo[:job] [until 3d] [at 1a2b3c4] because <reason>
    unwaive owner/repo[:job]
    retry [owner/repo] [at 1a2b3c4]
    approve [at 1a2b3c4]
    verdict owner/repo job is new|pre-existing|flaky|infrastructure|missing|unknown because <reason>
    known <url> [owner/repo[:job] or fingerprint] [until 30d] because <reason>
    unknown owner/repo[:job] or fingerprint or <url>
    bisect owner/repo:job [good 1a2b3c4] [bad 5d6e7f8]
    bisect stop 12
    ack [owner/repo]
    test-with owner/repo#12
    status

Where a job's name ends: before the first ` because `, and there before the last ` until ` and an ` at ` with a
commit; in `verdict` before the last ` is `, after a blank or a colon; in `bisect` before ` good ` and ` bad ` with their commits.
A name that holds these words itself stands in double quotes (a quote in it is doubled) and is then taken as it is. What could be
read in two ways is refused rather than guessed, because a waiver opens the gate.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from difflib import get_close_matches
from itertools import islice
from types import MappingProxyType

from crcr.decide.checks.text.markdown import code, one_line
from crcr.decide.commands.comment_lines import command_lines
from crcr.decide.failures.known import LONGEST_KNOWN, is_issue_url
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.github.requests_and_answers import Role
from crcr.decide.model import RepoName
from crcr.decide.pairs.depends_on import PullReference, parse_reference

MOST_COMMANDS_AN_HOUR = 10
MOST_COMMANDS_A_COMMENT = 10
LONGEST_WAIVER = timedelta(days=7)
MOST_REASON_CHARACTERS = 500
MOST_JOB_CHARACTERS = 256
HEAD_DIGITS = 12
"""Digits of the head in suggested commands."""

_KEPT_CHARACTERS = 200
_SHOWN_CHARACTERS = 120
_KINDS = tuple(kind.value for kind in VerdictKind)

_TARGET = re.compile(r"(?P<name>[^\s:]+)(?P<colon>:\s*)?(?P<rest>.*)", re.DOTALL)
# Phones turn straight quotes into curly ones.
_QUOTED = re.compile(r'(?:"(?P<straight>(?:[^"]|"")*)"|“(?P<curly>[^”]*)”)(?P<rest>(?:\s.*)?)', re.DOTALL)
_OPENING_QUOTES = ('"', "“")
_BECAUSE = re.compile(r"(?:^|\s)because(?:\s|$)", re.IGNORECASE)
_UNTIL = re.compile(r"(?:^|\s)until(?=\s|$)", re.IGNORECASE)
_AT_HEAD = re.compile(r"(?:^|\s)at\s+(?P<head>[0-9a-f]{7,40})$", re.IGNORECASE)
_RANGE_WORD = re.compile(r"(?:^|\s)(?:good|bad)(?=\s|$)", re.IGNORECASE)
_RANGE_END = re.compile(r"(?:^|\s)(?P<end>good|bad)\s+(?P<sha>[0-9a-f]{7,64})$", re.IGNORECASE)
_STOP = re.compile(r"\s*stop(?:\s+(?P<words>.*))?", re.IGNORECASE | re.DOTALL)
_BISECTION = re.compile(r"[0-9]{1,15}", re.ASCII)
_IS_KIND = re.compile(r"(?P<job>.*)(?:^|\s)is\s+(?P<kind>\S+)\s*", re.IGNORECASE | re.DOTALL)
_DURATION = re.compile(r"(?P<count>[0-9]{1,9})(?P<unit>[mhd])", re.IGNORECASE)
_FINGERPRINT = re.compile(r"[0-9a-f]{16}", re.IGNORECASE)
_UNITS = {"d": timedelta(days=1), "h": timedelta(hours=1), "m": timedelta(minutes=1)}


@dataclass(frozen=True, slots=True)
class WaiveCommand:
    downstream: RepoName
    job: str | None
    until: timedelta | None
    """How long it is valid across pushes; None binds it to the head commit."""
    reason: str
    head: str | None = None
    """The first digits of the head that the author looked at."""


@dataclass(frozen=True, slots=True)
class UnwaiveCommand:
    downstream: RepoName
    job: str | None


@dataclass(frozen=True, slots=True)
class RetryCommand:
    downstream: RepoName | None
    """None means every failing backend."""
    head: str | None = None


@dataclass(frozen=True, slots=True)
class ApproveCommand:
    """Release the dispatches that are held for approval, for this head commit."""

    head: str | None = None


@dataclass(frozen=True, slots=True)
class VerdictCommand:
    """Contradict the rules' verdict on a failed job of this head; it opens nothing."""

    downstream: RepoName
    job: str
    kind: VerdictKind
    reason: str


@dataclass(frozen=True, slots=True)
class StatusCommand:
    """Answer with the status of this pull request's backends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTarget:
    """The failures that a command is about: those of a fingerprint, or of a backend (and job) on the pull request's head."""

    fingerprint: str | None = None
    downstream: RepoName | None = None
    job: str | None = None


@dataclass(frozen=True, slots=True)
class KnownCommand:
    """Link the failures to an issue."""

    url: str
    target: FailureTarget | None
    """None means the failures of this head, if all of them are alike."""
    until: timedelta | None
    reason: str


@dataclass(frozen=True, slots=True)
class UnknownCommand:
    """Take back `known`: for these failures, or for all that are linked to an issue."""

    target: FailureTarget | None
    url: str | None = None


@dataclass(frozen=True, slots=True)
class BisectionTarget:
    """A job whose breakage is searched, and the ends of the range where the recorded ones are not meant."""

    downstream: RepoName
    job: str
    good: str | None = None
    bad: str | None = None


@dataclass(frozen=True, slots=True)
class BisectCommand:
    """Begin a bisection of a job, or stop one."""

    target: BisectionTarget | None
    stop: int | None = None
    """The number of the bisection to stop."""


@dataclass(frozen=True, slots=True)
class AckCommand:
    """Answer, for a backend, a breakage that this pull request announces."""

    downstream: RepoName | None
    """None means the only backend that the author may answer for."""


@dataclass(frozen=True, slots=True)
class TestWithCommand:
    """Test this pull request together with one of a backend, once more where it was."""

    __test__ = False  # no test case, whatever its name begins with

    reference: PullReference


Command = (
    WaiveCommand
    | UnwaiveCommand
    | RetryCommand
    | ApproveCommand
    | VerdictCommand
    | KnownCommand
    | UnknownCommand
    | BisectCommand
    | AckCommand
    | TestWithCommand
    | StatusCommand
)


@dataclass(frozen=True, slots=True)
class InvalidCommand:
    """A line that begins with `/crcr` and is no valid command; `why` and `hint` are Markdown, safe to publish."""

    text: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class RequiredRole:
    """The least role that may give a command; `author` allows the pull request's author as well."""

    role: Role
    author: bool


REQUIRED_ROLES: Mapping[type[Command], RequiredRole] = MappingProxyType(
    {
        WaiveCommand: RequiredRole(Role.MAINTAIN, author=False),
        UnwaiveCommand: RequiredRole(Role.MAINTAIN, author=False),
        KnownCommand: RequiredRole(Role.MAINTAIN, author=False),
        UnknownCommand: RequiredRole(Role.MAINTAIN, author=False),
        BisectCommand: RequiredRole(Role.MAINTAIN, author=False),
        ApproveCommand: RequiredRole(Role.WRITE, author=False),
        VerdictCommand: RequiredRole(Role.MAINTAIN, author=False),
        TestWithCommand: RequiredRole(Role.WRITE, author=False),
        RetryCommand: RequiredRole(Role.WRITE, author=True),
        StatusCommand: RequiredRole(Role.WRITE, author=True),
        # The backend's own people answer: their role there is judged, not the one in this repository.
        AckCommand: RequiredRole(Role.NONE, author=False),
    }
)


def command_verb(command: Command) -> str:
    words = re.findall(r"[A-Z][a-z]*", type(command).__name__.removesuffix("Command"))
    return "-".join(words).lower()


def refuse_role(command: Command, *, role: Role, is_author: bool) -> str | None:
    """Return why this person may not give the command; None when they may."""
    right = REQUIRED_ROLES[type(command)]
    if role >= right.role or (is_author and right.author):
        return None
    also = ", or to be the author of the pull request" if right.author else ""
    yours = "you have none" if role is Role.NONE else f"yours is {role.name.lower()}"
    return f"`{command_verb(command)}` needs the {right.role.name.lower()} role in this repository{also}; {yours}"


def has_command(body: str) -> bool:
    """Whether a line of the comment begins with `/crcr`, valid or not."""
    return next(command_lines(body), None) is not None


def parse_commands(body: str) -> tuple[Command | InvalidCommand, ...]:
    """Parse the comment's commands in order, at most the first ten."""
    return tuple(_parse_line(line) for line in islice(command_lines(body), MOST_COMMANDS_A_COMMENT))


def format_command(command: Command) -> str:
    """Return the line that parses as this command; line ends in a job's name become spaces."""
    words = ["/crcr", command_verb(command)]
    match command:
        case WaiveCommand(downstream, job, until, _):
            words.append(_target_text(downstream, job))
            words += ["until", _duration_text(until)] if until else []
        case UnwaiveCommand(downstream, job):
            words.append(_target_text(downstream, job))
        case VerdictCommand(downstream, job, kind):
            words += [_target_text(downstream, job), "is", kind.value]
        case RetryCommand(downstream=RepoName() as downstream) | AckCommand(RepoName() as downstream):
            words.append(str(downstream))
        case KnownCommand(url, failure, until, _):
            words += [url, *_failure_words(failure)]
            words += ["until", _duration_text(until)] if until else []
        case UnknownCommand(failure, url):
            words += _failure_words(failure) or [url or ""]
        case TestWithCommand(reference):
            words.append(str(reference))
        case BisectCommand(target, stop):
            words += _range_words(target) if target else ["stop", str(stop)]
    if isinstance(command, WaiveCommand | RetryCommand | ApproveCommand) and command.head is not None:
        words += ["at", command.head]
    if isinstance(command, WaiveCommand | VerdictCommand | KnownCommand):
        words += ["because", command.reason]
    return " ".join(words)


def usage_text() -> str:
    """Return the forms of all commands, as Markdown without a line that is itself a command."""
    return "\n".join(["The commands are:", "", *(f"- {_quote(form)}" for form, _ in _VERBS.values())])


class _Unclear(Exception):
    """The words do not fit the verb's form; answered to the author, never raised out of this module."""


def _parse_line(line: str) -> Command | InvalidCommand:
    word, *more = line.split(maxsplit=1) or [""]
    form, read = _VERBS.get(word.lower(), (None, None))
    if form is None or read is None:
        return InvalidCommand(_quote_line(line), *_explain_unknown(word))
    try:
        return read("".join(more))
    except _Unclear as unclear:
        return InvalidCommand(_quote_line(line), str(unclear), f"write {_quote(form)}")


def _quote_line(line: str) -> str:
    return one_line(f"/crcr {line}")[:_KEPT_CHARACTERS]


def _quote(text: str) -> str:
    return code(text, _SHOWN_CHARACTERS)


def _explain_unknown(word: str) -> tuple[str, str]:
    why = f"{_quote(word)} is no command" if word else "there is no command after `/crcr`"
    for near in get_close_matches(word[:20].lower(), _VERBS, n=1):
        return why, f"did you mean {_quote(_VERBS[near][0])}?"
    return why, "the commands are " + ", ".join(f"`{known}`" for known in _VERBS)


def _parse_waive(text: str) -> WaiveCommand:
    downstream, job, rest = _split_target(text)
    before, reason = _split_reason(rest, _WAIVER)
    words, head = _split_head(before)
    words, until = _split_until(words, _WAIVER)
    if head is None:
        words, head = _split_head(words)
    return WaiveCommand(downstream, _choose_job(job, words), until, reason, head)


def _parse_unwaive(text: str) -> UnwaiveCommand:
    downstream, job, rest = _split_target(text)
    if _BECAUSE.search(rest) or _UNTIL.search(rest):
        raise _Unclear(
            "`unwaive` takes no reason and no time; put a job's name that contains these words in quotes"
        )
    return UnwaiveCommand(downstream, _choose_job(job, rest))


def _parse_retry(text: str) -> RetryCommand:
    words, head = _split_head(text)
    return RetryCommand(_parse_downstream(words.strip()) if words.strip() else None, head)


def _parse_approve(text: str) -> ApproveCommand:
    words, head = _split_head(text)
    _refuse_words(words)
    return ApproveCommand(head)


def _parse_verdict(text: str) -> VerdictCommand:
    downstream, job, rest = _split_target(text)
    if job is None:
        downstream, job, rest = _split_target(f"{downstream}:{rest.strip()}")
    before, reason = _split_reason(rest, _VERDICT)
    said = _IS_KIND.fullmatch(before)
    if said is None:
        raise _Unclear("the verdict after `is` is missing")
    kind = said["kind"].lower()
    if kind not in _KINDS:
        raise _Unclear(f"{_quote(kind)} is no verdict; the verdicts are {', '.join(_KINDS)}")
    job = _choose_job(job, said["job"]) or ""
    return VerdictCommand(downstream, job, VerdictKind(kind), reason)


def _parse_status(text: str) -> StatusCommand:
    _refuse_words(text)
    return StatusCommand()


def _parse_ack(text: str) -> AckCommand:
    return AckCommand(_parse_downstream(text.strip()) if text.strip() else None)


def _parse_known(text: str) -> KnownCommand:
    url, *more = text.split(maxsplit=1) or [""]
    if not is_issue_url(url):
        raise _Unclear(_explain_missing_issue(url))
    target, job, rest = _split_failure("".join(more))
    before, reason = _split_reason(rest, _KNOWN)
    words, until = _split_until(before, _KNOWN)
    return KnownCommand(url, _with_job(target, _choose_job(job, words)), until, reason)


def _parse_unknown(text: str) -> UnknownCommand:
    if is_issue_url(text.strip()):
        return UnknownCommand(None, text.strip())
    target, job, rest = _split_failure(text)
    if target is None:
        raise _Unclear("the failure is missing")
    return UnknownCommand(_with_job(target, _choose_job(job, rest)))


def _parse_bisect(text: str) -> BisectCommand:
    stop = _STOP.fullmatch(text)
    if stop is not None:
        number = (stop["words"] or "").strip()
        if not _BISECTION.fullmatch(number):
            raise _Unclear("the number of the bisection after `stop` is missing")
        return BisectCommand(None, int(number))
    downstream, job, rest = _split_target(text)
    if job is None:
        raise _Unclear("the job after the backend and a colon is missing")
    words, ends = _split_range(rest)
    if job == "" and _RANGE_WORD.search(words):
        raise _Unclear(
            "7 to 64 hexadecimal digits of a commit follow `good` and `bad`; "
            "put a job's name that contains these words in quotes"
        )
    return BisectCommand(BisectionTarget(downstream, _choose_job(job, words) or "", **ends))


def _parse_test_with(text: str) -> TestWithCommand:
    reference = parse_reference(text.strip())
    if reference is None:
        raise _Unclear(
            f"{_quote(text.strip())} is no pull request: write `owner/repo#12`, or its address"
            if text.strip()
            else "the pull request is missing"
        )
    return TestWithCommand(reference)


def _split_range(text: str) -> tuple[str, dict[str, str]]:
    """Split off the final `good 1a2b3c4` and `bad 5d6e7f8`, each at most once."""
    words, ends = text.rstrip(), {}
    while (match := _RANGE_END.search(words)) and (end := match["end"].lower()) not in ends:
        ends[end] = match["sha"].lower()
        words = words[: match.start()].rstrip()
    return words, ends


def _split_failure(text: str) -> tuple[FailureTarget | None, str | None, str]:
    """Split off a fingerprint or `owner/repo:"job"`; the job is as in `_split_target`."""
    word, *more = text.split(maxsplit=1) or [""]
    if not word or word.lower() in {"until", "because"}:
        return None, None, text
    if _FINGERPRINT.fullmatch(word):
        return FailureTarget(fingerprint=word.lower()), None, "".join(more)
    downstream, job, rest = _split_target(text.lstrip())
    return FailureTarget(downstream=downstream), job, rest


def _with_job(target: FailureTarget | None, job: str | None) -> FailureTarget | None:
    return target if target is None or job is None else replace(target, job=job)


def _explain_missing_issue(word: str) -> str:
    if "/pull/" in word:
        return f"{_quote(word)} is a pull request, not an issue"
    return (
        "the address of an issue is missing" if not word else f"{_quote(word)} is not the address of an issue"
    )


def _split_target(text: str) -> tuple[RepoName, str | None, str]:
    """Split off `owner/repo:"job"`; the job is "" when its name is unquoted and still in the rest."""
    match = _TARGET.fullmatch(text)
    if match is None:
        raise _Unclear("the backend is missing")
    downstream = _parse_downstream(match["name"])
    if match["colon"] is None:
        return downstream, None, match["rest"]
    if not match["rest"].startswith(_OPENING_QUOTES):
        return downstream, "", match["rest"]
    quoted = _QUOTED.fullmatch(match["rest"])
    if quoted is None:
        raise _Unclear("the quotes around the job's name are not closed")
    job = quoted["curly"] if quoted["straight"] is None else quoted["straight"].replace('""', '"')
    return downstream, _check_job_name(job), quoted["rest"]


def _parse_downstream(text: str) -> RepoName:
    try:
        return RepoName(text)
    except ValueError:
        raise _Unclear(f"{_quote(text)} is not `owner/repo`") from None


def _choose_job(job: str | None, words: str) -> str | None:
    """Return the quoted job, or else the job's name from the remaining words."""
    if job == "":
        return _check_job_name(words.strip())
    _refuse_words(words)
    return job


def _check_job_name(job: str) -> str:
    if not job.strip():
        raise _Unclear("the job's name after the colon is empty")
    if len(job) > MOST_JOB_CHARACTERS:
        raise _Unclear(f"a job's name has at most {MOST_JOB_CHARACTERS} characters")
    return job


def _refuse_words(text: str) -> None:
    if re.match(r"\s*at(?:\s|$)", text, re.IGNORECASE) and not _AT_HEAD.search(text.rstrip()):
        raise _Unclear(f"{_quote(text)} names no commit: 7 to 40 hexadecimal digits of the head follow `at`")
    if text.strip():
        raise _Unclear(f"{_quote(text)} does not belong there")


def _split_head(text: str) -> tuple[str, str | None]:
    """Split off a final `at 1a2b3c4`."""
    words = text.rstrip()
    match = _AT_HEAD.search(words)
    return (words[: match.start()], match["head"].lower()) if match else (text, None)


@dataclass(frozen=True, slots=True)
class _Lasting:
    """What a command with a reason and a time makes, in words, and for how long at most."""

    words: str
    longest: timedelta


_WAIVER = _Lasting("a waiver", LONGEST_WAIVER)
_KNOWN = _Lasting("a known failure", LONGEST_KNOWN)
_VERDICT = _Lasting("a verdict", timedelta())


def _split_reason(text: str, what: _Lasting) -> tuple[str, str]:
    """Split at the first `because`: what stands before it, and the reason."""
    because = _BECAUSE.search(text)
    if because is None:
        raise _Unclear(_explain_missing_reason(text, what))
    return text[: because.start()], _parse_reason(text[because.end() :], what)


def _split_until(text: str, what: _Lasting) -> tuple[str, timedelta | None]:
    matches = list(_UNTIL.finditer(text))
    if not matches:
        return text, None
    return text[: matches[-1].start()], _parse_duration(text[matches[-1].end() :].strip(), what)


def _parse_duration(text: str, what: _Lasting) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise _Unclear(
            f"{_quote(text)} is not a time such as `30m`, `12h` or `3d`; "
            "put a job's name that contains the word `until` in quotes"
        )
    count, unit = int(match["count"]), _UNITS[match["unit"].lower()]
    if count < 1:
        raise _Unclear(f"{what.words} holds for at least 1 minute")
    if count > what.longest // unit:
        raise _Unclear(f"{what.words} holds for at most {what.longest.days} days")
    return count * unit


def _parse_reason(text: str, what: _Lasting) -> str:
    reason = one_line(text)
    if not reason:
        raise _Unclear(f"{what.words} needs a reason after `because`")
    if len(reason) > MOST_REASON_CHARACTERS:
        raise _Unclear(f"the reason has {len(reason)} characters; at most {MOST_REASON_CHARACTERS} are kept")
    return reason


def _explain_missing_reason(text: str, what: _Lasting) -> str:
    words = [word[:20].lower() for word in text.split(maxsplit=50)]
    for near in get_close_matches("because", words, n=1, cutoff=0.7):
        return f"{what.words} needs a reason: did you mean `because` by {_quote(near)}?"
    return f"{what.words} needs a reason after `because`"


def _target_text(downstream: RepoName, job: str | None) -> str:
    return str(downstream) if job is None else f"{downstream}:{_job_text(job)}"


def _failure_words(target: FailureTarget | None) -> list[str]:
    if target is None:
        return []
    if target.downstream is None:
        return [target.fingerprint or ""]
    return [_target_text(target.downstream, target.job)]


def _range_words(target: BisectionTarget) -> list[str]:
    ends = (("good", target.good), ("bad", target.bad))
    shas = [word for end, sha in ends if sha is not None for word in (end, sha)]
    return [_target_text(target.downstream, target.job), *shas]


def _job_text(job: str) -> str:
    line = re.sub(r"[\r\n]+", " ", job)
    unmistakable = line == line.strip() and not line.startswith(_OPENING_QUOTES)
    if unmistakable and not any(word.search(line) for word in (_BECAUSE, _UNTIL, _AT_HEAD, _RANGE_WORD)):
        return line
    return '"' + line.replace('"', '""') + '"'


def _duration_text(duration: timedelta) -> str:
    unit = next((name for name, length in _UNITS.items() if not duration % length), "m")
    return f"{duration // _UNITS[unit]}{unit}"


_VERBS: dict[str, tuple[str, Callable[[str], Command]]] = {
    "waive": ("/crcr waive owner/repo[:job] [until 3d] [at 1a2b3c4] because <reason>", _parse_waive),
    "unwaive": ("/crcr unwaive owner/repo[:job]", _parse_unwaive),
    "retry": ("/crcr retry [owner/repo] [at 1a2b3c4]", _parse_retry),
    "approve": ("/crcr approve [at 1a2b3c4]", _parse_approve),
    "verdict": (f"/crcr verdict owner/repo job is {'|'.join(_KINDS)} because <reason>", _parse_verdict),
    "known": (
        "/crcr known <url> [owner/repo[:job] or fingerprint] [until 30d] because <reason>",
        _parse_known,
    ),
    "unknown": ("/crcr unknown owner/repo[:job] or fingerprint or <url>", _parse_unknown),
    "bisect": ("/crcr bisect owner/repo:job [good 1a2b3c4] [bad 5d6e7f8], or bisect stop 12", _parse_bisect),
    "ack": ("/crcr ack [owner/repo]", _parse_ack),
    "test-with": ("/crcr test-with owner/repo#12", _parse_test_with),
    "status": ("/crcr status", _parse_status),
}
