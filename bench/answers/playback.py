"""Plays a history into a relay: signed webhooks, dispatched runs and their reports, at their times.

Every report goes through the relay's own intake. What was sent is kept as results, with the causes of each failure.
"""

import heapq
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from itertools import count
from typing import Literal

from bench.answers.causes import Attempt, Backend, Failure, Job, Outage, TestedCode
from bench.answers.culprit_answers import CulpritAnswer, read_culprits
from bench.answers.history import (
    AskCulprits,
    History,
    Land,
    LandTogether,
    NewHead,
    Nightly,
    Open,
    Push,
    Rerun,
    Step,
)
from bench.answers.relay import UPSTREAM, AnswersRelay, workflows_of
from github_sim.bodies import webhooks
from github_sim.github import PullRequest, Repository, WebhookDelivery, WorkflowRun

_UPKEEP_EVERY = timedelta(hours=6)
_QUIET_END = timedelta(hours=7)
"""After the last report: longer than the time-out of a silent job."""
_MOST_RERUNS = 4
_NOBODY = "no downstream takes pushes"
ResultEvent = Literal["pull", "push", "nightly", "bisection"]


@dataclass(frozen=True, slots=True)
class Result:
    """One job's end, as the relay was told or can know."""

    backend: str
    job: str
    lists_tests: bool
    code: TestedCode
    event: ResultEvent
    at: datetime
    run: int
    attempt: int
    failures: tuple[Failure, ...]
    author: str | None = None

    @property
    def conclusion(self) -> str:
        return self.failures[0].conclusion if self.failures else "success"


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A dispatch, or with `job` one job of it, that got no report."""

    backend: str
    job: str | None
    pull: str
    head: int
    cause: Outage


@dataclass(slots=True)
class PlayedPull:
    record: PullRequest
    author: str
    base: int
    head: int = 1
    below: tuple[tuple[str, int], ...] = ()
    runs: dict[str, WorkflowRun] = field(default_factory=dict)
    """The run of each backend for the newest head."""


@dataclass(slots=True)
class Played:
    """Everything that was sent."""

    results: list[Result] = field(default_factory=list)
    unanswered: list[Unanswered] = field(default_factory=list)
    pulls: dict[str, PlayedPull] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    base: list[str] = field(default_factory=list)
    """The commits of the base branch, in their order."""
    asked: list["AskedCulprits"] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AskedCulprits:
    """The relay's answer about the red jobs at one moment."""

    tip: int
    """The newest commit of the base branch."""
    results: int
    """How many results had been sent."""
    answers: tuple[CulpritAnswer, ...]


Act = Callable[[], Awaitable[None]]


class Playback:
    def __init__(self, relay: AnswersRelay, history: History) -> None:
        self._relay, self._github, self._history = relay, relay.github, history
        self._rng = random.Random(f"play-{history.seed}-{history.number}")  # noqa: S311
        self._queue: list[tuple[datetime, int, Act]] = []
        self._order = count()
        self._started: list[WorkflowRun] = []
        self._github.ci.on_started.append(self._note_started)
        self._upstream: Repository = self._github.repository(UPSTREAM)
        self._base = [self._upstream.head_sha]
        self._by_id = {self._github.repository(backend.name).id: backend for backend in history.backends}
        self._kept_up_at = relay.clock.now()
        self._pushes: Counter[str] = Counter()
        self.played = Played(base=self._base)

    async def play(self) -> Played:
        for at, step in self._history.steps:
            self._plan(at, partial(self._take, step))
        await self._run_planned()
        for _ in range(3):
            await self._move_to(self._relay.clock.now() + _QUIET_END)
        return self.played

    async def _run_planned(self) -> None:
        while self._queue:
            at, _, act = heapq.heappop(self._queue)
            await self._move_to(at)
            await act()

    def _note_started(self, run: WorkflowRun) -> None:
        self._started.append(run)

    def _plan(self, at: datetime, act: Act) -> None:
        heapq.heappush(self._queue, (at, next(self._order), act))

    async def _move_to(self, at: datetime) -> None:
        while at - self._kept_up_at >= _UPKEEP_EVERY:
            self._kept_up_at += _UPKEEP_EVERY
            self._relay.clock.move_to(self._kept_up_at)
            await self._relay.upkeep()
        self._relay.clock.move_to(at)

    async def _take(self, step: Step) -> None:
        match step:
            case Push(commits, paths):
                await self._push(commits, paths)
            case Open():
                await self._open(step)
            case NewHead(pull, base):
                await self._new_head(self.played.pulls[pull], pull, base)
            case Land(pull):
                await self._land((self.played.pulls[pull],))
            case LandTogether(pulls):
                await self._land(tuple(self.played.pulls[pull] for pull in pulls))
            case AskCulprits():
                await self._ask_culprits()
            case Rerun(pull, whole):
                await self._rerun(self.played.pulls[pull], pull, whole=whole)
            case Nightly():
                await self._nightly()

    async def _push(self, commits: int, paths: tuple[str, ...]) -> None:
        before = self._upstream.head_sha
        files = {path: f"{self._rng.random()}" for path in paths}
        await self._dispatch("push", None, partial(self._github.push, UPSTREAM, commits=commits, files=files))
        self._extend_base(before)

    async def _ask_culprits(self) -> None:
        answers = await read_culprits(self._relay.http)
        self.played.asked.append(AskedCulprits(len(self._base) - 1, len(self.played.results), answers))

    def _extend_base(self, before: str) -> None:
        """Note the commits that the base branch gained."""
        gained, sha = [], self._upstream.head_sha
        while sha != before:
            gained.append(sha)
            sha = self._upstream.commits[sha].parents[0]
        self._base += reversed(gained)

    async def _open(self, step: Open) -> None:
        lower = None if step.on_top_of is None else self.played.pulls[step.on_top_of]
        lowest = None if lower is None else lower.record.head_sha
        below = () if lower is None else ((step.on_top_of or "", lower.head), *lower.below)

        async def send() -> WebhookDelivery | None:
            record = await self._github.open_pr(
                UPSTREAM,
                author=step.author,
                author_association=self._history.authors[step.author],
                before_webhook=lambda pull: self._build_on(pull, step.base, lowest, step.paths),
                title=self._title(step),
            )
            self.played.pulls[step.pull] = PlayedPull(record, step.author, step.base, below=below)
            return record.last_delivery

        await self._dispatch("pull", step.pull, send)

    def _title(self, step: Open) -> str:
        if step.title is None:
            return "Fix a kernel"
        number = self.played.pulls[step.names].record.number if step.names else 0
        return step.title.format(number)

    def _build_on(
        self, pull: PullRequest, base: int, lower: str | None = None, paths: tuple[str, ...] = ()
    ) -> None:
        """Let the pull request's head be one commit on top of the base branch's, or of the lower one in a stack."""
        paths = paths or (f"src/kernel_{pull.number}.py",)
        changes = {path: f"{pull.number}.{self._rng.random()}".encode() for path in paths}
        tip = self._github.world.commit(
            self._upstream, pull.title, pull.author, parent=lower or self._base[base], changes=changes
        )
        pull.head_sha, pull.commits, pull.files = tip.sha, 1, paths
        self._upstream.branches[pull.head_ref] = tip.sha

    async def _new_head(self, pull: PlayedPull, key: str, base: int | None) -> None:
        async def send() -> WebhookDelivery | None:
            record, before = pull.record, pull.record.head_sha
            if base is None:
                await self._github.push_to_pr(record)
            else:
                record.base_sha = self._upstream.head_sha
                self._build_on(record, base)
                more = {"before": before, "after": record.head_sha}
                await self._github.send_pull_webhook(record, "synchronize", more)
            pull.head += 1
            pull.base = pull.base if base is None else base
            pull.runs.clear()
            return record.last_delivery

        await self._dispatch("pull", key, send)

    async def _land(self, pulls: tuple[PlayedPull, ...]) -> None:
        """Merge the pull requests by one push."""
        before, author = self._upstream.head_sha, pulls[-1].record.author
        for pull in pulls:
            await self._github.close_pr(pull.record, merged=True)
            self._check_webhook(pull.record.last_delivery)
        merged = [self._upstream.commits[str(pull.record.merge_commit_sha)] for pull in pulls]
        await self._relay.drain()
        self._started.clear()
        self._relay.clock.move_to(self._relay.clock.now() + timedelta(seconds=2))

        async def send() -> WebhookDelivery | None:
            body = webhooks.push(
                self._github.base_url,
                self._upstream,
                ref=f"refs/heads/{self._upstream.default_branch}",
                before=before,
                after=self._upstream.head_sha,
                commits=merged,
                forced=False,
                pusher=author,
            )
            return await self._github.emit("push", body, self._upstream, author)

        self._extend_base(before)
        await self._dispatch("push", None, send)

    async def _dispatch(
        self,
        event: Literal["pull", "push"],
        key: str | None,
        send: Callable[[], Awaitable[WebhookDelivery | None]],
    ) -> None:
        """Send the webhook, let the relay dispatch it, and plan the reports of the runs that it started."""
        now = self._relay.clock.now()
        silenced = {
            cause.backend: cause
            for cause in self._history.causes
            if isinstance(cause, Outage) and cause.silences(cause.backend, key, now)
        }
        stopped = {name for name, cause in silenced.items() if cause.manner == "no run" and cause.job is None}
        stopped |= self._skipping() if event == "push" else set()
        for name in stopped:
            self._github.repository(name).workflows = []
        self._check_webhook(await send())
        await self._relay.drain()
        for name in stopped:
            self._github.repository(name).workflows = workflows_of(self._history.backend(name))
        if event == "pull" and key is not None:
            for name, cause in silenced.items():
                self._note_silence(name, cause, key)
        self._plan_in_tree(key)
        for run in self._take_started():
            backend = self._by_id[run.repository_id]
            code = self._code(key, backend)
            if key is not None:
                self.played.pulls[key].runs[backend.name] = run
            outage = silenced.get(backend.name)
            self._plan_reports(run, Attempt(backend, code, now), event, outage)

    def _plan_in_tree(self, key: str | None) -> None:
        """The upstream's own CI tests the head of a pull request, or the last commit of a push."""
        in_tree = self._history.in_tree
        if in_tree is None:
            return
        pull = self.played.pulls[key] if key is not None else None
        code = self._pushed_code() if pull is None else self._pull_code(key or "", pull.base)
        self._plan(
            self._relay.clock.now() + timedelta(seconds=in_tree.rng.randint(600, 2400)),
            partial(self._test_in_tree, code, in_tree.test(code)),
        )

    async def _test_in_tree(self, code: TestedCode, ends: dict[str, str]) -> None:
        for name, conclusion in ends.items():
            check = await self._github.start_ci_check(UPSTREAM, code.sha, name)
            self._check_webhook(await self._github.end_ci_check(check, conclusion))

    def _skipping(self) -> set[str]:
        """The backends that do not test this push."""
        names = [backend.name for backend in self._history.backends if backend.tests_every > 1]
        self._pushes.update(names)
        return {name for name in names if self._pushes[name] % self._history.backend(name).tests_every}

    def _note_silence(self, backend: str, cause: Outage, key: str) -> None:
        head = self.played.pulls[key].head
        self.played.unanswered.append(Unanswered(backend, cause.job, key, head, cause))

    def _take_started(self) -> list[WorkflowRun]:
        runs, self._started[:] = list(self._started), []
        return runs

    def _check_webhook(self, delivery: WebhookDelivery | None) -> None:
        """A push that no backend takes is ignored by design; everything else must be recorded."""
        unused = delivery is not None and delivery.event == "push" and _NOBODY in delivery.answer_body
        if delivery is None or not delivery.ok or ("ignored" in delivery.answer_body and not unused):
            answer = "not sent" if delivery is None else f"{delivery.event}: {delivery.answer_body}"
            self.played.refused.append(f"webhook {answer}")

    def _code(self, key: str | None, backend: Backend) -> TestedCode:
        if key is None:
            return self._pushed_code()
        return self._pull_code(key, len(self._base) - 1 if backend.merges else self.played.pulls[key].base)

    def _pushed_code(self) -> TestedCode:
        # The commits of a push are noted after it.
        newest = self._upstream.head_sha
        position = len(self._base) - 1 if self._base[-1] == newest else self._position(newest)
        return TestedCode(newest, position)

    def _pull_code(self, key: str, base: int) -> TestedCode:
        pull = self.played.pulls[key]
        return TestedCode(pull.record.head_sha, base, key, pull.head, pull.below)

    def _position(self, sha: str) -> int:
        ahead = 0
        while sha != self._base[-1]:
            sha, ahead = self._upstream.commits[sha].parents[0], ahead + 1
        return len(self._base) - 1 + ahead

    def _plan_reports(
        self, run: WorkflowRun, attempt: Attempt, event: ResultEvent, outage: Outage | None
    ) -> None:
        if attempt.code.pull is None and self._history.is_untestable(attempt.code.base):
            return
        backend = attempt.backend
        delay = backend.push_delay_s if event == "push" and backend.push_delay_s else backend.delay_s
        start = attempt.at + timedelta(seconds=self._rng.randint(30, 300))
        end = start + timedelta(seconds=self._rng.randint(*delay))
        jobs = [job for job in backend.jobs if run.job(job.name).attempt == attempt.number]
        if outage is not None and outage.job is None:
            if outage.manner == "unreported":
                self._plan(end, partial(self._end_silently, run))
            return
        reporting = [job for job in jobs if outage is None or job.name != outage.job]
        self._plan(start, partial(self._start_jobs, run, reporting))
        ending = Attempt(backend, attempt.code, end, attempt.number)
        self._plan(end, partial(self._end_jobs, run, reporting, ending, event))

    async def _end_silently(self, run: WorkflowRun) -> None:
        for job in run.jobs:
            self._github.ci.complete(run, job, "success")

    async def _start_jobs(self, run: WorkflowRun, jobs: list[Job]) -> None:
        token = self._github.ci.token(run, run.jobs[0])
        for job in jobs:
            record = run.job(job.name)
            self._github.ci.start(run, record)
            body = self._github.ci.report_body(run, record, "in_progress")
            self._check(await self._github.ci.send_report(run, record, body, token=token))

    async def _end_jobs(
        self, run: WorkflowRun, jobs: list[Job], attempt: Attempt, event: ResultEvent
    ) -> None:
        token = self._github.ci.token(run, run.jobs[0])
        reporting = {job.name for job in jobs}
        for silent in run.jobs:
            if silent.attempt == attempt.number and silent.name not in reporting:
                self._github.ci.complete(run, silent, "success")
        for job in jobs:
            failures = self._strike(attempt, job)
            result = self._result(job, attempt, event, run, failures)
            record = run.job(job.name)
            conclusion = result.conclusion
            self._github.ci.complete(run, record, "timed_out" if conclusion == "silent" else conclusion)
            if conclusion != "silent":
                body = self._github.ci.report_body(
                    run, record, "completed", **self._details(job, attempt, failures)
                )
                self._check(await self._github.ci.send_report(run, record, body, token=token))
            self.played.results.append(result)
        await self._relay.drain()

    def _strike(self, attempt: Attempt, job: Job) -> tuple[Failure, ...]:
        """What all causes together do: one that ends the whole job hides the failed tests of the others."""
        failures = [
            failure for cause in self._history.causes for failure in cause.strike(attempt, job, self._rng)
        ]
        unusual = [failure for failure in failures if failure.conclusion != "failure"]
        whole = [failure for failure in failures if failure.symptom is None]
        return tuple(unusual[:1] or whole or failures)

    def _result(
        self,
        job: Job,
        attempt: Attempt,
        event: ResultEvent,
        run: WorkflowRun,
        failures: tuple[Failure, ...],
    ) -> Result:
        key = attempt.code.pull
        return Result(
            backend=attempt.backend.name,
            job=job.name,
            lists_tests=job.lists_tests,
            code=attempt.code,
            event=event,
            at=attempt.at,
            run=run.id,
            attempt=attempt.number,
            failures=failures,
            author=None if key is None else self.played.pulls[key].author,
        )

    def _details(self, job: Job, attempt: Attempt, failures: tuple[Failure, ...]) -> dict[str, object]:
        if not job.lists_tests or (failures and failures[0].symptom is None):
            return {}
        listed = [
            {
                "name": failure.symptom.test,
                "file": failure.symptom.file,
                "message": failure.symptom.write_message(attempt.backend.device, self._rng),
            }
            for failure in failures
            if failure.symptom is not None
        ]
        total = 400 + self._rng.randint(0, 20)
        counts = {"passed": total - len(listed), "failed": len(listed), "skipped": 3, "total": total + 3}
        return {"failed_tests": listed, "test_results": counts}

    async def _rerun(self, pull: PlayedPull, key: str, *, whole: bool) -> None:
        done = [run for run in pull.runs.values() if run.status == "completed"]
        failed = [run for run in done if run.conclusion != "success"]
        chosen = failed + ([run for run in done if run not in failed] if whole else [])
        for run in chosen[:_MOST_RERUNS]:
            await self._github.rerun(run, failed_only=not whole)
            self._started.clear()
            backend = self._by_id[run.repository_id]
            base = self._base_tested(run, pull)
            code = TestedCode(pull.record.head_sha, base, key, pull.head, pull.below)
            attempt = Attempt(backend, code, self._relay.clock.now(), run.attempt)
            self._plan_reports(run, attempt, "pull", None)

    def _base_tested(self, run: WorkflowRun, pull: PlayedPull) -> int:
        """A re-run tests the code that the run tested before."""
        known = [result.code.base for result in self.played.results if result.run == run.id]
        return known[-1] if known else pull.base

    async def _nightly(self) -> None:
        tip = len(self._base) - 1
        for backend in self._history.backends:
            if not backend.reports_nightly:
                continue
            run = self._github.start_run(backend.name, event="schedule")
            self._started.clear()
            at = self._relay.clock.now() + timedelta(seconds=self._rng.randint(*backend.delay_s))
            attempt = Attempt(backend, TestedCode(self._base[tip], tip), at)
            self._plan(at, partial(self._report_nightly, run, attempt))

    async def _report_nightly(self, run: WorkflowRun, attempt: Attempt) -> None:
        token = self._github.ci.token(run, run.jobs[0])
        for job in attempt.backend.jobs:
            failures = self._strike(attempt, job)
            result, record = self._result(job, attempt, "nightly", run, failures), run.job(job.name)
            self._github.ci.complete(run, record, result.conclusion)
            body = self._github.ci.report_body(
                run, record, "completed", **self._details(job, attempt, failures)
            )
            body |= {
                "event_type": "nightly",
                "delivery_id": attempt.code.sha,
                "payload": {"repository": {"full_name": UPSTREAM}},
            }
            self._check(await self._github.ci.send_report(run, record, body, token=token))
            self.played.results.append(result)
        await self._relay.drain()

    def _check(self, answer: object) -> None:
        status, text = getattr(answer, "status_code", 0), getattr(answer, "text", "")
        if status != 200 or '"repeat":false' not in text.replace(" ", ""):
            self.played.refused.append(f"callback {status}: {text}")
