"""Driver methods of checks: read them, press Re-run, Re-run all, or a button that a check offers; and the check runs and
commit statuses of a repository's own CI.
"""

from github_sim.bodies import webhooks
from github_sim.bodies.actions import check_run_json
from github_sim.bodies.pull_requests import git_user_json
from github_sim.bodies.repositories import app_json, node_id, other_app_json, repository_json
from github_sim.clock import stamp
from github_sim.rest.checks import latest_by_name
from github_sim.simulation import Simulation
from github_sim.world.records import (
    GITHUB_ACTIONS,
    CheckRun,
    Json,
    OtherApp,
    Repository,
    WebhookDelivery,
)

# GitHub's description of a suite's App has a closed list of events that knows no merge_group.
_SUITE_APP_EVENTS = ["pull_request", "push"]


class CheckDriver(Simulation):
    def checks(self, full_name: str, sha: str | None = None) -> list[CheckRun]:
        """The App's check runs on a repository, or on one commit of it."""
        repository_id = self.world.repository(full_name).id
        checks = [check for check in self.world.check_runs.values() if check.repository_id == repository_id]
        return [check for check in checks if sha in {None, check.head_sha}]

    def latest_checks(self, full_name: str, sha: str) -> dict[str, CheckRun]:
        """The newest check run of each name on a commit."""
        return latest_by_name(self.world.checks_on(self.world.repository(full_name), sha))

    async def rerequest_check(self, check: CheckRun) -> WebhookDelivery | None:
        """Somebody presses Re-run beside one check."""
        return await self._send_check_webhook(check, "rerequested", {})

    async def press_button(self, check: CheckRun, identifier: str) -> WebhookDelivery | None:
        """Somebody presses a button that the check offers."""
        if identifier not in {action["identifier"] for action in check.actions}:
            raise LookupError(f"check {check.name} has no button {identifier!r}")
        return await self._send_check_webhook(
            check, "requested_action", {"requested_action": {"identifier": identifier}}
        )

    async def rerequest_suite(self, full_name: str, sha: str) -> WebhookDelivery | None:
        """Somebody presses Re-run all checks on a commit."""
        repository = self.world.repository(full_name)
        body = self._event(repository, "rerequested", {"check_suite": self._suite(repository, sha)})
        return await self.emit("check_suite", body, repository, repository.owner)

    # A repository's own CI

    async def start_ci_check(
        self, full_name: str, sha: str, name: str, *, app: OtherApp = GITHUB_ACTIONS
    ) -> CheckRun:
        """Another App starts a check run; a re-run is a new one of the same name."""
        repository = self.world.repository(full_name)
        check = CheckRun(
            self.world.next_id("check_run", self.world.ci_rng),
            repository.id,
            sha,
            name,
            status="in_progress",
            app=app,
        )
        check.started_at = stamp(self.clock.now())
        self.world.ci_checks[check.id] = check
        await self.announce_check(check, "created")
        return check

    async def end_ci_check(self, check: CheckRun, conclusion: str) -> WebhookDelivery | None:
        check.status, check.conclusion = "completed", conclusion
        check.completed_at = stamp(self.clock.now())
        return await self.announce_check(check, "completed")

    async def announce_check(self, check: CheckRun, action: str) -> WebhookDelivery | None:
        """Send the webhook that a check run, of whatever App, was created or completed.

        For checks of the App under test GitHub sends them by itself; here they are sent by this method only.
        """
        return await self._send_check_webhook(check, action, {})

    async def set_status(
        self, full_name: str, sha: str, context: str, state: str, target_url: str | None = None
    ) -> WebhookDelivery | None:
        """Somebody's CI sets the state of a commit status; each state is a record of its own."""
        repository = self.world.repository(full_name)
        number = self.world.next_id("status", self.world.ci_rng)
        body = webhooks.status(
            self.base_url,
            repository,
            sha,
            context=context,
            state=state,
            number=number,
            at=stamp(self.clock.now()),
        )
        return await self.emit(
            "status", {**body, "target_url": target_url}, repository, repository.owner, self.world.ci_rng
        )

    async def _send_check_webhook(self, check: CheckRun, action: str, more: Json) -> WebhookDelivery | None:
        repository = self.world.repositories[check.repository_id]
        app = other_app_json(self.base_url, self.world, check.app) if check.app else self._app()
        check_body = check_run_json(self.base_url, repository, check, app)
        suite_app = {**app, "events": _SUITE_APP_EVENTS}
        check_body["check_suite"] = {**self._suite(repository, check.head_sha), "app": suite_app}
        body = self._event(repository, action, {"check_run": check_body, **more})
        rng = self.world.ci_rng if check.app else None
        return await self.emit("check_run", body, repository, repository.owner, rng)

    def _event(self, repository: Repository, action: str, more: Json) -> Json:
        return {
            "action": action,
            **more,
            "repository": repository_json(self.base_url, repository),
            **webhooks.organization(self.base_url, repository.owner),
        }

    def _app(self) -> Json:
        return app_json(self.base_url, self.world, self.app_id, self.app_permissions)

    def _suite(self, repository: Repository, sha: str) -> Json:
        number = repository.id + 1
        url = f"{self.base_url}/repos/{repository.full_name}/check-suites/{number}"
        commit = repository.commits[sha]
        author = git_user_json(commit.author)
        del author["username"]
        head = {
            "id": sha,
            "tree_id": commit.tree_sha,
            "message": commit.message,
            "timestamp": stamp(commit.committed_at),
            "author": author,
            "committer": author,
        }
        return {
            "id": number,
            "node_id": node_id("CS_", number),
            "head_branch": repository.default_branch,
            "head_sha": sha,
            "status": "completed",
            "conclusion": "failure",
            "url": url,
            "before": "0" * 40,
            "after": sha,
            "pull_requests": [],
            "app": {**self._app(), "events": _SUITE_APP_EVENTS},
            "created_at": stamp(commit.committed_at),
            "updated_at": stamp(self.clock.now()),
            "latest_check_runs_count": len(self.checks(repository.full_name, sha)),
            "check_runs_url": f"{url}/check-runs",
            "head_commit": head,
        }
