"""`crcr import`: another relay's history is shown once, under its own dates, in matrix, sums and levels, and decides nothing."""

import gzip
import json
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from crcr.cli.run.import_history import ImportRun
from crcr.decide.jobs.imported import PullDispatch, superseded_dispatches
from crcr.errors import OutsideUnreachable
from crcr.receive.ingest.import_sources import (
    ClickHouseSource,
    DynamoDbSource,
    FileSource,
    ImportSource,
    SourceBatch,
    read_item,
)
from crcr.record.clickhouse.connection import ClickHouseLink, ClickHouseLocation
from crcr.record.clickhouse.workflow_jobs import WorkflowJobTable
from crcr.record.jobs.imported import ImportedResults
from crcr.record.upkeep.retention import Retention, RetentionPeriods
from support.aws.dynamodb_scan import serve_table
from support.aws.history_items import (
    BACKENDS,
    LISTED,
    Item,
    Sums,
    attributes,
    expected_sums,
    make_history,
    write_lines,
)
from support.aws.server import AwsServer, shared_aws
from support.downstream.callbacks import post_report
from support.running_relay import UPSTREAM, RunningRelay, running_relay
from support.services.clickhouse import new_database

NOW = datetime.now(UTC).replace(microsecond=0)
"""The command uses the system's clock."""


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AwsServer:
    server = shared_aws()
    server.set_environment(monkeypatch)
    return server


async def run_import(relay: RunningRelay, source: ImportSource, **options: bool) -> Counter[str]:
    services = relay.services
    results = ImportedResults(services.database, services.allowlists, services.upstreams)
    work = ImportRun(results, source, services.upstreams, timedelta(days=400))
    progress = await work.run(dry_run=options.get("dry_run", False), anew=options.get("anew", False))
    return progress.counts


def read_sums(relay: RunningRelay) -> Sums:
    sums: Sums = {}
    for row in relay.rows("SELECT * FROM days"):
        day = datetime.fromtimestamp(row["day_at"] / 1e6, UTC).strftime("%Y-%m-%d")
        names = ("success", "failure", "timed_out", "silent", "other", "superseded", "earlier")
        counts = Counter({name: round(row[name]) for name in (*names, "queue_sum_s", "execution_sum_s")})
        if +counts:
            sums[row["downstream"], row["kind"], day] = +counts
    return sums


def all_rows(relay: RunningRelay) -> dict[str, list[dict[str, Any]]]:
    tables = (
        "jobs",
        "dispatches",
        "hours",
        "days",
        "job_days",
        "effects",
        "deliveries",
        "failures",
        "changes",
    )
    return {table: sorted(relay.rows(f"SELECT * FROM {table}"), key=str) for table in tables}  # noqa: S608  ours


@dataclass
class Interrupted:
    """A source whose connection breaks after some batches."""

    source: ImportSource
    after: int

    @property
    def name(self) -> str:
        return self.source.name

    async def estimate(self) -> int | None:
        return await self.source.estimate()

    async def batches(self, position: Mapping[str, Any]) -> AsyncIterator[SourceBatch]:
        async for batch in self.source.batches(position):
            if self.after == 0:
                raise OutsideUnreachable("broken off")
            self.after -= 1
            yield batch


async def test_2000_items_imported_twice_with_interruptions_give_the_numbers_of_the_oracle(
    aws: AwsServer, tmp_path: Path
) -> None:
    history = make_history(2_000, UPSTREAM, NOW)
    with serve_table(map(attributes, history.items)) as table:
        source = DynamoDbSource("t", region="us-east-1", endpoint=table.url, segments=3)
        async with running_relay(tmp_path, LISTED) as relay:
            dry_run_counts = await run_import(relay, source, dry_run=True)
            assert relay.rows("SELECT 1 FROM jobs") == relay.rows("SELECT 1 FROM imports") == []

            for after in (2, 3):
                with pytest.raises(OutsideUnreachable):
                    await run_import(relay, Interrupted(source, after))
            counts = await run_import(relay, source)
            assert counts == dry_run_counts  # every item is counted once, despite the interruptions
            assert (counts["read"], counts["unchanged"]) == (2_000, 0)
            assert counts["taken"] == 2_000 - history.not_taken.total()
            for reason_word, number in history.not_taken.items():
                assert (
                    sum(count for reason, count in counts.items() if reason_word in reason.split()) == number
                )
            assert read_sums(relay) == expected_sums(history.items, UPSTREAM, NOW)

            before = all_rows(relay)
            repeated = await run_import(relay, source)
            assert (repeated["unchanged"], repeated["taken"], repeated["corrected"]) == (
                counts["taken"],
                0,
                0,
            )
            assert all_rows(relay) == before
            assert before["deliveries"] == before["failures"] == []
            assert {effect["kind"] for effect in before["effects"]} == {"identify_repository"}
            shuffled = sorted(history.items, key=lambda item: item["dynamoKey"])
            (tmp_path / "export.json").write_text(write_lines(shuffled, "export"))
            from_file = await run_import(relay, FileSource([tmp_path / "export.json"]))
            assert (from_file["unchanged"], from_file["taken"]) == (counts["taken"], 0)
            assert read_sums(relay) == expected_sums(history.items, UPSTREAM, NOW)
            await _check_pages(relay, history.items)


async def _check_pages(relay: RunningRelay, items: list[Item]) -> None:
    """Matrix, figures and levels show the imported results under their own kinds, marked; the kind of other relays stays empty."""
    relay.clock.advance(NOW - relay.clock.now())
    backend = BACKENDS[0]
    page = (await relay.http.get(f"/api/v1/backends/{backend}?range=90d&older=1")).json()
    expected = _expected_counts(items, backend)
    tally = page["backend"]["figures"]["tally"]
    assert (tally["success"], tally["timed_out"]) == (expected["success"], expected["timed_out"])
    assert tally["failure"] == expected["failure"] + expected["timed_out"]
    assert page["rows"]
    cells = [job for row in page["rows"] for job in row["cells"] if job]
    assert cells
    assert all("imported" in cell["marks"] for cell in cells)
    detail = await relay.http.get(f"/crcr/{backend}?fragment=panel&job={cells[0]['token']}")
    assert (detail.status_code, "Imported: another relay took this result" in detail.text) == (200, True)
    assert (await relay.http.get(f"/api/v1/jobs?downstream={backend}")).status_code == 200
    assert (await relay.http.get(f"/crcr/{backend}?range=90d&kind=nightly")).status_code == 200
    other = (await relay.http.get(f"/api/v1/backends/{backend}?range=90d&kind=ingested")).json()
    assert other["rows"] == []
    html = (await relay.http.get(f"/crcr/{backend}?range=90d")).text
    assert ">imported</span>" in html
    assert f"/{UPSTREAM}/pull/" in html  # only GitHub has a page for it
    await relay.services.levels.evaluate_now(relay.services.upstreams[0], relay.clock.now())
    rows = [row for row in relay.rows("SELECT * FROM level_days") if row["downstream"] == backend]
    assert any(json.loads(row["runs"]) for row in rows)
    assert {row["expected"] for row in rows} == {0}  # unanswered dispatches are not known


FORMS = ("export", "rows", "envelopes")


@pytest.mark.parametrize("form", FORMS)
async def test_files_are_read_in_each_format_gzipped_or_not(tmp_path: Path, form: str) -> None:
    history = make_history(60, UPSTREAM, NOW, seed=3)
    if form == "envelopes":
        items = [item for item in history.items if read_item("", item).result is not None]
        text = "".join(json.dumps(_envelope(item)) + "\n" for item in items)
    else:
        items, text = history.items, write_lines(history.items, form)
    folder = tmp_path / "AWSDynamoDB" / "0123" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "manifest-files.json").write_text("{}")
    half = len(text) // 2
    half = text.index("\n", half) + 1
    (folder / "a.json.gz").write_bytes(gzip.compress(text[:half].encode()))
    (folder / "b.json").write_text(text[half:] + "not JSON\n\n[1]\n" + "9" * 5_000 + "\n")
    async with running_relay(tmp_path, LISTED) as relay:
        with pytest.raises(OutsideUnreachable):
            await run_import(relay, Interrupted(FileSource([tmp_path / "AWSDynamoDB"]), 1))
        counts = await run_import(relay, FileSource([tmp_path / "AWSDynamoDB"]))
        assert counts["read"] == len(items) + 3
        assert read_sums(relay) == expected_sums(items, UPSTREAM, NOW)


def _envelope(item: Item) -> dict[str, Any]:
    """As the public relay forwards it."""
    pull = {"pull_request": {"number": item["pr_number"], "head": {"sha": item["pytorch_head_sha"]}}}
    push = {"after": item["pytorch_head_sha"], "ref": "refs/heads/main"}
    of_event = {"pull_request": pull, "push": push}.get(item["event_type"], {})
    names = (
        "status",
        "conclusion",
        "job_name",
        "check_run_id",
        "run_id",
        "run_attempt",
        "started_at",
        "completed_at",
    )
    return {
        "trusted": {
            "verified_repo": item["downstream_repo"],
            "downstream_repo_level": "L2",
            "ci_metrics": {
                "queue_time": item.get("queue_time"),
                "execution_time": item["execution_time"],
            },
        },
        "untrusted": {
            "callback_payload": {
                "event_type": item["event_type"],
                "delivery_id": item["delivery_id"],
                "payload": {"repository": {"full_name": item["upstream_repo"]}, **of_event},
                "workflow": {"name": item["workflow_name"], **{name: item[name] for name in names}},
            }
        },
    }


async def test_importing_clickhouse_after_dynamodb_changes_nothing(aws: AwsServer, tmp_path: Path) -> None:
    history = make_history(60, UPSTREAM, NOW, seed=5)
    items = [item for item in history.items if item["started_at"] is not None]
    name, client = aws.new_table(), aws.client("dynamodb")
    for start in range(0, len(items), 25):
        puts = [{"PutRequest": {"Item": attributes(item)}} for item in items[start : start + 25]]
        client.batch_write_item(RequestItems={name: puts})
    link = ClickHouseLink(ClickHouseLocation(new_database()))
    table = WorkflowJobTable(link)
    await table.insert(items)
    # Our own history is in ClickHouse, too: the pages read their figures from there, and they are the same.
    async with running_relay(tmp_path, LISTED, CRCR_CLICKHOUSE_URL=new_database()) as relay:
        await relay.services.clickhouse.record_switch(relay.services.upstreams, relay.clock.now())
        relay.clock.advance(NOW - relay.clock.now())
        dynamodb = await run_import(
            relay, DynamoDbSource(name, region="us-east-1", endpoint=aws.url, segments=2)
        )
        source = ClickHouseSource(table, "clickhouse://127.0.0.1")
        assert await source.estimate() == len(items)
        with pytest.raises(OutsideUnreachable):
            await run_import(relay, Interrupted(source, 0))
        clickhouse = await run_import(relay, source)
        assert (clickhouse["unchanged"], clickhouse["taken"], clickhouse["corrected"]) == (
            dynamodb["taken"],
            0,
            0,
        )
        assert read_sums(relay) == expected_sums(items, UPSTREAM, NOW)
        await relay.pass_time(3600)
        for backend in BACKENDS:
            page = (await relay.http.get(f"/api/v1/backends/{backend}?range=90d")).json()
            assert page["history"] == "clickhouse"
            expected = _expected_counts(items, backend.lower())
            tally = page["backend"]["figures"]["tally"]
            assert (tally["success"], tally["timed_out"]) == (expected["success"], expected["timed_out"])

        # Rows past the retention period are deleted, and their sums are kept.
        before = read_sums(relay)
        await _apply_retention(relay, timedelta(days=30))
        assert relay.rows("SELECT 1 FROM dispatches WHERE imported = 1") != []
        await _apply_retention(relay, timedelta(0))
        assert relay.rows("SELECT 1 FROM dispatches") == []
        assert relay.rows("SELECT 1 FROM jobs WHERE event <> 'nightly'") == []
        assert read_sums(relay) == before
    await link.close()


async def _apply_retention(relay: RunningRelay, period: timedelta) -> None:
    periods = RetentionPeriods(bodies=period, effects=period, jobs=period, audit=None)
    await Retention(relay.services.database, periods).forget(relay.clock.now())


def _expected_counts(items: list[Item], backend: str) -> Counter[str]:
    expected = Counter[str]()
    for (name, kind, _), counts in expected_sums(items, UPSTREAM, NOW).items():
        if (name, kind) == (backend, "pull_request"):
            expected += counts
    return expected


async def test_a_corrected_result_is_updated_and_one_reported_to_this_relay_is_kept(
    tmp_path: Path,
) -> None:
    file, backend = tmp_path / "items.jsonl", BACKENDS[0]
    items = make_history(40, UPSTREAM, NOW, seed=9).items
    async with running_relay(tmp_path, LISTED, downstreams=(backend,)) as relay:
        file.write_text(write_lines(items, "rows"))
        imported_count = (await run_import(relay, FileSource([file])))["taken"]
        for item in items:
            if item["conclusion"] == "success":
                item |= {
                    "conclusion": "failure",
                    "execution_time": item["execution_time"] + 7,
                    "queue_time": 3.0,
                }
        file.write_text(write_lines(items, "rows"))
        counts = await run_import(relay, FileSource([file]))
        assert 0 < counts["corrected"] < imported_count == counts["corrected"] + counts["unchanged"]
        assert read_sums(relay) == expected_sums(items, UPSTREAM, NOW)

        # The result of a webhook that both relays received is ours.
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        own_dispatch, *_ = relay.rows("SELECT delivery FROM dispatches WHERE imported = 0")
        valid = next(
            item for item in items if item["event_type"] == "pull_request" and read_item("", item).result
        )
        file.write_text(write_lines([{**valid, "delivery_id": own_dispatch["delivery"]}], "rows"))
        repeated = await run_import(relay, FileSource([file]))
        assert repeated == Counter({"read": 1, "it was reported to this relay itself": 1})


async def test_imported_results_open_no_gate_and_accept_no_report(tmp_path: Path) -> None:
    """The head of an open pull request was tested under the old relay: our gate waits for a result of its own."""
    backend = "org/gating"
    listed = f"L4:\n  - {backend}: {{oncalls: [bob], jobs: ['*']}}\n"
    async with running_relay(tmp_path, listed, downstreams=(backend,)) as relay:
        pull = await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(NOW - relay.clock.now())
        item = next(
            item for item in make_history(200, UPSTREAM, NOW).items if item["event_type"] == "pull_request"
        )
        item |= {"downstream_repo": backend, "pr_number": pull.number, "pytorch_head_sha": pull.head_sha}
        item |= {"conclusion": "success", "status": "completed", "downstream_repo_level": "L4"}
        (tmp_path / "one.jsonl").write_text(write_lines([item], "rows"))
        assert (await run_import(relay, FileSource([tmp_path / "one.jsonl"])))["taken"] == 1
        await relay.drain()
        page = (await relay.http.get(f"/api/v1/pulls/{pull.number}")).json()
        assert "success" not in json.dumps(page["gate"]).lower()
        run = relay.github.runs(backend)[0]
        job = run.job("build")
        for delivery in (item["delivery_id"], f"imported-{item['delivery_id']}"):
            body = {**relay.github.ci.report_body(run, job, "in_progress"), "delivery_id": delivery}
            token = relay.github.oidc_token(run, job, audience="crcr-test")
            answer = await relay.http.post(
                "/github/callback", json=body, headers={"Authorization": f"Bearer {token}"}
            )
            assert (answer.status_code, answer.json()["error"]["code"]) == (404, "unknown_delivery")


def _job_item(item: Item, backend: str, ended_at: datetime, **more: Any) -> Item:
    started_at = (ended_at - timedelta(minutes=5)).isoformat()
    job_fields = {"downstream_repo": backend, "job_name": "build", "status": "completed"}
    return {**item, **job_fields, "started_at": started_at, "completed_at": ended_at.isoformat(), **more}


async def test_a_verdict_does_not_use_imported_failures(tmp_path: Path) -> None:
    """Nightlies that failed under the old relay would make a failure pre-existing."""
    backend = "org/gating"
    listed = f"L4:\n  - {backend}: {{oncalls: [bob], jobs: ['*']}}\n"
    nights = [item for item in make_history(900, UPSTREAM, NOW).items if item["event_type"] == "nightly"]
    async with running_relay(tmp_path, listed, downstreams=(backend,)) as relay:
        relay.clock.advance(NOW - relay.clock.now())
        items = [
            _job_item(
                item, backend, NOW - timedelta(hours=number), upstream_repo=UPSTREAM, conclusion="failure"
            )
            for number, item in enumerate(nights[:9], start=1)
        ]
        (tmp_path / "nights.jsonl").write_text(write_lines(items, "rows"))
        assert (await run_import(relay, FileSource([tmp_path / "nights.jsonl"])))["taken"] == 9
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        run = relay.github.runs(backend)[0]
        await post_report(relay, run, "build", "in_progress")
        await post_report(relay, run, "build", "completed", conclusion="failure")
        await relay.drain()
        assert relay.rows("SELECT verdict FROM failures") == [{"verdict": "unknown"}]


async def test_results_of_the_shadow_period_are_imported_and_its_dispatches_not_counted_as_unanswered(
    tmp_path: Path,
) -> None:
    """The shadow received every webhook, and the backend reported only to the old relay."""
    backend = BACKENDS[0]
    item = next(
        item for item in make_history(90, UPSTREAM, NOW).items if item["event_type"] == "pull_request"
    )
    async with running_relay(tmp_path, LISTED, downstreams=(backend,), CRCR_SHADOW="1") as relay:
        relay.clock.advance(NOW - timedelta(days=2) - relay.clock.now())
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        [own_dispatch, *_] = relay.rows("SELECT delivery FROM dispatches WHERE downstream = ?", backend)
        event_fields = {
            "delivery_id": own_dispatch["delivery"],
            "pr_number": pull.number,
            "pytorch_head_sha": pull.head_sha,
        }
        event_fields |= {"upstream_repo": UPSTREAM, "conclusion": "success"}
        items = [_job_item(item, backend, NOW - timedelta(days=1), **event_fields)]
        (tmp_path / "one.jsonl").write_text(write_lines(items, "rows"))
        assert (await run_import(relay, FileSource([tmp_path / "one.jsonl"])))["taken"] == 1
        assert (await run_import(relay, FileSource([tmp_path / "one.jsonl"])))["unchanged"] == 1
        assert sum(counts["success"] for counts in read_sums(relay).values()) == 1
        relay.clock.advance(timedelta(days=2).total_seconds())
        await relay.services.levels.evaluate_now(relay.services.upstreams[0], relay.clock.now())
        assert {row["expected"] for row in relay.rows("SELECT expected FROM level_days")} == {0}


async def test_long_lines_are_read_in_small_batches_without_loss(tmp_path: Path) -> None:
    """Two hundred lines of the maximum length would need a gigabyte of memory at once."""
    item = next(item for item in make_history(20, UPSTREAM, NOW).items if read_item("", item).result)
    long = json.dumps({**item, "padding": "x" * 3_900_000})
    too_long = "x" * 4 * 1024 * 1024  # its last chunk is only the end of the line
    lines = [long, json.dumps(item), long, long, too_long, json.dumps(item)]
    (tmp_path / "long.jsonl").write_text("\n".join(lines) + "\n")
    batches = [batch async for batch in FileSource([tmp_path / "long.jsonl"]).batches({})]
    assert [len(batch.items) for batch in batches] == [4, 2, 0]
    rest = [batch async for batch in FileSource([tmp_path / "long.jsonl"]).batches(batches[0].position)]
    assert [len(batch.items) for batch in rest] == [2, 0]
    (tmp_path / "long.jsonl").write_text(json.dumps(item) + "\n")  # exported again in between
    rest = [batch async for batch in FileSource([tmp_path / "long.jsonl"]).batches(batches[0].position)]
    assert [len(batch.items) for batch in rest] == [1, 0]
    assert [read.problem for batch in batches for read in batch.items] == [
        "",
        *[""] * 3,
        "the line is too long",
        "",
    ]


async def test_a_key_named_done_does_not_end_the_import(aws: AwsServer) -> None:
    keys = [*(f"a{number:03}" for number in range(199)), "done", "z"]
    with serve_table({"dynamoKey": {"S": key}} for key in keys) as table:
        source = DynamoDbSource("t", region="us-east-1", endpoint=table.url, segments=1)
        batches = [batch async for batch in source.batches({})]
        assert [item.label for batch in batches for item in batch.items] == keys
        rest = [batch async for batch in source.batches(batches[0].position)]
        assert [item.label for batch in rest for item in batch.items] == ["z"]


SUPERSEDED = [
    ([("a", "x", 1)], {}),
    ([("a", "x", 1), ("b", "y", 2)], {"a": 2}),
    ([("b", "y", 2), ("a", "x", 1)], {"a": 2}),
    ([("a", "x", 1), ("b", "x", 2)], {}),
    ([("a", "x", 1), ("b", "y", 2), ("c", "x", 3)], {"a": 2, "b": 3}),
    ([("a", "x", 1), ("b", "x", 2), ("c", "y", 3), ("d", "z", 4)], {"a": 3, "b": 3, "c": 4}),
    ([("a", None, 1), ("b", "y", 2)], {"a": 2}),
]


@pytest.mark.parametrize(("dispatches", "expected"), SUPERSEDED)
def test_a_newer_head_supersedes_the_dispatches_of_the_older_ones(
    dispatches: list[tuple[str, str | None, int]], expected: dict[str, int]
) -> None:
    assert superseded_dispatches(PullDispatch(*dispatch) for dispatch in dispatches) == expected
