"""`OtherHud`: a server that receives forwarded results as PyTorch's HUD does, with the rows that its pages show.

It is written from the rules of PyTorch's HUD (its results route, its table of jobs, its queries) and not from the relay's
code, so that a misreading on our side fails a test. `answers` are the statuses of the next requests.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import repeat
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

TOKEN = "hud-token-0123456789"
HOST = "hud.test"
SETTINGS: dict[str, Any] = {
    "CRCR_HUD_FORWARD_URL": f"https://{HOST}/api/crcr/results",
    "CRCR_HUD_FORWARD_TOKEN": TOKEN,
}
MOST_BYTES = 2 * 1024 * 1024
TRUNK = re.compile(r"/ciflow/trunk/(\d+)$")

Record = dict[str, Any]


@dataclass
class OtherHud:
    answers: Iterator[int] = field(default_factory=lambda: repeat(200))
    records: dict[str, Record] = field(default_factory=dict)
    taken: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, list[str]] = field(default_factory=dict)
    """By key: the status or conclusion after each accepted forward."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        body = await request.body()
        status = next(self.answers)
        response: Response = Response(status_code=status)
        if request.headers.get("x-hud-internal-bot") != TOKEN:
            response = Response(status_code=401)
        elif len(body) > MOST_BYTES:
            response = Response(status_code=413)
        elif status == 200:
            response = self._take(json.loads(body))
        await response(scope, receive, send)

    def _take(self, envelope: dict[str, Any]) -> Response:
        record = parse_forward(envelope)
        if record is None:
            return Response(status_code=400)
        key = record.pop("key")
        self.taken.append(envelope)
        # An absent field leaves what was there; a new row has the table's defaults.
        self.records[key] = {**self.records.get(key, {}), **record}
        self.history.setdefault(key, []).append(record.get("conclusion") or record["status"])
        return JSONResponse({"ok": True, "status": record["status"]})

    def pull_page(self, number: int) -> list[Record]:
        return [row for row in self.records.values() if row["pr_number"] == number > 0]

    def backend_page(self, repository: str, now: datetime, days: int = 14) -> list[Record]:
        """Rows of pull requests that began within these days, the last attempt of each job."""
        rows = [row for row in self._recent(repository, now, days) if row["pr_number"] > 0]
        return _last_attempts(rows)

    def nightly_page(self, repository: str, now: datetime, days: int = 14) -> list[Record]:
        """Nightly results that are both in the matrix (by their end) and in the figures (by their start)."""
        since = now - timedelta(days=days)
        rows = [row for row in self._recent(repository, now, days) if row.get("event_type") == "nightly"]
        ended = [row for row in rows if since <= _time(row.get("completed_at")) <= now]
        return _last_attempts([row for row in ended if row["status"] == "completed"])

    def _recent(self, repository: str, now: datetime, days: int) -> list[Record]:
        since = now - timedelta(days=days)
        rows = [row for row in self.records.values() if row["downstream_repo"] == repository]
        return [row for row in rows if _time(row.get("started_at")) > since]


def parse_forward(envelope: dict[str, Any]) -> Record | None:
    """The record of a forward; None when the HUD refuses it."""
    trusted, callback = envelope["trusted"], envelope["untrusted"]["callback_payload"]
    workflow, payload = callback["workflow"], _object(callback.get("payload"))
    if not workflow.get("job_name") or workflow.get("check_run_id") is None:
        return None
    number, sha = _pull_and_commit(payload)
    names = (
        trusted["verified_repo"],
        callback["delivery_id"],
        workflow["name"],
        workflow["job_name"],
        str(workflow["check_run_id"]),
    )
    record: Record = {
        "key": "/".join(names),
        "status": workflow["status"],
        "downstream_repo": trusted["verified_repo"],
        "upstream_repo": _object(payload.get("repository")).get("full_name") or "pytorch/pytorch",
        "pr_number": number,
        "head_sha": sha or payload.get("head_sha") or callback["delivery_id"],
        "url": workflow.get("url") or "",
        "job_name": workflow["job_name"],
        "run_id": workflow.get("run_id") or "",
        "run_attempt": int(workflow.get("run_attempt") or 1),
    }
    optional = {
        "event_type": callback.get("event_type"),
        "level": trusted.get("downstream_repo_level"),
        "started_at": workflow.get("started_at"),
        **{name: trusted["ci_metrics"].get(name) for name in ("queue_time", "execution_time")},
    }
    if workflow["status"] == "completed":
        optional |= {name: workflow.get(name) for name in ("conclusion", "completed_at")}
        optional["failed_tests"] = workflow.get("failed_tests_detail")
    return record | {name: value for name, value in optional.items() if value not in ("", None)}


def _pull_and_commit(payload: dict[str, Any]) -> tuple[int, str]:
    """Pull request and commit: of the pull request, or of a push, whose tag may name a pull request."""
    pull = _object(payload.get("pull_request"))
    sha = _object(pull.get("head")).get("sha")
    if pull.get("number") and sha:
        return pull["number"], sha
    if payload.get("after"):
        named = TRUNK.search(payload.get("ref") or "")
        return int(named[1]) if named else 0, payload["after"]
    return 0, ""


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _time(text: str | None) -> datetime:
    """An absent time is the table's default, the year 1970."""
    return datetime.fromisoformat(text or "1970-01-01T00:00:00Z")


def _last_attempts(rows: list[Record]) -> list[Record]:
    newest: dict[tuple[str, str], Record] = {}
    for row in sorted(rows, key=lambda row: row["run_attempt"]):
        newest[row["run_id"], row["job_name"]] = row
    return list(newest.values())
