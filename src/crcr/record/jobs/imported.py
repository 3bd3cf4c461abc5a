"""Imported history: results of another relay as jobs of ours, counted on their own days, once, however often they come.

A batch of results and how far its source has been read are written in one transaction, so an import that is killed goes on
where it was. Rows are found by the other relay's key (delivery, backend, workflow, run, attempt, job, check run): a result
that is there already changes nothing, and one that has changed since is moved in the sums. Nothing is sent, checked or judged.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.checks.commit import Verification
from crcr.decide.jobs.imported import (
    DELIVERY_PREFIX,
    ImportedJob,
    NotImported,
    PullDispatch,
    superseded_dispatches,
)
from crcr.decide.model import Level, RepoName
from crcr.errors import NoAllowlist
from crcr.record.change_and_audit_log import note_act, note_change
from crcr.record.clickhouse.feed_queue import note_job
from crcr.record.jobs.outcomes import failed_tests_text
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.schema.main_tables import dispatches, jobs
from crcr.record.statistics.recount_changed_jobs import recount, take_out
from crcr.record.statistics.sums import DAY_US
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us

_RUN = ("delivery", "upstream", "downstream", "workflow", "run_id", "attempt")
_KEY = (*_RUN, "job_name")
_RESULT = (
    *("conclusion", "completed_at", "queue_s", "execution_s"),
    *("tests_passed", "tests_failed", "tests_skipped", "tests_total"),
)
"""Columns that a later import may correct."""
_FIXED = (
    *("reported_name", "state", "first_conclusion", "superseded", "opened_by", "level", "event", "number"),
    *("head_sha", "workflow_name", "url", "artifact_url", "check_run_text", "environment", "in_progress_at"),
    *("started_at", "silent_at", "verification", "failed_tests", "failed_tests_cut", "expected", "trusted"),
    *("untrusted", "imported"),
)
_LEGS = Statement(
    text(
        f"SELECT job_name, opened_by, in_progress_at, {', '.join(_RESULT)} FROM jobs WHERE delivery = :delivery"  # noqa: S608  our own names
        " AND upstream = :upstream AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id"
        " AND attempt = :attempt AND reported_name = :reported_name"
    )
)
_INSERT = Statement(inserting(jobs, *_KEY, *_FIXED, *_RESULT).on_conflict_do_nothing())
_RENAME = Statement(
    text(
        "UPDATE jobs SET job_name = :new_name WHERE " + " AND ".join(f"{name} = :{name}" for name in _KEY)  # noqa: S608  our own names
    )
)
_NAMES = Statement(
    text(
        "SELECT job_name FROM jobs WHERE " + " AND ".join(f"{name} = :{name}" for name in _RUN)  # noqa: S608  our own names
    )
)
_CORRECT = Statement(
    text(
        f"UPDATE jobs SET {', '.join(f'{name} = :{name}' for name in _RESULT)} WHERE "  # noqa: S608  our own names
        + " AND ".join(f"{name} = :{name}" for name in _KEY)
    )
)
_DISPATCH = Statement(
    inserting(
        dispatches,
        *("delivery", "upstream", "downstream", "level", "state", "event", "number", "head_sha", "lane"),
        *("created_at", "sent_at", "imported"),
    ).on_conflict_do_nothing()
)
# The dispatch was sent before the first of its jobs began, whichever of them comes first.
_SENT_EARLIER = Statement(
    text(
        "UPDATE dispatches SET created_at = :created_at, sent_at = :created_at WHERE delivery = :delivery"
        " AND upstream = :upstream AND downstream = :downstream AND imported = 1 AND created_at > :created_at"
    )
)
# What a relay in shadow mode did not send, only the other relay got answers to.
_OWN_DISPATCH = Statement(
    text(
        "SELECT 1 FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND state IN ('waiting', 'sent', 'parked') AND (reason IS NULL OR reason <> 'shadow')"
        " UNION ALL SELECT 1 FROM jobs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " LIMIT 1"
    )
)
_OWN_RUN = Statement(
    text(
        "SELECT 1 FROM jobs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND run_id = :run_id AND imported = 0 LIMIT 1"
    )
)
_RUNS = Statement(
    text(
        "SELECT DISTINCT run_id FROM jobs WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow"
    )
)
_SUPERSEDE_RUN = Statement(
    text(
        "UPDATE jobs SET superseded = 1 WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND imported = 1"
    )
)
_COUNT_DAY_AGAIN = Statement(
    text(
        "DELETE FROM level_days WHERE upstream = :upstream AND downstream = :downstream AND day_at = :day_at"
    )
)
_NEXT_BACKEND = Statement(
    text(
        "SELECT min(downstream) AS downstream FROM dispatches WHERE imported = 1 AND upstream = :upstream"
        " AND downstream > :after"
    )
)
_NEXT_PULLS = Statement(
    text(
        "SELECT DISTINCT number FROM dispatches WHERE imported = 1 AND upstream = :upstream AND downstream = :downstream"
        " AND number > :after ORDER BY number LIMIT :most"
    )
)
# Ours by the deliveries of the pull request, and the imported ones by their own index: the index of a backend would have all
# its dispatches read for each pull request.
_OF_PULL = Statement(
    text(
        "SELECT delivery, head_sha, created_at, superseded_at, imported FROM dispatches WHERE imported = 1"
        " AND upstream = :upstream AND downstream = :downstream AND number = :number AND event = 'pull_request'"
        " UNION ALL SELECT d.delivery, d.head_sha, d.created_at, d.superseded_at, d.imported FROM deliveries v"
        " CROSS JOIN dispatches d WHERE v.upstream = :upstream AND v.number = :number AND d.delivery = v.guid"
        " AND d.upstream = v.upstream AND d.downstream = :downstream AND d.event = 'pull_request' AND d.test = 0"
    )
)
_SUPERSEDE = Statement(
    text(
        "UPDATE dispatches SET superseded_at = :at WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND imported = 1 AND superseded_at IS NULL"
    )
)
_PROGRESS = Statement(
    text("SELECT position, counts, started_at, finished_at FROM imports WHERE source = :source")
)
_WRITE_PROGRESS = Statement(
    text(
        "INSERT INTO imports (source, position, counts, started_at, updated_at, finished_at)"
        " VALUES (:source, :position, :counts, :at, :at, :finished_at) ON CONFLICT (source) DO UPDATE SET"
        " position = excluded.position, counts = excluded.counts, updated_at = excluded.updated_at,"
        " finished_at = excluded.finished_at"
    )
)
_BEGIN = Statement(
    text(
        "INSERT INTO imports (source, position, counts, started_at, updated_at) VALUES (:source, '{}', '{}', :at, :at)"
        " ON CONFLICT (source) DO UPDATE SET position = '{}', counts = '{}', started_at = excluded.started_at,"
        " updated_at = excluded.updated_at, finished_at = NULL"
    )
)
_PULLS_AT_ONCE = 100

OUTCOMES = (TAKEN, CORRECTED, UNCHANGED) = ("taken", "corrected", "unchanged")
READ = "read"


@dataclass(slots=True)
class ImportProgress:
    """How far a source has been read, and what became of its results, by reason."""

    source: str
    position: dict[str, Any] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    is_finished: bool = False

    def add(self, counts: Mapping[str, int], position: Mapping[str, Any]) -> "ImportProgress":
        return ImportProgress(self.source, {**self.position, **position}, self.counts + Counter(counts))


class ImportedResults:
    def __init__(self, database: Database, allowlists: Allowlists, upstreams: Sequence[RepoName]) -> None:
        self._database = database
        self._allowlists = allowlists
        self._upstreams = upstreams

    async def begin(self, source: str, now: datetime, *, anew: bool) -> ImportProgress:
        """Return how far the import of a source is; one that was finished, or is to begin `anew`, starts over."""

        async def unit(tx: Tx) -> ImportProgress:
            row = await tx.one(_PROGRESS, source=source)
            if row is not None and row["finished_at"] is None and not anew:
                return ImportProgress(source, json.loads(row["position"]), Counter(json.loads(row["counts"])))
            await tx.run(_BEGIN, source=source, at=to_us(now))
            return ImportProgress(source)

        return await self._database.write(unit)

    async def take(
        self,
        progress: ImportProgress,
        planned: Sequence[ImportedJob | NotImported],
        position: Mapping[str, Any],
        now: datetime,
        *,
        dry_run: bool,
    ) -> tuple[ImportProgress, list[str]]:
        """Take a batch that was read up to `position`; return the progress, and what became of each result."""

        async def unit(tx: Tx) -> list[str]:
            batch = _Batch(tx, await self._entries(tx), now, dry_run=dry_run)
            outcomes = [await batch.take(one) if isinstance(one, ImportedJob) else one for one in planned]
            await batch.count()
            if not dry_run:
                done = progress.add(_count(outcomes), position)
                await _write_progress(tx, done, now, finished=False)
            return [str(outcome) for outcome in outcomes]

        outcomes = await (self._database.read(unit) if dry_run else self._database.write(unit))
        return progress.add(_count(outcomes), position), outcomes

    async def finish(self, progress: ImportProgress, who: str, now: datetime) -> int:
        """Settle which results newer heads superseded, and end the import; return how many dispatches were superseded."""
        number = 0
        for upstream in self._upstreams:
            number += await self._settle(upstream, now)

        async def unit(tx: Tx) -> None:
            await _write_progress(tx, progress, now, finished=True)
            if progress.counts[TAKEN] or progress.counts[CORRECTED]:
                for upstream in self._upstreams:
                    subject = progress.source
                    await note_act(
                        tx, upstream, who=who, act="import", subject=subject, now=now, **progress.counts
                    )

        await self._database.write(unit)
        return number

    async def _entries(self, tx: Tx) -> dict[tuple[str, str], AllowlistEntry]:
        entries: dict[tuple[str, str], AllowlistEntry] = {}
        for upstream in self._upstreams:
            try:
                allowlist = await self._allowlists.in_force(tx, upstream)
            except NoAllowlist:
                continue
            entries |= {(upstream.key, entry.name.key): entry for entry in allowlist.entries}
        return entries

    async def _settle(self, upstream: RepoName, now: datetime) -> int:
        number, after = 0, ""
        while (downstream := await self._next_backend(upstream, after)) is not None:
            number += await self._settle_backend(upstream, downstream, now)
            after = downstream
        return number

    async def _next_backend(self, upstream: RepoName, after: str) -> str | None:
        row = await self._database.read(lambda tx: tx.one(_NEXT_BACKEND, upstream=upstream.key, after=after))
        return row["downstream"] if row else None

    async def _settle_backend(self, upstream: RepoName, downstream: str, now: datetime) -> int:
        key = {"upstream": upstream.key, "downstream": downstream}
        number, last = 0, 0
        while True:

            async def unit(tx: Tx, last: int = last) -> tuple[int, int]:
                pulls = await tx.all(_NEXT_PULLS, after=last, most=_PULLS_AT_ONCE, **key)
                settled = sum([await _settle_pull(tx, key, pull["number"], now) for pull in pulls])
                if settled:
                    await note_change(tx, upstream, "job", downstream=downstream, now=now)
                return settled, pulls[-1]["number"] if pulls else 0

            settled, last = await self._database.write(unit)
            number += settled
            if not last:
                return number


async def _settle_pull(tx: Tx, key: Mapping[str, str], number: int, now: datetime) -> int:
    rows = await tx.all(_OF_PULL, number=number, **key)
    superseded = superseded_dispatches(
        PullDispatch(row["delivery"], row["head_sha"], row["created_at"]) for row in rows
    )
    settled = 0
    for row in rows:
        at = superseded.get(row["delivery"])
        if at is None or not row["imported"] or row["superseded_at"] is not None:
            continue
        await tx.run(_SUPERSEDE, at=at, delivery=row["delivery"], **key)
        await recount(tx, {"delivery": row["delivery"], **key}, now)
        settled += 1
    return settled


async def _write_progress(tx: Tx, progress: ImportProgress, now: datetime, *, finished: bool) -> None:
    await tx.run(
        _WRITE_PROGRESS,
        source=progress.source,
        position=json.dumps(progress.position),
        counts=json.dumps(progress.counts),
        at=to_us(now),
        finished_at=to_us(now) if finished else None,
    )


def _count(outcomes: Iterable[str]) -> Counter[str]:
    counts = Counter(str(outcome) for outcome in outcomes)
    counts[READ] = counts.total()
    return counts


class _Batch:
    """The results of one transaction: rows first, then each dispatch that changed is counted once."""

    def __init__(
        self, tx: Tx, entries: Mapping[tuple[str, str], AllowlistEntry], now: datetime, *, dry_run: bool
    ) -> None:
        self._tx = tx
        self._entries = entries
        self._now = now
        self._dry_run = dry_run
        self._changed: dict[tuple[str, ...], dict[str, str]] = {}
        self._days: set[tuple[str, str, int]] = set()

    async def take(self, job: ImportedJob) -> str:
        row = _make_row(
            job, self._entries.get((job.upstream.key, job.result.repository.key)), job.result.check_run
        )
        if await self._is_own(job, row):
            return NotImported.KNOWN
        legs = await self._tx.all(_LEGS, **{name: row[name] for name in (*_RUN, "reported_name")})
        leg = next((leg for leg in legs if leg["opened_by"] == row["opened_by"]), None)
        if leg is None:
            return await self._insert(job, row, legs)
        # ClickHouse has 0 where a count, or a time, is unknown.
        merged = {name: row[name] or leg[name] for name in _RESULT}
        if all(merged[name] == leg[name] for name in _RESULT):
            return UNCHANGED
        return await self._correct(
            {**{name: row[name] for name in _RUN}, "job_name": leg["job_name"]}, merged, row
        )

    async def _is_own(self, job: ImportedJob, row: Mapping[str, Any]) -> bool:
        if not job.is_self_report:
            names = {name: row[name] for name in ("upstream", "downstream")}
            delivery = job.result.report.delivery_id
            return await self._tx.one(_OWN_DISPATCH, delivery=delivery, **names) is not None
        run = {name: row[name] for name in ("delivery", "upstream", "downstream", "run_id")}
        return await self._tx.one(_OWN_RUN, **run) is not None

    async def _insert(self, job: ImportedJob, row: dict[str, Any], legs: Sequence[Row]) -> str:
        if self._dry_run:
            return TAKEN
        if not job.is_self_report:
            dispatch = {name: row[name] for name in ("delivery", "upstream", "downstream")}
            sent_at = to_us(job.sent_at)
            facts = {name: row[name] for name in ("level", "event", "number", "head_sha")}
            await self._tx.many(
                _DISPATCH,
                [
                    {
                        **dispatch,
                        **facts,
                        "state": "sent",
                        "lane": "imported",
                        "created_at": sent_at,
                        "sent_at": sent_at,
                        "imported": 1,
                    }
                ],
            )
            await self._tx.run(_SENT_EARLIER, created_at=sent_at, **dispatch)
        if legs:
            row["job_name"] = await self._name_legs(row, legs)
        if not await self._tx.run(_INSERT, **row):  # a job of another name is called like a leg of this one
            taken = await self._tx.all(_NAMES, **{name: row[name] for name in _RUN})
            row["job_name"] = _free_name(row["reported_name"], {other["job_name"] for other in taken})
            await self._tx.run(_INSERT, **row)
        await self._supersede_runs(row)
        self._note(row)
        return TAKEN

    async def _name_legs(self, row: Mapping[str, Any], legs: Sequence[Row]) -> str:
        """Number the legs of a matrix by their check runs, whichever was imported first; return the name of the new one."""
        run = {name: row[name] for name in _RUN}
        names = {leg["opened_by"]: leg["job_name"] for leg in legs}
        ordered = sorted((*names, row["opened_by"]), key=lambda check_run: (len(check_run), check_run))
        wanted = {
            check_run: row["reported_name"] if number == 1 else f"{row['reported_name']} ({number})"
            for number, check_run in enumerate(ordered, start=1)
        }
        moved = [leg for leg in legs if wanted[leg["opened_by"]] != leg["job_name"]]
        for leg in moved:
            await take_out(self._tx, {**run, "job_name": leg["job_name"]})
            away = f"~{leg['opened_by']} {leg['job_name']}"
            await self._tx.run(_RENAME, new_name=away, job_name=leg["job_name"], **run)
        began = {leg["job_name"]: leg["in_progress_at"] for leg in legs}
        for leg in moved:
            away, name = f"~{leg['opened_by']} {leg['job_name']}", wanted[leg["opened_by"]]
            await self._tx.run(_RENAME, new_name=name, job_name=away, **run)
            note_job(self._tx, {**run, "job_name": name}, self._now, was_us=began.get(name, 0))
        new_name = wanted[row["opened_by"]]
        if new_name in began:
            note_job(self._tx, {**run, "job_name": new_name}, self._now, was_us=began[new_name])
        return new_name

    async def _correct(self, key: dict[str, Any], merged: Mapping[str, Any], row: Mapping[str, Any]) -> str:
        if not self._dry_run:
            # With its old values: they are what the sums have.
            await take_out(self._tx, key)
            await self._tx.run(_CORRECT, **key, **merged)
            self._note(row)
        return CORRECTED

    async def _supersede_runs(self, row: Mapping[str, Any]) -> None:
        """Of several runs of a workflow for one delivery the newest counts; only numbers say which that is."""
        workflow = {name: row[name] for name in ("delivery", "upstream", "downstream", "workflow")}
        if not row["delivery"].startswith(DELIVERY_PREFIX):
            return
        runs = [found["run_id"] for found in await self._tx.all(_RUNS, **workflow)]
        numbered = sorted((run for run in runs if run.isdecimal()), key=int)
        for run_id in numbered[:-1]:
            await self._tx.run(_SUPERSEDE_RUN, run_id=run_id, **workflow)

    def _note(self, row: Mapping[str, Any]) -> None:
        scope = {name: row[name] for name in ("delivery", "upstream", "downstream")}
        if not row["delivery"].startswith(DELIVERY_PREFIX):  # one commit has self-reports of many runs
            scope |= {name: row[name] for name in ("workflow", "run_id")}
        self._changed[tuple(map(str, scope.values()))] = scope
        at = row["in_progress_at"]
        self._days.add((row["upstream"], row["downstream"], at - at % DAY_US))

    async def count(self) -> None:
        for scope in self._changed.values():
            await recount(self._tx, scope, self._now)
        for upstream, downstream, day_at in sorted(self._days):
            await self._tx.run(_COUNT_DAY_AGAIN, upstream=upstream, downstream=downstream, day_at=day_at)
        for upstream, downstream in sorted(
            {(upstream, downstream) for upstream, downstream, _ in self._days}
        ):
            await note_change(self._tx, RepoName(upstream), "job", downstream=downstream, now=self._now)


def _free_name(name: str, taken: set[str]) -> str:
    """The name of a job; legs of a matrix that share one are numbered."""
    number = 1
    while (candidate := name if number == 1 else f"{name} ({number})") in taken:
        number += 1
    return candidate


def _make_row(job: ImportedJob, entry: AllowlistEntry | None, check_run: str) -> dict[str, Any]:
    result, report, about, tests = job.result, job.result.report, job.result.about, job.result.report.tests
    level = result.level or (entry.level if entry else Level.L2)
    expected = entry.expected(report.job_name) if entry else None
    trusted = {
        "verified_repo": result.repository.full_name,
        "downstream_repo_level": level.name,
        "ci_metrics": {"queue_time": result.queue_s, "execution_time": result.execution_s},
    }
    return {
        "delivery": job.delivery,
        "upstream": job.upstream.key,
        "downstream": result.repository.key,
        "workflow": report.workflow_name,
        "run_id": report.run_id,
        "attempt": report.run_attempt,
        "job_name": report.job_name,
        "reported_name": report.job_name,
        "state": "completed",
        "conclusion": job.conclusion.value,
        "first_conclusion": job.conclusion.value,
        "superseded": 0,
        "opened_by": check_run,
        "level": int(level),
        "event": report.event_type,
        "number": about.number,
        "head_sha": about.head_sha,
        "workflow_name": report.workflow_name,
        "url": report.url,
        "artifact_url": report.artifact_url,
        "check_run_text": report.check_run_text,
        "environment": report.environment,
        "in_progress_at": to_us(job.began_at),
        "started_at": to_us(job.began_at),
        "silent_at": to_us(job.completed_at),
        "completed_at": to_us(job.completed_at),
        "queue_s": result.queue_s,
        "execution_s": result.execution_s,
        "verification": Verification.NOT_VERIFIABLE.value,
        "failed_tests": failed_tests_text(report),
        "failed_tests_cut": report.failed_tests_cut,
        "expected": expected.value if expected else None,
        "trusted": json.dumps(trusted),
        "untrusted": report.untrusted,
        "imported": 1,
        "tests_passed": tests.passed if tests else None,
        "tests_failed": tests.failed if tests else None,
        "tests_skipped": tests.skipped if tests else None,
        "tests_total": tests.total if tests else None,
    }
