"""The people of the demo: who writes changes, who may decide about them, and who only passes by.

The relay takes a few commands an hour from each person; `CommandLimits` keeps everybody below that, so the demo does
not fill with refusals when it runs for long or fast.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

# Logins with the association that their pull requests show.
AUTHORS = (
    ("mira-holt", "MEMBER"), ("jkoski", "MEMBER"), ("tamsin-ray", "COLLABORATOR"), ("d-okafor", "CONTRIBUTOR"),
    ("lin-sato", "CONTRIBUTOR"), ("pbraun", "MEMBER"), ("new-here-42", "FIRST_TIME_CONTRIBUTOR"),
)  # fmt: skip
ROLES = {"mira-holt": "admin", "jkoski": "maintain", "pbraun": "maintain", "tamsin-ray": "write"}
MAINTAINERS = tuple(login for login, role in ROLES.items() if role in {"maintain", "admin"})
OUTSIDERS = ("drive-by-dev", "impatient-user", "star-gazer")
MOST_COMMANDS_AN_HOUR = 8


class CommandLimits:
    """Who has commanded when, and so who may do it again."""

    def __init__(self) -> None:
        self._spoke_at: dict[str, list[datetime]] = {}

    def first_free(self, logins: Sequence[str], now: datetime) -> str | None:
        """The first of them who has not said too much lately; it counts as said."""
        for login in logins:
            lately = [at for at in self._spoke_at.get(login, []) if now - at < timedelta(hours=1)]
            if len(lately) < MOST_COMMANDS_AN_HOUR:
                self._spoke_at[login] = [*lately, now]
                return login
        return None
