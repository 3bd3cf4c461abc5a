"""View values for rendering pages without a store, with every state that a backend can have."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from crcr.decide.model import Conclusion, JobState, Level, RepoName
from crcr.decide.statistics.figures import CountedAs, Durations, Figures, LastResult, LeftOut, Part, Tally
from crcr.decide.statistics.window import ResultKind, Span, Window
from crcr.decide.views.backend import BackendMetrics, MetricsView
from crcr.decide.views.overview import AllowlistState, BackendSummary, ChooseRows, Probe, RelayHealth, Summary

UPSTREAM = RepoName("Torch/torch")
NOW = datetime(2026, 7, 1, 12, 20, tzinfo=UTC)


def part(at: datetime, tally: Tally = Tally(), **more: Any) -> Part:  # noqa: B008  frozen
    return Part(at=at, tally=tally, **more)


def figures(*tallies: Tally | None, span: Span = Span.FORTNIGHT, **more: Any) -> Figures:
    """The newest parts hold the tallies, each with durations and one dispatch; None for a part without any."""
    starts = Window.of(span, NOW).starts()
    filled = ((None,) * (len(starts) - len(tallies))) + tallies
    parts = tuple(_part(at, tally) for at, tally in zip(starts, filled, strict=True))
    return Figures(parts=parts, **more)


def _part(at: datetime, tally: Tally | None) -> Part:
    if tally is None:
        return Part(at=at)
    took = Durations.from_seconds([60.0 * each for each in range(1, tally.decided + 1)])
    return Part(at=at, tally=tally, queue=took, execution=took, sent=1, delay_s=0.5)


def last_result(conclusion: Conclusion = Conclusion.SUCCESS, **ago: float) -> LastResult:
    counted = CountedAs.SUCCESS if conclusion is Conclusion.SUCCESS else CountedAs.FAILURE
    return LastResult(
        JobState.COMPLETED, conclusion, "build", NOW - timedelta(**(ago or {"minutes": 5})), counted
    )


def backend_summary(name: str, level: Level = Level.L2, **more: Any) -> BackendSummary:
    plain: dict[str, Any] = {
        "device": None,
        "oncalls": (),
        "hardware": None,
        "name_only": False,
        "figures": figures() if level >= Level.L2 else None,
    }
    return BackendSummary(name=RepoName(name), level=level, **{**plain, **more})


def relay_health(**more: Any) -> RelayHealth:
    plain: dict[str, Any] = {
        "deliveries": 12,
        "last_delivery_at": NOW - timedelta(minutes=2),
        "last_result_at": NOW - timedelta(minutes=5),
        "waiting": 0,
        "parked": 0,
        "lag_s": None,
        "paused_at": None,
    }
    return RelayHealth(**{**plain, **more})


def summary(*backends: BackendSummary, **more: Any) -> Summary:
    levels = sorted({each.level for each in backends}, reverse=True)
    plain: dict[str, Any] = {
        "upstream": UPSTREAM,
        "span": Span.FORTNIGHT,
        "kind": ResultKind.PULLS,
        "at": NOW,
        "cursor": 7,
        "ingests": False,
        "health": relay_health(),
        "allowlist": AllowlistState(
            version=3, source="allowlist.yml", read_at=NOW, newest_is_bad=False, problems=()
        ),
        "levels": tuple((level, tuple(b for b in backends if b.level is level)) for level in levels),
    }
    return Summary(**{**plain, **more})


def metrics(*backends: BackendSummary, **more: Any) -> MetricsView:
    shown = [each for each in backends if each.figures is not None]
    rows = tuple(
        BackendMetrics(
            name=each.name, level=each.level, probe=each.probe, figures=each.figures, silent=each.silent
        )
        for each in shown
        if each.figures is not None
    )
    counted = [each.figures for each in rows if not each.probe]
    plain: dict[str, Any] = {
        "upstream": UPSTREAM,
        "span": Span.FORTNIGHT,
        "kind": ResultKind.PULLS,
        "at": NOW,
        "cursor": 7,
        "ingests": False,
        "total": sum(counted[1:], counted[0]) if counted else figures(),
        "backends": rows,
    }
    return MetricsView(**{**plain, **more})


class FixedViews:
    """Returns the same views for every query, and records the queries."""

    def __init__(self, shown: Summary, numbers: MetricsView | None = None) -> None:
        self.shown = shown
        self.numbers = numbers or metrics(*shown.backends)
        self.asked: list[tuple[Span, ResultKind]] = []

    def for_admins(self) -> "FixedViews":
        return self

    async def summary(
        self,
        upstream: RepoName,
        span: Span,
        now: datetime,
        *,
        kind: ResultKind,
        pick: ChooseRows[BackendSummary] | None = None,
    ) -> Summary:
        self.asked.append((span, kind))
        rows = tuple(pick(self.shown.backends) if pick else self.shown.backends)
        return replace(self.shown, upstream=upstream, span=span, kind=kind, rows=rows)

    async def metrics(
        self,
        upstream: RepoName,
        span: Span,
        now: datetime,
        *,
        kind: ResultKind,
        pick: ChooseRows[BackendMetrics] | None = None,
    ) -> MetricsView:
        self.asked.append((span, kind))
        rows = tuple(pick(self.numbers.backends) if pick else self.numbers.backends)
        return replace(self.numbers, upstream=upstream, span=span, kind=kind, rows=rows)


def every_state() -> Summary:
    """One backend for each state of a row."""
    good = figures(Tally(success=8), Tally(success=9, failure=1), last_result=last_result())
    bad = figures(
        Tally(success=1, failure=3, timed_out=1),
        None,
        Tally(failure=2),
        last_result=last_result(Conclusion.FAILURE),
    )
    return summary(
        backend_summary("gate/good", Level.L4, figures=good, oncalls=("ada", "grace"), hardware="NPU 910B"),
        backend_summary("gate/bad", Level.L4, figures=bad, sent=4),
        backend_summary("signal/silent", Level.L3, silent=True, sent=3),
        backend_summary("signal/running", Level.L3, figures=figures(running=2), sent=1),
        backend_summary("report/suspended", suspended=True, alarm="its id changed", parked=2, waiting=1),
        backend_summary("report/left-out", figures=replace(good, left_out=LeftOut(superseded=4, earlier=1))),
        backend_summary("report/probe", probe=True, figures=bad),
        backend_summary("report/hidden", hidden=True),
        backend_summary("report/private", name_only=True, figures=None),
        backend_summary("notify/told", Level.L1, sent=5, last_sent_at=NOW),
        backend_summary("notify/quiet", Level.L1),
        health=relay_health(
            parked=2,
            waiting=3,
            lag_s=75.0,
            probes=(
                Probe(RepoName("probe/ok"), last_result(), stale=False),
                Probe(RepoName("probe/off"), last_result(Conclusion.FAILURE), stale=False),
                Probe(RepoName("probe/stale"), last_result(days=3), stale=True),
            ),
        ),
    )


def many_backends(number: int, seed: int = 1) -> Summary:
    """So many backends with a fortnight of plausible history."""
    random = Random(seed)
    makers = (
        "ascend",
        "intel",
        "rocm",
        "openreg",
        "moore",
        "cambricon",
        "habana",
        "spyre",
        "metax",
        "enflame",
    )
    rows = []
    for place in range(number):
        level = random.choice((Level.L1, Level.L2, Level.L2, Level.L2, Level.L3, Level.L3, Level.L4))
        rate, quiet = random.choice((0.99, 0.97, 0.9, 0.7)), random.random() < 0.1
        days = [
            None if random.random() < 0.1 else _day(random, rate, random.randint(1, 90)) for _ in range(14)
        ]
        made = (
            figures()
            if quiet
            else figures(*days, running=random.choice((0, 0, 2)), last_result=last_result(minutes=place + 1))
        )
        rows.append(
            backend_summary(
                f"{makers[place % len(makers)]}-team/torch-backend-{place:02d}",
                level,
                figures=made if level >= Level.L2 else None,
                oncalls=("ada", "grace") if level >= Level.L3 else (),
                hardware=random.choice((None, "NPU 910B", "Gaudi 3")),
                sent=random.randint(0, 40),
                last_sent_at=NOW - timedelta(minutes=place),
                silent=quiet and level >= Level.L2,
            )
        )
    return summary(*rows, health=relay_health(deliveries=1_204))


def _day(random: Random, rate: float, number: int) -> Tally:
    success = sum(random.random() < rate for _ in range(number))
    return Tally(success=success, failure=number - success, other=number // 9)
