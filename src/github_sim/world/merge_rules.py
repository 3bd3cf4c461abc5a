"""Whether a commit passes the required checks of a branch: the newest check of each required name decides, as on GitHub.

`blocked_by` names what is missing: `crcr/gate: expected`, `pending` or `failure`.
"""

from dataclasses import dataclass

from github_sim.rest.checks import latest_by_name
from github_sim.world.records import PullRequest, Repository
from github_sim.world.world import World

PASSING = frozenset({"success", "neutral", "skipped"})


@dataclass(frozen=True)
class MergeState:
    mergeable: bool
    blocked_by: tuple[str, ...] = ()


class MergeBlocked(Exception):
    """GitHub does not let the pull request in."""

    def __init__(self, reasons: tuple[str, ...]) -> None:
        super().__init__("; ".join(reasons))
        self.reasons = reasons


def required_checks(repository: Repository, base_ref: str) -> tuple[str, ...]:
    """The ruleset guards the default branch only."""
    return repository.required_checks if base_ref == repository.default_branch else ()


def blocked_by(world: World, repository: Repository, sha: str, base_ref: str) -> tuple[str, ...]:
    on_commit = latest_by_name(world.checks_on(repository, sha))
    states: list[tuple[str, str]] = []
    for name in required_checks(repository, base_ref):
        check = on_commit.get(name)
        if check is None:
            states.append((name, "expected"))
        elif check.status != "completed":
            states.append((name, "pending"))
        elif check.conclusion not in PASSING:
            states.append((name, "failure"))
    return tuple(f"{name}: {state}" for name, state in states)


def merge_state(world: World, pull: PullRequest) -> MergeState:
    repository = world.repositories[pull.repository_id]
    if pull.state != "open":
        return MergeState(mergeable=False, blocked_by=("merged" if pull.merged else "closed",))
    draft = ("draft",) if pull.draft else ()
    reasons = draft + blocked_by(world, repository, pull.head_sha, pull.base_ref)
    return MergeState(mergeable=not reasons, blocked_by=reasons)
