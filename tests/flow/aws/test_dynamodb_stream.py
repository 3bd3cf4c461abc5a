"""The stream of the DynamoDB table: stored in the public HUD's ClickHouse table and in our ingest, each item once and in order."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from crcr.decide.jobs.workflow_job_record import write_attributes
from crcr.errors import OutsideUnreachable, StoreUnavailable
from crcr.receive.ingest.dynamodb_stream import StreamIntake, handle_stream
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.workflow_jobs import WorkflowJobTable
from flow.aws.test_dynamodb_table import table_settings
from github_sim.github import WorkflowRun
from support.aws.server import AwsServer, shared_aws
from support.clock import ManualClock
from support.downstream.callbacks import BACKEND, LISTED, dispatched_run, post_report
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.services.clickhouse import new_database

PUBLIC_TABLE = """
CREATE TABLE crcr_workflow_job (
  dynamoKey String, status String, downstream_repo String, upstream_repo String, pr_number UInt64,
  pytorch_head_sha String, delivery_id String, workflow_run_url String, workflow_name String, job_name String DEFAULT '',
  check_run_id String DEFAULT '', run_id String DEFAULT '', run_attempt UInt32 DEFAULT 1, conclusion String,
  queue_time Nullable(Float64), execution_time Nullable(Float64), started_at DateTime64(9), completed_at DateTime64(9),
  total_tests UInt64 DEFAULT 0, passed_tests UInt64 DEFAULT 0, failed_tests UInt64 DEFAULT 0, skipped_tests UInt64 DEFAULT 0,
  failed_tests_json String DEFAULT '', artifact_url String DEFAULT '', environment String DEFAULT '',
  downstream_repo_level String DEFAULT '', event_type String DEFAULT 'pull_request', _inserted_at DateTime MATERIALIZED now()
) ENGINE = ReplacingMergeTree ORDER BY (downstream_repo, delivery_id, dynamoKey)
"""
"""The columns of the public HUD's table."""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    server = shared_aws()
    server.set_environment(monkeypatch)
    return server


@asynccontextmanager
async def clickhouse(*, public: bool) -> AsyncIterator[ClickHouseLink]:
    link = ClickHouseLink(ClickHouseLocation(new_database()))
    if public:
        await link.command(PUBLIC_TABLE)
    yield link
    await link.close()


def stream_event(aws: AwsServer, table: str) -> dict[str, Any]:
    """All records of a table's stream, in the form in which Lambda receives them."""
    client = aws.client("dynamodbstreams")
    arn = client.list_streams(TableName=table)["Streams"][0]["StreamArn"]
    shard = client.describe_stream(StreamArn=arn)["StreamDescription"]["Shards"][0]["ShardId"]
    iterator = client.get_shard_iterator(StreamArn=arn, ShardId=shard, ShardIteratorType="TRIM_HORIZON")
    records = client.get_records(ShardIterator=iterator["ShardIterator"])["Records"]
    for record in records:
        record["eventSourceARN"] = arn
        record["dynamodb"]["ApproximateCreationDateTime"] = 1_700_000_000
    return {"Records": records}


def event(*records: dict[str, Any], name: str = "MODIFY") -> dict[str, Any]:
    return {
        "Records": [
            {
                "eventID": f"id{number}",
                "eventName": name,
                "eventVersion": "1.1",
                "eventSource": "aws:dynamodb",
                "awsRegion": "us-east-1",
                "eventSourceARN": "arn:aws:dynamodb:us-east-1:123456789012:table/torchci-oot-workflow-job/stream/2026",
                "dynamodb": {
                    "Keys": {"dynamoKey": {"S": record.get("dynamoKey", "")}},
                    "NewImage": write_attributes(record),
                    "SequenceNumber": str(number),
                    "StreamViewType": "NEW_IMAGE",
                },
            }
            for number, record in enumerate(records, start=1)
        ]
    }


def an_item(delivery: str = "d1", status: str = "completed", **fields: Any) -> dict[str, Any]:
    return {
        "dynamoKey": f"{BACKEND}/{delivery}/CI/build/7",
        "status": status,
        "downstream_repo": BACKEND,
        "upstream_repo": UPSTREAM,
        "pr_number": 3,
        "pytorch_head_sha": "a" * 40,
        "delivery_id": delivery,
        "workflow_run_url": "https://github.com/org/backend/actions/runs/1",
        "workflow_name": "CI",
        "job_name": "build",
        "check_run_id": "7",
        "run_id": "1",
        "run_attempt": 1,
        "started_at": "2025-12-31T23:00:00Z",
        **(
            {"conclusion": "failure", "completed_at": "2025-12-31T23:10:00Z"} if status == "completed" else {}
        ),
        **fields,
    }


async def _run_pull_requests(relay: RunningRelay) -> None:
    """Three pull requests with two jobs each; one job fails, and passes in its second attempt; one stays failed."""

    async def report(run: WorkflowRun, job: str, conclusion: str, seconds: float) -> None:
        relay.clock.advance(10)
        assert (await post_report(relay, run, job, "in_progress")).status_code == 200
        relay.clock.advance(seconds)
        assert (await post_report(relay, run, job, "completed", conclusion=conclusion)).status_code == 200
        await relay.drain()

    for number in range(3):
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(BACKEND)[-1]
        await report(run, "build", "failure" if number == 1 else "success", 100)
        await report(run, "test", "failure" if number == 2 else "success", 50)
        if number == 1:
            await report(await relay.github.rerun(run), "build", "success", 30)


LAST_ATTEMPTS = """
SELECT countIf(conclusion = 'success') AS success, countIf(conclusion = 'failure') AS failure, count() AS total,
  avg(queue_time) AS queue, avg(execution_time) AS execution
FROM (
  SELECT * FROM crcr_workflow_job FINAL WHERE downstream_repo = 'org/backend' AND status = 'completed' AND pr_number > 0
    AND started_at > parseDateTimeBestEffort('{now}') - INTERVAL 14 DAY
  ORDER BY run_attempt DESC LIMIT 1 BY pr_number, job_name
)
"""
"""The public HUD's query for the figures of a backend: the last attempt of each job of a pull request."""
ALL_ATTEMPTS = "SELECT count() AS total, countIf(conclusion = 'failure') AS failure FROM crcr_workflow_job FINAL WHERE status = 'completed' AND pr_number > 0"
"""The query of its overview."""


@pytest.mark.parametrize("public", [True, False], ids=["the public HUD's table", "our own"])
async def test_the_public_huds_queries_over_the_replicated_stream_give_the_numbers_of_our_api(
    aws: AwsServer, tmp_path: Path, public: bool
) -> None:
    table = aws.new_table(StreamSpecification={"StreamEnabled": True, "StreamViewType": "NEW_IMAGE"})
    async with (
        running_relay(tmp_path, LISTED, downstreams=(BACKEND,), **table_settings(aws, table)) as relay,
        clickhouse(public=public) as link,
    ):
        await _run_pull_requests(relay)
        answer = (await relay.http.get(f"/api/v1/backends/{BACKEND}?range=14d")).json()
        intake = StreamIntake(results=None, table=WorkflowJobTable(link), clock=relay.clock)
        batch = stream_event(aws, table)
        for _ in range(2):  # a repeated batch changes nothing
            assert await handle_stream(batch, intake) == {"batchItemFailures": []}
        [public_hud] = await link.query(LAST_ATTEMPTS.replace("{now}", relay.clock.now().isoformat()))
        [overview] = await link.query(ALL_ATTEMPTS)
    figures = answer["backend"]["figures"]
    tally = figures["tally"]
    assert (tally["success"], tally["failure"], tally["decided"]) == (5, 1, 6)
    assert (public_hud["success"], public_hud["failure"], public_hud["total"]) == (5, 1, 6)
    assert public_hud["execution"] == pytest.approx(figures["execution"]["average_s"])
    assert public_hud["queue"] == pytest.approx(figures["queue"]["average_s"])
    # The public HUD's overview also counts the superseded attempt.
    assert (overview["total"], overview["failure"]) == (tally["decided"] + 1, tally["failure"] + 1)


async def test_the_existing_replicator_inserts_our_items_into_its_table_unchanged() -> None:
    """It inserts the whole image as JSON; the outcome number has no column in that table."""
    async with clickhouse(public=True) as link:
        item = json.dumps(an_item(outcome_number=2, environment='{"device":"npu"}'))
        settings = "async_insert=1, wait_for_async_insert=1, date_time_input_format='best_effort'"
        await link.command(f"INSERT INTO crcr_workflow_job SETTINGS {settings} FORMAT JSONEachRow {item}")
        [row] = await link.query(
            "SELECT conclusion, environment, toString(started_at) AS at FROM crcr_workflow_job FINAL"
        )
    assert row == {
        "conclusion": "failure",
        "environment": '{"device":"npu"}',
        "at": "2025-12-31 23:00:00.000000000",
    }


async def test_items_of_an_old_relay_appear_on_our_pages_as_results_of_another_relay(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, LISTED, downstreams=(BACKEND,)) as relay:
        started = an_item(status="in_progress", queue_time=4.5)
        batch = event(started, an_item(execution_time=600.0, total_tests=3, failed_tests=1, passed_tests=2))
        for _ in range(2):
            assert await handle_stream(batch, relay.services.stream) == {"batchItemFailures": []}
        assert await handle_stream(event(an_item(), name="REMOVE"), relay.services.stream) == {
            "batchItemFailures": []
        }
        # A late start record changes nothing.
        assert await handle_stream(event(started), relay.services.stream) == {"batchItemFailures": []}
        [row] = relay.rows("SELECT * FROM ingested")
        assert (row["conclusion"], row["queue_s"], row["execution_s"], row["number"]) == (
            "failure",
            4.5,
            600.0,
            3,
        )
        assert (row["tests_total"], row["upstream"], row["origin"]) == (3, UPSTREAM, "dynamodb")
        assert relay.rows("SELECT 1 FROM jobs") == []


class BrokenTable:
    async def insert(self, _: object) -> None:
        raise OutsideUnreachable("away")


class BrokenResults:
    """Fails from the second result on."""

    def __init__(self) -> None:
        self.taken: list[str] = []

    async def take(self, result: Any, *_: object, **__: object) -> None:
        if self.taken:
            raise StoreUnavailable("away")
        self.taken.append(result.report.delivery_id)


async def test_a_failed_batch_names_the_first_record_that_was_not_stored(clock: ManualClock) -> None:
    batch, results = event(an_item("d1"), an_item("d2"), an_item("d3")), BrokenResults()
    intake = StreamIntake(results=results, table=None, clock=clock)  # type: ignore[arg-type]
    assert await handle_stream(batch, intake) == {"batchItemFailures": [{"itemIdentifier": "2"}]}
    assert results.taken == ["d1"]
    broken = StreamIntake(results=None, table=BrokenTable(), clock=clock)
    assert await handle_stream(batch, broken) == {"batchItemFailures": [{"itemIdentifier": "1"}]}


HOSTILE: list[Any] = [
    {},
    {"Records": None},
    {"Records": [None, 7, {}, {"dynamodb": 1}, {"eventName": "INSERT", "dynamodb": {}}]},
    {
        "Records": [
            {"eventName": "INSERT", "dynamodb": {"NewImage": {"status": {"S": "completed", "N": "1"}}}}
        ]
    },
    event(an_item(status="queued"), an_item(conclusion="exploded"), an_item(downstream_repo="no repository")),
    event(an_item(job_name=""), an_item(job_name="x" * 5000), an_item(delivery_id="\0" * 3)),
    event(an_item(dynamoKey="")),
    {
        "Records": [
            {
                "eventName": "INSERT",
                "dynamodb": {"NewImage": {"pr_number": {"N": "9" * 400}, "x": {"L": [{}]}}},
            }
        ]
    },
]


@pytest.mark.parametrize("batch", HOSTILE, ids=range(len(HOSTILE)))
async def test_malformed_records_are_skipped_and_do_not_fail_the_batch(
    batch: Any, clock: ManualClock
) -> None:
    intake = StreamIntake(results=BrokenResults(), table=BrokenTable(), clock=clock)  # type: ignore[arg-type]
    assert await handle_stream(batch, intake) == {"batchItemFailures": []}


UNFIT: list[dict[str, Any]] = [
    {"completed_at": "9999-12-31T23:59:59Z"},
    {"started_at": "0001-01-01T00:00:00Z"},
    {"pr_number": 1e300},
    {"run_attempt": -5, "total_tests": 1e30, "passed_tests": -1},
    {"queue_time": -1e300, "environment": '{"a":' * 900 + "1" + "}" * 900},
    {"workflow_run_url": "\udfff", "artifact_url": "a\0b"},
]
"""Values that a backend can report, and that a column of ClickHouse cannot hold."""


async def test_records_with_out_of_range_values_do_not_fail_their_batch(clock: ManualClock) -> None:
    """ClickHouse rejects a batch as a whole, and AWS would retry it until the records expire."""
    unfit = [an_item(f"unfit{number}", **claimed) for number, claimed in enumerate(UNFIT)]
    async with clickhouse(public=True) as link:
        intake = StreamIntake(results=None, table=WorkflowJobTable(link), clock=clock)
        batch = event(an_item("first"), *unfit, an_item("last"))
        assert await handle_stream(batch, intake) == {"batchItemFailures": []}
        rows = await link.query("SELECT delivery_id, toString(completed_at) AS at FROM crcr_workflow_job")
    times = {row["delivery_id"]: row["at"] for row in rows}
    assert {"first", "last", *(item["delivery_id"] for item in unfit)} == set(times)
    assert times["unfit0"].startswith("1970-01-01")
    assert times["last"].startswith("2025-12-31 23:10")


async def test_results_that_this_relay_wrote_to_the_table_are_not_ingested_again(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        await post_report(relay, run, "build", "in_progress")
        [job] = relay.rows("SELECT delivery, run_id FROM jobs")
        own_item = an_item(job["delivery"], run_id=job["run_id"], outcome_number=2)
        foreign_item = an_item("of-the-old-relay", run_id=job["run_id"])
        assert await handle_stream(event(own_item, foreign_item), relay.services.stream) == {
            "batchItemFailures": []
        }
        assert [row["delivery"] for row in relay.rows("SELECT delivery FROM ingested")] == [
            "of-the-old-relay"
        ]
