"""What people ask on the upstream's pages, read from GitHub's webhooks: re-runs, buttons and `/crcr` comments.

Nobody's rights are judged here: the names are what GitHub says, and whether a person wrote at all.
"""

from crcr.decide.commands.grammar import has_command
from crcr.decide.events import CheckRunEvent, CheckSuiteEvent, IssueCommentEvent, UnusedEvent
from crcr.receive.webhook import payload_structs as shapes
from crcr.receive.webhook.payload_fields import id_of, login, plain, repo_name, utc


def check_asked(body: shapes.CheckRunBody) -> CheckRunEvent:
    check, button = body.check_run, body.requested_action
    return CheckRunEvent(
        upstream=repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        action=body.action,
        head_sha=check.head_sha,
        name=plain(check.name),
        check_run_id=check.id,
        external_id=plain(check.external_id or "") or None,
        identifier=plain(button.identifier or "") or None if button else None,
        app_id=id_of(check.app),
        sender=login(body.sender),
        installation_id=id_of(body.installation),
    )


def suite_asked(body: shapes.CheckSuiteBody) -> CheckSuiteEvent:
    return CheckSuiteEvent(
        upstream=repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        head_sha=body.check_suite.head_sha,
        app_id=id_of(body.check_suite.app),
        sender=login(body.sender),
        installation_id=id_of(body.installation),
    )


def commented(body: shapes.IssueCommentBody) -> IssueCommentEvent | UnusedEvent:
    if body.issue.pull_request is None:
        return UnusedEvent("a comment on an issue")
    comment = body.comment
    if not has_command(comment.body or ""):
        return UnusedEvent("a comment without a command")
    return IssueCommentEvent(
        upstream=repo_name(body.repository.full_name),
        repository_id=body.repository.id,
        number=body.issue.number,
        comment_id=comment.id,
        author=login(comment.user),
        author_is_person=_is_person(comment),
        body=plain(comment.body or ""),
        created_at=utc(comment.created_at, "$.comment.created_at"),
        installation_id=id_of(body.installation),
    )


def _is_person(comment: shapes.CommentPart) -> bool:
    user = comment.user
    # An App may write in a person's name; the person did not.
    if comment.performed_via_github_app is not None or user is None or user.type != "User":
        return False
    name = (user.login or "ghost").lower()
    return name != "ghost" and not name.endswith("[bot]")
