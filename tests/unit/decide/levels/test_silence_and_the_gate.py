"""No history of silence opens a gate: random histories of heads, evaluations and settings, judged by the gate itself."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.checks.check_run import Tier
from crcr.decide.checks.commit import BackendResults
from crcr.decide.checks.gate import GateState, judge_gate
from crcr.decide.checks.text.gate import gate_summary, gate_title
from crcr.decide.checks.wanted_checks import CheckPolicy, JobChecks, wanted_checks
from crcr.decide.dispatch.plan import DispatchPlan, UpstreamFacts, plan_dispatches
from crcr.decide.levels.criteria import CriterionName, LevelCriteria, Measure, evaluate
from crcr.decide.levels.standings import (
    BackendStanding,
    LevelPolicy,
    LevelStanding,
    demotion_in_force,
    follow_evaluation,
    released_from_gate,
)
from crcr.decide.model import DispatchState, Level
from support.data.commits import HEAD, NOW, POLICY, a_backend, a_commit, a_subject, an_entry
from support.data.events_and_reports import a_pull

ENTRY = an_entry()
KEY = ENTRY.name.key
HOUR = timedelta(hours=1)
ACTIONS = ("opened", "synchronize", "reopened", "edited", "labeled")
STEPS = st.sampled_from(
    [
        *((action, head) for action in ACTIONS for head in (1, 2)),
        *(("evaluate", hours) for hours in (120, 121, 122, 123, 124, 125, 0, 40)),
        *(("override", 1), ("override", 0), ("wait", 48)),
    ]
)


class SilentBackend:
    """An L4 backend that never reports, and the heads that it was dispatched for."""

    def __init__(self, policy: LevelPolicy) -> None:
        self.policy = policy
        self.now = NOW
        self.known: BackendStanding | None = None
        self.overridden = False
        self.recorded: dict[int, list[BackendResults]] = {}

    def receive(self, action: str, head: int) -> None:
        demotion = self.known and demotion_in_force(
            Level.L4, self.known.standing, self.policy, overridden=self.overridden
        )
        earlier = self.recorded.get(head, [])
        gated = {KEY} if any(results.level is Level.L4 for results in earlier) else set()
        facts = UpstreamFacts(
            allowlist=Allowlist((ENTRY,)),
            ignore_refs=(),
            suspended=frozenset(),
            gate_on=True,
            downgraded=released_from_gate({KEY: demotion} if demotion else {}, gated),
        )
        plan = plan_dispatches(a_pull(action=action, head_sha=f"{head:040x}"), facts)
        assert isinstance(plan, DispatchPlan)
        for dispatch in plan.dispatches:
            results = a_backend(runs=(), level=dispatch.level, downgraded=dispatch.downgraded)
            times: dict[str, Any] = {"created_at": self.now, "sent_at": self.now, "listed_at": None}
            self.recorded.setdefault(head, []).append(replace(results, state=DispatchState.SENT, **times))

    def evaluate(self, silent_hours: int) -> None:
        measures = {CriterionName.SILENCE: Measure(float(silent_hours), 10)}
        evaluation = evaluate(Level.L4, measures, measures, LevelCriteria())
        self.known, _ = follow_evaluation(self.known, Level.L4, evaluation, self.now)

    def apply_step(self, step: str, value: int) -> None:
        self.now += HOUR
        if step == "evaluate":
            self.now += 23 * HOUR
            self.evaluate(value)
        elif step == "override":
            self.overridden = bool(value)
        elif step == "wait":
            self.now += value * HOUR
        else:
            self.receive(step, value)


@settings(max_examples=80)
@given(st.booleans(), st.lists(STEPS, min_size=10, max_size=40))
def test_a_head_dispatched_to_a_gating_backend_never_passes_because_of_silence(
    downgrades: bool, steps: list[tuple[str, int]]
) -> None:
    backend = SilentBackend(LevelPolicy(l4_downgrade=downgrades))
    for step, value in steps:
        backend.apply_step(step, value)
        for results in backend.recorded.values():
            newest = results[-1]
            judgement = judge_gate(a_commit(a_subject(newest)), POLICY, backend.now)
            if not downgrades or any(result.level is Level.L4 for result in results):
                assert newest.level is Level.L4
                assert judgement.state is not GateState.PASSED
            else:
                assert judgement.state is GateState.PASSED
                assert "org/one is downgraded" in gate_title(judgement)
                assert "is downgraded: it failed the criteria of L3" in gate_summary(judgement, HEAD)


def test_a_downgrade_needs_two_evaluations_and_applies_to_new_heads_only() -> None:
    backend = SilentBackend(LevelPolicy(l4_downgrade=True))
    steps = (("opened", 1), ("evaluate", 100), ("opened", 2), ("evaluate", 124))
    for step in (*steps, ("reopened", 1), ("opened", 3)):
        backend.apply_step(*step)
    assert backend.known is not None
    assert backend.known.standing is LevelStanding.FAILS
    levels = {head: {results.level for results in recorded} for head, recorded in backend.recorded.items()}
    assert levels == {1: {Level.L4}, 2: {Level.L4}, 3: {Level.L3}}


def test_silent_mode_removes_the_checks_of_an_l3_backend_but_never_of_an_l4_backend() -> None:
    informing = a_backend(name="org/npu", options={"level": Level.L3}, level=Level.L3)
    commit = a_commit(a_subject(a_backend(), informing, labels=("ciflow/crcr/npu",)))
    policy = CheckPolicy(
        gate=POLICY,
        gate_on=False,
        label_prefixes=("ciflow/crcr/",),
        l3_fails_red=False,
        show_l3_pending=True,
        job_checks=JobChecks.NONE,
        hud_url="http://relay.test",
    )

    def names(policy: CheckPolicy) -> set[str]:
        return {
            check.name for check in wanted_checks(commit, None, policy, NOW) if check.tier is Tier.BACKEND
        }

    assert names(policy) == {"crcr/org/one", "crcr/org/npu"}
    assert names(replace(policy, silent=frozenset({"org/npu", "org/one"}))) == {"crcr/org/one"}
