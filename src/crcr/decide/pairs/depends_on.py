"""`Depends-On` lines of a pull request's text, and the pull requests that they name.

    Depends-On: owner/repo#12
    Depends-On: https://github.com/owner/repo/pull/12, owner/other#3

A line may be an item of a list, and end with a full stop. It counts where a reader sees it as text: not in code, quotes or
comments (`comment_lines`). Anybody may open a pull request, so the cost is linear in the text and the number of references is capped.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from crcr.decide.commands.comment_lines import visible_lines
from crcr.decide.model import RepoName, is_repo_name

MOST_DEPENDENCIES = 5
MOST_RECORDED = 10
"""References that are recorded; those after the first `MOST_DEPENDENCIES` are shown as too many."""

_WORD = "depends-on:"
_LINE = re.compile(r" {0,3}(?:[-*+] )?depends-on:(?P<rest>.*)", re.IGNORECASE | re.DOTALL)
_SEPARATORS = re.compile(r"[\s,;]+")
_SHORT = re.compile(r"(?P<name>[^\s#/]+/[^\s#/]+)#(?P<number>[1-9][0-9]{0,8})")
_LINK = re.compile(
    r"(?P<site>https?://[A-Za-z0-9.:-]{1,255})/(?P<name>[^\s#?/]+/[^\s#?/]+)/pull/(?P<number>[1-9][0-9]{0,8})(?:[/?#]\S*)?",
    re.IGNORECASE,
)
_MOST_REFERENCE = 600


@dataclass(frozen=True, slots=True)
class PullReference:
    """A pull request by its repository and number; `site` is the address of GitHub in a link, lower case."""

    repository: RepoName
    number: int
    site: str | None = None

    def __str__(self) -> str:
        return f"{self.repository}#{self.number}"

    @property
    def key(self) -> tuple[str, int]:
        return self.repository.key, self.number


def parse_reference(text: str) -> PullReference | None:
    """Read `owner/repo#12` or the address of a pull request."""
    if len(text) > _MOST_REFERENCE:
        return None
    found = _SHORT.fullmatch(text) or _LINK.fullmatch(text)
    if found is None or not is_repo_name(found["name"]):
        return None
    site = found.groupdict().get("site")
    return PullReference(RepoName(found["name"]), int(found["number"]), site.lower() if site else None)


def find_dependencies(body: str, github_url: str | None = None) -> tuple[PullReference, ...]:
    """Return the pull requests that the text depends on, each once, at most `MOST_RECORDED`.

    With `github_url`, a link to another site names nothing here.
    """
    found: dict[tuple[str, int], PullReference] = {}
    for reference in _references(body):
        if is_on_site(reference, github_url):
            found.setdefault(reference.key, reference)
        if len(found) == MOST_RECORDED:
            break
    return tuple(found.values())


def is_on_site(reference: PullReference, github_url: str | None) -> bool:
    return None in (reference.site, github_url) or reference.site == (github_url or "").rstrip("/").lower()


def _references(body: str) -> Iterator[PullReference]:
    """Yield the references of each line up to its first word that is none."""
    for line in visible_lines(body, _WORD):
        named = _LINE.fullmatch(line)
        # Twice as many words as count: the same reference may be repeated.
        for word in islice(_SEPARATORS.split(named["rest"].strip()), 2 * MOST_RECORDED) if named else ():
            reference = parse_reference(word.removesuffix("."))
            if reference is None:
                break
            yield reference


def find_cycle(
    start: PullReference, dependencies: Mapping[tuple[str, int], tuple[PullReference, ...]]
) -> tuple[PullReference, ...]:
    """Return the pull requests of a cycle that is reached from `start`, in their order; empty where there is none.

    `dependencies` has those of each pull request that was read; one that was not read ends its path.
    """
    path: list[PullReference] = [start]
    left = [iter(dependencies.get(start.key, ()))]
    finished: set[tuple[str, int]] = set()
    while left:
        following = next(left[-1], None)
        if following is None:
            left.pop()
            finished.add(path.pop().key)
            continue
        keys = [reference.key for reference in path]
        if following.key in keys:
            return tuple(path[keys.index(following.key) :])
        if following.key not in finished:
            path.append(following)
            left.append(iter(dependencies.get(following.key, ())))
    return ()
