"""A merge group whose dispatches wait for what GitHub says of it, as both sides of the question know it."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

_QUEUE_REF = re.compile(r"refs/heads/gh-readonly-queue/.+/pr-([1-9][0-9]{0,8})-[0-9a-f]{40,64}")


@dataclass(frozen=True, slots=True)
class GroupToRead:
    delivery: str
    head_sha: str
    base_sha: str
    head_ref: str
    base_ref: str
    """The branch that it is to be merged into."""


def base_branch(base_ref: str) -> str:
    """A group's base as pull requests name theirs: merge groups have the full ref."""
    return base_ref.removeprefix("refs/heads/")


def queued_pull_number(head_ref: str) -> int | None:
    """The pull request that the queue made the group for, as its branch's name says."""
    named = _QUEUE_REF.fullmatch(head_ref)
    return int(named[1]) if named else None


def pulls_in_group(named: int | None, brought: Iterable[frozenset[int]]) -> tuple[int, ...]:
    """The pull requests of a group, from those that have brought each of its commits.

    None when nobody queued has brought one of them: it is of a pull request whose own group was not heard of, and
    which could ride into the base branch on the waiver of another.
    """
    brought = tuple(brought)
    if named is None or not all(brought):
        return ()
    return tuple(sorted({named}.union(*brought)))
