"""`POST /github/callback`: identity, allowlist, rate, lifecycle, separation; the first check that fails responds.

The token is verified before the body is parsed. A result is committed before the response, and the same report again is
a success again.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from ipaddress import IPv4Network, IPv6Network

import structlog
from starlette.requests import Request

from crcr.decide.jobs.judge import (
    AdmittedCaller,
    CallerStanding,
    IgnoredReport,
    OpenJob,
    RejectedReport,
    RepeatedReport,
    ReportOutcome,
    admit_caller,
)
from crcr.decide.jobs.refusal import RefusedReport, make_refusal
from crcr.decide.jobs.report import SELF_REPORTS, Report
from crcr.decide.jobs.self_report import SelfReportedJob
from crcr.decide.model import RepoName
from crcr.decide.oidc.identity import Identity
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
from crcr.receive.callback.sandbox import SandboxIntake
from crcr.receive.http.body import BodyReader
from crcr.receive.http.client_address import client_address, limit_subject
from crcr.receive.http.response import IntakeOutcome, IntakeResponse
from crcr.receive.oidc.verifier import OidcVerifier
from crcr.record.jobs.refusals import Refusals
from crcr.record.jobs.reports import Reports
from crcr.record.jobs.self_reports import SelfReports

log = structlog.get_logger(__name__)

CAP_BYTES = 2 * 1024 * 1024
CALLBACK = "callback"
FAILED_AUTHENTICATION = "failed_authentication"
NOTED_REFUSAL = "noted_refusal"


class AdmittedCallers:
    """Standings of callers whose last report for a delivery was taken, so that the next one needs no read to be admitted.

    They only say where to look: the transaction that takes a report reads the standing again and decides by that.
    """

    def __init__(self, most: int = 4096) -> None:
        self._most = most
        self._standings: dict[tuple[str, int | None, str], CallerStanding] = {}

    def recall(self, identity: Identity, delivery: str) -> CallerStanding | None:
        return self._standings.get((identity.repository.key, identity.repository_id, delivery))

    def remember(self, identity: Identity, delivery: str, standing: CallerStanding) -> None:
        self.forget(identity, delivery)
        self._standings[identity.repository.key, identity.repository_id, delivery] = standing
        if len(self._standings) > self._most:
            del self._standings[next(iter(self._standings))]

    def forget(self, identity: Identity, delivery: str) -> None:
        self._standings.pop((identity.repository.key, identity.repository_id, delivery), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallbackIntake:
    verifier: OidcVerifier
    limits: RequestLimiter
    bodies: BodyReader
    reports: Reports
    trusted_proxies: tuple[IPv4Network | IPv6Network, ...]
    clock: Clock
    count: Callable[[str], None]
    """Counts an outcome."""
    trace: Trace = field(default_factory=NoTrace)
    self_reports: SelfReports
    refusals: Refusals
    sandbox: SandboxIntake | None
    """None where the operator has not turned it on."""
    admitted: AdmittedCallers = field(default_factory=AdmittedCallers)

    async def handle(self, request: Request) -> IntakeResponse | RejectedReport:
        identity, report, began_at = None, None, self.clock.now()
        try:
            identity = await self._authenticate(request)
            async with self.bodies.read(request, CAP_BYTES) as body:
                report = parse_report(body, signed_attempt=identity.run_attempt)
                response = await self._take(report, identity, body)
        except CrcrError as error:
            self.count(error.code)
            await self._record_error(error, identity, report)
            raise
        if isinstance(response, RejectedReport):
            self.count(response.code)
            await self._record_rejection(response, report, identity)
        else:
            self.count(response.outcome)
            self._trace(response, report, identity, began_at)
        return response

    def _trace(
        self, response: IntakeResponse, report: Report, identity: Identity, began_at: datetime
    ) -> None:
        """Trace a report that was taken; any other report's delivery is whatever its sender claims."""
        if report.event_type in SELF_REPORTS or response.outcome in {
            IntakeOutcome.IGNORED,
            IntakeOutcome.SANDBOX,
        }:
            return
        self.trace.note(
            TraceStep.CALLBACK,
            report.delivery_id,
            began_at,
            self.clock.now(),
            downstream=identity.repository.key,
            outcome=response.outcome.value,
        )

    async def _authenticate(self, request: Request) -> Identity:
        """Layer 1. Only failures count against an address, so one runner's many jobs never lock it out."""
        peer = request.client.host if request.client else None
        address = client_address(peer, request.headers.getlist("x-forwarded-for"), self.trusted_proxies)
        subject = limit_subject(address)
        await self.limits.check(FAILED_AUTHENTICATION, subject)
        try:
            return await self.verifier.verify(_bearer_token(request))
        except (NotAuthentic, NotRegistered) as refusal:
            log.info("callback_not_authentic", address=address, reason=refusal.detail)
            await self.limits.take(FAILED_AUTHENTICATION, subject)
            raise

    async def _take(self, report: Report, identity: Identity, body: bytes) -> IntakeResponse | RejectedReport:
        response = await self._take_listed(report, identity, body)
        if isinstance(response, RejectedReport) and response.code == DefaultBranchUnknown.code:
            # The report itself is fine: sent again later, as after any outage, it finds the branch known.
            raise DefaultBranchUnknown(response.detail, hint=response.hint)
        if (
            isinstance(response, RejectedReport)
            and response.code == "not_allowlisted"
            and self.sandbox is not None
        ):
            return await self.sandbox.take(report, identity, self.clock.now()) or response
        return response

    async def _take_listed(
        self, report: Report, identity: Identity, body: bytes
    ) -> IntakeResponse | RejectedReport:
        if report.event_type in SELF_REPORTS:
            return await self._take_self_report(report, identity, body)
        standing = self.admitted.recall(identity, report.delivery_id)
        if standing is not None:
            return await self._take_admitted(report, identity, standing, body, upstream=standing.upstream)
        standings = await self.reports.read_standings(
            identity.repository, report.delivery_id, identity.repository_id
        )
        standing, verdict = _choose_upstream(identity, standings)
        # There are several only where the delivery is unknown: then the refusal names no upstream.
        upstream = standing.upstream if len(standings) == 1 else None
        if not isinstance(verdict, AdmittedCaller):
            return _with_upstream(upstream, await self._refuse(standing, identity, verdict))
        return await self._take_admitted(report, identity, standing, body, upstream=upstream)

    async def _take_admitted(
        self,
        report: Report,
        identity: Identity,
        standing: CallerStanding,
        body: bytes,
        *,
        upstream: RepoName | None,
    ) -> IntakeResponse | RejectedReport:
        await self.limits.take(CALLBACK, identity.repository.key)
        outcome = await self.reports.take(report, identity, standing, body, self.clock.now())
        if isinstance(outcome, RejectedReport | IgnoredReport):
            self.admitted.forget(identity, report.delivery_id)
            return _with_upstream(upstream, await self._refuse(standing, identity, outcome))
        if upstream is not None and standing.dispatched_as is None:
            self.admitted.remember(identity, report.delivery_id, standing)
        return _success(report, outcome)

    async def _take_self_report(
        self, report: Report, identity: Identity, body: bytes
    ) -> IntakeResponse | RejectedReport:
        """Take a nightly or periodic result, which no dispatch requested."""
        admission = await self.self_reports.admit(report, identity)
        if isinstance(admission, RejectedReport):
            return admission
        standing, verdict = admission
        if not isinstance(verdict, AdmittedCaller):
            return _with_upstream(standing.upstream, await self._refuse(standing, identity, verdict))
        await self.limits.take(CALLBACK, identity.repository.key)
        outcome = await self.self_reports.take(report, identity, standing, body, self.clock.now())
        if isinstance(outcome, IgnoredReport):
            return _ignored(outcome)
        if isinstance(outcome, RejectedReport):
            return _with_upstream(standing.upstream, outcome)
        return _success(report, outcome)

    async def _refuse(
        self, standing: CallerStanding, identity: Identity, verdict: IgnoredReport | RejectedReport
    ) -> IntakeResponse | RejectedReport:
        if isinstance(verdict, IgnoredReport):
            return _ignored(verdict)
        if verdict.code == "identity_changed":
            await self._raise_alarm(standing, identity, verdict.detail)
        return verdict

    async def _raise_alarm(self, standing: CallerStanding, identity: Identity, reason: str) -> None:
        if await self.reports.raise_alarm(standing, identity, reason, self.clock.now()):
            facts = {"repository": str(identity.repository), "repository_id": identity.repository_id}
            log.error("identity_changed", alarm=True, upstream=str(standing.upstream), **facts)

    async def _record_error(self, error: CrcrError, identity: Identity | None, report: Report | None) -> None:
        """Record an error that the sender can fix, and only for a sender that a signature proves."""
        if identity is not None:
            caller, caller_id = identity.repository, identity.repository_id
        elif isinstance(error, NotAuthentic) and error.signed_by:
            caller, caller_id = RepoName(error.signed_by), error.signed_id
        else:
            return
        if not isinstance(error, Unavailable):
            reason = (error.code, error.detail, error.hint)
            await self._record_refusal(make_refusal(caller, *reason, report, caller_id=caller_id))

    async def _record_rejection(self, rejection: RejectedReport, report: Report, identity: Identity) -> None:
        facts = {"repository": str(identity.repository), "delivery": report.delivery_id, "run": report.run_id}
        log.info("report_refused", code=rejection.code, job=report.job_name, **facts)
        reason = (rejection.code, rejection.detail, rejection.hint)
        caller, caller_id = identity.repository, identity.repository_id
        refusal = make_refusal(caller, *reason, report, caller_id=caller_id, upstream=rejection.upstream)
        await self._record_refusal(refusal)

    async def _record_refusal(self, refusal: RefusedReport) -> None:
        try:
            # By the id where one is proved: the new owner of a name does not use up the former owner's limit.
            await self.limits.take(NOTED_REFUSAL, str(refusal.caller_id or refusal.caller.key))
            await self.refusals.note(refusal, self.clock.now())
        except (RateLimited, Unavailable) as error:
            log.info("refusal_not_noted", repository=str(refusal.caller), reason=error.code)


def _choose_upstream(
    identity: Identity, standings: tuple[CallerStanding, ...]
) -> tuple[CallerStanding, AdmittedCaller | IgnoredReport | RejectedReport]:
    """Return the upstream that takes the report; for an unknown delivery, the most lenient verdict."""
    verdicts = [(standing, admit_caller(identity, standing)) for standing in standings]
    order = (AdmittedCaller, IgnoredReport, RejectedReport)
    return min(verdicts, key=lambda pair: order.index(type(pair[1])))


def _with_upstream(
    upstream: RepoName | None, response: IntakeResponse | RejectedReport
) -> IntakeResponse | RejectedReport:
    return replace(response, upstream=upstream) if isinstance(response, RejectedReport) else response


def _ignored(verdict: IgnoredReport) -> IntakeResponse:
    body = {"ok": True, "status": "ignored", "reason": verdict.reason, "hint": verdict.hint}
    return IntakeResponse(202, body, outcome=IntakeOutcome.IGNORED)


def _success(report: Report, outcome: ReportOutcome | SelfReportedJob) -> IntakeResponse:
    status, repeat = report.status.value, isinstance(outcome, RepeatedReport)
    body = {"ok": True, "status": status, "repeat": repeat}
    if isinstance(outcome, OpenJob | SelfReportedJob) and outcome.warning:
        body |= {"warning": outcome.warning, "job_name": outcome.job_name}
    return IntakeResponse(200, body, outcome=IntakeOutcome.REPEAT if repeat else IntakeOutcome(status))


def _bearer_token(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise NotAuthentic(
            "the Authorization header has no bearer token",
            hint="request an OIDC token with the relay's audience (permissions: id-token: write) and send it",
        )
    return token.strip()
