"""The entry point: `GitHub`, a simulated GitHub in one object, with a method for everything that people and CI do.

    async with GitHub(clock=clock, seed=7, webhook_url=…, transport=…) as github:
        github.create_repository("org/upstream")
        pull = await github.open_pr("org/upstream")
        github.finish()

`github.app` is its ASGI app (REST API and OIDC issuer); `rest.server.serve` puts it on a port.
"""

from fnmatch import fnmatchcase

from github_sim.driver.checks import CheckDriver
from github_sim.driver.ci import CiDriver
from github_sim.driver.merging import MergeDriver
from github_sim.driver.pull_requests import CommentDriver, IssueDriver
from github_sim.driver.repositories import RepositoryDriver
from github_sim.oidc.github_actions import HostileToken
from github_sim.rest.app import AnswerLost
from github_sim.world.actions import Behaviour, JobSpec, Workflow, WorkflowJob, WorkflowRun
from github_sim.world.faults import JWKS_PATH, Faults, HeldCalls, Match
from github_sim.world.merge_rules import MergeBlocked, MergeState
from github_sim.world.records import (
    Call,
    CheckRun,
    Comment,
    Issue,
    Json,
    MergeGroup,
    PullRequest,
    Repository,
    WebhookDelivery,
)

__all__ = [
    "JWKS_PATH",
    "AnswerLost",
    "Behaviour",
    "Call",
    "CheckRun",
    "Comment",
    "Faults",
    "GitHub",
    "HeldCalls",
    "HostileToken",
    "Issue",
    "JobSpec",
    "Match",
    "MergeBlocked",
    "MergeGroup",
    "MergeState",
    "PullRequest",
    "Repository",
    "WebhookDelivery",
    "Workflow",
    "WorkflowJob",
    "WorkflowRun",
]


class GitHub(MergeDriver, CommentDriver, IssueDriver, RepositoryDriver, CiDriver, CheckDriver):
    @property
    def issuer_url(self) -> str:
        return self.issuer.url

    @property
    def jwks_url(self) -> str:
        return self.issuer.jwks_url

    def calls_to(self, method: str, path: str) -> list[Call]:
        """Recorded calls by method and a glob over the path."""
        return [call for call in self.calls if call.method == method and fnmatchcase(call.path, path)]

    def deliveries(self, guid: str | None = None) -> list[WebhookDelivery]:
        """The App's delivery log, oldest first; with a GUID, the attempts of that delivery."""
        log = list(reversed(self.webhooks.log()))
        return log if guid is None else [delivery for delivery in log if delivery.guid == guid]

    def drop_old_records(self, most: int) -> None:
        """Drop all but the newest records, for a simulator that runs for long."""
        for log in (self.calls, self.callback_log, self.world.deliveries, self.world.dispatches):
            del log[:-most]
        done = [run.id for run in self.world.runs.values() if run.status == "completed"]
        for number in done[:-most]:
            del self.world.runs[number]
        self._drop_closed(most)

    def _drop_closed(self, most: int) -> None:
        """Checks and comments that belong to nothing open any more, and closed pull requests."""
        live = {key: pull for key, pull in self.world.pulls.items() if pull.state == "open"}
        heads = {pull.head_sha for pull in live.values()} | {group.head_sha for group in self.world.queue}
        comments = self.world.comments
        for checks in (self.world.check_runs, self.world.ci_checks):
            old = [check.id for check in checks.values() if check.conclusion and check.head_sha not in heads]
            for number in old[:-most]:
                del checks[number]
        old_comments = [
            comment.id for comment in comments.values() if (comment.repository_id, comment.number) not in live
        ]
        for number in old_comments[:-most]:
            del comments[number]
        closed = [key for key in self.world.pulls if key not in live]
        for key in closed[:-most]:
            del self.world.pulls[key]

    async def redeliver(self, guid: str) -> WebhookDelivery:
        """Somebody presses Redeliver in the App's settings."""
        attempts = self.deliveries(guid)
        if not attempts:
            raise LookupError(f"the delivery log has no {guid}")
        return await self.webhooks.redeliver(attempts[-1])

    async def send_webhook(self, event: str, body: Json, *, guid: str | None = None) -> WebhookDelivery:
        """Send any body as a signed webhook, such as one of GitHub's published examples."""
        return await self.webhooks.emit(event, body, guid=guid)

    async def release_webhooks(self, order: list[int] | None = None) -> list[WebhookDelivery]:
        """Send the held webhooks, as they happened or in the given order of positions."""
        return await self.webhooks.release(order)
