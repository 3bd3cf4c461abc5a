"""The sandbox's door: who may try a report there, how often, and what is answered.

Only repositories whose id GitHub has signed, and that are on no allowlist at all. The answer is a real one, marked, and
says where to look and that it decides nothing.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from crcr.decide.model import RepoName
from crcr.decide.report.identity import Identity
from crcr.decide.report.judge import RejectedReport, RepeatedReport
from crcr.decide.report.report import Report
from crcr.decide.report.sandbox import SandboxOutcome
from crcr.ports import RequestLimiter
from crcr.receive.http.answer import Answer

SANDBOX = "sandbox"
"""The limit's name."""


class Tried(Protocol):
    async def is_listed(self, caller: RepoName) -> bool: ...
    async def take(self, report: Report, identity: Identity, now: datetime) -> SandboxOutcome: ...


@dataclass(frozen=True, slots=True)
class SandboxDoor:
    """Serves the callback's `Sandbox`."""

    tried: Tried
    limits: RequestLimiter
    page: str
    """Where people look at it."""

    async def take(self, report: Report, identity: Identity, now: datetime) -> Answer | RejectedReport | None:
        if identity.repository_id is None or await self.tried.is_listed(identity.repository):
            return None
        # By the id: who renames a repository does not begin anew.
        await self.limits.take(SANDBOX, str(identity.repository_id))
        outcome = await self.tried.take(report, identity, now)
        if isinstance(outcome, RejectedReport):
            return outcome
        told = {
            "ok": True,
            "status": report.status.value,
            "repeat": isinstance(outcome, RepeatedReport),
            "sandbox": True,
            "hint": self._hint(identity.repository_id),
        }
        return Answer(200, told)

    def _hint(self, repository_id: int) -> str:
        return (
            f"this repository is on no allowlist, so the report went to the sandbox: see "
            f"{self.page}?repository={repository_id} for the next 48 hours; results there decide nothing"
        )
