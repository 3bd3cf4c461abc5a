"""The figures of a simulated run and their bars: API budget, delay of gates, age of effects."""

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

from bench.github_budget.lateness import EffectAge, GateDelay
from bench.github_budget.relay_in_process import SimulatedRelay
from bench.relay_process.load_client import percentile
from bench.relay_process.relay_setup import Row
from github_sim.world.call_counts import InstallationCalls

BUDGET = 5_000
LATEST_GATE_S = 10.0
OLDEST_EFFECT_S = 30.0
MOST_POINTS = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    seconds: float
    heads: int
    groups: int
    """Merge groups that got a gate."""
    upstream: InstallationCalls
    refused: int
    """Calls on the upstream's installation that a limit of GitHub's refused."""
    busiest: tuple[str, InstallationCalls]
    """The downstream with the most calls on its installation."""
    delays: list[GateDelay]
    effects: list[EffectAge]
    parked: Counter[str]
    merged: int
    jobs: int

    @property
    def calls_per_head(self) -> float:
        return self.upstream.calls / max(self.heads + self.groups, 1)

    @property
    def latest_gate_s(self) -> float:
        return max((delay.seconds for delay in self.delays), default=0.0)

    @property
    def late_gates(self) -> list[GateDelay]:
        return [delay for delay in self.delays if delay.seconds > LATEST_GATE_S]

    @property
    def slowest_gate_s(self) -> float:
        """The longest time from a fact that a gate follows from to its publication."""
        gates = (effect.seconds for effect in self.effects if effect.target == "checks/gate")
        return max(gates, default=0.0)

    @property
    def oldest_effect_s(self) -> float:
        return max((effect.seconds for effect in self.effects), default=0.0)

    @property
    def old_effects(self) -> Counter[str]:
        """Effects past the bar, by kind and class of target."""
        old = (effect for effect in self.effects if effect.seconds > OLDEST_EFFECT_S)
        return Counter(
            f"{effect.kind} {effect.target}" if effect.target.startswith("checks/") else effect.kind
            for effect in old
        )


def collect_figures(
    run: SimulatedRelay, upstream: str, downstreams: tuple[str, ...], seconds: float
) -> Figures:
    now: datetime = run.services.clock.now()
    counts, own = run.github.call_counts, run.installation_of(upstream)
    others = {name: counts.for_installation(run.installation_of(name)) for name in downstreams}
    gates = {gate.head_sha for gate in run.listener.gates}
    groups = run.log.count("SELECT count(*) FROM merge_groups")
    return Figures(
        seconds=seconds,
        heads=len(gates) - groups,
        groups=groups,
        upstream=counts.for_installation(own),
        refused=run.listener.refused[own],
        busiest=max(others.items(), key=lambda item: item[1].calls),
        delays=run.log.gate_delays(run.listener.gates, now),
        effects=run.log.effect_ages(now),
        parked=run.log.parked(),
        merged=run.log.count("SELECT count(*) FROM pulls WHERE merged = 1"),
        jobs=run.log.count("SELECT count(*) FROM jobs"),
    )


def figure_rows(name: str, figures: Figures) -> list[Row]:
    """One row per figure, each prefixed with the run's name."""
    rows = (*_run_rows(figures), *_budget_rows(figures), *_delay_rows(figures))
    return [(f"{name}: {what}", measured, bar, reached) for what, measured, bar, reached in rows]


def _run_rows(figures: Figures) -> list[Row]:
    text = (
        f"{figures.seconds / 3600:.2g} h: {figures.heads} heads, {figures.groups} merge groups,"
        f" {figures.merged} merged, {figures.jobs:,} jobs"
    )
    return [("simulated", text, "", True)]


def _budget_rows(figures: Figures) -> list[Row]:
    upstream, (name, busiest) = figures.upstream, figures.busiest
    most, points, refused = upstream.most_in_an_hour, upstream.most_points_in_a_minute, figures.refused
    elsewhere = (
        f"{busiest.most_in_an_hour:,} calls, {busiest.most_points_in_a_minute} points a minute ({name})"
    )
    return [
        ("calls in the busiest hour, upstream", f"{most:,}", f"≤ {BUDGET:,}", most <= BUDGET),
        ("calls per head or group", f"{figures.calls_per_head:.1f}", "", True),
        ("POSTs in the busiest hour", f"{upstream.most_posts_in_an_hour:,}", "", True),
        ("points in the busiest minute", f"{points}", f"≤ {MOST_POINTS}", points <= MOST_POINTS),
        ("calls that GitHub refused by a limit", f"{refused}", "0", refused == 0),
        (
            "busiest downstream, in its busiest hour",
            elsewhere,
            f"≤ {BUDGET:,}",
            busiest.most_in_an_hour <= BUDGET,
        ),
    ]


def _delay_rows(figures: Figures) -> list[Row]:
    delays = sorted(delay.seconds for delay in figures.delays) or [0.0]
    gates = f"{len(figures.delays):,} publications, P99 {percentile(delays, 0.99):.1f} s, latest {delays[-1]:.1f} s"
    effects = f"{len(figures.effects):,}, oldest {figures.oldest_effect_s:.0f} s; too old: {_counts(figures.old_effects)}"
    return [
        (
            "gate, from its decision to GitHub's 2xx",
            gates,
            f"≤ {LATEST_GATE_S:.0f} s",
            delays[-1] <= LATEST_GATE_S,
        ),
        (
            "gate, from the fact that it follows from to its publication",
            f"slowest {figures.slowest_gate_s:.1f} s",
            f"≤ {LATEST_GATE_S:.0f} s",
            figures.slowest_gate_s <= LATEST_GATE_S,
        ),
        (
            "effects, from due to done",
            effects,
            f"≤ {OLDEST_EFFECT_S:.0f} s",
            figures.oldest_effect_s <= OLDEST_EFFECT_S,
        ),
        ("effects given up", _counts(figures.parked), "none", not figures.parked),
    ]


def _counts(counted: Counter[str]) -> str:
    return ", ".join(f"{kind} {number:,}" for kind, number in counted.most_common()) or "none"
