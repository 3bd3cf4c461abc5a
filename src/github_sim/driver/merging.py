"""Driver methods of merging: required checks, the merge button, the merge queue.

A merge group is a commit on top of the base branch or of the group ahead of it. When a group leaves the queue without
being merged, the groups behind it are created again without it, as on GitHub.
"""

from collections.abc import Sequence

from github_sim.bodies import webhooks
from github_sim.driver.pull_requests import PullRequestDriver
from github_sim.world import merge_rules
from github_sim.world.merge_rules import MergeBlocked, MergeState
from github_sim.world.records import (
    NO_COMMIT,
    GitCommit,
    MergeGroup,
    PullRequest,
    Repository,
    WebhookDelivery,
)
from github_sim.world.world import ancestors

BRANCHES = "refs/heads/"


class MergeDriver(PullRequestDriver):
    # GitHub also pushes the queue's branches; a test that cares for those events turns them on.
    queue_pushes = False

    def require_checks(self, full_name: str, names: Sequence[str]) -> None:
        """A ruleset: these checks must pass before anything gets into the default branch."""
        self.world.repository(full_name).required_checks = tuple(names)

    def merge_state(self, pull: PullRequest) -> MergeState:
        return merge_rules.merge_state(self.world, pull)

    async def merge_pr(self, pull: PullRequest) -> PullRequest:
        """Somebody presses Merge."""
        state = self.merge_state(pull)
        if not state.mergeable:
            raise MergeBlocked(state.blocked_by)
        return await self.close_pr(pull, merged=True)

    def merge_queue(self, full_name: str, base: str | None = None) -> list[MergeGroup]:
        """The groups that wait for a branch, the first to be merged first."""
        repository = self.world.repository(full_name)
        branch_key = (repository.id, base or repository.default_branch)
        return [group for group in self.world.queue if (group.repository_id, group.base_ref) == branch_key]

    async def enqueue(self, pull: PullRequest) -> MergeGroup:
        """Somebody presses Merge when ready: a group for the pull request joins the queue."""
        if pull.state != "open" or pull.draft:
            raise MergeBlocked(merge_rules.merge_state(self.world, pull).blocked_by)
        if self._find_group(pull) is not None:
            raise MergeBlocked(("already queued",))
        return await self._create_group(pull)

    async def dequeue(self, group: MergeGroup) -> WebhookDelivery | None:
        """Somebody takes a pull request out of the queue."""
        return await self._remove_group(group, "dequeued")

    async def settle_queue(self, full_name: str, base: str | None = None) -> None:
        """Merge or drop groups by their required checks, from the front to the first that waits."""
        repository = self.world.repository(full_name)
        while waiting := self.merge_queue(full_name, base):
            if not await self._advance_group(repository, waiting[0]):
                return

    async def _advance_group(self, repository: Repository, group: MergeGroup) -> bool:
        """Bring the first group further; False when it has to wait."""
        pull = self.world.pulls[(group.repository_id, group.number)]
        if pull.state != "open" or pull.head_sha != group.pull_sha:
            await self._remove_group(group, "dequeued")
        elif group.base_sha != repository.branches[group.base_ref]:
            await self._recreate_groups([group, *self._groups_behind(group)])
        else:
            reasons = merge_rules.blocked_by(self.world, repository, group.head_sha, group.base_ref)
            if any(reason.endswith(": failure") for reason in reasons):
                await self._remove_group(group, "invalidated")
            elif reasons:
                return False
            else:
                await self._merge_group(repository, pull, group)
        return True

    async def _merge_group(self, repository: Repository, pull: PullRequest, group: MergeGroup) -> None:
        before, head = repository.branches[group.base_ref], repository.commits[group.head_sha]
        repository.branches[group.base_ref] = head.sha
        await self._destroy_group(group, "merged")
        await self._close_as_merged(pull, head)
        merged = set(ancestors(repository, before))
        gained = [sha for sha in reversed(ancestors(repository, head.sha)) if sha not in merged]
        commits = [repository.commits[sha] for sha in gained]
        await self._push(repository, f"{BRANCHES}{group.base_ref}", before, head.sha, commits)

    async def _remove_group(self, group: MergeGroup, reason: str) -> WebhookDelivery | None:
        behind = self._groups_behind(group)
        delivery = await self._destroy_group(group, reason)
        await self._recreate_groups(behind)
        return delivery

    def _groups_behind(self, group: MergeGroup) -> list[MergeGroup]:
        repository = self.world.repositories[group.repository_id]
        waiting = self.merge_queue(repository.full_name, group.base_ref)
        return waiting[waiting.index(group) + 1 :]

    async def _recreate_groups(self, groups: list[MergeGroup]) -> None:
        for group in groups:
            await self._destroy_group(group, "invalidated")
        for group in groups:
            await self._create_group(self.world.pulls[(group.repository_id, group.number)])

    async def _create_group(self, pull: PullRequest) -> MergeGroup:
        repository = self.world.repositories[pull.repository_id]
        ahead = self.merge_queue(repository.full_name, pull.base_ref)
        base = ahead[-1].head_sha if ahead else repository.branches[pull.base_ref]
        message = f"Merge pull request #{pull.number} from {pull.head_ref}\n\n{pull.title}"
        head = self.merge_commit(pull, message, onto=base)
        group = MergeGroup(
            repository_id=repository.id,
            number=pull.number,
            pull_sha=pull.head_sha,
            head_sha=head.sha,
            head_ref=f"{BRANCHES}gh-readonly-queue/{pull.base_ref}/pr-{pull.number}-{base}",
            base_sha=base,
            base_ref=pull.base_ref,
            created_at=self.clock.now(),
        )
        self.world.queue.append(group)
        repository.branches[group.head_ref.removeprefix(BRANCHES)] = head.sha
        if self.queue_pushes:
            await self._push(repository, group.head_ref, NO_COMMIT, head.sha, [head])
        await self._send_group_webhook(group, "checks_requested")
        return group

    async def _destroy_group(self, group: MergeGroup, reason: str) -> WebhookDelivery | None:
        """The group is gone with its branch; its commit stays, as nothing forgets commits."""
        self.world.queue.remove(group)
        group.state = reason
        repository = self.world.repositories[group.repository_id]
        repository.branches.pop(group.head_ref.removeprefix(BRANCHES), None)
        delivery = await self._send_group_webhook(group, "destroyed", reason)
        if self.queue_pushes:
            await self._push(repository, group.head_ref, group.head_sha, NO_COMMIT, [])
        return delivery

    async def merge_group(
        self, full_name: str, number: int, *, action: str = "checks_requested", reason: str = "dequeued"
    ) -> WebhookDelivery | None:
        """A pull request enters the merge queue (or `destroyed`: leaves it), whatever its checks say."""
        pull = self.world.pulls[(self.world.repository(full_name).id, number)]
        if action == "checks_requested":
            return (await self._create_group(pull)).last_delivery
        group = self._find_group(pull)
        if group is None:
            raise LookupError(f"pull request {number} is not in the merge queue")
        return await self._remove_group(group, reason)

    def _find_group(self, pull: PullRequest) -> MergeGroup | None:
        pull_key = (pull.repository_id, pull.number)
        return next(
            (group for group in self.world.queue if (group.repository_id, group.number) == pull_key), None
        )

    async def _send_group_webhook(
        self, group: MergeGroup, action: str, reason: str | None = None
    ) -> WebhookDelivery | None:
        repository = self.world.repositories[group.repository_id]
        head = repository.commits[group.head_sha]
        body = webhooks.merge_group(
            self.base_url,
            repository,
            action=action,
            head=head,
            head_ref=group.head_ref,
            base_ref=f"{BRANCHES}{group.base_ref}",
            reason=reason,
        )
        group.last_delivery = await self.emit("merge_group", body, repository, head.author)
        return group.last_delivery

    async def _push(
        self, repository: Repository, ref: str, before: str, after: str, commits: list[GitCommit]
    ) -> None:
        body = webhooks.push(
            self.base_url,
            repository,
            ref=ref,
            before=before,
            after=after,
            commits=commits,
            forced=False,
            pusher=repository.owner,
        )
        await self.emit("push", body, repository, repository.owner)
