"""Look-ups of a dispatch's workflow runs on GitHub: the query, and what the answer changes.

Done after a result of an L3 or L4 backend (to verify it, and to learn when all its runs are over), for jobs that stopped
reporting, and for dispatches without any run.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import text

from crcr.decide.allowlist.entries import AllowlistEntry
from crcr.decide.checks.completeness import QUIET
from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun
from crcr.decide.github.workflow_runs import (
    KnownRun,
    RemainingLookup,
    RunLookup,
    delivery_ids_in,
)
from crcr.decide.model import Level, RepoName
from crcr.record.change_and_audit_log import note_change
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.renames import JOIN_PRESENT_NAME
from crcr.record.store.database import Database, Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us, from_us_or_none, to_us
from crcr.record.workflow_runs.run_names import RunNames
from crcr.record.workflow_runs.verification import record_run, shorten_silence, verify_jobs

_DISPATCH = Statement(
    text(
        "SELECT d.upstream, d.delivery, d.downstream, d.level, d.state, d.event, d.number, d.head_sha, d.sent_at,"  # noqa: S608  our own text
        " d.attempted_at, d.listed_at, r.name, r.repository_id, r.installation_id, r.run_webhook_at"
        f" FROM dispatches d{JOIN_PRESENT_NAME}"
        " WHERE d.delivery = :delivery AND d.upstream = :upstream AND d.downstream = :downstream"
    )
)
_RUNS = Statement(
    text(
        "SELECT run_id, delivery, upstream, downstream, workflow, issuer, superseded, reported, attempt, over_attempt,"
        " first_seen_at FROM runs WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " ORDER BY workflow, run_id"
    )
)
_KNOWN_RUN = Statement(
    text(
        "SELECT delivery, reported FROM runs WHERE run_id = :run_id AND upstream = :upstream AND downstream = :downstream"
    )
)
_SENT = Statement(
    text(
        "SELECT 1 FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND attempted_at IS NOT NULL"
    )
)
_OPEN_QUESTIONS = Statement(
    text(
        "SELECT run_id, attempt, state, asked_at FROM jobs WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND verification = 'unchecked'"
    )
)
_STILL_RUNNING = Statement(
    text(
        "UPDATE jobs SET silent_at = :silent_at, asked_at = NULL WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND state = 'in_progress'"
        " AND asked_at IS NOT NULL"
    )
)
_END_SILENT_JOBS = Statement(
    text(
        "UPDATE jobs SET silent_at = :now WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND state = 'in_progress' AND asked_at IS NOT NULL AND silent_at > :now"
    )
)
_END_DELETED_RUN = Statement(
    text(
        "UPDATE runs SET over_attempt = attempt, conclusion = 'none' WHERE run_id = :run_id AND upstream = :upstream"
        " AND downstream = :downstream"
    )
)
_NOT_VERIFIABLE = Statement(
    text(
        "UPDATE jobs SET verification = 'not verifiable' WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id AND state = 'completed'"
        " AND verification = 'unchecked'"
    )
)
_LISTED = Statement(
    text(
        "UPDATE dispatches SET listed_at = :now, answer = :answer WHERE delivery = :delivery"
        " AND upstream = :upstream AND downstream = :downstream"
    )
)
_READABLE_AFTER_ALL = Statement(
    text(
        "UPDATE dispatches SET reads_actions = 1 WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND reads_actions = 0"
    )
)
_VERIFIABLE_AFTER_ALL = Statement(
    text(
        "UPDATE jobs SET verification = 'unchecked' WHERE delivery = :delivery AND upstream = :upstream"
        " AND downstream = :downstream AND verification = 'not verifiable'"
    )
)
_LOST_AFTER_DISPATCH = Statement(
    text(
        "SELECT 1 FROM dispatches WHERE delivery = :delivery AND upstream = :upstream AND downstream = :downstream"
        " AND level >= 4 AND reads_actions = 1"
    )
)
_READABLE = Statement(
    text(
        "UPDATE repositories SET reads_actions = :readable WHERE upstream = :upstream AND downstream = :downstream"
        " AND (reads_actions IS NULL OR reads_actions <> :readable)"
    )
)


class Lookups:
    def __init__(
        self,
        database: Database,
        allowlists: Allowlists,
        refresher: CheckRefresher,
        job_timeout: timedelta,
        outcomes: JobOutcomes,
    ) -> None:
        self._database = database
        self._allowlists = allowlists
        self._refresher = refresher
        self._outcomes = outcomes
        self._run_names = RunNames(refresher, outcomes)
        self._job_timeout = job_timeout

    async def question(self, upstream: RepoName, delivery: str, downstream: str) -> RunLookup | None:
        """The look-up for a dispatch; None when it was never sent."""
        key = {"delivery": delivery, "upstream": upstream.key, "downstream": downstream}

        async def unit(tx: Tx) -> RunLookup | None:
            dispatch = await tx.one(_DISPATCH, **key)
            if dispatch is None or (dispatch["sent_at"] or dispatch["attempted_at"]) is None:
                return None
            runs = [row for row in await tx.all(_RUNS, **key) if row["issuer"] == "github"]
            return _question(upstream, dispatch, runs, await tx.all(_OPEN_QUESTIONS, **key))

        return await self._database.quick_read(unit)

    async def settle(
        self,
        question: RunLookup,
        github_runs: tuple[ActionsRun, ...],
        jobs: Mapping[int, tuple[ActionsJob, ...]],
        now: datetime,
        *,
        listed: tuple[ActionsRun, ...] | None,
    ) -> RemainingLookup:
        """Record GitHub's answer; `listed` are the runs of that time. Return what remains to be looked up."""

        async def unit(tx: Tx) -> RemainingLookup:
            dispatch = await tx.one(_DISPATCH, **question.key)
            if dispatch is None:
                return RemainingLookup.NOTHING
            own = await self._run_names.own_runs(tx, question, github_runs, now)
            own_runs = tuple([run for run in own if not await self._is_anothers(tx, question, run)])
            certain_runs = [run for run in own_runs if not await self._in_question(tx, question, run)]
            for run in certain_runs:
                await record_run(tx, dispatch, run, now)
            entry = (await self._allowlists.in_force(tx, question.upstream)).find(question.downstream)
            silent_at = now + self._patience(entry)
            known_run_ids = {str(run.run_id) for run in question.runs}
            for row in await tx.all(_RUNS, **question.key):
                if row["run_id"] in known_run_ids and not any(
                    str(run.run_id) == row["run_id"] for run in own_runs
                ):
                    await self._forget_run(tx, row, now)
                else:
                    await self._settle_run(tx, row, own_runs, jobs, now, silent_at=silent_at)
            # While a run that may belong to this dispatch is not over, the list does not prove that all its runs are.
            doubtful = any(run not in certain_runs and not run.is_over for run in own_runs)
            await self._note_answer(tx, question, own_runs, None if doubtful else listed, now)
            await self._notify(tx, dispatch, now)
            return await self._remaining(tx, question, entry)

        return await self._database.write(unit)

    async def _is_anothers(self, tx: Tx, question: RunLookup, run: ActionsRun) -> bool:
        """Whether the run's signed reports bind it to another delivery, whatever its name contains."""
        where = {name: question.key[name] for name in ("upstream", "downstream")}
        bound = await tx.one(_KNOWN_RUN, run_id=str(run.run_id), **where)
        return bound is not None and bool(bound["reported"]) and bound["delivery"] != question.delivery

    async def _in_question(self, tx: Tx, question: RunLookup, run: ActionsRun) -> bool:
        """Whether a run without reports may belong to another delivery: people can write anything into names."""
        if any(run.run_id == known.run_id for known in question.runs):
            return False
        where = {name: question.key[name] for name in ("upstream", "downstream")}
        bound = await tx.one(_KNOWN_RUN, run_id=str(run.run_id), **where)
        if bound is not None:
            return bool(bound["delivery"] != question.delivery)
        named = [guid for guid in delivery_ids_in(run.display_title) if guid != question.delivery.lower()]
        return any([await tx.one(_SENT, delivery=guid, **where) for guid in named])

    def _patience(self, entry: AllowlistEntry | None) -> timedelta:
        own_s = entry.job_timeout_s if entry else None
        return timedelta(seconds=own_s) if own_s else self._job_timeout

    async def not_readable(self, question: RunLookup, now: datetime) -> None:
        """The App may not read the repository's Actions: silent jobs end, and the gate names the missing permission.

        If it could at the time of the dispatch, results stay unconfirmed: revoking a permission must not confirm them.
        """

        async def unit(tx: Tx) -> None:
            key = question.key
            where = {"upstream": key["upstream"], "downstream": key["downstream"]}
            await tx.run(_READABLE, readable=0, **where)
            await tx.run(_END_SILENT_JOBS, now=to_us(now), **key)
            if await tx.one(_LOST_AFTER_DISPATCH, **key) is None:
                for row in await tx.all(_RUNS, **key):
                    await tx.run(_NOT_VERIFIABLE, **_run_key(row))
            dispatch = await tx.one(_DISPATCH, **key)
            if dispatch is not None:
                await self._notify(tx, dispatch, now)

        await self._database.write(unit)

    async def _settle_run(
        self,
        tx: Tx,
        row: Row,
        github_runs: tuple[ActionsRun, ...],
        jobs: Mapping[int, tuple[ActionsJob, ...]],
        now: datetime,
        *,
        silent_at: datetime,
    ) -> None:
        run = next((run for run in github_runs if str(run.run_id) == row["run_id"]), None)
        if run is None:
            return
        if run.run_id in jobs:
            await verify_jobs(tx, row, jobs[run.run_id], self._outcomes, now, whole_run=run)
        if run.is_over:
            await shorten_silence(tx, row, run.attempt, now)
            return
        await tx.run(_STILL_RUNNING, silent_at=to_us(silent_at), **_run_key(row))

    async def _forget_run(self, tx: Tx, row: Row, now: datetime) -> None:
        """GitHub has deleted the run: it is over, and its results can no longer be verified."""
        await tx.run(_END_DELETED_RUN, **{name: row[name] for name in ("run_id", "upstream", "downstream")})
        await tx.run(_NOT_VERIFIABLE, **_run_key(row))
        await shorten_silence(tx, row, row["attempt"], now)

    async def _note_answer(
        self,
        tx: Tx,
        question: RunLookup,
        github_runs: tuple[ActionsRun, ...],
        listed: tuple[ActionsRun, ...] | None,
        now: datetime,
    ) -> None:
        where = {name: question.key[name] for name in ("upstream", "downstream")}
        became_readable = await tx.run(_READABLE, readable=1, **where)
        if await tx.run(_READABLE_AFTER_ALL, **question.key) or became_readable:
            await tx.run(_VERIFIABLE_AFTER_ALL, **question.key)
        if listed is None:
            return
        runs = await tx.all(_RUNS, **question.key)
        answer = None
        if not any(row["reported"] for row in runs):
            answer = _answer(github_runs, begun=any([await _is_unknown(tx, where, run) for run in listed]))
        await tx.run(_LISTED, now=to_us(now), answer=answer, **question.key)

    async def _notify(self, tx: Tx, dispatch: Row, now: datetime) -> None:
        await note_change(
            tx,
            RepoName(dispatch["upstream"]),
            "job",
            downstream=dispatch["downstream"],
            delivery=dispatch["delivery"],
            number=dispatch["number"],
            now=now,
        )
        await self._refresher.request_refresh_for(tx, dispatch, now)

    async def _remaining(self, tx: Tx, question: RunLookup, entry: AllowlistEntry | None) -> RemainingLookup:
        """What a further look-up could still answer: nothing when every run is over, verified and the last one."""
        dispatch = await tx.one(_DISPATCH, **question.key)
        runs = [row for row in await tx.all(_RUNS, **question.key) if row["issuer"] == "github"]
        live = {row["run_id"]: row for row in runs if not row["superseded"]}
        if dispatch is None or dispatch["level"] < Level.L3 or not live:
            return RemainingLookup.NOTHING
        unchecked = [row for row in await tx.all(_OPEN_QUESTIONS, **question.key) if row["run_id"] in live]
        running = any(row["state"] == "in_progress" for row in unchecked)
        if any(row["state"] == "completed" for row in unchecked):
            return RemainingLookup.UNTIL_REPORT if running else RemainingLookup.UNCONFIRMED
        if running or _are_over(dispatch, list(live.values()), entry):
            return RemainingLookup.NOTHING
        return RemainingLookup.QUIET_TIME if _have_ended(live.values()) else RemainingLookup.UNCONFIRMED


def _are_over(dispatch: Row, live: list[Row], entry: AllowlistEntry | None) -> bool:
    """Whether the runs are over as far as the gate needs to know; with listed job names, their results decide."""
    named = entry is not None and entry.jobs is not None
    if named and dispatch["level"] < Level.L4:
        return True
    newest = max(row["first_seen_at"] for row in live)
    quiet = named or (dispatch["listed_at"] or 0) >= newest + QUIET // timedelta(microseconds=1)
    return quiet and _have_ended(live)


def _have_ended(runs: Iterable[Row]) -> bool:
    return all((row["over_attempt"] or 0) >= row["attempt"] for row in runs)


def _run_key(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("delivery", "upstream", "downstream", "workflow", "run_id")}


def _question(upstream: RepoName, dispatch: Row, runs: list[Row], unchecked: list[Row]) -> RunLookup:
    known = tuple(
        KnownRun(
            run_id=int(row["run_id"]),
            is_over=(row["over_attempt"] or 0) >= row["attempt"],
            unchecked_attempts=tuple(
                sorted({job["attempt"] for job in unchecked if job["run_id"] == row["run_id"]})
            ),
            first_seen_at=from_us(row["first_seen_at"]),
        )
        for row in runs
        if row["run_id"].isdigit()
    )
    return RunLookup(
        upstream=upstream,
        delivery=dispatch["delivery"],
        downstream=RepoName(dispatch["name"] or dispatch["downstream"]),
        dispatched_as=RepoName(dispatch["downstream"]),
        repository_id=dispatch["repository_id"],
        installation_id=dispatch["installation_id"],
        sent_at=from_us(dispatch["sent_at"] or dispatch["attempted_at"]),
        runs=known,
        wants_list=dispatch["level"] >= Level.L3 or not any(row["reported"] for row in runs),
        gates=dispatch["level"] >= Level.L4,
        run_webhook_at=from_us_or_none(dispatch["run_webhook_at"]),
    )


async def _is_unknown(tx: Tx, where: Mapping[str, str], run: ActionsRun) -> bool:
    """Whether it is unknown which delivery the run answers."""
    return await tx.one(_KNOWN_RUN, run_id=str(run.run_id), **where) is None


def _answer(runs: tuple[ActionsRun, ...], *, begun: bool) -> str:
    """The answer to a dispatch without reports; `begun`: a run of that time may be its own."""
    if runs:
        return "unreported" if all(run.is_over for run in runs) else "running"
    return "unanswered" if begun else "never_started"
