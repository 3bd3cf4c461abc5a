"""Counts the calls that the simulated GitHub answered, by installation and in simulated time.

From the simulator's side only: what GitHub would have counted. A 304 costs nothing of the hour's budget, a write
costs 5 points of the minute and a read 1.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

from crcr.sim.github import Call, GitHub

GATE = "crcr/gate"
HOUR_S, MINUTE_S = 3600.0, 60.0
WRITE_POINTS = 5


@dataclass(frozen=True, slots=True)
class CountedCall:
    at_s: float
    method: str
    route: str
    status: int

    @property
    def is_write(self) -> bool:
        return self.method not in {"GET", "HEAD"}

    @property
    def costs(self) -> int:
        """What it takes of the hour's budget."""
        return int(self.status != 304)

    @property
    def points(self) -> int:
        return WRITE_POINTS if self.is_write else 1


@dataclass(slots=True)
class InstallationUse:
    """All calls on one installation."""

    calls: list[CountedCall] = field(default_factory=list)

    @property
    def counted(self) -> int:
        return sum(call.costs for call in self.calls)

    @property
    def limited(self) -> int:
        """How many calls GitHub refused by a limit."""
        return sum(call.status in {403, 429} for call in self.calls)

    def most_in(self, span_s: float, weight: Callable[[CountedCall], int]) -> int:
        """The most that any `span_s` seconds had."""
        most = total = first = 0
        for call in self.calls:
            total += weight(call)
            while self.calls[first].at_s <= call.at_s - span_s:
                total -= weight(self.calls[first])
                first += 1
            most = max(most, total)
        return most

    @property
    def most_in_an_hour(self) -> int:
        return self.most_in(HOUR_S, lambda call: call.costs)

    @property
    def most_posts_in_an_hour(self) -> int:
        return self.most_in(HOUR_S, lambda call: int(call.method == "POST"))

    @property
    def most_points_in_a_minute(self) -> int:
        return self.most_in(MINUTE_S, lambda call: call.points)

    def by_route(self) -> Counter[str]:
        return Counter(f"{call.method} {call.route}" for call in self.calls if call.costs)


@dataclass(frozen=True, slots=True)
class ShownGate:
    """A gate as GitHub began to show it: passed, failed, pending, or over (cancelled)."""

    at: datetime
    head_sha: str
    state: str


class GitHubUse:
    """Listens to a simulated GitHub from now on; its own lists may be cut down meanwhile."""

    def __init__(self, github: GitHub) -> None:
        self._github = github
        self._start = github.clock.now()
        self._by_installation: dict[int, InstallationUse] = {}
        self.gates: list[ShownGate] = []
        github.on_call.append(self._count)

    def of(self, full_name: str) -> InstallationUse:
        """The use of the installation that a repository belongs to."""
        installation = self._github.world.installation_of(self._github.repository(full_name))
        if installation is None:
            raise LookupError(f"the App is not installed on {full_name}")
        return self._by_installation.get(installation.id, InstallationUse())

    def busiest_of(self, names: Iterable[str]) -> tuple[str, InstallationUse]:
        return max(((name, self.of(name)) for name in names), key=lambda item: item[1].counted)

    def _count(self, call: Call) -> None:
        if call.installation_id is None:
            return
        at_s = (call.at - self._start).total_seconds()
        use = self._by_installation.setdefault(call.installation_id, InstallationUse())
        use.calls.append(CountedCall(at_s, call.method, call.route or call.path, call.status))
        if call.route is not None and "/check-runs" in call.route and 200 <= call.status < 300:
            self._note_gate(call)

    def _note_gate(self, call: Call) -> None:
        if call.method == "POST":
            body = json.loads(call.body)
            name, head_sha = body["name"], body["head_sha"]
        elif call.method == "PATCH":
            check = self._github.world.check_runs[int(call.path.rsplit("/", 1)[1])]
            name, head_sha, body = check.name, check.head_sha, json.loads(call.body)
        else:
            return
        if name == GATE:
            self.gates.append(ShownGate(call.at, head_sha, _state(body)))


def _state(body: dict[str, object]) -> str:
    if body.get("status") != "completed":
        return "pending"
    return {"success": "passed", "failure": "failed"}.get(str(body.get("conclusion")), "over")
