"""The text of the gate's check: a title, and a table of backends with their reasons and next steps.

Nothing depends on the time of rendering, so that an unchanged gate is never published again.
"""

from collections.abc import Iterable
from itertools import chain

from crcr.decide.checks.check_run import MOST_TEXT
from crcr.decide.checks.commit import BackendResults, MergeSubject
from crcr.decide.checks.gate import BackendJudgement, GateJudgement, GateState, SubjectJudgement
from crcr.decide.checks.status import BLOCKED, GateStatus, JudgedPart, status_text
from crcr.decide.checks.text.markdown import (
    MarkdownSection,
    code,
    fit_items,
    format_utc,
    join_items,
    one_line,
    page,
    prose,
    row,
    table,
    truncate,
)
from crcr.decide.checks.text.parts import (
    NAME_CHARACTERS,
    OPEN,
    advice_for,
    collect_waivers,
    doubt_words,
    live_sections,
    oncall_words,
    pair_words,
    waiver_words,
)
from crcr.decide.checks.text.verdict import HudPages, append_verdict, verdict_kinds, verdict_words
from crcr.decide.checks.verification import Confirmation, confirm_result
from crcr.decide.commands.grammar import HEAD_DIGITS
from crcr.decide.model import Level

MOST_TITLE = 120
_MOST_PARTS = 3
_MOST_HOLD_REASON = 90
_MOST_NUMBERS = 20
_BY_SEVERITY = tuple(GateStatus)
_STATES = tuple(GateState)
_COLUMNS = ("Backend", "Status", "Why", "Since", "Until", "Next step", "On call")
_IN_DOUBT = "asking GitHub which push and base are the newest"


# The title


def gate_title(judgement: GateJudgement) -> str:
    backends = _worst_of_each(judgement)
    doubt = any(judged.subject.in_doubt for judged in judgement.subjects)
    if judgement.state is GateState.FAILED:
        blocked = [backend for backend in backends if backend.standing in BLOCKED]
        if len(blocked) == 1:
            title = truncate(_blocked_phrase(blocked[0], with_verdict=False), MOST_TITLE)
            return append_verdict(title, blocked[0].deciding_parts, MOST_TITLE)
        phrases = [_blocked_phrase(backend) for backend in blocked]
    elif judgement.state is GateState.PENDING:
        phrases = _pending_phrases(backends) + ([_IN_DOUBT] if doubt else [])
    elif not backends and any(judged.subject.reused_from is not None for judged in judgement.subjects):
        phrases = ["the same tree has passed already"]
    else:
        phrases = _passing_phrases(backends) or ["no gating backend"]
        phrases += _downgraded_phrases(judgement)
    return fit_items(phrases, MOST_TITLE)


def _worst_of_each(judgement: GateJudgement) -> list[BackendJudgement]:
    """Return each backend once, with its worst status over the subjects; the worst backends first."""
    worst: dict[str, BackendJudgement] = {}
    for judged in chain.from_iterable(
        subject.backends for subject in judgement.subjects if subject.subject.reused_from is None
    ):
        known = worst.get(judged.backend.name.key)
        if known is None or _severity(judged) < _severity(known):
            worst[judged.backend.name.key] = judged
    return sorted(worst.values(), key=_severity)


def _severity(judged: BackendJudgement) -> tuple[int, str]:
    return _BY_SEVERITY.index(judged.standing), judged.backend.name.key


def _blocked_phrase(judged: BackendJudgement, *, with_verdict: bool = True) -> str:
    name = judged.backend.name
    if judged.standing is GateStatus.MISSING:
        return f"{name} is missing"
    if judged.standing is GateStatus.DECLINED:
        return f"{name} declined"
    return f"{name} {judged.standing}{_job_names(judged, with_verdict=with_verdict)}"


def _job_names(judged: BackendJudgement, *, with_verdict: bool) -> str:
    """Return the deciding jobs in parentheses, with the kinds of their verdicts."""
    jobs = [part.name for part in judged.deciding_parts if part.name is not None]
    kinds = verdict_kinds(judged.deciding_parts) if with_verdict else ""
    return f" ({'; '.join(filter(None, (join_items(jobs, 2, _shorten), kinds)))})" if jobs else ""


def _shorten(name: str) -> str:
    return truncate(one_line(name), 40)


def _pending_phrases(backends: list[BackendJudgement]) -> list[str]:
    held = [
        f"{backend.backend.name} is held ({_hold_reason(backend)})"
        for backend in backends
        if backend.standing is GateStatus.HELD
    ]
    waiting = [str(backend.backend.name) for backend in backends if backend.standing is GateStatus.WAITING]
    passing = len(backends) - len(held) - len(waiting)
    counted = [f"{passing:,} of {len(backends):,} backends passed"] if passing else []
    return counted + held + ([f"waiting for {waiting[0]}", *waiting[1:]] if waiting else [])


def _hold_reason(judged: BackendJudgement) -> str:
    return truncate(one_line(judged.deciding_parts[0].reason), _MOST_HOLD_REASON)


def _passing_phrases(backends: list[BackendJudgement]) -> list[str]:
    phrases = [_waived_phrase(backend) for backend in backends if backend.standing is GateStatus.WAIVED]
    phrases += [
        f"{backend.backend.name} excused{_job_names(backend, with_verdict=True)}"
        for backend in backends
        if backend.standing is GateStatus.EXCUSED
    ]
    passed = sum(backend.standing is GateStatus.PASSED for backend in backends)
    aside = sum(backend.standing is GateStatus.NOT_CONCERNED for backend in backends)
    if passed:
        phrases.append(f"{passed} {'backend' if passed == 1 else 'backends'} passed")
    if aside:
        phrases.append(f"{aside} not affected")
    return phrases


def _downgraded_phrases(judgement: GateJudgement) -> list[str]:
    names = {
        backend.name
        for judged in judgement.subjects
        for backend in judged.subject.backends
        if backend.downgraded and backend.entry is not None and backend.entry.level is Level.L4
    }
    return [f"{name} is downgraded" for name in sorted(names)]


def _waived_phrase(judged: BackendJudgement) -> str:
    people = dict.fromkeys(
        f"@{one_line(waiver.who).removeprefix('@')}" for waiver in collect_waivers(judged.parts)
    )
    return f"{judged.backend.name} waived by {join_items(list(people), 2)}"


# The summary


def gate_summary(
    judgement: GateJudgement, head_sha: str, live_url: str | None = None, pages: HudPages | None = None
) -> str:
    several = len(judgement.subjects) > 1
    ordered = sorted(judgement.subjects, key=lambda judged: _STATES.index(judged.state))
    subjects = chain.from_iterable(
        _subject_sections(judged, head_sha, pages, headed=several) for judged in ordered
    )
    sections = chain(live_sections(live_url), subjects)
    return page(sections, MOST_TEXT, _WAIVING if judgement.state is GateState.FAILED else "")


def head_named(subject: MergeSubject, head_sha: str) -> str | None:
    """Return the head that a command should name; None for a merge group, whose pull requests have other heads."""
    return None if subject.number is None else head_sha[:HEAD_DIGITS]


def _subject_sections(
    judged: SubjectJudgement, head_sha: str, pages: HudPages | None, *, headed: bool
) -> Iterable[MarkdownSection]:
    heading = f"### {_subject_name(judged.subject)}" if headed or judged.subject.number is None else None
    text = _no_table_text(judged)
    if text is not None:
        yield MarkdownSection(head=f"{heading}\n\n{text}" if heading else text)
    else:
        head = head_named(judged.subject, head_sha)
        rows = (_backend_row(backend, head, pages) for backend in sorted(judged.backends, key=_severity))
        yield table(heading, _COLUMNS, rows, "backends")
    if judged.subject.in_doubt:
        yield MarkdownSection(head=f"Pending: {_IN_DOUBT}.")
    notes = tuple(filter(None, map(_membership_note, judged.subject.backends)))
    if notes:
        yield MarkdownSection(
            head="Not members of this gate:\n", rows=notes, noun="backends that are no members"
        )


def _subject_name(subject: MergeSubject) -> str:
    if subject.number is not None:
        return f"#{subject.number}"
    if not subject.numbers:
        return "merge group (its pull requests are not known, so no waiver applies)"
    return f"merge group of {join_items(subject.numbers, _MOST_NUMBERS, '#{}'.format)}"


def _no_table_text(judged: SubjectJudgement) -> str | None:
    if judged.subject.reused_from is not None:
        return f"The tree is that of {code(judged.subject.reused_from, 40)}, whose gate passed: its result is reused."
    return None if judged.backends else "No backend gates this commit."


def _membership_note(backend: BackendResults) -> str | None:
    """Return why a former or future member of the gate does not count for this commit."""
    name = code(str(backend.name), 140)
    if backend.possible_renames:
        return None  # a member until that is known
    if backend.downgraded and backend.entry is not None and backend.entry.level is Level.L4:
        return f"- {name} is downgraded: it failed the criteria of L3 when this head arrived, and does not gate it."
    if backend.level is Level.L4 and backend.entry is None:
        return f"- {name} has left the allowlist; to gate, it must be listed at L4 again."
    if backend.level is Level.L4 and not backend.gates and backend.entry is not None:
        level = backend.entry.level.name
        return f"- {name} is downgraded to {level}; to gate, its allowlist entry must be at L4 again."
    if backend.entry is not None and backend.entry.level is Level.L4 and backend.level is not Level.L4:
        return f"- {name} has come to L4 since, and gates from the next push on."
    return None


# A row of the table


def _backend_row(judged: BackendJudgement, head: str | None, pages: HudPages | None) -> str:
    deadline = judged.deadline if judged.standing is GateStatus.WAITING else None
    return row(
        (
            _backend_name(judged.backend),
            f"**{judged.standing}**" if judged.standing in BLOCKED else status_text(judged.standing),
            _status_reason(judged, pages),
            format_utc(judged.since),
            format_utc(deadline) if deadline else "",
            advice_for(judged, head, code) or "",
            oncall_words(judged.backend),
        )
    )


def _backend_name(backend: BackendResults) -> str:
    name = code(str(backend.name), 140)
    return (
        f"{name} (dispatched as {code(str(backend.dispatched_as), 140)})" if backend.dispatched_as else name
    )


def _status_reason(judged: BackendJudgement, pages: HudPages | None) -> str:
    if judged.standing is GateStatus.PASSED:
        return _passed_words(judged)

    def part_text(part: JudgedPart) -> str:
        return _part_text(part, pages)

    phrases = [join_items(judged.deciding_parts, _MOST_PARTS, part_text, "; ")]
    also = [part for part in judged.parts if part.standing is GateStatus.EXCUSED]
    if also and judged.standing is not GateStatus.EXCUSED:
        phrases.append(f"excused: {join_items(also, _MOST_PARTS, part_text, '; ')}")
    phrases.append(waiver_words(collect_waivers(judged.parts)))
    if not judged.is_held_by_pair:
        phrases.append(pair_words(judged))
    waiting = sum(part.standing in OPEN for part in judged.parts)
    if waiting and judged.standing not in OPEN:
        phrases.append(f"{waiting} still waiting")
    return ". ".join(filter(None, phrases))


def _passed_words(judged: BackendJudgement) -> str:
    jobs = [part.job for part in judged.parts if part.job is not None]
    count = f"{len(jobs)} {'job' if len(jobs) == 1 else 'jobs'}"
    unconfirmed = sum(confirm_result(job, judged.backend) is Confirmation.AS_REPORTED for job in jobs)
    if not unconfirmed:
        return count
    return (
        f"{count}, as reported"
        if unconfirmed == len(jobs)
        else f"{count}, {unconfirmed:,} of them as reported"
    )


def _part_text(part: JudgedPart, pages: HudPages | None) -> str:
    """Return one job with its reason, likely cause and doubts."""
    text = prose(part.reason)
    if part.name is not None:
        text = f"{code(part.name, NAME_CHARACTERS)} {text}"
    doubt = doubt_words(part.job) if part.job is not None else ""
    return ", ".join(filter(None, (text, verdict_words(part, pages), doubt)))


_WAIVING = """### Waiving

People with the maintain or admin role can let a pull request merge without a backend. They comment on it with one of these lines:

- `/crcr waive owner/repo at 1a2b3c4 because …` for the whole backend and this commit
- `/crcr waive owner/repo:job at 1a2b3c4 because …` for one job of it
- `/crcr waive owner/repo until 3d at 1a2b3c4 because …` for later pushes too, at most 7 days

`at` is followed by the first digits of the pull request's head. Without them a command is refused when the head was pushed less than a minute before. The button “Waive…” posts the command to copy. It waives nothing by itself."""
