"""Driver methods of repositories and the App: create, push, install, suspend, rename, transfer.

Each method changes the world first and then sends the webhook that GitHub would send.
"""

from collections.abc import Callable, Mapping, Sequence

from github_sim.bodies import webhooks
from github_sim.clock import stamp
from github_sim.simulation import Simulation
from github_sim.world.actions import Workflow
from github_sim.world.git_content import encode_files
from github_sim.world.records import (
    LEGACY_PERMISSIONS,
    NO_COMMIT,
    Account,
    GitCommit,
    Installation,
    Json,
    Repository,
    WebhookDelivery,
)

BRANCHES = "refs/heads/"


class RepositoryDriver(Simulation):
    def create_repository(
        self,
        full_name: str,
        *,
        installed: bool = True,
        private: bool = False,
        default_branch: str = "main",
        files: Mapping[str, str | bytes] | None = None,
        workflows: Sequence[Workflow] = (),
        description: str = "",
        sends_run_webhooks: bool = False,
    ) -> Repository:
        """A repository with a first commit; `installed` puts the App on it without any webhook."""
        owner_login, _, name = full_name.partition("/")
        now = self.clock.now()
        repository = Repository(
            id=self.world.next_id("repository"),
            owner=self.world.account(owner_login, "Organization"),
            name=name,
            created_at=now,
            updated_at=now,
            private=private,
            default_branch=default_branch,
            description=description,
            workflows=list(workflows),
            sends_run_webhooks=sends_run_webhooks,
        )
        self.world.add_repository(repository)
        content = {"README.md": f"# {name}\n".encode(), **encode_files(files or {})}
        first = self.world.commit(
            repository, "Initial commit", repository.owner, parent=None, changes=content
        )
        repository.branches[default_branch] = first.sha
        if installed:
            self._installation_for(repository.owner)[0].repository_ids.add(repository.id)
        return repository

    def repository(self, full_name: str) -> Repository:
        return self.world.repository(full_name)

    def set_permission(self, full_name: str, login: str, role: str) -> None:
        """Give a person a role: none, read, triage, write, maintain or admin."""
        if role not in LEGACY_PERMISSIONS:
            raise ValueError(f"no role {role!r}; there are {', '.join(LEGACY_PERMISSIONS)}")
        self.repository(full_name).roles[self.world.account(login).login.lower()] = role

    def write_file(self, full_name: str, path: str, content: str | bytes) -> GitCommit:
        """Commit one file to the default branch, without a webhook; `push` sends one."""
        repository = self.repository(full_name)
        commit = self.world.commit(
            repository,
            f"Update {path}",
            repository.owner,
            parent=repository.head_sha,
            changes=encode_files({path: content}),
        )
        repository.branches[repository.default_branch] = commit.sha
        return commit

    async def push(
        self,
        full_name: str,
        *,
        ref: str | None = None,
        commits: int = 1,
        created: bool = False,
        deleted: bool = False,
        forced: bool = False,
        files: Mapping[str, str | bytes] | None = None,
        author: str | None = None,
        message: str = "Update",
        messages: Sequence[str] = (),
        start: str | None = None,
        before_webhook: Callable[[], None] = lambda: None,
    ) -> WebhookDelivery | None:
        """Push so many commits with one message, or one commit for each of `messages`; a new ref begins at `start`.

        A tag has no commits of its own: push it with `commits=0`.
        """
        repository = self.repository(full_name)
        target = ref or f"{BRANCHES}{repository.default_branch}"
        branch = target.removeprefix(BRANCHES)
        pusher = self.world.account(author) if author else repository.owner
        before = NO_COMMIT if created else repository.branches.get(branch, NO_COMMIT)
        new_commits: list[GitCommit] = []
        if deleted:
            repository.branches.pop(branch, None)
            after = NO_COMMIT
        else:
            parent = before if before in repository.commits else start or repository.head_sha
            changes = encode_files(files or {})
            new_commits = self._commits(repository, pusher, parent, messages or [message] * commits, changes)
            after = new_commits[-1].sha if new_commits else parent
            if target.startswith(BRANCHES):
                repository.branches[branch] = after
        repository.updated_at = self.clock.now()
        before_webhook()
        body = webhooks.push(
            self.base_url,
            repository,
            ref=target,
            before=before,
            after=after,
            commits=new_commits,
            forced=forced,
            pusher=pusher,
        )
        return await self.emit("push", body, repository, pusher)

    def _commits(
        self,
        repository: Repository,
        author: Account,
        parent: str,
        messages: Sequence[str],
        changes: Mapping[str, bytes],
    ) -> list[GitCommit]:
        """A row of commits; the last one carries the changes."""
        new_commits: list[GitCommit] = []
        for remaining, message in zip(reversed(range(len(messages))), messages, strict=True):
            content = {} if remaining else changes
            new_commits.append(self.world.commit(repository, message, author, parent=parent, changes=content))
            parent = new_commits[-1].sha
        return new_commits

    async def ping(self) -> WebhookDelivery:
        at = stamp(self.clock.now())
        body = webhooks.ping(self.webhooks.hook_id, self.app_id, self.webhook_url or "", at)
        return await self.webhooks.emit("ping", body)

    async def install(self, full_name: str) -> WebhookDelivery:
        """Put the App on a repository: a new installation, or one more repository of the account's."""
        repository = self.repository(full_name)
        installation, new = self._installation_for(repository.owner)
        installation.repository_ids.add(repository.id)
        if new:
            return await self._emit_installation(installation, "created")
        return await self._emit_repositories(installation, "added", repository)

    async def uninstall(self, full_name: str, *, whole_account: bool = False) -> WebhookDelivery:
        """Take the App off a repository; with the last one, or `whole_account`, the installation ends."""
        repository = self.repository(full_name)
        installation = self.installation(full_name)
        if whole_account or installation.repository_ids == {repository.id}:
            del self.world.installations[installation.id]
            return await self._emit_installation(installation, "deleted")
        installation.repository_ids.discard(repository.id)
        return await self._emit_repositories(installation, "removed", repository)

    async def suspend_installation(self, full_name: str) -> WebhookDelivery:
        installation = self.installation(full_name)
        installation.suspended_at = self.clock.now()
        return await self._emit_installation(installation, "suspend")

    async def unsuspend_installation(self, full_name: str) -> WebhookDelivery:
        installation = self.installation(full_name)
        installation.suspended_at = None
        return await self._emit_installation(installation, "unsuspend")

    async def change_permissions(self, full_name: str, **rights: str | None) -> WebhookDelivery:
        """The account accepts other permissions of the App; None removes one."""
        installation = self.installation(full_name)
        installation.permissions.update({name: right for name, right in rights.items() if right is not None})
        for name in (name for name, right in rights.items() if right is None):
            installation.permissions.pop(name, None)
        return await self._emit_installation(installation, "new_permissions_accepted")

    def installation(self, full_name: str) -> Installation:
        installation = self.world.installation_of(self.repository(full_name))
        if installation is None:
            raise LookupError(f"the App is not installed on {full_name}")
        return installation

    def spend_hour(self, full_name: str, *, leave: int) -> None:
        """Have all but `leave` calls of the hour used up, on the installation that the repository belongs to."""
        subject = ("installation", self.installation(full_name).id)
        self.rate_limiter.spend_hour(subject, self.clock.now(), leave=leave)

    def hour_left(self, full_name: str) -> int:
        """Return how many calls the repository's installation may still make in this hour."""
        subject = ("installation", self.installation(full_name).id)
        return int(self.rate_limiter.headers(subject, self.clock.now())["x-ratelimit-remaining"])

    async def rename_repository(self, full_name: str, name: str) -> WebhookDelivery | None:
        repository = self.repository(full_name)
        changes: Json = {"repository": {"name": {"from": repository.name}}}
        self.world.move_repository(repository, repository.owner, name)
        body = webhooks.repository_event(self.base_url, repository, "renamed", changes)
        return await self.emit("repository", body, repository, repository.owner)

    async def set_default_branch(self, full_name: str, branch: str) -> WebhookDelivery | None:
        """Another branch, made from the present one where it is new, becomes the default."""
        repository = self.repository(full_name)
        changes: Json = {"default_branch": {"from": repository.default_branch}}
        repository.branches.setdefault(branch, repository.head_sha)
        repository.default_branch, repository.updated_at = branch, self.clock.now()
        body = webhooks.repository_event(self.base_url, repository, "edited", changes)
        return await self.emit("repository", body, repository, repository.owner)

    async def transfer_repository(
        self, full_name: str, owner: str, *, keep_installed: bool = True
    ) -> WebhookDelivery | None:
        """The repository moves to another account; its id stays, its owner's id and installation change."""
        repository = self.repository(full_name)
        former = webhooks.organization(self.base_url, repository.owner)
        installation = self.world.installation_of(repository)
        self.world.move_repository(repository, self.world.account(owner, "Organization"), repository.name)
        if installation is not None:
            installation.repository_ids.discard(repository.id)
            if keep_installed:
                self._installation_for(repository.owner)[0].repository_ids.add(repository.id)
        changes: Json = {"owner": {"from": former}}
        body = webhooks.repository_event(self.base_url, repository, "transferred", changes)
        return await self.emit("repository", body, repository, repository.owner)

    def replace_repository(self, full_name: str) -> Repository:
        """Somebody deletes the repository and takes its name for a new one: same name, another id."""
        former = self.repository(full_name)
        installation = self.world.installation_of(former)
        if installation is not None:
            installation.repository_ids.discard(former.id)
        self.world.forget_repository(former)
        return self.create_repository(
            full_name, installed=installation is not None, workflows=former.workflows
        )

    def _installation_for(self, account: Account) -> tuple[Installation, bool]:
        existing = self.world.installation_for(account)
        if existing is not None:
            return existing, False
        now = self.clock.now()
        number = self.world.next_id("installation")
        installation = Installation(
            number, account, dict(self.app_permissions), now, now, events=self.app_events
        )
        self.world.installations[installation.id] = installation
        return installation, True

    async def _emit_installation(self, installation: Installation, action: str) -> WebhookDelivery:
        installation.updated_at = self.clock.now()
        body = webhooks.installation(self.base_url, self.app_id, installation, action, self.world)
        full = webhooks.from_app(self.base_url, body, installation, installation.account)
        return await self.webhooks.emit("installation", full, installation_id=installation.id)

    async def _emit_repositories(
        self, installation: Installation, action: str, repository: Repository
    ) -> WebhookDelivery:
        installation.updated_at = self.clock.now()
        body = webhooks.installation_repositories(
            self.base_url, self.app_id, installation, action, [repository]
        )
        full = webhooks.from_app(self.base_url, body, installation, installation.account)
        return await self.webhooks.emit("installation_repositories", full, installation_id=installation.id)
