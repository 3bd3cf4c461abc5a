"""Which pull request each commit of the base came from.

A squash merge is one commit that names its pull request. A rebase merge, or a merge with a merge commit, pushes all commits of
the pull request, and only the last one is known to belong to it: the others of the same push belong to the next commit of a
merge. Commits of a merge queue name their pull requests each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

_MERGE = "Merge pull request #"


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseCommit:
    """A commit of the base branch as its push described it."""

    sha: str
    position: int
    pushed_on: str | None = None
    """The commit that its push started from: the same for all commits of a push."""
    title: str = ""
    number: int | None = None
    """Its pull request, by its message."""
    reverts: str | None = None
    """The commit that it reverts."""
    paths: tuple[str, ...] = ()
    """Files that it touches, at most as many as are recorded."""
    path_count: int | None = None
    """How many files it touches; None where its push does not say so."""

    @property
    def has_all_paths(self) -> bool:
        return self.path_count is not None and self.path_count == len(self.paths)


def assign_pulls(commits: Iterable[BaseCommit], merged_as: Mapping[str, int]) -> tuple[BaseCommit, ...]:
    """Return the commits in their order, each with its pull request; `merged_as` names those of recorded merge commits."""
    assigned: list[BaseCommit] = []
    merge: BaseCommit | None = None
    for commit in sorted(commits, key=lambda commit: commit.position, reverse=True):
        number = merged_as.get(commit.sha, commit.number)
        if number is not None:
            is_merge = commit.sha in merged_as or commit.title.startswith(_MERGE)
            merge = replace(commit, number=number) if is_merge else None
        elif merge is not None and commit.pushed_on is not None and merge.pushed_on == commit.pushed_on:
            number = merge.number
        assigned.append(replace(commit, number=number))
    return tuple(reversed(assigned))


def group_by_pull(commits: Sequence[BaseCommit]) -> list[tuple[BaseCommit, ...]]:
    """The commits of each change, oldest first: those of one pull request together, every other commit by itself."""
    changes: dict[int | str, list[BaseCommit]] = {}
    for commit in commits:
        changes.setdefault(commit.number if commit.number is not None else commit.sha, []).append(commit)
    return [tuple(change) for change in changes.values()]
