"""Check runs: what GitHub is to show, cut to its limits, and the check runs that it lists.

GitHub refuses a check run with a text that is too long, and the commit would have no gate, so texts are cut visibly and
empty annotations are omitted. A wrong conclusion is a bug of ours and raises ValueError.
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
from crcr.decide.github.requests_and_answers import ListedCheck, Urgency
from crcr.decide.model import Conclusion, RepoName
from crcr.github.api.request_response import (
    Id,
    Request,
    Response,
    cut_bytes,
    cut_line,
    cut_text,
    decode,
    encode_json,
    format_time,
    list_first_page,
    quote_segment,
    replace_surrogates,
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
    content: CheckContent,
    urgency: Urgency = Urgency.FIRST,
) -> Request:
    names = {"name": name, "head_sha": head_sha, "external_id": external_id}
    body = encode_json(**names, **check_fields(content))
    return Request("POST", f"/repos/{repo}/check-runs", body=body, writes=True, urgency=urgency)


def update_check(
    repo: RepoName, check_run_id: int, content: CheckContent, *, urgency: Urgency = Urgency.FIRST
) -> Request:
    """Replace what the check shows; GitHub adds the annotations to those that it already has."""
    path = f"/repos/{repo}/check-runs/{check_run_id:d}"
    return Request("PATCH", path, body=encode_json(**check_fields(content)), writes=True, urgency=urgency)


def find_checks(repo: RepoName, head_sha: str, name: str, *, urgency: Urgency = Urgency.FIRST) -> Request:
    path = f"/repos/{repo}/commits/{quote_segment(head_sha)}/check-runs"
    return replace(list_first_page(path, check_name=name, filter="all"), urgency=urgency)


# What a check shows


def check_fields(content: CheckContent) -> dict[str, object]:
    fields: dict[str, object] = {
        "status": content.status.value,
        "output": _output(content),
        # Always sent, like `text`: GitHub keeps what an update omits.
        "actions": [_action(button) for button in content.buttons[:MOST_BUTTONS]],
    }
    if content.details_url is not None:
        fields["details_url"] = content.details_url
    if content.started_at is not None:
        fields["started_at"] = format_time(content.started_at)
    if content.status is CheckStatus.COMPLETED:
        fields |= _end(content)
    return fields


def _end(content: CheckContent) -> dict[str, object]:
    if content.conclusion is None or content.conclusion is Conclusion.NONE:
        raise ValueError("a completed check needs a conclusion that GitHub knows")
    end: dict[str, object] = {"conclusion": content.conclusion.value}
    if content.completed_at is not None:
        end["completed_at"] = format_time(content.completed_at)
    return end


def _output(content: CheckContent) -> dict[str, object]:
    output: dict[str, object] = {
        "title": cut_line(content.title, MOST_TITLE),
        "summary": cut_text(content.summary, MOST_TEXT),
        "text": cut_text(content.text or "", MOST_TEXT),
    }
    annotations = [note for note in content.annotations if note.path and note.message]
    if annotations:
        output["annotations"] = [_annotation(note) for note in annotations[:MOST_ANNOTATIONS]]
    return output


def _annotation(note: Annotation) -> dict[str, object]:
    line = max(note.line, 1)
    return {
        "path": replace_surrogates(note.path),
        "start_line": line,
        "end_line": line,
        "annotation_level": "failure",
        "message": cut_bytes(note.message, MOST_MESSAGE_BYTES),
        "title": cut_line(note.title, MOST_TITLE),
    }


def _action(button: Button) -> dict[str, object]:
    return {
        "label": cut_line(button.label, MOST_LABEL),
        "description": cut_line(button.description, MOST_DESCRIPTION),
        "identifier": replace_surrogates(button.identifier)[:MOST_IDENTIFIER],
    }


# Responses


class _Output(msgspec.Struct):
    annotations_count: int = 0


class _Check(msgspec.Struct):
    id: Id
    external_id: str | None = None
    status: str | None = None
    output: _Output | None = None


class _Checks(msgspec.Struct):
    check_runs: list[_Check]


def parse_check_run_id(response: Response) -> int:
    return decode(response, _Check).id


def parse_checks(response: Response) -> tuple[ListedCheck, ...]:
    return tuple(_listed_check(check) for check in decode(response, _Checks).check_runs)


def _listed_check(check: _Check) -> ListedCheck:
    return ListedCheck(
        check_run_id=check.id,
        external_id=check.external_id,
        completed=check.status == CheckStatus.COMPLETED.value,
        annotations=check.output.annotations_count if check.output else 0,
    )
