"""No sequence of events and outages turns the gate green while an L4 backend has neither passed nor been waived.

Random walks of the real relay against the simulated GitHub; after every step each gate that has just turned green
is compared with an independent oracle (`gate_oracle`). After all faults have ended and time has passed, each gate equals the
oracle: green where it may be, red where something failed, pending only while people hold it.

A failure is shrunk to the necessary steps. `CRCR_CHAOS_WALKS=500` runs more walks, `CRCR_CHAOS_SEED=7` other ones.
"""

import os
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from chaos.random_walks import Rule, Step, check_walk, deliver_some, draw_steps, reconcile
from crcr.errors import StoreUnavailable
from crcr.record.outbox.leader_and_workers import free_leases
from crcr.record.store.sqlite.database import SqliteDatabase
from github_sim.github import Match, PullRequest, WorkflowJob, WorkflowRun
from support.github.gate_oracle import HARMLESS, GateOracle, GatingEntry
from support.github.gated_upstream import GATE, GATING, LABEL, WORKFLOW_WITH_GUID
from support.running_relay import UPSTREAM, RunningRelay, running_relay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("quiet_logs")]

WALKS = int(os.environ.get("CRCR_CHAOS_WALKS", "36"))
SEED = int(os.environ.get("CRCR_CHAOS_SEED", "1"))
STEPS = 70
READING = "org/reading"
NAMES = ("build", "test")
_BY_NAME = f"  - {GATING}: {{oncalls: [bob], jobs: [build, test]}}\n"
_BY_RUNS = f"  - {READING}: {{oncalls: [eve]}}\n"
_STRICT = f"  - {GATING}: {{oncalls: [bob], jobs: [build, test], drafts: false, authors: approved}}\n"
_ELSEWHERE = f'  - {READING}: {{oncalls: [eve], paths: ["docs/**"]}}\n'
_INFORMING = f"L3:\n  npu:\n    {READING}: [eve]\n"
BY_NAME, BY_RUNS = GatingEntry(GATING, NAMES), GatingEntry(READING, None)
ALLOWLISTS: tuple[tuple[str, tuple[GatingEntry, ...] | None], ...] = (
    (f"L4:\n{_BY_NAME}{_BY_RUNS}", (BY_NAME, BY_RUNS)),
    (f"L4:\n{_BY_NAME}", (BY_NAME,)),
    (f"{_INFORMING}L4:\n{_BY_NAME}", (BY_NAME,)),
    (f"L4:\n{_STRICT}{_BY_RUNS}", (BY_NAME, BY_RUNS)),
    (f"L4:\n{_BY_NAME}{_ELSEWHERE}", (BY_NAME, GatingEntry(READING, None, concerned=False))),
    ("L4: [\n", None),
    ("L4:\n  - org/nobody-knows-whom: {jobs: 7}\n", None),
)
PEOPLE = ("maintainer", "maintainer", "maintainer", "writer", "contributor", "stranger")
CHECKS = "/repos/pytorch-like/core/check-runs*"
COMMENTS = (
    f"/crcr waive {GATING} at HEAD because why not",
    f"/crcr waive {READING} because why not",
    f"/crcr waive {GATING}:build at HEAD because flaky",
    f"/crcr waive {READING}:test until 3h because flaky",
    f"/crcr waive {GATING} until 2h because lab",
    f"/crcr unwaive {GATING}",
    f"/crcr unwaive {READING}:test",
    "/crcr approve",
    "/crcr approve at HEAD",
    "/crcr retry",
    f"/crcr retry {GATING}",
)
ENDS = (*["success"] * 6, "failure", "failure", "cancelled", "skipped", "neutral", "timed_out")
CLAIMS = (*[None] * 6, "success", "skipped", "silence")
RUNS = (
    *[("success", "success")] * 6,
    *[("failure", "failure"), ("failure", "success"), ("failure", "success"), ("skipped", "skipped")],
)
"""The conclusion of a run, and the conclusion that it reports."""


class Walk:
    def __init__(self, relay: RunningRelay) -> None:
        self.relay = relay
        self.github = relay.github
        self.truth = GateOracle(relay.github, ALLOWLISTS[0][1] or ())
        self.pulls: list[PullRequest] = []
        self.green: set[int] = set()
        self.store_is_up = True

    async def do(self, work: Awaitable[Any]) -> Any:
        """Do the act, then let a second pass, so that GitHub's timestamps show its order."""
        try:
            return await work
        except StoreUnavailable:
            assert not self.store_is_up
            return None
        finally:
            self.relay.clock.advance(1)
            rows = self.relay.rows("SELECT guid FROM deliveries")
            self.truth.note_recorded({row["guid"] for row in rows})

    async def step(self, name: str, choices: dict[str, Any]) -> None:
        await getattr(self, name)(**choices)
        self.watch()

    # Pull requests

    async def open_pull(self, *, draft: bool, shared: bool) -> None:
        def same_head(other: PullRequest) -> None:
            if shared and self.pulls:
                other.head_sha = self.pulls[0].head_sha

        if len(self.pulls) < 3:
            opening = self.github.open_pr(UPSTREAM, draft=draft, before_webhook=same_head)
            self.pulls.append(await self.do(opening))

    async def change_pull(self, which: int, act: str) -> None:
        pull, github = self._pull(which), self.github
        is_open = pull.state == "open"
        if act == "push" and is_open:
            await self.do(github.push_to_pr(pull))
        elif act == "back" and is_open:
            await self.do(self._push_back(pull))
        elif act == "turn":
            await self.do(github.close_pr(pull) if is_open else github.reopen_pr(pull))
        elif act == "label":
            toggle_label = github.unlabel_pr if LABEL in pull.labels else github.label_pr
            await self.do(toggle_label(pull, LABEL))
        elif act == "draft":
            await self.do(github.ready_for_review(pull) if pull.draft else github.convert_to_draft(pull))

    def _pull(self, which: int) -> PullRequest:
        return self.pulls[which % len(self.pulls)]

    async def _push_back(self, pull: PullRequest) -> None:
        parent = self.github.repository(UPSTREAM).commits[pull.head_sha].parents[0]
        if parent in {check.head_sha for check in self.github.checks(UPSTREAM)}:
            before, pull.head_sha = pull.head_sha, parent
            await self.github.send_pull_webhook(pull, "synchronize", {"before": before, "after": parent})

    async def comment(self, which: int, who: str, words: str) -> None:
        pull = self._pull(which)
        words = words.replace("HEAD", pull.head_sha[:12])
        comment = await self.do(self.github.comment_pr(pull, words, author=who))
        self.truth.head_at_comment[comment.id] = pull.head_sha

    async def press_rerun(self, which: int, check: int) -> None:
        shown = sorted(self.github.latest_checks(UPSTREAM, self._pull(which).head_sha).items())
        if shown:
            await self.do(self.github.rerequest_check(shown[check % len(shown)][1]))

    # Jobs

    def _runs(self) -> list[WorkflowRun]:
        return sorted((run for name in (GATING, READING) for run in self.github.runs(name)), key=_newest)

    def _job(self, which: int, job: int) -> tuple[WorkflowRun, WorkflowJob] | None:
        runs = self._runs()
        if not runs:
            return None
        run = runs[which % min(len(runs), 4)]
        return run, run.jobs[job % len(run.jobs)]

    async def _report(self, run: WorkflowRun, job: WorkflowJob, status: str, **more: Any) -> None:
        """A job reports each state once."""
        if self.truth.has_ended(run, job.attempt, job.name):
            return
        answer = await self.github.report(run, job, status=status, run_attempt=str(job.attempt), **more)
        if answer.status_code == 200:
            conclusion = more.get("conclusion", job.conclusion) if status == "completed" else None
            self.truth.add_report(run, job.attempt, job.name, conclusion)

    async def start_job(self, which: int, job: int) -> None:
        if (run_and_job := self._job(which, job)) and run_and_job[1].status == "queued":
            self.github.ci.start(*run_and_job)
            await self.do(self._report(*run_and_job, "in_progress"))

    async def end_job(self, which: int, job: int, conclusion: str, claimed: str | None) -> None:
        """A job ends at GitHub and reports the same, another or no conclusion."""
        if not (run_and_job := self._job(which, job)) or run_and_job[1].status != "in_progress":
            return
        self.github.ci.complete(*run_and_job, conclusion)
        if claimed != "silence":
            more = {"conclusion": claimed} if claimed else {}
            await self.do(self._report(run_and_job[0], run_and_job[1], "completed", **more))

    async def claim_end(self, which: int, job: int, claimed: str) -> None:
        """A job reports its end while it runs; at GitHub it ends later or never."""
        if (run_and_job := self._job(which, job)) and run_and_job[1].status == "in_progress":
            await self.do(self._report(run_and_job[0], run_and_job[1], "completed", conclusion=claimed))

    async def finish_run(self, which: int, conclusion: str, claimed: str) -> None:
        """A run starts and ends with reports; the last job may report a false conclusion."""
        if run_and_job := self._job(which, 0):
            await self.do(self._finish(run_and_job[0], conclusion, claimed))

    async def _finish(self, run: WorkflowRun, conclusion: str, claimed: str) -> None:
        for job in run.jobs:
            if job.status == "queued":
                self.github.ci.start(run, job)
                await self._report(run, job, "in_progress")
            if job.status == "in_progress":
                last = job is run.jobs[-1]
                self.github.ci.complete(
                    run, job, conclusion if last or conclusion == "skipped" else "success"
                )
                await self._report(run, job, "completed", **({"conclusion": claimed} if last else {}))

    async def cancel_run(self, which: int, *, silently: bool) -> None:
        if run_and_job := self._job(which, 0):
            await self.do(self._cancel(run_and_job[0], silently=silently))

    async def _cancel(self, run: WorkflowRun, *, silently: bool) -> None:
        started = [job for job in run.jobs if job.status == "in_progress"]
        self.github.ci.cancel(run)
        for job in started if not silently else ():
            await self._report(run, job, "completed")

    async def rerun_on_github(self, which: int, *, failed_only: bool) -> None:
        """A person presses Re-run in the backend's repository; its first job reports to the relay."""
        run_and_job = self._job(which, 0)
        if run_and_job is None or run_and_job[0].status != "completed" or run_and_job[0].attempt > 3:
            return
        if failed_only and all(job.conclusion in HARMLESS for job in run_and_job[0].jobs):
            return
        await self.do(self._rerun(run_and_job[0], failed_only=failed_only))

    async def _rerun(self, run: WorkflowRun, *, failed_only: bool) -> None:
        await self.github.rerun(run, failed_only=failed_only)
        job = next(run_job for run_job in run.jobs if run_job.attempt == run.attempt)
        self.github.ci.start(run, job)
        await self._report(run, job, "in_progress")

    # The relay and its surroundings

    async def change_allowlist(self, which: int) -> None:
        text, listed = ALLOWLISTS[which]
        self.relay.write_allowlist(text)
        if self.store_is_up:
            await self.do(self.relay.refresh())
            self.truth.in_force = self.truth.in_force if listed is None else listed

    async def work(self, amount: int, order: int) -> None:
        await self.do(deliver_some(self.relay, amount, Random(order)) if amount else self.relay.drain())

    async def pass_time(self, seconds: float, *, swept: bool) -> None:
        self.relay.clock.advance(seconds)
        if swept:
            await self.do(self.relay.services.sweeper.sweep())
            await self.do(self.relay.drain())

    async def github_is_unwell(self, kind: int, on: str | None, times: int) -> None:
        faults, match = self.github.faults, Match(path=on)
        kinds = (
            lambda: faults.answer(502, on=match, times=times),
            lambda: faults.answer(403, on=match, times=times, message="Resource not accessible"),
            lambda: faults.lose_answer(on=match, times=times),
            lambda: faults.lose_request(on=match, times=times),
            lambda: faults.secondary_limit(on=match, times=times),
            lambda: faults.primary_limit(on=match, times=times),
            lambda: faults.malformed(on=match, times=times),
            lambda: faults.jwks(times=times),
        )
        kinds[kind]()

    async def webhook_gets_lost(self, event: str) -> None:
        self.github.faults.webhooks.lose(event=event, times=1)

    async def reconcile(self) -> None:
        await self.do(reconcile(self.relay))

    async def store_fails_or_recovers(self) -> None:
        self._store(up=not self.store_is_up)

    def _store(self, *, up: bool) -> None:
        self.store_is_up = up
        database = self.relay.services.database
        assert isinstance(database, SqliteDatabase)
        database._writing.execute(f"PRAGMA query_only={'OFF' if up else 'ON'}")

    async def restart(self, *, begun: bool) -> None:
        """The process dies, with or without claimed effects, and another takes over its database."""
        self._store(up=True)
        await self.do(self._restart(begun=begun))

    async def _restart(self, *, begun: bool) -> None:
        relay = self.relay
        if begun:
            await relay.services.worker._outbox.claim(256, relay.clock.now())
        settings = relay.services.settings
        await relay.close()
        await relay.github.aclose()
        await relay.open(settings)
        services = relay.services
        await free_leases(
            services.database, tuple(upstream.key for upstream in services.upstreams), relay.clock.now()
        )
        self.truth.in_force = self._reload_entries()

    def _reload_entries(self) -> tuple[GatingEntry, ...]:
        """A restart reads the allowlist's file again."""
        text = (self.relay.folder / "allowlist.yml").read_text()
        listed = next(listed for allowlist_text, listed in ALLOWLISTS if allowlist_text == text)
        return self.truth.in_force if listed is None else listed

    # What must hold

    def watch(self) -> None:
        """Assert that no gate turned green against the oracle."""
        now = self.relay.clock.now() - timedelta(seconds=1)
        gates = {check.head_sha: check for check in self.github.checks(UPSTREAM) if check.name == GATE}
        for head, check in gates.items():
            assert check.conclusion not in {"neutral", "skipped"}
            if check.conclusion == "success" and check.id not in self.green:
                self.green.add(check.id)
                assert self.truth.passes(head, now, looked_up=False), check.output["title"]

    async def everything_works_for_a_while(self) -> None:
        """End all faults; then no gate is green that GitHub's own state of the jobs does not allow."""
        await self._recover(30, 150, 1000, 200)
        for pull in self._open():
            if not self.github.merge_state(pull).blocked_by:
                assert self.truth.passes(pull.head_sha, self.relay.clock.now(), looked_up=True)

    def _open(self) -> list[PullRequest]:
        return [pull for pull in self.pulls if pull.state == "open"]

    async def _recover(self, *seconds: float) -> None:
        self.github.faults.clear()
        self._store(up=True)
        for step in seconds:
            self.relay.clock.advance(step)
            await self.do(reconcile(self.relay))
            await self.do(self.relay.drain())
            await self.do(self.relay.services.sweeper.sweep())
            await self.do(self.relay.drain())
            self.watch()

    async def end(self, chance: Random) -> None:
        """End all faults, end all runs with some result, and let time pass."""
        await self._recover(60, 1000)
        for _ in range(2):
            for run in self._runs():
                if run.status != "completed":
                    succeeds = chance.random() < 0.7
                    await self.do(
                        self._finish(run, "success", "success")
                        if succeeds
                        else self._cancel(run, silently=True)
                    )
            await self._recover(60, 300)
        await self._recover(*[3 * 3600.0] * 5)
        for pull in self._open():
            self._assert_final_gate(pull)

    def _assert_final_gate(self, pull: PullRequest) -> None:
        gate = self.github.latest_checks(UPSTREAM, pull.head_sha)[GATE]
        shown = (gate.conclusion or "pending", gate.output["title"])
        if self.truth.passes(pull.head_sha, self.relay.clock.now(), looked_up=True):
            missing = shown[0] == "failure" and self.truth.newest_run_died_unreported(pull.head_sha)
            assert shown[0] == "success" or missing, shown
        else:
            assert shown[0] == "failure" or (shown[0] == "pending" and "held" in shown[1]), shown


def _newest(run: WorkflowRun) -> int:
    return -run.id


# Random walks


def _index(chance: Random) -> int:
    return chance.choice([0, 0, 0, 0, 1, 1, 2, 3])


RULES: tuple[Rule, ...] = (
    (3, "open_pull", lambda r: {"draft": r.random() < 0.2, "shared": r.random() < 0.3}),
    (
        8,
        "change_pull",
        lambda r: {
            "which": _index(r),
            "act": r.choice(["push", "push", "turn", "turn", "label", "draft", "back"]),
        },
    ),
    (9, "comment", lambda r: {"which": _index(r), "who": r.choice(PEOPLE), "words": r.choice(COMMENTS)}),
    (3, "press_rerun", lambda r: {"which": _index(r), "check": r.randrange(6)}),
    (12, "start_job", lambda r: {"which": _index(r), "job": r.randrange(2)}),
    (
        18,
        "end_job",
        lambda r: {
            "which": _index(r),
            "job": r.randrange(2),
            "conclusion": r.choice(ENDS),
            "claimed": r.choice(CLAIMS),
        },
    ),
    (
        6,
        "claim_end",
        lambda r: {
            "which": _index(r),
            "job": r.randrange(2),
            "claimed": r.choice(["success", "success", "skipped"]),
        },
    ),
    (
        10,
        "finish_run",
        lambda r: dict(zip(("which", "conclusion", "claimed"), (_index(r), *r.choice(RUNS)), strict=True)),
    ),
    (2, "cancel_run", lambda r: {"which": _index(r), "silently": r.random() < 0.5}),
    (4, "rerun_on_github", lambda r: {"which": _index(r), "failed_only": r.random() < 0.5}),
    (3, "change_allowlist", lambda r: {"which": r.randrange(len(ALLOWLISTS))}),
    (22, "work", lambda r: {"amount": r.choice([0, 0, 0, 1, 2, 3]), "order": r.randrange(100)}),
    (
        8,
        "pass_time",
        lambda r: {"seconds": r.choice([20.0, 60.0, 150.0, 3600.0, 32400.0]), "swept": r.random() < 0.6},
    ),
    (
        8,
        "github_is_unwell",
        lambda r: {
            "kind": r.randrange(8),
            "on": r.choice([None, CHECKS, CHECKS, "*/actions/*", "*/dispatches"]),
            "times": r.randint(1, 4),
        },
    ),
    (3, "webhook_gets_lost", lambda r: {"event": r.choice(["pull_request", "check_run"])}),
    (2, "reconcile", lambda _: {}),
    (2, "store_fails_or_recovers", lambda _: {}),
    (2, "restart", lambda r: {"begun": r.random() < 0.5}),
    (2, "everything_works_for_a_while", lambda _: {}),
)


def _steps(seed: int) -> list[Step]:
    chance = Random(seed)
    drawn = draw_steps(RULES, chance, STEPS)
    begin: Step = ("open_pull", {"draft": False, "shared": False})
    return [begin, *drawn]


@asynccontextmanager
async def _open_walk(folder: Path) -> AsyncIterator[Walk]:
    more = {"CRCR_RATE_LIMIT_PER_MIN": "1000000"}
    async with running_relay(folder, ALLOWLISTS[0][0], downstreams=(GATING, READING), **more) as relay:  # type: ignore[arg-type]
        for name in (GATING, READING):
            relay.github.repository(name).workflows = [WORKFLOW_WITH_GUID]
        relay.github.require_checks(UPSTREAM, [GATE])
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        relay.github.set_permission(UPSTREAM, "writer", "write")
        yield Walk(relay)


async def _run_steps(steps: list[Step], seed: int) -> str | None:
    """Run these steps; return the error, if any."""
    with TemporaryDirectory() as folder:
        try:
            async with _open_walk(Path(folder)) as walk:
                for name, choices in steps:
                    await walk.step(name, choices)
                await walk.end(Random(seed))
        except AssertionError as wrong:
            return str(wrong).partition("\n")[0] or repr(wrong)
    return None


@pytest.mark.parametrize("seed", range(SEED * 1000, SEED * 1000 + WALKS))
async def test_no_random_sequence_turns_the_gate_green_against_the_oracle(seed: int) -> None:
    await check_walk(seed, _steps(seed), lambda steps: _run_steps(steps, seed))
