"""The benchmarks' simulated time, and their delays of gates and effects."""

import asyncio
import sqlite3
import time
from datetime import timedelta
from pathlib import Path

import pytest
from bench.github_budget.lateness import StoreLog
from bench.github_budget.published_gates import PublishedGate
from bench.github_budget.simulated_time import START, SimulatedClock, run_simulated

from crcr.record.migrations.run import migrate
from crcr.record.store.times import to_us

HEAD = "a" * 40


def test_simulated_hours_pass_at_once_and_timers_keep_their_order() -> None:
    async def wait_in_tasks() -> list[float]:
        loop, woken = asyncio.get_running_loop(), []

        async def wake_after(seconds: float) -> None:
            await asyncio.sleep(seconds)
            await asyncio.to_thread(time.monotonic)  # a thread's work takes no simulated time
            woken.append(loop.time())

        await asyncio.gather(wake_after(7200.0), wake_after(0.25), wake_after(60.0))
        assert SimulatedClock().now() == START + timedelta(hours=2)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 10.0)
        return woken

    began = time.monotonic()
    assert run_simulated(wait_in_tasks()) == [0.25, 60.0, 7200.0]
    assert time.monotonic() - began < 60


@pytest.mark.parametrize(
    ("decided", "shown", "delays"),
    [
        pytest.param([(0, "pending"), (60, "passed")], [(1, "pending"), (75, "passed")], [1, 15], id="published"),
        pytest.param([(0, "pending"), (60, "failed")], [(1, "pending")], [1, 40], id="never published"),
        pytest.param(
            [(0, "pending"), (60, "failed"), (70, "passed")],
            [(1, "pending"), (90, "passed")],
            [1, 30],
            id="late since the first decision that was not published",
        ),
        pytest.param([(0, "pending"), (0, "over")], [(5, "over")], [5], id="closed before it was published"),
    ],
)  # fmt: skip
def test_a_gate_is_late_while_github_shows_a_state_other_than_the_committed_one(
    tmp_path: Path, decided: list[tuple[int, str]], shown: list[tuple[int, str]], delays: list[float]
) -> None:
    log = _store(tmp_path)
    with sqlite3.connect(tmp_path / "crcr.db") as connection:
        for at_s, state in decided:
            connection.execute(
                "INSERT INTO gates (head_sha, upstream, state, title, judged_at) VALUES (?, 'org/up', ?, '', ?)"
                " ON CONFLICT DO UPDATE SET state = excluded.state, judged_at = excluded.judged_at",
                (HEAD, state, to_us(START + timedelta(seconds=at_s))),
            )
    connection.close()
    gates = [PublishedGate(START + timedelta(seconds=at_s), HEAD, state) for at_s, state in shown]
    gate_delays = log.gate_delays(gates, START + timedelta(seconds=100))
    assert [delay.seconds for delay in gate_delays] == delays


def test_an_effects_age_counts_from_its_due_time_and_a_polls_age_from_its_newest_due_time(
    tmp_path: Path,
) -> None:
    log, start = _store(tmp_path), to_us(START)
    add = "INSERT INTO effects (effect_id, upstream, kind, target, lane, state, due_at, created_at) VALUES (?, 'u', ?, 't', ?, 'claimed', ?, ?)"
    again = "UPDATE effects SET state = 'waiting', due_at = ?, held_by = ? WHERE effect_id = ?"
    done = "UPDATE effects SET state = 'done', finished_at = ? WHERE effect_id = ?"
    with sqlite3.connect(tmp_path / "crcr.db") as connection:
        for number, kind, held_by in (
            (1, "publish_checks", "minute"),
            (2, "look_up", None),
            (3, "look_up", "hour"),
        ):
            connection.execute(add, (number, kind, f"lane {number}", start, start))
            connection.execute(again, (start + 60_000_000, held_by, number))
            connection.execute(done, (start + 61_000_000, number))
        connection.execute(add, (4, "publish_checks", "lane 4", start + 99_000_000, start))
        # Its lane was busy with the question before it.
        connection.execute(add, (5, "look_up", "lane 2", start, start))
        connection.execute(done, (start + 63_000_000, 5))
    connection.close()
    ages = log.effect_ages(START + timedelta(seconds=100))
    assert [(age.seconds, age.ended) for age in ages] == [
        (61, True),
        (1, True),
        (61, True),
        (1, False),
        (2, True),
    ]


def _store(folder: Path) -> StoreLog:
    migrate(folder / "crcr.db")
    return StoreLog(folder / "crcr.db")
