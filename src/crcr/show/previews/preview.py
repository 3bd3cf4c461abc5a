"""What the preview of a pasted link says: a title, a state and a few facts, from the values of the page.

Tags and pictures are made from the same value. It has nothing that the page does not show to everybody, and no time relative
to now: the sites that show it keep it for hours.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from crcr.decide.number_format import format_count, format_percent
from crcr.decide.statistics.figures import CountedAs
from crcr.decide.views.commit import (
    BackendState,
    CommitBackend,
    CommitView,
    GateShown,
    GateView,
    PullState,
    PullView,
)
from crcr.decide.views.failures import FailurePage, GroupPage
from crcr.decide.views.overview import BackendSummary, Summary
from crcr.show.render import status
from crcr.show.render.safe_text import visible
from crcr.show.render.status import Status

_MOST_TITLE = 200
_MOST_FACT = 60
_BY_RESULT = {
    CountedAs.SUCCESS: Status("O", "passing", "ok"),
    CountedAs.FAILURE: Status("X", "failing", "bad"),
    CountedAs.RUNNING: Status("?", "running", "run"),
    CountedAs.OTHER: Status("N", "inconclusive", "off"),
}
_NO_RESULTS = Status("—", "no results", "off")
_JUDGED_GATES = frozenset({GateShown.FAILED, GateShown.PENDING, GateShown.PASSED})
_COUNTED = (
    ("Failed", frozenset({BackendState.FAILED})),
    ("Passed", frozenset({BackendState.PASSED})),
    (
        "Waiting",
        frozenset(
            {
                BackendState.RUNNING,
                BackendState.STARTED,
                BackendState.NO_REPORT,
                BackendState.WAITING,
                BackendState.HELD,
            }
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class Preview:
    upstream: str
    title: str
    state: Status
    facts: tuple[tuple[str, str], ...] = ()
    """Labels and values."""

    @property
    def description(self) -> str:
        facts = ", ".join(f"{label.lower()} {value}" for label, value in self.facts)
        return f"{self.state.word.capitalize()}{f': {facts}' if facts else ''}. {self.upstream}"


def _make(upstream: object, title: str, state: Status, *facts: tuple[str, str]) -> Preview:
    one_line = " ".join(visible(title, _MOST_TITLE).split())
    clipped = tuple((label, visible(value, _MOST_FACT)) for label, value in facts)
    return Preview(str(upstream), one_line, state, clipped)


def preview_summary(summary: Summary) -> Preview:
    backends = [backend for backend in summary.backends if not backend.probe]
    tally, silent = summary.tally, sum(backend.silent for backend in backends)
    state = Status("—", "no results", "off")
    if tally.pass_rate is not None:
        state = Status("O", f"{format_percent(tally.pass_rate)} passed", "run")
    facts = [
        ("Backends", format_count(len(backends))),
        ("Jobs", format_count(tally.total)),
        ("Failures", format_count(tally.failure)),
        *([("Silent", format_count(silent))] if silent else []),
        ("Range", summary.span.value),
    ]
    return _make(summary.upstream, "All backends", state, *facts)


def preview_backend(upstream: object, backend: BackendSummary, span: str) -> Preview:
    level = ("Level", backend.level.name)
    if backend.figures is None:
        return _make(upstream, backend.name.full_name, Status("→", "listed", "off"), level)
    tally, last = backend.figures.tally, backend.last_result
    state = _BY_RESULT[last.counted] if last else _NO_RESULTS
    if backend.silent:
        state = Status("T", "silent", "warn")
    rate = [("Pass rate", format_percent(tally.pass_rate))] if tally.pass_rate is not None else []
    facts = (
        level,
        *rate,
        ("Jobs", format_count(tally.total)),
        ("Failures", format_count(tally.failure)),
        ("Range", span),
    )
    return _make(upstream, backend.name.full_name, state, *facts)


def preview_pull(pull: PullView) -> Preview:
    state = status.PULLS[pull.state]
    if pull.state is PullState.OPEN:
        state = _gate_status(pull.gate) or _backends_status(pull.backends) or state
    facts = (*_count_backends(pull.backends), ("By", pull.author), ("Into", pull.base_ref))
    return _make(pull.upstream, f"#{pull.number} {pull.title}", state, *facts)


def preview_commit(commit: CommitView) -> Preview:
    state = _gate_status(commit.gate) or _backends_status(commit.backends) or _NO_RESULTS
    ref = (commit.ref or "").removeprefix("refs/heads/").removeprefix("refs/tags/")
    facts = (*_count_backends(commit.backends), *([("On", ref)] if ref else []))
    return _make(commit.upstream, f"Commit {commit.head_sha[:12]}", state, *facts)


def preview_failures(upstream: object, page: FailurePage) -> Preview:
    number = f"{len(page.items)}{'+' if page.next else ''}"
    state = Status("X", f"{number} open", "bad") if page.items else Status("O", "none open", "ok")
    backends = {name for group in page.items for name in group.backends}
    return _make(upstream, "Failures of the last 14 days", state, ("Backends", format_count(len(backends))))


def preview_group(upstream: object, page: GroupPage) -> Preview:
    group = page.group
    state = Status("X", "open failure", "bad") if page.is_open else Status("—", "no longer open", "off")
    facts = [
        ("Failures", format_count(group.count)),
        ("Backends", format_count(len(group.backends))),
        ("First seen", f"{group.first_seen.at:%Y-%m-%d}"),
        *([("Known as", group.known.issue)] if group.known else []),
    ]
    return _make(upstream, group.sample, state, *facts)


def _gate_status(gate: GateView | None) -> Status | None:
    if gate is None or gate.state not in _JUDGED_GATES:
        return None
    shown = status.GATES[gate.state]
    return Status(shown.letter, f"gate {shown.word}", shown.tone)


def _backends_status(backends: Sequence[CommitBackend]) -> Status | None:
    """The state of the worst backend, where the upstream has no gate."""
    states = {backend.state for backend in backends}
    worst = next((state for state in BackendState if state in states), None)
    return status.BACKENDS[worst] if worst else None


def _count_backends(backends: Sequence[CommitBackend]) -> list[tuple[str, str]]:
    counts = Counter(backend.state for backend in backends)
    sums = ((label, sum(counts[state] for state in states)) for label, states in _COUNTED)
    return [(label, format_count(number)) for label, number in sums if number]
