"""Verdicts in check texts: the kind with its sentence, and links to the pages that show the evidence."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from crcr.decide.checks.status import BLOCKED, GateStatus, JudgedPart
from crcr.decide.checks.text.markdown import code, link, one_line, prose, truncate
from crcr.decide.failures.verdict import Verdict, VerdictKind, evidence_url
from crcr.decide.model import RepoName

_SHOWN_ON = BLOCKED | {GateStatus.EXCUSED, GateStatus.WAIVED}
_MOST_SENTENCE = 200
_LEAST_SENTENCE = 20
_MOST_EVIDENCE = 80
_MOST_LINKS = 3


@dataclass(frozen=True, slots=True)
class HudPages:
    """Absolute addresses of the HUD's pages about one upstream."""

    url: str
    upstream: RepoName

    def backend(self, name: RepoName) -> str:
        return f"{self.url}/crcr/{name}"


def part_verdict(part: JudgedPart) -> Verdict | None:
    """Return the verdict on a failure; None for other parts."""
    return part.job.verdict if part.job is not None and part.standing in _SHOWN_ON else None


def verdict_text(verdict: Verdict) -> str:
    """Return the kind with its sentence, as plain text inside a longer one."""
    sentence = one_line(verdict.sentence).rstrip(".")
    if sentence[:2].istitle():  # an abbreviation stays
        sentence = f"{sentence[0].lower()}{sentence[1:]}"
    return f"{verdict.kind.value}: {sentence}" if sentence else verdict.kind.value


def verdict_words(part: JudgedPart, pages: HudPages | None = None) -> str:
    """Return the likely cause of a failure with links to its evidence; empty for other parts, and without a verdict."""
    verdict = part_verdict(part)
    if verdict is None:
        return ""
    words = prose(verdict_text(verdict), _MOST_SENTENCE)
    links = ", ".join(_evidence_links(verdict, pages)) if pages is not None else ""
    return f"{words} ({links})" if links else words


def _evidence_links(verdict: Verdict, pages: HudPages) -> list[str]:
    shown = [one for one in verdict.evidence if one.sha is not None or one.number is not None][:_MOST_LINKS]
    links = [
        link(code(one.text, _MOST_EVIDENCE), f"{pages.url}{evidence_url(pages.upstream, one)}")
        for one in shown
    ]
    return [text for text in links if text is not None]


def verdict_kinds(parts: Iterable[JudgedPart]) -> str:
    """Return the kinds of several failures for a title; empty where all of them are unknown."""
    verdicts = [verdict for part in parts if (verdict := part_verdict(part)) is not None]
    counts = Counter(verdict.kind for verdict in verdicts)
    if not counts or set(counts) == {VerdictKind.UNKNOWN}:
        return ""
    if len(counts) == 1:
        return next(iter(counts)).value
    return ", ".join(f"{counts[kind]} {kind.value}" for kind in VerdictKind if counts[kind])


def append_verdict(title: str, parts: Iterable[JudgedPart], most: int) -> str:
    """Return the title with the verdict on its parts as far as that fits, with the sentence if there is one verdict only."""
    parts = list(parts)
    kinds = verdict_kinds(parts)
    if not kinds or len(title) + len(kinds) + 2 > most:
        return title
    verdicts = [verdict for part in parts if (verdict := part_verdict(part)) is not None]
    room = most - len(title) - 2
    if len(verdicts) > 1 or room < len(kinds) + _LEAST_SENTENCE:
        return f"{title}, {kinds}"
    return f"{title}, {truncate(verdict_text(verdicts[0]), room)}"
