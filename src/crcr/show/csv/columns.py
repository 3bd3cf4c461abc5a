"""The columns of every CSV export, and the lines that a view becomes.

Columns have the names of the JSON fields, with a prefix for nested values; names stay, and new columns go to the end of
their group. Nested lists (dispatches, jobs, cells) become one line each.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from operator import attrgetter

from crcr.decide.statistics.figures import Durations, Figures, LastResult, LeftOut, Part, Tally
from crcr.decide.views.backend import BackendMetrics, JobFigures, LevelChange, MatrixRow
from crcr.decide.views.commit import CommitBackend, WaiverView
from crcr.decide.views.logs import AuditView, EffectView, Hit
from crcr.decide.views.overview import BackendSummary, DeliveryView, DispatchView, JobView, ListedBackend
from crcr.show.csv.writer import CsvRow, CsvTable
from crcr.show.render.safe_text import safe_link

_TALLY = ("success", "failure", "timed_out", "running", "other", "decided", "total", "pass_rate")
_NO_TALLY = (None,) * len(_TALLY)
_TIMES = ("known", "average_s", "p50_s", "p95_s")
_QUEUE, _EXECUTION = (tuple(f"{what}_{name}" for name in _TIMES) for what in ("queue", "execution"))
_LEFT_OUT = ("left_out_superseded", "left_out_earlier")
_LAST = ("last_result_state", "last_result_conclusion", "last_result_job_name", "last_result_at")
_FIGURES = (*_TALLY, *_LEFT_OUT, *_QUEUE, *_EXECUTION, "average_delay_s", *_LAST)

_tally: Callable[[Tally], CsvRow] = attrgetter(*_TALLY)
_times: Callable[[Durations], CsvRow] = attrgetter(*_TIMES)
_left_out: Callable[[LeftOut], CsvRow] = attrgetter("superseded", "earlier")
_last: Callable[[LastResult], CsvRow] = attrgetter("state", "conclusion", "job_name", "at")


def _figures(figures: Figures | None) -> CsvRow:
    if figures is None:
        return (None,) * len(_FIGURES)
    last = figures.last_result
    return (
        *_tally(figures.tally),
        *_left_out(figures.left_out),
        *_times(figures.queue),
        *_times(figures.execution),
        figures.average_delay_s,
        *(_last(last) if last else (None,) * len(_LAST)),
    )


_WHO = ("name", "level", "device", "hardware", "oncalls")
_STANDING = (
    *("name_only", "probe", "hidden", "suspended", "silent", "alarm"),
    *("sent", "waiting", "parked", "last_sent_at"),
)
_who: Callable[[BackendSummary | ListedBackend], CsvRow] = attrgetter("name", "level", "device", "hardware")
_standing: Callable[[BackendSummary], CsvRow] = attrgetter(*_STANDING)


def _backend(backend: BackendSummary) -> Iterator[CsvRow]:
    oncalls = " ".join(backend.oncalls)
    yield *_who(backend), oncalls, *_standing(backend), *_figures(backend.figures)


SUMMARY = CsvTable((*_WHO, *_STANDING, *_FIGURES), _backend)


@dataclass(frozen=True, slots=True)
class MeasuredBackend:
    """Whose numbers over time they are; without a backend those of all together."""

    figures: Figures
    backend: BackendMetrics | None
    until: datetime
    """When the last part ends."""


_METRICS = ("scope", "name", "level", "probe", "part", "at", "until")


def _measured(measured: MeasuredBackend) -> Iterator[CsvRow]:
    """First the whole window, then each of its parts."""
    backend, figures = measured.backend, measured.figures
    whose = (
        ("backend", backend.name, backend.level, backend.probe) if backend else ("total", None, None, None)
    )
    starts = [part.at for part in figures.parts]
    ends = [*starts[1:], measured.until]
    whole = (*_tally(figures.tally), *_times(figures.queue), *_times(figures.execution))
    since = starts[0] if starts else measured.until
    yield *whose, "whole", since, measured.until, *whole, figures.sent, figures.average_delay_s
    for place, (part, end) in enumerate(zip(figures.parts, ends, strict=True), start=1):
        yield *whose, place, part.at, end, *_part(part)


def _part(part: Part) -> CsvRow:
    times = (*_times(part.queue), *_times(part.execution))
    return *_tally(part.tally), *times, part.sent, part.average_delay_s


METRICS = CsvTable((*_METRICS, *_TALLY, *_QUEUE, *_EXECUTION, "sent", "average_delay_s"), _measured)

_JOB_AT_ALL = (
    *("delivery", "downstream", "event", "number", "head_sha"),
    *("workflow", "workflow_name", "job_name", "run_id", "attempt"),
)
_JOB_RESULT = (
    *("state", "conclusion", "expected", "counted", "ended", "disputed_conclusion"),
    *("started_at", "completed_at", "queue_s", "execution_s"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
    *("verification", "github_conclusion"),
)
_JOB = (*_JOB_AT_ALL, *_JOB_RESULT, "marks", "url", "artifact_url")
_job_at_all: Callable[[JobView], CsvRow] = attrgetter(*_JOB_AT_ALL)
_job_result: Callable[[JobView], CsvRow] = attrgetter(*_JOB_RESULT)
_IN_ROW = ("workflow", "workflow_name", "job_name", "run_id", "attempt")
_in_row: Callable[[JobView], CsvRow] = attrgetter(*_IN_ROW)
_CELL = (*_IN_ROW, *_JOB_RESULT, "marks", "url", "artifact_url")
_OF_JOB = tuple(name if name.startswith("job_") else f"job_{name}" for name in _CELL)


def _tail(job: JobView) -> CsvRow:
    return *_job_result(job), " ".join(job.marks), safe_link(job.url), safe_link(job.artifact_url)


def _jobs(job: JobView) -> Iterator[CsvRow]:
    yield *_job_at_all(job), *_tail(job)


def _cell(job: JobView | None) -> CsvRow:
    return (*_in_row(job), *_tail(job)) if job else (None,) * len(_CELL)


JOBS = CsvTable(_JOB, _jobs)

_DISPATCH = ("state", "reason", "unsure", "created_at", "sent_at", "superseded_at", "answer")
_DISPATCHED = tuple(f"dispatch_{name}" for name in _DISPATCH)
_dispatch: Callable[[DispatchView], CsvRow] = attrgetter(*_DISPATCH)
_ROW = (
    *("key", "event", "action", "number", "head_sha", "delivery", "at", "title", "author", "ref"),
    *("superseded", "test"),
)
_row: Callable[[MatrixRow], CsvRow] = attrgetter(*_ROW)
_PLACE = ("commit_standing", "commit_branch")


def _place(row: MatrixRow) -> CsvRow:
    return (row.place.standing, row.place.branch) if row.place else (None, None)


def _dispatched(dispatch: DispatchView | None) -> CsvRow:
    return _dispatch(dispatch) if dispatch else (None,) * len(_DISPATCHED)


def _matrix(row: MatrixRow) -> Iterator[CsvRow]:
    """A line for each job; an event without any has one line too."""
    head = (*_row(row), *_place(row), *_dispatched(row.dispatch))
    jobs: Sequence[JobView | None] = [cell for cell in row.cells if cell] or [None]
    for job in jobs:
        yield *head, *_cell(job)


MATRIX = CsvTable((*_ROW, *_PLACE, *_DISPATCHED, *_CELL), _matrix)


def _job_figures(job: JobFigures) -> Iterator[CsvRow]:
    column = job.column
    yield column.workflow, column.workflow_name, column.job_name, *_tally(job.tally), job.execution_s


JOB_FIGURES = CsvTable(("workflow", "workflow_name", "job_name", *_TALLY, "execution_s"), _job_figures)


def _level(change: LevelChange) -> Iterator[CsvRow]:
    yield change.at, change.level, change.version


LEVELS = CsvTable(("at", "level", "version"), _level)

_DELIVERY = (
    *("guid", "event", "action", "state", "reason", "source", "number", "head_sha", "ref"),
    *("received_at", "body_bytes"),
)
_delivery: Callable[[DeliveryView], CsvRow] = attrgetter(*_DELIVERY)
_TARGET = ("downstream", "level", "test")
_target: Callable[[DispatchView], CsvRow] = attrgetter(*_TARGET)


def _deliveries(delivery: DeliveryView) -> Iterator[CsvRow]:
    for dispatch in delivery.dispatches or (None,):
        yield *_delivery(delivery), *_to(dispatch)


def _with_jobs(delivery: DeliveryView) -> Iterator[CsvRow]:
    for dispatch in delivery.dispatches or (None,):
        for job in (dispatch.jobs if dispatch else ()) or (None,):
            yield *_delivery(delivery), *_to(dispatch), *_cell(job)


def _to(dispatch: DispatchView | None) -> CsvRow:
    target = _target(dispatch) if dispatch else (None,) * len(_TARGET)
    return *target, *_dispatched(dispatch)


DELIVERIES = CsvTable((*_DELIVERY, *_TARGET, *_DISPATCHED), _deliveries)
DELIVERY = CsvTable((*_DELIVERY, *_TARGET, *_DISPATCHED, *_OF_JOB), _with_jobs)

_EFFECT = (
    *("effect_id", "kind", "target", "delivery", "state", "attempts", "unsure"),
    *("created_at", "due_at", "finished_at", "last_error", "held_by", "fault", "fault_since"),
)
_effect: Callable[[EffectView], CsvRow] = attrgetter(*_EFFECT)
EFFECTS: CsvTable[EffectView] = CsvTable(_EFFECT, lambda effect: [_effect(effect)])


def _act(act: AuditView) -> Iterator[CsvRow]:
    detail = json.dumps(dict(act.detail), ensure_ascii=False, sort_keys=True) if act.detail else None
    yield act.audit_id, act.at, act.who, act.act, act.subject, detail


AUDIT = CsvTable(("audit_id", "at", "who", "act", "subject", "detail"), _act)

_WAIVER = (
    *("waiver_id", "number", "head_sha", "downstream", "job", "who", "reason", "state"),
    *("created_at", "until_at", "ended_at", "ended_by", "used_at"),
)
_waiver: Callable[[WaiverView], CsvRow] = attrgetter(*_WAIVER)
WAIVERS: CsvTable[WaiverView] = CsvTable(_WAIVER, lambda waiver: [_waiver(waiver)])

_HIT = ("kind", "title", "detail", "number", "head_sha", "delivery", "backend", "job", "at")
_hit: Callable[[Hit], CsvRow] = attrgetter(*_HIT)
HITS: CsvTable[Hit] = CsvTable(_HIT, lambda hit: [_hit(hit)])


def _listed(backend: ListedBackend) -> Iterator[CsvRow]:
    yield *_who(backend), " ".join(backend.oncalls), " ".join(backend.events), backend.hidden


ALLOWLIST = CsvTable((*_WHO, "events", "hidden"), _listed)

_CONCERNED = ("name", "level", "level_now", "device", "state")
_concerned: Callable[[CommitBackend], CsvRow] = attrgetter(*_CONCERNED)


def _of_commit(backend: CommitBackend) -> Iterator[CsvRow]:
    head = (*_concerned(backend), " ".join(backend.oncalls), *_dispatched(backend.dispatch))
    for job in backend.jobs or (None,):
        yield *head, *_cell(job)


OF_COMMIT = CsvTable(
    (*_CONCERNED, "oncalls", *_DISPATCHED, *_OF_JOB),
    _of_commit,
)
