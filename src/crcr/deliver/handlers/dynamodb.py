"""Writes results to the DynamoDB table of the public HUD, field by field, on condition that nothing newer is there.

Each item has the number of the outcome that it shows. So the order in which writes arrive does not matter: an older one is
refused by the table itself, even if it was on its way for an hour. An item without a number was written by the public HUD:
a start never replaces its result. The driver blocks, so it runs in threads of its own.
"""

import asyncio
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from threading import Lock
from typing import Any

import msgspec

from crcr.aws_client import error_code, open_client, outside_fault
from crcr.decide.jobs.workflow_job_record import KEY, OUTCOME_NUMBER, Record, write_attributes
from crcr.decide.outbox.effect import ClaimedEffect
from crcr.errors import OutsideRefused, OutsideUnsure
from crcr.ports import check_lease

_THREADS = 8
_TOTAL_S = 10.0
"""Below the shortest lease with which an effect is begun."""
_ANSWER_S = 6.0
_MOST_KEY_BYTES = 2_048
_NEWER = "ConditionalCheckFailedException"
_RECORD = msgspec.json.Decoder(dict[str, str | int | float])
_NOTHING_NEWER = "attribute_not_exists(#key) OR #number <= :number OR "
_RESULT_MAY = _NOTHING_NEWER + "attribute_not_exists(#number)"
_START_MAY = _NOTHING_NEWER + "(attribute_not_exists(#number) AND #status <> :completed)"


class DynamoDbTable:
    def __init__(
        self, name: str, *, region: str | None = None, endpoint: str | None = None, total_s: float = _TOTAL_S
    ) -> None:
        self._name = name
        self._region = region
        self._endpoint = endpoint
        self._total_s = total_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="dynamodb")
        self._opening = Lock()
        self._client: Any = None

    async def write(self, record: Record) -> bool:
        """Write a record; False when the table has a newer state of it. Raises `OutsideFault`."""
        request = make_update(self._name, record)
        work = asyncio.get_running_loop().run_in_executor(self._threads, self._update, request)
        try:
            return await asyncio.wait_for(work, self._total_s)
        except TimeoutError:
            raise OutsideUnsure(f"DynamoDB did not answer within {self._total_s:g} s") from None

    def _update(self, request: Mapping[str, Any]) -> bool:
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415  an optional extra

        try:
            self._open().update_item(**request)
        except (BotoCoreError, ClientError) as fault:
            if error_code(fault) == _NEWER:
                return False
            raise outside_fault(fault, "DynamoDB") from None
        return True

    def _open(self) -> Any:
        with self._opening:
            if self._client is None:
                self._client = open_client(
                    "dynamodb", region=self._region, endpoint=self._endpoint, answer_s=_ANSWER_S
                )
            return self._client


def make_update(table: str, record: Record) -> dict[str, Any]:
    """Return the arguments of `UpdateItem`: sets the fields that the record has, and leaves all others as they are."""
    key = str(record[KEY])
    if len(key.encode()) > _MOST_KEY_BYTES:
        raise OutsideRefused(f"the item's key has over {_MOST_KEY_BYTES:,} bytes", status=413)
    attributes = write_attributes(record)
    names = {f"#n_{name}": name for name in attributes if name != KEY}
    names |= {"#key": KEY, "#number": OUTCOME_NUMBER}
    values = {f":v_{name}": value for name, value in attributes.items() if name != KEY}
    values[":number"] = {"N": str(record.get(OUTCOME_NUMBER, 0))}
    is_result = record["status"] == "completed"
    if not is_result:  # DynamoDB refuses names and values that no expression uses
        names["#status"], values[":completed"] = "status", {"S": "completed"}
    return {
        "TableName": table,
        "Key": {KEY: attributes[KEY]},
        "UpdateExpression": "SET "
        + ", ".join(f"#n_{name} = :v_{name}" for name in attributes if name != KEY),
        "ConditionExpression": _RESULT_MAY if is_result else _START_MAY,
        "ExpressionAttributeNames": names,
        "ExpressionAttributeValues": values,
    }


class WriteDynamoDb:
    def __init__(self, table: DynamoDbTable) -> None:
        self._table = table

    async def __call__(self, effect: ClaimedEffect) -> bool:
        await check_lease.get()()
        written = await self._table.write(_RECORD.decode(effect.payload or b"{}"))
        await check_lease.get()()
        return written
