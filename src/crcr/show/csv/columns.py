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
from crcr.decide.views.failing import FailingJob
from crcr.decide.views.grids import BackendCell, CommitLine, InTreeCell, PullLine
from crcr.decide.views.logs import AuditView, EffectView, NoticeMessageView, NoticeView
from crcr.decide.views.overview import BackendSummary, DeliveryView, DispatchView, JobView, ListedBackend
from crcr.decide.views.search import Hit
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


def _figures_cells(figures: Figures | None) -> CsvRow:
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


_IDENTITY = ("name", "level", "device", "hardware", "oncalls")
_STATUS = (
    *("name_only", "probe", "hidden", "suspended", "silent", "alarm"),
    *("sent", "waiting", "parked", "last_sent_at", "demotion"),
)
_identity: Callable[[BackendSummary | ListedBackend], CsvRow] = attrgetter(
    "name", "level", "device", "hardware"
)
_status: Callable[[BackendSummary], CsvRow] = attrgetter(*_STATUS)


def _backend_rows(backend: BackendSummary) -> Iterator[CsvRow]:
    oncalls = " ".join(backend.oncalls)
    yield *_identity(backend), oncalls, *_status(backend), *_figures_cells(backend.figures)


SUMMARY = CsvTable((*_IDENTITY, *_STATUS, *_FIGURES), _backend_rows)


@dataclass(frozen=True, slots=True)
class MeasuredBackend:
    """The numbers over time of one backend, or of all together if `backend` is None."""

    figures: Figures
    backend: BackendMetrics | None
    until: datetime
    """When the last part ends."""


_METRICS = ("scope", "name", "level", "probe", "part", "at", "until")


def _measured_rows(measured: MeasuredBackend) -> Iterator[CsvRow]:
    """First the whole window, then each of its parts."""
    backend, figures = measured.backend, measured.figures
    identity = (
        ("backend", backend.name, backend.level, backend.probe) if backend else ("total", None, None, None)
    )
    starts = [part.at for part in figures.parts]
    ends = [*starts[1:], measured.until]
    sums = (*_tally(figures.tally), *_times(figures.queue), *_times(figures.execution))
    since = starts[0] if starts else measured.until
    yield *identity, "whole", since, measured.until, *sums, figures.sent, figures.average_delay_s
    for number, (part, end) in enumerate(zip(figures.parts, ends, strict=True), start=1):
        yield *identity, number, part.at, end, *_part_cells(part)


def _part_cells(part: Part) -> CsvRow:
    times = (*_times(part.queue), *_times(part.execution))
    return *_tally(part.tally), *times, part.sent, part.average_delay_s


METRICS = CsvTable((*_METRICS, *_TALLY, *_QUEUE, *_EXECUTION, "sent", "average_delay_s"), _measured_rows)

_JOB_IDENTITY = (
    *("delivery", "downstream", "event", "number", "head_sha"),
    *("workflow", "workflow_name", "job_name", "run_id", "attempt"),
)
_JOB_RESULT = (
    *("state", "conclusion", "expected", "counted", "ended", "disputed_conclusion"),
    *("started_at", "completed_at", "queue_s", "execution_s"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
    *("verification", "github_conclusion"),
)
_VERDICT = ("verdict_kind", "verdict_confidence", "verdict_sentence")
_JOB = (*_JOB_IDENTITY, *_JOB_RESULT, "marks", "url", "artifact_url", *_VERDICT)
_job_identity: Callable[[JobView], CsvRow] = attrgetter(*_JOB_IDENTITY)
_job_result: Callable[[JobView], CsvRow] = attrgetter(*_JOB_RESULT)
_JOB_IN_ROW = ("workflow", "workflow_name", "job_name", "run_id", "attempt")
_job_in_row: Callable[[JobView], CsvRow] = attrgetter(*_JOB_IN_ROW)
_CELL = (*_JOB_IN_ROW, *_JOB_RESULT, "marks", "url", "artifact_url")
_JOB_COLUMNS = tuple(name if name.startswith("job_") else f"job_{name}" for name in _CELL)


def _result_cells(job: JobView) -> CsvRow:
    return *_job_result(job), " ".join(job.marks), safe_link(job.url), safe_link(job.artifact_url)


def _job_rows(job: JobView) -> Iterator[CsvRow]:
    yield *_job_identity(job), *_result_cells(job), *_verdict_cells(job)


def _verdict_cells(job: JobView | None) -> CsvRow:
    verdict = job.verdict if job else None
    return (verdict.kind, verdict.confidence, verdict.sentence) if verdict else (None,) * len(_VERDICT)


def _job_cells(job: JobView | None) -> CsvRow:
    return (*_job_in_row(job), *_result_cells(job)) if job else (None,) * len(_CELL)


JOBS = CsvTable(_JOB, _job_rows)

_DISPATCH = ("state", "reason", "unsure", "created_at", "sent_at", "superseded_at", "answer")
_DISPATCHED = tuple(f"dispatch_{name}" for name in _DISPATCH)
_dispatch_fields: Callable[[DispatchView], CsvRow] = attrgetter(*_DISPATCH)
_ROW = (
    *("key", "event", "action", "number", "head_sha", "delivery", "at", "title", "author", "ref"),
    *("superseded", "test"),
)
_row: Callable[[MatrixRow], CsvRow] = attrgetter(*_ROW)
_PLACE = ("commit_standing", "commit_branch")


def _place_cells(row: MatrixRow) -> CsvRow:
    return (row.place.standing, row.place.branch) if row.place else (None, None)


def _dispatch_cells(dispatch: DispatchView | None) -> CsvRow:
    return _dispatch_fields(dispatch) if dispatch else (None,) * len(_DISPATCHED)


def _matrix_rows(row: MatrixRow) -> Iterator[CsvRow]:
    """A line for each job; an event without any has one line too."""
    head = (*_row(row), *_place_cells(row), *_dispatch_cells(row.dispatch))
    jobs: Sequence[JobView | None] = [cell for cell in row.cells if isinstance(cell, JobView)] or [None]
    for job in jobs:
        yield *head, *_job_cells(job)


MATRIX = CsvTable((*_ROW, *_PLACE, *_DISPATCHED, *_CELL), _matrix_rows)


def _job_figures_rows(job: JobFigures) -> Iterator[CsvRow]:
    column = job.column
    yield column.workflow, column.workflow_name, column.job_name, *_tally(job.tally), job.execution_s


JOB_FIGURES = CsvTable(("workflow", "workflow_name", "job_name", *_TALLY, "execution_s"), _job_figures_rows)


def _level_rows(change: LevelChange) -> Iterator[CsvRow]:
    yield change.at, change.level, change.version


LEVELS = CsvTable(("at", "level", "version"), _level_rows)

_DELIVERY = (
    *("guid", "event", "action", "state", "reason", "source", "number", "head_sha", "ref"),
    *("received_at", "body_bytes"),
)
_delivery: Callable[[DeliveryView], CsvRow] = attrgetter(*_DELIVERY)
_TARGET = ("downstream", "level", "test")
_target: Callable[[DispatchView], CsvRow] = attrgetter(*_TARGET)


def _deliveries_rows(delivery: DeliveryView) -> Iterator[CsvRow]:
    for dispatch in delivery.dispatches or (None,):
        yield *_delivery(delivery), *_target_cells(dispatch)


def _delivery_rows(delivery: DeliveryView) -> Iterator[CsvRow]:
    for dispatch in delivery.dispatches or (None,):
        for job in (dispatch.jobs if dispatch else ()) or (None,):
            yield *_delivery(delivery), *_target_cells(dispatch), *_job_cells(job)


def _target_cells(dispatch: DispatchView | None) -> CsvRow:
    target = _target(dispatch) if dispatch else (None,) * len(_TARGET)
    return *target, *_dispatch_cells(dispatch)


DELIVERIES = CsvTable((*_DELIVERY, *_TARGET, *_DISPATCHED), _deliveries_rows)
DELIVERY = CsvTable((*_DELIVERY, *_TARGET, *_DISPATCHED, *_JOB_COLUMNS), _delivery_rows)

_EFFECT = (
    *("effect_id", "kind", "target", "delivery", "state", "attempts", "unsure"),
    *("created_at", "due_at", "finished_at", "last_error", "held_by", "fault", "fault_since"),
)
_effect: Callable[[EffectView], CsvRow] = attrgetter(*_EFFECT)
EFFECTS: CsvTable[EffectView] = CsvTable(_EFFECT, lambda effect: [_effect(effect)])


def _audit_rows(act: AuditView) -> Iterator[CsvRow]:
    detail = json.dumps(dict(act.detail), ensure_ascii=False, sort_keys=True) if act.detail else None
    yield act.audit_id, act.at, act.who, act.act, act.subject, detail


AUDIT = CsvTable(("audit_id", "at", "who", "act", "subject", "detail"), _audit_rows)

_NOTICE = (
    *("event_id", "thread_id", "topic", "kind", "change", "at", "backend", "number", "summary"),
    *("thread_open", "opened_at", "closed_at"),
)
_MESSAGE = ("kind", "state", "due_at", "finished_at", "note", "channel", "destination", "address", "reason")
_notice: Callable[[NoticeView], CsvRow] = attrgetter(*_NOTICE)
_message: Callable[[NoticeMessageView], CsvRow] = attrgetter(*_MESSAGE)


def _notice_rows(notice: NoticeView) -> Iterator[CsvRow]:
    """A line for each message, or one without any."""
    details = "; ".join(notice.details) or None
    for message in notice.messages:
        yield (*_notice(notice), details, *_message(message))
    if not notice.messages:
        yield (*_notice(notice), details, *(None,) * len(_MESSAGE))


NOTICES = CsvTable((*_NOTICE, "details", *(f"message_{name}" for name in _MESSAGE)), _notice_rows)

_WAIVER = (
    *("waiver_id", "number", "head_sha", "downstream", "job", "who", "reason", "state"),
    *("created_at", "until_at", "ended_at", "ended_by", "used_at"),
)
_waiver: Callable[[WaiverView], CsvRow] = attrgetter(*_WAIVER)
WAIVERS: CsvTable[WaiverView] = CsvTable(_WAIVER, lambda waiver: [_waiver(waiver)])

_FAILING = (
    "backend",
    "workflow",
    "job",
    "since",
    "failures_in_a_row",
    "first_bad",
    "last_good",
    "fingerprint",
)
_KNOWN = ("url", "state", "by", "until")
_FAILING_MORE = ("sample", "last_bad", "last_failed_at")
_failing: Callable[[FailingJob], CsvRow] = attrgetter(*_FAILING)
_failing_more: Callable[[FailingJob], CsvRow] = attrgetter(*_FAILING_MORE)


def _failing_rows(job: FailingJob) -> Iterator[CsvRow]:
    known = job.known
    issue = (safe_link(known.url), known.state, known.by, known.until) if known else (None,) * len(_KNOWN)
    yield *_failing(job), " ".join(job.oncalls), *issue, *_failing_more(job)


FAILING = CsvTable(
    (*_FAILING, "oncalls", *(f"known_{name}" for name in _KNOWN), *_FAILING_MORE), _failing_rows
)

_HIT = ("kind", "title", "detail", "number", "head_sha", "delivery", "backend", "job", "at")
_HIT_STATUS = ("state", "gate", "level", "result", "fingerprint", "count", "known")
_hit: Callable[[Hit], CsvRow] = attrgetter(*_HIT, *_HIT_STATUS)


def _hit_rows(hit: Hit) -> Iterator[CsvRow]:
    yield *_hit(hit), " ".join(map(str, hit.backends))


HITS: CsvTable[Hit] = CsvTable((*_HIT, *_HIT_STATUS, "backends"), _hit_rows)


def _listed_rows(backend: ListedBackend) -> Iterator[CsvRow]:
    yield *_identity(backend), " ".join(backend.oncalls), " ".join(backend.events), backend.hidden


ALLOWLIST = CsvTable((*_IDENTITY, "events", "hidden"), _listed_rows)

_COMMIT_BACKEND = ("name", "level", "level_now", "device", "state")
_commit_backend: Callable[[CommitBackend], CsvRow] = attrgetter(*_COMMIT_BACKEND)


def _commit_backend_rows(backend: CommitBackend) -> Iterator[CsvRow]:
    head = (*_commit_backend(backend), " ".join(backend.oncalls), *_dispatch_cells(backend.dispatch))
    for job in backend.jobs or (None,):
        yield *head, *_job_cells(job), *_verdict_cells(job)


COMMIT_BACKENDS = CsvTable(
    (*_COMMIT_BACKEND, "oncalls", *_DISPATCHED, *_JOB_COLUMNS, *_VERDICT),
    _commit_backend_rows,
)


_BACKEND_CELL = ("backend", "level", "state", "failed", "running", "passed", "other")
_backend_cell: Callable[[BackendCell], CsvRow] = attrgetter(*_BACKEND_CELL)
_PULL = (
    *("number", "title", "author", "draft", "state", "opened_at", "updated_at"),
    *("base_ref", "head_sha", "delivery", "gate", "verdict", "waits_for"),
)
_pull: Callable[[PullLine], CsvRow] = attrgetter(*_PULL)
_COMMIT = ("sha", "title", "number", "author", "pushed_at", "delivery")
_commit: Callable[[CommitLine], CsvRow] = attrgetter(*_COMMIT)
_IN_TREE = ("passed", "failed", "running")
_in_tree: Callable[[InTreeCell], CsvRow] = attrgetter(*_IN_TREE)


def _cell_rows(shared: CsvRow, cells: Sequence[BackendCell]) -> Iterator[CsvRow]:
    for cell in cells:
        yield *shared, *_backend_cell(cell)
    if not cells:
        yield *shared, *(None,) * len(_BACKEND_CELL)


def _pull_rows(line: PullLine) -> Iterator[CsvRow]:
    return _cell_rows(_pull(line), line.backends)


def _commit_rows(line: CommitLine) -> Iterator[CsvRow]:
    in_tree = _in_tree(line.in_tree) if line.in_tree else (None,) * len(_IN_TREE)
    return _cell_rows((*_commit(line), *in_tree), line.backends)


_CELL_COLUMNS = tuple(name if name == "backend" else f"backend_{name}" for name in _BACKEND_CELL)
PULL_LIST = CsvTable((*_PULL, *_CELL_COLUMNS), _pull_rows)
COMMIT_LIST = CsvTable((*_COMMIT, *(f"in_tree_{name}" for name in _IN_TREE), *_CELL_COLUMNS), _commit_rows)
