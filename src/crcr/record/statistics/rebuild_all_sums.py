"""Rebuilds all sums from the jobs, in a few statements over the whole table.

For a database that has jobs and no sums yet: one of an earlier release, or one that was filled in bulk. The same
rules as in `recount` and `sums`, as SQL; a test compares both.
"""
# ruff: noqa: S608 - every name in these statements is our own

from sqlalchemy import Connection, text

from crcr.decide.model import Conclusion, JobState
from crcr.decide.statistics.figures import BUCKETS, EDGES_S, TIMED, CountedAs, EndedAs, count_as
from crcr.decide.statistics.window import ResultKind
from crcr.record.schema.statistics import BACKEND_SUMS, ENDED, EXECUTION, HIGHS, LOWS, QUEUE
from crcr.record.statistics.sums import DAY_US, HOUR_US


def _texts(*values: str) -> str:
    return ", ".join(f"'{value}'" for value in values)


def _concluded(counted: CountedAs) -> str:
    return _texts(
        *(
            conclusion.value
            for conclusion in Conclusion
            if count_as(JobState.COMPLETED, conclusion) is counted
        )
    )


_KIND = " ".join(
    ["CASE", *(f"WHEN event IN ({_texts(*kind.events)}) THEN '{kind.value}'" for kind in ResultKind), "END"]
)
_KNOWN_EVENTS = _texts(*(event for kind in ResultKind for event in kind.events))
_SUPERSEDED = (
    "superseded = 1 OR EXISTS (SELECT 1 FROM dispatches d WHERE d.delivery = jobs.delivery"
    " AND d.upstream = jobs.upstream AND d.downstream = jobs.downstream AND d.superseded_at IS NOT NULL)"
)
_EARLIER = (
    "EXISTS (SELECT 1 FROM jobs later WHERE later.delivery = jobs.delivery AND later.upstream = jobs.upstream"
    " AND later.downstream = jobs.downstream AND later.workflow = jobs.workflow AND later.run_id = jobs.run_id"
    " AND later.attempt > jobs.attempt AND later.job_name = jobs.job_name)"
)
_ENDED_AS = f"""CASE
  WHEN state = 'in_progress' OR EXISTS (SELECT 1 FROM dispatches d WHERE d.delivery = jobs.delivery
       AND d.upstream = jobs.upstream AND d.downstream = jobs.downstream AND d.test = 1) THEN NULL
  WHEN {_SUPERSEDED} THEN '{EndedAs.SUPERSEDED}'
  WHEN {_EARLIER} THEN '{EndedAs.EARLIER}'
  WHEN state = 'timed_out' THEN '{EndedAs.SILENT}'
  WHEN expected IS NOT NULL AND conclusion = expected THEN '{EndedAs.SUCCESS}'
  WHEN conclusion = 'timed_out' THEN '{EndedAs.TIMED_OUT}'
  WHEN expected IS NOT NULL THEN '{EndedAs.FAILURE}'
  WHEN conclusion IN ({_concluded(CountedAs.SUCCESS)}) THEN '{EndedAs.SUCCESS}'
  WHEN conclusion IN ({_concluded(CountedAs.OTHER)}) THEN '{EndedAs.OTHER}'
  ELSE '{EndedAs.FAILURE}' END"""
# A row that is right stays as it is: writing a table anew takes longer than reading it.
_SET_ENDED_AS = f"UPDATE jobs SET ended_as = {_ENDED_AS} WHERE ended_as IS DISTINCT FROM {_ENDED_AS}"
_TIMED = _texts(*(ended.value for ended in sorted(TIMED)))
_RAN = _texts(*(ended.value for ended in sorted(TIMED - {EndedAs.SILENT})))


def _bucket(column: str, where: str) -> str:
    """The bucket of a duration as `find_bucket` computes it; NULL for a duration that is not counted."""
    cases = " ".join(f"WHEN {column} <= {edge} THEN {bucket}" for bucket, edge in enumerate(EDGES_S))
    known = f"WHEN ended_as NOT IN ({where}) OR {column} IS NULL THEN NULL"
    return f"CASE {known} {cases} ELSE {len(EDGES_S)} END"


def _sum(column: str, where: str) -> str:
    return f"coalesce(sum(CASE WHEN ended_as IN ({where}) THEN {column} END), 0)"


def _numbers(column: str, number: int) -> str:
    return ", ".join(f"sum(CASE WHEN {column} = {bucket} THEN number ELSE 0 END)" for bucket in range(number))


_COUNTS = [f"sum(CASE WHEN ended_as = '{ended}' THEN 1 ELSE 0 END)" for ended in ENDED]
_NUMBERS = [f"sum(CASE WHEN ended_as = '{ended}' THEN number ELSE 0 END)" for ended in ENDED]
# First how many of a kind an hour had, then a column for each: far fewer rows meet the many columns.
_HOURS = f"""
INSERT INTO hours (upstream, downstream, kind, hour_at, {", ".join(ENDED)}, queue_sum_s, execution_sum_s,
  {", ".join(QUEUE)}, {", ".join(EXECUTION)})
SELECT upstream, downstream, kind, hour_at, {", ".join(_NUMBERS)}, sum(queue_sum_s), sum(execution_sum_s),
  {_numbers("queued", BUCKETS)}, {_numbers("ran", BUCKETS)}
FROM (
  SELECT upstream, downstream, kind, hour_at, ended_as, queued, ran, count(*) AS number,
    {_sum("queue_s", _TIMED)} AS queue_sum_s, {_sum("execution_s", _RAN)} AS execution_sum_s
  FROM (
    SELECT upstream, downstream, {_KIND} AS kind, in_progress_at - in_progress_at % {HOUR_US} AS hour_at, ended_as,
      {_bucket("queue_s", _TIMED)} AS queued, {_bucket("execution_s", _RAN)} AS ran, queue_s, execution_s
    FROM jobs WHERE ended_as IS NOT NULL AND event IN ({_KNOWN_EVENTS})
  ) AS placed GROUP BY 1, 2, 3, 4, 5, 6, 7
) AS counted GROUP BY 1, 2, 3, 4
"""
# What an earlier release did not write down: it sent a dispatch about as soon as it had made it.
_DELAYS = """
UPDATE dispatches SET delay_s = CASE WHEN sent_at > created_at THEN (sent_at - created_at) / 1000000.0 ELSE 0 END
WHERE sent_at IS NOT NULL AND delay_s IS NULL
"""
_SENT = f"""
INSERT INTO hours (upstream, downstream, kind, hour_at, sent, delay_sum_s)
SELECT upstream, downstream, {_KIND} AS kind, sent_at - sent_at % {HOUR_US} AS hour_at, count(*),
  sum(delay_s)
FROM dispatches WHERE sent_at IS NOT NULL AND test = 0 AND event IN ({_KNOWN_EVENTS}) GROUP BY 1, 2, 3, 4
ON CONFLICT (upstream, downstream, kind, hour_at)
DO UPDATE SET sent = excluded.sent, delay_sum_s = excluded.delay_sum_s
"""
_DAYS = f"""
INSERT INTO days (upstream, downstream, kind, day_at, {", ".join(BACKEND_SUMS)})
SELECT upstream, downstream, kind, hour_at - hour_at % {DAY_US} AS day_at,
  {", ".join(f"sum({name})" for name in BACKEND_SUMS)} FROM hours WHERE kind <> '{ResultKind.INGESTED}' GROUP BY 1, 2, 3, 4
"""
_JOB_DAYS = f"""
INSERT INTO job_days (upstream, downstream, kind, day_at, workflow, job_name, workflow_name, {", ".join(ENDED)},
  execution_sum_s, execution_known)
SELECT upstream, downstream, {_KIND} AS kind, in_progress_at - in_progress_at % {DAY_US} AS day_at, workflow, job_name,
  max(workflow_name), {", ".join(_COUNTS)}, {_sum("execution_s", _RAN)},
  sum(CASE WHEN ended_as IN ({_RAN}) AND execution_s IS NOT NULL THEN 1 ELSE 0 END)
FROM jobs WHERE ended_as IS NOT NULL AND event IN ({_KNOWN_EVENTS}) GROUP BY 1, 2, 3, 4, 5, 6
"""


def _extremes(table: str, at: str, width_us: int) -> str:
    """Set the shortest and longest durations of one table of sums."""
    known = {
        "queue": "queue_s",
        "execution": f"CASE WHEN ended_as <> '{EndedAs.SILENT}' THEN execution_s END",
    }
    ends = [("min", name) for name in LOWS] + [("max", name) for name in HIGHS]
    selected = ", ".join(f"{act}({known[name.partition('_')[0]]}) AS {name}" for act, name in ends)
    same = " AND ".join(f"{table}.{name} = found.{name}" for name in ("upstream", "downstream", "kind", at))
    return (
        f"UPDATE {table} SET {', '.join(f'{name} = found.{name}' for _, name in ends)} FROM (SELECT upstream,"
        f" downstream, {_KIND} AS kind, in_progress_at - in_progress_at % {width_us} AS {at}, {selected} FROM jobs"
        f" WHERE event IN ({_KNOWN_EVENTS}) AND ended_as <> '{EndedAs.OTHER}' GROUP BY 1, 2, 3, 4) AS found WHERE {same}"
    )


def rebuild_sums(connection: Connection) -> None:
    """Work out every sum of our own jobs; there must be none yet."""
    for statement in (_SET_ENDED_AS, _HOURS, _DELAYS, _SENT, _DAYS, _JOB_DAYS):
        connection.execute(text(statement))


def rebuild_extremes(connection: Connection) -> None:
    """Work out the shortest and longest durations of our own jobs, for sums that have none yet."""
    for table, at, width_us in (("hours", "hour_at", HOUR_US), ("days", "day_at", DAY_US)):
        connection.execute(text(_extremes(table, at, width_us)))
