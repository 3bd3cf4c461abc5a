"""Which waivers count for what keeps a backend from passing.

A waiver of the whole backend covers whatever keeps it from passing, a waiver of a job just that job. In a merge
group a waiver counts only if every other pull request of the group passed the same, or has it waived, at its own
head: otherwise one could ride into the base branch on another's waiver.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from crcr.decide.checks.commit import BackendResults, GrantedWaiver
from crcr.decide.checks.status import GATE_OF, BackendJudgement, GateState, GateStatus, JudgedPart
from crcr.decide.model import Conclusion


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnHead:
    """One pull request of a merge group, and how the backend stands at the head that it has by itself."""

    number: int
    known: bool = False
    """Whether its head is known, and is the one that the group was made from."""
    judged: BackendJudgement | None = None
    """None where the backend does not gate it."""
    waivers: tuple[GrantedWaiver, ...] = ()


def apply_waivers(
    part: JudgedPart,
    backend: BackendResults,
    waivers: tuple[GrantedWaiver, ...],
    own_heads: tuple[OwnHead, ...] = (),
) -> JudgedPart:
    """The part, waived if a waiver covers it; otherwise with the reason why one of a merge group does not count.

    Who waives a backend takes the merge upon themselves: they need not wait for it to fail first.
    """
    if GATE_OF[part.standing] is GateState.PASSED:
        return part
    covering = [waiver for waiver in waivers if _covers(waiver, backend, part)]
    objections: list[str] = []
    for waiver in covering:
        found = [text for own in own_heads if (text := _objection(own, waiver, backend, part)) is not None]
        if not found:
            return replace(part, standing=GateStatus.WAIVED, waiver=waiver)
        objections.append(f"the waiver of #{waiver.number} does not count here: {', '.join(found)}")
    return replace(part, reason="; ".join((part.reason, *dict.fromkeys(objections))))


def _covers(waiver: GrantedWaiver, backend: BackendResults, part: JudgedPart) -> bool:
    whole = waiver.job is None
    return waiver.covers(backend, part.name) and (whole or part.standing is not GateStatus.WAITING)


def _objection(own: OwnHead, waiver: GrantedWaiver, backend: BackendResults, part: JudgedPart) -> str | None:
    """Why a pull request stands against a waiver: it may be the one that breaks the part. None when it is not."""
    if not own.known:
        return f"which head of #{own.number} is in the group is not known"
    if own.number == waiver.number or any(each.covers(backend, part.name) for each in own.waivers):
        return None
    if own.judged is None:
        return f"#{own.number} has no result of it at its own head"
    named = [each for each in own.judged.parts if part.name is not None and each.name == part.name]
    if part.job is not None and not named:
        return f"#{own.number} has no result of that job at its own head"
    if all(map(_is_success, named)) if named else own.judged.standing is GateStatus.PASSED:
        return None
    state = _worst(named) if named else own.judged.standing
    return f"it is {state} for #{own.number} at its own head, and must have passed or be waived there"


def _is_success(part: JudgedPart) -> bool:
    """A job that was skipped has shown nothing."""
    if part.standing is GateStatus.WAIVED:
        return True
    skipped = part.job is None or part.job.conclusion in {Conclusion.SKIPPED, Conclusion.NEUTRAL}
    return part.standing is GateStatus.PASSED and not skipped


def _worst(parts: Iterable[JudgedPart]) -> str:
    standings = list(GateStatus)
    worst = min((part.standing for part in parts), key=standings.index)
    return "skipped" if worst is GateStatus.PASSED else worst.value
