"""Known failures: a maintainer links a group of failures to an issue on GitHub, until a time or until the issue is closed."""

import re
from dataclasses import dataclass
from datetime import timedelta

from crcr.decide.model import RepoName, is_repo_name

KNOWN_FOR = timedelta(days=30)
"""Where no time is given."""
LONGEST_KNOWN = timedelta(days=90)
READ_EVERY = timedelta(hours=1)
"""How often an issue's state is read from GitHub, where no webhook says that it was closed."""
MOST_URL_CHARACTERS = 300

_ISSUE = re.compile(
    r"(?P<site>https?://[^/\s?#@]+)/(?P<repository>[^/\s]+/[^/\s]+)/issues/(?P<number>[1-9][0-9]{0,8})"
)


@dataclass(frozen=True, slots=True)
class IssueReference:
    repository: RepoName
    number: int

    def url(self, github_url: str) -> str:
        return f"{github_url.rstrip('/')}/{self.repository}/issues/{self.number}"


def is_issue_url(text: str) -> bool:
    """Whether the text is the address of an issue, on whatever site."""
    return len(text) <= MOST_URL_CHARACTERS and _ISSUE.fullmatch(text) is not None


def parse_issue_url(text: str, github_url: str) -> IssueReference | None:
    """Return the issue of an address on this GitHub; None for anything else, such as a pull request's address."""
    match = _ISSUE.fullmatch(text) if len(text) <= MOST_URL_CHARACTERS else None
    if match is None or match["site"].lower() != github_url.rstrip("/").lower():
        return None
    if not is_repo_name(match["repository"]):
        return None
    return IssueReference(RepoName(match["repository"]), int(match["number"]))


def may_be_readable(issue: IssueReference, upstream: RepoName) -> bool:
    """Whether the App's installation on the upstream can include the issue's repository: it covers one owner only."""
    return issue.repository.key.partition("/")[0] == upstream.key.partition("/")[0]
