"""The actions of administrators as typed requests: the fields of each, and how it is performed.

The forms and the JSON API build the same requests; nothing here depends on which of the two was used.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from crcr.decide.bisection.request import (
    DEFAULT_RUNS,
    DEFAULT_TIME,
    LONGEST_TIME,
    MOST_RUNS,
    BisectionRequest,
)
from crcr.decide.failures.known import KNOWN_FOR, LONGEST_KNOWN
from crcr.decide.levels.standings import MOST_OVERRIDE
from crcr.decide.model import RepoName, is_repo_name
from crcr.decide.views.bisections import BisectionDetail
from crcr.errors import BadRequest
from crcr.record.admin.http_operations import HttpAdminOperations
from crcr.show.urls.location import pick_upstream

Name = Annotated[str, Field(max_length=150, description="`owner/repo`")]
Reason = Annotated[str | None, Field(max_length=500, description="for the audit log")]
Guid = Annotated[str, Field(min_length=1, max_length=200, description="the delivery's id")]
Number = Annotated[int, Field(ge=1, le=2**62)]
Fingerprint = Annotated[str, Field(pattern="^[0-9a-f]{16}$", description="of the group of failures")]

_HOUR = timedelta(hours=1)
_DEFAULT_HOURS, _MOST_HOURS = DEFAULT_TIME // _HOUR, LONGEST_TIME // _HOUR


class AdminOrder(BaseModel):
    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    upstream: Annotated[
        Name | None, Field(description="`owner/repo`; needed where there are several upstreams")
    ] = None


class Replay(AdminOrder):
    delivery: Guid
    everyone: Annotated[bool, Field(description="also to those who got it: their CI runs once more")] = False


class Retry(AdminOrder):
    effect: Annotated[Number | None, Field(description="the parked effect's id")] = None
    target: Annotated[Name | None, Field(description="all that are parked for this `owner/repo`")] = None

    @model_validator(mode="after")
    def _require_one_target(self) -> Self:
        if (self.effect is None) == (self.target is None):
            raise ValueError("say which: effect or target")
        return self


class Suspend(AdminOrder):
    repository: Name
    reason: Reason = None


class Lift(Suspend): ...


class Rebind(AdminOrder):
    repository: Name
    repository_id: Annotated[Number, Field(description="the repository's id now, from GitHub's API")]


class Pause(AdminOrder):
    reason: Reason = None


class Unpause(Pause): ...


class LinkIssue(AdminOrder):
    url: Annotated[str, Field(max_length=300, description="the address of an issue on GitHub")]
    days: Annotated[
        int | None, Field(ge=1, le=LONGEST_KNOWN.days, description=f"for how long; default {KNOWN_FOR.days}")
    ] = None
    reason: Reason = None


class Known(LinkIssue):
    fingerprint: Fingerprint


class Unknown(AdminOrder):
    fingerprint: Fingerprint


class OverrideLevel(AdminOrder):
    repository: Name
    days: Annotated[int, Field(ge=1, le=MOST_OVERRIDE.days, description="for how long")]
    reason: Annotated[str, Field(min_length=1, max_length=500, description="for the page and the audit log")]


class EndOverride(AdminOrder):
    repository: Name


class Bisect(AdminOrder):
    backend: Annotated[Name, Field(description="`owner/repo` of the backend on which commits are tested")]
    job: Annotated[str, Field(min_length=1, max_length=300, description="its name, as pages show it")]
    workflow: Annotated[
        str | None, Field(max_length=300, description="needed where two workflows have a job of this name")
    ] = None
    good: Annotated[
        str | None,
        Field(
            max_length=64,
            description="a commit where it passes, at least 7 digits; default: the recorded one",
        ),
    ] = None
    bad: Annotated[
        str | None,
        Field(max_length=64, description="a later commit where it fails; default: the recorded one"),
    ] = None
    runs: Annotated[
        int, Field(ge=3, le=MOST_RUNS, description=f"how many runs at most; default {DEFAULT_RUNS}")
    ] = DEFAULT_RUNS
    hours: Annotated[
        int, Field(ge=1, le=_MOST_HOURS, description=f"how long at most; default {_DEFAULT_HOURS}")
    ] = _DEFAULT_HOURS


class StopBisection(AdminOrder):
    bisection: Annotated[Number, Field(description="its number")]


class AdminResult(BaseModel):
    ok: bool = True
    act: str
    count: Annotated[int, Field(description="to how many backends, or how many effects; else 1")]


@dataclass(frozen=True, slots=True)
class AdminAction:
    name: str
    order: type[AdminOrder]
    done: str
    """The code of the notice that is shown afterwards."""
    summary: str
    has_route: bool = True
    """Whether the API has it under `/api/v1/admin`; else it has an address of its own."""


ADMIN_ACTIONS: tuple[AdminAction, ...] = (
    AdminAction(
        "replay", Replay, "replayed", "Send a delivery again to those who did not get it, or to everyone"
    ),
    AdminAction("retry", Retry, "retried", "Give parked effects another 24 hours of tries, beginning now"),
    AdminAction(
        "suspend", Suspend, "suspended", "Stop talking to a backend at once; what waits for it is dropped"
    ),
    AdminAction("lift", Lift, "lifted", "Take a suspension back"),
    AdminAction("rebind", Rebind, "rebound", "Accept that another repository id now has this name"),
    AdminAction(
        "known",
        Known,
        "known",
        "Link a group of failures to an issue, until it is closed or the time is over",
    ),
    AdminAction("unknown", Unknown, "unknown", "End the link of a group of failures to its issue"),
    AdminAction(
        "override_level", OverrideLevel, "overridden", "Switch a backend's demotion off for some days"
    ),
    AdminAction("end_override", EndOverride, "override_ended", "Put a backend's demotion into force again"),
    AdminAction("pause", Pause, "paused", "Stop dispatching for an upstream; its events are taken and wait"),
    AdminAction("unpause", Unpause, "unpaused", "Go on dispatching for an upstream"),
    AdminAction(
        "bisect", Bisect, "bisected", "Begin to search for the commit that broke a job", has_route=False
    ),
    AdminAction("stop_bisection", StopBisection, "stopped", "Stop a bisection", has_route=False),
)

Perform = Callable[[AdminOrder, str], Awaitable[int]]


def make_performer(acts: HttpAdminOperations, upstreams: tuple[RepoName, ...]) -> Perform:
    """The result is the number that its notice names; for a bisection its id."""

    async def perform(order: AdminOrder, who: str) -> int:
        upstream = _require_upstream(upstreams, order.upstream)
        if isinstance(order, Bisect | StopBisection):
            return await _perform_bisection(acts, upstream, order, who)
        match order:
            case Replay():
                return await acts.replay(upstream, order.delivery, who=who, everyone=order.everyone)
            case Retry():
                target = _parse_repository(order.target) if order.target is not None else None
                return await acts.retry(upstream, who=who, effect_id=order.effect, target=target)
            case Suspend():
                lift = isinstance(order, Lift)
                name = _parse_repository(order.repository)
                await acts.suspend(upstream, name, who=who, lift=lift, reason=order.reason)
            case Rebind():
                await acts.rebind(upstream, _parse_repository(order.repository), order.repository_id, who=who)
            case Known():
                await acts.link_failure(
                    upstream,
                    order.fingerprint,
                    url=order.url,
                    who=who,
                    reason=order.reason,
                    days=order.days,
                )
            case Unknown():
                await acts.unlink_failure(upstream, order.fingerprint, who=who)
            case OverrideLevel():
                name, duration = _parse_repository(order.repository), timedelta(days=order.days)
                await acts.override_level(upstream, name, who=who, duration=duration, reason=order.reason)
            case EndOverride():
                await acts.end_override(upstream, _parse_repository(order.repository), who=who)
            case Pause():
                lift = isinstance(order, Unpause)
                await acts.pause(upstream, who=who, lift=lift, reason=order.reason)
            case _:
                raise TypeError(f"unknown order: {type(order).__name__}")
        return 1

    return perform


async def _perform_bisection(
    acts: HttpAdminOperations, upstream: RepoName, order: Bisect | StopBisection, who: str
) -> int:
    if isinstance(order, StopBisection):
        await acts.stop_bisection(upstream, order.bisection, who=who)
        return order.bisection
    request = BisectionRequest(
        downstream=_parse_repository(order.backend),
        job=order.job,
        who=who,
        workflow=order.workflow,
        good=order.good.lower() if order.good else None,
        bad=order.bad.lower() if order.bad else None,
        most_runs=order.runs,
        time=order.hours * _HOUR,
    )
    return await acts.bisect(upstream, request)


async def read_written_bisection(
    acts: HttpAdminOperations, upstreams: tuple[RepoName, ...], requested: str | None, bisection_id: int
) -> BisectionDetail:
    return await acts.read_bisection(_require_upstream(upstreams, requested), bisection_id)


def read_order(act: AdminAction, fields: dict[str, str]) -> AdminOrder:
    """Return the order of a form; an empty field counts as absent."""
    try:
        return act.order.model_validate({name: value for name, value in fields.items() if value.strip()})
    except ValidationError as wrong:
        first = wrong.errors(include_input=False, include_url=False)[0]
        field_name = ".".join(str(part) for part in first["loc"])[:100]
        raise BadRequest(f"{field_name or act.name}: {first['msg']}") from None


def _require_upstream(upstreams: tuple[RepoName, ...], requested: str | None) -> RepoName:
    if requested is None and len(upstreams) > 1:
        raise BadRequest(
            "upstream is needed: there are several", hint=f"one of {', '.join(map(str, upstreams))}"
        )
    return pick_upstream(upstreams, requested)


def _parse_repository(name: str) -> RepoName:
    if not is_repo_name(name):
        raise BadRequest(f"{name[:150]!r} is not owner/name")
    return RepoName(name)
