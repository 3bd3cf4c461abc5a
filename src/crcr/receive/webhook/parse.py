"""Parse a webhook's name and body into one event of the closed set in `decide.events`.

The signature has been verified, the format has not: a known event with a missing or wrong field is refused with the
field's path. Unknown events and actions are never an error, because GitHub adds them without notice.
"""

import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from crcr.decide.commands.grammar import has_command
from crcr.decide.culprits.commit_message import read_origin
from crcr.decide.events import (
    USED_ACTIONS,
    CheckRunEvent,
    CheckSuiteEvent,
    Event,
    InstallationEvent,
    InstallationRepositoriesEvent,
    InstalledRepository,
    InTreeCheckEvent,
    IssueClosedEvent,
    IssueCommentEvent,
    MergeGroupEvent,
    PingEvent,
    PullRequestEvent,
    PushedCommit,
    PushEvent,
    RepositoryEvent,
    UnusedEvent,
    WorkflowJobEvent,
    WorkflowRunEvent,
)
from crcr.decide.github.repository_setup import grants
from crcr.decide.github.requests_and_answers import ActionsJob, ActionsRun
from crcr.decide.github.workflow_runs import parse_check_run_id, parse_conclusion, path_without_ref
from crcr.decide.in_tree.checks import NO_APP, STATUSES, InTreeCheck, shorten_name
from crcr.decide.model import RepoName
from crcr.decide.notices.announcements import read_downstream_note
from crcr.decide.pairs.depends_on import find_dependencies
from crcr.errors import BadRequest
from crcr.receive.http.body import decode
from crcr.receive.webhook import payload_structs as structs

T = TypeVar("T")

_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_WORD = re.compile(r"[a-z][a-z0-9_]{0,99}")
_ANY_OBJECT = msgspec.json.Decoder(dict[str, Any])
_ANY_ACTION = msgspec.json.Decoder(structs.ActionBody)


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
        # An action that we do not use may have any format; only one that we use is refused for it.
        action = decode(_ANY_ACTION, body, BadRequest).action
        if isinstance(action, str) and not _is_used(name, action):
            return _unused(name, action)
        raise


def parse_payload(body: bytes) -> dict[str, Any]:
    """Decode the whole body, as the dispatch of an event needs it."""
    return decode(_ANY_OBJECT, body, BadRequest)


def _is_used(name: str, action: str) -> bool:
    return name not in USED_ACTIONS or action in USED_ACTIONS[name]


def _unused(name: str, action: str) -> UnusedEvent:
    # The reason is logged and answered, so only a plain word of the body goes into it.
    return UnusedEvent(f"action {action if _WORD.fullmatch(action) else '(not a word)'} of {name}")


def _pull_request(body: structs.PullRequestBody) -> PullRequestEvent:
    pull = body.pull_request
    return PullRequestEvent(
        upstream=_repo_name(body.repository.full_name),
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
        labels=tuple(_printable(label.name) for label in pull.labels or ()),
        title=_printable(pull.title),
        author=_login(pull.user),
        author_association=_printable(pull.author_association or "NONE"),
        installation_id=_optional_id(body.installation),
        default_branch=_branch(body.repository.default_branch),
        base_sha=_sha_or_none(pull.base.sha),
        changes_base=body.action == "edited" and body.changes is not None and body.changes.base is not None,
        # Of an open pull request it is a test merge, which no branch has.
        merge_commit_sha=_sha_or_none(pull.merge_commit_sha) if pull.merged else None,
        opened_at=_time_or_none(pull.created_at),
        downstream_note=read_downstream_note(_printable(pull.body)) if isinstance(pull.body, str) else None,
        depends_on=find_dependencies(pull.body) if isinstance(pull.body, str) else (),
    )


def _push(body: structs.PushBody) -> PushEvent:
    return PushEvent(
        upstream=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        ref=body.ref,
        before=body.before,
        after=body.after,
        deleted=body.deleted or not body.after.strip("0"),
        changed_paths=frozenset(path for commit in body.commits or () for path in _touched(commit)),
        installation_id=_optional_id(body.installation),
        default_branch=_branch(body.repository.default_branch),
        pushed_at=_time_or_none(body.repository.pushed_at),
        commits=tuple(
            _pushed_commit(sha, commit) for commit in body.commits or () if (sha := _sha_or_none(commit.id))
        ),
        head_commit=_sha_or_none(body.head_commit.get("id")) if isinstance(body.head_commit, dict) else None,
    )


def _pushed_commit(sha: str, commit: structs.CommitPart) -> PushedCommit:
    origin = read_origin(_printable(commit.message) if isinstance(commit.message, str) else "")
    paths = tuple(dict.fromkeys(map(_printable, _touched(commit))))
    return PushedCommit(sha, origin.title, origin.number, origin.reverts, paths)


def _touched(commit: structs.CommitPart) -> list[str]:
    """The files that a commit adds, changes or removes."""
    return [*(commit.added or ()), *(commit.modified or ()), *(commit.removed or ())]


def _merge_group(body: structs.MergeGroupBody) -> MergeGroupEvent:
    group = body.merge_group
    return MergeGroupEvent(
        upstream=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        action=body.action,
        head_sha=group.head_sha,
        head_ref=group.head_ref,
        base_sha=group.base_sha,
        base_ref=group.base_ref,
        installation_id=_optional_id(body.installation),
        default_branch=_branch(body.repository.default_branch),
        merged=body.action == "destroyed" and body.reason == "merged",
    )


def _installation(body: structs.InstallationBody) -> InstallationEvent:
    return InstallationEvent(
        action=body.action,
        installation_id=body.installation.id,
        account=_login(body.installation.account),
        repositories=_installed_repositories(body.repositories, "$.repositories"),
        reads_actions=_reads_actions(body.installation),
    )


def _installation_repositories(body: structs.InstallationRepositoriesBody) -> InstallationRepositoriesEvent:
    return InstallationRepositoriesEvent(
        action=body.action,
        installation_id=body.installation.id,
        account=_login(body.installation.account),
        added=_installed_repositories(body.repositories_added, "$.repositories_added"),
        removed=_installed_repositories(body.repositories_removed, "$.repositories_removed"),
        reads_actions=_reads_actions(body.installation),
    )


def _reads_actions(installation: structs.InstallationPart) -> bool | None:
    granted = installation.permissions
    return None if granted is None else grants(granted, "actions", "read")


def _repository(body: structs.RepositoryBody) -> RepositoryEvent:
    new = _repo_name(body.repository.full_name)
    return RepositoryEvent(
        action=body.action,
        repository_id=body.repository.id,
        old_name=_old_name(new, body.changes or structs.ChangesPart()),
        new_name=new,
        installation_id=_optional_id(body.installation),
        default_branch=_branch(body.repository.default_branch),
    )


def _old_name(new: RepoName, changes: structs.ChangesPart) -> RepoName | None:
    if changes.repository and changes.repository.name:
        return _repo_name(f"{new.owner}/{changes.repository.name.old}", "$.changes.repository.name.from")
    if changes.owner and changes.owner.old:
        old = changes.owner.old
        owner = old.user or old.organization
        if owner and owner.login:
            return _repo_name(f"{owner.login}/{new.name}", "$.changes.owner.from")
    return None


def _ping(body: structs.PingBody) -> PingEvent:
    return PingEvent(zen=_printable(body.zen))


# Requests of people: re-runs, buttons and `/crcr` comments. Nobody's rights are judged here.


def _check_run(body: structs.CheckRunBody) -> CheckRunEvent | InTreeCheckEvent:
    check, button = body.check_run, body.requested_action
    if body.action in _IN_TREE_ACTIONS:
        return _in_tree_check(body)
    return CheckRunEvent(
        upstream=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        action=body.action,
        head_sha=check.head_sha,
        name=_printable(check.name),
        check_run_id=check.id,
        external_id=_printable(check.external_id or "") or None,
        identifier=_printable(button.identifier or "") or None if button else None,
        app_id=_optional_id(check.app),
        sender=_login(body.sender),
        installation_id=_optional_id(body.installation),
    )


def _check_suite(body: structs.CheckSuiteBody) -> CheckSuiteEvent:
    return CheckSuiteEvent(
        upstream=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        head_sha=body.check_suite.head_sha,
        app_id=_optional_id(body.check_suite.app),
        sender=_login(body.sender),
        installation_id=_optional_id(body.installation),
    )


# Results of a repository's own CI. The body's `status` counts, not the action, as for workflow runs below.

_IN_TREE_ACTIONS = ("created", "completed")
_UNKNOWN_WORD = "unknown"
_PENDING = "pending"


def _in_tree_check(body: structs.CheckRunBody) -> InTreeCheckEvent:
    check = body.check_run
    client_id = check.app.client_id if check.app else None
    is_over = check.status == "completed"
    return InTreeCheckEvent(
        upstream=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        head_sha=check.head_sha,
        check=InTreeCheck(
            app_id=check.app.id if check.app else NO_APP,
            name=shorten_name(_printable(check.name)),
            check_id=check.id,
            ended_at=_seconds_or_none(check.completed_at) if is_over else None,
            conclusion=_word(check.conclusion) if is_over else None,
            url=_link(check.html_url) or _link(check.details_url),
        ),
        client_id=client_id if isinstance(client_id, str) else None,
        installation_id=_optional_id(body.installation),
    )


def _status(body: structs.StatusBody) -> InTreeCheckEvent:
    is_over = body.state != _PENDING
    return InTreeCheckEvent(
        upstream=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        head_sha=body.sha,
        check=InTreeCheck(
            app_id=STATUSES,
            name=shorten_name(_printable(body.context)),
            check_id=body.id,
            ended_at=_seconds_or_none(body.created_at) if is_over else None,
            conclusion=_word(body.state) if is_over else None,
            url=_link(body.target_url),
        ),
        client_id=None,
        installation_id=_optional_id(body.installation),
    )


def _word(value: object) -> str:
    """Return a conclusion as GitHub writes it; anything else is unknown, and counts as failed."""
    return value if isinstance(value, str) and _WORD.fullmatch(value) else _UNKNOWN_WORD


def _seconds_or_none(value: object) -> int | None:
    time = _time_or_none(value)
    return None if time is None else int(time.timestamp())


def _link(value: object) -> str | None:
    return _printable(value) if isinstance(value, str) and 0 < len(value) <= _LINK_CHARS else None


def _issue_comment(body: structs.IssueCommentBody) -> IssueCommentEvent | UnusedEvent:
    if body.issue.pull_request is None:
        return UnusedEvent("a comment on an issue")
    comment = body.comment
    if not has_command(comment.body or ""):
        return UnusedEvent("a comment without a command")
    return IssueCommentEvent(
        upstream=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        number=body.issue.number,
        comment_id=comment.id,
        author=_login(comment.user),
        author_is_person=_is_person(comment),
        body=_printable(comment.body or ""),
        created_at=_utc(comment.created_at, "$.comment.created_at"),
        installation_id=_optional_id(body.installation),
    )


def _issues(body: structs.IssuesBody) -> IssueClosedEvent:
    return IssueClosedEvent(
        repository=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        number=body.issue.number,
        closed_at=_utc_or_none(body.issue.closed_at, "$.issue.closed_at"),
        installation_id=_optional_id(body.installation),
    )


def _is_person(comment: structs.CommentPart) -> bool:
    user = comment.user
    # An App may write in a person's name; the person did not.
    if comment.performed_via_github_app is not None or user is None or user.type != "User":
        return False
    name = (user.login or "ghost").lower()
    return name != "ghost" and not name.endswith("[bot]")


# Workflow runs and jobs of a downstream. The body's `status` counts, not the action: deliveries are unordered, and the
# `completed` of an attempt that was re-run at once may already show the next one.


def _workflow_run(body: structs.WorkflowRunBody) -> WorkflowRunEvent:
    run, workflow = body.workflow_run, body.workflow or structs.WorkflowPart()
    return WorkflowRunEvent(
        repository=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        run=ActionsRun(
            run_id=run.id,
            attempt=run.run_attempt or 1,
            status=_printable(run.status),
            conclusion=parse_conclusion(run.conclusion),
            display_title=_printable(run.display_title or ""),
            workflow_name=_printable(run.name or workflow.name or ""),
            workflow_path=_printable(path_without_ref(run.path or workflow.path or "")),
            event=_printable(run.event),
            created_at=_utc(run.created_at, "$.workflow_run.created_at"),
        ),
        installation_id=_optional_id(body.installation),
        default_branch=_branch(body.repository.default_branch),
    )


def _workflow_job(body: structs.WorkflowJobBody) -> WorkflowJobEvent:
    job = body.workflow_job
    return WorkflowJobEvent(
        repository=_repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        run_id=job.run_id,
        job=ActionsJob(
            job_id=job.id,
            check_run_id=parse_check_run_id(job.check_run_url),
            name=_printable(job.name),
            attempt=job.run_attempt or 1,
            status=_printable(job.status),
            conclusion=parse_conclusion(job.conclusion),
            started_at=_utc_or_none(job.started_at, "$.workflow_job.started_at"),
            completed_at=_utc_or_none(job.completed_at, "$.workflow_job.completed_at"),
        ),
        installation_id=_optional_id(body.installation),
        default_branch=_branch(body.repository.default_branch),
    )


# From an event's name to its reader


def _reader(name: str, struct: type[T], build: Callable[[T], Event]) -> Callable[[bytes], Event]:
    decoder = msgspec.json.Decoder(struct)

    def read(body: bytes) -> Event:
        parsed = decode(decoder, body, BadRequest)
        action = getattr(parsed, "action", None)
        if action is not None and not _is_used(name, action):
            return _unused(name, action)
        return build(parsed)

    return read


_READERS: dict[str, Callable[[bytes], Event]] = {
    "pull_request": _reader("pull_request", structs.PullRequestBody, _pull_request),
    "push": _reader("push", structs.PushBody, _push),
    "merge_group": _reader("merge_group", structs.MergeGroupBody, _merge_group),
    "check_run": _reader("check_run", structs.CheckRunBody, _check_run),
    "check_suite": _reader("check_suite", structs.CheckSuiteBody, _check_suite),
    "status": _reader("status", structs.StatusBody, _status),
    "issue_comment": _reader("issue_comment", structs.IssueCommentBody, _issue_comment),
    "issues": _reader("issues", structs.IssuesBody, _issues),
    "workflow_run": _reader("workflow_run", structs.WorkflowRunBody, _workflow_run),
    "workflow_job": _reader("workflow_job", structs.WorkflowJobBody, _workflow_job),
    "installation": _reader("installation", structs.InstallationBody, _installation),
    "installation_repositories": _reader(
        "installation_repositories", structs.InstallationRepositoriesBody, _installation_repositories
    ),
    "repository": _reader("repository", structs.RepositoryBody, _repository),
    "ping": _reader("ping", structs.PingBody, _ping),
}


def events() -> tuple[str, ...]:
    """Return the events that the relay acts on; the App must subscribe to them."""
    return tuple(_READERS)


# Single fields; one of the wrong form is refused by its path.

_BRANCH = re.compile(r"[^\x00-\x20\x7f]{1,1024}")
_LOGIN_CHARS = 250
_LINK_CHARS = 2_000
UPSTREAM_PATH = "$.repository.full_name"


def _repo_name(full_name: str, path: str = UPSTREAM_PATH) -> RepoName:
    try:
        return RepoName(full_name)
    except ValueError:
        raise BadRequest(f"{full_name[:120]!r} is not owner/name - at `{path}`") from None


def _installed_repositories(
    parts: Sequence[structs.RepositoryPart] | None, path: str
) -> tuple[InstalledRepository, ...]:
    return tuple(
        InstalledRepository(part.id, _repo_name(part.full_name, f"{path}[{index}].full_name"))
        for index, part in enumerate(parts or ())
    )


def _optional_id(part: structs.IdPart | None) -> int | None:
    return part.id if part else None


def _login(account: structs.AccountPart | None) -> str:
    """Return the account's name; GitHub shows a deleted account as `ghost`, and sometimes sends null for it.

    Cut to what an index can hold; no real name is nearly as long.
    """
    return _printable((account and (account.login or account.slug)) or "ghost")[:_LOGIN_CHARS]


def _printable(text: str) -> str:
    # PostgreSQL stores no NUL; the event is not refused for one in text that is only shown.
    return text.replace("\0", "\ufffd")


def _branch(value: object) -> str | None:
    """Return a branch name that Git allows, or None."""
    return value if isinstance(value, str) and _BRANCH.fullmatch(value) else None


def _sha_or_none(value: object) -> str | None:
    return value if isinstance(value, str) and _SHA.fullmatch(value) else None


def _time_or_none(value: object) -> datetime | None:
    """Return a time given as seconds or as text, or None for anything else."""
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC)
        time = datetime.fromisoformat(value) if isinstance(value, str) else None
        return time and (time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC))
    except (ValueError, OverflowError, OSError):
        return None


def _utc(value: structs.Time, path: str) -> datetime:
    try:
        if isinstance(value, int):
            return datetime.fromtimestamp(value, UTC)
        # A time without a zone is UTC everywhere in GitHub's API.
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise BadRequest(f"the time is out of range - at `{path}`") from None


def _utc_or_none(value: structs.Time | None, path: str) -> datetime | None:
    return None if value is None else _utc(value, path)
