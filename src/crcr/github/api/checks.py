"""Check runs: what we ask GitHub to show, kept within its limits whatever the texts hold, and what it lists.

A check that GitHub refuses would leave a commit without its gate, so what is too long is cut where a reader sees
it, and an annotation that says nothing is left out. A wrong conclusion is our own mistake and raises ValueError.
https://docs.github.com/en/rest/checks/runs
"""

from dataclasses import replace

import msgspec

from crcr.decide.checks.check_run import (
    MOST_ANNOTATIONS,
    MOST_TEXT,
    Annotation,
    Button,
    CheckContent,
    CheckStatus,
)
from crcr.decide.github.values import ListedCheck, Urgency
from crcr.decide.model import Conclusion, RepoName
from crcr.github.api.core import (
    Id,
    Request,
    Response,
    clean,
    decode,
    json_body,
    listing,
    long,
    moment,
    segment,
    short,
    within_bytes,
)

MOST_TITLE = 255
MOST_MESSAGE_BYTES = 64 * 1024
MOST_BUTTONS = 3
MOST_LABEL = 20
MOST_DESCRIPTION = 40
MOST_IDENTIFIER = 20

# Requests


def create_check(
    repo: RepoName,
    *,
    head_sha: str,
    name: str,
    external_id: str,
    shown: CheckContent,
    urgency: Urgency = Urgency.FIRST,
) -> Request:
    names = {"name": name, "head_sha": head_sha, "external_id": external_id}
    body = json_body(**names, **check_fields(shown))
    return Request("POST", f"/repos/{repo}/check-runs", body=body, writes=True, urgency=urgency)


def update_check(
    repo: RepoName, check_run_id: int, shown: CheckContent, *, urgency: Urgency = Urgency.FIRST
) -> Request:
    """Show something else; GitHub adds the annotations to those that the check already has."""
    path = f"/repos/{repo}/check-runs/{check_run_id:d}"
    return Request("PATCH", path, body=json_body(**check_fields(shown)), writes=True, urgency=urgency)


def find_checks(repo: RepoName, head_sha: str, name: str, *, urgency: Urgency = Urgency.FIRST) -> Request:
    path = f"/repos/{repo}/commits/{segment(head_sha)}/check-runs"
    return replace(listing(path, check_name=name, filter="all"), urgency=urgency)


# What a check shows


def check_fields(shown: CheckContent) -> dict[str, object]:
    fields: dict[str, object] = {
        "status": shown.status.value,
        "output": _output(shown),
        # Always sent, as `text` is: what an update leaves out stays as it was.
        "actions": [_action(button) for button in shown.buttons[:MOST_BUTTONS]],
    }
    if shown.details_url is not None:
        fields["details_url"] = shown.details_url
    if shown.started_at is not None:
        fields["started_at"] = moment(shown.started_at)
    if shown.status is CheckStatus.COMPLETED:
        fields |= _end(shown)
    return fields


def _end(shown: CheckContent) -> dict[str, object]:
    if shown.conclusion is None or shown.conclusion is Conclusion.NONE:
        raise ValueError("a completed check needs a conclusion that GitHub knows")
    end: dict[str, object] = {"conclusion": shown.conclusion.value}
    if shown.completed_at is not None:
        end["completed_at"] = moment(shown.completed_at)
    return end


def _output(shown: CheckContent) -> dict[str, object]:
    output: dict[str, object] = {
        "title": short(shown.title, MOST_TITLE),
        "summary": long(shown.summary, MOST_TEXT),
        "text": long(shown.text or "", MOST_TEXT),
    }
    telling = [each for each in shown.annotations if each.path and each.message]
    if telling:
        output["annotations"] = [_annotation(each) for each in telling[:MOST_ANNOTATIONS]]
    return output


def _annotation(said: Annotation) -> dict[str, object]:
    line = max(said.line, 1)
    return {
        "path": clean(said.path),
        "start_line": line,
        "end_line": line,
        "annotation_level": "failure",
        "message": within_bytes(said.message, MOST_MESSAGE_BYTES),
        "title": short(said.title, MOST_TITLE),
    }


def _action(button: Button) -> dict[str, object]:
    return {
        "label": short(button.label, MOST_LABEL),
        "description": short(button.description, MOST_DESCRIPTION),
        "identifier": clean(button.identifier)[:MOST_IDENTIFIER],
    }


# Answers


class _Output(msgspec.Struct):
    annotations_count: int = 0


class _Check(msgspec.Struct):
    id: Id
    external_id: str | None = None
    status: str | None = None
    output: _Output | None = None


class _Checks(msgspec.Struct):
    check_runs: list[_Check]


def check_run_id(response: Response) -> int:
    return decode(response, _Check).id


def found_checks(response: Response) -> tuple[ListedCheck, ...]:
    return tuple(_found(each) for each in decode(response, _Checks).check_runs)


def _found(check: _Check) -> ListedCheck:
    return ListedCheck(
        check_run_id=check.id,
        external_id=check.external_id,
        completed=check.status == CheckStatus.COMPLETED.value,
        annotations=check.output.annotations_count if check.output else 0,
    )
