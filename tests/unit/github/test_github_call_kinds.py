"""Calls to GitHub are counted by kind; no repository name becomes a metric label."""

import inspect
from contextlib import suppress
from datetime import UTC, datetime
from types import ModuleType
from typing import Any

import httpx
import pytest

from crcr.decide.checks.check_run import CheckContent, CheckStatus
from crcr.decide.github.requests_and_answers import Budget, CallKind, FileLocation, Target, Urgency
from crcr.decide.model import RepoName
from crcr.errors import OutsideFault
from crcr.github.api import (
    actions,
    branches,
    checks,
    comments_and_roles,
    commits,
    delivery_log,
    request_response,
    setup,
)
from crcr.github.api.request_response import Request
from crcr.github.app_auth import AppAuth, TokenCache
from crcr.github.client import GitHubClient
from crcr.github.http.rate_limiter import GitHubRateLimiter
from crcr.github.http.transport import GitHubTransport, call_kind, status_class
from support.clock import ManualClock
from support.github.fake_github import PEM, FakeGitHub

MODULES = (request_response, actions, branches, delivery_log, checks, commits, comments_and_roles, setup)
SHOWN = CheckContent(status=CheckStatus.QUEUED, conclusion=None, title="t", summary="s")
NOW = datetime(2026, 8, 3, 12, tzinfo=UTC)
BY_NAME: dict[str, Any] = {
    "repo": RepoName("actions/dispatches"),
    "file": FileLocation(RepoName("app/pulls"), "main", "a.yml"),
    "permissions": (("contents", "read"),),
    "repository_ids": (1,),
    "since": NOW,
    "until": NOW,
    "failed_only": True,
}
NOT_CALLS = {"list_first_page", "with_page", "follow_redirect"}


def calls() -> list[tuple[str, Any]]:
    return [
        (f"{module.__name__.rpartition('.')[2]}.{name}", function)
        for module in MODULES
        for name, function in vars(module).items()
        if inspect.isfunction(function) and _is_call(module, name, function)
    ]


def _is_call(module: ModuleType, name: str, function: Any) -> bool:
    mine = function.__module__ == module.__name__
    return mine and inspect.signature(function).return_annotation is Request and name not in NOT_CALLS


def _argument(parameter: inspect.Parameter) -> Any:
    if parameter.name in BY_NAME:
        return BY_NAME[parameter.name]
    return {int: 7, str: "text", bytes: b"{}", CheckContent: SHOWN}.get(parameter.annotation)


@pytest.mark.parametrize(("name", "call"), calls(), ids=lambda value: value if isinstance(value, str) else "")
def test_every_call_of_the_api_modules_has_a_kind(name: str, call: Any) -> None:
    parameters = inspect.signature(call).parameters.values()
    arguments = {each.name: _argument(each) for each in parameters if each.default is each.empty}
    assert call_kind(call(**arguments).path) is not CallKind.OTHER


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/repos/org/repo/dispatches", "dispatch"),
        ("/repos/check-runs/dispatches/contents/a/b?ref=pulls", "contents"),
        ("/repositories/12/dispatches", "dispatch"),
        ("/repos/org/repo", "repository"),
        ("/repos/org/repo/commits/abc/check-runs?per_page=100", "checks"),
        ("/app/installations/7/access_tokens", "token"),
        ("/somewhere/else", "other"),
        ("/", "other"),
    ],
)
def test_a_kind_is_derived_from_the_position_in_the_path(path: str, kind: str) -> None:
    assert call_kind(path).value == kind


@pytest.mark.parametrize(("status", "expected"), [(204, "2xx"), (304, "3xx"), (599, "5xx"), (999, "other")])
def test_statuses_are_counted_by_their_class(status: int, expected: str) -> None:
    assert status_class(status) == expected


class RecordedMetrics:
    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.pauses: list[tuple[str, Urgency]] = []

    def call(self, kind: CallKind, status: str, seconds: float) -> None:
        assert seconds >= 0
        self.calls.append((kind.value, status))

    def pause(self, reason: str, urgency: Urgency) -> None:
        self.pauses.append((reason, urgency))


async def dispatch_to_fake(
    *answers: httpx.Response | Exception, times: int = 1
) -> tuple[RecordedMetrics, GitHubRateLimiter, ManualClock]:
    """Send `times` dispatches to a fake GitHub that returns the given responses."""
    clock, tally, governor = ManualClock(), RecordedMetrics(), GitHubRateLimiter()
    github = FakeGitHub(clock)
    github.will("/repos/org/repo/dispatches", *answers)
    async with httpx.AsyncClient(transport=httpx.MockTransport(github)) as http:
        transport = GitHubTransport(
            http,
            api_url="https://api.github.test",
            auth=AppAuth("1", PEM, clock),
            tokens=TokenCache(clock),
            limiter=governor,
            clock=clock,
            counters=tally,
        )
        client = GitHubClient(transport)
        for _ in range(times):
            with suppress(OutsideFault):
                await client.repositories.dispatch(Target(RepoName("org/repo"), 5, 9), b"{}")
    return tally, governor, clock


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (httpx.Response(204), "2xx"),
        (httpx.Response(404, json={}), "4xx"),
        (httpx.Response(502), "5xx"),
        (httpx.ReadTimeout("slow"), "unsure"),
        (httpx.ConnectError("refused"), "unreachable"),
    ],
)
async def test_each_call_is_counted_with_its_outcome(answer: httpx.Response | Exception, status: str) -> None:
    tally, _, _ = await dispatch_to_fake(answer)
    assert tally.calls == [("token", "2xx"), ("dispatch", status)]
    assert tally.pauses == []


@pytest.mark.parametrize(
    ("headers", "reason"), [({"retry-after": "30"}, "secondary"), ({"x-ratelimit-remaining": "0"}, "hour")]
)
async def test_a_pause_is_counted_by_the_limit_that_caused_it(headers: dict[str, str], reason: str) -> None:
    tally, governor, clock = await dispatch_to_fake(httpx.Response(403, headers=headers, json={}), times=2)
    assert tally.calls[1:] == [("dispatch", "4xx")]
    assert tally.pauses == [(reason, Urgency.FIRST)] * 2  # the second was held back before it was sent
    assert [each.blocked for each in governor.budgets(clock.now().timestamp())].count(True) == 1


async def test_a_budget_is_known_until_its_hour_is_over() -> None:
    reset = str(int(ManualClock().now().timestamp()) + 600)
    left = {"x-ratelimit-remaining": "40", "x-ratelimit-limit": "5000", "x-ratelimit-reset": reset}
    _, governor, clock = await dispatch_to_fake(httpx.Response(204, headers=left))
    short = Budget(40, 5000, blocked=False, resets_at=float(reset), held=(Urgency.CHECKS, Urgency.DETAILS))
    assert short in governor.budgets(clock.now().timestamp())
    clock.advance(601)
    assert [each.remaining for each in governor.budgets(clock.now().timestamp())] == [None, None]
