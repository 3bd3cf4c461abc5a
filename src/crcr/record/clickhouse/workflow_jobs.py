"""The table `crcr_workflow_job` of the public HUD in ClickHouse: written from a DynamoDB stream, and read by imports.

A row is a whole item of the DynamoDB table, and of the rows with one key the last one inserted is valid. The table may be the
public HUD's own, with columns that are not named here; where there is none, it is created.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from crcr.decide.jobs.forwarding import parse_claimed_time
from crcr.decide.jobs.workflow_job_record import KEY, Record
from crcr.record.clickhouse.connection import SCAN_TIMEOUT_S, ClickHouseLink

TABLE = "crcr_workflow_job"
_TEXT, _COUNT, _TIME, _SECONDS = "String", "UInt64", "DateTime64(9, 'UTC')", "Nullable(Float64)"
_COLUMNS = {
    KEY: _TEXT,
    **dict.fromkeys(("status", "downstream_repo", "upstream_repo"), _TEXT),
    "pr_number": _COUNT,
    **dict.fromkeys(("pytorch_head_sha", "delivery_id", "workflow_run_url", "workflow_name"), _TEXT),
    **dict.fromkeys(("job_name", "check_run_id", "run_id"), _TEXT),
    "run_attempt": "UInt32",
    "conclusion": _TEXT,
    **dict.fromkeys(("queue_time", "execution_time"), _SECONDS),
    **dict.fromkeys(("started_at", "completed_at"), _TIME),
    **dict.fromkeys(("total_tests", "passed_tests", "failed_tests", "skipped_tests"), _COUNT),
    **dict.fromkeys(("failed_tests_json", "artifact_url", "environment", "downstream_repo_level"), _TEXT),
    "event_type": _TEXT,
}
_DEFAULTS = {"run_attempt": 1, "event_type": "pull_request"}
_LARGEST = {_COUNT: 2**64 - 1, "UInt32": 2**32 - 1}
_CREATE = (
    f"CREATE TABLE IF NOT EXISTS {TABLE} ({', '.join(f'{name} {kind}' for name, kind in _COLUMNS.items())},"
    " duration_seconds Float64 ALIAS if(completed_at = toDateTime64(0, 9), 0, dateDiff('second', started_at, completed_at)))"
    f" ENGINE = ReplacingMergeTree ORDER BY (downstream_repo, delivery_id, {KEY})"
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_LAST = datetime(2262, 4, 11, tzinfo=UTC)
"""The end of a time in nanoseconds."""


class WorkflowJobTable:
    def __init__(self, link: ClickHouseLink) -> None:
        self._link = link
        self._exists = False

    async def insert(self, records: Sequence[Record]) -> None:
        """Insert the records; of several with one key the last. Raises `OutsideFault`."""
        if not self._exists:
            await self._link.command(_CREATE)
            self._exists = True
        newest = {record[KEY]: record for record in records}
        await self._link.insert(TABLE, _COLUMNS, [_row(record) for record in newest.values()])

    async def count(self) -> int:
        rows = await self._link.query_slowly(f"SELECT count() AS number FROM {TABLE} FINAL", SCAN_TIMEOUT_S)  # noqa: S608  ours
        return int(rows[0]["number"])

    async def read_after(self, key: str, most: int) -> list[Mapping[str, Any]]:
        """Return rows in the order of their keys; times as texts."""
        names = ", ".join(
            f"toString({name}) AS {name}" if kind == _TIME else name for name, kind in _COLUMNS.items()
        )
        quoted = key.replace("\\", "\\\\").replace("'", "\\'")
        sql = f"SELECT {names} FROM {TABLE} FINAL WHERE {KEY} > '{quoted}' ORDER BY {KEY} LIMIT {most:d}"  # noqa: S608  escaped
        return list(await self._link.query_slowly(sql, SCAN_TIMEOUT_S))


def _row(record: Mapping[str, Any]) -> list[Any]:
    return [_value(name, kind, record.get(name)) for name, kind in _COLUMNS.items()]


def _value(name: str, kind: str, value: Any) -> Any:
    """Return what the column can hold: a value that it cannot is *none*, since one row would have the whole batch refused."""
    if kind == _TIME:
        moment = parse_claimed_time(value)
        return moment if moment is not None and _EPOCH <= moment < _LAST else _EPOCH
    if kind == _SECONDS:
        return float(value) if isinstance(value, int | float) else None
    if kind == _TEXT:
        text = str(value) if value is not None else _DEFAULTS.get(name, "")
        return str(text).encode(errors="replace").decode()
    fits = isinstance(value, int | float) and 0 <= value <= _LARGEST[kind]
    return int(value) if fits else _DEFAULTS.get(name, 0)
