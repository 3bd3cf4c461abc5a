"""The status of a backend, or of one job of it, at the gate: values that rules, texts and pages share.

`gate` computes them.
"""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from crcr.decide.checks.commit import BackendPair, BackendResults, GrantedWaiver, JobResult
from crcr.decide.failures.verdict import VerdictKind
from crcr.decide.pairs.pair import DependencyState, pair_sentence


class GateStatus(StrEnum):
    """The status of a backend, or of one job of it, at the gate."""

    FAILED = "failed"
    ERRORED = "errored"
    MISSING = "missing"
    DECLINED = "declined"
    WAITING = "waiting"
    HELD = "held"
    WAIVED = "waived"
    EXCUSED = "excused"
    NOT_CONCERNED = "not concerned"
    PASSED = "passed"


_SHOWN_AS = {GateStatus.NOT_CONCERNED: "not affected"}
_LEFT_OUT_BY = {
    "approval": "it was never approved",
    "authors": "the author is not among its `authors`",
    "events": "the event is not in its `events`",
    "labels": "no label matches `labels`",
    "paths": "no changed file matches `paths`",
    "refs": "the branch or tag is not in its `refs`",
}


def status_text(standing: GateStatus) -> str:
    """Return the word for a standing in checks and on pages; its value is the word of the API."""
    return _SHOWN_AS.get(standing, standing.value)


def left_out_words(option: str | None) -> str:
    """Say which option of its allowlist entry kept a backend from being dispatched."""
    return f"skipped: {_LEFT_OUT_BY.get(option or '', f'left out by `{option}`')}"


BLOCKED = frozenset({GateStatus.FAILED, GateStatus.ERRORED, GateStatus.MISSING, GateStatus.DECLINED})
"""Statuses that keep the gate closed until a person acts."""


class GateState(StrEnum):
    FAILED = "failed"
    PENDING = "pending"
    PASSED = "passed"


GATE_STATUSES = tuple(GateStatus)
_OPEN = (GateStatus.WAITING, GateStatus.HELD)
_PASSING = (GateStatus.WAIVED, GateStatus.EXCUSED, GateStatus.NOT_CONCERNED, GateStatus.PASSED)
GATE_OF = {
    **dict.fromkeys(BLOCKED, GateState.FAILED),
    **dict.fromkeys(_OPEN, GateState.PENDING),
    **dict.fromkeys(_PASSING, GateState.PASSED),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPart:
    """One job of a backend, or an expected job that has not reported, as the gate judges it."""

    standing: GateStatus
    name: str | None
    """None: the backend as a whole."""
    reason: str
    job: JobResult | None = None
    waiver: GrantedWaiver | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedPair:
    """What a backend does with a pull request of its own that the change depends on; it decides nothing."""

    pair: BackendPair
    status: GateStatus | None
    """None while there is no dispatch for the heads that both have."""

    @property
    def passes(self) -> bool:
        """Whether it passes together with a pull request that is honoured and not merged."""
        pair = self.pair
        return (
            self.status is GateStatus.PASSED and pair.state is DependencyState.OPEN and pair.refusal is None
        )

    @property
    def sentence(self) -> str:
        pair = self.pair
        return pair_sentence(
            pair.reference, pair.state, pair.refusal, self.status.value if self.status else None
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendJudgement:
    backend: BackendResults
    standing: GateStatus
    parts: tuple[JudgedPart, ...]
    since: datetime
    deadline: datetime | None
    recheck_at: datetime | None = None
    pairs: tuple[JudgedPair, ...] = ()

    @property
    def is_held_by_pair(self) -> bool:
        """Whether it fails alone, and waits for a pull request of its own that it passes with."""
        return self.standing is GateStatus.HELD and any(pair.passes for pair in self.pairs)

    @property
    def deciding_parts(self) -> tuple[JudgedPart, ...]:
        """The parts with the backend's own status, which decide it."""
        return tuple(part for part in self.parts if part.standing is self.standing)


def find_new_failures(judged: BackendJudgement) -> tuple[str, ...]:
    """Describe the jobs that block with a failure judged `new`; cancelled and superseded runs have none."""
    if judged.standing is not GateStatus.FAILED:
        return ()
    return tuple(
        f"new failure: {part.job.name}"
        for part in judged.deciding_parts
        if part.job is not None and part.job.verdict is not None and part.job.verdict.kind is VerdictKind.NEW
    )
