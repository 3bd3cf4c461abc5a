"""A judged gate as pages show it: the rows that may be seen, and no word about the others.

The check on GitHub says the same in Markdown (`gate_text`); here it is plain text, with commands in backquotes.
"""

from collections.abc import Collection
from dataclasses import replace
from datetime import datetime

from crcr.decide.checks.commit import BackendResults
from crcr.decide.checks.gate import BackendJudgement, GateJudgement, SubjectJudgement
from crcr.decide.checks.status import GateStatus, JudgedPart
from crcr.decide.checks.text.gate import gate_title, head_named
from crcr.decide.checks.text.gate_advice import advice_for
from crcr.decide.checks.text.parts import doubt_words, worst_first
from crcr.decide.model import RepoName
from crcr.decide.views.commit import GatePart, GateRow, GateShown, GateSubject, GateView

_MOST_PARTS = 10
_STANDINGS = tuple(GateStatus)


def gate_view(
    judgement: GateJudgement, public: Collection[str], judged_at: datetime, head_sha: str
) -> GateView:
    """`public` holds the key names of the backends that may be seen."""
    counted = [each.backend for one in judgement.subjects for each in one.backends]
    whole = all(_is_seen(backend, public) for backend in counted)
    return GateView(
        state=GateShown(judgement.state.value),
        title=gate_title(judgement) if whole else None,
        judged_at=judged_at,
        whole=whole,
        subjects=tuple(_subject(one, public, head_sha) for one in judgement.subjects),
    )


def _is_seen(backend: BackendResults, public: Collection[str]) -> bool:
    return backend.name.key in public


def _subject(one: SubjectJudgement, public: Collection[str], head_sha: str) -> GateSubject:
    head = head_named(one.subject, head_sha)
    reused = one.subject.reused_from
    shown = [each for each in one.backends if reused is None and _is_seen(each.backend, public)]
    return GateSubject(
        number=one.subject.number,
        numbers=one.subject.numbers,
        state=one.state,
        in_doubt=one.subject.in_doubt,
        reused_from=reused,
        rows=tuple(_row(_without_hidden(each, public), head) for each in sorted(shown, key=_severity)),
    )


def _severity(judged: BackendJudgement) -> tuple[int, str]:
    return _STANDINGS.index(judged.standing), judged.backend.name.key


def _without_hidden(judged: BackendJudgement, public: Collection[str]) -> BackendJudgement:
    """Leave out the names of hidden entries that a backend may have been renamed to."""
    backend = judged.backend
    names = tuple(name for name in backend.possible_renames if name.key in public)
    if names == backend.possible_renames:
        return judged
    parts = tuple(replace(part, reason="checking for a rename") for part in judged.parts)
    return replace(judged, backend=replace(backend, possible_renames=names), parts=parts)


def _row(judged: BackendJudgement, head: str | None) -> GateRow:
    backend = judged.backend
    telling = [part for part in worst_first(judged.parts) if part.standing is not GateStatus.PASSED]
    return GateRow(
        backend=_name(backend),
        level=backend.level,
        standing=judged.standing,
        parts=tuple(_part(each) for each in telling[:_MOST_PARTS]),
        parts_left_out=max(0, len(telling) - _MOST_PARTS),
        passed=len(judged.parts) - len(telling),
        since=judged.since,
        deadline=judged.deadline if judged.standing is GateStatus.WAITING else None,
        advice=advice_for(judged, head, "`{}`".format),
        oncalls=backend.entry.oncalls if backend.entry else (),
    )


def _name(backend: BackendResults) -> RepoName:
    """As the allowlist writes it."""
    return backend.entry.name if backend.entry else backend.name


def _part(part: JudgedPart) -> GatePart:
    return GatePart(
        name=part.name,
        standing=part.standing,
        reason=part.reason,
        doubt=(doubt_words(part.job) or None) if part.job else None,
        waived_by=part.waiver.who if part.waiver else None,
    )
