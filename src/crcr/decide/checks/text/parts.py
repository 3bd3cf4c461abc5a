"""Phrases that the check texts and the pages share: waivers, on-calls, doubts, and what can be done next."""

from collections.abc import Callable, Iterable

from crcr.decide.checks.commit import BackendResults, GrantedWaiver, JobResult, Verification
from crcr.decide.checks.completeness import why_names_needed
from crcr.decide.checks.status import BLOCKED, BackendJudgement, GateStatus, JudgedPart
from crcr.decide.checks.text.markdown import MarkdownSection, code, format_utc, join_items, link, prose
from crcr.decide.checks.verification import Confirmation, confirm_result
from crcr.decide.commands.grammar import ApproveCommand, RetryCommand, WaiveCommand, format_command
from crcr.decide.model import JobState

OPEN = frozenset({GateStatus.WAITING, GateStatus.HELD})
NAME_CHARACTERS = 100
_MOST_WAIVERS = 3
_MOST_ONCALLS = 5
_MOST_PAIRS = 5
_WORST_FIRST = tuple(GateStatus)

_VERIFICATIONS = {
    Verification.DISPUTED: "disputed: GitHub says otherwise, and the worse of both counts",
    Verification.NOT_VERIFIABLE: "not verifiable: GitHub shows no such job",
    Verification.SELF_REPORTED: "self-reported: the relay cannot query this CI",
}


def live_sections(live_url: str | None) -> Iterable[MarkdownSection]:
    """Link to the live page, because a check is not updated for each job."""
    page_link = link("The live page", live_url)
    if page_link is not None:
        yield MarkdownSection(
            head=f"{page_link} shows every job as it runs; this check is written at decisions only."
        )


def sort_worst_first(parts: Iterable[JudgedPart]) -> list[JudgedPart]:
    return sorted(parts, key=lambda part: _WORST_FIRST.index(part.standing))


def doubt_words(job: JobResult) -> str:
    """Return why the reported result is uncertain."""
    doubts = [_VERIFICATIONS.get(job.verification, "")]
    if job.unreported:
        doubts.append("unreported: it succeeded on GitHub, and no report reached the relay")
    return "; ".join(filter(None, doubts))


def collect_waivers(parts: Iterable[JudgedPart]) -> tuple[GrantedWaiver, ...]:
    """Return each waiver in use once."""
    return tuple(dict.fromkeys(part.waiver for part in parts if part.waiver is not None))


def waiver_words(waivers: tuple[GrantedWaiver, ...]) -> str:
    return join_items(waivers, _MOST_WAIVERS, _waiver_text, "; ")


def _waiver_text(waiver: GrantedWaiver) -> str:
    subject = f"{code(waiver.job, NAME_CHARACTERS)} waived" if waiver.job is not None else "waived"
    until = f"until {format_utc(waiver.until_at)}" if waiver.until_at else "for this commit on this base only"
    return f"{subject} by {person(waiver.who)} on #{waiver.number} because {code(waiver.reason)}, {until}"


def pair_words(judged: BackendJudgement) -> str:
    """Return what the backend does with the pull requests of its own that the change depends on."""
    return join_items(judged.pairs, _MOST_PAIRS, lambda pair: prose(pair.sentence), "; ")


def person(name: str) -> str:
    """Return a login that notifies nobody."""
    return code(f"@{name.removeprefix('@')}", 60)


def oncall_words(backend: BackendResults) -> str:
    oncalls = backend.entry.oncalls if backend.entry else ()
    return join_items(oncalls, _MOST_ONCALLS, person)


Quote = Callable[[str], str]
"""Marks a text as code."""

_MOST_NAMES = 3


def advice_for(judged: BackendJudgement, head: str | None, quote: Quote) -> str | None:
    """Return what a person can do; None where nothing need be done. Suggested commands name the `head`."""
    name = judged.backend.name
    retry = quote(format_command(RetryCommand(name)))
    waive = f"a maintainer can {quote(format_command(WaiveCommand(name, None, None, '…', head)))}"
    match judged.standing:
        case GateStatus.FAILED:
            return f"fix it, {retry}, or {waive}"
        case GateStatus.DECLINED:
            return f"let a job run, set `may_skip: true` in its allowlist entry, or {waive}"
        case GateStatus.HELD if judged.is_held_by_pair:
            merge = join_items([pair.pair.reference for pair in judged.pairs if pair.passes], _MOST_NAMES)
            return f"merge {merge}: {quote(str(name))} is then tested without it; or {waive}"
        case GateStatus.HELD if judged.backend.reason == "approval":
            return f"someone with write rights comments {quote(format_command(ApproveCommand(head)))}"
        case GateStatus.HELD:
            return "mark the pull request ready for review"
        case GateStatus.WAITING:
            return _advice_while_waiting(judged, waive, quote)
    if judged.standing not in BLOCKED:
        return None
    jobs = advice_about_jobs(judged)
    return f"{jobs}, or {waive}" if jobs else f"{retry}, contact the on-call, or {waive}"


def advice_about_jobs(judged: BackendJudgement) -> str | None:
    """Return the change of the allowlist or the App that lets the backend be complete; None where none is needed."""
    if why_names_needed(judged.backend) is None:
        return None
    named = "name its `jobs` literally in the allowlist"
    return f"{named}, or grant Actions: read" if judged.backend.readable is False else named


def _advice_while_waiting(judged: BackendJudgement, waive: str, quote: Quote) -> str | None:
    backend = judged.backend
    if backend.possible_renames:
        names = join_items(backend.possible_renames, _MOST_NAMES, lambda name: quote(str(name)))
        return f"install the App on {names} so that GitHub shows its id, push again, or {waive}"
    if any(
        part.job is not None
        and part.job.state is JobState.COMPLETED
        and not backend.runs_again(part.job)
        and confirm_result(part.job, backend) is Confirmation.OPEN
        for part in judged.deciding_parts
    ):
        return f"the relay queries GitHub again by itself; if this lasts, contact the on-call, or {waive}"
    return None
