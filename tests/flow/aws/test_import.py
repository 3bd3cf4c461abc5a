"""`crcr import`: another relay's history appears with its days, once, in matrix, sums and levels, and decides nothing."""

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


def sums_in(relay: RunningRelay) -> Sums:
    found: Sums = {}
    for row in relay.rows("SELECT * FROM days"):
        day = datetime.fromtimestamp(row["day_at"] / 1e6, UTC).strftime("%Y-%m-%d")
        names = ("success", "failure", "timed_out", "silent", "other", "superseded", "earlier")
        counts = Counter({name: round(row[name]) for name in (*names, "queue_sum_s", "execution_sum_s")})
        if +counts:
            found[row["downstream"], row["kind"], day] = +counts
    return found


def everything_in(relay: RunningRelay) -> dict[str, list[dict[str, Any]]]:
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


async def test_2000_items_are_imported_twice_and_broken_off_and_the_numbers_are_those_of_the_oracle(
    aws: AwsServer, tmp_path: Path
) -> None:
    history = make_history(2_000, UPSTREAM, NOW)
    with serve_table(map(attributes, history.items)) as table:
        source = DynamoDbSource("t", region="us-east-1", endpoint=table.url, segments=3)
        async with running_relay(tmp_path, LISTED) as relay:
            would = await run_import(relay, source, dry_run=True)
            assert relay.rows("SELECT 1 FROM jobs") == relay.rows("SELECT 1 FROM imports") == []

            for after in (2, 3):
                with pytest.raises(OutsideUnreachable):
                    await run_import(relay, Interrupted(source, after))
            counts = await run_import(relay, source)
            assert counts == would  # every item is counted once, however often it was broken off
            assert (counts["read"], counts["unchanged"]) == (2_000, 0)
            assert counts["taken"] == 2_000 - history.not_taken.total()
            for word, number in history.not_taken.items():
                assert sum(count for reason, count in counts.items() if word in reason.split()) == number
            assert sums_in(relay) == expected_sums(history.items, UPSTREAM, NOW)

            before = everything_in(relay)
            again = await run_import(relay, source)
            assert (again["unchanged"], again["taken"], again["corrected"]) == (counts["taken"], 0, 0)
            assert everything_in(relay) == before
            assert before["deliveries"] == before["failures"] == []
            assert {effect["kind"] for effect in before["effects"]} == {"identify_repository"}
            shuffled = sorted(history.items, key=lambda item: item["dynamoKey"])
            (tmp_path / "export.json").write_text(write_lines(shuffled, "export"))
            another = await run_import(relay, FileSource([tmp_path / "export.json"]))
            assert (another["unchanged"], another["taken"]) == (counts["taken"], 0)
            assert sums_in(relay) == expected_sums(history.items, UPSTREAM, NOW)
            await _show(relay, history.items)


async def _show(relay: RunningRelay, items: list[Item]) -> None:
    """Matrix, figures and levels show the imported results under their own kinds, marked; other relays have none."""
    relay.clock.advance(NOW - relay.clock.now())
    backend = BACKENDS[0]
    page = (await relay.http.get(f"/api/v1/backends/{backend}?range=90d&older=1")).json()
    counted = _counted(items, backend)
    tally = page["backend"]["figures"]["tally"]
    assert (tally["success"], tally["timed_out"]) == (counted["success"], counted["timed_out"])
    assert tally["failure"] == counted["failure"] + counted["timed_out"]
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
    assert f"/{UPSTREAM}/pull/" in html  # only GitHub has a page of it
    await relay.services.levels.evaluate_now(relay.services.upstreams[0], relay.clock.now())
    rows = [row for row in relay.rows("SELECT * FROM level_days") if row["downstream"] == backend]
    assert any(json.loads(row["runs"]) for row in rows)
    assert {row["expected"] for row in rows} == {0}  # which dispatches were not answered, nobody knows


FORMS = ("export", "rows", "envelopes")


@pytest.mark.parametrize("form", FORMS)
async def test_files_are_read_in_each_form_zipped_or_not(tmp_path: Path, form: str) -> None:
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
        assert sums_in(relay) == expected_sums(items, UPSTREAM, NOW)


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


async def test_clickhouse_and_dynamodb_hold_the_same_history(aws: AwsServer, tmp_path: Path) -> None:
    history = make_history(60, UPSTREAM, NOW, seed=5)
    items = [item for item in history.items if item["started_at"] is not None]
    name, client = aws.new_table(), aws.client("dynamodb")
    for start in range(0, len(items), 25):
        puts = [{"PutRequest": {"Item": attributes(item)}} for item in items[start : start + 25]]
        client.batch_write_item(RequestItems={name: puts})
    link = ClickHouseLink(ClickHouseLocation(new_database()))
    table = WorkflowJobTable(link)
    await table.insert(items)
    # Our own history is in ClickHouse, too: a page has its figures from there, and they are the same.
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
        assert sums_in(relay) == expected_sums(items, UPSTREAM, NOW)
        await relay.pass_time(3600)
        for backend in BACKENDS:
            page = (await relay.http.get(f"/api/v1/backends/{backend}?range=90d")).json()
            assert page["history"] == "clickhouse"
            counted = _counted(items, backend.lower())
            tally = page["backend"]["figures"]["tally"]
            assert (tally["success"], tally["timed_out"]) == (counted["success"], counted["timed_out"])

        # What is older than is kept goes, with its sums kept; and it does not come again.
        before = sums_in(relay)
        await _forget(relay, timedelta(days=30))
        assert relay.rows("SELECT 1 FROM dispatches WHERE imported = 1") != []
        await _forget(relay, timedelta(0))
        assert relay.rows("SELECT 1 FROM dispatches") == []
        assert relay.rows("SELECT 1 FROM jobs WHERE event <> 'nightly'") == []
        assert sums_in(relay) == before
    await link.close()


async def _forget(relay: RunningRelay, kept: timedelta) -> None:
    periods = RetentionPeriods(bodies=kept, effects=kept, jobs=kept, audit=None)
    await Retention(relay.services.database, periods).forget(relay.clock.now())


def _counted(items: list[Item], backend: str) -> Counter[str]:
    counted = Counter[str]()
    for (name, kind, _), counts in expected_sums(items, UPSTREAM, NOW).items():
        if (name, kind) == (backend, "pull_request"):
            counted += counts
    return counted


async def test_a_result_that_was_corrected_since_is_moved_and_one_that_was_reported_here_is_left(
    tmp_path: Path,
) -> None:
    file, backend = tmp_path / "items.jsonl", BACKENDS[0]
    items = make_history(40, UPSTREAM, NOW, seed=9).items
    async with running_relay(tmp_path, LISTED, downstreams=(backend,)) as relay:
        file.write_text(write_lines(items, "rows"))
        taken = (await run_import(relay, FileSource([file])))["taken"]
        for item in items:
            if item["conclusion"] == "success":
                item |= {
                    "conclusion": "failure",
                    "execution_time": item["execution_time"] + 7,
                    "queue_time": 3.0,
                }
        file.write_text(write_lines(items, "rows"))
        counts = await run_import(relay, FileSource([file]))
        assert 0 < counts["corrected"] < taken == counts["corrected"] + counts["unchanged"]
        assert sums_in(relay) == expected_sums(items, UPSTREAM, NOW)

        # A webhook that both relays received is ours.
        await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        own, *_ = relay.rows("SELECT delivery FROM dispatches WHERE imported = 0")
        valid = next(
            item for item in items if item["event_type"] == "pull_request" and read_item("", item).result
        )
        file.write_text(write_lines([{**valid, "delivery_id": own["delivery"]}], "rows"))
        known = await run_import(relay, FileSource([file]))
        assert known == Counter({"read": 1, "it was reported to this relay itself": 1})


async def test_no_report_and_no_gate_finds_what_was_imported(tmp_path: Path) -> None:
    """The head of an open pull request was tested under the old relay: here it waits for a result of its own."""
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


def _of_job(item: Item, backend: str, ended_at: datetime, **more: Any) -> Item:
    began_at = (ended_at - timedelta(minutes=5)).isoformat()
    named = {"downstream_repo": backend, "job_name": "build", "status": "completed"}
    return {**item, **named, "started_at": began_at, "completed_at": ended_at.isoformat(), **more}


async def test_a_verdict_does_not_rest_on_imported_failures(tmp_path: Path) -> None:
    """Nights that failed under the old relay would call a failure pre-existing."""
    backend = "org/gating"
    listed = f"L4:\n  - {backend}: {{oncalls: [bob], jobs: ['*']}}\n"
    nights = [item for item in make_history(900, UPSTREAM, NOW).items if item["event_type"] == "nightly"]
    async with running_relay(tmp_path, listed, downstreams=(backend,)) as relay:
        relay.clock.advance(NOW - relay.clock.now())
        items = [
            _of_job(
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


async def test_results_of_the_shadows_time_are_imported_and_its_dispatches_count_as_unanswered_nowhere(
    tmp_path: Path,
) -> None:
    """The shadow received every webhook, and the backend reported to the old relay alone."""
    backend = BACKENDS[0]
    item = next(
        item for item in make_history(90, UPSTREAM, NOW).items if item["event_type"] == "pull_request"
    )
    async with running_relay(tmp_path, LISTED, downstreams=(backend,), CRCR_SHADOW="1") as relay:
        relay.clock.advance(NOW - timedelta(days=2) - relay.clock.now())
        pull = await relay.github.open_pr(UPSTREAM)
        await relay.drain()
        [own, *_] = relay.rows("SELECT delivery FROM dispatches WHERE downstream = ?", backend)
        about = {"delivery_id": own["delivery"], "pr_number": pull.number, "pytorch_head_sha": pull.head_sha}
        about |= {"upstream_repo": UPSTREAM, "conclusion": "success"}
        items = [_of_job(item, backend, NOW - timedelta(days=1), **about)]
        (tmp_path / "one.jsonl").write_text(write_lines(items, "rows"))
        assert (await run_import(relay, FileSource([tmp_path / "one.jsonl"])))["taken"] == 1
        assert (await run_import(relay, FileSource([tmp_path / "one.jsonl"])))["unchanged"] == 1
        assert sum(counts["success"] for counts in sums_in(relay).values()) == 1
        relay.clock.advance(timedelta(days=2).total_seconds())
        await relay.services.levels.evaluate_now(relay.services.upstreams[0], relay.clock.now())
        assert {row["expected"] for row in relay.rows("SELECT expected FROM level_days")} == {0}


async def test_long_lines_make_small_batches_and_none_is_lost(tmp_path: Path) -> None:
    """Two hundred lines of the greatest length would take a gigabyte at once."""
    item = next(item for item in make_history(20, UPSTREAM, NOW).items if read_item("", item).result)
    long = json.dumps({**item, "padding": "x" * 3_900_000})
    too_long = "x" * 4 * 1024 * 1024  # its last piece is the end of the line alone
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


async def test_a_key_that_is_called_like_the_end_ends_nothing(aws: AwsServer) -> None:
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
    assert superseded_dispatches(PullDispatch(*each) for each in dispatches) == expected
