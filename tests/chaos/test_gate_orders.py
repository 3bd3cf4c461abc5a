"""Label, close, push, re-run, comment and callback in every order give the same published checks.

GitHub creates its webhooks in one true order; here they arrive in other orders, some of them twice, with callbacks and
worker steps in between. The newest check of each name on each live head must equal that of the true order. On a dead
commit no check stays open, and no gate turns green once the webhook that ends it has arrived.

A published check cannot be deleted: checks of an L3 backend whose label was removed may exist, be ended, or never have
been created. A job's result depends only on its name, so that orders which run it twice must agree too. A comment applies
to the head that its author saw: it never waives or approves a later push.

`CRCR_CHAOS_ORDERS=300` runs more orders; `CRCR_CHAOS_SEED` selects other ones.
"""

import os
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from itertools import permutations
from math import factorial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from chaos.random_walks import deliver_some
from github_sim.github import CheckRun, MergeGroup, PullRequest, WebhookDelivery, WorkflowRun
from support.github.gated_upstream import GATE, GATED, GATING, INFORMING, LABEL, gated_upstream
from support.running_relay import UPSTREAM, RunningRelay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900), pytest.mark.usefixtures("quiet_logs")]

ORDERS = int(os.environ.get("CRCR_CHAOS_ORDERS", "6"))
LIVES = max(4, ORDERS // 4)
SEED = int(os.environ.get("CRCR_CHAOS_SEED", "1"))
HELD_BACK = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], drafts: false}}\n"
APPROVED = f"L4:\n  - {GATING}: {{oncalls: [bob], jobs: [build, test], authors: approved}}\n"

Arrival = Callable[[], Awaitable[object]]
PublishedChecks = dict[str, dict[str, tuple[str, str | None, str]]]


class StoryRun:
    """One run of a story on its own pull requests: the acts at GitHub, and the webhooks and reports that have arrived."""

    def __init__(self, relay: RunningRelay, *, tight: bool, outcomes: dict[str, str]) -> None:
        self.relay = relay
        self.github = relay.github
        self.tight = tight
        self.outcomes = outcomes
        self.pulls: list[PullRequest] = []
        self.heads: list[str] = []
        self.arrivals: list[tuple[str, Arrival]] = []
        self.person = f"maintainer-{len(relay.github.world.pulls)}"
        self._true_states: list[tuple[object, str, bool]] = []
        """For each webhook that changes a head: its subject, the head, and whether the head is live afterwards."""
        self._known: dict[object, int] = {}
        self._green: set[int] = set()
        self.guids: set[str] = set()
        self._arrived: list[WebhookDelivery] = []
        relay.github.set_permission(UPSTREAM, self.person, "maintain")

    # What happens on GitHub

    async def open(self, **more: Any) -> PullRequest:
        pull = await self.github.open_pr(UPSTREAM, **more)
        self.pulls.append(pull)
        self._note_state(pull)
        return pull

    async def do(self, act: Awaitable[object], pull: PullRequest | None = None) -> None:
        """Do the act; its webhook is held back and becomes an arrival."""
        await act
        state_index = self._note_state(pull) if pull else None
        self._hold_back(state_index)
        self.relay.clock.advance(0 if self.tight else 2)

    async def push_back(self, pull: PullRequest, head: str) -> None:
        before, pull.head_sha = pull.head_sha, head
        await self.github.send_pull_webhook(pull, "synchronize", {"before": before, "after": head})

    async def comment(self, text: str) -> None:
        """A maintainer comments; `HEAD` is replaced by the current head."""
        text = text.replace("HEAD", self.pulls[0].head_sha[:12])
        await self.do(self.github.comment_pr(self.pulls[0], text, author=self.person))

    async def enqueue(self, pull: PullRequest) -> MergeGroup:
        group = await self.github.enqueue(pull)
        await self._queue(group, live=True)
        return group

    async def dequeue(self, group: MergeGroup) -> None:
        await self.github.dequeue(group)
        await self._queue(group, live=False)

    async def _queue(self, group: MergeGroup, *, live: bool) -> None:
        self._note_head(group.head_sha)
        self._true_states.append((f"group {group.head_sha}", group.head_sha, live))
        self._hold_back(len(self._true_states) - 1)
        self.relay.clock.advance(2)

    def report(self, run: WorkflowRun | None, name: str) -> None:
        """Add the report of a job's result as an arrival if its run has started."""
        if run is not None:
            self.arrivals.append((f"{name} ends", lambda: self._end(run, name)))

    def _hold_back(self, index: int | None) -> None:
        held, self.github.webhooks.held = self.github.webhooks.held, []
        for delivery in held:
            self.guids.add(delivery.guid)
            label = f"{delivery.event} {delivery.action} {index if index is not None else ''}"
            self.arrivals.append((label, lambda sent=delivery: self._arrive(sent, index)))  # type: ignore[misc]

    def _note_state(self, pull: PullRequest) -> int | None:
        self._note_head(pull.head_sha)
        state = (pull.number, pull.head_sha, pull.state == "open")
        if any(newest_state == state for newest_state in self._true_states[-1:]):
            return None
        self._true_states.append(state)
        if not self.github.webhooks.held:
            self._known[pull.number] = len(self._true_states) - 1
            if pull.last_delivery:
                self.guids.add(pull.last_delivery.guid)
        return len(self._true_states) - 1

    def _note_head(self, head: str) -> None:
        if head not in self.heads:
            self.heads.append(head)

    # What arrives

    async def _arrive(self, delivery: WebhookDelivery, state_index: int | None) -> None:
        await self.github.webhooks._send(delivery)
        assert delivery.ok, delivery.answer_body
        self._arrived.append(delivery)
        if state_index is not None and not self.tight:
            subject = self._true_states[state_index][0]
            self._known[subject] = max(state_index, self._known.get(subject, -1))

    async def redeliver_some(self, chance: Random) -> None:
        """Redeliver a webhook that has already arrived."""
        if self._arrived:
            await self.github.webhooks.redeliver(chance.choice(self._arrived))

    async def _end(self, run: WorkflowRun | None, name: str) -> None:
        if run is not None and run.job(name).status != "completed":
            if run.job(name).status == "queued":
                await self.github.start_job(run, name)
            await self.github.complete_job(run, name, conclusion=self.outcomes.get(name, "success"))

    async def work(self, chance: Random | None) -> None:
        """The worker does all due effects, some of them in any order, or none."""
        amount = chance.choice([0, 0, 1, 2, 99]) if chance else 99
        if amount == 99:
            await self.relay.drain()
        elif chance and amount:
            await deliver_some(self.relay, amount, chance)
        self.watch()

    def watch(self) -> None:
        """Assert that no gate turns green on a dead commit after the webhook that ended it has arrived."""
        alive = {
            self._true_states[state_index][1]
            for state_index in self._known.values()
            if self._true_states[state_index][2]
        }
        for head in self.heads:
            green = {check.id for check in self._gates(head) if check.conclusion == "success"}
            assert head in alive or green <= self._green or self.tight, f"{head} died and turned green"
            self._green |= green

    def _gates(self, head: str) -> list[CheckRun]:
        return [check for check in self.github.checks(UPSTREAM, head) if check.name == GATE]

    # How it ends

    async def settle(self) -> None:
        """End all dispatched jobs and let the relay look them up at GitHub."""
        await self.relay.drain()
        self.tight = False
        self._known = {subject: state_index for state_index, (subject, _, _) in enumerate(self._true_states)}
        for seconds in (0, 90, 150, 90):
            self.relay.clock.advance(seconds)
            await self.relay.drain()
            while unfinished := [
                (run, job) for run in self._runs() for job in run.jobs if not job.conclusion
            ]:
                for run, job in unfinished:
                    await self._end(run, job.name)
                await self.relay.drain()
            await self.relay.services.sweeper.sweep()
            await self.relay.drain()
            self.watch()

    def _runs(self) -> list[WorkflowRun]:
        runs = [run for name in (GATING, INFORMING) for run in self.github.runs(name)]
        return [run for run in runs if run.delivery_id in self.guids]

    def published_checks(self) -> PublishedChecks:
        """The newest check of each name on each live head; asserts that no check is open on a dead head."""
        last = {subject: (head, live) for subject, head, live in self._true_states}
        alive = {head for head, live in last.values() if live}
        for head in set(self.heads) - alive:
            open_checks = [
                check.name for check in self.github.checks(UPSTREAM, head) if check.status != "completed"
            ]
            assert open_checks == [], f"left open on the dead {head}"
        return {
            f"head {self.heads.index(head)}": self._checks_on(head) for head in self.heads if head in alive
        }

    def _checks_on(self, head: str) -> dict[str, tuple[str, str | None, str]]:
        is_requested = any(pull.head_sha == head and LABEL in pull.labels for pull in self.pulls)
        shown: dict[str, tuple[str, str | None, str]] = {}
        for name, check in sorted(self.github.latest_checks(UPSTREAM, head).items()):
            if name.startswith(f"crcr/{INFORMING}") and not is_requested:
                assert check.conclusion in {"neutral", "success"}
                continue
            if check.output["title"] == "no longer requested":
                continue
            title = re.sub(r"maintainer-\d+", "maintainer", check.output["title"])
            shown[name] = (check.status, check.conclusion, title)
        return shown


Story = Callable[[StoryRun], Awaitable[None]]


# The stories: the initial state, `hold`, then the events in their true order.


async def _open_with_gating_run(story_run: StoryRun, **more: Any) -> tuple[PullRequest, WorkflowRun | None]:
    """Open a pull request and start its gating run unless it is held; afterwards webhooks are held back."""
    pull = await story_run.open(**more)
    await story_run.relay.drain()
    runs = [run for run in story_run.github.runs(GATING) if run.delivery_id in story_run.guids]
    for run in runs:
        for job in run.jobs:
            await story_run.github.start_job(run, job.name)
    await story_run.relay.drain()
    story_run.relay.clock.advance(2)
    story_run.github.faults.webhooks.hold()
    return pull, runs[0] if runs else None


async def label_close_reopen(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    await story_run.do(story_run.github.label_pr(pull, LABEL))
    await story_run.do(story_run.github.close_pr(pull), pull)
    await story_run.do(story_run.github.reopen_pr(pull), pull)
    story_run.report(run, "build")
    story_run.report(run, "test")


async def push_and_push_back(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    first = pull.head_sha
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    await story_run.do(story_run.push_back(pull, first), pull)
    story_run.report(run, "build")
    story_run.report(run, "test")


async def push_and_close(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run, labels=[LABEL])
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    story_run.report(run, "build")
    story_run.report(run, "test")
    await story_run.do(story_run.github.close_pr(pull), pull)


async def label_and_take_it_back(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    await story_run.do(story_run.github.label_pr(pull, LABEL))
    story_run.report(run, "build")
    await story_run.do(story_run.github.unlabel_pr(pull, LABEL))
    story_run.report(run, "test")


async def two_pulls_on_one_head(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)

    def same_head(other: PullRequest) -> None:
        other.head_sha = pull.head_sha

    await story_run.do(_open_another(story_run, same_head))
    story_run.report(run, "build")
    await story_run.do(story_run.github.close_pr(pull), pull)
    await story_run.do(story_run.github.label_pr(story_run.pulls[1], LABEL))


async def _open_another(story_run: StoryRun, change: Callable[[PullRequest], None]) -> None:
    pull = await story_run.github.open_pr(UPSTREAM, before_webhook=change)
    story_run.pulls.append(pull)
    story_run._true_states.append((pull.number, pull.head_sha, True))


async def ready_and_push(story_run: StoryRun) -> None:
    pull, _ = await _open_with_gating_run(story_run, draft=True)
    await story_run.do(story_run.github.ready_for_review(pull))
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    await story_run.do(story_run.github.label_pr(pull, "other"))


async def ready_and_draft_again(story_run: StoryRun) -> None:
    pull, _ = await _open_with_gating_run(story_run, draft=True)
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    await story_run.do(story_run.github.ready_for_review(pull))
    await story_run.do(story_run.github.convert_to_draft(pull))
    await story_run.do(story_run.github.ready_for_review(pull))


async def waive_then_push(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    await story_run.comment(f"/crcr waive {GATING} at HEAD because the lab is down")
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    story_run.report(run, "build")
    await story_run.do(story_run.github.label_pr(pull, LABEL))


async def push_then_waive(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    await story_run.comment(f"/crcr waive {GATING} at HEAD because the lab is down")
    story_run.report(run, "build")


async def waive_and_callbacks(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    await story_run.comment(f"/crcr waive {GATING}:build at HEAD because the lab is down")
    story_run.report(run, "build")
    story_run.report(run, "test")
    await story_run.do(story_run.github.label_pr(pull, LABEL))


async def approve_then_push(story_run: StoryRun) -> None:
    pull, _ = await _open_with_gating_run(story_run)
    await story_run.comment("/crcr approve at HEAD")
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    await story_run.do(story_run.github.label_pr(pull, "other"))


async def push_then_approve(story_run: StoryRun) -> None:
    pull, _ = await _open_with_gating_run(story_run)
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    await story_run.comment("/crcr approve at HEAD")


async def _open_with_red_gate(story_run: StoryRun, **more: Any) -> tuple[PullRequest, CheckRun]:
    """Open a pull request with a red gate; return both."""
    pull, run = await _open_with_gating_run(story_run, **more)
    for name in ("build", "test") if run else ():
        await story_run._end(run, name)
    story_run.relay.clock.advance(30)
    await story_run.relay.drain()
    return pull, story_run.github.latest_checks(UPSTREAM, pull.head_sha)[GATE]


async def rerun_and_label(story_run: StoryRun) -> None:
    pull, gate = await _open_with_red_gate(story_run)
    await story_run.do(story_run.github.rerequest_check(gate))
    await story_run.do(story_run.github.label_pr(pull, LABEL))
    await story_run.do(story_run.github.unlabel_pr(pull, LABEL))
    await story_run.do(story_run.github.label_pr(pull, LABEL))


async def rerun_close_reopen(story_run: StoryRun) -> None:
    pull, gate = await _open_with_red_gate(story_run)
    await story_run.do(story_run.github.rerequest_check(gate))
    await story_run.do(story_run.github.close_pr(pull), pull)
    await story_run.do(story_run.github.reopen_pr(pull), pull)


async def rerun_and_push(story_run: StoryRun) -> None:
    pull, gate = await _open_with_red_gate(story_run)
    await story_run.do(story_run.github.rerequest_suite(UPSTREAM, pull.head_sha))
    await story_run.do(story_run.github.push_to_pr(pull), pull)
    await story_run.do(story_run.github.rerequest_check(gate))


async def rerun_while_it_runs(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    shown = story_run.github.latest_checks(UPSTREAM, pull.head_sha)[f"crcr/{GATING}"]
    story_run.report(run, "build")
    await story_run.do(story_run.github.rerequest_check(shown))
    story_run.report(run, "test")


async def queued_and_taken_out(story_run: StoryRun) -> None:
    pull, run = await _open_with_gating_run(story_run)
    group = await story_run.enqueue(pull)
    story_run.report(run, "build")
    await story_run.dequeue(group)
    await story_run.do(story_run.github.label_pr(pull, LABEL))


async def queued_and_kept_in_queue(story_run: StoryRun) -> None:
    pull, _ = await _open_with_red_gate(story_run)
    await story_run.enqueue(pull)
    await story_run.do(story_run.github.label_pr(pull, LABEL))
    await story_run.do(story_run.github.unlabel_pr(pull, LABEL))


async def random_life(story_run: StoryRun, chance: Random) -> None:
    """A random sequence of possible acts on a pull request."""
    pull, run = await _open_with_gating_run(story_run, draft=chance.random() < 0.3)
    github, heads = story_run.github, [pull.head_sha]
    story_run.report(run, "build")
    for _ in range(chance.randint(4, 6)):
        is_open, old_head = pull.state == "open", chance.choice(heads)
        choices: list[tuple[bool, Callable[[], Awaitable[object]], bool]] = [
            (is_open, lambda: github.push_to_pr(pull), True),
            (is_open and old_head != pull.head_sha, lambda b=old_head: story_run.push_back(pull, b), True),  # type: ignore[misc]
            (is_open, lambda: github.close_pr(pull), True),
            (not is_open, lambda: github.reopen_pr(pull), True),
            (LABEL not in pull.labels, lambda: github.label_pr(pull, LABEL), False),
            (LABEL in pull.labels, lambda: github.unlabel_pr(pull, LABEL), False),
            (pull.draft, lambda: github.ready_for_review(pull), False),
            (not pull.draft, lambda: github.convert_to_draft(pull), False),
        ]
        _, act, moves = chance.choice([choice for choice in choices if choice[0]])
        await story_run.do(act(), pull if moves else None)
        if pull.head_sha not in heads:
            heads.append(pull.head_sha)
    story_run.report(run, "test")


# Running the stories


def _name(story: Story) -> str:
    return getattr(story, "__name__", "story")


def _gates(shown: PublishedChecks) -> set[tuple[str, str | None]]:
    return {head[GATE][:2] for head in shown.values()}


async def _deliver_in_order(
    relay: RunningRelay, story_run: StoryRun, order: list[int], chance: Random | None
) -> PublishedChecks:
    """Deliver the story's events in this order; without `chance`, the worker is never behind and nothing arrives twice."""
    relay.github.faults.webhooks.clear()
    for arrival_index in order:
        await story_run.arrivals[arrival_index][1]()
        relay.clock.advance(1)
        if chance and chance.random() < 0.2:
            await story_run.redeliver_some(chance)
        await story_run.work(chance)
    await story_run.settle()
    return story_run.published_checks()


def _orders(count: int, chance: Random) -> list[list[int]]:
    """All orders, or `ORDERS` random ones when there are more."""
    if factorial(count) <= ORDERS:
        return [list(order) for order in permutations(range(count))]
    return [chance.sample(range(count), count) for _ in range(ORDERS)]


async def _same_in_every_order(
    folder: Path, story: Story, allowlist: str, *, tight: bool = False, outcomes: dict[str, str] | None = None
) -> PublishedChecks:
    """The final published checks; asserts that they are equal in every order."""
    results = _in_every_order(folder, story, allowlist, tight=tight, outcomes=outcomes)
    expected = await anext(results)
    async for shown in results:
        assert shown == expected
    return expected


async def _in_every_order(
    folder: Path, story: Story, allowlist: str, *, tight: bool = False, outcomes: dict[str, str] | None = None
) -> AsyncIterator[PublishedChecks]:
    """Yield the final published checks of the true order, then of the other orders."""

    async def begin() -> StoryRun:
        story_run = StoryRun(relay, tight=tight, outcomes=outcomes or {})
        await story(story_run)
        return story_run

    async with gated_upstream(folder, allowlist, CRCR_RATE_LIMIT_PER_MIN="1000000") as relay:
        story_run = await begin()
        names = [name for name, _ in story_run.arrivals]
        yield await _deliver_in_order(relay, story_run, list(range(len(names))), None)
        for number, order in enumerate(_orders(len(names), Random(SEED))):
            print(f"seed {SEED}, number {number}: {[names[index] for index in order]}")  # noqa: T201
            yield await _deliver_in_order(relay, await begin(), order, Random(SEED * 1000 + number))


@pytest.mark.parametrize("tight", [False, True], ids=["apart", "within a second"])
@pytest.mark.parametrize(
    "story",
    [label_close_reopen, push_and_push_back, push_and_close, label_and_take_it_back, two_pulls_on_one_head],
    ids=_name,
)
async def test_pushes_closes_and_labels_in_any_order_give_the_same_checks(
    tmp_path: Path, story: Story, *, tight: bool
) -> None:
    await _same_in_every_order(tmp_path, story, GATED, tight=tight, outcomes={"test": "failure"})


@pytest.mark.parametrize(
    "story", [rerun_and_label, rerun_close_reopen, rerun_and_push, rerun_while_it_runs], ids=_name
)
async def test_reruns_in_any_order_give_the_same_failed_gate(tmp_path: Path, story: Story) -> None:
    shown = await _same_in_every_order(tmp_path, story, GATED, outcomes={"build": "failure"})
    assert _gates(shown) == {("completed", "failure")}


async def test_a_job_waiver_and_its_result_in_any_order_give_the_same_green_gate(tmp_path: Path) -> None:
    shown = await _same_in_every_order(tmp_path, waive_and_callbacks, GATED, outcomes={"build": "failure"})
    assert _gates(shown) == {("completed", "success")}


async def test_a_waiver_never_counts_for_a_later_push(tmp_path: Path) -> None:
    """Its author has not seen the new head: in no order may the waiver open the gate there."""
    shown = await _same_in_every_order(tmp_path, waive_then_push, GATED, outcomes={"build": "failure"})
    assert _gates(shown) == {("completed", "failure")}


@pytest.mark.parametrize(
    ("story", "allowlist", "gates"),
    [
        (push_then_waive, GATED, {("completed", "success"), ("completed", "failure")}),
        (push_then_approve, APPROVED, {("completed", "failure"), ("in_progress", None)}),
    ],
    ids=["waive", "approve"],
)
async def test_a_comment_that_arrives_before_an_earlier_push_counts_for_the_old_head_at_most(
    tmp_path: Path, story: Story, allowlist: str, gates: set[tuple[str, str | None]]
) -> None:
    """The comment counts for the newest known head that is older than itself.

        When the push arrives in time, it counts for the pushed head, otherwise for the previous one, and must be repeated. In no
    order does it count for more.
    """
    async for shown in _in_every_order(tmp_path, story, allowlist, outcomes={"build": "failure"}):
        assert _gates(shown) <= gates


async def test_an_approval_never_lets_a_later_push_run(tmp_path: Path) -> None:
    shown = await _same_in_every_order(tmp_path, approve_then_push, APPROVED)
    assert _gates(shown) == {("in_progress", None)}


@pytest.mark.parametrize("build", ["success", "failure"])
@pytest.mark.parametrize("story", [queued_and_taken_out, queued_and_kept_in_queue], ids=_name)
async def test_merge_group_events_in_any_order_give_the_same_checks(
    tmp_path: Path, story: Story, build: str
) -> None:
    await _same_in_every_order(tmp_path, story, GATED, outcomes={"build": build})


@pytest.mark.parametrize("life", range(LIVES))
async def test_random_pull_request_events_in_any_order_give_the_same_checks(
    tmp_path: Path, life: int
) -> None:
    async def story(story_run: StoryRun) -> None:
        await random_life(story_run, Random(SEED * 100 + life))

    await _same_in_every_order(tmp_path, story, GATED if life % 2 else HELD_BACK)


@pytest.mark.parametrize("story", [ready_and_push, ready_and_draft_again], ids=_name)
async def test_draft_changes_in_any_order_give_the_same_green_gate(tmp_path: Path, story: Story) -> None:
    shown = await _same_in_every_order(tmp_path, story, HELD_BACK)
    assert _gates(shown) == {("completed", "success")}
