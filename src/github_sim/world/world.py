"""The simulated GitHub's data: one `World` with all records, found by immutable ids.

Names are an index that changes on rename and transfer; former names keep pointing at the id, as redirects do. Ids and
hashes come from one seeded generator, so a seed repeats a world.
"""

import random
from collections.abc import Iterator
from datetime import datetime

from github_sim.clock import SimulatorClock
from github_sim.world.actions import WorkflowRun
from github_sim.world.git_content import Changes, Tree, apply_changes, diff_trees
from github_sim.world.records import (
    Account,
    CheckRun,
    Comment,
    GitCommit,
    Installation,
    InstallationToken,
    Issue,
    MergeGroup,
    PullRequest,
    Repository,
    RepositoryDispatch,
    WebhookDelivery,
)

FIRST_IDS = {
    "account": 41_000_000,
    "repository": 702_000_000,
    "installation": 58_000_000,
    "pull_request": 2_310_000_000,
    "review": 1_420_000_000,
    "comment": 3_120_000_000,
    "issue": 2_720_000_000,
    "reaction": 290_000_000,
    "check_run": 48_100_000_000,
    "status": 31_500_000_000,
    "run": 17_200_000_000,
    "workflow": 120_000_000,
    "delivery": 190_400_000_000,
}


class World:
    def __init__(self, clock: SimulatorClock, rng: random.Random) -> None:
        self.clock = clock
        self.rng = rng
        # For a repository's own CI: the rest of a world is the same with it and without.
        self.ci_rng = random.Random(rng.getstate()[1][0])
        self.accounts: dict[str, Account] = {}
        self.repositories: dict[int, Repository] = {}
        self.installations: dict[int, Installation] = {}
        self.tokens: dict[str, InstallationToken] = {}
        self.pulls: dict[tuple[int, int], PullRequest] = {}
        self.issues: dict[tuple[int, int], Issue] = {}
        self.comments: dict[int, Comment] = {}
        self.queue: list[MergeGroup] = []
        self.check_runs: dict[int, CheckRun] = {}
        # Check runs of other Apps, such as those of a repository's own workflows.
        self.ci_checks: dict[int, CheckRun] = {}
        self.runs: dict[int, WorkflowRun] = {}
        self.deliveries: list[WebhookDelivery] = []
        self.dispatches: list[RepositoryDispatch] = []
        self._names: dict[str, int] = {}
        self._former_names: dict[str, int] = {}
        self._workflow_ids: dict[tuple[int, str], int] = {}
        self._last_ids = dict(FIRST_IDS)

    def now(self) -> datetime:
        return self.clock.now()

    def next_id(self, kind: str, rng: random.Random | None = None) -> int:
        self._last_ids[kind] += (rng or self.rng).randint(1, 97)
        return self._last_ids[kind]

    def new_sha(self) -> str:
        return f"{self.rng.getrandbits(160):040x}"

    def workflow_id(self, repository_id: int, path: str) -> int:
        key = (repository_id, path)
        if key not in self._workflow_ids:
            self._workflow_ids[key] = self.next_id("workflow")
        return self._workflow_ids[key]

    def account(self, login: str, kind: str | None = None) -> Account:
        key = login.lower()
        if key not in self.accounts:
            kind = kind or ("Bot" if key.endswith("[bot]") else "User")
            self.accounts[key] = Account(self.next_id("account"), login, kind)
        return self.accounts[key]

    def add_repository(self, repository: Repository) -> None:
        self.repositories[repository.id] = repository
        self._names[repository.full_name.lower()] = repository.id

    def forget_repository(self, repository: Repository) -> None:
        self._names.pop(repository.full_name.lower(), None)
        del self.repositories[repository.id]

    def move_repository(self, repository: Repository, owner: Account, name: str) -> None:
        former = repository.full_name.lower()
        self._former_names[former] = self._names.pop(former)
        repository.owner, repository.name = owner, name
        repository.updated_at = self.now()
        self._names[repository.full_name.lower()] = repository.id
        self._former_names.pop(repository.full_name.lower(), None)

    def find(self, full_name: str) -> Repository | None:
        found = self._names.get(full_name.lower())
        return None if found is None else self.repositories[found]

    def find_former(self, full_name: str) -> Repository | None:
        found = self._former_names.get(full_name.lower())
        return None if found is None else self.repositories.get(found)

    def repository(self, full_name: str) -> Repository:
        found = self.find(full_name)
        if found is None:
            raise LookupError(f"the simulator has no repository {full_name!r}")
        return found

    def installation_of(self, repository: Repository) -> Installation | None:
        for installation in self.installations.values():
            if repository.id in installation.repository_ids:
                return installation
        return None

    def installation_for(self, account: Account) -> Installation | None:
        for installation in self.installations.values():
            if installation.account is account:
                return installation
        return None

    def commit(
        self,
        repository: Repository,
        message: str,
        author: Account,
        *,
        parent: str | None,
        merged: str | None = None,
        changes: Changes | None = None,
    ) -> GitCommit:
        """Add a commit on top of `parent` (and of `merged`, a second one); no branch moves."""
        before = repository.commits[parent].tree if parent else {}
        changed = dict(changes or {})
        made = GitCommit(
            sha=self.new_sha(),
            message=message,
            author=author,
            committed_at=self.now(),
            parents=tuple(sha for sha in (parent, merged) if sha),
            tree=apply_changes(before, changed),
            added=tuple(path for path, new in changed.items() if new is not None and path not in before),
            modified=tuple(path for path, new in changed.items() if new is not None and path in before),
            removed=tuple(path for path, new in changed.items() if new is None and path in before),
        )
        repository.commits[made.sha] = made
        return made

    def resolve(self, repository: Repository, ref: str) -> GitCommit | None:
        """A branch name, a full ref or a commit hash, as GitHub's `ref` parameters take them."""
        name = ref.removeprefix("refs/heads/").removeprefix("heads/")
        sha = repository.branches.get(name) or repository.branches.get(ref) or ref
        return repository.commits.get(sha)

    def comments_on(self, pull: PullRequest) -> list[Comment]:
        pull_key = (pull.repository_id, pull.number)
        return [
            comment
            for comment in self.comments.values()
            if (comment.repository_id, comment.number) == pull_key
        ]

    def checks_on(self, repository: Repository, sha: str) -> list[CheckRun]:
        """The check runs of the App under test on a commit."""
        return _on_commit(self.check_runs, repository, sha)

    def ci_checks_on(self, repository: Repository, sha: str) -> list[CheckRun]:
        """The check runs of other Apps on a commit."""
        return _on_commit(self.ci_checks, repository, sha)

    def runs_of(self, repository: Repository) -> Iterator[WorkflowRun]:
        return (run for run in self.runs.values() if run.repository_id == repository.id)


def _on_commit(checks: dict[int, CheckRun], repository: Repository, sha: str) -> list[CheckRun]:
    found = (check for check in checks.values() if check.head_sha == sha)
    return [check for check in found if check.repository_id == repository.id]


def ancestors(repository: Repository, sha: str) -> list[str]:
    """Return the commit and all its ancestors, newest first."""
    seen: dict[str, None] = {}
    waiting = [sha]
    while waiting:
        current = waiting.pop(0)
        if current in seen or current not in repository.commits:
            continue
        seen[current] = None
        waiting.extend(repository.commits[current].parents)
    return list(seen)


def merge_base(repository: Repository, one: str, other: str) -> str | None:
    """Return the newest common ancestor."""
    below = set(ancestors(repository, one))
    return next((sha for sha in ancestors(repository, other) if sha in below), None)


def pull_changes(repository: Repository, pull: PullRequest) -> tuple[Tree, Changes]:
    """The tree that a pull request started from, and what it changed there."""
    common = merge_base(repository, pull.base_sha, pull.head_sha) or pull.base_sha
    started = repository.commits[common].tree
    return started, diff_trees(started, repository.commits[pull.head_sha].tree)
