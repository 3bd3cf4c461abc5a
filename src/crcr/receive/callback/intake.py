"""`POST /github/callback`: identity, allowlist, rate, lifecycle, separation; the first that fails answers.

The token is verified before the body is parsed. A result is committed before it is answered, and the same
report again is success again.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network
from typing import Protocol

import structlog
from starlette.requests import Request

from crcr.decide.model import RepoName
from crcr.decide.report.identity import Identity
from crcr.decide.report.judge import (
    AdmittedCaller,
    CallerStanding,
    IgnoredReport,
    OpenJob,
    RejectedReport,
    RepeatedReport,
    ReportOutcome,
    admit_caller,
)
from crcr.decide.report.refusal import RefusedReport, make_refusal
from crcr.decide.report.report import SELF_REPORTS, Report
from crcr.decide.report.self_report import Admission, SelfReportedJob, SelfReportOutcome
from crcr.decide.trace_steps import TraceStep
from crcr.errors import (
    CrcrError,
    DefaultBranchUnknown,
    NotAuthentic,
    NotRegistered,
    RateLimited,
    Unavailable,
)
from crcr.ports import Clock, NoTrace, RequestLimiter, Trace
from crcr.receive.callback.parse_report import parse_report
from crcr.receive.http.answer import Answer
from crcr.receive.http.body import Bodies
from crcr.receive.http.client_address import client_address, limit_subject
from crcr.receive.oidc.verifier import OidcVerifier

log = structlog.get_logger(__name__)

CAP_BYTES = 2 * 1024 * 1024
CALLBACK = "callback"
FAILED_AUTHENTICATION = "failed_authentication"
NOTED_REFUSAL = "noted_refusal"


class Reports(Protocol):
    async def standings(
        self, caller: RepoName, delivery: str, caller_id: int | None = None
    ) -> tuple[CallerStanding, ...]: ...
    async def take(
        self, report: Report, identity: Identity, standing: CallerStanding, body: bytes, now: datetime
    ) -> ReportOutcome: ...
    async def raise_alarm(
        self, standing: CallerStanding, identity: Identity, reason: str, now: datetime
    ) -> bool: ...


class SelfReports(Protocol):
    """Nightly and periodic results, which nobody dispatched."""

    async def admit(
        self, report: Report, identity: Identity
    ) -> tuple[CallerStanding, Admission] | RejectedReport:
        """Choose the upstream, and judge the sender there; refuse whom no upstream lists."""
        ...

    async def take(
        self, report: Report, identity: Identity, standing: CallerStanding, body: bytes, now: datetime
    ) -> SelfReportOutcome | IgnoredReport: ...


class Sandbox(Protocol):
    """A space of its own for who is on no allowlist."""

    async def take(self, report: Report, identity: Identity, now: datetime) -> Answer | RejectedReport | None:
        """None: it is not for this caller, whose refusal stands."""
        ...


class Refusals(Protocol):
    async def note(self, refusal: RefusedReport, now: datetime) -> None:
        """Keep it for the pages of the upstreams that list the caller; nobody else is written down."""
        ...


class Tally(Protocol):
    def callback(self, outcome: str) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackIntake:
    verifier: OidcVerifier
    limits: RequestLimiter
    bodies: Bodies
    reports: Reports
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    clock: Clock
    tally: Tally
    trace: Trace = field(default_factory=NoTrace)
    self_reports: SelfReports
    refusals: Refusals
    sandbox: Sandbox | None
    """None where the operator has not turned it on."""

    async def handle(self, request: Request) -> Answer | RejectedReport:
        identity, report, began_at = None, None, self.clock.now()
        try:
            identity = await self._authenticate(request)
            async with self.bodies.read(request, CAP_BYTES) as body:
                report = parse_report(body, signed_attempt=identity.run_attempt)
                answer = await self._take(report, identity, body)
        except CrcrError as refused:
            self.tally.callback(refused.code)
            await self._keep(refused, identity, report)
            raise
        await self._note(answer, report, identity)
        self._follow(answer, report, identity, began_at)
        return answer

    def _follow(
        self, answer: Answer | RejectedReport, report: Report, identity: Identity, began_at: datetime
    ) -> None:
        """Only what was taken: a refused report's delivery is whatever its sender says."""
        if isinstance(answer, RejectedReport) or report.event_type in SELF_REPORTS:
            return
        outcome = _outcome(answer)
        if outcome not in {"ignored", "sandbox"}:
            to = identity.repository.key
            now = self.clock.now()
            self.trace.note(
                TraceStep.CALLBACK, report.delivery_id, began_at, now, downstream=to, outcome=outcome
            )

    async def _authenticate(self, request: Request) -> Identity:
        """Layer 1. Only failures count against an address, so one runner's many jobs never lock it out."""
        peer = request.client.host if request.client else None
        address = client_address(peer, request.headers.getlist("x-forwarded-for"), self.trusted_proxies)
        subject = limit_subject(address)
        await self.limits.check(FAILED_AUTHENTICATION, subject)
        try:
            return await self.verifier.verify(_bearer(request))
        except (NotAuthentic, NotRegistered) as refusal:
            log.info("callback_not_authentic", address=address, reason=refusal.detail)
            await self.limits.take(FAILED_AUTHENTICATION, subject)
            raise

    async def _take(self, report: Report, identity: Identity, body: bytes) -> Answer | RejectedReport:
        answer = await self._take_listed(report, identity, body)
        if isinstance(answer, RejectedReport) and answer.code == DefaultBranchUnknown.code:
            # Nothing is wrong with the report: whoever sends it again, as after any outage, finds the branch known.
            raise DefaultBranchUnknown(answer.detail, hint=answer.hint)
        if (
            isinstance(answer, RejectedReport)
            and answer.code == "not_allowlisted"
            and self.sandbox is not None
        ):
            return await self.sandbox.take(report, identity, self.clock.now()) or answer
        return answer

    async def _take_listed(self, report: Report, identity: Identity, body: bytes) -> Answer | RejectedReport:
        if report.event_type in SELF_REPORTS:
            return await self._take_own(report, identity, body)
        standings = await self.reports.standings(
            identity.repository, report.delivery_id, identity.repository_id
        )
        standing, verdict = _best(identity, standings)
        # Several stand for it only where the delivery is nobody's.
        whose = standing.upstream if len(standings) == 1 else None
        if not isinstance(verdict, AdmittedCaller):
            return _of(whose, await self._turn_away(standing, identity, verdict))
        await self.limits.take(CALLBACK, identity.repository.key)
        outcome = await self.reports.take(report, identity, standing, body, self.clock.now())
        return _of(whose, outcome) if isinstance(outcome, RejectedReport) else _success(report, outcome)

    async def _take_own(self, report: Report, identity: Identity, body: bytes) -> Answer | RejectedReport:
        admission = await self.self_reports.admit(report, identity)
        if isinstance(admission, RejectedReport):
            return admission
        standing, verdict = admission
        if not isinstance(verdict, AdmittedCaller):
            return _of(standing.upstream, await self._turn_away(standing, identity, verdict))
        await self.limits.take(CALLBACK, identity.repository.key)
        outcome = await self.self_reports.take(report, identity, standing, body, self.clock.now())
        if isinstance(outcome, IgnoredReport):
            return _ignored(outcome)
        if isinstance(outcome, RejectedReport):
            return _of(standing.upstream, outcome)
        return _success(report, outcome)

    async def _turn_away(
        self, standing: CallerStanding, identity: Identity, verdict: IgnoredReport | RejectedReport
    ) -> Answer | RejectedReport:
        if isinstance(verdict, IgnoredReport):
            return _ignored(verdict)
        if verdict.code == "identity_changed":
            await self._alarm(standing, identity, verdict.detail)
        return verdict

    async def _alarm(self, standing: CallerStanding, identity: Identity, reason: str) -> None:
        if await self.reports.raise_alarm(standing, identity, reason, self.clock.now()):
            who = {"repository": str(identity.repository), "repository_id": identity.repository_id}
            log.error("identity_changed", alarm=True, upstream=str(standing.upstream), **who)

    async def _keep(self, refused: CrcrError, identity: Identity | None, report: Report | None) -> None:
        """Only what the sender can mend, and only from who is proved to have sent it."""
        if identity is not None:
            caller, caller_id = identity.repository, identity.repository_id
        elif isinstance(refused, NotAuthentic) and refused.signed_by:
            caller, caller_id = RepoName(refused.signed_by), refused.signed_id
        else:
            return
        if not isinstance(refused, Unavailable):
            told = (refused.code, refused.detail, refused.hint)
            await self._remember(make_refusal(caller, *told, report, caller_id=caller_id))

    async def _remember(self, refusal: RefusedReport) -> None:
        try:
            # By the id where one is proved: who took over a name does not use up its former owner's.
            await self.limits.take(NOTED_REFUSAL, str(refusal.caller_id or refusal.caller.key))
            await self.refusals.note(refusal, self.clock.now())
        except (RateLimited, Unavailable) as fault:
            log.info("refusal_not_noted", repository=str(refusal.caller), reason=fault.code)

    async def _note(self, answer: Answer | RejectedReport, report: Report, identity: Identity) -> None:
        if isinstance(answer, Answer):
            self.tally.callback(_outcome(answer))
            return
        self.tally.callback(answer.code)
        who = {"repository": str(identity.repository), "delivery": report.delivery_id, "run": report.run_id}
        log.info("report_refused", code=answer.code, job=report.job_name, **who)
        told = (answer.code, answer.detail, answer.hint)
        caller, caller_id = identity.repository, identity.repository_id
        refusal = make_refusal(caller, *told, report, caller_id=caller_id, upstream=answer.upstream)
        await self._remember(refusal)


def _best(
    identity: Identity, standings: tuple[CallerStanding, ...]
) -> tuple[CallerStanding, AdmittedCaller | IgnoredReport | RejectedReport]:
    """The upstream that takes the report; for an unknown delivery, the friendliest refusal."""
    judged = [(standing, admit_caller(identity, standing)) for standing in standings]
    order = (AdmittedCaller, IgnoredReport, RejectedReport)
    return min(judged, key=lambda pair: order.index(type(pair[1])))


def _of(upstream: RepoName | None, answer: Answer | RejectedReport) -> Answer | RejectedReport:
    return replace(answer, upstream=upstream) if isinstance(answer, RejectedReport) else answer


def _outcome(answer: Answer) -> str:
    """What was tried out is counted apart from results."""
    if answer.body.get("sandbox"):
        return "sandbox"
    return "repeat" if answer.body.get("repeat") else str(answer.body["status"])


def _ignored(verdict: IgnoredReport) -> Answer:
    return Answer(202, {"ok": True, "status": "ignored", "reason": verdict.reason, "hint": verdict.hint})


def _bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthentic(
            "the Authorization header has no bearer token",
            hint="request an OIDC token with the relay's audience (permissions: id-token: write) and send it",
        )
    return token.strip()


def _success(report: Report, outcome: ReportOutcome | SelfReportedJob) -> Answer:
    body = {"ok": True, "status": report.status.value, "repeat": isinstance(outcome, RepeatedReport)}
    if isinstance(outcome, OpenJob | SelfReportedJob) and outcome.warning:
        body |= {"warning": outcome.warning, "job_name": outcome.job_name}
    return Answer(200, body)
