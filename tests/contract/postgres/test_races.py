"""Races between two processes on one PostgreSQL, all without effect."""

import asyncio
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
_NOTE = Statement(text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:name, :name, 0)"))
_MARK = Statement(text("UPDATE upstreams SET created_at = created_at + 1 WHERE upstream = :name"))


async def numbers(process: Process) -> dict[str, Any]:
    sums = "SELECT sum(success) AS success, sum(failure) AS failure FROM hours"
    [row] = await process.stores.rows(sums)
    jobs = await process.stores.rows("SELECT state, conclusion FROM jobs")
    return {**row, "jobs": [(job["state"], job["conclusion"]) for job in jobs]}


# Reports


async def test_fault_14_of_64_equal_reports_at_once_one_is_applied() -> None:
    async with processes(4, LISTED) as running:
        guid = await running[0].open_and_send(1)
        starts = await asyncio.gather(*(each.report(guid) for each in running * 16))
        assert count_outcomes(starts) == {"OpenJob": 1, "RepeatedReport": 63}
        ends = await asyncio.gather(
            *(each.report(guid, "completed", conclusion="success") for each in running * 16)
        )
        assert count_outcomes(ends) == {"CloseJob": 1, "RepeatedReport": 63}
        assert await numbers(running[0]) == {"success": 1, "failure": 0, "jobs": [("completed", "success")]}
        assert len(await running[0].stores.rows("SELECT 1 AS one FROM changes WHERE kind = 'job'")) == 2


async def test_of_contradicting_results_at_once_one_is_applied_and_counted() -> None:
    async with processes(4, LISTED) as running:
        guid = await running[0].open_and_send(1)
        await running[0].report(guid)
        said = [Conclusion.SUCCESS, Conclusion.FAILURE]
        outcomes = await asyncio.gather(
            *(each.report(guid, "completed", conclusion=said[n % 2]) for n, each in enumerate(running * 8))
        )
        assert count_outcomes(outcomes)["CloseJob"] == 1
        assert count_outcomes(outcomes)["conflicting_result"] == 16
        counted = await numbers(running[0])
        assert counted["success"] + counted["failure"] == 1


async def test_two_repositories_that_name_one_run_are_two_runs() -> None:
    """Their lanes differ, so that they are judged side by side."""
    async with processes(2, LISTED) as (one, other):
        guid = await one.open_and_send(1)
        second = a_caller(repository=RepoName("org/second"), repository_id=7, check_run_id="200")
        outcomes = await asyncio.gather(
            *(p.report(guid, who=w) for p, w in ((one, None), (other, second)) * 20)
        )
        assert count_outcomes(list(outcomes)) == {"OpenJob": 2, "RepeatedReport": 38}
        found = await one.stores.rows("SELECT downstream, delivery FROM runs ORDER BY downstream")
        assert [row["downstream"] for row in found] == ["org/backend", "org/second"]


async def test_reports_of_many_backends_at_once_are_all_counted_in_the_same_sums() -> None:
    """They add to different rows in one table, and some to the same ones, in whichever order they come."""
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

        async def whole(process: Process, guid: str, who: Identity) -> ReportOutcome | IgnoredReport:
            await process.report(guid, who=who)
            return await process.report(guid, "completed", who=who, conclusion="success")

        outcomes = await asyncio.gather(*(whole(running[n % 4], *each) for n, each in enumerate(work)))
        assert count_outcomes(list(outcomes)) == {"CloseJob": len(work)}
        for table in ("hours", "days", "job_days"):
            [row] = await running[0].stores.rows(f"SELECT sum(success) AS success FROM {table}")  # noqa: S608
            assert row["success"] == len(work)


async def test_a_report_that_comes_while_its_retry_is_claimed_leaves_one_of_them_the_word() -> None:
    """A dispatch in doubt: its run answers while a worker takes the retry."""
    async with processes(2, LISTED) as (one, other):
        guid = await one.open_pull(1)
        worker = one.stores.outbox("w")
        for effect in await worker.claim(9, NOW):
            again = FailedAttempt(decision=TryAgain(NOW), error="lost", unsure=True, counts=True)
            await worker.fail(effect, again, NOW)
        claimed, outcome = await asyncio.gather(one.stores.outbox("a").claim(9, NOW), other.report(guid))
        assert count_outcomes([outcome]) == {"OpenJob": 1}
        [row] = await one.stores.rows("SELECT state FROM effects WHERE target = 'org/backend'")
        taken = any(each.target == "org/backend" for each in claimed)
        assert row["state"] in ({"claimed"} if taken else {"cancelled", "done"})


# Effects


def look(now: Any = NOW) -> dict[str, Any]:
    return effect_row(CORE, EffectKind.PUBLISH_CHECKS, target="checks/gate", lane="a" * 40, now=now)


async def test_what_somebody_relies_on_is_not_claimed_before_that_somebodys_commit() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, look()))
        adding = await pause_before_commit(one.database, lambda tx: add_once(tx, look()), lane="org/backend")
        outbox = other.stores.outbox("w")
        assert await outbox.claim(9, NOW) == []
        await adding.end()
        assert [effect.target for effect in await outbox.claim(9, NOW)] == ["checks/gate"]
        assert await outbox.claim(9, NOW) == []


async def test_who_comes_while_it_is_being_claimed_adds_one_of_its_own() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.database.write(lambda tx: add_once(tx, look()))
        take = Statement(text("UPDATE effects SET state = 'claimed', lease_owner = 'x', lease_until = 9e15"))
        claiming = await pause_before_commit(one.database, lambda tx: tx.run(take), lane="claims")
        adding = asyncio.create_task(other.database.write(lambda tx: add_once(tx, look()), lane="org/second"))
        await claiming.end()
        await adding
        found = await one.stores.rows("SELECT state FROM effects ORDER BY effect_id")
        assert [row["state"] for row in found] == ["claimed", "waiting"]


async def test_those_who_hasten_one_effect_do_not_wait_for_each_other_in_a_circle() -> None:
    """Both rely on it and both want it sooner; PostgreSQL would take a second to see such a circle."""
    async with processes(4, LISTED) as running:
        await running[0].database.write(lambda tx: add_once(tx, look(NOW + timedelta(hours=1))))

        async def unit(tx: Tx) -> None:
            await add_once(tx, look(NOW + timedelta(minutes=1)))
            await add_once(tx, look(NOW))

        writes = [p.database.write(unit, lane=f"lane {n}") for n, p in enumerate(running * 4)]
        await asyncio.wait_for(asyncio.gather(*writes), 20)
        found = await running[0].stores.rows("SELECT due_at FROM effects WHERE state = 'waiting'")
        assert len(found) >= 1
        assert await deadlocks(running[0]) == 0


async def deadlocks(process: Process) -> int:
    sql = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    [row] = await process.stores.rows(sql)
    return int(row["deadlocks"])


async def test_fault_10_claimers_never_have_two_effects_of_one_target_under_way() -> None:
    async with processes(4, "L1:\n" + "".join(f"  - {name}\n" for name in MANY)) as running:
        for number in range(1, 5):
            await running[0].open_pull(number)
        boxes = [process.stores.outbox(f"w{n}") for n, process in enumerate(running * 2)]
        done = 0
        while True:
            claims = await asyncio.gather(*(box.claim(5, NOW) for box in boxes))
            targets = [effect.target for claim in claims for effect in claim]
            assert len(targets) == len(set(targets))
            if not targets:
                break
            finished = [
                box.finish(effect, began_at=NOW, now=NOW)
                for box, claim in zip(boxes, claims, strict=True)
                for effect in claim
            ]
            done += sum(await asyncio.gather(*finished))
        assert done == 4 * len(MANY)


async def test_who_lost_the_lease_changes_nothing_any_more() -> None:
    async with processes(2, LISTED) as (one, other):
        await one.open_pull(1)
        slow, quick = one.stores.outbox("slow"), other.stores.outbox("quick")
        [old, *_] = await slow.claim(9, NOW)
        later = NOW + LEASE + timedelta(seconds=1)
        mine = {effect.target: effect for effect in await quick.claim(9, later)}[old.target]
        failed = FailedAttempt(decision=TryAgain(later), error="late", unsure=False, counts=True)
        finished, _, held = await asyncio.gather(
            slow.finish(old, began_at=None, now=later),
            slow.fail(old, failed, later),
            quick.finish(mine, began_at=later, now=later),
        )
        assert (finished, held) == (False, True)
        [row] = await one.stores.rows(f"SELECT state FROM effects WHERE effect_id = {old.effect_id}")  # noqa: S608
        assert row["state"] == "done"


# Units


async def test_a_circle_of_two_is_broken_and_both_are_done() -> None:
    async with processes(2, LISTED) as (one, other):
        names = ("z/1", "z/2")

        async def there(tx: Tx) -> None:
            for name in names:
                await tx.run(_NOTE, name=name)

        await one.database.write(there)
        both = asyncio.Barrier(2)
        first = {"one": True, "other": True}

        def crossing(who: str, order: tuple[str, ...]) -> Any:
            async def unit(tx: Tx) -> None:
                await tx.run(_MARK, name=order[0])
                if first.pop(who, False):
                    await both.wait()
                await tx.run(_MARK, name=order[1])

            return unit

        await asyncio.gather(
            one.database.write(crossing("one", names), lane="a"),
            other.database.write(crossing("other", names[::-1]), lane="b"),
        )
        rows = await one.stores.rows("SELECT created_at FROM upstreams WHERE upstream LIKE 'z/%'")
        assert [row["created_at"] for row in rows] == [2, 2]
        assert await deadlocks(one) >= 0


async def test_of_a_group_a_unit_that_fails_takes_none_with_it() -> None:
    async with processes(1, LISTED) as (one,):

        def adding(name: str, *, fails: bool) -> Any:
            async def unit(tx: Tx) -> str:
                await tx.run(_NOTE, name=name)
                if fails:
                    raise NotFound("no")
                return name

            return unit

        holding = await pause_before_commit(
            one.database, empty_unit, lane="x"
        )  # so that the others gather behind it
        units = [adding(f"z/{n}", fails=n % 3 == 0) for n in range(12)]
        writes = [asyncio.create_task(one.database.write(unit, lane="x")) for unit in units]
        await holding.end()
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert [isinstance(each, NotFound) for each in answers] == [n % 3 == 0 for n in range(12)]
        rows = await one.stores.rows("SELECT name FROM upstreams WHERE upstream LIKE 'z/%'")
        assert len(rows) == 8


async def _note(tx: Tx, name: str) -> int:
    return await tx.run(_NOTE, name=name)


async def test_a_statement_that_fails_is_its_own_units_failure_only() -> None:
    """On PostgreSQL an error spoils its whole transaction; the neighbours are run again."""
    async with processes(1, LISTED) as (one,):
        holding = await pause_before_commit(one.database, empty_unit)
        same = [one.database.write(lambda tx: tx.run(_NOTE, name="z/same")) for _ in range(3)]
        fine = [one.database.write(partial(_note, name=f"z/{number}")) for number in range(3)]
        writes = [asyncio.create_task(each) for each in (*same, *fine)]
        await holding.end()
        answers = await asyncio.gather(*writes, return_exceptions=True)
        assert sum(isinstance(each, Exception) for each in answers) == 2
        assert answers[3:] == [1, 1, 1]


@pytest.mark.parametrize("lane", [None, "org/backend"])
async def test_a_unit_decides_as_if_alone_in_its_lane(lane: str | None) -> None:
    """Read, then write what follows from it: of all processes together, exactly once for each number."""
    newest = Statement(text("SELECT count(*) AS n FROM upstreams WHERE upstream LIKE 'n/%'"))
    async with processes(4, LISTED) as running:

        async def unit(tx: Tx) -> int:
            row = await tx.one(newest)
            number = row["n"] if row else 0
            await tx.run(_NOTE, name=f"n/{number}")
            return int(number)

        found = await asyncio.gather(*(each.database.write(unit, lane=lane) for each in running * 10))
        assert sorted(found) == list(range(40))
