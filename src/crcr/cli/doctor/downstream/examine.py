"""Examines a downstream through a relay: reachability, the set-up as the relay and GitHub see it, a test dispatch.

The relay inspects a repository at GitHub at most once a minute. A user at a terminal has usually just fixed something,
so the doctor waits for the rest of that minute; a script gets the older answer with its age.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from crcr.cli.doctor.downstream.checkout import Checkout, checkout_findings
from crcr.cli.doctor.downstream.relay_api import (
    DownstreamRequest,
    RelayClient,
    json_object,
    no_answer_finding,
    parse_findings,
    refused_finding,
    unreadable_finding,
)
from crcr.cli.doctor.downstream.round_trip import run_round_trip
from crcr.cli.doctor.output import FindingSection
from crcr.cli.doctor.reachability import check_reachable, parse_date_header
from crcr.cli.http_client import HttpError, HttpResponse
from crcr.cli.printing import ProgressLine
from crcr.decide.model import RepoName
from crcr.join.findings.finding import SetupFinding, State, warning

_INSPECTED_WITHIN_S = 30.0
_INSPECTED_AT_MOST_EVERY_S = 60.0
_POLL_S = 0.4

Sleep = Callable[[float], None]


def examine_downstream(
    request: DownstreamRequest, checkout: Checkout | None, *, shown: bool
) -> Iterator[FindingSection]:
    """Yield the sections in turn: the relay, the set-up, the local files, a test."""
    relay = RelayClient(request)
    reachable = check_reachable(relay.http, datetime.now(UTC))
    yield FindingSection(f"The relay at {request.url}", reachable)
    if any(finding.state is State.PROBLEM for finding in reachable):
        yield _checkout_section(checkout, request.repository)
        return
    yield setup_section(relay, shown=shown)
    yield _checkout_section(checkout, request.repository, relay.pin() if checkout else None)
    if request.patience is not None:
        yield FindingSection("The round trip", tuple(run_round_trip(relay, request.patience, shown=shown)))


def _checkout_section(
    checkout: Checkout | None, repository: RepoName, pin: str | None = None
) -> FindingSection:
    return FindingSection(
        "In this checkout", checkout_findings(checkout, repository, pin) if checkout else ()
    )


@dataclass(frozen=True, slots=True)
class _Answer:
    """The relay's latest answer, and whether it inspected GitHub for it."""

    response: HttpResponse
    inspection_response: HttpResponse | None = None
    late: SetupFinding | None = None
    followed: bool = False
    """Whether an inspection was running while we polled."""

    @property
    def is_fresh(self) -> bool:
        """Whether GitHub was inspected since we started, even for another caller."""
        if (
            self.inspection_response is None
            or self.late is not None
            or not self.inspection_response.is_success
        ):
            return False
        return not self.was_just_inspected or self.followed

    @property
    def was_just_inspected(self) -> bool:
        """Whether the relay declined because its last inspection is too recent."""
        return (
            self.inspection_response is not None
            and self.inspection_response.is_success
            and json_object(self.inspection_response).get("asked") is False
        )

    @property
    def inspected_at(self) -> datetime | None:
        try:
            inspected_at = datetime.fromisoformat(str(json_object(self.response).get("inspected_at")))
        except ValueError:
            return None
        return inspected_at if inspected_at.tzinfo else None

    @property
    def age_s(self) -> float | None:
        """By the relay's clock, which may differ from ours."""
        at = self.inspected_at
        now = parse_date_header(self.response) or datetime.now(UTC)
        return max((now - at).total_seconds(), 0.0) if at else None


def setup_section(relay: RelayClient, *, shown: bool, sleep: Sleep = time.sleep) -> FindingSection:
    title = f"The set-up of {relay.request.repository}"
    try:
        answer = _read_setup(relay, sleep, shown=shown)
    except HttpError as error:
        return FindingSection(title, (no_answer_finding("set-up", error),))
    at = answer.inspected_at
    facts = {"inspected_at": at.isoformat() if at else None}
    return FindingSection(title, _findings(answer), None if answer.is_fresh else _age(answer), facts)


def _read_setup(relay: RelayClient, sleep: Sleep, *, shown: bool) -> _Answer:
    path = f"setup/{relay.request.repository}"
    first = relay.read(path)
    if not json_object(first).get("listed"):
        return _Answer(first)
    with ProgressLine(shown=shown) as progress:
        answer = _request_inspection(relay, path, progress, sleep)
        if answer.is_fresh or not answer.was_just_inspected or not relay.request.waits:
            return answer
        _wait(_INSPECTED_AT_MOST_EVERY_S - (answer.age_s or 0.0), progress, sleep)
        return _request_inspection(relay, path, progress, sleep)


def _request_inspection(relay: RelayClient, path: str, progress: ProgressLine, sleep: Sleep) -> _Answer:
    """Request an inspection and wait for it; on a time-out return the older answer."""
    inspection_response = relay.post(path)
    until, followed = time.monotonic() + _INSPECTED_WITHIN_S, False
    while True:
        answer = relay.read(path)
        if not json_object(answer).get("being_inspected"):
            return _Answer(answer, inspection_response, followed=followed)
        followed = True
        if time.monotonic() >= until:
            break
        progress.show("the relay is asking GitHub …", final=False)
        sleep(_POLL_S)
    text = f"The relay did not inspect GitHub within {_INSPECTED_WITHIN_S:.0f} s."
    hint = "its worker may be busy or stopped: try again, or ask the operator"
    return _Answer(answer, inspection_response, warning("inspection", text, hint))


def _wait(seconds: float, progress: ProgressLine, sleep: Sleep) -> None:
    """Wait until GitHub can be asked again, plus one second, because a `Date` header has whole seconds."""
    for seconds_left in range(math.ceil(min(max(seconds, 0.0), _INSPECTED_AT_MOST_EVERY_S)) + 1, 0, -1):
        text = f"GitHub is asked at most once a minute; next in {seconds_left} s (--no-wait: do not wait)"
        progress.show(text, final=False)
        sleep(1.0)


def _age(answer: _Answer) -> str | None:
    if answer.age_s is None:
        return None
    return f"GitHub's state {_format_length(answer.age_s)} ago; it is asked at most once a minute"


def _format_length(seconds: float) -> str:
    for unit, size in (("days", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _findings(answer: _Answer) -> tuple[SetupFinding, ...]:
    if not answer.response.is_success:
        return (refused_finding("set-up", answer.response),)
    findings = parse_findings(answer.response)
    if findings is None:
        return (unreadable_finding("set-up"),)
    if answer.inspection_response is not None and not answer.inspection_response.is_success:
        return (*findings, refused_finding("inspection", answer.inspection_response))
    return (*findings, answer.late) if answer.late else findings
