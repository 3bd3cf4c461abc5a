"""The DynamoDB table of the public HUD: every outcome as that HUD writes it, in any order of writes and after faults."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.jobs.workflow_job_record import OUTCOME_NUMBER, Record, read_attributes
from crcr.decide.model import RepoName
from crcr.deliver.handlers.dynamodb import DynamoDbTable, make_update
from crcr.errors import OutsideFault, OutsideLimited, OutsideRefused, OutsideUnreachable, OutsideUnsure
from crcr.record.admin.operations import ParkedFilter
from support.aws.server import AwsFault, AwsServer, shared_aws
from support.downstream.callbacks import BACKEND, dispatched_run, post_report
from support.downstream.other_hud import HOST, SETTINGS, OtherHud
from support.downstream.self_reports import nightly_run, send_self_report, upstream_head
from support.running_relay import UPSTREAM

PUBLIC_NAMES = {"url": "workflow_run_url", "head_sha": "pytorch_head_sha", "level": "downstream_repo_level"}
"""Fields that the double of the public HUD names differently."""
ALWAYS = {
    *(
        "dynamoKey",
        "status",
        "downstream_repo",
        "upstream_repo",
        "pr_number",
        "pytorch_head_sha",
        "delivery_id",
    ),
    *("workflow_run_url", "workflow_name", "job_name", "check_run_id", "run_id", "run_attempt"),
}
RESULT_ONLY = {
    *("conclusion", "completed_at", "execution_time", "failed_tests_json"),
    *("passed_tests", "failed_tests", "skipped_tests", "total_tests"),
}
IF_KNOWN = {"queue_time", "started_at", "downstream_repo_level", "event_type", "artifact_url", "environment"}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    server = shared_aws()
    server.set_environment(monkeypatch)
    return server


def table_settings(aws: AwsServer, table: str) -> dict[str, Any]:
    return {
        "CRCR_DYNAMODB_TABLE": table,
        "CRCR_DYNAMODB_REGION": "us-east-1",
        "CRCR_DYNAMODB_ENDPOINT": aws.url,
    }


def items(aws: AwsServer, table: str) -> dict[str, Record]:
    scanned = aws.client("dynamodb").scan(TableName=table)["Items"]
    return {item["dynamoKey"]["S"]: read_attributes(item) for item in scanned}


async def test_items_equal_those_that_the_public_hud_writes_for_our_forwards(
    aws: AwsServer, tmp_path: Path
) -> None:
    hud, table = OtherHud(), aws.new_table()
    async with dispatched_run(tmp_path, outside={HOST: hud}, **SETTINGS, **table_settings(aws, table)) as (
        relay,
        run,
    ):
        await relay.github.push(UPSTREAM, ref="refs/tags/ciflow/trunk/1")
        await relay.drain()
        for dispatched in relay.github.runs(BACKEND):
            relay.clock.advance(30)
            await post_report(relay, dispatched, "build", "in_progress", environment={"device": "npu"})
        await relay.drain()
        started = items(aws, table)
        relay.clock.advance(60)
        test_counts = {"passed": 2, "failed": 1}
        failed = [{"name": "test_x", "message": "y" * 900, "file": "a.py"}]
        await post_report(
            relay,
            run,
            "build",
            "completed",
            conclusion="failure",
            test_results=test_counts,
            failed_tests=failed,
        )
        answer = await send_self_report(relay, nightly_run(relay), "test", commit=upstream_head(relay))
        assert answer.status_code == 200
        await relay.drain()

    written = items(aws, table)
    assert {record["status"] for record in started.values()} == {"in_progress"}
    for record in started.values():
        assert ALWAYS <= set(record) <= ALWAYS | IF_KNOWN | {OUTCOME_NUMBER}
    assert {record["pr_number"] for record in written.values()} == {0, 1}
    assert {record["event_type"] for record in written.values()} == {"pull_request", "push", "nightly"}
    assert set(written) == set(hud.records)
    for key, record in written.items():
        hud_record = {PUBLIC_NAMES.get(name, name): value for name, value in hud.records[key].items()}
        assert hud_record.pop("failed_tests", None) is None or "failed_tests_json" in record
        assert {name: record.get(name) for name in hud_record} == hud_record
        allowed = ALWAYS | IF_KNOWN | (RESULT_ONLY if record["status"] == "completed" else set())
        assert set(record) - {OUTCOME_NUMBER} <= allowed
        assert key == "/".join(
            str(record[name])
            for name in ("downstream_repo", "delivery_id", "workflow_name", "job_name", "check_run_id")
        )
    [result] = [record for record in written.values() if record.get("conclusion") == "failure"]
    assert (result["passed_tests"], result["failed_tests"], result["total_tests"]) == (2, 1, 3)
    assert "skipped_tests" not in result
    assert result["failed_tests_json"] == f'[{{"name":"test_x","message":"{"y" * 500}"}}]'
    assert (result["queue_time"], result["execution_time"], result["run_attempt"]) == (30, 90, 1)
    assert (result["environment"], result["check_run_id"]) == (
        '{"device":"npu"}',
        str(result["check_run_id"]),
    )


RETRIED = [
    AwsFault(400, "ProvisionedThroughputExceededException"),
    AwsFault(400, "ThrottlingException"),
    AwsFault(500, "InternalServerError"),
    AwsFault(500, "InternalServerError", after=True),
    AwsFault(503, "ServiceUnavailable"),
    AwsFault(400, "ExpiredTokenException"),
]


async def test_transient_dynamodb_faults_are_retried_and_a_refusal_is_parked_and_can_be_retried(
    aws: AwsServer, tmp_path: Path
) -> None:
    table = aws.new_table()
    async with dispatched_run(tmp_path, **table_settings(aws, table)) as (relay, run):
        await post_report(relay, run, "build", "in_progress")
        with aws.failing(*RETRIED):
            for _ in range(20):
                await relay.pass_time(3600 / 4)
            assert not aws.faults
        [record] = items(aws, table).values()
        assert (record["status"], record[OUTCOME_NUMBER]) == ("in_progress", 1)

        # The start is refused permanently, and retried after the result.
        await post_report(relay, run, "test", "in_progress")
        with aws.failing(AwsFault(400, "AccessDeniedException")):
            await relay.drain()
        [parked] = relay.rows("SELECT kind, last_error FROM effects WHERE state = 'parked'")
        assert parked == {"kind": "write_dynamodb", "last_error": "DynamoDB failed: AccessDeniedException"}
        await post_report(relay, run, "test", "completed", conclusion="success")
        await relay.drain()
        assert await relay.services.acts.retry_parked(
            RepoName(UPSTREAM), ParkedFilter(), who="op", now=relay.clock.now()
        )
        await relay.drain()
        assert relay.rows("SELECT 1 FROM effects WHERE state NOT IN ('done', 'cancelled')") == []
    states = {record["job_name"]: record.get("conclusion") for record in items(aws, table).values()}
    assert states == {"build": None, "test": "success"}


class Oracle:
    """The expected state: for each key, the highest outcome number ever written; without a number, results win."""

    def __init__(self) -> None:
        self.items: dict[str, dict[str, Any]] = {}

    def write(self, record: Record) -> bool:
        old = self.items.get(str(record["dynamoKey"]))
        if old is not None:
            if OUTCOME_NUMBER in old and old[OUTCOME_NUMBER] > record[OUTCOME_NUMBER]:
                return False
            if OUTCOME_NUMBER not in old and (old["status"], record["status"]) == (
                "completed",
                "in_progress",
            ):
                return False
        self.items[str(record["dynamoKey"])] = {**(old or {}), **record}
        return True


async def test_writes_in_any_order_end_in_the_state_of_the_oracle(aws: AwsServer) -> None:
    random_order, table, oracle = random.Random(23), aws.new_table(), Oracle()
    table_client, client = DynamoDbTable(table, endpoint=aws.url), aws.client("dynamodb")
    for key in ("a", "b", "c", "d"):
        # Outcomes of a job, as our relay numbers them: a start, then results; a later result corrects an earlier one.
        outcomes: list[Record] = [
            {"dynamoKey": key, "status": "in_progress", OUTCOME_NUMBER: 1, "queue_time": 1.5}
        ]
        outcomes += [
            {"dynamoKey": key, "status": "completed", "conclusion": conclusion, OUTCOME_NUMBER: number}
            for number, conclusion in enumerate(("timed_out", "success", "failure"), start=2)
        ]
        arriving = [*outcomes, *random_order.choices(outcomes, k=4)]
        random_order.shuffle(arriving)
        if key in "cd":  # the public HUD wrote a result, or a start, before
            old = {
                "dynamoKey": key,
                "status": "completed" if key == "c" else "in_progress",
                "job_name": "old",
            }
            client.put_item(TableName=table, Item={name: {"S": value} for name, value in old.items()})
            oracle.items[key] = dict(old)
        for record in arriving:
            assert await table_client.write(record) == oracle.write(record)
    assert items(aws, table) == oracle.items
    assert {item["conclusion"] for item in oracle.items.values()} == {"failure"}


async def test_concurrent_writes_of_one_item_keep_the_highest_outcome_number(aws: AwsServer) -> None:
    table = aws.new_table()
    table_client = DynamoDbTable(table, endpoint=aws.url)
    records: list[Record] = [
        {"dynamoKey": "k", "status": "completed", OUTCOME_NUMBER: number} for number in range(1, 13)
    ]
    random.Random(5).shuffle(records)
    await asyncio.gather(*map(table_client.write, records))
    assert items(aws, table)["k"][OUTCOME_NUMBER] == 12


FAULTS: list[tuple[AwsFault, type[OutsideFault]]] = [
    (AwsFault(400, "ThrottlingException"), OutsideLimited),
    (AwsFault(400, "RequestLimitExceeded"), OutsideLimited),
    (AwsFault(500, "InternalServerError"), OutsideUnsure),
    (AwsFault(400, "ExpiredTokenException"), OutsideUnreachable),
    (AwsFault(400, "UnrecognizedClientException"), OutsideUnreachable),
    (AwsFault(400, "AccessDeniedException"), OutsideRefused),
    (AwsFault(400, "ResourceNotFoundException"), OutsideRefused),
    (AwsFault(400, "ValidationException"), OutsideRefused),
    (AwsFault(200, "", hang_s=0.4), OutsideUnsure),
]


@pytest.mark.parametrize(("fault", "kind"), FAULTS)
async def test_dynamodb_errors_are_classified(
    aws: AwsServer, fault: AwsFault, kind: type[OutsideFault]
) -> None:
    table = DynamoDbTable("any", endpoint=aws.url, total_s=0.2 if fault.hang_s else 10.0)
    if fault.hang_s:
        await asyncio.to_thread(table._open)
    with aws.failing(fault), pytest.raises(kind) as caught:
        await table.write({"dynamoKey": "k", "status": "completed", OUTCOME_NUMBER: 1})
    assert type(caught.value) is kind
    assert "k" not in str(caught.value).split()


def test_a_key_longer_than_2048_bytes_is_refused_before_the_request() -> None:
    with pytest.raises(OutsideRefused, match="2,048 bytes"):
        make_update("t", {"dynamoKey": "🔥" * 513, "status": "completed"})
