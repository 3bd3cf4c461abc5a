"""Driver methods of pull requests, their comments, and issues: open, push, close, reopen, label, draft, edit, comment.

Each method changes the record, sends the webhook, and keeps the delivery with its answer in `last_delivery`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from github_sim.bodies import webhooks
from github_sim.simulation import Simulation
from github_sim.webhooks import comments
from github_sim.world.git_content import diff_trees
from github_sim.world.records import (
    Comment,
    GitCommit,
    Issue,
    Json,
    PullRequest,
    Repository,
    Review,
    association_by_role,
)
from github_sim.world.world import merge_base, pull_changes

# Paths alone get some content; a mapping says which, and None removes the file.
Files = Sequence[str] | Mapping[str, str | bytes | None]


class PullRequestDriver(Simulation):
    async def open_pr(
        self,
        full_name: str,
        *,
        title: str = "Fix a kernel",
        body: str | None = "What and why.",
        author: str = "contributor",
        author_association: str = "CONTRIBUTOR",
        draft: bool = False,
        labels: Sequence[str] = (),
        head: str | None = None,
        base: str | None = None,
        fork: bool = False,
        files: Files = ("src/kernel.py",),
        before_webhook: Callable[[PullRequest], None] = lambda _pull: None,
    ) -> PullRequest:
        """Open a pull request; `before_webhook` sees it before the webhook leaves."""
        repository = self.world.repository(full_name)
        base_ref = base or repository.default_branch
        source = self._find_or_create_fork(repository, author) if fork else repository
        head_ref = head or f"change-{repository.next_number}"
        base_sha = source.branches[head_ref] = repository.branches[base_ref]
        now = self.clock.now()
        pull = PullRequest(
            id=self.world.next_id("pull_request"),
            number=repository.next_number,
            repository_id=repository.id,
            title=title,
            body=body,
            author=self.world.account(author),
            author_association=author_association,
            head_repository_id=source.id,
            head_ref=head_ref,
            head_sha=base_sha,
            base_ref=base_ref,
            base_sha=base_sha,
            created_at=now,
            updated_at=now,
            draft=draft,
            labels=list(labels),
        )
        repository.next_number += 1
        self._commit(pull, title, files)
        self.world.pulls[(repository.id, pull.number)] = pull
        before_webhook(pull)
        return await self.send_pull_webhook(pull, "opened")

    def _find_or_create_fork(self, repository: Repository, author: str) -> Repository:
        """The author's fork; it shares the commits, as forks do on GitHub."""
        existing = self.world.find(f"{author}/{repository.name}")
        if existing is not None:
            return existing
        fork = replace(
            repository,
            id=self.world.next_id("repository"),
            owner=self.world.account(author),
            parent_id=repository.id,
            branches=dict(repository.branches),
            workflows=[],
            roles={},
            required_checks=(),
        )
        self.world.add_repository(fork)
        return fork

    async def push_to_pr(
        self,
        pull: PullRequest,
        *,
        message: str = "Address review",
        files: Files | None = None,
        before_webhook: Callable[[PullRequest], None] = lambda _pull: None,
    ) -> PullRequest:
        """One more commit; without `files` it changes those that the pull request has.

        `before_webhook` sees the new head before the webhook leaves.
        """
        before = pull.head_sha
        present = self.world.repositories[pull.repository_id].commits[before].tree
        touched = [path for path in pull.files if path in present]
        self._commit(pull, message, touched if files is None else files)
        before_webhook(pull)
        return await self.send_pull_webhook(pull, "synchronize", {"before": before, "after": pull.head_sha})

    async def force_push_to_pr(
        self, pull: PullRequest, *, message: str = "Start again", files: Files = ("src/kernel.py",)
    ) -> PullRequest:
        """One commit on the base in place of all that the pull request had."""
        before = pull.head_sha
        pull.head_sha, pull.commits = pull.base_sha, 0
        self._commit(pull, f"{message} after {before[:7]}", files)
        return await self.send_pull_webhook(pull, "synchronize", {"before": before, "after": pull.head_sha})

    def review_pr(self, pull: PullRequest, *, author: str, state: str = "APPROVED") -> Review:
        """Somebody reviews the present head; the App under test has not subscribed to reviews."""
        account = self.world.account(author)
        if account is pull.author and state == "APPROVED":
            raise ValueError("nobody can approve their own pull request")
        review = Review(self.world.next_id("review"), account, state, pull.head_sha, self.clock.now())
        pull.reviews.append(review)
        return review

    def _commit(self, pull: PullRequest, message: str, files: Files) -> None:
        """One more commit on the pull request's branch."""
        repository = self.world.repositories[pull.repository_id]
        pull.commits += 1
        changes = _changes(files, f"change {pull.number}.{pull.commits}".encode())
        tip = self.world.commit(repository, message, pull.author, parent=pull.head_sha, changes=changes)
        self.world.repositories[pull.head_repository_id].branches[pull.head_ref] = tip.sha
        pull.head_sha = tip.sha
        pull.files = tuple(pull_changes(repository, pull)[1])

    async def close_pr(self, pull: PullRequest, *, merged: bool = False) -> PullRequest:
        """Close or merge. Merging moves the base branch; the push event of it is a separate act."""
        if merged:
            repository = self.world.repositories[pull.repository_id]
            message = f"{pull.title} (#{pull.number})"
            commit = self.merge_commit(pull, message, onto=repository.branches[pull.base_ref], squash=True)
            return await self._close_as_merged(pull, commit)
        pull.state, pull.closed_at = "closed", self.clock.now()
        return await self.send_pull_webhook(pull, "closed")

    def merge_commit(self, pull: PullRequest, message: str, *, onto: str, squash: bool = False) -> GitCommit:
        """What the pull request changed since it branched off, on top of `onto`; no branch moves."""
        repository = self.world.repositories[pull.repository_id]
        common = merge_base(repository, onto, pull.head_sha) or pull.base_sha
        changes = diff_trees(repository.commits[common].tree, repository.commits[pull.head_sha].tree)
        second = None if squash else pull.head_sha
        return self.world.commit(
            repository, message, pull.author, parent=onto, merged=second, changes=changes
        )

    async def _close_as_merged(self, pull: PullRequest, commit: GitCommit) -> PullRequest:
        """The base branch moves to the commit, and the pull request is closed as merged."""
        pull.state, pull.merged, pull.closed_at = "closed", True, self.clock.now()
        repository = self.world.repositories[pull.repository_id]
        repository.branches[pull.base_ref] = pull.merge_commit_sha = commit.sha
        return await self.send_pull_webhook(pull, "closed")

    async def reopen_pr(self, pull: PullRequest) -> PullRequest:
        pull.state, pull.closed_at = "open", None
        return await self.send_pull_webhook(pull, "reopened")

    async def label_pr(self, pull: PullRequest, name: str) -> PullRequest:
        if name not in pull.labels:
            pull.labels.append(name)
        return await self.send_pull_webhook(pull, "labeled", self._label(pull, name))

    async def unlabel_pr(self, pull: PullRequest, name: str) -> PullRequest:
        pull.labels.remove(name)
        return await self.send_pull_webhook(pull, "unlabeled", self._label(pull, name))

    async def ready_for_review(self, pull: PullRequest) -> PullRequest:
        pull.draft = False
        return await self.send_pull_webhook(pull, "ready_for_review")

    async def convert_to_draft(self, pull: PullRequest) -> PullRequest:
        pull.draft = True
        return await self.send_pull_webhook(pull, "converted_to_draft")

    async def edit_pr(
        self, pull: PullRequest, *, title: str | None = None, body: str | None = None, base: str | None = None
    ) -> PullRequest:
        changes: Json = {}
        if title is not None:
            changes["title"], pull.title = {"from": pull.title}, title
        if body is not None:
            changes["body"], pull.body = {"from": pull.body}, body
        if base is not None:
            changes["base"] = {"ref": {"from": pull.base_ref}, "sha": {"from": pull.base_sha}}
            repository = self.world.repositories[pull.repository_id]
            pull.base_ref, pull.base_sha = base, repository.branches[base]
            pull.files = tuple(pull_changes(repository, pull)[1])
        return await self.send_pull_webhook(pull, "edited", {"changes": changes})

    def _label(self, pull: PullRequest, name: str) -> Json:
        return webhooks.label(self.base_url, self.world.repositories[pull.repository_id], name)

    async def send_pull_webhook(
        self, pull: PullRequest, action: str, more: Json | None = None
    ) -> PullRequest:
        pull.updated_at = self.clock.now()
        repository = self.world.repositories[pull.repository_id]
        body = webhooks.pull_request(self.base_url, self.world, pull, action, more)
        pull.last_delivery = await self.emit("pull_request", body, repository, pull.author)
        return pull


def _changes(files: Files, content: bytes) -> dict[str, bytes | None]:
    if not isinstance(files, Mapping):
        return dict.fromkeys(files, content)
    return {path: new.encode() if isinstance(new, str) else new for path, new in files.items()}


class IssueDriver(Simulation):
    async def open_issue(
        self, full_name: str, *, title: str = "A kernel is missing", author: str = "maintainer"
    ) -> Issue:
        repository = self.world.repository(full_name)
        return await comments.open_issue(self, repository, title, self.world.account(author))

    async def close_issue(self, issue: Issue) -> Issue:
        issue.state, issue.closed_at = "closed", self.clock.now()
        return await comments.send_issue_webhook(self, issue, "closed")

    def issues(self, full_name: str) -> list[Issue]:
        """The issues of a repository that are no pull requests, oldest first."""
        repository = self.world.repository(full_name)
        return [issue for (owner, _), issue in sorted(self.world.issues.items()) if owner == repository.id]

    def issue_url(self, issue: Issue) -> str:
        """Its address on the web."""
        repository = self.world.repositories[issue.repository_id]
        return f"{self.base_url}/{repository.full_name}/issues/{issue.number}"


class CommentDriver(Simulation):
    def comments(self, pull: PullRequest) -> list[Comment]:
        """Return the comments of a pull request, oldest first; each with its `reactions`."""
        return self.world.comments_on(pull)

    async def comment_pr(
        self,
        pull: PullRequest,
        body: str,
        *,
        author: str = "maintainer",
        author_type: str = "User",
        author_association: str | None = None,
    ) -> Comment:
        """Somebody comments; the association comes from the author's role unless it is given."""
        account = self.world.account(author, author_type)
        if author_type != "User":
            account.type = author_type
        repository = self.world.repositories[pull.repository_id]
        own = pull.author_association if account is pull.author else association_by_role(repository, account)
        return await comments.write(self, pull, body, account, author_association or own, by_app=False)

    async def edit_comment(self, comment: Comment, body: str) -> Comment:
        await comments.edit(self, comment, body)
        return comment

    async def delete_comment(self, comment: Comment) -> Comment:
        await comments.delete(self, comment)
        return comment
