"""A job as a record of the public HUD: an item of its DynamoDB table, and a row of its ClickHouse table `crcr_workflow_job`.

`make_record` makes the fields that the public HUD makes of an envelope, with its defaults: a field without a value is absent,
`pr_number` is 0 without a pull request. `make_envelope` goes the other way. Records come from outside: every value is checked.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

Record = dict[str, str | int | float]

KEY = "dynamoKey"
OUTCOME_NUMBER = "outcome_number"
"""Our own field: the number of the job's outcome, by which a later state is told from an earlier one."""
DEFAULT_UPSTREAM = "pytorch/pytorch"
_TRUNK_TAG = re.compile(r"/ciflow/trunk/([0-9]{1,9})$")
_MOST_TESTS, _MOST_CHARACTERS = 50, 500
_LONGEST_JSON = 8_000
_LARGEST_TESTS_BYTES = 256 * 1024
"""Of all failed tests: control characters take six bytes each, and an item of DynamoDB holds 400 KB in all."""
_TEST_COUNTS = {
    "passed": "passed_tests",
    "failed": "failed_tests",
    "skipped": "skipped_tests",
    "total": "total_tests",
}
TEXTS = (
    *(
        KEY,
        "status",
        "downstream_repo",
        "upstream_repo",
        "pytorch_head_sha",
        "delivery_id",
        "workflow_run_url",
    ),
    *("workflow_name", "job_name", "check_run_id", "run_id", "conclusion", "started_at", "completed_at"),
    *("downstream_repo_level", "event_type", "artifact_url", "failed_tests_json", "environment"),
)
NUMBERS = ("pr_number", "run_attempt", "queue_time", "execution_time", *_TEST_COUNTS.values(), OUTCOME_NUMBER)


def make_record(trusted: Mapping[str, Any], callback: Mapping[str, Any]) -> Record:
    """Return the record of an envelope's parts: `trusted`, and the callback in its untrusted part."""
    workflow, payload = _part(callback, "workflow"), _part(callback, "payload")
    number, head_sha = _pull_and_head(payload)
    words = {
        "downstream_repo": trusted["verified_repo"],
        "delivery_id": callback["delivery_id"],
        "workflow_name": workflow["name"],
        "job_name": workflow["job_name"],
        "check_run_id": str(workflow["check_run_id"]),
    }
    record: dict[str, Any] = {
        KEY: "/".join(words.values()),
        "status": workflow["status"],
        **words,
        "upstream_repo": _part(payload, "repository").get("full_name") or DEFAULT_UPSTREAM,
        "pr_number": number,
        "pytorch_head_sha": head_sha or payload.get("head_sha") or words["delivery_id"] or "",
        "workflow_run_url": workflow.get("url") or "",
        "run_id": workflow.get("run_id") or "",
        "run_attempt": _whole(workflow.get("run_attempt")) or 1,
        "downstream_repo_level": trusted.get("downstream_repo_level"),
        "event_type": callback.get("event_type"),
        "queue_time": _number(_part(trusted, "ci_metrics").get("queue_time")),
        "execution_time": _number(_part(trusted, "ci_metrics").get("execution_time")),
        "started_at": workflow.get("started_at"),
        "artifact_url": workflow.get("artifact_url"),
        "environment": _json(workflow.get("environment")),
        OUTCOME_NUMBER: _whole(_part(trusted, "outcome").get("number")),
    }
    if workflow["status"] == "completed":
        record |= {
            "conclusion": workflow.get("conclusion"),
            "completed_at": workflow.get("completed_at"),
            "failed_tests_json": _failed_tests(workflow.get("failed_tests_detail")),
            **_test_counts(_part(workflow, "test_results")),
        }
    always = {"upstream_repo", "pytorch_head_sha", "workflow_run_url", "run_id"}
    return {
        name: value for name, value in record.items() if value is not None and (value != "" or name in always)
    }


def _pull_and_head(payload: Mapping[str, Any]) -> tuple[int, str]:
    """The pull request and the commit of an event; merge tools test a pull request by a push to a tag with its number."""
    pull = _part(payload, "pull_request")
    number, sha = _whole(pull.get("number")), _part(pull, "head").get("sha")
    if number and isinstance(sha, str) and sha:
        return number, sha
    after = payload.get("after")
    if isinstance(after, str) and after:
        found = _TRUNK_TAG.search(str(payload.get("ref") or "")[-300:])
        return int(found[1]) if found else 0, after
    return 0, ""


def _test_counts(results: Mapping[str, Any]) -> dict[str, int]:
    counts = {name: count for name in _TEST_COUNTS if (count := _whole(results.get(name))) is not None}
    if results and "total" not in counts:
        counts["total"] = sum(counts.values())
    return {_TEST_COUNTS[name]: count for name, count in counts.items()}


def _failed_tests(detail: object) -> str | None:
    if not isinstance(detail, list):
        return None
    texts = ("name", "classname", "message")
    tests: list[str] = []
    size = 2
    for test in detail[:_MOST_TESTS]:
        if not isinstance(test, Mapping):
            continue
        fields = {name: str(test[name])[:_MOST_CHARACTERS] for name in texts if test.get(name)}
        seconds = {} if (duration := _number(test.get("duration"))) is None else {"duration": duration}
        whole = {"name": "", **fields, **seconds}
        written = json.dumps(whole, ensure_ascii=False, separators=(",", ":"))
        size += len(written.encode(errors="replace")) + 1
        if size > _LARGEST_TESTS_BYTES:
            break
        tests.append(written)
    return f"[{','.join(tests)}]"


def _json(value: object) -> str | None:
    """A small object as text; an item of DynamoDB holds 400 KB in all."""
    if not isinstance(value, dict) or not value:
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    except (ValueError, RecursionError):
        return None
    return text if len(text) <= _LONGEST_JSON else None


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    part = of.get(name)
    return part if isinstance(part, Mapping) else {}


def _whole(value: object) -> int | None:
    """A count that is written as a number or as digits."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 16:
        return int(value)
    if isinstance(value, float) and value.is_integer() and 0 <= value < 2**53:
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53 else None


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) else None


class NotARecord(ValueError):
    """An item or row that is no job; the text says why."""


_NEEDED = ("status", "downstream_repo", "delivery_id", "workflow_name", "job_name")
_RUN_IN_URL = re.compile(r"/runs/([0-9]{1,20})(?:/|$)")
_STATUSES = ("in_progress", "completed")


def make_envelope(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the envelope that the record was made of, as far as it can be known; raises `NotARecord`.

    Empty texts and the times of the year 1970 are ClickHouse's defaults for *none*.
    """
    given = {name: value for name, value in record.items() if value not in ("", None)}
    for name in _NEEDED:
        if not isinstance(given.get(name), str | int) or isinstance(given.get(name), bool):
            raise NotARecord(f"{name} is missing")
    status = given["status"]
    if status not in _STATUSES:
        raise NotARecord(f"status is {str(status)[:40]!r}")
    number = _whole(given.get("pr_number"))
    outcome = _whole(given.get(OUTCOME_NUMBER))
    return {
        "trusted": {
            "verified_repo": given["downstream_repo"],
            "downstream_repo_level": given.get("downstream_repo_level"),
            "ci_metrics": {
                "queue_time": _number(given.get("queue_time")),
                "execution_time": _number(given.get("execution_time")),
            },
            **({"outcome": {"number": outcome}} if outcome else {}),
        },
        "untrusted": {
            "callback_payload": {
                "event_type": given.get("event_type", "pull_request" if number else "push"),
                "delivery_id": given["delivery_id"],
                "payload": _make_payload(given, number),
                "workflow": {
                    name: value for name, value in _make_workflow(given).items() if value is not None
                },
            }
        },
    }


def _make_payload(given: Mapping[str, Any], number: int | None) -> dict[str, Any]:
    """Return what is known of the upstream's event."""
    sha = given.get("pytorch_head_sha")
    payload: dict[str, Any] = {"repository": {"full_name": given.get("upstream_repo", DEFAULT_UPSTREAM)}}
    if number:
        payload["pull_request"] = {"number": number, "head": {"sha": sha}}
    elif sha != given["delivery_id"]:
        payload["head_sha"] = sha
    return payload


def _make_workflow(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the job's part of the envelope; None where a value is not known."""
    workflow = {
        "status": given["status"],
        "name": given["workflow_name"],
        "job_name": given["job_name"],
        "check_run_id": given.get("check_run_id"),
        "run_id": _run_id(given),
        "run_attempt": _whole(given.get("run_attempt")) or 1,
        "url": given.get("workflow_run_url"),
        "artifact_url": given.get("artifact_url"),
        "started_at": _time(given.get("started_at")),
        "environment": _object(given.get("environment")),
    }
    if given["status"] == "completed":
        counts = {name: _whole(given.get(field)) for name, field in _TEST_COUNTS.items()}
        workflow |= {
            "conclusion": given.get("conclusion"),
            "completed_at": _time(given.get("completed_at")),
            # ClickHouse has zeroes where no tests were counted.
            "test_results": counts if any(counts.values()) else None,
            "failed_tests": _list(given.get("failed_tests_json")),
        }
    return workflow


def _run_id(given: Mapping[str, Any]) -> str | int:
    """The run: old records have it only in the address of the run, or not at all."""
    in_url = _RUN_IN_URL.search(str(given.get("workflow_run_url", ""))[:1000])
    found = given.get("run_id") or (in_url and in_url[1]) or given.get("check_run_id")
    if not isinstance(found, str | int):
        raise NotARecord("run_id is missing")
    return found


def _time(value: object) -> str | None:
    """A time in ISO 8601; ClickHouse writes a space in the middle, nine digits of a second, and no zone."""
    if not isinstance(value, str) or value.startswith("1970-01-01"):
        return None
    day, space, clock = value.partition(" ")
    if not space:
        return value
    whole, dot, fraction = clock.partition(".")
    return f"{day}T{whole}{dot}{fraction[:6]}{'' if whole.endswith('Z') or '+' in clock else 'Z'}"


def _object(text: object) -> dict[str, Any] | None:
    found = _decode(text)
    return found if isinstance(found, dict) else None


def _list(text: object) -> list[Any] | None:
    found = _decode(text)
    return [test for test in found if isinstance(test, dict)] if isinstance(found, list) else None


def _decode(text: object) -> object:
    if isinstance(text, dict | list):
        return text
    try:
        return json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None


def read_attributes(item: object) -> Record:
    """Return the fields of an item in DynamoDB's own form (`{"S": "text"}`, `{"N": "1"}`); raises `NotARecord`."""
    if not isinstance(item, Mapping):
        raise NotARecord("there is no item")
    record: Record = {}
    for name, attribute in item.items():
        if not isinstance(attribute, Mapping) or len(attribute) != 1:
            raise NotARecord(f"{str(name)[:60]} is not an attribute")
        kind, value = next(iter(attribute.items()))
        if kind == "S" and isinstance(value, str):
            record[name] = value
        elif kind == "N" and (number := _parse_number(value)) is not None:
            record[name] = number
    return record


def write_attributes(record: Record, names: Iterable[str] | None = None) -> dict[str, dict[str, str]]:
    """Return a record's fields in DynamoDB's own form."""
    return {
        name: {"S": value} if isinstance(value, str) else {"N": repr(value)}
        for name, value in record.items()
        if names is None or name in names
    }


def _parse_number(text: object) -> int | float | None:
    if not isinstance(text, str) or len(text) > 60:
        return None
    try:
        number = float(text)
    except ValueError:
        return None
    if not math.isfinite(number):
        return None
    return int(number) if number.is_integer() and abs(number) < 2**53 else number
