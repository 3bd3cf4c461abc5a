"""The criteria of L3 as a table of values, and their evaluation: from measured figures to met, not met or too few.

Each criterion has a threshold to come to L3 and, where one exists, a weaker one to leave it. Between the two nothing moves.
The figures are those of pull requests over the windows of the pages, so that every page shows the same numbers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from enum import StrEnum

from crcr.decide.model import Level
from crcr.decide.number_format import format_percent
from crcr.decide.statistics.window import Span

UNANSWERED_FOR_SILENCE = 3
"""So many dispatches without any report make a silence: a single lost one does not."""


class CriterionName(StrEnum):
    TIME_AT_L2 = "time_at_l2"
    RUN_TIME = "run_time"
    LONG_JOBS = "long_jobs"
    QUEUE_TIME = "queue_time"
    TIMEOUTS = "timeouts"
    PASS_RATE = "pass_rate"  # noqa: S105  no password
    ANSWERED = "answered"
    SILENCE = "silence"


class CriterionUnit(StrEnum):
    DAYS = "days"
    HOURS = "h"
    MINUTES = "min"
    PERCENT = "%"


class Bound(StrEnum):
    """Which side of a threshold is good."""

    BELOW = "<"
    AT_LEAST = "≥"

    def accepts(self, value: float, threshold: float) -> bool:
        return value < threshold if self is Bound.BELOW else value >= threshold


@dataclass(frozen=True, slots=True)
class Criterion:
    """One row of the table; `up` and `down` are fields of `LevelCriteria`."""

    name: CriterionName
    title: str
    unit: CriterionUnit
    good: Bound
    up: str
    down: str | None = None
    counted: str | None = None
    """What the figure is of; with fewer than `LevelCriteria.jobs` of them it says nothing. None where any number will do."""
    long_limit: str | None = None
    """The field that the title names with `{limit}`."""


CRITERIA: tuple[Criterion, ...] = (
    Criterion(CriterionName.TIME_AT_L2, "time at L2", CriterionUnit.DAYS, Bound.AT_LEAST, "l2_days"),
    Criterion(
        CriterionName.RUN_TIME,
        "end-to-end time of a run, P50",
        CriterionUnit.HOURS,
        Bound.BELOW,
        *("run_hours", "leave_run_hours", "runs"),
    ),
    Criterion(
        CriterionName.LONG_JOBS,
        "jobs over {limit:g} h, timeouts left out",
        CriterionUnit.PERCENT,
        Bound.BELOW,
        *("long_job_percent", None, "jobs", "long_job_hours"),
    ),
    Criterion(
        CriterionName.QUEUE_TIME,
        "average queue time",
        CriterionUnit.MINUTES,
        Bound.BELOW,
        *("queue_minutes", None, "jobs"),
    ),
    Criterion(
        CriterionName.TIMEOUTS,
        "timeouts",
        CriterionUnit.PERCENT,
        Bound.BELOW,
        *("timeout_percent", "leave_timeout_percent", "jobs"),
    ),
    Criterion(
        CriterionName.PASS_RATE,
        "jobs passed",
        CriterionUnit.PERCENT,
        Bound.AT_LEAST,
        *("pass_percent", "leave_pass_percent", "jobs"),
    ),
    Criterion(
        CriterionName.ANSWERED,
        "dispatches answered within {limit:g} h",
        CriterionUnit.PERCENT,
        Bound.AT_LEAST,
        *("answered_percent", "leave_answered_percent", "dispatches", "answer_hours"),
    ),
    Criterion(
        CriterionName.SILENCE,
        "silent while events flowed",
        CriterionUnit.HOURS,
        Bound.BELOW,
        *("silent_hours", "leave_silent_hours"),
    ),
)
CRITERION = {criterion.name: criterion for criterion in CRITERIA}


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelCriteria:
    """The values of the table, which an upstream can change; `leave_` is the threshold to leave L3."""

    window_days: int = 14
    leave_window_days: int = 7
    jobs: int = 50
    """At least so many in a window."""
    l2_days: float = 30
    run_hours: float = 3
    leave_run_hours: float = 3
    long_job_percent: float = 1
    long_job_hours: float = 3
    queue_minutes: float = 30
    timeout_percent: float = 1
    leave_timeout_percent: float = 2
    pass_percent: float = 90
    leave_pass_percent: float = 85
    answered_percent: float = 98
    leave_answered_percent: float = 95
    answer_hours: float = 3
    silent_hours: float = 36
    leave_silent_hours: float = 72

    def find_problems(self) -> Iterator[str]:
        """Yield what is wrong, as texts that follow the setting's name."""
        for name in ("window_days", "leave_window_days"):
            if getattr(self, name) not in WINDOWS:
                yield f"{name} must be one of {', '.join(map(str, WINDOWS))}: the pages show these ranges"
        for field in fields(self):
            if getattr(self, field.name) < 0:
                yield f"{field.name} must not be negative"
        for criterion in CRITERIA:
            if criterion.down is None:
                continue
            up, down = getattr(self, criterion.up), getattr(self, criterion.down)
            if criterion.good.accepts(down, up) and down != up:
                yield f"{criterion.down} must not be stricter than {criterion.up}: a backend would come and go"

    @property
    def window(self) -> Span:
        return WINDOWS[self.window_days]

    @property
    def leave_window(self) -> Span:
        return WINDOWS[self.leave_window_days]


WINDOWS = {7: Span.WEEK, 14: Span.FORTNIGHT, 30: Span.MONTH, 90: Span.QUARTER}


@dataclass(frozen=True, slots=True)
class Measure:
    """A measured figure, in the unit of its criterion, and the number of things that it is of."""

    value: float | None = None
    counted: int = 0


Measures = Mapping[CriterionName, Measure]


class Met(StrEnum):
    MET = "met"
    NOT_MET = "not met"
    TOO_FEW = "too few"
    """Not enough results to say so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CriterionResult:
    """One criterion of one evaluation: the figures of both windows beside their thresholds."""

    name: CriterionName
    title: str
    target: str
    value: float | None
    measured: str
    counted: int
    met: Met
    leaves: str | None = None
    """The threshold to leave L3, as text; None where there is none."""
    leave_value: float | None = None
    leave_measured: str | None = None
    broken: bool = False
    """The figure is beyond the threshold to leave L3."""


class Observation(StrEnum):
    """What one evaluation says as a whole."""

    MEETS = "meets"
    """Every criterion to come to L3 is met."""
    BETWEEN = "between"
    BREAKS = "breaks"
    """A criterion to stay at L3 is broken."""


@dataclass(frozen=True, slots=True)
class Evaluation:
    results: tuple[CriterionResult, ...]
    observation: Observation
    silent: bool = False
    """It breaks by silence, which is a fact and no rate."""

    @property
    def lacking(self) -> tuple[CriterionResult, ...]:
        return tuple(result for result in self.results if result.met is not Met.MET)

    @property
    def broken(self) -> tuple[CriterionResult, ...]:
        return tuple(result for result in self.results if result.broken)


def evaluate(level: Level, arriving: Measures, leaving: Measures, criteria: LevelCriteria) -> Evaluation:
    """Evaluate the criteria: `arriving` has the figures of the window to come to L3, `leaving` of that to leave it.

    A backend below L3 must show every figure. For one at L3 or above, figures of too few results count neither for nor
    against it: it could not recover where events are few. The time at L2 matters below L3 only.
    """
    results = tuple(
        _evaluate_one(criterion, arriving, leaving, criteria)
        for criterion in CRITERIA
        if level < Level.L3 or criterion.name is not CriterionName.TIME_AT_L2
    )
    if any(result.broken for result in results):
        silent = any(result.broken for result in results if result.name is CriterionName.SILENCE)
        return Evaluation(results, Observation.BREAKS, silent)
    tolerated = {Met.MET} if level < Level.L3 else {Met.MET, Met.TOO_FEW}
    meets = all(result.met in tolerated for result in results)
    return Evaluation(results, Observation.MEETS if meets else Observation.BETWEEN)


_NOTHING = Measure()


def _evaluate_one(
    criterion: Criterion, arriving: Measures, leaving: Measures, criteria: LevelCriteria
) -> CriterionResult:
    measure, leave = arriving.get(criterion.name, _NOTHING), leaving.get(criterion.name, _NOTHING)
    up = getattr(criteria, criterion.up)
    down = getattr(criteria, criterion.down) if criterion.down else None
    limit = getattr(criteria, criterion.long_limit) if criterion.long_limit else 0
    return CriterionResult(
        name=criterion.name,
        title=criterion.title.format(limit=limit),
        target=f"{criterion.good} {_threshold_text(up, criterion.unit)}",
        value=measure.value,
        measured=_measured_text(criterion, measure),
        counted=measure.counted,
        met=_judge(criterion, measure, up, criteria),
        leaves=None
        if down is None
        else f"{_OPPOSITE[criterion.good]} {_threshold_text(down, criterion.unit)}",
        leave_value=None if down is None else leave.value,
        leave_measured=None if down is None else _measured_text(criterion, leave),
        broken=down is not None and _is_broken(criterion, leave, down, criteria),
    )


_OPPOSITE = {Bound.BELOW: "≥", Bound.AT_LEAST: "<"}


def _is_sufficient(criterion: Criterion, measure: Measure, criteria: LevelCriteria) -> bool:
    return criterion.counted is None or measure.counted >= criteria.jobs


def _judge(criterion: Criterion, measure: Measure, threshold: float, criteria: LevelCriteria) -> Met:
    if measure.value is None or not _is_sufficient(criterion, measure, criteria):
        return Met.TOO_FEW
    return Met.MET if criterion.good.accepts(measure.value, threshold) else Met.NOT_MET


def _is_broken(criterion: Criterion, measure: Measure, threshold: float, criteria: LevelCriteria) -> bool:
    if measure.value is None or criterion.good.accepts(measure.value, threshold):
        return False
    if criterion.name is CriterionName.SILENCE:
        return measure.counted >= UNANSWERED_FOR_SILENCE
    return _is_sufficient(criterion, measure, criteria)


def _threshold_text(value: float, unit: CriterionUnit) -> str:
    return f"{value:g}%" if unit is CriterionUnit.PERCENT else f"{value:g} {unit}"


def _figure_text(value: float, unit: CriterionUnit) -> str:
    """Write a figure with one decimal, cut and not rounded: 89.996% is not 90%."""
    if unit is CriterionUnit.PERCENT:
        return format_percent(value / 100)
    return f"{int(value * 10) / 10:,.1f}".removesuffix(".0") + f" {unit}"


def _measured_text(criterion: Criterion, measure: Measure) -> str:
    if measure.value is None:
        return "nothing measured"
    text = _figure_text(measure.value, criterion.unit)
    return text if criterion.counted is None else f"{text} of {measure.counted:,} {criterion.counted}"


def median_from_slots(slots: Mapping[int, int], width: float) -> float | None:
    """Return the median of durations that are counted in slots of equal width, interpolated within its slot."""
    total = sum(slots.values())
    below = 0
    for slot in sorted(slots):
        if slots[slot] and below + slots[slot] >= total / 2:
            return (slot + (total / 2 - below) / slots[slot]) * width
        below += slots[slot]
    return None


def share_over(slots: Mapping[int, int], width: float, limit: float) -> float | None:
    """Return the share of the durations that are longer than the limit, interpolated where it divides a slot."""
    total = sum(slots.values())
    over = 0.0
    for slot, number in slots.items():
        low, high = slot * width, (slot + 1) * width
        over += number * min(max((high - limit) / (high - low), 0.0), 1.0)
    return over / total if total else None
