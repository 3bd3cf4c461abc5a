"""Which changes of a check are published, and what GitHub is asked for.

Compares the checks that a commit should have with those that were last published. Level-triggered: a missed, repeated
or reordered event is corrected by the next comparison.

Every write of a check costs one of the requests per hour that gates and dispatches need too, and each job that changes
state changes a text. An undecided check therefore has a *brief*: what a merge or a person depends on now. A check whose
brief is unchanged is not written again (the live page shows the rest). A decided check has no brief: every change of
its text is published.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.checks.check_run import CheckContent, CheckStatus, Tier, WantedCheck
from crcr.decide.checks.commit import BackendResults, GrantedWaiver, MergeSubject
from crcr.decide.checks.gate import GateJudgement
from crcr.decide.checks.status import BLOCKED, BackendJudgement, GateStatus, JudgedPart
from crcr.decide.checks.text.parts import collect_waivers
from crcr.decide.model import Conclusion, JobState, Level

HARMLESS = frozenset({Conclusion.SUCCESS, Conclusion.NEUTRAL, Conclusion.SKIPPED})
_OPEN = frozenset({GateStatus.WAITING, GateStatus.HELD})


def gate_brief(judgement: GateJudgement, incarnation: str) -> str | None:
    """Return the part of an undecided gate that must be published at once; None once no backend is awaited.

    Its state; a doubt about the newest push; which backends are held and why, as only people release that; waivers,
    membership and possible renames, which people change; and which backends are no longer what a published failure says.
    A second failing backend does not count: the gate is red already, and that backend's own check shows it.
    """
    judged = [backend for subject in judgement.subjects for backend in subject.backends]
    if not any(part.standing is GateStatus.WAITING for backend in judged for part in backend.parts):
        return None
    return repr(
        (
            judgement.state.value,
            incarnation,
            [subject.subject.in_doubt for subject in judgement.subjects],
            sorted((str(backend.backend.name), _held_reasons(backend)) for backend in judged),
            sorted(_waiver_keys(part for backend in judged for part in backend.parts)),
            sorted(
                _membership_key(backend)
                for subject in judgement.subjects
                for backend in _gating_backends(subject.subject)
            ),
            sorted(str(backend.backend.name) for backend in judged if _has_recovered(backend)),
        )
    )


def backend_brief(judged: BackendJudgement) -> str | None:
    """Return the part of a backend's open check that must be published at once; None once nothing of it is open."""
    if not any(part.standing in _OPEN for part in judged.parts):
        return None
    return repr(
        (
            judged.standing in BLOCKED,
            _held_reasons(judged),
            sorted(_waiver_keys(judged.parts)),
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


def _held_reasons(judged: BackendJudgement) -> list[str]:
    return [part.reason for part in judged.parts if part.standing is GateStatus.HELD]


def _waiver_keys(parts: Iterable[JudgedPart]) -> list[tuple[str, str, str, str]]:
    return [_waiver_key(waiver) for waiver in collect_waivers(parts)]


def _waiver_key(waiver: GrantedWaiver) -> tuple[str, str, str, str]:
    return str(waiver.downstream), waiver.job or "", waiver.who, str(waiver.until_at)


def _gating_backends(subject: MergeSubject) -> list[BackendResults]:
    return [
        backend
        for backend in subject.backends
        if Level.L4 in {backend.level, backend.entry and backend.entry.level}
    ]


def _membership_key(backend: BackendResults) -> tuple[str, bool, str, list[str]]:
    level = backend.entry.level.name if backend.entry else ""
    return str(backend.name), backend.gates, level, [str(name) for name in backend.possible_renames]


def _has_recovered(judged: BackendJudgement) -> bool:
    """Whether it failed before and does not block now: a published text may still name it as the blocker."""
    return judged.standing not in BLOCKED and bool(_recovering_jobs(judged))


def _recovering_jobs(judged: BackendJudgement) -> list[tuple[str, str]]:
    failed = failed_once(judged.backend)
    return [
        (part.job.workflow, part.job.name)
        for part in judged.parts
        if part.job is not None
        and part.standing in {GateStatus.WAITING, GateStatus.PASSED, GateStatus.EXCUSED}
        and (part.job.workflow, part.job.name) in failed
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheck:
    """The newest check of a name that is on the commit, or on its way there."""

    tier: Tier
    incarnation: str
    is_open: bool
    digest: str
    awaited: bool = False
    conclusion: Conclusion | None = None
    """None also for a completed check whose answer was lost."""

    @property
    def lets_merge(self) -> bool:
        """Whether it is a gate that allows a merge."""
        harmful = {Conclusion.FAILURE, Conclusion.CANCELLED}
        return self.tier is Tier.GATE and not self.is_open and self.conclusion not in harmful


class CheckAction(StrEnum):
    NOTHING = "nothing"
    CREATE = "create"
    UPDATE = "update"
    END = "end"
    REPLACE = "replace"
    """Create a check of the same name that is completed as ended."""
    SETTLE = "settle"
    """Ask nothing of GitHub: it was to be read again, and need not be any more."""


def next_action(
    published: PublishedCheck | None, wanted: WantedCheck | None, digest: str, *, abandoned: bool = False
) -> CheckAction:
    """Return the action for one name. A completed check does not reopen: a new one of the same name replaces it.

    `abandoned` says that the commit has no subject any more and was not merged: its green gate must not allow the
    merge of a later pull request with the same head.
    """
    if wanted is None:
        if published is not None and published.is_open:
            return CheckAction.END
        return (
            CheckAction.REPLACE
            if abandoned and published is not None and published.lets_merge
            else CheckAction.NOTHING
        )
    if published is None:
        return CheckAction.CREATE
    opens = wanted.shown.status is not CheckStatus.COMPLETED
    if published.awaited and opens:
        return CheckAction.CREATE  # GitHub shows it as completed, although its result is still to come
    if not published.is_open and (opens or published.incarnation != wanted.incarnation):
        return CheckAction.CREATE
    return CheckAction.NOTHING if published.digest == digest else CheckAction.UPDATE


def ending_content(tier: Tier, reason: str) -> CheckContent:
    """Return the content that ends an open check which is no longer wanted. A gate never ends in a way that allows a merge."""
    conclusion = Conclusion.CANCELLED if tier is Tier.GATE else Conclusion.NEUTRAL
    summary = f"This check ended without a result: {reason}."
    return CheckContent(status=CheckStatus.COMPLETED, conclusion=conclusion, title=reason, summary=summary)
