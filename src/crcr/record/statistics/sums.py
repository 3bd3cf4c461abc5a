"""The sums behind the numbers: what one job or one dispatch adds to its hour and its day, and takes away again.

Always called in the transaction of the fact. A job remembers in `ended_as` what it was added as, so that a later
fact (a newer attempt, a superseded commit, a dispute) moves it instead of counting it twice.
"""

from collections.abc import Iterable

from crcr.decide.row_dataclass import row_dataclass
from crcr.decide.statistics.figures import TIMED, EndedAs, find_bucket
from crcr.decide.statistics.window import ResultKind
from crcr.record.schema.statistics import (
    BACKEND_SUMS,
    ENDED,
    EXECUTION,
    HIGHS,
    LOWS,
    QUEUE,
    days,
    hours,
    job_days,
)
from crcr.record.store.database import Tx
from crcr.record.store.statement import SumUpsert

HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US

_HOURS, _DAYS = (SumUpsert.to(table, BACKEND_SUMS, lows=LOWS, highs=HIGHS) for table in (hours, days))
_JOB_DAYS = SumUpsert.to(job_days, (*ENDED, "execution_sum_s", "execution_known"))


@row_dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What one ended job adds. `at_us`, when it began, decides on the hour and never changes."""

    upstream: str
    downstream: str
    kind: ResultKind
    at_us: int
    workflow: str
    workflow_name: str
    job_name: str
    ended: EndedAs
    queue_s: float | None
    execution_s: float | None


def add(tx: Tx, share: Share, times: int = 1) -> None:
    """Add a share, or with -1 take it away."""
    backend: dict[str, float] = {share.ended.value: times}
    job: dict[str, float] = {share.ended.value: times}
    if share.ended in TIMED:
        if share.queue_s is not None:
            backend["queue_sum_s"] = times * share.queue_s
            backend[QUEUE[find_bucket(share.queue_s)]] = times
        if share.execution_s is not None and share.ended is not EndedAs.SILENT:
            backend["execution_sum_s"] = job["execution_sum_s"] = times * share.execution_s
            backend[EXECUTION[find_bucket(share.execution_s)]] = times
            job["execution_known"] = times
    if times > 0 and share.ended is not EndedAs.OTHER and share.kind is not ResultKind.INGESTED:
        backend |= _extremes(share)
    backend_key, day = (
        (share.upstream, share.downstream, share.kind.value),
        share.at_us - share.at_us % DAY_US,
    )
    tx.add_up(_HOURS, (*backend_key, share.at_us - share.at_us % HOUR_US), backend)
    tx.add_up(_DAYS, (*backend_key, day), backend)
    tx.add_up(_JOB_DAYS, (*backend_key, day, share.workflow, share.job_name, share.workflow_name), job)


def _extremes(share: Share) -> dict[str, float]:
    """Its durations as the shortest and longest. Replaced results count too, so the order of results does not matter."""
    extremes: dict[str, float] = {}
    if share.queue_s is not None:
        extremes["queue_low_s"] = extremes["queue_high_s"] = share.queue_s
    if share.execution_s is not None and share.ended is not EndedAs.SILENT:
        extremes["execution_low_s"] = extremes["execution_high_s"] = share.execution_s
    return extremes


def move(tx: Tx, moves: Iterable[tuple[Share, int]]) -> None:
    """Add and take away many at once."""
    for share, times in moves:
        add(tx, share, times)


def add_sent(
    tx: Tx, *, upstream: str, downstream: str, kind: ResultKind, at_us: int, delay_s: float, times: int = 1
) -> None:
    """Count a dispatch that was sent, and how long it had waited for that; with -1 take it away."""
    backend_key, sent = (upstream, downstream, kind.value), {"sent": times, "delay_sum_s": times * delay_s}
    tx.add_up(_HOURS, (*backend_key, at_us - at_us % HOUR_US), sent)
    tx.add_up(_DAYS, (*backend_key, at_us - at_us % DAY_US), sent)
