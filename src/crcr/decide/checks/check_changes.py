"""Which changes of a check that is still to change are published at once, and which wait for its next decision.

Every write of a check is a request of the hour that gates and dispatches need too, and each job that moves changes a
text. So an undecided check has a *brief*: what a merge or a person depends on now. A check with the same brief is not
written again (the live page shows the rest); once nothing is awaited any more there is none, and every word counts.
"""

from collections.abc import Iterable

from crcr.decide.checks.commit import BackendResults, GrantedWaiver, MergeSubject
from crcr.decide.checks.gate import GateJudgement
from crcr.decide.checks.status import BLOCKED, BackendJudgement, GateStatus, JudgedPart
from crcr.decide.checks.text.parts import waivers_of
from crcr.decide.model import Conclusion, JobState, Level

HARMLESS = frozenset({Conclusion.SUCCESS, Conclusion.NEUTRAL, Conclusion.SKIPPED})
_OPEN = frozenset({GateStatus.WAITING, GateStatus.HELD})


def gate_brief(judgement: GateJudgement, incarnation: str) -> str | None:
    """What of an undecided gate must be published at once; None once no backend is awaited.

    Its state; a doubt about the newest push; which backends are held and why, as only people release that; waivers,
    membership and possible renames, which people change; and which backends are no longer what a published failure says.
    A second failing backend does not count: the gate is red already, and that backend's own check shows it.
    """
    judged = [each for one in judgement.subjects for each in one.backends]
    if not any(part.standing is GateStatus.WAITING for each in judged for part in each.parts):
        return None
    return repr(
        (
            judgement.state.value,
            incarnation,
            [one.subject.in_doubt for one in judgement.subjects],
            sorted((str(each.backend.name), _held(each)) for each in judged),
            sorted(_waivers(part for each in judged for part in each.parts)),
            sorted(_membership(backend) for one in judgement.subjects for backend in _listed(one.subject)),
            sorted(str(each.backend.name) for each in judged if _recovers(each)),
        )
    )


def backend_brief(judged: BackendJudgement) -> str | None:
    """What of a backend's open check must be published at once; None once nothing of it is open."""
    if not any(part.standing in _OPEN for part in judged.parts):
        return None
    return repr(
        (
            judged.standing in BLOCKED,
            _held(judged),
            sorted(_waivers(judged.parts)),
            [str(name) for name in judged.backend.possible_renames],
            sorted(_recovering_jobs(judged)),
        )
    )


def failed_once(backend: BackendResults) -> frozenset[tuple[str, str]]:
    """Workflow and name of the jobs that failed in any attempt."""
    return frozenset(
        (job.workflow, job.name)
        for job in backend.jobs
        if job.state is not JobState.IN_PROGRESS
        and job.conclusion not in HARMLESS
        and job.conclusion is not backend.expected(job.name)
    )


def _held(judged: BackendJudgement) -> list[str]:
    return [part.reason for part in judged.parts if part.standing is GateStatus.HELD]


def _waivers(parts: Iterable[JudgedPart]) -> list[tuple[str, str, str, str]]:
    return [_waiver(each) for each in waivers_of(parts)]


def _waiver(waiver: GrantedWaiver) -> tuple[str, str, str, str]:
    return str(waiver.downstream), waiver.job or "", waiver.who, str(waiver.until_at)


def _listed(subject: MergeSubject) -> list[BackendResults]:
    return [each for each in subject.backends if Level.L4 in {each.level, each.entry and each.entry.level}]


def _membership(backend: BackendResults) -> tuple[str, bool, str, list[str]]:
    level = backend.entry.level.name if backend.entry else ""
    return str(backend.name), backend.gates, level, [str(name) for name in backend.possible_renames]


def _recovers(judged: BackendJudgement) -> bool:
    """Whether it failed, and stands otherwise now: a published text may still name it as the one that blocks."""
    return judged.standing not in BLOCKED and bool(_recovering_jobs(judged))


def _recovering_jobs(judged: BackendJudgement) -> list[tuple[str, str]]:
    failed = failed_once(judged.backend)
    return [
        (part.job.workflow, part.job.name)
        for part in judged.parts
        if part.job is not None
        and part.standing in {GateStatus.WAITING, GateStatus.PASSED}
        and (part.job.workflow, part.job.name) in failed
    ]
