"""The standing of a backend by its evaluations: a state machine as a table, and what follows from a standing.

A standing changes only after two evaluations that are a day apart and agree, and at the earliest `DWELL` after its last change,
except by silence. Between the thresholds to come and to leave nothing moves. So figures that vary around a threshold do not
make a backend come and go.

What follows is decided here and nowhere else: a failing L3 is in silent mode (no checks), a failing L4 is alarmed, and with
`l4_downgrade` it is recorded at L3 for heads that arrive afterwards. A head that was recorded with it as a member of its gate
keeps it: silence opens no gate.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from crcr.decide.levels.criteria import (
    CriterionName,
    CriterionResult,
    Evaluation,
    LevelCriteria,
    Met,
    Observation,
)
from crcr.decide.model import Level, RepoName

EVALUATE_EVERY = timedelta(days=1)
APART = timedelta(hours=23)
"""Two evaluations that confirm each other are at least this far apart: a daily run may be a little early."""
DWELL = timedelta(days=14)
"""A standing lasts at least this long, unless the backend goes silent."""


MOST_OVERRIDE = timedelta(days=90)
"""For how long a maintainer can switch a demotion off."""


class LevelStanding(StrEnum):
    HOLDS = "holds"
    """It fulfils L3: at L2 it is eligible, at L3 and L4 all is well."""
    DOUBTED = "doubted"
    """It fulfilled L3, and the last evaluation says that it does not."""
    FAILS = "fails"
    """It does not fulfil L3: at L3 it is demoted, at L4 alarmed."""
    RECOVERING = "recovering"
    """It did not fulfil L3, and the last evaluation says that it does."""

    @property
    def in_order(self) -> bool:
        return self in {LevelStanding.HOLDS, LevelStanding.DOUBTED}


@dataclass(frozen=True, slots=True)
class Move:
    to: LevelStanding
    needs_confirmation: bool = False
    """Only when the present standing began at least `APART` ago."""


TRANSITIONS: Mapping[tuple[LevelStanding, Observation], Move] = {
    (LevelStanding.HOLDS, Observation.MEETS): Move(LevelStanding.HOLDS),
    (LevelStanding.HOLDS, Observation.BETWEEN): Move(LevelStanding.HOLDS),
    (LevelStanding.HOLDS, Observation.BREAKS): Move(LevelStanding.DOUBTED),
    (LevelStanding.DOUBTED, Observation.MEETS): Move(LevelStanding.HOLDS),
    (LevelStanding.DOUBTED, Observation.BETWEEN): Move(LevelStanding.HOLDS),
    (LevelStanding.DOUBTED, Observation.BREAKS): Move(LevelStanding.FAILS, needs_confirmation=True),
    (LevelStanding.FAILS, Observation.MEETS): Move(LevelStanding.RECOVERING),
    (LevelStanding.FAILS, Observation.BETWEEN): Move(LevelStanding.FAILS),
    (LevelStanding.FAILS, Observation.BREAKS): Move(LevelStanding.FAILS),
    (LevelStanding.RECOVERING, Observation.MEETS): Move(LevelStanding.HOLDS, needs_confirmation=True),
    (LevelStanding.RECOVERING, Observation.BETWEEN): Move(LevelStanding.FAILS),
    (LevelStanding.RECOVERING, Observation.BREAKS): Move(LevelStanding.FAILS),
}


class LevelChangeKind(StrEnum):
    ELIGIBLE = "eligible"
    NOT_ELIGIBLE = "not_eligible"
    DEMOTED = "demoted"
    ALARMED = "alarmed"
    RECOVERED = "recovered"


_CHANGES: Mapping[tuple[Level, bool], LevelChangeKind] = {
    (Level.L2, True): LevelChangeKind.ELIGIBLE,
    (Level.L2, False): LevelChangeKind.NOT_ELIGIBLE,
    (Level.L3, True): LevelChangeKind.RECOVERED,
    (Level.L3, False): LevelChangeKind.DEMOTED,
    (Level.L4, True): LevelChangeKind.RECOVERED,
    (Level.L4, False): LevelChangeKind.ALARMED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendStanding:
    """What is recorded about one backend."""

    level: Level
    standing: LevelStanding
    since: datetime
    """When the standing began."""
    changed_at: datetime | None = None
    """When it last came into or out of order; None before that happened at its present level."""
    evaluated_at: datetime
    met_since: Mapping[CriterionName, datetime]
    """Since which evaluation each criterion is met without a break."""
    reason: str | None = None
    """Why it last came into or out of order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingChange:
    """A change to announce: `before` and `after` are the levels that the backend behaves as, or deserves."""

    kind: LevelChangeKind
    before: Level
    after: Level
    reason: str


def begin_standing(level: Level, now: datetime) -> BackendStanding:
    """Return the standing of a backend that was not evaluated at this level before: one at L3 has to lose it first."""
    standing = LevelStanding.FAILS if level < Level.L3 else LevelStanding.HOLDS
    return BackendStanding(level=level, standing=standing, since=now, evaluated_at=now, met_since={})


def follow_evaluation(
    known: BackendStanding | None, level: Level, evaluation: Evaluation, now: datetime
) -> tuple[BackendStanding, StandingChange | None]:
    """Return the standing after an evaluation, and the change that it makes. A level of its own begins anew."""
    if known is None or known.level is not level:
        known = begin_standing(level, now)
    after = _next_standing(known, evaluation, now)
    turned = after.in_order is not known.standing.in_order
    change = _describe_change(level, after, evaluation) if turned else None
    met = {result.name for result in evaluation.results if result.met is Met.MET}
    new = replace(
        known,
        standing=after,
        since=now if after is not known.standing else known.since,
        changed_at=now if turned else known.changed_at,
        evaluated_at=now,
        met_since={name: known.met_since.get(name, now) for name in sorted(met)},
        reason=change.reason if change else known.reason,
    )
    return new, change


def _next_standing(known: BackendStanding, evaluation: Evaluation, now: datetime) -> LevelStanding:
    move = TRANSITIONS[known.standing, evaluation.observation]
    if not move.needs_confirmation:
        return move.to
    if now - known.since < APART:
        return known.standing
    dwells = known.changed_at is not None and now - known.changed_at < DWELL
    return known.standing if dwells and not evaluation.silent else move.to


def _describe_change(level: Level, after: LevelStanding, evaluation: Evaluation) -> StandingChange:
    up, down = (Level.L3, Level.L2) if level < Level.L4 else (Level.L4, Level.L3)
    before, now = (down, up) if after.in_order else (up, down)
    reason = "every criterion is met" if after.in_order else describe_broken(evaluation.broken)
    return StandingChange(kind=_CHANGES[level, after.in_order], before=before, after=now, reason=reason)


def describe_broken(broken: Iterable[CriterionResult]) -> str:
    return "; ".join(f"{result.title}: {result.leave_measured} ({result.leaves})" for result in broken)


# What follows from a standing


@dataclass(frozen=True, slots=True)
class LevelPolicy:
    """An upstream's settings for levels."""

    criteria: LevelCriteria = field(default_factory=LevelCriteria)
    silent_mode: bool = True
    """Whether a demotion of an L3 is applied at once."""
    l4_downgrade: bool = False
    """Whether an alarmed L4 is recorded at L3 for heads that arrive afterwards."""


class Demotion(StrEnum):
    """What a demotion in force does."""

    SILENT = "silent"
    """An L3 without checks; dispatches and results go on."""
    ALARMED = "alarmed"
    """An L4 that should be demoted; it gates as before."""
    DOWNGRADED = "downgraded"
    """An L4 that is recorded at L3 for heads that arrive from now on."""


def demotion_in_force(
    level: Level, standing: LevelStanding, policy: LevelPolicy, *, overridden: bool
) -> Demotion | None:
    """Return what a standing does to a backend that is listed at this level. A maintainer's override ends its effect."""
    if standing.in_order or level < Level.L3:
        return None
    if level is Level.L4:
        return Demotion.DOWNGRADED if policy.l4_downgrade and not overridden else Demotion.ALARMED
    return Demotion.SILENT if policy.silent_mode and not overridden else None


def released_from_gate(demotions: Mapping[str, Demotion], gated: Collection[str]) -> frozenset[str]:
    """Return the keys of L4 backends that do not gate a head that arrives now.

    `gated` are those that a delivery of this very head was recorded with at L4 before: they stay members of its gate.
    """
    downgraded = {key for key, demotion in demotions.items() if demotion is Demotion.DOWNGRADED}
    return frozenset(downgraded.difference(gated))


# The view of it


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelOverride:
    """A maintainer's decision that a demotion has no effect for a while."""

    who: str
    reason: str
    until: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChange:
    at: datetime
    downstream: RepoName
    kind: LevelChangeKind
    before: Level
    after: Level
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedDay:
    """The last evaluation of one day, for the strip."""

    at: datetime
    level: Level
    standing: LevelStanding
    observation: Observation


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionView:
    name: CriterionName
    title: str
    target: str
    measured: str
    value: float | None
    met: Met
    met_since: datetime | None = None
    leaves: str | None = None
    leave_measured: str | None = None
    broken: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendLevel:
    """One backend on the page of levels: its level, standing and figures, as of its last evaluation."""

    name: RepoName
    level: Level
    oncalls: tuple[str, ...] = ()
    probe: bool = False
    """It tests the relay itself."""
    level_since: datetime | None = None
    standing: LevelStanding | None = None
    """None before the first evaluation at its present level, and where there is none: at L1, and for probes."""
    since: datetime | None = None
    """When the standing came into or out of order, or began."""
    demotion: Demotion | None = None
    """The demotion in force."""
    reason: str | None = None
    """Why it is demoted, alarmed or doubted."""
    override: LevelOverride | None = None
    evaluated_at: datetime | None = None
    criteria: tuple[CriterionView, ...] = ()
    left_out: int = 0
    """Failures of the window to come to L3 that the upstream caused."""
    waivers: int = 0
    """Waivers of it in that window."""
    days: tuple[EvaluatedDay, ...] = ()

    @property
    def eligible(self) -> bool:
        return self.level is Level.L2 and self.standing is not None and self.standing.in_order

    @property
    def next_level(self) -> Level | None:
        return Level(self.level + 1) if self.level < Level.L4 else None

    @property
    def proposed_level(self) -> Level | None:
        """The level that its standing proposes; None where it stays. L4 is never proposed: it is a person's decision."""
        if self.eligible:
            return Level.L3
        if self.level >= Level.L3 and self.standing is not None and not self.standing.in_order:
            return Level(self.level - 1)
        return None

    @property
    def lacking(self) -> tuple[str, ...]:
        """What it lacks for L3, as titles with target and figure. From L3 on, too few results lack nothing."""
        lacking = [
            f"{one.title} {one.target}: {one.measured}" for one in self.criteria if one.met is Met.NOT_MET
        ]
        few = [one.title for one in self.criteria if one.met is Met.TOO_FEW]
        if few and self.level < Level.L3:
            lacking.append(f"too few results to say: {', '.join(few)}")
        return tuple(lacking)

    @property
    def summary(self) -> str:
        """One sentence about its standing."""
        return SUMMARIES[self.summary_key]

    @property
    def summary_key(self) -> str:
        if self.demotion is not None:
            return self.demotion.value
        if self.standing is None:
            return "l1" if self.level < Level.L2 else "probe" if self.probe else "unevaluated"
        if self.level < Level.L3:
            return "eligible" if self.eligible else "lacks"
        return "in order" if self.standing.in_order else "overridden"


SUMMARIES = {
    "silent": "in silent mode: dispatched and shown here, without checks on pull requests",
    "alarmed": "alarmed: it gates as before, and should be demoted",
    "downgraded": "downgraded: it does not gate heads that arrive from now on",
    "overridden": "fails the criteria of L3; its demotion is switched off",
    "unevaluated": "not evaluated yet",
    "probe": "a probe of the relay: it has no standing",
    "l1": "its results are not recorded: L2 is a decision in the allowlist",
    "eligible": "eligible for L3",
    "lacks": "does not meet every criterion of L3 yet",
    "in order": "meets what its level needs",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelsView:
    upstream: RepoName
    at: datetime
    cursor: int
    silent_mode: bool
    l4_downgrade: bool
    evaluated_at: datetime | None
    """The last evaluation of any backend."""
    window_days: int
    leave_window_days: int
    jobs: int
    backends: tuple[BackendLevel, ...]
    changes: tuple[RecordedChange, ...] = ()
    """The newest first."""

    @property
    def demoted(self) -> tuple[BackendLevel, ...]:
        return tuple(backend for backend in self.backends if backend.demotion is not None)

    @property
    def eligible(self) -> tuple[BackendLevel, ...]:
        return tuple(backend for backend in self.backends if backend.eligible)
