"""The scraped metrics of a relay with some activity."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.downstream.callbacks import dispatched_run, post_report
from support.live_page import open_page
from support.running_relay import UPSTREAM, RunningRelay


async def scrape(relay: RunningRelay) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    answer = await relay.http.get("/metrics")
    assert answer.status_code == 200
    samples = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            samples[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return samples


async def test_a_dispatch_and_its_refused_callbacks_are_counted_by_endpoint_layer_and_call(
    tmp_path: Path,
) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert (await post_report(relay, run, "build", "in_progress")).status_code == 200
        assert (await post_report(relay, run, "test", "completed")).status_code == 409
        assert (await relay.http.post("/github/callback", json={})).status_code == 401
        assert (await relay.http.post("/github/webhook", json={})).status_code == 401
        samples = await scrape(relay)
    assert samples["crcr_github_calls_total", "dispatch", "2xx"] == 1
    assert samples["crcr_effects_total", "send_dispatch", "done"] == 1
    assert samples["crcr_refusals_total", "callback", "lifecycle"] == 1
    assert samples["crcr_refusals_total", "callback", "identity"] == 1
    assert samples["crcr_refusals_total", "webhook", "signature"] == 1
    assert samples["crcr_key_reads_total", "read"] == 1
    assert samples["crcr_limiter_up",] == 1
    assert samples["crcr_doors_open",] == 1
    assert samples["crcr_last_delivery_age_seconds", UPSTREAM] == 0
    assert 0 < samples["crcr_github_least_remaining_ratio",] <= 1


async def test_waiting_effects_and_their_lag_are_measured_by_kind(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, _):
        await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(40)
        before = await scrape(relay)
        await relay.drain()
        after = await scrape(relay)
    assert before["crcr_queue_effects", "send_dispatch", "waiting", UPSTREAM] == 1
    assert (
        before["crcr_queue_lag_seconds", "send_dispatch", UPSTREAM]
        == before["crcr_outbox_lag_seconds", UPSTREAM]
        == 40
    )
    assert after["crcr_queue_effects", "send_dispatch", "waiting", UPSTREAM] == 0
    assert after["crcr_queue_lag_seconds", "send_dispatch", UPSTREAM] == 0


async def test_open_pages_are_counted_while_they_are_open(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, _):
        async with open_page(relay):
            assert (await scrape(relay))["crcr_live_streams",] == 1
        assert (await scrape(relay))["crcr_live_streams",] == 0
