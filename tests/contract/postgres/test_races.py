"""Races between processes on one PostgreSQL lose, double or break nothing."""

import asyncio
from collections import Counter
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from sqlalchemy import text

from crcr.decide.jobs.judge import IgnoredReport, ReportOutcome
from crcr.decide.model import Conclusion, EffectKind, RepoName
from crcr.decide.oidc.identity import Identity
from crcr.decide.outbox.effect import FailedAttempt
from crcr.decide.outbox.retry import TryAgain
from crcr.errors import NotFound
from crcr.record.outbox.effects import add_once, effect_row
from crcr.record.store.database import Tx
from crcr.record.store.statement import Statement
from support.data.events_and_reports import a_caller, count_outcomes
from support.stores.databases import CORE, LEASE
from support.stores.race_harness import NOW, Process, empty_unit, pause_before_commit, processes

LISTED = "L2:\n  - org/backend\n  - org/second\n"
MANY = [f"org/b{number}" for number in range(12)]
_ONE = Statement(text("SELECT 1 AS one"))
_NOTE = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0)"))
_MARK = Statement(text("UPDATE upstreams SET created_at = created_at + 1 WHERE upstream = :name"))


async def numbers(process: Process) -> dict[str, Any]:
    sums = "SELECT sum(success) AS success, sum(failure) AS failure FROM hours"
    [row] = await process.stores.rows(sums)
    jobs = await process.stores.rows("SELECT state, conclusion FROM jobs")
    return {**row, "jobs": [(job["state"], job["conclusion"]) for job in jobs]}


# Reports


async def test_fault_14_of_64_equal_concurrent_reports_one_is_applied() -> None:
    async with processes(4, LISTED) as running:
        guid = await running[0].open_and_send(1)
        starts = await asyncio.gather(*(process.report(guid) for process in running * 16))
        assert count_outcomes(starts) == {"OpenJob": 1, "RepeatedReport": 63}
        ends = await asyncio.gather(
            *(process.report(guid, "completed", conclusion="success") for process in running * 16)
        )
        assert count_outcomes(ends) == {"CloseJob": 1, "RepeatedReport": 63}
        assert await numbers(running[0]) == {"success": 1, "failure": 0, "jobs": [("completed", "success")]}
        assert len(await running[0].stores.rows("SELECT 1 AS one FROM changes WHERE kind = 'job'")) == 2


async def test_of_contradicting_concurrent_results_one_is_applied_and_counted() -> None:
    async with processes(4, LISTED) as running:
        guid = await running[0].open_and_send(1)
        await running[0].report(guid)
        conclusions = [Conclusion.SUCCESS, Conclusion.FAILURE]
        outcomes = await asyncio.gather(
            *(
                process.report(guid, "completed", conclusion=conclusions[n % 2])
                for n, process in enumerate(running * 8)
            )
        )
        assert count_outcomes(outcomes)["CloseJob"] == 1
        assert count_outcomes(outcomes)["conflicting_result"] == 16
        counted = await numbers(running[0])
        assert counted["success"] + counted["failure"] == 1


async def test_one_run_id_reported_by_two_repositories_makes_two_runs() -> None:
    """Their lanes differ, so they are judged concurrently."""
    async with processes(2, LISTED) as (one, other):
        guid = await one.open_and_send(1)
        second = a_caller(repository=RepoName("org/second"), repository_id=7, check_run_id="200")
        outcomes = await asyncio.gather(
            *(process.report(guid, who=caller) for process, caller in ((one, None), (other, second)) * 20)
        )
        assert count_outcomes(list(outcomes)) == {"OpenJob": 2, "RepeatedReport": 38}
        runs = await one.stores.rows("SELECT downstream, delivery FROM runs ORDER BY downstream")
        assert [row["downstream"] for row in runs] == ["org/backend", "org/second"]


async def test_concurrent_reports_of_many_backends_are_all_counted_in_shared_sums() -> None:
    """They add to different rows of one table, some to the same rows, in any order."""
    async with processes(4, "L2:\n" + "".join(f"  - {name}\n" for name in MANY)) as running:
        guids = [await running[0].open_and_send(number) for number in range(1, 4)]
        callers = [a_caller(repository=RepoName(name), repository_id=10 + n) for n, name in enumerate(MANY)]
        work = [
            (
                guid,
                a_caller(repository=who.repository, repository_id=who.repository_id, run_id=f"{n}{guid[1:]}"),
            )
            for guid in guids
            for n, who in enumerate(callers)
        ]

        async def report_start_and_end(
            process: Process, guid: str, who: Identity
        ) -> ReportOutcome | IgnoredReport:
            await process.report(guid, who=who)
            return await process.report(guid, "completed", who=who, conclusion="success")

        outcomes = await asyncio.gather(
            *(
                report_start_and_end(running[n % 4], *delivery_and_caller)
                for n, delivery_and_caller in enumerate(work)
            )
        )
        assert count_outcomes(list(outcomes)) == {"CloseJob": len(work)}
        for table in ("hours", "days", "job_days"):
            [row] = await running[0].stores.rows(f"SELECT sum(success) AS success FROM {table}")  # noqa: S608
            assert row["success"] == len(work)


async def test_of_a_report_and_the_concurrent_claim_of_its_retry_one_decides_the_state() -> None:
    """A dispatch in doubt: its run reports while a worker claims the retry."""
    async with processes(2, LISTED) as (one, other):
        guid = await one.open_pull(1)
        worker = one.stores.outbox("w")
        for effect in await worker.claim(9, NOW):
            again = FailedAttempt(decision=TryAgain(NOW), error="lost", unsure=True, counts=True)
            await worker.fail(effect, again, NOW)
        claimed, outcome = await asyncio.gather(one.stores.outbox("a").claim(9, NOW), other.report(guid))
        assert count_outcomes([outcome]) == {"OpenJob": 1}
        [row] = await one.stores.rows("SELECT state FROM effects WHERE target = 'org/backend'")
        taken = any(effect.target == "org/backend" for effect in claimed)
        assert row["state"] in ({"claimed"} if taken else {"cancelled", "done"})


# Effects


def publish_checks_row(now: Any = NOW) -> dict[str, Any]:
    return effect_row(CORE, EffectKind.PUBLISH_CHECKS, target="checks/gate", lane="a" * 40, now=now)


async def test_an_effect_locked_by_an_open_transaction_is_claimed_only_after_its_commit() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, publish_checks_row()))
        held_write = await pause_before_commit(
            one.database, lambda tx: add_once(tx, publish_checks_row()), lane="org/backend"
        )
        outbox = other.stores.outbox("w")
        assert await outbox.claim(9, NOW) == []
        await held_write.end()
        assert [effect.target for effect in await outbox.claim(9, NOW)] == ["checks/gate"]
        assert await outbox.claim(9, NOW) == []


async def test_an_effect_added_while_an_equal_one_is_being_claimed_is_inserted_separately() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, publish_checks_row()))
        take = Statement(text("UPDATE effects SET state = 'claimed', lease_owner = 'x', lease_until = 9e15"))
        held_claim = await pause_before_commit(one.database, lambda tx: tx.run(take), lane="claims")
        adding = asyncio.create_task(
            other.database.write(lambda tx: add_once(tx, publish_checks_row()), lane="org/second")
        )
        await held_claim.end()
        await adding
        effects = await one.stores.rows("SELECT state FROM effects ORDER BY effect_id")
        assert [row["state"] for row in effects] == ["claimed", "waiting"]


async def test_concurrent_writers_that_move_one_effect_earlier_do_not_deadlock() -> None:
    """All lock the effect and move it earlier; PostgreSQL would need a second to detect such a deadlock."""
    async with processes(4, LISTED) as running:
        await running[0].database.write(lambda tx: add_once(tx, publish_checks_row(NOW + timedelta(hours=1))))

        async def unit(tx: Tx) -> None:
            await add_once(tx, publish_checks_row(NOW + timedelta(minutes=1)))
            await add_once(tx, publish_checks_row(NOW))

        writes = [process.database.write(unit, lane=f"lane {n}") for n, process in enumerate(running * 4)]
        await asyncio.wait_for(asyncio.gather(*writes), 20)
        effects = await running[0].stores.rows("SELECT due_at FROM effects WHERE state = 'waiting'")
        assert len(effects) >= 1
        assert await deadlocks(running[0]) == 0


async def deadlocks(process: Process) -> int:
    sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    [row] = await process.stores.rows(sql)
    return int(row["deadlocks"])


async def test_fault_10_concurrent_claims_never_hold_two_effects_of_one_target() -> None:
    async with processes(4, "L1:\n" + "".join(f"  - {name}\n" for name in MANY)) as running:
        for number in range(1, 5):
            await running[0].open_pull(number)
        outboxes = [process.stores.outbox(f"w{n}") for n, process in enumerate(running * 2)]
        done = 0
        while True:
            claims = await asyncio.gather(*(outbox.claim(5, NOW) for outbox in outboxes))
            targets = [effect.target for claim in claims for effect in claim]
            assert len(targets) == len(set(targets))
            if not targets:
                break
            finished = [
                outbox.finish(effect, began_at=NOW, now=NOW)
                for outbox, claim in zip(outboxes, claims, strict=True)
                for effect in claim
            ]
            done += sum(await asyncio.gather(*finished))
        assert done == 4 * len(MANY)


async def test_a_worker_that_lost_its_lease_can_neither_finish_nor_fail_the_effect() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.open_pull(1)
        slow, quick = one.stores.outbox("slow"), other.stores.outbox("quick")
        [old, *_] = await slow.claim(9, NOW)
        later = NOW + LEASE + timedelta(seconds=1)
        claimed_again = {effect.target: effect for effect in await quick.claim(9, later)}[old.target]
        failed = FailedAttempt(decision=TryAgain(later), error="late", unsure=False, counts=True)
        finished, _, held = await asyncio.gather(
            slow.finish(old, began_at=None, now=later),
            slow.fail(old, failed, later),
            quick.finish(claimed_again, began_at=later, now=later),
        )
        assert (finished, held) == (False, True)
        [row] = await one.stores.rows(f"SELECT state FROM effects WHERE effect_id = {old.effect_id}")  # noqa: S608
        assert row["state"] == "done"


# Units


async def test_of_two_deadlocked_writes_one_is_run_again_and_both_are_committed() -> None:
    async with processes(2, LISTED) as (one, other):
        names = ("z/1", "z/2")

        async def add_rows(tx: Tx) -> None:
            for name in names:
                await tx.run(_NOTE, name=name)

        await one.database.write(add_rows)
        runs = Counter[str]()
        marking = set[str]()

        def unit_locking(process: str, order: tuple[str, ...]) -> Any:
            async def unit(tx: Tx) -> None:
                runs[process] += 1
                await tx.run(_MARK, name=order[0])
                marking.add(process)
                while len(marking) < 2:  # a unit may await nothing but its transaction
                    await tx.one(_ONE)
                await tx.run(_MARK, name=order[1])

            return unit

        await asyncio.gather(
            one.database.write(unit_locking("one", names), lane="a"),
            other.database.write(unit_locking("other", names[::-1]), lane="b"),
        )
        rows = await one.stores.rows("SELECT created_at FROM upstreams WHERE upstream LIKE 'z/%'")
        assert [row["created_at"] for row in rows] == [2, 2]
        assert sorted(runs.values()) == [1, 2]


async def test_a_failing_unit_of_a_batch_fails_no_other_unit() -> None:
    async with processes(1, LISTED) as (one,):

        def adding(name: str, *, fails: bool) -> Any:
            async def unit(tx: Tx) -> str:
                await tx.run(_NOTE, name=name)
                if fails:
                    raise NotFound("no")
                return name

            return unit

        held = await pause_before_commit(
            one.database, empty_unit, lane="x"
        )  # so that the other writes queue behind it
        units = [adding(f"z/{n}", fails=n % 3 == 0) for n in range(12)]
        writes = [asyncio.create_task(one.database.write(unit, lane="x")) for unit in units]
        await held.end()
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert [isinstance(result, NotFound) for result in results] == [n % 3 == 0 for n in range(12)]
        rows = await one.stores.rows("SELECT name FROM upstreams WHERE upstream LIKE 'z/%'")
        assert len(rows) == 8


async def _note(tx: Tx, name: str) -> int:
    return await tx.run(_NOTE, name=name)


async def test_a_failing_statement_fails_only_its_own_unit() -> None:
    """On PostgreSQL an error fails the whole transaction; the other units of the batch are run again."""
    async with processes(1, LISTED) as (one,):
        held = await pause_before_commit(one.database, empty_unit)
        same = [one.database.write(lambda tx: tx.run(_NOTE, name="z/same")) for _ in range(3)]
        distinct = [one.database.write(partial(_note, name=f"z/{number}")) for number in range(3)]
        writes = [asyncio.create_task(item) for item in (*same, *distinct)]
        await held.end()
        results = await asyncio.gather(*writes, return_exceptions=True)
        assert sum(isinstance(item, Exception) for item in results) == 2
        assert results[3:] == [1, 1, 1]


@pytest.mark.parametrize("lane", [None, "org/backend"])
async def test_units_of_a_lane_are_serialized_across_processes(lane: str | None) -> None:
    """Read a number, then write the next: across all processes, each number is used exactly once."""
    newest = Statement(text("SELECT count(*) AS n FROM upstreams WHERE upstream LIKE 'n/%'"))
    async with processes(4, LISTED) as running:

        async def unit(tx: Tx) -> int:
            row = await tx.one(newest)
            number = row["n"] if row else 0
            await tx.run(_NOTE, name=f"n/{number}")
            return int(number)

        numbers_used = await asyncio.gather(
            *(process.database.write(unit, lane=lane) for process in running * 10)
        )
        assert sorted(numbers_used) == list(range(40))
