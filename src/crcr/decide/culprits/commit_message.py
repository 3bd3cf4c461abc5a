"""What a commit's message says about its origin: the pull request that it merges, and the commit that it reverts.

GitHub ends the title of a squash merge, and of a commit of its merge queue, with ` (#123)`; merge bots do the same. The title
of a merge commit begins with `Merge pull request #123 from`. Messages are free text: a number is a claim, which the pull
request's own `merge_commit_sha` overrules where it is recorded.
"""

import re
from dataclasses import dataclass

MOST_TITLE_CHARACTERS = 200
_MOST_READ = 20_000
_NUMBER = r"#([1-9][0-9]{0,8})"
_SQUASHED = re.compile(rf"\({_NUMBER}\)$")
_MERGED = re.compile(rf"Merge pull request {_NUMBER} from ")
_REVERTED = re.compile(r"^This reverts commit ([0-9a-f]{40}(?:[0-9a-f]{24})?)\b", re.MULTILINE)
_NAMED = re.compile(rf"{_NUMBER}\b")
_REVERTED_TITLE = re.compile(r'(?:Back out|Revert):? "')


@dataclass(frozen=True, slots=True)
class CommitOrigin:
    title: str
    """The first line, cut."""
    number: int | None = None
    """The pull request that the commit merges."""
    reverts: str | None = None
    """The commit that it reverts."""


def read_origin(message: str) -> CommitOrigin:
    lines = message[:_MOST_READ].strip().split("\n", 1)
    title = lines[0].rstrip()
    found = _MERGED.match(title) or _SQUASHED.search(title)
    reverted = _REVERTED.search(lines[1]) if len(lines) > 1 else None
    return CommitOrigin(
        title[:MOST_TITLE_CHARACTERS],
        int(found[1]) if found else None,
        reverted[1] if reverted else None,
    )


def named_pulls(title: str) -> frozenset[int]:
    """The pull requests that a title names anywhere, such as the one that `Reland "Fuse it (#12)" (#34)` lands again."""
    return frozenset(int(number) for number in _NAMED.findall(title))


def is_revert(title: str) -> bool:
    return _REVERTED_TITLE.match(title) is not None
