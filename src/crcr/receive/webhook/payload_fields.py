"""Single fields of webhook bodies read into our values; what has the wrong form is refused by its path."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

from crcr.decide.events import InstalledRepository
from crcr.decide.model import RepoName
from crcr.errors import BadRequest
from crcr.receive.webhook import payload_structs as shapes

_BRANCH = re.compile(r"[^\x00-\x20\x7f]{1,1024}")
_LOGIN_CHARS = 250
UPSTREAM_PATH = "$.repository.full_name"


def repo_name(full_name: str, path: str = UPSTREAM_PATH) -> RepoName:
    try:
        return RepoName(full_name)
    except ValueError:
        raise BadRequest(f"{full_name[:120]!r} is not owner/name - at `{path}`") from None


def installed(parts: Sequence[shapes.RepositoryPart] | None, path: str) -> tuple[InstalledRepository, ...]:
    return tuple(
        InstalledRepository(part.id, repo_name(part.full_name, f"{path}[{index}].full_name"))
        for index, part in enumerate(parts or ())
    )


def id_of(part: shapes.IdPart | None) -> int | None:
    return part.id if part else None


def login(account: shapes.AccountPart | None) -> str:
    """Name the account; GitHub shows a deleted one as `ghost`, and sends null for it in places.

    No account's name is near as long as what is kept of it here, which an index has to hold.
    """
    return plain((account and (account.login or account.slug)) or "ghost")[:_LOGIN_CHARS]


def plain(text: str) -> str:
    # PostgreSQL stores no NUL; in text that is only shown it is not worth losing the event.
    return text.replace("\0", "\ufffd")


def branch(value: object) -> str | None:
    """A branch's name as Git allows it; anything else names none."""
    return value if isinstance(value, str) and _BRANCH.fullmatch(value) else None


def moment(value: object) -> datetime | None:
    """A time as seconds or as text; anything else tells none."""
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC)
        told = datetime.fromisoformat(value) if isinstance(value, str) else None
        return told and (told.replace(tzinfo=UTC) if told.tzinfo is None else told.astimezone(UTC))
    except (ValueError, OverflowError, OSError):
        return None


def utc(value: shapes.Time, path: str) -> datetime:
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC)
        # A time without a zone is UTC everywhere in GitHub's API.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise BadRequest(f"the time is out of range - at `{path}`") from None


def utc_or_none(value: shapes.Time | None, path: str) -> datetime | None:
    return None if value is None else utc(value, path)
