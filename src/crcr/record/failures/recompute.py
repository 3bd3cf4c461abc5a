"""Computes the fingerprints of recorded failures again after a change of their rules, in the background.

The newest failures come first, a few in each unit of work, with other writers between two units. Any unit may be the last: the
version of the rules in each row says what is left. A group of the old rules is deleted with its last member, and its known issue
goes over to the group that replaces it: that of the most frequent message of each failure. When all are computed, the failures
are judged by their new fingerprints, a few jobs in each unit; `judged_at` says which are left.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import structlog
from sqlalchemy import text

from crcr.decide.failures.fingerprint import RULES, fingerprint_failure
from crcr.decide.model import RepoName
from crcr.ports import Clock
from crcr.record.failures.failure_rows import (
    add_fingerprints,
    find_groups,
    find_log_mark,
    fingerprint_columns,
)
from crcr.record.failures.recorder import FailureRecorder, read_failed_tests, read_log_excerpt
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us

log = structlog.get_logger(__name__)

MOST_FAILURES = 50
"""That one unit computes."""
_MOST_JOBS = 5
_TOLD_EVERY = 5_000
_NEXT = Statement(
    text(
        "SELECT f.failure_id, f.upstream, f.downstream, f.at, f.fingerprint, f.fingerprints, f.log_fingerprint, j.failed_tests,"
        " j.log_excerpt FROM failures f"
        " LEFT JOIN jobs j ON j.delivery = f.delivery AND j.upstream = f.upstream AND j.downstream = f.downstream"
        " AND j.workflow = f.workflow AND j.run_id = f.run_id AND j.attempt = f.attempt AND j.job_name = f.job_name"
        " WHERE f.rules < :rules ORDER BY f.rules DESC, f.failure_id DESC LIMIT :most"
    )
)
_WRITE = Statement(
    text(
        "UPDATE failures SET fingerprint = :fingerprint, rules = :rules, sample = :sample, fingerprints = :fingerprints,"
        " log_fingerprint = :log_fingerprint, judged_at = NULL WHERE failure_id = :failure_id"
    )
)
_LEAVE = Statement(
    text(
        "DELETE FROM failure_fingerprints WHERE fingerprint = :fingerprint AND upstream = :upstream"
        " AND failure_id = :failure_id"
    )
)
_COUNT_DOWN = Statement(
    text(
        "UPDATE failure_groups SET number = number - 1 WHERE fingerprint = :fingerprint AND upstream = :upstream"
        " AND downstream = :downstream AND number > 1"
    )
)
_DROP_GROUP = Statement(
    text(
        "DELETE FROM failure_groups WHERE fingerprint = :fingerprint AND upstream = :upstream AND NOT EXISTS"
        " (SELECT 1 FROM failure_fingerprints m WHERE m.fingerprint = :fingerprint AND m.upstream = :upstream)"
    )
)
_DROP_TESTS = Statement(
    text(
        "DELETE FROM failed_tests WHERE fingerprint = :fingerprint AND upstream = :upstream AND NOT EXISTS"
        " (SELECT 1 FROM failure_groups g WHERE g.fingerprint = :fingerprint AND g.upstream = :upstream)"
    )
)
_PASS_ON_ISSUE = Statement(
    text(
        "INSERT INTO known_failures (fingerprint, upstream, url, state, who, reason, created_at, until_at, checked_at,"
        " ended_at) SELECT CAST(:new AS TEXT), upstream, url, state, who, reason, created_at, until_at, checked_at, ended_at"
        " FROM known_failures WHERE fingerprint = :old AND upstream = :upstream ON CONFLICT DO NOTHING"
    )
)
_LEFT = Statement(text("SELECT count(*) AS number FROM failures WHERE rules < :rules"))
_LEFT_OF_UPSTREAM = Statement(
    text("SELECT count(*) AS number FROM failures WHERE rules < :rules AND upstream = :upstream")
)


async def count_left(tx: Tx, upstream: RepoName | None = None) -> int:
    """How many failures have fingerprints of older rules."""
    if upstream is None:
        row = await tx.one(_LEFT, rules=RULES)
    else:
        row = await tx.one(_LEFT_OF_UPSTREAM, rules=RULES, upstream=upstream.key)
    return row["number"] if row else 0


async def _at_once() -> None:
    await asyncio.sleep(0)


class FingerprintUpdate:
    def __init__(
        self,
        database: Database,
        recorder: FailureRecorder,
        clock: Clock,
        *,
        goes_on: Callable[[], bool] = lambda: True,
        breathe: Callable[[], Awaitable[None]] = _at_once,
    ) -> None:
        """`goes_on` is called before each unit; `breathe` is awaited between two."""
        self._database = database
        self._recorder = recorder
        self._clock = clock
        self._all_judged = False
        self._goes_on = goes_on
        self._breathe = breathe

    async def run(self) -> int:
        """Compute until nothing is left or the process stops; return how many failures were computed."""
        left = await self._database.read(count_left)
        done = await self._compute(left) if left else 0
        if done or not self._all_judged:
            await self._judge()
        return done

    async def _compute(self, left: int) -> int:
        log.info("fingerprints_outdated", failures=left)
        done, told = 0, 0
        while self._goes_on() and (step := await self._database.write(recompute_some)):
            done += step
            if done - told >= _TOLD_EVERY:
                told = done
                log.info("fingerprints_recomputed", failures=done, left=await self._database.read(count_left))
            await self._breathe()
        log.info("fingerprints_recomputed", failures=done, left=await self._database.read(count_left))
        return done

    async def _judge(self) -> None:
        """Judge all failures that were not judged by their present fingerprints."""
        done = 0
        while self._goes_on():
            judge = partial(self._recorder.judge_unjudged, now=self._clock.now(), most=_MOST_JOBS)
            step = await self._database.write(judge)
            if not step:
                self._all_judged = True
                break
            done += step
            await self._breathe()
        if done:
            log.info("failures_judged_again", jobs=done)


async def recompute_some(tx: Tx, most: int = MOST_FAILURES) -> int:
    """Compute the newest outdated failures; return how many there were."""
    rows = await tx.all(_NEXT, rules=RULES, most=most)
    outdated: set[tuple[str, str]] = set()
    for row in rows:
        outdated |= {(fingerprint, row["upstream"]) for fingerprint in await _leave_groups(tx, row)}
        await _join_groups(tx, row)
    for fingerprint, upstream in sorted(outdated):
        await tx.run(_DROP_GROUP, fingerprint=fingerprint, upstream=upstream)
        await tx.run(_DROP_TESTS, fingerprint=fingerprint, upstream=upstream)
    return len(rows)


async def _leave_groups(tx: Tx, row: Row) -> list[str]:
    fingerprints = (row["fingerprints"] or row["log_fingerprint"] or "").split()
    for fingerprint in fingerprints:
        key: dict[str, Any] = {"fingerprint": fingerprint, "upstream": row["upstream"]}
        await tx.run(_LEAVE, failure_id=row["failure_id"], **key)
        await tx.run(_COUNT_DOWN, downstream=row["downstream"], **key)
    return fingerprints


async def _join_groups(tx: Tx, row: Row) -> None:
    tests = read_failed_tests(row["failed_tests"])
    marks, log_mark = fingerprint_failure(tests), find_log_mark(tests, read_log_excerpt(row["log_excerpt"]))
    await tx.run(_WRITE, failure_id=row["failure_id"], **fingerprint_columns(marks, log_mark))
    names = {"upstream": row["upstream"], "downstream": row["downstream"]}
    groups = find_groups(tests, marks, log_mark)
    await add_fingerprints(tx, row["failure_id"], names, groups, at=from_us(row["at"]))
    old, new = (
        row["fingerprint"] or row["log_fingerprint"],
        marks.fingerprint or next(iter(groups.samples), None),
    )
    if old and new:
        await tx.run(_PASS_ON_ISSUE, old=old, new=new, upstream=row["upstream"])
