"""A discrete-event simulation of one relay process and of GitHub's minute: what averages cannot tell.

Averages say whether a process is busy for half of the time. They do not say how long the last of 1,000 dispatches waits
behind the others, how many callbacks share a commit, or how many points fall into the busiest minute. Three queues are
enough for that: the interpreter (one server, callbacks that wait together share a commit), the worker's slots (each held
for as long as GitHub takes) and GitHub's sliding minute. Times are seconds.
"""

import heapq
import random
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count

from bench.model.constants import HeadCalls, StoreCosts

MOST_IN_A_GROUP = 256
"""As many callbacks as one transaction takes."""
WORKER_SLOTS = 64
"""The default of CRCR_WORKER_CONCURRENCY."""
COLLECT_S = 2.0
"""Checks of backends collect changes for so long."""
_READ_POINTS, _WRITE_POINTS = 1, 5


class EventLoop:
    """Runs callbacks in the order of their times."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._waiting: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._waiting, (max(time, self.now), next(self._order), action))

    def run(self) -> None:
        while self._waiting:
            self.now, _, action = heapq.heappop(self._waiting)
            action()


@dataclass(frozen=True, slots=True)
class _Task:
    order: int
    cost_s: float
    then: Callable[[], None]


class Interpreter:
    """One server, first come first served, and a store that commits one group of callbacks at a time.

    Callbacks that wait together share a commit. While the store takes its time for a commit, the interpreter does other
    work, and further callbacks collect for the next group.
    """

    def __init__(self, loop: EventLoop, commit_s: float, store_s: float) -> None:
        self._loop = loop
        self._commit_s = commit_s
        self._store_s = store_s
        self._order = count()
        self._single: deque[_Task] = deque()
        self._grouped: deque[_Task] = deque()
        self._busy = self._committing = False
        self.busy_s = 0.0
        self.commits = 0

    def add(self, cost_s: float, then: Callable[[], None], *, grouped: bool = False) -> None:
        (self._grouped if grouped else self._single).append(_Task(next(self._order), cost_s, then))
        self._wake()

    def _wake(self) -> None:
        if not self._busy:
            # Work that arrives at the same moment is taken together.
            self._busy = True
            self._loop.at(self._loop.now, self._next)

    def _next(self) -> None:
        ready = bool(self._grouped) and not self._committing
        if ready and (not self._single or self._grouped[0].order < self._single[0].order):
            group = [self._grouped.popleft() for _ in range(min(len(self._grouped), MOST_IN_A_GROUP))]
            self._committing = True
            self.commits += 1
            self._work(sum(task.cost_s for task in group) + self._commit_s, lambda: self._store(group))
        elif self._single:
            task = self._single.popleft()
            self._work(task.cost_s, task.then)
        else:
            self._busy = False

    def _work(self, cost_s: float, then: Callable[[], None]) -> None:
        def finish() -> None:
            then()
            self._next()

        self.busy_s += cost_s
        self._loop.at(self._loop.now + cost_s, finish)

    def _store(self, group: list[_Task]) -> None:
        def finish() -> None:
            self._committing = False
            for task in group:
                task.then()
            self._wake()

        self._loop.at(self._loop.now + self._store_s, finish)


@dataclass(slots=True)
class RelaySimulation:
    """One process: its interpreter, and a worker with slots that are held while GitHub answers."""

    costs: StoreCosts
    github_latency_s: float
    slots: int = WORKER_SLOTS
    loop: EventLoop = field(default_factory=EventLoop)
    webhook_answers: list[float] = field(default_factory=list)
    callback_answers: list[float] = field(default_factory=list)
    last_dispatches: list[float] = field(default_factory=list)
    """From each webhook to the arrival of its last dispatch at GitHub."""
    dispatched: int = 0
    interpreter: Interpreter = field(init=False)
    _free: int = field(init=False)
    _unsent: deque[Callable[[], None]] = field(default_factory=deque)

    def __post_init__(self) -> None:
        costs = self.costs
        store_s = max(0.0, costs.callback_answer_s - costs.callback.relay_s - costs.commit.relay_s)
        self.interpreter = Interpreter(self.loop, costs.commit.relay_s, store_s)
        self._free = self.slots

    def receive_webhook(self, targets: int) -> None:
        """A head's webhook arrives now and is dispatched to so many targets."""
        began, costs, left = self.loop.now, self.costs, targets

        def arrive() -> None:
            nonlocal left
            left -= 1
            self.dispatched += 1
            if left == 0:
                self.last_dispatches.append(self.loop.now - began)

        def answer() -> None:
            self.webhook_answers.append(self.loop.now - began)
            self._unsent.extend(arrive for _ in range(targets))
            self.interpreter.add(rest_s, self._fill_slots)

        answer_s = costs.webhook_answer_s + targets * costs.dispatch_answer_s
        rest_s = max(0.0, costs.webhook.relay_s - costs.webhook_answer_s)
        self.interpreter.add(answer_s, answer)

    def _fill_slots(self) -> None:
        while self._free and self._unsent:
            self._free -= 1
            self._send(self._unsent.popleft())

    def _send(self, arrive: Callable[[], None]) -> None:
        half_s = max(0.0, self.costs.dispatch.relay_s - self.costs.dispatch_answer_s) / 2

        def call() -> None:
            arrive()
            self.loop.at(self.loop.now + self.github_latency_s, lambda: self.interpreter.add(half_s, finish))

        def finish() -> None:
            self._free += 1
            self._fill_slots()

        self.interpreter.add(half_s, call)

    def receive_callback(self, then: Callable[[], None] = lambda: None) -> None:
        began = self.loop.now

        def answer() -> None:
            self.callback_answers.append(self.loop.now - began)
            then()

        self.interpreter.add(self.costs.callback.relay_s, answer, grouped=True)


def simulate_fan_out(costs: StoreCosts, targets: int, github_latency_s: float) -> RelaySimulation:
    """One webhook on an idle relay."""
    relay = RelaySimulation(costs, github_latency_s)
    relay.loop.at(0.0, lambda: relay.receive_webhook(targets))
    relay.loop.run()
    return relay


def simulate_clients(costs: StoreCosts, clients: int, callbacks: int) -> RelaySimulation:
    """So many clients, each of which sends its next callback when the one before is answered."""
    relay, left = RelaySimulation(costs, 0.0), callbacks

    def send() -> None:
        nonlocal left
        if left > 0:
            left -= 1
            relay.receive_callback(send)

    for _ in range(clients):
        relay.loop.at(0.0, send)
    relay.loop.run()
    return relay


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Arrivals at one process; rates are for each second."""

    heads: float
    targets: int
    callbacks: float
    seconds: float


def simulate_traffic(
    costs: StoreCosts, traffic: Traffic, github_latency_s: float, seed: int = 1
) -> RelaySimulation:
    """Heads and callbacks at random moments (Poisson), then until everything is done."""
    relay, chance = RelaySimulation(costs, github_latency_s), random.Random(seed)  # noqa: S311  repeatable
    for time in arrivals(traffic.heads, traffic.seconds, chance):
        relay.loop.at(time, lambda: relay.receive_webhook(traffic.targets))
    for time in arrivals(traffic.callbacks, traffic.seconds, chance):
        relay.loop.at(time, relay.receive_callback)
    relay.loop.run()
    return relay


def arrivals(rate: float, seconds: float, chance: random.Random) -> Iterable[float]:
    """Random moments within the time, so many each second on average."""
    time = chance.expovariate(rate) if rate > 0 else seconds
    while time < seconds:
        yield time
        time += chance.expovariate(rate)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadTraffic:
    """The heads of one upstream, and how long their jobs take."""

    heads_per_hour: float
    groups_per_hour: float = 0.0
    groups_at_once: int = 5
    """GitHub's queue builds up to 5 groups, and builds them again when the first one fails or merges out of turn."""
    commands_per_hour: float = 0.0
    visible: int
    visible_more_share: float = 0.0
    """Of the heads, those with one more visible backend: a label."""
    failing_share: float
    jobs: int = 10
    """Of a visible backend, at the same time."""
    queue_s: tuple[float, float] = (5.0, 60.0)
    job_s: tuple[float, float] = (60.0, 480.0)


@dataclass(frozen=True, slots=True)
class BusiestCalls:
    """Calls on the upstream's installation."""

    calls: int
    calls_in_an_hour: int
    points_in_a_minute: int


def simulate_calls(traffic: HeadTraffic, calls: HeadCalls, hours: float, seed: int = 1) -> BusiestCalls:
    """The calls for the heads of so many hours, each at its moment; nothing holds them back."""
    chance = random.Random(seed)  # noqa: S311  repeatable
    log: list[tuple[float, int]] = []
    for began in arrivals(traffic.heads_per_hour / 3600, hours * 3600, chance):
        log += _calls_of_head(traffic, calls, began, chance)
    bunches = traffic.groups_per_hour / traffic.groups_at_once
    for began in arrivals(bunches / 3600, hours * 3600, chance):
        for _ in range(traffic.groups_at_once):
            log += _calls_of_head(traffic, calls, began, chance)
            log += [(began, _READ_POINTS)] * _draw(calls.group, chance)
    for began in arrivals(traffic.commands_per_hour / 3600, hours * 3600, chance):
        log += [(began, _READ_POINTS)] * _draw(calls.command - calls.command_writes, chance)
        log += [(began, _WRITE_POINTS)] * _draw(calls.command_writes, chance)
    log = sorted(call for call in log if call[0] < hours * 3600)
    return BusiestCalls(
        len(log),
        most_within(3600.0, [(at, 1) for at, _ in log]),
        most_within(60.0, log),
    )


def _calls_of_head(
    traffic: HeadTraffic, calls: HeadCalls, began: float, chance: random.Random
) -> list[tuple[float, int]]:
    """Times and points of one head's calls: the gate at once, backends after 2 s and at their ends, the gate at last."""
    backends = traffic.visible + (chance.random() < traffic.visible_more_share)
    failing = backends > 0 and chance.random() < traffic.failing_share
    log = [(began, _READ_POINTS)] * _draw(calls.gate - calls.gate_writes, chance) + [(began, _WRITE_POINTS)]
    ended = began + COLLECT_S
    for number in range(backends):
        end = began + max(
            chance.uniform(*traffic.queue_s) + chance.uniform(*traffic.job_s) for _ in range(traffic.jobs)
        )
        ended = max(ended, end)
        log += [(began + COLLECT_S, _WRITE_POINTS)]
        log += [(end + COLLECT_S, _WRITE_POINTS)] * _draw(calls.backend_writes - 1, chance)
        if failing and number == 0:
            log += [(end + COLLECT_S, _WRITE_POINTS)] * _draw(calls.failing_backend_writes, chance)
    return log + [(ended, _WRITE_POINTS)] * _draw(calls.gate_writes - 1, chance)


def _draw(mean: float, chance: random.Random) -> int:
    """A whole number with this mean."""
    whole = int(max(0.0, mean))
    return whole + (chance.random() < mean - whole)


def most_within(span_s: float, log: Iterable[tuple[float, int]]) -> int:
    """The highest sum of amounts within any time of this length; times are in order."""
    recent: deque[tuple[float, int]] = deque()
    total = most = 0
    for at, amount in log:
        recent.append((at, amount))
        total += amount
        while recent[0][0] <= at - span_s:
            total -= recent.popleft()[1]
        most = max(most, total)
    return most
