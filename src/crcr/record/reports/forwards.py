"""Forwarding results to another HUD, as effects in the transaction that changes a job's outcome.

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

from crcr.decide.model import Conclusion, EffectKind, JobState
from crcr.decide.report.forwarding import ForwardedOutcome, outcome_to_forward
from crcr.record.outbox.effects import add_effects, effect_row
from crcr.record.reports.forward_envelope import envelope, is_self_report
from crcr.record.store.database import Row, Tx
from crcr.record.store.statement import Statement

_QUEUES = 16
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
    def __init__(self, *, enabled: bool) -> None:
        self._enabled = enabled

    async def add(self, tx: Tx, key: Mapping[str, Any], now: datetime, body: bytes | None = None) -> None:
        """Forward the outcome that a job has now, unless it was forwarded already.

        `body` is the callback that changed it; without one, GitHub or the time did.
        """
        if not self._enabled:
            return
        where = {name: key[name] for name in _KEY}
        job = await tx.one(_JOB, **where)
        if job is None or job["test"]:
            return
        outcome = _outcome_of(job)
        if job["forwarded"] == str(outcome):
            return
        number = job["forwarded_no"] + 1
        lane = job["delivery"] or job["run_id"]
        effect = effect_row(
            job["upstream"],
            EffectKind.FORWARD_RESULT,
            target=f"hud {crc32(lane.encode()) % _QUEUES}",
            lane=lane,
            delivery=None if is_self_report(job) else job["delivery"],
            payload=envelope(job, outcome, number, body, now),
            now=now,
        )
        await add_effects(tx, [effect])
        await tx.run(_FORWARDED, outcome=str(outcome), number=number, **where)


def _outcome_of(job: Row) -> ForwardedOutcome:
    bound = job["run_delivery"]
    return outcome_to_forward(
        JobState(job["state"]),
        Conclusion(job["conclusion"]) if job["conclusion"] else None,
        disputed=bool(job["disputed"]),
        taken_off=bound is not None and bound != job["delivery"] and not is_self_report(job),
    )


async def is_overtaken(tx: Tx, effect_id: int) -> bool:
    """Whether a newer outcome of the same job was forwarded since: sent now, this one would turn that back."""
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
