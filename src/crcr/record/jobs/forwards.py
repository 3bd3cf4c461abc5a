"""Forwarding results to another HUD and to its DynamoDB table, as effects in the transaction that changes a job's outcome.

Level-triggered: the outcome that a job has now is compared with the one that was forwarded last, so a repeat forwards
nothing, and every change is one effect. Results of one delivery stay in order; sixteen queues keep one delivery from
holding up the others. Tests, and history that was moved here or fed elsewhere, are not forwarded.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any
from zlib import crc32

import msgspec
from sqlalchemy import text

from crcr.decide.jobs.forwarding import (
    ForwardedOutcome,
    job_completed_at,
    outcome_to_forward,
    parse_claimed_time,
)
from crcr.decide.jobs.report import SELF_REPORTS
from crcr.decide.jobs.workflow_job_record import Record, make_record
from crcr.decide.model import Conclusion, EffectKind, JobState
from crcr.record.outbox.effects import add_effects, effect_row
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement
from crcr.record.store.times import from_us

_QUEUES = 16
_TARGETS = {EffectKind.FORWARD_RESULT: "hud", EffectKind.WRITE_DYNAMODB: "dynamodb"}
_KEY = ("upstream", "delivery", "downstream", "workflow", "run_id", "attempt", "job_name")
_BY_KEY = (
    " WHERE j.delivery = :delivery AND j.upstream = :upstream AND j.downstream = :downstream"
    " AND j.workflow = :workflow AND j.run_id = :run_id AND j.attempt = :attempt AND j.job_name = :job_name"
)
_JOB = Statement(
    text(
        "SELECT j.upstream, j.delivery, j.downstream, j.workflow, j.run_id, j.attempt, j.job_name, j.state,"  # noqa: S608  our own text
        " j.conclusion, j.disputed, j.event, j.number, j.head_sha, j.workflow_name, j.url, j.artifact_url, j.opened_by,"
        " j.in_progress_at, j.started_at, j.completed_at, j.swept_at, j.failed_tests, j.trusted, j.untrusted,"
        " j.forwarded, j.forwarded_no, u.name AS upstream_name, r.name AS downstream_name,"
        " coalesce(d.test, 0) AS test, v.action, v.ref, p.title, p.author, n.delivery AS run_delivery"
        " FROM jobs j LEFT JOIN upstreams u ON u.upstream = j.upstream"
        " LEFT JOIN repositories r ON r.upstream = j.upstream AND r.downstream = j.downstream"
        " LEFT JOIN dispatches d ON d.delivery = j.delivery AND d.upstream = j.upstream AND d.downstream = j.downstream"
        " LEFT JOIN deliveries v ON v.guid = j.delivery AND v.upstream = j.upstream"
        " LEFT JOIN pulls p ON p.upstream = j.upstream AND p.number = j.number"
        " LEFT JOIN runs n ON n.run_id = j.run_id AND n.upstream = j.upstream AND n.downstream = j.downstream"
        f"{_BY_KEY}"
    )
)
_FORWARDED = Statement(
    text(
        "UPDATE jobs SET forwarded = :outcome, forwarded_no = :number WHERE delivery = :delivery"
        " AND upstream = :upstream AND downstream = :downstream AND workflow = :workflow AND run_id = :run_id"
        " AND attempt = :attempt AND job_name = :job_name"
    )
)
_NEWEST = Statement(text(f"SELECT j.forwarded_no FROM jobs j{_BY_KEY}"))  # noqa: S608  our own text
_EFFECT = Statement(text("SELECT upstream, lane, payload FROM effects WHERE effect_id = :effect_id"))
_ENVELOPE = msgspec.json.Decoder(dict[str, msgspec.Raw])
_TRUSTED = msgspec.json.Decoder(dict[str, Any])


class Forwards:
    def __init__(self, *, enabled: bool, table: bool = False) -> None:
        """`enabled`: to another HUD; `table`: to a DynamoDB table."""
        self._to_hud = enabled
        self._to_table = table

    async def add(self, tx: Tx, key: Mapping[str, Any], now: datetime, body: bytes | None = None) -> None:
        """Forward the outcome that a job has now, unless it was forwarded already.

        `body` is the callback that changed it; without one, GitHub or the time did.
        """
        if not self._to_hud and not self._to_table:
            return
        where = {name: key[name] for name in _KEY}
        job = await tx.one(_JOB, **where)
        if job is None or job["test"]:
            return
        outcome = _read_outcome(job)
        if job["forwarded"] == str(outcome):
            return
        number = job["forwarded_no"] + 1
        lane = job["delivery"] or job["run_id"]
        payloads: dict[EffectKind, bytes] = {}
        if self._to_hud:
            payloads[EffectKind.FORWARD_RESULT] = envelope(job, outcome, number, body, now)
        if self._to_table:
            payloads[EffectKind.WRITE_DYNAMODB] = _ENCODE(table_record(job, outcome, number, now))
        effects = [
            effect_row(
                job["upstream"],
                kind,
                target=f"{_TARGETS[kind]} {crc32(lane.encode()) % _QUEUES}",
                lane=lane,
                delivery=None if is_self_report(job) else job["delivery"],
                payload=payload,
                now=now,
            )
            for kind, payload in payloads.items()
        ]
        await add_effects(tx, effects)
        await tx.run(_FORWARDED, outcome=str(outcome), number=number, **where)


def _read_outcome(job: Row) -> ForwardedOutcome:
    bound = job["run_delivery"]
    return outcome_to_forward(
        JobState(job["state"]),
        Conclusion(job["conclusion"]) if job["conclusion"] else None,
        disputed=bool(job["disputed"]),
        taken_off=bound is not None and bound != job["delivery"] and not is_self_report(job),
    )


async def is_overtaken(tx: Tx, effect_id: int) -> bool:
    """Whether a newer outcome of the same job was forwarded since: sent now, this one would overwrite it."""
    effect = await tx.one(_EFFECT, effect_id=effect_id)
    if effect is None or effect["payload"] is None:
        return False
    lane = effect["lane"]
    try:
        trusted = _TRUSTED.decode(_ENVELOPE.decode(effect["payload"])["trusted"])
        job, number = trusted["job"], trusted["outcome"]["number"]
    except (msgspec.MsgspecError, KeyError):
        return False  # of an older release
    newest = await tx.one(
        _NEWEST,
        upstream=effect["upstream"],
        delivery="" if trusted["delivery_id"] is None and lane == job["run_id"] else lane,
        downstream=trusted["verified_repo"].lower(),
        workflow=job["workflow"],
        run_id=job["run_id"],
        attempt=job["run_attempt"],
        job_name=job["job_name"],
    )
    return newest is not None and newest["forwarded_no"] > number


# The envelope: a job's outcome in the form that the other HUD accepts, with proved values separate from the caller's claims.
# That HUD reads pull request, commit and upstream from the echoed event (`callback_payload.payload`). These fields are filled
# from our own records, whatever was echoed; the echo only adds what we do not have. `trusted` repeats them, for a reader that
# needs to know which are proved. That HUD's key (repository, delivery, workflow, job, check run) is the same in every forward
# of a job.

CAP_BYTES = 2 * 1024 * 1024
_TESTS_SHOWN = 50
_TEXT_CHARS = 500
"""That HUD's own limits for failed tests."""
_PARTS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_OBJECT = msgspec.json.Decoder(dict[str, Any])
_LIST = msgspec.json.Decoder(list[dict[str, Any]])
_TEXT = msgspec.json.Decoder(str)
_ENCODE = msgspec.json.Encoder().encode

Parts = dict[str, msgspec.Raw]
_OF_THE_EVENT = (
    "action",
    "number",
    "ref",
    "before",
    "after",
    "head_sha",
    "repository",
    "pull_request",
    "merge_group",
)
"""What names an event: never taken from the echo."""
_NEEDED = ("schema_version", "test_results", "environment")
"""The parts that are kept of a report that is too large, beside our own records."""


def envelope(job: Row, outcome: ForwardedOutcome, number: int, body: bytes | None, now: datetime) -> bytes:
    """`number` counts the forwards of the job; `body` is the callback that brought the outcome about, if one did."""
    untrusted = _PARTS.decode(job["untrusted"])
    workflow = _PARTS.decode(untrusted["workflow"])
    facts = _workflow_facts(job, outcome, workflow, now)
    trusted = _ENCODE(_trusted(job, outcome, number))
    about = {"event_type": job["event"], "delivery_id": _delivery(job, untrusted)}
    echoed = _echoed(body)
    for top_level, workflow_part, echo in (
        ({**untrusted, **_raw(about)}, {**workflow, **_raw(facts)}, echoed),
        ({**untrusted, **_raw(about)}, {**workflow, **_raw(facts)}, {}),
        (_raw(about), {**{name: workflow[name] for name in _NEEDED if name in workflow}, **_raw(facts)}, {}),
        (_raw(about), _raw(facts), {}),
    ):
        callback = {**top_level, "payload": _event(job, echo), "workflow": workflow_part}
        whole = b'{"trusted":%b,"untrusted":{"callback_payload":%b}}' % (trusted, _ENCODE(callback))
        if len(whole) <= CAP_BYTES:
            break
    return whole


def table_record(job: Row, outcome: ForwardedOutcome, number: int, now: datetime) -> Record:
    """The record of a job, made of its envelope without what was echoed."""
    untrusted = _PARTS.decode(job["untrusted"])
    workflow = _PARTS.decode(untrusted["workflow"])
    copied = {
        name: _value(workflow.get(name)) for name in ("test_results", "environment", "failed_tests_detail")
    }
    callback = {
        "event_type": job["event"],
        "delivery_id": _delivery(job, untrusted),
        "payload": _event(job, {}),
        "workflow": {**copied, **_workflow_facts(job, outcome, workflow, now)},
    }
    return make_record(_trusted(job, outcome, number), callback)


def is_self_report(job: Row) -> bool:
    return job["event"] in SELF_REPORTS


def _trusted(job: Row, outcome: ForwardedOutcome, number: int) -> dict[str, Any]:
    """The values that the relay vouches for. The commit of a self-report is claimed by its sender, so it is not here."""
    stored = _OBJECT.decode(job["trusted"])
    own = is_self_report(job)
    return {
        **stored,
        "verified_repo": _repository(job, stored["verified_repo"]),
        "upstream": job["upstream_name"] or job["upstream"],
        "delivery_id": None if own else job["delivery"],
        "event_type": job["event"],
        "pr_number": job["number"],
        "head_sha": None if own else job["head_sha"],
        "job": {
            **{name: job[name] for name in ("workflow", "run_id", "job_name")},
            "run_attempt": job["attempt"],
        },
        "outcome": {
            "number": number,
            "status": outcome.status,
            "conclusion": outcome.conclusion,
            "disputed": outcome.disputed,
        },
    }


def _repository(job: Row, verified: str) -> str:
    """The name that the job was dispatched to: a repository that is renamed meanwhile stays one row over there."""
    return verified if verified.lower() == job["downstream"] else job["downstream_name"] or job["downstream"]


def _delivery(job: Row, untrusted: Parts) -> str:
    return job["delivery"] or _text(untrusted.get("delivery_id")) or job["run_id"]


def _workflow_facts(job: Row, outcome: ForwardedOutcome, workflow: Parts, now: datetime) -> dict[str, Any]:
    started = from_us(job["in_progress_at"] if job["started_at"] is None else job["started_at"])
    facts = {
        "status": outcome.status,
        "name": job["workflow_name"],
        "job_name": job["job_name"],
        "run_id": job["run_id"],
        "run_attempt": job["attempt"],
        # Signed where the CI signs it; a claimed one may be the same for two attempts.
        "check_run_id": job["opened_by"] or f"{job['run_id']}-{job['attempt']}",
        "url": job["url"] or "",
        "artifact_url": job["artifact_url"] or "",
        "started_at": _stamp(started),
        "conclusion": outcome.conclusion,
    }
    if outcome.status != "completed":
        return {**facts, "completed_at": None}
    at = job["swept_at"] if job["state"] == JobState.TIMED_OUT.value else job["completed_at"]
    claimed = parse_claimed_time(_text(workflow.get("completed_at")))
    facts["completed_at"] = _stamp(job_completed_at(claimed, now if at is None else from_us(at), started))
    if job["failed_tests"] and "failed_tests_detail" not in workflow:
        facts["failed_tests_detail"] = _failed_tests(job["failed_tests"])
    return facts


def _failed_tests(stored: str) -> list[dict[str, str]]:
    tests = _LIST.decode(stored)[:_TESTS_SHOWN]
    return [
        {name: test[name][:_TEXT_CHARS] for name in ("name", "file", "message") if test.get(name)}
        for test in tests
    ]


def _event(job: Row, echoed: Parts) -> dict[str, Any]:
    """The event in that HUD's format. Echoed values that belong to another event are left out."""
    upstream, sha = job["upstream_name"] or job["upstream"], job["head_sha"]
    event: dict[str, Any] = {name: raw for name, raw in echoed.items() if name not in _OF_THE_EVENT}
    repository = _parts(echoed.get("repository"))
    same = (_text(repository.get("full_name")) or "").lower() == job["upstream"]
    event["repository"] = {**(repository if same else {}), "full_name": upstream}
    facts = {"action": job["action"], "ref": job["ref"], "number": job["number"], "head_sha": sha}
    event |= {name: value for name, value in facts.items() if value is not None}
    if job["number"] is not None:
        event["pull_request"] = _pull(job, _parts(echoed.get("pull_request")))
    elif job["event"] == "push" and sha is not None:
        event["after"] = sha
    elif job["event"] == "merge_group":
        event["merge_group"] = {"head_sha": sha, "head_ref": job["ref"]}
    return event


def _pull(job: Row, echoed: Parts) -> dict[str, Any]:
    head = _parts(echoed.get("head"))
    number = bytes(echoed.get("number", b"")).strip()
    same = number == b"%d" % job["number"] and _text(head.get("sha")) == job["head_sha"]
    known = {"title": job["title"], "user": {"login": job["author"]} if job["author"] else None}
    return {
        **(echoed if same else {}),
        **{name: value for name, value in known.items() if value},
        "number": job["number"],
        "head": {**(head if same else {}), "sha": job["head_sha"]},
    }


def _echoed(body: bytes | None) -> Parts:
    """The parts of the echoed payload, copied and never read: it may hold what JSON allows and Python refuses.

    Half of a surrogate pair, or a depth at the limit, makes it no payload: the far side could not read it either.
    """
    try:
        return _parts(_PARTS.decode(body).get("payload")) if body else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _parts(raw: msgspec.Raw | None) -> Parts:
    try:
        return _PARTS.decode(raw) if raw is not None else {}
    except (msgspec.MsgspecError, RecursionError):
        return {}


def _text(raw: msgspec.Raw | None) -> str | None:
    try:
        return _TEXT.decode(raw) if raw is not None else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _value(raw: msgspec.Raw | None) -> object:
    try:
        return msgspec.json.decode(raw) if raw is not None else None
    except (msgspec.MsgspecError, RecursionError):
        return None


def _raw(facts: Mapping[str, Any]) -> Parts:
    return {name: msgspec.Raw(_ENCODE(value)) for name, value in facts.items()}


def _stamp(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
