"""A webhook's name and body become one event of the closed set in `decide.events`.

The signature was checked before; the form was not, so a known event with a missing or wrong field is refused
by the field's path. Unknown events and actions are never an error: GitHub adds them without notice.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from crcr.decide.events import (
    Event,
    Installation,
    InstallationRepositories,
    InstalledRepository,
    Ping,
    PullRequest,
    Push,
    RepositoryMoved,
    Unwanted,
)
from crcr.decide.model import RepoName
from crcr.errors import BadRequest
from crcr.receive import webhook_shapes as shapes
from crcr.receive.json_body import decode

T = TypeVar("T")

_WORD = re.compile(r"[a-z][a-z0-9_]{0,99}")
_ACTIONS = {
    "pull_request": frozenset(
        {
            "opened",
            "reopened",
            "synchronize",
            "closed",
            "labeled",
            "unlabeled",
            "ready_for_review",
            "converted_to_draft",
            "edited",
        }
    ),
    "installation": frozenset({"created", "deleted", "suspend", "unsuspend", "new_permissions_accepted"}),
    "installation_repositories": frozenset({"added", "removed"}),
    "repository": frozenset({"renamed", "transferred"}),
}
_ANY_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ANY_ACTION = msgspec.json.Decoder(shapes.ActionBody)


def parse_event(name: str, body: bytes) -> Event:
    """Return the event, `Unwanted` with a reason, or raise `BadRequest` naming the field."""
    if not _WORD.fullmatch(name):
        raise BadRequest("X-GitHub-Event is missing or does not name an event")
    reader = _READERS.get(name)
    if reader is None:
        decode(_ANY_ACTION, body, BadRequest)
        return Unwanted(f"event {name}")
    try:
        return reader(body)
    except BadRequest:
        # An action that we do not use may have any form; only one that we use is refused for it.
        action = decode(_ANY_ACTION, body, BadRequest).action
        if isinstance(action, str) and not _is_used(name, action):
            return _unwanted(name, action)
        raise


def parse_payload(body: bytes) -> dict[str, Any]:
    """Read the whole body, for the dispatch of an event that is wanted."""
    return decode(_ANY_OBJECT, body, BadRequest)


def _is_used(name: str, action: str) -> bool:
    return name not in _ACTIONS or action in _ACTIONS[name]


def _unwanted(name: str, action: str) -> Unwanted:
    # The reason is logged and answered, so only a plain word of the body goes into it.
    return Unwanted(f"action {action if _WORD.fullmatch(action) else '(not a word)'} of {name}")


def _pull_request(body: shapes.PullRequestBody) -> PullRequest:
    pull = body.pull_request
    return PullRequest(
        upstream=_repo(body.repository.full_name, "$.repository.full_name"),
        repository_id=body.repository.id,
        action=body.action,
        number=pull.number,
        head_sha=pull.head.sha,
        before=body.before if body.action == "synchronize" else None,
        base_ref=pull.base.ref,
        updated_at=_utc(pull.updated_at, "$.pull_request.updated_at"),
        is_open=pull.state == "open",
        merged=bool(pull.merged),
        draft=bool(pull.draft),
        labels=tuple(_text(label.name) for label in pull.labels or ()),
        title=_text(pull.title),
        author=_login(pull.user),
        author_association=_text(pull.author_association or "NONE"),
        installation_id=_installation_id(body.installation),
    )


def _push(body: shapes.PushBody) -> Push:
    return Push(
        upstream=_repo(body.repository.full_name, "$.repository.full_name"),
        repository_id=body.repository.id,
        ref=body.ref,
        before=body.before,
        after=body.after,
        deleted=body.deleted or not body.after.strip("0"),
        changed_paths=frozenset(
            path
            for commit in body.commits or ()
            for paths in (commit.added, commit.removed, commit.modified)
            for path in paths or ()
        ),
        installation_id=_installation_id(body.installation),
    )


def _installation(body: shapes.InstallationBody) -> Installation:
    return Installation(
        action=body.action,
        installation_id=body.installation.id,
        account=_login(body.installation.account),
        repositories=_installed(body.repositories, "$.repositories"),
    )


def _installation_repositories(body: shapes.InstallationRepositoriesBody) -> InstallationRepositories:
    return InstallationRepositories(
        action=body.action,
        installation_id=body.installation.id,
        account=_login(body.installation.account),
        added=_installed(body.repositories_added, "$.repositories_added"),
        removed=_installed(body.repositories_removed, "$.repositories_removed"),
    )


def _repository_moved(body: shapes.RepositoryBody) -> RepositoryMoved:
    new = _repo(body.repository.full_name, "$.repository.full_name")
    return RepositoryMoved(
        action=body.action,
        repository_id=body.repository.id,
        old_name=_old_name(new, body.changes or shapes.ChangesPart()),
        new_name=new,
        installation_id=_installation_id(body.installation),
    )


def _old_name(new: RepoName, changes: shapes.ChangesPart) -> RepoName | None:
    if changes.repository and changes.repository.name:
        return _repo(f"{new.owner}/{changes.repository.name.old}", "$.changes.repository.name.from")
    if changes.owner and changes.owner.old:
        old = changes.owner.old
        owner = old.user or old.organization
        if owner and owner.login:
            return _repo(f"{owner.login}/{new.name}", "$.changes.owner.from")
    return None


def _ping(body: shapes.PingBody) -> Ping:
    return Ping(zen=_text(body.zen))


def _repo(full_name: str, path: str) -> RepoName:
    try:
        return RepoName(full_name)
    except ValueError:
        raise BadRequest(f"{full_name[:120]!r} is not owner/name - at `{path}`") from None


def _installed(parts: Sequence[shapes.RepositoryPart] | None, path: str) -> tuple[InstalledRepository, ...]:
    return tuple(
        InstalledRepository(part.id, _repo(part.full_name, f"{path}[{index}].full_name"))
        for index, part in enumerate(parts or ())
    )


def _installation_id(part: shapes.InstallationId | None) -> int | None:
    return part.id if part else None


def _login(account: shapes.AccountPart | None) -> str:
    """Name the account; GitHub shows a deleted one as `ghost`, and sends null for it in places."""
    return _text((account and (account.login or account.slug)) or "ghost")


def _text(text: str) -> str:
    # PostgreSQL stores no NUL; in text that is only shown it is not worth losing the event.
    return text.replace("\0", "\ufffd")


def _utc(value: datetime | int, path: str) -> datetime:
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC)
        # A time without a zone is UTC everywhere in GitHub's API.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise BadRequest(f"the time is out of range - at `{path}`") from None


def _reader(name: str, shape: type[T], build: Callable[[T], Event]) -> Callable[[bytes], Event]:
    decoder = msgspec.json.Decoder(shape)

    def read(body: bytes) -> Event:
        parsed = decode(decoder, body, BadRequest)
        action = getattr(parsed, "action", None)
        if action is not None and not _is_used(name, action):
            return _unwanted(name, action)
        return build(parsed)

    return read


_READERS: dict[str, Callable[[bytes], Event]] = {
    "pull_request": _reader("pull_request", shapes.PullRequestBody, _pull_request),
    "push": _reader("push", shapes.PushBody, _push),
    "installation": _reader("installation", shapes.InstallationBody, _installation),
    "installation_repositories": _reader(
        "installation_repositories", shapes.InstallationRepositoriesBody, _installation_repositories
    ),
    "repository": _reader("repository", shapes.RepositoryBody, _repository_moved),
    "ping": _reader("ping", shapes.PingBody, _ping),
}
