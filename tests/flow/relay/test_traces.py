"""One delivery is one trace, from its webhook over outbox and callback to an open page."""

import asyncio
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

from crcr.decide.trace_steps import TraceStep, span_id, trace_id
from support.deploy.otlp_collector import attribute_texts, run_collector
from support.downstream.callbacks import BACKEND, LISTED, dispatched_run, post_report
from support.live_page import open_page, wait_for_event
from support.process import free_port
from support.running_relay import UPSTREAM, running_relay

HOSTILE = "ghs_secret <script>alert(1)</script>"


async def test_webhook_dispatch_callback_and_page_of_a_delivery_are_one_trace(tmp_path: Path) -> None:
    with run_collector() as collected:
        async with running_relay(
            tmp_path, LISTED, downstreams=(BACKEND,), CRCR_OTEL_ENDPOINT=collected.url
        ) as relay:
            async with open_page(relay) as events:
                await relay.github.open_pr(UPSTREAM, title=HOSTILE)
                await relay.drain()
                run = relay.github.runs(BACKEND)[0]
                assert (await post_report(relay, run, "build", "in_progress")).status_code == 200
                assert (
                    await post_report(relay, run, "build", "completed", conclusion="success")
                ).status_code == 200
                await wait_for_event(events, b'"kind":"job"')
            [guid] = {row["delivery"] for row in relay.rows("SELECT delivery FROM dispatches")}
    assert collected.paths == {"/v1/traces"}
    assert collected.services == {"crcr"}
    delivery_spans = [
        span for span in collected.spans if span.trace_id == sha256(guid.encode()).digest()[:16]
    ]
    assert {span.name for span in delivery_spans} == {"webhook", "record", "dispatch", "callback", "tell"}
    [webhook], [record], [dispatch] = (
        [span for span in delivery_spans if span.name == name] for name in ("webhook", "record", "dispatch")
    )
    assert webhook.parent_span_id == b""
    assert (record.parent_span_id, dispatch.parent_span_id) == (webhook.span_id, webhook.span_id)
    callbacks = [span for span in delivery_spans if span.name == "callback"]
    assert [attribute_texts(span.attributes)["crcr.outcome"] for span in callbacks] == [
        "in_progress",
        "completed",
    ]
    assert {span.parent_span_id for span in callbacks} == {dispatch.span_id}
    assert {span.parent_span_id for span in delivery_spans if span.name == "tell"} <= {
        dispatch.span_id,
        webhook.span_id,
    }
    assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in delivery_spans)
    attributes = " ".join(
        text for span in collected.spans for text in attribute_texts(span.attributes).values()
    )
    assert "secret" not in attributes
    assert "script" not in attributes


async def test_a_refused_report_adds_no_span_to_a_trace(tmp_path: Path) -> None:
    with run_collector() as collected:
        async with dispatched_run(tmp_path, CRCR_OTEL_ENDPOINT=collected.url) as (relay, run):
            body = relay.github.ci.report_body(run, run.job("build"), "in_progress")
            assert (await relay.http.post("/github/callback", json=body)).status_code == 401
            assert (await post_report(relay, run, "build", "completed")).status_code == 409
    assert collected.named("webhook")
    assert collected.named("callback") == []


async def test_fault_a_collector_outage_loses_only_spans(tmp_path: Path) -> None:
    async with (
        asyncio.timeout(30),
        dispatched_run(tmp_path, CRCR_OTEL_ENDPOINT=f"http://127.0.0.1:{free_port()}") as (relay, run),
    ):
        assert (await post_report(relay, run, "build", "in_progress")).status_code == 200
        assert set(relay.dispatch_states().values()) == {"sent"}


def test_no_tracing_sdk_is_imported_while_tracing_is_off() -> None:
    """FastAPI imports the bare OpenTelemetry API when it is installed; the SDK and the exporter are never loaded."""
    script = "import crcr.wiring.services, crcr.wiring.web_app, sys; print(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    heavy = ("opentelemetry.sdk", "opentelemetry.exporter", "crcr.tracing")
    assert [name for name in result.stdout.split() if name.startswith(heavy)] == []


@pytest.mark.parametrize("guid", ["", "a", "72d3162e-cc78-11e3-81ab-4c9367dc0958"])
def test_trace_and_span_ids_derive_from_delivery_step_and_downstream(guid: str) -> None:
    assert trace_id(guid).to_bytes(16) == sha256(guid.encode()).digest()[:16]
    spans = {
        span_id(TraceStep.WEBHOOK, guid),
        span_id(TraceStep.DISPATCH, guid, "org/a"),
        span_id(TraceStep.DISPATCH, guid, "org/b"),
        span_id(TraceStep.DISPATCH, guid + "x", "org/a"),
    }
    assert len(spans) == 4
    assert span_id(TraceStep.DISPATCH, guid, "Org/A") == span_id(TraceStep.DISPATCH, guid, "org/a")
