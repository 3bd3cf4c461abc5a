"""The sandbox's intake: test reports from repositories that are not on any allowlist.

Only a repository whose id GitHub has signed may use it, and only so many times an hour. The response is that of a real
report, marked, and says where to see the result and that it does not count.
"""

from dataclasses import dataclass
from datetime import datetime

from crcr.decide.jobs.judge import RejectedReport, RepeatedReport
from crcr.decide.jobs.report import Report
from crcr.decide.oidc.identity import Identity
from crcr.ports import RequestLimiter
from crcr.receive.http.response import IntakeOutcome, IntakeResponse
from crcr.record.jobs.sandbox import SandboxJobs

SANDBOX = "sandbox"
"""The rate limit's name."""


@dataclass(frozen=True, slots=True)
class SandboxIntake:
    jobs: SandboxJobs
    limits: RequestLimiter
    page_url: str

    async def take(
        self, report: Report, identity: Identity, now: datetime
    ) -> IntakeResponse | RejectedReport | None:
        """Take the report; None when the sandbox is not for this caller, whose refusal stands."""
        if identity.repository_id is None or await self.jobs.is_listed(identity.repository):
            return None
        # By the id: renaming a repository does not reset its limit.
        await self.limits.take(SANDBOX, str(identity.repository_id))
        outcome = await self.jobs.take(report, identity, now)
        if isinstance(outcome, RejectedReport):
            return outcome
        body = {
            "ok": True,
            "status": report.status.value,
            "repeat": isinstance(outcome, RepeatedReport),
            "sandbox": True,
            "hint": self._hint(identity.repository_id),
        }
        return IntakeResponse(200, body, outcome=IntakeOutcome.SANDBOX)

    def _hint(self, repository_id: int) -> str:
        return (
            f"this repository is on no allowlist, so the report went to the sandbox: see "
            f"{self.page_url}?repository={repository_id} for the next 48 hours; results there decide nothing"
        )
