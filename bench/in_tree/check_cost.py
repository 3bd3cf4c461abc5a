"""A large upstream's own CI: over 100,000 check webhooks in any order.

Each commit has 500 checks, of which some fail and run again; each webhook may come twice, and those of all commits are mixed.
The counts are compared with what the generated CI shows in the end. The rows of a commit are counted an hour later.
"""
# ruff: noqa: S608 - every name in these statements is our own

import asyncio
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from random import Random

from sqlalchemy import text

from bench.relay_process.relay_setup import Row
from crcr.decide.dispatch.plan import ReceivedDelivery
from crcr.decide.events import InTreeCheckEvent
from crcr.decide.in_tree.checks import InTreeCheck
from crcr.decide.model import RepoName
from crcr.record.in_tree.recorder import InTreeRecorder
from crcr.record.in_tree.upkeep import InTreeUpkeep
from crcr.record.migrations.run import migrate
from crcr.record.store.database import Database, Tx
from crcr.record.store.signals import Signals
from crcr.record.store.sqlite.database import SqliteDatabase
from crcr.record.store.statement import Statement

SEED = 19
COMMITS = 80
CHECKS = 500
AT_ONCE = 32
UPSTREAM = RepoName("owner/repo")
NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
_FAILING, _REPEATED = 0.1, 0.2
_TABLES = ("in_tree_commits", "in_tree_checks", "changes", "deliveries", "webhook_bodies", "effects", "audit")
_COUNTS = Statement(
    text("SELECT sha, passed, failed, running, length(packed) AS packed FROM in_tree_commits")
)
_REGISTER = Statement(
    text("INSERT INTO upstreams (upstream, name, created_at) VALUES (:upstream, :upstream, 0)")
)


@dataclass(frozen=True)
class GeneratedCi:
    """The webhooks of all commits, and what each commit shows in the end: passed and failed."""

    webhooks: Sequence[tuple[str, InTreeCheck]]
    truth: dict[str, Counter[str]] = field(default_factory=dict)


def generate(chance: Random, commits: int) -> GeneratedCi:
    webhooks: list[tuple[str, InTreeCheck]] = []
    truth: dict[str, Counter[str]] = {}
    check_id, ended_at = 48_000_000_000, 1_780_000_000
    for number in range(commits):
        sha = f"{number + 1:040x}"
        truth[sha] = Counter()
        for name in (
            f"linux-jammy-py3.{job % 10} / test (default, {job}, {CHECKS})" for job in range(CHECKS)
        ):
            while True:
                check_id, ended_at = check_id + chance.randint(1, 90), ended_at + 1
                url = f"https://github.com/owner/repo/actions/runs/17200000001/job/{check_id}"
                started = InTreeCheck(15_368, name, check_id, None, None, url)
                fails = chance.random() < _FAILING
                conclusion = "failure" if fails else "success"
                webhooks += [
                    (sha, started),
                    (sha, started._replace(conclusion=conclusion, ended_at=ended_at)),
                ]
                if not fails or chance.random() < 0.5:
                    break
            truth[sha][conclusion] += 1
    webhooks += chance.sample(webhooks, int(len(webhooks) * _REPEATED))
    chance.shuffle(webhooks)
    return GeneratedCi(webhooks, truth)


def measure_in_tree(folder: Path) -> Iterator[Row]:
    folder.mkdir(parents=True, exist_ok=True)
    migrate(folder / "crcr.db")
    yield from asyncio.run(_measure(SqliteDatabase(folder / "crcr.db", Signals())))


async def _measure(database: Database) -> list[Row]:
    ci = generate(Random(SEED), COMMITS)  # noqa: S311
    await database.write(lambda tx: tx.run(_REGISTER, upstream=UPSTREAM.key))
    spent = await _send(database, ci.webhooks, NOW)
    await InTreeUpkeep(database).run(NOW + timedelta(hours=1))
    right = await _compare(database, ci)
    rows, packed = await _count_rows(database)
    late = [(sha, check._replace(check_id=check.check_id + 10**9)) for sha, check in ci.webhooks[:2_000]]
    spent_late = await _send(database, late, NOW + timedelta(hours=2))
    await database.close()
    return [
        (
            f"a check webhook, {len(ci.webhooks):,} of {COMMITS} commits in any order (seed {SEED}), processor time",
            f"{spent * 1e3:.2f} ms; a check of a packed commit {spent_late * 1e3:.2f} ms",
            "< 1 ms",
            max(spent, spent_late) < 0.001,
        ),
        (
            f"counts of {COMMITS} commits, as the generated CI has them",
            f"{right} right",
            "all",
            right == COMMITS,
        ),
        (
            f"rows of a commit with {CHECKS} checks, an hour after the last one",
            f"{rows:.1f} rows, {packed / 1024:.1f} KB packed",
            "< 5 rows",
            rows < 5,
        ),
    ]


async def _send(database: Database, webhooks: Sequence[tuple[str, InTreeCheck]], now: datetime) -> float:
    """Record the webhooks, some at once as a busy relay does; return the processor time of one."""
    recorder = InTreeRecorder(database, "990")

    async def record(sha: str, check: InTreeCheck) -> None:
        event = InTreeCheckEvent(UPSTREAM, 1, sha, check, None, 1)
        await recorder.record_event(
            ReceivedDelivery("guid", "check_run", "webhook", b"", 2, now, None), event
        )

    began = time.process_time()
    for start in range(0, len(webhooks), AT_ONCE):
        await asyncio.gather(*(record(*webhook) for webhook in webhooks[start : start + AT_ONCE]))
    return (time.process_time() - began) / len(webhooks)


async def _compare(database: Database, ci: GeneratedCi) -> int:
    rows = await database.read(lambda tx: tx.all(_COUNTS))
    return sum(
        (row["passed"], row["failed"], row["running"])
        == (ci.truth[row["sha"]]["success"], ci.truth[row["sha"]]["failure"], 0)
        for row in rows
    )


async def _count_rows(database: Database) -> tuple[float, float]:
    """Rows, and bytes of the packed checks, for each commit."""

    async def unit(tx: Tx) -> tuple[int, int]:
        rows = 0
        for table in _TABLES:
            row = await tx.one(Statement(text(f"SELECT count(*) AS number FROM {table}")))
            rows += row["number"] if row else 0
        return rows, sum(row["packed"] for row in await tx.all(_COUNTS))

    rows, packed = await database.read(unit)
    return rows / COMMITS, packed / COMMITS
