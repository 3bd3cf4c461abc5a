"""`RandomWalk`: random events, dispatches, reports, re-runs, time-outs, look-ups and admin operations on the real stores.

Reports are repeated, late, out of order and contradictory; leases are lost; heads move while jobs run. Tests compare the
stores afterwards with an oracle.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from crcr.decide.allowlist.entries import AllowlistReading
from crcr.decide.dispatch.plan import ReceivedDelivery
from crcr.decide.events import MergeGroupEvent
from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun
from crcr.decide.jobs.report import Report, ReportStatus
from crcr.decide.model import Conclusion, EffectKind, RepoName
from crcr.decide.oidc.identity import Identity, IssuerKind
from crcr.decide.outbox.effect import ClaimedEffect, FailedAttempt
from crcr.decide.outbox.retry import GiveUp, TryAgain
from crcr.errors import NotPossible
from crcr.record.admin.operations import ParkedFilter
from crcr.record.checks.refresh import CheckRefresher
from crcr.record.deliveries.merge_groups import release_group
from crcr.record.jobs.forwards import Forwards
from crcr.record.jobs.outcomes import JobOutcomes
from crcr.record.jobs.reports import Reports
from crcr.record.jobs.self_reports import SelfReports
from crcr.record.upkeep.timeouts import Sweeps
from crcr.record.workflow_runs.lookups import Lookups
from support.data.events_and_reports import a_caller, a_pull, a_push, a_start
from support.stores.databases import CORE, Stores

START = datetime(2026, 1, 1, 22, 30, tzinfo=UTC)
LISTED = (
    "L2:\n  - org/one\n  - org/two\n  - org/probe: {{expect: {{'build*': {expected}, test: cancelled}}}}\n"
    "L4:\n  - org/four: ann\n"
)
BACKENDS = ("org/one", "org/two", "org/probe", "org/four")
JOBS = ("build", "test", "lint")
WORKFLOWS = ((".github/workflows/ci.yml", "CI"), (".github/workflows/more.yml", "More"))
STEPS_S = (0, 0.25, 1, 7, 55, 400, 2_000, 5_000, 40_000)
UNSIGNED = 0.15
Act = Callable[[], Awaitable[None]]


@dataclass
class RandomWalk:
    stores: Stores
    random: Random
    now: datetime = START
    runs: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Run ids of each delivery and backend."""
    pulls: dict[int, tuple[str, bool]] = field(default_factory=dict)
    groups: list[str] = field(default_factory=list)
    numbers: int = 0

    def __post_init__(self) -> None:
        stores, quiet, unforwarded = self.stores, CheckRefresher({}), JobOutcomes(Forwards(enabled=False))
        self.reports = Reports(
            stores.database,
            allowlists=stores.allowlists,
            targets=stores.targets,
            outcomes=unforwarded,
            refresher=quiet,
            upstreams=(CORE,),
            job_timeout=timedelta(hours=6),
        )
        self.own_reports = SelfReports(
            stores.database, reports=self.reports, targets=stores.targets, outcomes=unforwarded
        )
        self.sweeps = Sweeps(stores.database, quiet, unforwarded)
        self.lookups = Lookups(stores.database, stores.allowlists, quiet, timedelta(hours=6), unforwarded)
        self.workers = [stores.outbox("one"), stores.outbox("two")]
        self.acts: list[tuple[int, Act]] = [
            (5, self.pull_event),
            (2, self.push),
            (3, self.group),
            (8, self.work),
            (14, self.start),
            (14, self.finish),
            (4, self.again),
            (5, self.own),
            (3, self.look_up),
            (2, self.sweep),
            (2, self.replay),
            (1, self.test_dispatch),
            (3, self.change_expectations),
        ]

    async def begin(self) -> None:
        await self.stores.prepare({CORE: LISTED.format(expected="failure")}, self.now)

    async def step(self) -> str:
        """Do one random action; return its name."""
        self.now += timedelta(seconds=self.random.choice(STEPS_S))
        weights = [weight for weight, _ in self.acts]
        act = self.random.choices([act for _, act in self.acts], weights)[0]
        await act()
        return act.__name__

    def number(self) -> int:
        self.numbers += 1
        return self.numbers

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        return await self.stores.rows(sql)

    # Events of the upstream

    async def pull_event(self) -> None:
        known = sorted(self.pulls)
        number = self.random.choice(known) if known and self.random.random() < 0.7 else self.number()
        head, is_open = self.pulls.get(number, ("", False))
        action = self.random.choice(("synchronize", "synchronize", "closed")) if is_open else "reopened"
        if not head:
            action = "opened"
        if action in ("opened", "synchronize"):
            head = f"{self.number():040x}"
        self.pulls[number] = (head, action != "closed")
        # Sometimes a delivery arrives after later ones.
        at = self.now - timedelta(hours=self.random.choice((0, 0, 0, 0, 9)))
        pull = a_pull(
            upstream=CORE,
            number=number,
            action=action,
            head_sha=head,
            updated_at=at,
            is_open=action != "closed",
        )
        await self._take("pull_request", pull)

    async def push(self) -> None:
        await self._take("push", a_push(upstream=CORE, after=f"{self.number():040x}"))

    async def group(self) -> None:
        if self.groups and self.random.random() < 0.5:
            await self.destroy(self.groups.pop())
            return
        head = f"{self.number():040x}"
        self.groups.append(head)
        guid = await self._take("merge_group", _group(head, "checks_requested"))

        async def unit(tx: Any) -> None:
            allowlist = await self.stores.allowlists.in_force(tx, CORE)
            await release_group(tx, CORE, guid, allowlist, files=None, now=self.now)

        await self.stores.database.write(unit)

    async def destroy(self, head_sha: str) -> None:
        await self._take("merge_group", _group(head_sha, "destroyed"))

    async def _take(self, event: str, told: Any) -> str:
        guid = f"d{self.number()}"
        await self.stores.inbox.take(ReceivedDelivery(guid, event, "test", b"packed", 6, self.now), told)
        return guid

    # Dispatches of the relay

    async def work(self) -> None:
        worker = self.random.choice(self.workers)
        for effect in await worker.claim(8, self.now):
            if effect.kind is not EffectKind.SEND_DISPATCH:
                await worker.finish(effect, began_at=None, now=self.now)
                continue
            began_at = self.now
            self.now += timedelta(seconds=self.random.choice((0, 1, 130)))
            match self.random.choice(
                ("sent", "sent", "sent", "sent", "lost", "refused", "parked", "forgotten")
            ):
                case "sent":
                    await worker.finish(effect, began_at=began_at, now=self.now)
                    if self.random.random() < 0.1:  # two workers held the same effect
                        await self.workers[0].finish(effect, began_at=began_at, now=self.now)
                case "lost":
                    await worker.fail(effect, self._failure(effect, unsure=True), self.now)
                case "refused":
                    await worker.fail(effect, self._failure(effect, unsure=False), self.now)
                case "parked":
                    gone = replace(self._failure(effect, unsure=True), decision=GiveUp("for ever"))
                    await worker.fail(effect, gone, self.now)
                case "forgotten":
                    pass  # its lease runs out

    def _failure(self, effect: ClaimedEffect, *, unsure: bool) -> FailedAttempt:
        again = TryAgain(self.now + timedelta(seconds=effect.attempts))
        return FailedAttempt(decision=again, error="lost", unsure=unsure, counts=True)

    async def replay(self) -> None:
        guids = sorted({row["delivery"] for row in await self.rows("SELECT delivery FROM dispatches")})
        if not guids:
            return
        guid, everyone = self.random.choice(guids), self.random.random() < 0.7
        await self.stores.acts.replay(CORE, guid, who="ann", now=self.now, everyone=everyone)
        if self.random.random() < 0.3:
            await self.stores.acts.retry_parked(CORE, ParkedFilter(), who="ann", now=self.now)

    async def test_dispatch(self) -> None:
        guid = f"t{self.number()}"
        try:
            await self.stores.acts.dispatch_test(CORE, RepoName("org/one"), guid, who="ann", now=self.now)
        except NotPossible:
            return

    async def change_expectations(self) -> None:
        text = LISTED.format(expected=self.random.choice(("failure", "success", "timed_out")))
        await self.stores.allowlists.take_reading(CORE, AllowlistReading("test", text), self.now)

    # Reports of backends

    async def start(self) -> None:
        tried = await self.rows("SELECT * FROM dispatches WHERE attempted_at IS NOT NULL ORDER BY delivery")
        if not tried:
            return
        dispatch = self.random.choice(tried[-12:] if self.random.random() < 0.7 else tried)
        key = f"{dispatch['delivery']}/{dispatch['downstream']}"
        known = [run for run, (of, _) in self.runs.items() if of == key]
        run = self.random.choice(known) if known and self.random.random() < 0.75 else self._new_run(key)
        attempt = self.random.choice((1, 1, 1, 1, 2, 2, 3))
        late = self.random.random() < 0.1
        await self.report(dispatch, run, attempt, self.random.choice(JOBS), late=late)

    async def finish(self) -> None:
        running = await self.rows(
            "SELECT * FROM jobs WHERE state <> 'completed' ORDER BY in_progress_at, run_id"
        )
        if running:
            await self._finish(self.random.choice(running))

    async def again(self) -> None:
        """Report a job's end again: with the same or another conclusion."""
        ended = await self.rows(
            "SELECT * FROM jobs WHERE state = 'completed' ORDER BY in_progress_at, run_id"
        )
        if ended:
            job = self.random.choice(ended)
            same = Conclusion(job["conclusion"]) if self.random.random() < 0.3 else None
            await self._finish(job, same)

    async def own(self) -> None:
        """Report a nightly result: new, repeated or of a later attempt, with or without a known commit."""
        downstream = self.random.choice(BACKENDS)
        key = f"own/{downstream}"
        known = [run for run, (of, _) in self.runs.items() if of == key]
        run = self.random.choice(known) if known and self.random.random() < 0.8 else self._new_run(key)
        attempt, job_name = self.random.choice((1, 1, 1, 2, 3)), self.random.choice(JOBS)
        who = self._caller(downstream, run, attempt, job_name)
        report: Report = a_start(
            event_type=self.random.choice(("nightly", "periodic")),
            delivery_id="",
            said_commit=self.random.choice((None, "a" * 40, "b" * 40)),
            run_id=run,
            run_attempt=attempt,
            job_name=job_name,
            status=ReportStatus.COMPLETED,
            conclusion=self.random.choice(list(Conclusion)),
        )
        admission = await self.own_reports.admit(report, who)
        if isinstance(admission, tuple):
            await self.own_reports.take(report, who, admission[0], b"{}", self.now)

    def _new_run(self, key: str) -> str:
        run = str(1_000 + self.number()) if self.random.random() > UNSIGNED else f"b-{self.number()}"
        self.runs[run] = (key, self.random.choice(WORKFLOWS)[0])
        return run

    async def _finish(self, job: dict[str, Any], conclusion: Conclusion | None = None) -> None:
        await self.report(
            job,
            job["run_id"],
            job["attempt"],
            job["reported_name"],
            status=ReportStatus.COMPLETED,
            conclusion=conclusion or self.random.choice(list(Conclusion)),
        )

    async def report(self, where: dict[str, Any], run: str, attempt: int, job_name: str, **said: Any) -> None:
        who = self._caller(where["downstream"], run, attempt, job_name)
        workflow_name = dict(WORKFLOWS).get(self.runs[run][1], "CI") if run in self.runs else "CI"
        if who.workflow_path is None and "workflow_name" in where:
            workflow_name = where["workflow_name"]
        elif who.workflow_path is None:
            workflow_name = self.random.choice(("CI", "More"))  # one build with jobs of two workflows
        report: Report = a_start(
            delivery_id=where["delivery"],
            run_id=run,
            run_attempt=attempt,
            job_name=job_name,
            **{"workflow_name": workflow_name, **said},
        )
        standings = await self.reports.read_standings(who.repository, where["delivery"])
        if standings:
            await self.reports.take(report, who, standings[0], b"{}", self.now)

    def _caller(self, downstream: str, run: str, attempt: int, job_name: str) -> Identity:
        place = BACKENDS.index(downstream)
        who = a_caller(repository=RepoName(downstream), repository_id=50 + place, owner_id=90 + place)
        if not run.isdigit():
            return replace(
                who,
                kind=IssuerKind.BUILDKITE,
                run_id=None,
                run_attempt=None,
                event_name=None,
                check_run_id=None,
                workflow_path=None,
            )
        # Two jobs of one name are two legs of a matrix.
        signed = f"{run}{attempt}{JOBS.index(job_name)}{self.random.choice((0, 0, 0, 0, 1))}"
        path = self.runs[run][1] if run in self.runs else WORKFLOWS[0][0]
        return replace(who, run_id=run, run_attempt=attempt, check_run_id=signed, workflow_path=path)

    # Time-outs and look-ups

    async def sweep(self) -> None:
        self.now += timedelta(hours=self.random.choice((0, 0, 2, 7)))
        await self.sweeps.time_out_silent(self.now)

    async def look_up(self) -> None:
        runs = await self.rows("SELECT * FROM runs WHERE issuer = 'github' ORDER BY run_id")
        if not runs:
            return
        run = self.random.choice(runs)
        question = await self.lookups.question(CORE, run["delivery"], run["downstream"])
        if question is None:
            return
        over = self.random.random() < 0.7
        jobs = await self.rows(f"SELECT * FROM jobs WHERE run_id = '{run['run_id']}'")  # noqa: S608 - our own
        told = tuple(self._github_job(job, over=over) for job in jobs if self.random.random() < 0.8)
        seen = self._run(run, over=over)
        await self.lookups.settle(question, (seen,), {seen.run_id: told}, self.now, listed=None)

    def _run(self, run: dict[str, Any], *, over: bool) -> ActionsRun:
        return ActionsRun(
            run_id=int(run["run_id"]),
            attempt=self.random.choice((run["attempt"], run["attempt"] + 1)),
            status="completed" if over else "in_progress",
            conclusion=Conclusion.FAILURE if over else None,
            display_title="CI",
            workflow_name=run["workflow_name"],
            workflow_path=run["workflow"],
            event="repository_dispatch",
            created_at=self.now,
        )

    def _github_job(self, job: dict[str, Any], *, over: bool) -> ActionsJob:
        conclusion = Conclusion(job["conclusion"]) if job["conclusion"] else Conclusion.SUCCESS
        if self.random.random() < 0.5:
            conclusion = self.random.choice([each for each in Conclusion if each is not Conclusion.NONE])
        return ActionsJob(
            job_id=self.number(),
            check_run_id=job["opened_by"],
            name=job["job_name"],
            attempt=job["attempt"],
            status="completed" if over else "in_progress",
            conclusion=conclusion if over else None,
            started_at=None,
            completed_at=self.now if over else None,
        )


def _group(head_sha: str, action: str) -> MergeGroupEvent:
    return MergeGroupEvent(
        upstream=CORE,
        repository_id=1,
        action=action,
        head_sha=head_sha,
        head_ref="refs/heads/gh-readonly-queue/main/pr-7",
        base_sha="b" * 40,
        base_ref="refs/heads/main",
        installation_id=1,
    )
