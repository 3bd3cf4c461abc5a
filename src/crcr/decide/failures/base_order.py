"""The order of a branch's commits, by its pushes.

Each push names the commit that it started from, so pushes form a chain, and webhooks may arrive in any order. Where one was
missed the chain has a gap: its parts are then in the order in which the first push of each arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Push:
    before: str
    """The commit that it started from."""
    commits: tuple[str, ...]
    """Oldest first, at least one."""


def order_pushes(arrived: Sequence[Push]) -> tuple[Push, ...]:
    """Return the pushes, given in their order of arrival, in the order of the branch."""
    following: dict[str, list[Push]] = {}
    for push in arrived:
        following.setdefault(push.before, []).append(push)
    ends = {push.commits[-1] for push in arrived}
    # A branch that was set back to an earlier commit can make a ring: then the first push to arrive begins it.
    starts = [push for push in arrived if push.before not in ends] or list(arrived[:1])
    ordered: dict[int, Push] = {}
    for start in (*starts, *arrived):
        chain: Push | None = start if id(start) not in ordered else None
        while chain is not None:
            ordered[id(chain)] = chain
            followers = following.get(chain.commits[-1], ())
            chain = next((push for push in followers if id(push) not in ordered), None)
    return tuple(ordered.values())
