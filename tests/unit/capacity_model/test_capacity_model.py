"""The capacity model's arithmetic: known queueing results, conservation, monotony, and the recorded peak hours."""

import json
import random
import re
import statistics
from dataclasses import replace

import pytest
from bench.model.__main__ import main
from bench.model.capacity import Assumptions, Limit, Plan, make_plan, processes_for, relay_seconds
from bench.model.checks import WITHIN, predict_peak
from bench.model.constants import Constants, load_constants
from bench.model.scale_page import PAGE, PICTURE, picture, rendered_page
from bench.model.simulation import (
    EventLoop,
    Interpreter,
    Traffic,
    arrivals,
    most_within,
    simulate_clients,
    simulate_fan_out,
    simulate_traffic,
)
from bench.model.workload import Workload, calls_per_head, demand_of
from hypothesis import given
from hypothesis import strategies as st

from crcr.record.schema.all_tables import metadata

CONSTANTS = load_constants()
GITHUB_S = 0.1
PEAK_HOURS, PEAK_HEADS, PEAK_GROUPS, PEAK_CALLS, PEAK_POINTS = 2.0, 599, 66, 3_710, 599
"""Two simulated peak hours, as docs/performance.md records them: heads, merge groups, calls in the busiest hour, points
in the busiest minute."""

WORKLOADS = st.builds(
    Workload,
    upstreams=st.integers(1, 10_000),
    downstreams=st.integers(10, 1_000),
    prs_per_day=st.floats(1, 500),
    visible=st.integers(0, 5),
    readers=st.integers(0, 1_000),
)


@pytest.fixture(scope="module")
def constants() -> Constants:
    return CONSTANTS


@pytest.mark.parametrize("use", [0.3, 0.6, 0.8])
def test_the_mean_wait_of_equal_tasks_matches_m_d_1_queueing_theory(use: float) -> None:
    cost_s, waits = 0.01, list[float]()
    loop, chance = EventLoop(), random.Random(7)
    interpreter = Interpreter(loop, commit_s=0.0, store_s=0.0)

    def arrive() -> None:
        began = loop.now
        interpreter.add(cost_s, lambda: waits.append(loop.now - began - cost_s))

    for time in arrivals(use / cost_s, 400, chance):
        loop.at(time, arrive)
    loop.run()

    mean_wait_of_m_d_1 = use * cost_s / (2 * (1 - use))
    assert statistics.mean(waits) == pytest.approx(mean_wait_of_m_d_1, rel=0.1)


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
def test_no_request_is_lost_and_every_cost_is_counted_once(constants: Constants, store: str) -> None:
    costs = getattr(constants, store)
    traffic = Traffic(heads=0.5, targets=100, callbacks=150, seconds=60)

    relay = simulate_traffic(costs, traffic, GITHUB_S)

    heads, callbacks = len(relay.webhook_answers), len(relay.callback_answers)
    assert callbacks == pytest.approx(150 * 60, rel=0.1)
    assert (len(relay.last_dispatches), relay.dispatched) == (heads, heads * 100)
    paid_s = (
        callbacks * costs.callback.relay_s
        + relay.interpreter.commits * costs.commit.relay_s
        + heads * max(costs.webhook.relay_s, costs.webhook_answer_s)
        + relay.dispatched * max(costs.dispatch.relay_s, costs.dispatch_answer_s)
    )
    assert relay.interpreter.busy_s == pytest.approx(paid_s)


def test_more_clients_share_commits_up_to_the_cost_of_the_callbacks_alone(constants: Constants) -> None:
    costs = constants.sqlite
    rates = [600 / simulate_clients(costs, clients, 600).loop.now for clients in (1, 4, 32, 200)]

    assert rates == sorted(rates)
    assert rates[0] == pytest.approx(
        1 / max(costs.callback_answer_s, costs.callback.relay_s + costs.commit.relay_s), rel=0.01
    )
    assert rates[-1] < 1 / costs.callback.relay_s


def test_a_fan_out_takes_its_cpu_time_plus_its_round_trips_to_github(constants: Constants) -> None:
    relay = simulate_fan_out(constants.sqlite, 1_000, GITHUB_S)

    [last] = relay.last_dispatches
    rounds_before_the_last = 1_000 // relay.slots
    assert (
        rounds_before_the_last * GITHUB_S
        < last
        < rounds_before_the_last * GITHUB_S + relay.interpreter.busy_s
    )
    # So little time passes at GitHub that only the interpreter limits.
    quick = simulate_fan_out(constants.sqlite, 1_000, 0.0)
    assert quick.last_dispatches == [pytest.approx(quick.interpreter.busy_s, rel=0.05)]


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(1, 5)), max_size=60))
def test_the_busiest_minute_is_the_highest_sum_over_all_minutes(log: list[tuple[float, int]]) -> None:
    log.sort()
    minutes = [sum(amount for at, amount in log if end - 60 < at <= end) for end, _ in log]

    assert most_within(60, log) == max(minutes, default=0)


@given(WORKLOADS, st.sampled_from(["upstreams", "downstreams", "prs_per_day", "readers", "visible"]))
def test_more_traffic_never_needs_less(workload: Workload, field: str) -> None:
    constants, assumptions = CONSTANTS, Assumptions()
    more = replace(workload, **{field: getattr(workload, field) * 2})

    less, greater = (make_plan(load, constants, assumptions) for load in (workload, more))

    if less.store == greater.store:  # SQLite and PostgreSQL have costs of their own.
        assert all(
            some <= others
            for some, others in zip(_amounts_and_demands(less), _amounts_and_demands(greater), strict=True)
        )
    assert less.disk_bytes <= greater.disk_bytes


def _amounts_and_demands(plan: Plan) -> tuple[float, ...]:
    """Return the amounts to buy, and the demand of every limit but one.

    Tokens are for installations times the processes of one database: with more databases these may be fewer.
    """
    demands = {limit.name: limit.demand for limit in plan.limits if limit.follows_rate}
    amounts = (plan.relay_processes, plan.page_processes, plan.databases)
    return (*amounts, *(demands[name] for name in sorted(demands)))


@given(WORKLOADS)
def test_a_plan_has_the_minimum_number_of_processes(workload: Workload) -> None:
    constants, assumptions = CONSTANTS, Assumptions(github_latency_s=0.0)
    demand = demand_of(workload, constants.calls)

    processes = processes_for(demand, constants.postgres, assumptions)

    assert relay_seconds(demand, constants.postgres, processes) <= assumptions.busy
    assert processes == 1 or relay_seconds(demand, constants.postgres, processes - 1) > assumptions.busy


@pytest.mark.parametrize("measure", ["calls an hour", "points in a minute"])
def test_a_limit_is_met_at_the_rate_that_the_plan_names(constants: Constants, measure: str) -> None:
    name = f"upstream's installation: {measure}"

    def limit_of(workload: Workload) -> Limit:
        limits = make_plan(workload, constants, Assumptions()).limits
        return next(limit for limit in limits if limit.name == name)

    workload = Workload(downstreams=1_000, visible=10)
    more = limit_of(workload).heads_at_limit / workload.heads_per_hour

    at_limit = limit_of(replace(workload, prs_per_day=workload.prs_per_day * more))

    assert at_limit.use == pytest.approx(1)


def test_the_model_predicts_the_recorded_peak_hours(constants: Constants) -> None:
    predicted = predict_peak(constants.calls, PEAK_HOURS, heads=PEAK_HEADS, groups=PEAK_GROUPS)

    assert predicted.calls_in_an_hour == pytest.approx(PEAK_CALLS, rel=WITHIN)
    assert predicted.points_in_a_minute == pytest.approx(PEAK_POINTS, rel=WITHIN)
    # `python -m bench --only github-calls`: a passing head with three visible backends.
    assert calls_per_head(Workload(visible=3, failing_share=0.0), constants.calls) == 9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--visible", "30"], "--visible 30 is more than the 20 downstreams"),
        (["--upstreams", "0"], "--upstreams must be more than 0"),
        (["--followed", "2"], "--followed 2 is more than the 1 upstreams"),
        (["--constants", "missing.json"], "write it with --measure"),
    ],
)
def test_a_wrong_option_is_refused_with_its_reason(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    with pytest.raises(SystemExit) as refusal:
        main(arguments)

    assert refusal.value.code == 2
    assert message in capsys.readouterr().err


def test_the_json_of_a_plan_names_the_first_limit_and_what_cannot_be_bought(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--downstreams", "1000", "--visible", "1000", "--json"]) == 0

    plan = json.loads(capsys.readouterr().out)
    assert plan["first_limit"] == plan["limits"][0]["name"] == "upstream's installation: points in a minute"
    # Past the minute's limit checks wait; past the hour's, they never end.
    assert plan["unreachable"] == ["upstream's installation: calls an hour"]


def test_the_page_and_the_picture_are_generated_from_the_constants(constants: Constants) -> None:
    """`python -m bench.model --docs` writes them."""
    text = PAGE.read_text(encoding="utf-8")
    assert rendered_page(text, constants) == text
    assert PICTURE.read_text(encoding="utf-8") == picture(constants)


def test_the_page_lists_every_table_that_cannot_be_distributed_by_upstream() -> None:
    """Citus needs the distribution column in each unique key of a table."""
    spread = {
        table.name
        for table in metadata.sorted_tables
        if "upstream" in table.primary_key.columns
        and all("upstream" in index.columns for index in table.indexes if index.unique)
    }
    text = PAGE.read_text(encoding="utf-8")
    _, _, missing = text.partition("| tables | what is missing |")
    rows = [row.split("|")[1] for row in missing.partition("\n\n")[0].splitlines()[2:]]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}

    assert named == {table.name for table in metadata.sorted_tables} - spread
    assert f"{len(spread)} of {len(metadata.sorted_tables)} tables qualify" in text
    assert not any(table.foreign_keys for table in metadata.sorted_tables)
