"""Counts of API calls per installation: totals, the most in an hour, POSTs in an hour, points in a minute.

`Simulation.call_counts` counts every call as it is answered; `count_calls` counts a part of the log
(`github.calls[start:]`). It enforces nothing: `rate_limits.py` does.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from github_sim.world.records import Call

HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)
DISPATCH_ROUTE = "/repos/{owner}/{repo}/dispatches"
_READ_POINTS, _WRITE_POINTS = 1, 5


@dataclass
class _HighestSum:
    """The highest sum within any time of this length; amounts come in the order of their times."""

    span: timedelta
    highest: int = 0
    _recent: deque[tuple[datetime, int]] = field(default_factory=deque)
    _sum: int = 0

    def add(self, at: datetime, amount: int) -> None:
        self._recent.append((at, amount))
        self._sum += amount
        while self._recent[0][0] <= at - self.span:
            self._sum -= self._recent.popleft()[1]
        self.highest = max(self.highest, self._sum)


@dataclass
class InstallationCalls:
    """The calls made with tokens of one installation, or by the App itself (`parse_installation_id` None)."""

    installation_id: int | None
    routes: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Calls by method and route, as GitHub's description of its API writes the route."""
    not_modified: int = 0
    """Of these, reads that were answered 304: they cost nothing of the hour."""
    _hour: _HighestSum = field(default_factory=lambda: _HighestSum(HOUR))
    _posts: _HighestSum = field(default_factory=lambda: _HighestSum(HOUR))
    _points: _HighestSum = field(default_factory=lambda: _HighestSum(MINUTE))

    def add(self, call: Call) -> None:
        self.routes[call.method, call.route or call.path] += 1
        charged = call.status != 304
        self.not_modified += not charged
        self._hour.add(call.at, int(charged))
        self._posts.add(call.at, int(call.method == "POST"))
        self._points.add(call.at, _READ_POINTS if call.method in {"GET", "HEAD"} else _WRITE_POINTS)

    @property
    def calls(self) -> int:
        """Calls that count against the hour."""
        return self.routes.total() - self.not_modified

    @property
    def dispatches(self) -> int:
        return self.routes["POST", DISPATCH_ROUTE]

    @property
    def posts(self) -> int:
        return sum(number for (method, _), number in self.routes.items() if method == "POST")

    @property
    def most_in_an_hour(self) -> int:
        """The most calls in any 60 minutes, 304 left out."""
        return self._hour.highest

    @property
    def most_posts_in_an_hour(self) -> int:
        return self._posts.highest

    @property
    def most_points_in_a_minute(self) -> int:
        """Over all endpoints together: 1 for a read, 5 for a write."""
        return self._points.highest


class CallCounts:
    def __init__(self) -> None:
        self._installations: dict[int | None, InstallationCalls] = {}

    def add(self, call: Call) -> None:
        self.for_installation(call.installation_id).add(call)

    def for_installation(self, installation_id: int | None) -> InstallationCalls:
        return self._installations.setdefault(installation_id, InstallationCalls(installation_id))

    @property
    def installations(self) -> list[InstallationCalls]:
        """Every installation that was called, those with the most calls first."""
        return sorted(self._installations.values(), key=lambda counts: -counts.calls)


def count_calls(calls: Iterable[Call]) -> CallCounts:
    counts = CallCounts()
    for call in calls:
        counts.add(call)
    return counts
