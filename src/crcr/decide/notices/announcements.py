"""A pull request announces a breaking change by a label, and by a paragraph for downstreams in its text.

GitHub lets only people with triage rights set a label, so the label is the permission to announce. The author of the text may be
a stranger: the text is read in linear time, cut, and shown as text. An announcement concerns the backends that the pull request
is dispatched to.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from crcr.decide.allowlist.entries import AllowlistEntry, Visibility
from crcr.decide.checks.text.markdown import code, join_items, one_line
from crcr.decide.dispatch.ordering import has_landed
from crcr.decide.dispatch.plan import HEAD_IN_DOUBT
from crcr.decide.dispatch.selection import PATHS
from crcr.decide.github.requests_and_answers import Role
from crcr.decide.model import DispatchState, KnownPull, RepoName
from crcr.decide.notices.notice import NoticeEvent, NoticeKind, Topic

HEADING = "## Downstream"
MOST_BODY_CHARACTERS = 65_536
"""GitHub's limit for a pull request's text; what follows is not read."""
MOST_NOTE_CHARACTERS = 2_000
MOST_NOTE_LINES = 40
_MOST_LINE = 500
_MOST_DETAILS = 12
_MOST_ANSWERS = 5
_MOST_LISTED = 10
_MOST_STATUS = 30
_WORD = "downstream"
_COMMENT_OPENS, _COMMENT_CLOSES = "<!--", "-->"
_LINE_END = re.compile(r"\r\n|\n|\r")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_ANY_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]|$)")
_UNREAD_HOLDS = frozenset({PATHS, HEAD_IN_DOUBT, "rename"})


def read_downstream_note(body: str) -> str | None:
    """Return the text under the first heading `## Downstream` that has one, cut, with its lines; None without any.

    Comments of HTML, which templates of pull requests have, are left out; a heading in fenced code is none.
    """
    if _WORD not in body.lower():
        return None
    visible = _without_comments(body[:MOST_BODY_CHARACTERS])
    return next((note for note in map(_join_lines, _sections(visible)) if note), None)


def _without_comments(body: str) -> str:
    parts, start = [], 0
    while (opens := body.find(_COMMENT_OPENS, start)) >= 0:
        parts.append(body[start:opens])
        closes = body.find(_COMMENT_CLOSES, opens + len(_COMMENT_OPENS))
        start = len(body) if closes < 0 else closes + len(_COMMENT_CLOSES)
    return "".join([*parts, body[start:]])


def _sections(body: str) -> Iterator[list[str]]:
    """The lines of each section for downstreams: until the next heading that is not below its own."""
    section: list[str] = []
    level, fence = 0, ""
    for line in _LINE_END.split(body):
        was_code = bool(fence)
        fence = _next_fence(line, fence)
        heading = None if was_code or fence else _ANY_HEADING.match(line)
        if heading is not None and (not level or len(heading[1]) <= level):
            if level:
                yield section
            title = line[heading.end() :].strip().rstrip("#").rstrip()
            level, section = (len(heading[1]) if title.casefold() == _WORD else 0), []
        elif level:
            section.append(line)
    if level:
        yield section


def _next_fence(line: str, fence: str) -> str:
    """The fence that is open after this line; empty outside of code."""
    match = _FENCE.match(line)
    if not fence:
        return match[1] if match else ""
    closes = match is not None and match[1].startswith(fence) and not line[match.end() :].strip()
    return "" if closes else fence


def _join_lines(lines: Sequence[str]) -> str:
    """The visible lines without blank ones, within the limits."""
    kept: list[str] = []
    left = MOST_NOTE_CHARACTERS
    for line in lines:
        shown = one_line(line[: _MOST_LINE * 2])[:_MOST_LINE]
        if not shown:
            continue
        if len(kept) == MOST_NOTE_LINES or left <= len(shown):
            kept.append("…")
            break
        kept.append(shown)
        left -= len(shown) + 1
    return "\n".join(kept)


def has_label(labels: Iterable[str], label: str) -> bool:
    """Whether the label that announces a breakage is among these; GitHub's labels ignore case."""
    return bool(label) and any(name.casefold() == label.casefold() for name in labels)


def settle_note(pull: KnownPull, known: KnownPull | None, label: str) -> KnownPull:
    """Keep the paragraph only while the label is set, with GitHub's time of its last change."""
    note = (pull.downstream_note or "") if has_label(pull.labels, label) else None
    is_same = known is not None and known.downstream_note == note
    at = known.downstream_note_at if known and is_same else pull.updated_at
    return replace(pull, downstream_note=note, downstream_note_at=None if note is None else at)


class AnnouncementState(StrEnum):
    ANNOUNCED = "announced"
    INCOMPLETE = "incomplete"
    """The label is set, and the text has no paragraph for downstreams: nobody is told."""
    ENDED = "ended"
    """The pull request was merged or closed."""


def announcement_state(pull: KnownPull) -> AnnouncementState | None:
    """None where the label is not set, or was set without a paragraph until the end."""
    if pull.downstream_note is None:
        return None
    if not pull.is_open:
        return AnnouncementState.ENDED if pull.downstream_note else None
    return AnnouncementState.ANNOUNCED if pull.downstream_note else AnnouncementState.INCOMPLETE


MISSING_NOTE = (
    f"a breaking change is announced by its label, but the text of the pull request has no paragraph under a heading"
    f" `{HEADING}`: nobody was told"
)


# Whom it concerns


class Concern(StrEnum):
    CONCERNED = "concerned"
    UNKNOWN = "unknown"
    """Until GitHub has answered: what people were told stays as it is."""
    NOT_CONCERNED = "not concerned"


def judge_concern(
    state: DispatchState, reason: str | None, *, concerned: bool | None, entry: AllowlistEntry
) -> Concern:
    """Whether the pull request is dispatched to a backend, or will be; `concerned` is the result of its `paths`."""
    if state is DispatchState.HELD:
        waits_for_files = entry.paths is not None and concerned is None
        return Concern.UNKNOWN if reason in _UNREAD_HOLDS or waits_for_files else Concern.CONCERNED
    is_out = state in {DispatchState.LEFT_OUT, DispatchState.CANCELLED}
    return Concern.NOT_CONCERNED if is_out else Concern.CONCERNED


# Who answered


@dataclass(frozen=True, slots=True, kw_only=True)
class AnnouncementAnswer:
    who: str
    at: datetime
    """When the comment was written."""
    is_outdated: bool = False
    """The paragraph has changed since."""


def may_answer(entry: AllowlistEntry, who: str, role: Role) -> bool:
    """Whether a person may answer for a backend; `role` is theirs in its repository, as far as it was asked for."""
    return is_oncall(entry, who) or role >= Role.WRITE


def is_oncall(entry: AllowlistEntry, who: str) -> bool:
    return who.casefold() in {oncall.casefold() for oncall in entry.oncalls}


def choose_backends_to_ask(
    concerned: Mapping[str, AllowlistEntry], who: str, named: Iterable[RepoName | None]
) -> tuple[AllowlistEntry, ...]:
    """The backends in whose repositories the role of the person decides: never more than the person named, or the only one."""
    chosen: dict[str, AllowlistEntry] = {}
    for name in named:
        if name is not None:
            entry = concerned.get(name.key)
        else:
            entry = next(iter(concerned.values())) if len(concerned) == 1 else None
        if entry is not None and not is_oncall(entry, who):
            chosen[entry.name.key] = entry
    return tuple(chosen.values())


def choose_answered(
    concerned: Mapping[str, AllowlistEntry], who: str, roles: Mapping[str, Role], named: RepoName | None
) -> AllowlistEntry | str:
    """The backend that a person answers for, or why there is none, as Markdown.

    The refusal is the same for a backend that is hidden, not concerned, or not theirs.
    """
    may = [entry for key, entry in concerned.items() if may_answer(entry, who, roles.get(key, Role.NONE))]
    if named is not None:
        own = next((entry for entry in may if entry.name == named), None)
        return own or (
            f"{code(str(named), 140)} was not told of this change, or you may not answer for it: its on-calls may,"
            " and people with the write role in its repository where the App is installed"
        )
    if len(may) == 1:
        return may[0]
    if not may:
        return "name the backend that you answer for: `/crcr ack owner/repo`"
    shown = [entry.name for entry in may if entry.visibility is Visibility.PUBLIC]
    lines = join_items(shown, _MOST_LISTED, lambda name: code(f"/crcr ack {name}", 140))
    return f"you may answer for {len(may)} backends; name one: {lines or '`/crcr ack owner/repo`'}"


def announcement_text(
    state: AnnouncementState,
    concerned: Mapping[str, AllowlistEntry],
    answers: Mapping[str, Sequence[AnnouncementAnswer]],
) -> str:
    """What `/crcr status` says, as Markdown, about the backends that everybody may see."""
    if state is AnnouncementState.INCOMPLETE:
        return f"{MISSING_NOTE[0].upper()}{MISSING_NOTE[1:]}."
    shown = {key: entry.name for key, entry in concerned.items() if entry.visibility is Visibility.PUBLIC}
    answered = [name for key, name in shown.items() if answers.get(key)]
    silent = [name for key, name in shown.items() if not answers.get(key)]
    parts = [
        f"{word}: {join_items(names, _MOST_STATUS, lambda name: code(str(name), 140))}"
        for word, names in (("answered", answered), ("not yet answered", silent))
        if names
    ]
    return f"A breaking change is announced to the on-calls of the backends. {'; '.join(parts) or 'None is concerned'}."


# Notices


def may_comment(topic: Topic, entry: AllowlistEntry | None) -> bool:
    """Whether a thread may be in the comment on the pull request, which everybody reads: hidden backends stay hidden."""
    return topic is not Topic.BREAKING or (entry is not None and entry.visibility is Visibility.PUBLIC)


def announcement_event(
    upstream: RepoName, pull: KnownPull, backend: RepoName, answers: Collection[AnnouncementAnswer]
) -> NoticeEvent:
    note = pull.downstream_note or ""
    lines = note.split("\n")
    more = ["and more on the page of the pull request"] if len(lines) > _MOST_DETAILS else []
    said = [f"answered by: {answer.who}" for answer in sorted(answers, key=lambda answer: answer.at)]
    return NoticeEvent(
        kind=NoticeKind.BREAKING,
        upstream=upstream,
        backend=backend,
        number=pull.number,
        summary=f"what changes for downstreams: {note}",
        details=(
            f"pull request: {pull.title}",
            *(f"announced: {line}" for line in lines[:_MOST_DETAILS]),
            *more,
            *said[:_MOST_ANSWERS],
            f"to answer, comment on the pull request: /crcr ack {backend}",
        ),
        path=f"/crcr/pr/{pull.number}",
    )


def announcement_end(upstream: RepoName, number: int, backend: RepoName, why: str) -> NoticeEvent:
    return NoticeEvent(
        kind=NoticeKind.BREAKING_ENDED,
        upstream=upstream,
        backend=backend,
        number=number,
        summary=why,
        path=f"/crcr/pr/{number}",
    )


def why_ended(pull: KnownPull | None) -> str | None:
    """Return why the pull request announces nothing; None while it does."""
    if pull is None:
        return "the pull request is not known any more"
    if not pull.is_open:
        return f"the pull request was {'merged' if has_landed(pull.labels, merged=pull.merged) else 'closed'}"
    if pull.downstream_note is None:
        return "the label was removed"
    return None if pull.downstream_note else "the text has no paragraph for downstreams any more"
