"""No sequence of attacks opens the gate: base changes, renames, labels, shards, late runs, false reports, merge groups, pairs.

Random walks of the real relay against the simulated GitHub. After every step each gate that has turned green is compared with
GitHub's own records (`attack_oracle`); after all faults have ended, so is each pull request that GitHub would merge.

A failure is shrunk to the necessary steps. `CRCR_CHAOS_WALKS=500` runs more walks, `CRCR_CHAOS_SEED=7` other ones.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from chaos.attack_oracle import Gating, Oracle
from chaos.random_walks import Rule, Step, check_walk, deliver_some, draw_steps, reconcile
from github_sim.github import (
    JobSpec,
    Match,
    MergeBlocked,
    MergeGroup,
    PullRequest,
    Workflow,
    WorkflowJob,
    WorkflowRun,
)
from support.github.gated_upstream import GATE
from support.running_relay import UPSTREAM, RunningRelay, running_relay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), pytest.mark.usefixtures("quiet_logs")]

WALKS = int(os.environ.get("CRCR_CHAOS_WALKS", "24"))
SEED = int(os.environ.get("CRCR_CHAOS_SEED", "1"))
STEPS = 60
STACK = "stack"
GPU = "needs-gpu"
SHARDS, PATHED, LABELLED, MOVING = "org/shards", "org/pathed", "org/labelled", "org/moving"
BACKENDS = (SHARDS, PATHED, LABELLED, MOVING)
OPTIONS = {
    SHARDS: "jobs: ['test*']",
    PATHED: "jobs: [build], paths: ['aten/**']",
    LABELLED: f"jobs: [build], labels: [{GPU}]",
    MOVING: "jobs: [build]",
}
EXCUSES = '[[upstream]]\nexcuses = ["pre-existing", "flaky"]\n'
KNOWN, NEW = "test_known", "test_new"
"""The test that fails on the base, and the one that a change broke."""
FILES = (("src/kernel.py",), ("aten/op.cpp",), ("docs/readme.md", "aten/op.cpp"), ("docs/readme.md",))
ENDS = (*["success"] * 5, "failure", "cancelled", "skipped")
NAMED = "CI {delivery_id}"
ONE_JOB = Workflow(jobs=(JobSpec("build"),), run_name=NAMED)
SHARDED = Workflow(jobs=tuple(JobSpec(f"test-{n}") for n in (1, 2, 3)), run_name=NAMED)
SAME_NAME = Workflow(
    name="Other", path=".github/workflows/other.yml", jobs=(JobSpec("test-1"),), run_name=NAMED
)


def _options(backend: str, *, excuses: bool) -> str:
    """With excuses, the backends run for pushes too: verdicts depend on the results of the base."""
    return f"{OPTIONS[backend]}, events: [pull_request, push, merge_group]" if excuses else OPTIONS[backend]


class Walk:
    def __init__(self, relay: RunningRelay, *, excuses: bool = False) -> None:
        self.relay, self.github, self.excuses = relay, relay.github, excuses
        self.backends = {relay.github.repository(name).id: name for name in BACKENDS}
        self.listed = set(self.backends)
        self.oracle = Oracle(relay.github, self._gating())
        self.pulls: list[PullRequest] = []
        self.groups: dict[str, tuple[MergeGroup, dict[int, str], str]] = {}
        self.green: set[int] = set()
        self.others: list[PullRequest] = []
        """Pull requests of backends."""

    async def step(self, name: str, choices: dict[str, Any]) -> None:
        with suppress(MergeBlocked):  # GitHub refuses this act in the current state
            await getattr(self, name)(**choices)
        self.relay.clock.advance(1)
        self._note()
        self.watch()

    def _note(self) -> None:
        """Update the oracle with the webhooks and runs that the relay has recorded."""
        self.oracle.note_recorded({row["guid"] for row in self.relay.rows("SELECT guid FROM deliveries")})
        self.oracle.seen_runs = {int(row["run_id"]) for row in self.relay.rows("SELECT run_id FROM runs")}

    # The allowlist and the names in it

    def _gating(self) -> tuple[Gating, ...]:
        options: dict[str, dict[str, Any]] = {
            PATHED: {"paths": ("aten/*",)},
            LABELLED: {"labels": (GPU,)},
            SHARDS: {"names_jobs": False},
        }
        return tuple(
            Gating(number, **options.get(first, {}))
            for number, first in self.backends.items()
            if number in self.listed
        )

    def _allowlist(self) -> str:
        name = {number: self.github.world.repositories[number].full_name for number in self.listed}
        lines = [
            f"  - {name[number]}: {{oncalls: [bob], {_options(first, excuses=self.excuses)}}}\n"
            for number, first in self.backends.items()
            if number in self.listed
        ]
        return "L4:\n" + "".join(lines) if lines else "L1:\n  - org/else\n"

    async def rename(self, which: int) -> None:
        number = list(self.backends)[which]
        repository = self.github.world.repositories[number]
        self.oracle.former_names[repository.full_name] = number
        await self.github.rename_repository(repository.full_name, f"{repository.name}-x")

    async def follow_names(self) -> None:
        """A maintainer brings the allowlist up to date with all renames."""
        self.relay.write_allowlist(self._allowlist())
        await self.relay.refresh()
        self.oracle.in_force = self._gating()

    async def list_or_unlist(self, which: int) -> None:
        number = list(self.backends)[which]
        self.listed ^= {number}
        await self.follow_names()

    async def break_base(self) -> None:
        """The base branch passes once, then fails twice with a test that is known from then on."""
        for number, tests in enumerate(((), (KNOWN,), (KNOWN,))):
            self.relay.clock.advance(60)
            await self.github.push(UPSTREAM, files={"base.txt": str(number)})
            await self.relay.drain()
            for run in [run for run in self.github.world.runs.values() if run.status != "completed"]:
                for job in run.jobs:
                    self.github.ci.start(run, job)
                    await self.github.report(run, job, status="in_progress")
                    self.github.ci.complete(run, job, "failure" if tests else "success")
                    failed = [{"name": name, "message": f"{name} broke"} for name in tests]
                    await self.github.report(run, job, status="completed", failed_tests=failed)
            await self.relay.drain()

    # Pull requests

    async def open_pull(self, *, base: str, files: int, gpu: bool, shared: bool) -> None:
        def same_head(other: PullRequest) -> None:
            if shared and self.pulls:
                other.head_sha = self.pulls[0].head_sha

        if len(self.pulls) < 3:
            labels = [GPU] if gpu else []
            opening = self.github.open_pr(
                UPSTREAM, base=base, files=FILES[files], labels=labels, before_webhook=same_head
            )
            self.pulls.append(await opening)

    async def change_pull(self, which: int, act: str) -> None:
        pull, github = self.pulls[which % len(self.pulls)], self.github
        is_open = pull.state == "open"
        if act == "push" and is_open:
            await github.push_to_pr(pull)
        elif act == "retarget" and is_open:
            await github.edit_pr(pull, base="main" if pull.base_ref == STACK else STACK)
        elif act == "edit" and is_open:
            await github.edit_pr(pull, title=f"{pull.title}!")
        elif act == "turn" and not pull.merged:
            await (github.close_pr(pull) if is_open else github.reopen_pr(pull))
        elif act == "label":
            await (github.unlabel_pr if GPU in pull.labels else github.label_pr)(pull, GPU)

    async def comment(self, which: int, backend: int, words: str, *, named: bool) -> None:
        pull = self.pulls[which % len(self.pulls)]
        name = self.github.world.repositories[list(self.backends)[backend]].full_name
        at = f" at {pull.head_sha[:12]}" if named else ""
        state = (pull.head_sha, pull.base_ref)
        comment = await self.github.comment_pr(
            pull, f"/crcr waive {name}{words}{at} because it is known", author="maintainer"
        )
        self.oracle.state_at_comment[comment.id] = state

    # Pull requests of backends that others depend on

    async def open_other(self, backend: int, *, stranger: bool, names_back: bool) -> None:
        if len(self.others) < 3:
            name = self.github.world.repositories[list(self.backends)[backend]].full_name
            body = f"Depends-On: {UPSTREAM}#{self.pulls[0].number}" if names_back else None
            author = "stranger" if stranger else "backender"
            self.others.append(await self.github.open_pr(name, author=author, fork=stranger, body=body))

    async def depend(self, which: int, other: int, *, by_command: bool) -> None:
        """The pull request's text names a dependency, or no longer names one; or a person requests it."""
        pull = self.pulls[which % len(self.pulls)]
        if not self.others or pull.state != "open":
            return
        dependency = self.others[other % len(self.others)]
        name = f"{self.github.world.repositories[dependency.repository_id].full_name}#{dependency.number}"
        if by_command:
            await self.github.comment_pr(pull, f"/crcr test-with {name}", author="maintainer")
        else:
            named = "Depends-On" in (pull.body or "") and other == 0
            await self.github.edit_pr(pull, body="on its own" if named else f"Depends-On: {name}")

    async def change_other(self, other: int, act: str) -> None:
        if not self.others:
            return
        pull, github = self.others[other % len(self.others)], self.github
        is_open = pull.state == "open"
        if act in {"push", "force"} and is_open:
            await (github.push_to_pr if act == "push" else github.force_push_to_pr)(pull)
        elif act in {"approve", "reject"} and is_open:
            github.review_pr(
                pull, author="owner", state="APPROVED" if act == "approve" else "CHANGES_REQUESTED"
            )
        elif act == "merge" and is_open:
            await github.close_pr(pull, merged=True)
        elif act == "turn" and not pull.merged:
            await (github.close_pr(pull) if is_open else github.reopen_pr(pull))

    async def finish_apart(self) -> None:
        """End all runs: those with a backend's pull request pass, those without it fail."""
        await self.relay.drain()
        for run in list(self.github.world.runs.values()):
            if run.status != "completed":
                is_pair = run.event_type == "crcr_pair"
                fails = (
                    not is_pair
                    and (run.client_payload.get("delivery_id"), run.repository_id) in self._paired()
                )
                await self._finish(run, "failure" if fails else "success")
        await self.pass_time(5.0)

    def _paired(self) -> set[tuple[str, int]]:
        """The plain deliveries and backends that have a pair."""
        numbers = {name.lower(): number for name, number in self.oracle.names.items()}
        rows = self.relay.rows("SELECT plain, downstream FROM pairs WHERE delivery IS NOT NULL")
        return {(row["plain"], numbers[row["downstream"]]) for row in rows if row["downstream"] in numbers}

    # The merge queue

    async def enqueue(self, which: int) -> None:
        pull = self.pulls[which % len(self.pulls)]
        if pull.base_ref == "main":
            group = await self.github.enqueue(pull)
            self._note_group(group, {pull.number: pull.head_sha})

    async def enqueue_together(self, first: int, second: int) -> None:
        """GitHub creates one group of two pull requests."""
        one, two = (self.pulls[which % len(self.pulls)] for which in (first, second))
        if one is two or {one.base_ref, two.base_ref} != {"main"} or self.github.merge_queue(UPSTREAM):
            return
        first_group = await self.github.enqueue(one)
        self._note_group(first_group, {one.number: one.head_sha})
        self.github.faults.webhooks.lose(event="merge_group", times=1)
        group = await self.github.enqueue(two)
        assert group.last_delivery is not None
        body = json.loads(group.last_delivery.payload)
        body["merge_group"]["base_sha"] = first_group.base_sha
        delivery = await self.github.send_webhook("merge_group", body)
        self._note_group(group, {one.number: one.head_sha, two.number: two.head_sha}, delivery.guid)

    def _note_group(self, group: MergeGroup, pulls: dict[int, str], guid: str | None = None) -> None:
        assert group.last_delivery is not None
        self.groups[group.head_sha] = (group, pulls, guid or group.last_delivery.guid)

    async def dequeue(self) -> None:
        if waiting := self.github.merge_queue(UPSTREAM):
            await self.github.dequeue(waiting[-1])

    # Jobs

    def _run(self, which: int) -> WorkflowRun | None:
        runs = sorted(self.github.world.runs.values(), key=lambda run: -run.id)
        return runs[which % min(len(runs), 6)] if runs else None

    async def _report(self, run: WorkflowRun, job: WorkflowJob, status: str, **more: Any) -> None:
        """Report; with excuses, a failure names the test that fails on the base, the one that this change broke, or both."""
        if self.excuses and status == "completed" and job.conclusion == "failure" and not more:
            tests = ((KNOWN,), (KNOWN,), (NEW,), (KNOWN, NEW))[run.id % 4]
            more = {"failed_tests": [{"name": name, "message": f"{name} broke"} for name in tests]}
            if tests == (KNOWN,):
                self.oracle.pre_existing.add((run.id, job.attempt, job.name))
        answer = await self.github.report(run, job, status=status, run_attempt=str(job.attempt), **more)
        if answer.status_code == 200:
            self.oracle.reported_attempts[run.id] = max(self.oracle.reported_attempts[run.id], job.attempt)

    async def start_job(self, which: int, job: int) -> None:
        if (run := self._run(which)) and (queued_job := run.jobs[job % len(run.jobs)]).status == "queued":
            self.github.ci.start(run, queued_job)
            await self._report(run, queued_job, "in_progress")

    async def end_job(self, which: int, job: int, conclusion: str) -> None:
        if (run := self._run(which)) and (
            running_job := run.jobs[job % len(run.jobs)]
        ).status == "in_progress":
            self.github.ci.complete(run, running_job, conclusion)
            await self._report(run, running_job, "completed")

    async def finish_run(self, which: int, conclusion: str) -> None:
        if run := self._run(which):
            await self._finish(run, conclusion)

    async def finish_all(self, failing: int | None) -> None:
        """End all runs, all but one with success, and report them to the relay."""
        await self.relay.drain()
        for number, run in enumerate(list(self.github.world.runs.values())[::-1]):
            if run.status != "completed":
                await self._finish(run, "failure" if number == failing else "success")
        await self.pass_time(5.0)

    async def _finish(self, run: WorkflowRun, conclusion: str) -> None:
        for job in run.jobs:
            if job.status == "queued":
                self.github.ci.start(run, job)
                await self._report(run, job, "in_progress")
            if job.status == "in_progress":
                self.github.ci.complete(run, job, conclusion if job is run.jobs[-1] else "success")
                await self._report(run, job, "completed")

    async def claim_success(self, which: int, job: int) -> None:
        """A job reports success while it is still running at GitHub."""
        if (run := self._run(which)) and (
            running_job := run.jobs[job % len(run.jobs)]
        ).status == "in_progress":
            await self._report(run, running_job, "completed", conclusion="success")

    async def claim_for_all(self, which: int, job: int) -> None:
        """One job with a token reports success for every job of its run."""
        if run := self._run(which):
            speaker = run.jobs[job % len(run.jobs)]
            for claimed_job in run.jobs:
                for status, more in (("in_progress", {}), ("completed", {"conclusion": "success"})):
                    await self._report(run, speaker, status, job_name=claimed_job.name, **more)

    async def another_run(self, which: int) -> None:
        """A second run for the same delivery appears late."""
        if (run := self._run(which)) and run.event == "repository_dispatch":
            name = self.github.world.repositories[run.repository_id].full_name
            self.github.start_run(
                name, event=run.event, event_type=run.event_type, client_payload=run.client_payload
            )

    async def run_again(self, which: int, *, failed_only: bool) -> None:
        run = self._run(which)
        if run and run.status == "completed" and run.attempt < 3:
            await self.github.rerun(run, failed_only=failed_only)

    # The relay and its surroundings

    async def work(self, amount: int, order: int) -> None:
        if amount == 0:
            await self.relay.drain()
            return
        await deliver_some(self.relay, amount, Random(order))

    async def pass_time(self, seconds: float) -> None:
        self.relay.clock.advance(seconds)
        await self.relay.services.sweeper.sweep()
        await self.relay.drain()

    async def github_is_unwell(self, kind: int, on: str, times: int) -> None:
        faults, match = self.github.faults, Match(path=on)
        kinds = (
            lambda: faults.answer(502, on=match, times=times),
            lambda: faults.answer(403, on=match, times=times, message="Resource not accessible"),
            lambda: faults.lose_answer(on=match, times=times),
            lambda: faults.malformed(on=match, times=times),
        )
        kinds[kind]()

    async def webhook_gets_lost(self, event: str) -> None:
        self.github.faults.webhooks.lose(event=event, times=1)

    async def everything_works_for_a_while(self) -> None:
        """End all faults; then GitHub's merge rule must not accept a pull request that has not passed at its head and base."""
        self.github.faults.clear()
        for seconds in (30.0, 150.0, 700.0, 200.0):
            self.relay.clock.advance(seconds)
            await reconcile(self.relay)
            await self.relay.drain()
            await self.relay.services.sweeper.sweep()
            await self.relay.drain()
            self._note()
            self.watch()
        self._judge_merges()

    # What must hold

    def watch(self) -> None:
        """Assert that no gate turned green against the recorded state."""
        gates = {check.head_sha: check for check in self.github.checks(UPSTREAM) if check.name == GATE}
        for head, check in gates.items():
            assert check.conclusion not in {"neutral", "skipped"}
            if check.conclusion == "success" and check.id not in self.green:
                self.green.add(check.id)
                assert (wrong := self._wrong_at(head)) is None, f"turned green: {wrong}"

    def _wrong_at(self, head: str) -> str | None:
        now = self.relay.clock.now()
        if head in self.groups:
            return self.oracle.wrong_for_group(*self.groups[head], now)
        pulls = [pull for pull in self._open() if pull.head_sha == head and self.oracle.is_recorded(pull)]
        wrongs = [self.oracle.wrong_for_pull(pull, now) for pull in pulls]
        return next((wrong for wrong in wrongs if wrong), None)

    def _judge_merges(self) -> None:
        """Compare every pull request that GitHub would merge now with GitHub's records."""
        for pull in self._open():
            if pull.base_ref == "main" and self.github.merge_state(pull).mergeable:
                wrong = self.oracle.wrong_for_pull(pull, self.relay.clock.now())
                assert wrong is None, f"may be merged: {wrong}"
                events = [head for head in self.oracle.heads(pull.number) if head.guid in self.oracle.members]
                assert (events[-1].sha, events[-1].base) == (pull.head_sha, pull.base_ref)

    def _open(self) -> list[PullRequest]:
        return [pull for pull in self.pulls if pull.state == "open"]

    async def end(self, chance: Random) -> None:
        """End all faults, end all runs with some result, and check every pull request that may be merged."""
        for _ in range(2):
            await self.everything_works_for_a_while()
            for run in list(self.github.world.runs.values()):
                if run.status != "completed":
                    await self._finish(run, chance.choice(["success", "success", "failure"]))
        await self.everything_works_for_a_while()
        await self.github.settle_queue(UPSTREAM)


# Random walks


def _index(chance: Random) -> int:
    return chance.choice([0, 0, 0, 1, 1, 2])


RULES: tuple[Rule, ...] = (
    (
        5,
        "open_pull",
        lambda r: {
            "base": r.choice(["main", STACK, STACK]),
            "files": r.randrange(len(FILES)),
            "gpu": r.random() < 0.3,
            "shared": r.random() < 0.2,
        },
    ),
    (
        12,
        "change_pull",
        lambda r: {
            "which": _index(r),
            "act": r.choice(["push", "retarget", "retarget", "label", "label", "turn", "edit"]),
        },
    ),
    (
        5,
        "comment",
        lambda r: {
            "which": _index(r),
            "backend": r.randrange(4),
            "words": r.choice(["", "", " until 2h"]),
            "named": r.random() < 0.5,
        },
    ),
    (4, "enqueue", lambda r: {"which": _index(r)}),
    (4, "enqueue_together", lambda r: {"first": _index(r), "second": _index(r)}),
    (1, "dequeue", lambda _: {}),
    (3, "rename", lambda r: {"which": r.choice([0, 1, 3])}),
    (4, "follow_names", lambda _: {}),
    (1, "list_or_unlist", lambda r: {"which": r.randrange(4)}),
    (10, "start_job", lambda r: {"which": r.randrange(6), "job": r.randrange(3)}),
    (12, "end_job", lambda r: {"which": r.randrange(6), "job": r.randrange(3), "conclusion": r.choice(ENDS)}),
    (22, "finish_run", lambda r: {"which": r.randrange(6), "conclusion": r.choice(ENDS)}),
    (16, "finish_all", lambda r: {"failing": r.choice([None, None, None, 0, 1, 2, 3])}),
    (6, "claim_success", lambda r: {"which": r.randrange(6), "job": r.randrange(3)}),
    (4, "claim_for_all", lambda r: {"which": r.randrange(6), "job": r.randrange(3)}),
    (3, "another_run", lambda r: {"which": r.randrange(6)}),
    (3, "run_again", lambda r: {"which": r.randrange(6), "failed_only": r.random() < 0.5}),
    (24, "work", lambda r: {"amount": r.choice([0, 0, 0, 1, 3]), "order": r.randrange(100)}),
    (10, "pass_time", lambda r: {"seconds": r.choice([5.0, 30.0, 70.0, 150.0, 600.0])}),
    (
        4,
        "github_is_unwell",
        lambda r: {
            "kind": r.randrange(4),
            "on": r.choice(["*/actions/*", "*/compare/*", "*/check-runs*", "/repos/org/*"]),
            "times": r.randint(1, 3),
        },
    ),
    (3, "webhook_gets_lost", lambda r: {"event": r.choice(["pull_request", "repository", "workflow_job"])}),
    (3, "everything_works_for_a_while", lambda _: {}),
)


MORE_FAILURES: tuple[Rule, ...] = (
    (16, "finish_all", lambda r: {"failing": r.randrange(4)}),
    (4, "change_pull", lambda r: {"which": _index(r), "act": "push"}),
    (8, "enqueue", lambda r: {"which": _index(r)}),
)
"""With excuses: most failures are on pull requests for main, where the base fails too."""


PAIRS: tuple[Rule, ...] = (
    (
        8,
        "open_other",
        lambda r: {
            "backend": r.randrange(4),
            "stranger": r.random() < 0.4,
            "names_back": r.random() < 0.15,
        },
    ),
    (16, "finish_apart", lambda _: {}),
    (
        14,
        "depend",
        lambda r: {"which": _index(r), "other": _index(r), "by_command": r.random() < 0.3},
    ),
    (
        12,
        "change_other",
        lambda r: {
            "other": _index(r),
            "act": r.choice(["push", "force", "approve", "approve", "reject", "merge", "turn"]),
        },
    ),
)
"""Dependent changes, in half of the walks."""


def _has_pairs(seed: int) -> bool:
    return seed % 4 >= 2


def _has_excuses(seed: int) -> bool:
    return seed % 3 == 0


def _steps(seed: int) -> list[Step]:
    chance = Random(seed)
    excuses = _has_excuses(seed)
    rules = (*RULES, *(MORE_FAILURES if excuses else ()), *(PAIRS if _has_pairs(seed) else ()))
    drawn = draw_steps(rules, chance, STEPS)
    base = "main" if excuses else chance.choice(["main", STACK])
    begin: Step = ("open_pull", {"base": base, "files": 0, "gpu": False, "shared": False})
    if not _has_pairs(seed):
        return [begin, *drawn]
    other: Step = ("open_other", {"backend": 3, "stranger": seed % 3 == 1, "names_back": False})
    return [begin, other, ("depend", {"which": 0, "other": 0, "by_command": False}), *drawn]


@asynccontextmanager
async def _open_walk(folder: Path, seed: int) -> AsyncIterator[Walk]:
    excuses = _has_excuses(seed)
    if excuses:
        (folder / "crcr.toml").write_text(EXCUSES)
    lines = (f"  - {name}: {{oncalls: [bob], {_options(name, excuses=excuses)}}}\n" for name in BACKENDS)
    text = "L4:\n" + "".join(lines)
    async with running_relay(folder, text, downstreams=BACKENDS, CRCR_RATE_LIMIT_PER_MIN="1000000") as relay:
        for name in BACKENDS:
            repository = relay.github.repository(name)
            repository.workflows = [SHARDED, SAME_NAME] if name == SHARDS else [ONE_JOB]
            repository.sends_run_webhooks = bool(seed % 2)
            relay.github.set_permission(name, "owner", "write")
        relay.github.require_checks(UPSTREAM, [GATE])
        relay.github.set_permission(UPSTREAM, "maintainer", "maintain")
        await relay.github.push(
            UPSTREAM, ref=f"refs/heads/{STACK}", created=True, files={"aten/evil.cpp": "x"}
        )
        await relay.drain()
        walk = Walk(relay, excuses=excuses)
        if excuses:
            await walk.break_base()
        yield walk


async def _run_steps(steps: list[Step], seed: int) -> str | None:
    """Run these steps; return the error, if any."""
    with TemporaryDirectory() as folder:
        try:
            async with _open_walk(Path(folder), seed) as walk:
                for name, choices in steps:
                    await walk.step(name, choices)
                await walk.end(Random(seed))
        except AssertionError as wrong:
            return str(wrong).partition("\n")[0] or repr(wrong)
    return None


@pytest.mark.parametrize("seed", range(SEED * 1000, SEED * 1000 + WALKS))
async def test_no_random_sequence_of_attacks_opens_the_gate(seed: int) -> None:
    await check_walk(seed, _steps(seed), lambda steps: _run_steps(steps, seed))
