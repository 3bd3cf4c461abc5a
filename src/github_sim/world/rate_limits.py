"""GitHub's rate limits, per installation: the primary hourly one with its headers, and the secondary
ones (calls at once, points a minute over all endpoints, comments a minute).

All figures can be changed while the simulator runs: `github.limits.primary_per_hour = 3`; `github.spend_hour` leaves an
installation a part of its hour. https://docs.github.com/en/rest/using-the-rest-api/rate-limits-for-the-rest-api
"""

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from github_sim.rest.exchange import ApiError, Caller, Route

Subject = tuple[str, int]
MINUTE = timedelta(minutes=1)


@dataclass
class RateLimits:
    primary_per_hour: int = 5_000
    concurrent: int = 100
    points_per_minute: int = 900
    write_points: int = 5
    content_per_minute: int = 80
    secondary_retry_after_s: int | None = 60
    secondary_status: int = 403


@dataclass
class _Window:
    reset_at: datetime
    used: int = 0


class RateLimiter:
    def __init__(self, limits: RateLimits) -> None:
        self.limits = limits
        self._windows: dict[Subject, _Window] = {}
        self._points: dict[Subject, deque[tuple[datetime, int]]] = {}
        self._content: dict[Subject, deque[tuple[datetime, int]]] = {}
        self._in_flight: dict[Subject, int] = {}

    @contextmanager
    def count_call(self, subject: Subject, route: Route, now: datetime) -> Iterator[None]:
        """Count one call for as long as it lasts, or refuse it."""
        self._spend_primary(subject, now)
        if subject[0] == "app":
            # GitHub documents the secondary limits for tokens; minting one per installation is free of them.
            yield
            return
        if self._in_flight.get(subject, 0) >= self.limits.concurrent:
            raise self._secondary()
        self._spend_points(subject, route, now)
        self._in_flight[subject] = self._in_flight.get(subject, 0) + 1
        try:
            yield
        finally:
            self._in_flight[subject] -= 1

    def headers(self, subject: Subject, now: datetime) -> dict[str, str]:
        window = self._window(subject, now)
        limit = self.limits.primary_per_hour
        return {
            "x-ratelimit-limit": str(limit),
            "x-ratelimit-remaining": str(max(limit - window.used, 0)),
            "x-ratelimit-used": str(window.used),
            "x-ratelimit-reset": str(int(window.reset_at.timestamp())),
            "x-ratelimit-resource": "core",
        }

    def spend_hour(self, subject: Subject, now: datetime, *, leave: int) -> None:
        """Count as many calls as leave `leave` of the hour."""
        self._window(subject, now).used = max(self.limits.primary_per_hour - leave, 0)

    def refund(self, subject: Subject, now: datetime) -> None:
        """A 304 to an authenticated caller does not count against the primary limit."""
        window = self._window(subject, now)
        window.used = max(window.used - 1, 0)

    def _window(self, subject: Subject, now: datetime) -> _Window:
        window = self._windows.get(subject)
        if window is None or window.reset_at <= now:
            reset_at = (now + timedelta(hours=1)).replace(microsecond=0)  # the header has whole seconds
            window = self._windows[subject] = _Window(reset_at)
        return window

    def _spend_primary(self, subject: Subject, now: datetime) -> None:
        window = self._window(subject, now)
        if window.used >= self.limits.primary_per_hour:
            kind, number = subject
            raise ApiError(403, f"API rate limit exceeded for {kind} ID {number}.")
        window.used += 1

    def _spend_points(self, subject: Subject, route: Route, now: datetime) -> None:
        points = self._points.setdefault(subject, deque())
        cost = 1 if route.method in {"GET", "HEAD"} else self.limits.write_points
        if _spent(points, now) + cost > self.limits.points_per_minute:
            raise self._secondary()
        if (route.method, route.template.rpartition("/")[2]) == ("POST", "comments"):
            content = self._content.setdefault(subject, deque())
            if _spent(content, now) >= self.limits.content_per_minute:
                raise self._secondary()
            content.append((now, 1))
        points.append((now, cost))

    def _secondary(self) -> ApiError:
        wait = self.limits.secondary_retry_after_s
        return ApiError(
            self.limits.secondary_status,
            "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
            headers={} if wait is None else {"retry-after": str(wait)},
        )


def _spent(log: deque[tuple[datetime, int]], now: datetime) -> int:
    while log and log[0][0] <= now - MINUTE:
        log.popleft()
    return sum(cost for _, cost in log)


def rate_limit_subject(caller: Caller | None) -> Subject:
    if caller is None:
        return ("anonymous", 0)
    if caller.installation_id is not None:
        return ("installation", caller.installation_id)
    return ("app", caller.app_id)
