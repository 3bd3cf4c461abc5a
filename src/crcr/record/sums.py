"""The sums behind the numbers: what one job or one dispatch adds to its hour and its day, and takes away again.

Always called in the transaction of the fact. A job remembers in `ended_as` what it was added as, so that a later
fact (a newer attempt, a superseded commit, a dispute) moves it instead of counting it twice.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from crcr.decide.numbers import TIMED, Ended, bucket_of
from crcr.decide.window import Kind
from crcr.record.database import Tx
from crcr.record.schema_history import ENDED, EXECUTION, QUEUE, hours, job_days
from crcr.record.statement import Adding

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US

_HOURS = Adding.to(
    hours, (*ENDED, "sent", "delay_sum_s", "queue_sum_s", "execution_sum_s", *QUEUE, *EXECUTION)
)
_DAYS = Adding.to(job_days, (*ENDED, "execution_sum_s", "execution_known"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one ended job adds. `at_us`, when it began, decides on the hour and never changes."""

    upstream: str
    downstream: str
    kind: Kind
    at_us: int
    workflow: str
    workflow_name: str
    job_name: str
    ended: Ended
    queue_s: float | None
    execution_s: float | None


def add(tx: Tx, share: Share, times: int = 1) -> None:
    """Add a share, or with -1 take it away."""
    by_hour: dict[str, float] = {share.ended.value: times}
    by_day: dict[str, float] = {share.ended.value: times}
    if share.ended in TIMED:
        if share.queue_s is not None:
            by_hour["queue_sum_s"] = times * share.queue_s
            by_hour[QUEUE[bucket_of(share.queue_s)]] = times
        if share.execution_s is not None and share.ended is not Ended.SILENT:
            by_hour["execution_sum_s"] = by_day["execution_sum_s"] = times * share.execution_s
            by_hour[EXECUTION[bucket_of(share.execution_s)]] = times
            by_day["execution_known"] = times
    backend = (share.upstream, share.downstream, share.kind.value)
    tx.add_up(_HOURS, (*backend, share.at_us - share.at_us % HOUR_US), by_hour)
    day = share.at_us - share.at_us % DAY_US
    tx.add_up(_DAYS, (*backend, day, share.workflow, share.job_name, share.workflow_name), by_day)


def move(tx: Tx, moves: Iterable[tuple[Share, int]]) -> None:
    """Add and take away many at once."""
    for share, times in moves:
        add(tx, share, times)


def add_sent(
    tx: Tx, *, upstream: str, downstream: str, kind: Kind, at_us: int, delay_s: float, times: int = 1
) -> None:
    """Count a dispatch that was sent, and how long it had waited for that; with -1 take it away."""
    key = (upstream, downstream, kind.value, at_us - at_us % HOUR_US)
    tx.add_up(_HOURS, key, {"sent": times, "delay_sum_s": times * delay_s})
