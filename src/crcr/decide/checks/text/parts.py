"""How the parts of a backend are put into words, for the gate's check and for the backend's own."""

from collections.abc import Iterable

from crcr.decide.checks.commit import BackendResults, FailureVerdict, GrantedWaiver, JobResult, Verification
from crcr.decide.checks.status import BLOCKED, GateStatus, JudgedPart
from crcr.decide.checks.text.markdown import MarkdownSection, code, format_utc, join_items, link

OPEN = frozenset({GateStatus.WAITING, GateStatus.HELD})
NAME_CHARACTERS = 100
_MOST_WAIVERS = 3
_MOST_ONCALLS = 5
_WORST_FIRST = tuple(GateStatus)

_VERDICTS = {
    FailureVerdict.NEW: "new: the base branch passes",
    FailureVerdict.PRE_EXISTING: "pre-existing: it fails on the base branch too",
    FailureVerdict.FLAKY: "flaky: it has changed without a change of code",
    FailureVerdict.INFRASTRUCTURE: "infrastructure: not the code's fault",
    FailureVerdict.UNKNOWN: "no verdict: too little history",
}
_VERIFICATIONS = {
    Verification.DISPUTED: "disputed: GitHub says otherwise, and the worse of both counts",
    Verification.NOT_VERIFIABLE: "not verifiable: GitHub shows no such job",
    Verification.SELF_REPORTED: "self-reported: nobody else can ask this CI",
}


def live_sections(live_url: str | None) -> Iterable[MarkdownSection]:
    """Where to look while a check is not written again for each job that moves."""
    page_link = link("The live page", live_url)
    if page_link is not None:
        yield MarkdownSection(
            head=f"{page_link} shows every job as it runs; this check is written at decisions only."
        )


def worst_first(parts: Iterable[JudgedPart]) -> list[JudgedPart]:
    return sorted(parts, key=lambda part: _WORST_FIRST.index(part.standing))


def verdict_words(part: JudgedPart) -> str:
    """Whose fault it is; nothing for what needs no excuse, and nothing before a verdict was given."""
    verdict = part.job.verdict if part.job else None
    if verdict is None or part.standing not in BLOCKED | {GateStatus.EXCUSED, GateStatus.WAIVED}:
        return ""
    return _VERDICTS[verdict]


def doubt_words(job: JobResult) -> str:
    """What makes the reported result less than certain."""
    said = [_VERIFICATIONS.get(job.verification, "")]
    if job.unreported:
        said.append("unreported: GitHub saw it succeed, and nobody told the relay")
    return "; ".join(filter(None, said))


def waivers_of(parts: Iterable[JudgedPart]) -> tuple[GrantedWaiver, ...]:
    """Each waiver in use once."""
    return tuple(dict.fromkeys(part.waiver for part in parts if part.waiver is not None))


def waiver_words(waivers: tuple[GrantedWaiver, ...]) -> str:
    return join_items(waivers, _MOST_WAIVERS, _waiver, "; ")


def _waiver(waiver: GrantedWaiver) -> str:
    what = f"{code(waiver.job, NAME_CHARACTERS)} waived" if waiver.job is not None else "waived"
    until = f"until {format_utc(waiver.until_at)}" if waiver.until_at else "for this commit on this base only"
    return f"{what} by {person(waiver.who)} on #{waiver.number} because {code(waiver.reason)}, {until}"


def person(name: str) -> str:
    """A name that nobody is notified by."""
    return code(f"@{name.removeprefix('@')}", 60)


def oncall_words(backend: BackendResults) -> str:
    oncalls = backend.entry.oncalls if backend.entry else ()
    return join_items(oncalls, _MOST_ONCALLS, person)
