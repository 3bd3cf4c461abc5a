"""What a scrape tells of a relay that has done something."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from support.downstream.callbacks import dispatched_run, post_report
from support.live_page import open_page
from support.running_relay import UPSTREAM, RunningRelay


async def scraped(relay: RunningRelay) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels."""
    answer = await relay.http.get("/metrics")
    assert answer.status_code == 200
    found = {}
    for family in text_string_to_metric_families(answer.text):
        for sample in family.samples:
            found[sample.name, *(value for _, value in sorted(sample.labels.items()))] = sample.value
    return found


async def test_a_dispatch_and_its_callbacks_are_counted_by_door_layer_and_call(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, run):
        assert (await post_report(relay, run, "build", "in_progress")).status_code == 200
        assert (await post_report(relay, run, "test", "completed")).status_code == 409
        assert (await relay.http.post("/github/callback", json={})).status_code == 401
        assert (await relay.http.post("/github/webhook", json={})).status_code == 401
        told = await scraped(relay)
    assert told["crcr_github_calls_total", "dispatch", "2xx"] == 1
    assert told["crcr_effects_total", "send_dispatch", "done"] == 1
    assert told["crcr_refusals_total", "callback", "lifecycle"] == 1
    assert told["crcr_refusals_total", "callback", "identity"] == 1
    assert told["crcr_refusals_total", "webhook", "signature"] == 1
    assert told["crcr_key_reads_total", "read"] == 1
    assert told["crcr_limiter_up",] == 1
    assert told["crcr_doors_open",] == 1
    assert told["crcr_last_delivery_age_seconds", UPSTREAM] == 0
    assert 0 < told["crcr_github_least_remaining_ratio",] <= 1


async def test_what_waits_is_told_by_kind_and_is_late_once_it_is_due(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, _):
        await relay.github.open_pr(UPSTREAM)
        relay.clock.advance(40)
        told = await scraped(relay)
        await relay.drain()
        after = await scraped(relay)
    assert told["crcr_queue_effects", "send_dispatch", "waiting", UPSTREAM] == 1
    assert (
        told["crcr_queue_lag_seconds", "send_dispatch", UPSTREAM]
        == told["crcr_outbox_lag_seconds", UPSTREAM]
        == 40
    )
    assert after["crcr_queue_effects", "send_dispatch", "waiting", UPSTREAM] == 0
    assert after["crcr_queue_lag_seconds", "send_dispatch", UPSTREAM] == 0


async def test_open_pages_are_counted_while_they_are_open(tmp_path: Path) -> None:
    async with dispatched_run(tmp_path) as (relay, _):
        async with open_page(relay):
            assert (await scraped(relay))["crcr_live_streams",] == 1
        assert (await scraped(relay))["crcr_live_streams",] == 0
