"""From what a commit's checks should be, and what was last published of them, to what is asked of GitHub.

Level-triggered: whatever was missed, repeated or reordered, the next look sets it right.
"""

from dataclasses import dataclass
from enum import StrEnum

from crcr.decide.checks.check_run import CheckContent, CheckStatus
from crcr.decide.checks.wanted_checks import Tier, WantedCheck
from crcr.decide.model import Conclusion


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCheck:
    """The newest check of a name that we know to be on the commit, or to be on its way."""

    tier: Tier
    incarnation: str
    is_open: bool
    digest: str
    awaited: bool = False
    conclusion: Conclusion | None = None
    """As far as it is known: a check whose answer was lost may be completed without one."""

    @property
    def lets_merge(self) -> bool:
        """Whether it is a gate that a merge may go by."""
        harmful = {Conclusion.FAILURE, Conclusion.CANCELLED}
        return self.tier is Tier.GATE and not self.is_open and self.conclusion not in harmful


class CheckAction(StrEnum):
    NOTHING = "nothing"
    CREATE = "create"
    UPDATE = "update"
    END = "end"
    REPLACE = "replace"
    """Create a check of the same name that is completed as ended."""


def next_action(
    published: PublishedCheck | None, wanted: WantedCheck | None, digest: str, *, abandoned: bool = False
) -> CheckAction:
    """What to do about one name. A completed check does not reopen: a new one of the same name takes its place.

    `abandoned` says that the commit has no subject any more and was not merged: its green gate must not serve the
    next pull request that has the commit as its head.
    """
    if wanted is None:
        if published is not None and published.is_open:
            return CheckAction.END
        return (
            CheckAction.REPLACE
            if abandoned and published is not None and published.lets_merge
            else CheckAction.NOTHING
        )
    if published is None:
        return CheckAction.CREATE
    opens = wanted.shown.status is not CheckStatus.COMPLETED
    if published.awaited and opens:
        return CheckAction.CREATE  # it only looked completed to us; to GitHub it is
    if not published.is_open and (opens or published.incarnation != wanted.incarnation):
        return CheckAction.CREATE
    return CheckAction.NOTHING if published.digest == digest else CheckAction.UPDATE


def ending_content(tier: Tier, reason: str) -> CheckContent:
    """How an open check ends that is no longer wanted. A gate never ends in a way that lets a merge through."""
    conclusion = Conclusion.CANCELLED if tier is Tier.GATE else Conclusion.NEUTRAL
    summary = f"This check ended without a result: {reason}."
    return CheckContent(status=CheckStatus.COMPLETED, conclusion=conclusion, title=reason, summary=summary)
