"""The evidence of a verdict: what it rests on, as text with the commit or pull request that shows it."""

from collections.abc import Sequence

from crcr.decide.failures.course import CourseStep
from crcr.decide.failures.history import BaseResult, RecordedFailure
from crcr.decide.failures.verdict import Evidence, EvidenceKind

MOST_EVIDENCE = 5


def cite_rerun() -> Evidence:
    return Evidence(kind=EvidenceKind.RERUN, text="another run of the same commit")


def cite_base(result: BaseResult, *, fails: bool) -> Evidence:
    what = "nightly run" if result.nightly else "base"
    words = "failed alike" if fails else "passed"
    return Evidence(
        kind=EvidenceKind.BASE, text=f"{what} {words}, {result.at:%d %b %H:%M} UTC", sha=result.sha
    )


def cite_step(step: CourseStep) -> Evidence:
    if step.base is not None:
        return cite_base(step.base, fails=True)
    if step.pull is not None:
        return cite_pull(step.pull)
    raise ValueError("a failing step is of the base or of a pull request")


def cite_pull(other: RecordedFailure) -> Evidence:
    return Evidence(
        kind=EvidenceKind.PULL,
        text=f"#{other.number} failed alike, {other.at:%d %b %H:%M} UTC",
        sha=other.head_sha,
        number=other.number,
    )


def cite_chances(flips: Sequence[RecordedFailure], chances: Sequence[CourseStep]) -> tuple[Evidence, ...]:
    return (
        *(
            Evidence(
                kind=EvidenceKind.PULL if flip.number else EvidenceKind.BASE,
                text=f"failed and passed on the same commit, {flip.at:%d %b %H:%M} UTC",
                sha=flip.head_sha,
                number=flip.number,
            )
            for flip in flips
        ),
        *map(cite_step, chances),
    )
