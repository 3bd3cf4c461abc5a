"""Metrics for Prometheus: a closed set of labels, no stale values, and a scrape that never fails."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.applications import Starlette

from crcr.app import STATUS
from crcr.decide.github.requests_and_answers import Budget, CallKind, Urgency
from crcr.decide.health.relay import Health
from crcr.decide.model import EffectKind, RepoName
from crcr.decide.views.overview import AlarmFacts, EffectQueue, Vitals
from crcr.errors import HeldBy, StoreUnavailable
from crcr.show.metrics import health
from crcr.show.metrics.registry import LAYERS, RelayMetrics, refusal_layer
from support.clock import ManualClock

UPSTREAM = RepoName("Torch/torch")


def read_samples(metrics: RelayMetrics) -> dict[tuple[str, ...], float]:
    """Return every sample by its name and the values of its labels."""
    samples = {}
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            samples[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return samples


def make_vitals(**more: Any) -> Vitals:
    return Vitals(upstream=UPSTREAM, has_allowlist=True, waiting=0, parked=0, lag_s=None, **more)


def test_every_error_code_belongs_to_exactly_one_layer() -> None:
    codes = [code for layer_codes in LAYERS.values() for code in layer_codes]
    assert len(codes) == len(set(codes))
    assert set(codes) == set(STATUS)
    assert refusal_layer("completed") is None


def test_refusals_are_counted_by_endpoint_and_layer_and_successes_are_not() -> None:
    metrics = RelayMetrics()
    for outcome in ("completed", "not_allowlisted", "rate_limited", "conflicting_result"):
        metrics.callback(outcome)
    metrics.delivery("push", "bad_signature")
    metrics.ingest("not_authentic")
    refused = {
        labels[1:]: n for labels, n in read_samples(metrics).items() if labels[0] == "crcr_refusals_total"
    }
    assert refused == {
        ("callback", "allowlist"): 1,
        ("callback", "limiter"): 1,
        ("callback", "lifecycle"): 1,
        ("webhook", "signature"): 1,
        ("ingest", "identity"): 1,
    }


def test_queue_metrics_cover_every_known_kind_and_no_kind_of_a_later_release() -> None:
    metrics = RelayMetrics()
    queue = EffectQueue(kind="send_dispatch", waiting=3, claimed=1, parked=2, lag_s=40.0)
    metrics.observe([make_vitals(queues=(queue, EffectQueue(kind="of_a_later_release", waiting=9)))])
    samples = read_samples(metrics)
    kinds = {labels[1] for labels in samples if labels[0] == "crcr_queue_effects"}
    assert kinds == {kind.value for kind in EffectKind}
    states = [("waiting", 3), ("claimed", 1), ("parked", 2)]
    for state, number in states:
        assert samples["crcr_queue_effects", "send_dispatch", state, "Torch/torch"] == number
    assert samples["crcr_queue_lag_seconds", "send_dispatch", "Torch/torch"] == 40.0
    assert samples["crcr_queue_lag_seconds", "rerun", "Torch/torch"] == 0.0


def test_alarm_gauges_are_exported_and_unknown_values_have_no_sample() -> None:
    metrics = RelayMetrics()
    watched = AlarmFacts(paused=True, allowlist_bad=True, last_delivery_s=30.0, gate_overdue_s=9.0)
    metrics.observe([make_vitals(watched=watched, history_unfed=7, history_lag_s=12.0)])
    samples = read_samples(metrics)
    assert samples["crcr_upstream_paused", "Torch/torch"] == 1
    assert samples["crcr_allowlist_bad", "Torch/torch"] == 1
    assert samples["crcr_last_delivery_age_seconds", "Torch/torch"] == 30
    assert samples["crcr_gate_overdue_seconds", "Torch/torch"] == 9
    assert samples["crcr_history_lag_seconds", "Torch/torch"] == 12
    assert samples["crcr_history_unfed", "Torch/torch"] == 7
    metrics.observe([make_vitals()])
    names = {labels[0] for labels in read_samples(metrics)}
    assert not names & {"crcr_last_delivery_age_seconds", "crcr_history_lag_seconds", "crcr_history_unfed"}


def test_the_smallest_github_budget_and_the_number_of_budgets_per_state_are_exported() -> None:
    metrics = RelayMetrics()
    assert not [labels for labels in read_samples(metrics) if labels[0].startswith("crcr_github_least")]
    budgets = [
        Budget(4000, 5000, blocked=False),
        Budget(300, 5000, blocked=False, held=(Urgency.CHECKS, Urgency.DETAILS)),
        Budget(900, 15000, blocked=True),
        Budget(None, None, blocked=False),
    ]
    metrics.github.watch(lambda: budgets)
    samples = read_samples(metrics)
    assert samples["crcr_github_least_remaining",] == 300
    assert samples["crcr_github_least_remaining_ratio",] == 0.06
    by_state = {labels[1]: n for labels, n in samples.items() if labels[0] == "crcr_github_budgets"}
    assert by_state == {"low": 1, "half": 0, "ample": 2, "blocked": 1}
    assert [samples["crcr_github_held_back", urgency] for urgency in ("first", "checks", "details")] == [
        0,
        1,
        1,
    ]


def test_github_calls_pauses_and_store_commits_are_counted() -> None:
    metrics = RelayMetrics()
    metrics.github.call(CallKind.DISPATCH, "2xx", 0.2)
    metrics.github.pause(HeldBy.SECONDARY, Urgency.CHECKS)
    metrics.store.committed(12, 0.004)
    metrics.store.failed()
    samples = read_samples(metrics)
    assert samples["crcr_github_calls_total", "dispatch", "2xx"] == 1
    assert samples["crcr_github_call_seconds_bucket", "dispatch", "0.25"] == 1
    paused = {labels[1:]: n for labels, n in samples.items() if labels[0] == "crcr_github_pauses_total"}
    assert paused["secondary", "checks"] == 1
    assert sum(paused.values()) == 1
    assert samples["crcr_store_group_units_sum",] == 12
    assert samples["crcr_store_write_seconds_bucket", "0.005"] == 1
    assert samples["crcr_store_faults_total",] == 1


def test_disk_and_pool_metrics_exist_only_with_a_disk_and_a_pool(tmp_path: Path) -> None:
    metrics = RelayMetrics()
    assert not [
        labels for labels in read_samples(metrics) if labels[0].startswith(("crcr_disk", "crcr_store_conn"))
    ]
    metrics.store.watch_disk(tmp_path)
    metrics.store.connections(pool="writing", used=5, most=5)
    metrics.store.connections(pool="reading", used=1, most=6)
    samples = read_samples(metrics)
    assert 0 < samples["crcr_disk_free_bytes",] <= samples["crcr_disk_size_bytes",]
    pools = {
        pool: (samples["crcr_store_connections_used", pool], samples["crcr_store_connections_most", pool])
        for pool in ("writing", "reading")
    }
    assert pools == {"writing": (5, 5), "reading": (1, 6)}
    metrics.store.watch_disk(tmp_path / "gone")
    assert ("crcr_disk_free_bytes",) not in read_samples(metrics)


def test_the_limiter_the_leadership_and_the_worker_are_exported() -> None:
    metrics = RelayMetrics(lambda: 1_700_000_000.5)
    assert not [
        labels for labels in read_samples(metrics) if labels[0] == "crcr_worker_seen_timestamp_seconds"
    ]
    assert (read_samples(metrics)["crcr_limiter_up",], read_samples(metrics)["crcr_leader",]) == (1, 0)
    metrics.limiter(answered=False)
    metrics.leads(True)
    metrics.worker_seen()
    samples = read_samples(metrics)
    assert (samples["crcr_limiter_up",], samples["crcr_limiter_unavailable_total",]) == (0, 1)
    assert samples["crcr_leader",] == 1
    assert samples["crcr_worker_seen_timestamp_seconds", "outbox"] == 1_700_000_000.5
    metrics.limiter(answered=True)
    assert read_samples(metrics)["crcr_limiter_up",] == 1


class FakeViews:
    def __init__(self, answer: list[Vitals] | Exception | None) -> None:
        self.answer = answer

    async def vitals(self, _: Any) -> list[Vitals]:
        if self.answer is None:
            await asyncio.Event().wait()
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer or []

    async def health(self, _: Any) -> dict[RepoName, Health]:
        return {}


@pytest.mark.parametrize("outage", [StoreUnavailable(), None], ids=["away", "hangs"])
async def test_fault_42_a_store_outage_is_exported_and_no_stale_value_stays(outage: Exception | None) -> None:
    metrics, views = RelayMetrics(), FakeViews([make_vitals(queues=(EffectQueue(kind="rerun", waiting=1),))])
    routes = health.routes(views, metrics=metrics, clock=ManualClock(), patience_s=0.01)
    transport = httpx.ASGITransport(Starlette(routes=routes))
    async with httpx.AsyncClient(transport=transport, base_url="http://relay.test") as client:
        assert "crcr_queue_effects{" in (await client.get("/metrics")).text
        views.answer = outage
        scraped = await client.get("/metrics")
    assert scraped.status_code == 200
    assert "crcr_store_up 0.0" in scraped.text
    assert 'upstream="' not in scraped.text


def test_foreign_event_names_share_one_label() -> None:
    metrics = RelayMetrics()
    for number in range(50):
        metrics.delivery(f"made_up_{number}", "ignored")
    events = {labels[1] for labels in read_samples(metrics) if labels[0] == "crcr_deliveries_total"}
    assert "other" in events
    assert not [event for event in events if event.startswith("made_up")]
