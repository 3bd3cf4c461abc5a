"""A webhook's name and body become one event of the closed set in `decide.events`.

The signature was checked before; the form was not, so a known event with a missing or wrong field is refused
by the field's path. Unknown events and actions are never an error: GitHub adds them without notice.
"""

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from crcr.decide.events import (
    USED_ACTIONS,
    Event,
    InstallationEvent,
    InstallationRepositoriesEvent,
    MergeGroupEvent,
    PingEvent,
    PullRequestEvent,
    PushEvent,
    RepositoryEvent,
    UnusedEvent,
)
from crcr.decide.github.repository_setup import grants
from crcr.decide.model import RepoName
from crcr.errors import BadRequest
from crcr.receive.http.json_body import decode
from crcr.receive.webhook import payload_structs as shapes
from crcr.receive.webhook.parse_requests import check_asked, commented, suite_asked
from crcr.receive.webhook.parse_workflow_events import job_told, run_told
from crcr.receive.webhook.payload_fields import branch, id_of, installed, login, moment, plain, repo_name, utc

T = TypeVar("T")

_WORD = re.compile(r"[a-z][a-z0-9_]{0,99}")
_ANY_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ANY_ACTION = msgspec.json.Decoder(shapes.ActionBody)


def parse_event(name: str, body: bytes) -> Event:
    """Return the event, `UnusedEvent` with a reason, or raise `BadRequest` naming the field."""
    if not _WORD.fullmatch(name):
        raise BadRequest("X-GitHub-Event is missing or does not name an event")
    reader = _READERS.get(name)
    if reader is None:
        decode(_ANY_ACTION, body, BadRequest)
        return UnusedEvent(f"event {name}")
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
    return name not in USED_ACTIONS or action in USED_ACTIONS[name]


def _unwanted(name: str, action: str) -> UnusedEvent:
    # The reason is logged and answered, so only a plain word of the body goes into it.
    return UnusedEvent(f"action {action if _WORD.fullmatch(action) else '(not a word)'} of {name}")


def _pull_request(body: shapes.PullRequestBody) -> PullRequestEvent:
    pull = body.pull_request
    return PullRequestEvent(
        upstream=repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        action=body.action,
        number=pull.number,
        head_sha=pull.head.sha,
        before=body.before if body.action == "synchronize" else None,
        base_ref=pull.base.ref,
        updated_at=utc(pull.updated_at, "$.pull_request.updated_at"),
        is_open=pull.state == "open",
        merged=bool(pull.merged),
        draft=bool(pull.draft),
        labels=tuple(plain(label.name) for label in pull.labels or ()),
        title=plain(pull.title),
        author=login(pull.user),
        author_association=plain(pull.author_association or "NONE"),
        installation_id=id_of(body.installation),
        default_branch=branch(body.repository.default_branch),
        changes_base=body.action == "edited" and body.changes is not None and body.changes.base is not None,
    )


def _push(body: shapes.PushBody) -> PushEvent:
    return PushEvent(
        upstream=repo_name(body.repository.full_name),
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
        installation_id=id_of(body.installation),
        default_branch=branch(body.repository.default_branch),
        pushed_at=moment(body.repository.pushed_at),
    )


def _merge_group(body: shapes.MergeGroupBody) -> MergeGroupEvent:
    group = body.merge_group
    return MergeGroupEvent(
        upstream=repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        action=body.action,
        head_sha=group.head_sha,
        head_ref=group.head_ref,
        base_sha=group.base_sha,
        base_ref=group.base_ref,
        installation_id=id_of(body.installation),
        default_branch=branch(body.repository.default_branch),
        merged=body.action == "destroyed" and body.reason == "merged",
    )


def _installation(body: shapes.InstallationBody) -> InstallationEvent:
    return InstallationEvent(
        action=body.action,
        installation_id=body.installation.id,
        account=login(body.installation.account),
        repositories=installed(body.repositories, "$.repositories"),
        reads_actions=_reads_actions(body.installation),
    )


def _installation_repositories(body: shapes.InstallationRepositoriesBody) -> InstallationRepositoriesEvent:
    return InstallationRepositoriesEvent(
        action=body.action,
        installation_id=body.installation.id,
        account=login(body.installation.account),
        added=installed(body.repositories_added, "$.repositories_added"),
        removed=installed(body.repositories_removed, "$.repositories_removed"),
        reads_actions=_reads_actions(body.installation),
    )


def _reads_actions(installation: shapes.InstallationPart) -> bool | None:
    granted = installation.permissions
    return None if granted is None else grants(granted, "actions", "read")


def _repository_moved(body: shapes.RepositoryBody) -> RepositoryEvent:
    new = repo_name(body.repository.full_name)
    return RepositoryEvent(
        action=body.action,
        repository_id=body.repository.id,
        old_name=_old_name(new, body.changes or shapes.ChangesPart()),
        new_name=new,
        installation_id=id_of(body.installation),
        default_branch=branch(body.repository.default_branch),
    )


def _old_name(new: RepoName, changes: shapes.ChangesPart) -> RepoName | None:
    if changes.repository and changes.repository.name:
        return repo_name(f"{new.owner}/{changes.repository.name.old}", "$.changes.repository.name.from")
    if changes.owner and changes.owner.old:
        old = changes.owner.old
        owner = old.user or old.organization
        if owner and owner.login:
            return repo_name(f"{owner.login}/{new.name}", "$.changes.owner.from")
    return None


def _ping(body: shapes.PingBody) -> PingEvent:
    return PingEvent(zen=plain(body.zen))


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
    "merge_group": _reader("merge_group", shapes.MergeGroupBody, _merge_group),
    "check_run": _reader("check_run", shapes.CheckRunBody, check_asked),
    "check_suite": _reader("check_suite", shapes.CheckSuiteBody, suite_asked),
    "issue_comment": _reader("issue_comment", shapes.IssueCommentBody, commented),
    "workflow_run": _reader("workflow_run", shapes.WorkflowRunBody, run_told),
    "workflow_job": _reader("workflow_job", shapes.WorkflowJobBody, job_told),
    "installation": _reader("installation", shapes.InstallationBody, _installation),
    "installation_repositories": _reader(
        "installation_repositories", shapes.InstallationRepositoriesBody, _installation_repositories
    ),
    "repository": _reader("repository", shapes.RepositoryBody, _repository_moved),
    "ping": _reader("ping", shapes.PingBody, _ping),
}


def events() -> tuple[str, ...]:
    """The events that the relay acts on, which an App must subscribe to."""
    return tuple(_READERS)
