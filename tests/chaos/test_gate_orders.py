"""Label, close, push, re-run, comment and callback in every order end in the same published state.

GitHub makes its webhooks in one true order; here they arrive in any other one, some of them twice, with callbacks
and steps of the worker in between. Compared with the true order: on each live head the newest check of each name.
On every dead commit no check stays open, and no gate turns green once its end has arrived.

What was shown cannot be unshown: checks of an L3 backend whose label is gone may be there, ended, or never have
been made. A job's result depends on its name only, so that orders which run it twice must agree all the same.
A comment speaks of the head that its author saw: what was pushed after it is never waived or approved by it.

`CRCR_CHAOS_ORDERS=300` tries more orders; `CRCR_CHAOS_SEED` chooses others.
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
Shown = dict[str, dict[str, tuple[str, str | None, str]]]


class Play:
    """One telling of a story on pull requests of its own: what GitHub did, and what has arrived of it."""

    def __init__(self, relay: RunningRelay, *, tight: bool, outcomes: dict[str, str]) -> None:
        self.relay = relay
        self.github = relay.github
        self.tight = tight
        self.outcomes = outcomes
        self.pulls: list[PullRequest] = []
        self.heads: list[str] = []
        self.arrivals: list[tuple[str, Arrival]] = []
        self.person = f"maintainer-{len(relay.github.world.pulls)}"
        self._true: list[tuple[object, str, bool]] = []
        """For each webhook that moves a head: of whom, which head, and whether it lives from then on."""
        self._known: dict[object, int] = {}
        self._green: set[int] = set()
        self.guids: set[str] = set()
        self._arrived: list[WebhookDelivery] = []
        relay.github.set_permission(UPSTREAM, self.person, "maintain")

    # What happens on GitHub

    async def open(self, **more: Any) -> PullRequest:
        pull = await self.github.open_pr(UPSTREAM, **more)
        self.pulls.append(pull)
        self._moved(pull)
        return pull

    async def do(self, act: Awaitable[object], pull: PullRequest | None = None) -> None:
        """Something happens a moment later; its webhook is kept back and becomes an arrival."""
        await act
        place = self._moved(pull) if pull else None
        self._keep(place)
        self.relay.clock.advance(0 if self.tight else 2)

    async def push_back(self, pull: PullRequest, head: str) -> None:
        before, pull.head_sha = pull.head_sha, head
        await self.github.send_pull_webhook(pull, "synchronize", {"before": before, "after": head})

    async def say(self, words: str) -> None:
        """A maintainer comments; `HEAD` stands for the head that they look at."""
        words = words.replace("HEAD", self.pulls[0].head_sha[:12])
        await self.do(self.github.comment_pr(self.pulls[0], words, author=self.person))

    async def enqueue(self, pull: PullRequest) -> MergeGroup:
        group = await self.github.enqueue(pull)
        await self._queue(group, live=True)
        return group

    async def dequeue(self, group: MergeGroup) -> None:
        await self.github.dequeue(group)
        await self._queue(group, live=False)

    async def _queue(self, group: MergeGroup, *, live: bool) -> None:
        self._note_head(group.head_sha)
        self._true.append((f"group {group.head_sha}", group.head_sha, live))
        self._keep(len(self._true) - 1)
        self.relay.clock.advance(2)

    def report(self, run: WorkflowRun | None, name: str) -> None:
        """A job's result is on its way, if its run has begun."""
        if run is not None:
            self.arrivals.append((f"{name} ends", lambda: self._end(run, name)))

    def _keep(self, place: int | None) -> None:
        held, self.github.webhooks.held = self.github.webhooks.held, []
        for delivery in held:
            self.guids.add(delivery.guid)
            what = f"{delivery.event} {delivery.action} {place if place is not None else ''}"
            self.arrivals.append((what, lambda each=delivery: self._arrive(each, place)))  # type: ignore[misc]

    def _moved(self, pull: PullRequest) -> int | None:
        self._note_head(pull.head_sha)
        state = (pull.number, pull.head_sha, pull.state == "open")
        if any(each == state for each in self._true[-1:]):
            return None
        self._true.append(state)
        if not self.github.webhooks.held:
            self._known[pull.number] = len(self._true) - 1
            if pull.last_delivery:
                self.guids.add(pull.last_delivery.guid)
        return len(self._true) - 1

    def _note_head(self, head: str) -> None:
        if head not in self.heads:
            self.heads.append(head)

    # What arrives

    async def _arrive(self, delivery: WebhookDelivery, place: int | None) -> None:
        await self.github.webhooks._send(delivery)
        assert delivery.ok, delivery.answer_body
        self._arrived.append(delivery)
        if place is not None and not self.tight:
            whom = self._true[place][0]
            self._known[whom] = max(place, self._known.get(whom, -1))

    async def again(self, chance: Random) -> None:
        """GitHub sends something twice, or somebody presses Redeliver."""
        if self._arrived:
            await self.github.webhooks.redeliver(chance.choice(self._arrived))

    async def _end(self, run: WorkflowRun | None, name: str) -> None:
        if run is not None and run.job(name).status != "completed":
            if run.job(name).status == "queued":
                await self.github.start_job(run, name)
            await self.github.complete_job(run, name, conclusion=self.outcomes.get(name, "success"))

    async def work(self, chance: Random | None) -> None:
        """The worker does all that is due, or some of it in any order, or nothing yet."""
        amount = chance.choice([0, 0, 1, 2, 99]) if chance else 99
        if amount == 99:
            await self.relay.drain()
        elif chance and amount:
            await deliver_some(self.relay, amount, chance)
        self.watch()

    def watch(self) -> None:
        """No gate turns green on a commit whose end has arrived."""
        alive = {self._true[place][1] for place in self._known.values() if self._true[place][2]}
        for head in self.heads:
            green = {each.id for each in self._gates(head) if each.conclusion == "success"}
            assert head in alive or green <= self._green or self.tight, f"{head} died and turned green"
            self._green |= green

    def _gates(self, head: str) -> list[CheckRun]:
        return [each for each in self.github.checks(UPSTREAM, head) if each.name == GATE]

    # How it ends

    async def settle(self) -> None:
        """All jobs that were ever asked for end, and GitHub has been asked about them."""
        await self.relay.drain()
        self.tight = False
        self._known = {whom: place for place, (whom, _, _) in enumerate(self._true)}
        for seconds in (0, 90, 150, 90):
            self.relay.clock.advance(seconds)
            await self.relay.drain()
            while left := [(run, job) for run in self._runs() for job in run.jobs if not job.conclusion]:
                for run, job in left:
                    await self._end(run, job.name)
                await self.relay.drain()
            await self.relay.services.sweeper.sweep()
            await self.relay.drain()
            self.watch()

    def _runs(self) -> list[WorkflowRun]:
        found = [run for name in (GATING, INFORMING) for run in self.github.runs(name)]
        return [run for run in found if run.delivery_id in self.guids]

    def shown(self) -> Shown:
        """On each live head the newest check of each name; what is dead has been let go."""
        last = {whom: (head, live) for whom, head, live in self._true}
        alive = {head for head, live in last.values() if live}
        for head in set(self.heads) - alive:
            left = [each.name for each in self.github.checks(UPSTREAM, head) if each.status != "completed"]
            assert left == [], f"left open on the dead {head}"
        return {f"head {self.heads.index(head)}": self._on(head) for head in self.heads if head in alive}

    def _on(self, head: str) -> dict[str, tuple[str, str | None, str]]:
        asked = any(pull.head_sha == head and LABEL in pull.labels for pull in self.pulls)
        shown: dict[str, tuple[str, str | None, str]] = {}
        for name, check in sorted(self.github.latest_checks(UPSTREAM, head).items()):
            if name.startswith(f"crcr/{INFORMING}") and not asked:
                assert check.conclusion in {"neutral", "success"}
                continue
            if check.output["title"] == "no longer requested":
                continue
            title = re.sub(r"maintainer-\d+", "maintainer", check.output["title"])
            shown[name] = (check.status, check.conclusion, title)
        return shown


Story = Callable[[Play], Awaitable[None]]


# The stories: what is there before, `hold`, then what happens in its true order.


async def _open_with_gating_run(play: Play, **more: Any) -> tuple[PullRequest, WorkflowRun | None]:
    """A pull request whose gating run has begun, if it is not held; from here on webhooks are kept back."""
    pull = await play.open(**more)
    await play.relay.drain()
    runs = [run for run in play.github.runs(GATING) if run.delivery_id in play.guids]
    for run in runs:
        for job in run.jobs:
            await play.github.start_job(run, job.name)
    await play.relay.drain()
    play.relay.clock.advance(2)
    play.github.faults.webhooks.hold()
    return pull, runs[0] if runs else None


async def label_close_reopen(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    await play.do(play.github.label_pr(pull, LABEL))
    await play.do(play.github.close_pr(pull), pull)
    await play.do(play.github.reopen_pr(pull), pull)
    play.report(run, "build")
    play.report(run, "test")


async def push_and_push_back(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    first = pull.head_sha
    await play.do(play.github.push_to_pr(pull), pull)
    await play.do(play.push_back(pull, first), pull)
    play.report(run, "build")
    play.report(run, "test")


async def push_and_close(play: Play) -> None:
    pull, run = await _open_with_gating_run(play, labels=[LABEL])
    await play.do(play.github.push_to_pr(pull), pull)
    play.report(run, "build")
    play.report(run, "test")
    await play.do(play.github.close_pr(pull), pull)


async def label_and_take_it_back(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    await play.do(play.github.label_pr(pull, LABEL))
    play.report(run, "build")
    await play.do(play.github.unlabel_pr(pull, LABEL))
    play.report(run, "test")


async def two_on_one_head(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)

    def same_head(other: PullRequest) -> None:
        other.head_sha = pull.head_sha

    await play.do(_another(play, same_head))
    play.report(run, "build")
    await play.do(play.github.close_pr(pull), pull)
    await play.do(play.github.label_pr(play.pulls[1], LABEL))


async def _another(play: Play, change: Callable[[PullRequest], None]) -> None:
    pull = await play.github.open_pr(UPSTREAM, before_webhook=change)
    play.pulls.append(pull)
    play._true.append((pull.number, pull.head_sha, True))


async def ready_and_push(play: Play) -> None:
    pull, _ = await _open_with_gating_run(play, draft=True)
    await play.do(play.github.ready_for_review(pull))
    await play.do(play.github.push_to_pr(pull), pull)
    await play.do(play.github.label_pr(pull, "other"))


async def ready_and_draft_again(play: Play) -> None:
    pull, _ = await _open_with_gating_run(play, draft=True)
    await play.do(play.github.push_to_pr(pull), pull)
    await play.do(play.github.ready_for_review(pull))
    await play.do(play.github.convert_to_draft(pull))
    await play.do(play.github.ready_for_review(pull))


async def waive_then_push(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    await play.say(f"/crcr waive {GATING} at HEAD because the lab is down")
    await play.do(play.github.push_to_pr(pull), pull)
    play.report(run, "build")
    await play.do(play.github.label_pr(pull, LABEL))


async def push_then_waive(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    await play.do(play.github.push_to_pr(pull), pull)
    await play.say(f"/crcr waive {GATING} at HEAD because the lab is down")
    play.report(run, "build")


async def waive_and_callbacks(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    await play.say(f"/crcr waive {GATING}:build at HEAD because the lab is down")
    play.report(run, "build")
    play.report(run, "test")
    await play.do(play.github.label_pr(pull, LABEL))


async def approve_then_push(play: Play) -> None:
    pull, _ = await _open_with_gating_run(play)
    await play.say("/crcr approve at HEAD")
    await play.do(play.github.push_to_pr(pull), pull)
    await play.do(play.github.label_pr(pull, "other"))


async def push_then_approve(play: Play) -> None:
    pull, _ = await _open_with_gating_run(play)
    await play.do(play.github.push_to_pr(pull), pull)
    await play.say("/crcr approve at HEAD")


async def _red(play: Play, **more: Any) -> tuple[PullRequest, CheckRun]:
    """A pull request whose gate is red, with its gate."""
    pull, run = await _open_with_gating_run(play, **more)
    for name in ("build", "test") if run else ():
        await play._end(run, name)
    play.relay.clock.advance(30)
    await play.relay.drain()
    return pull, play.github.latest_checks(UPSTREAM, pull.head_sha)[GATE]


async def rerun_and_label(play: Play) -> None:
    pull, gate = await _red(play)
    await play.do(play.github.rerequest_check(gate))
    await play.do(play.github.label_pr(pull, LABEL))
    await play.do(play.github.unlabel_pr(pull, LABEL))
    await play.do(play.github.label_pr(pull, LABEL))


async def rerun_close_reopen(play: Play) -> None:
    pull, gate = await _red(play)
    await play.do(play.github.rerequest_check(gate))
    await play.do(play.github.close_pr(pull), pull)
    await play.do(play.github.reopen_pr(pull), pull)


async def rerun_and_push(play: Play) -> None:
    pull, gate = await _red(play)
    await play.do(play.github.rerequest_suite(UPSTREAM, pull.head_sha))
    await play.do(play.github.push_to_pr(pull), pull)
    await play.do(play.github.rerequest_check(gate))


async def rerun_while_it_runs(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    shown = play.github.latest_checks(UPSTREAM, pull.head_sha)[f"crcr/{GATING}"]
    play.report(run, "build")
    await play.do(play.github.rerequest_check(shown))
    play.report(run, "test")


async def queued_and_taken_out(play: Play) -> None:
    pull, run = await _open_with_gating_run(play)
    group = await play.enqueue(pull)
    play.report(run, "build")
    await play.dequeue(group)
    await play.do(play.github.label_pr(pull, LABEL))


async def queued_and_left(play: Play) -> None:
    pull, _ = await _red(play)
    await play.enqueue(pull)
    await play.do(play.github.label_pr(pull, LABEL))
    await play.do(play.github.unlabel_pr(pull, LABEL))


async def anything(play: Play, chance: Random) -> None:
    """Some life of a pull request, of acts that are possible one after the other."""
    pull, run = await _open_with_gating_run(play, draft=chance.random() < 0.3)
    github, heads = play.github, [pull.head_sha]
    play.report(run, "build")
    for _ in range(chance.randint(4, 6)):
        is_open, back = pull.state == "open", chance.choice(heads)
        menu: list[tuple[bool, Callable[[], Awaitable[object]], bool]] = [
            (is_open, lambda: github.push_to_pr(pull), True),
            (is_open and back != pull.head_sha, lambda b=back: play.push_back(pull, b), True),  # type: ignore[misc]
            (is_open, lambda: github.close_pr(pull), True),
            (not is_open, lambda: github.reopen_pr(pull), True),
            (LABEL not in pull.labels, lambda: github.label_pr(pull, LABEL), False),
            (LABEL in pull.labels, lambda: github.unlabel_pr(pull, LABEL), False),
            (pull.draft, lambda: github.ready_for_review(pull), False),
            (not pull.draft, lambda: github.convert_to_draft(pull), False),
        ]
        _, act, moves = chance.choice([each for each in menu if each[0]])
        await play.do(act(), pull if moves else None)
        if pull.head_sha not in heads:
            heads.append(pull.head_sha)
    play.report(run, "test")


# Telling them


def _name(story: Story) -> str:
    return getattr(story, "__name__", "story")


def _gates(shown: Shown) -> set[tuple[str, str | None]]:
    return {head[GATE][:2] for head in shown.values()}


async def _tell(relay: RunningRelay, play: Play, order: list[int], chance: Random | None) -> Shown:
    """Let the story's events arrive; without a chance the worker is never behind, and nothing comes twice."""
    relay.github.faults.webhooks.clear()
    for place in order:
        await play.arrivals[place][1]()
        relay.clock.advance(1)
        if chance and chance.random() < 0.2:
            await play.again(chance)
        await play.work(chance)
    await play.settle()
    return play.shown()


def _orders(count: int, chance: Random) -> list[list[int]]:
    """Every order, or as many of them as are asked for."""
    if factorial(count) <= ORDERS:
        return [list(each) for each in permutations(range(count))]
    return [chance.sample(range(count), count) for _ in range(ORDERS)]


async def _same_in_every_order(
    folder: Path, story: Story, allowlist: str, *, tight: bool = False, outcomes: dict[str, str] | None = None
) -> Shown:
    """What is shown in the end, when that is so in every order."""
    told = _in_every_order(folder, story, allowlist, tight=tight, outcomes=outcomes)
    expected = await anext(told)
    async for shown in told:
        assert shown == expected
    return expected


async def _in_every_order(
    folder: Path, story: Story, allowlist: str, *, tight: bool = False, outcomes: dict[str, str] | None = None
) -> AsyncIterator[Shown]:
    """What is shown in the end: as it happened, and then in other orders."""

    async def begin() -> Play:
        play = Play(relay, tight=tight, outcomes=outcomes or {})
        await story(play)
        return play

    async with gated_upstream(folder, allowlist, CRCR_RATE_LIMIT_PER_MIN="1000000") as relay:
        play = await begin()
        happened = [name for name, _ in play.arrivals]
        yield await _tell(relay, play, list(range(len(happened))), None)
        for number, order in enumerate(_orders(len(happened), Random(SEED))):
            print(f"seed {SEED}, number {number}: {[happened[place] for place in order]}")  # noqa: T201
            yield await _tell(relay, await begin(), order, Random(SEED * 1000 + number))


@pytest.mark.parametrize("tight", [False, True], ids=["apart", "within a second"])
@pytest.mark.parametrize(
    "story",
    [label_close_reopen, push_and_push_back, push_and_close, label_and_take_it_back, two_on_one_head],
    ids=_name,
)
async def test_heads_and_labels(tmp_path: Path, story: Story, *, tight: bool) -> None:
    await _same_in_every_order(tmp_path, story, GATED, tight=tight, outcomes={"test": "failure"})


@pytest.mark.parametrize(
    "story", [rerun_and_label, rerun_close_reopen, rerun_and_push, rerun_while_it_runs], ids=_name
)
async def test_reruns(tmp_path: Path, story: Story) -> None:
    shown = await _same_in_every_order(tmp_path, story, GATED, outcomes={"build": "failure"})
    assert _gates(shown) == {("completed", "failure")}


async def test_a_waiver_of_a_job_and_its_result(tmp_path: Path) -> None:
    shown = await _same_in_every_order(tmp_path, waive_and_callbacks, GATED, outcomes={"build": "failure"})
    assert _gates(shown) == {("completed", "success")}


async def test_a_waiver_never_counts_for_what_is_pushed_after_it(tmp_path: Path) -> None:
    """Its author has not seen the new head: in no order may it open the gate there."""
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
async def test_a_comment_that_overtakes_a_push_counts_for_the_head_before_it(
    tmp_path: Path, story: Story, allowlist: str, gates: set[tuple[str, str | None]]
) -> None:
    """A comment names no commit, so it is held against the newest head that is known and older than itself.

    Where the push arrives in time it counts for that; else for the head before, and is to be said again. No order
    makes it count for more.
    """
    async for shown in _in_every_order(tmp_path, story, allowlist, outcomes={"build": "failure"}):
        assert _gates(shown) <= gates


async def test_an_approval_never_lets_a_later_push_run(tmp_path: Path) -> None:
    shown = await _same_in_every_order(tmp_path, approve_then_push, APPROVED)
    assert _gates(shown) == {("in_progress", None)}


@pytest.mark.parametrize("build", ["success", "failure"])
@pytest.mark.parametrize("story", [queued_and_taken_out, queued_and_left], ids=_name)
async def test_merge_groups(tmp_path: Path, story: Story, build: str) -> None:
    await _same_in_every_order(tmp_path, story, GATED, outcomes={"build": build})


@pytest.mark.parametrize("life", range(LIVES))
async def test_any_life_of_a_pull_request(tmp_path: Path, life: int) -> None:
    async def story(play: Play) -> None:
        await anything(play, Random(SEED * 100 + life))

    await _same_in_every_order(tmp_path, story, GATED if life % 2 else HELD_BACK)


@pytest.mark.parametrize("story", [ready_and_push, ready_and_draft_again], ids=_name)
async def test_drafts(tmp_path: Path, story: Story) -> None:
    shown = await _same_in_every_order(tmp_path, story, HELD_BACK)
    assert _gates(shown) == {("completed", "success")}
