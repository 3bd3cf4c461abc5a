"""Large events reach every target: GitHub's limits on a dispatch are kept, and the trimmed fields are named."""

import json
from pathlib import Path
from typing import Any

from support.github.dispatch_log import BOTH, TWO
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM, RunningRelay, running_relay

MOST_BYTES = 60_000


def payloads(relay: RunningRelay) -> list[dict[str, Any]]:
    return [dispatch.client_payload for dispatch in relay.github.dispatches()]


async def test_fault_06_a_pull_request_with_a_body_of_65536_characters_reaches_all_targets(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pr = await relay.github.open_pr(UPSTREAM, body="ü" * 65_536)
        await relay.drain()

        assert len(payloads(relay)) == 2
        assert all(dispatch.size_bytes <= MOST_BYTES for dispatch in relay.github.dispatches())
        for sent in payloads(relay):
            assert sent["payload"]["pull_request"]["head"]["sha"] == pr.head_sha
            assert any("body" in name for name in sent["relay"]["trimmed"])


async def test_fault_06_a_push_with_2048_commits_reaches_all_targets(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        pushed = await relay.github.push(UPSTREAM, commits=2_048)
        assert pushed is not None
        await relay.drain()

        assert len(pushed.payload) > 10 * MOST_BYTES
        assert all(dispatch.size_bytes <= MOST_BYTES for dispatch in relay.github.dispatches())
        for sent in payloads(relay):
            assert sent["payload"]["after"] == relay.github.repository(UPSTREAM).head_sha
            assert sent["payload"]["head_commit"]["id"] == sent["payload"]["after"]
            assert any("commits" in name for name in sent["relay"]["trimmed"])


async def test_an_event_within_the_limit_is_dispatched_verbatim_with_the_relays_own_fields(
    tmp_path: Path,
) -> None:
    async with running_relay(tmp_path, "L2:\n  - org/one\n", downstreams=("org/one",)) as relay:
        pr = await relay.github.open_pr(UPSTREAM, title="Ünïcode \U0001f600")
        await relay.drain()
        [sent] = relay.github.dispatches()

        assert pr.last_delivery is not None
        assert sent.event_type == sent.client_payload["event_type"] == "pull_request"
        assert sent.client_payload["payload"] == json.loads(pr.last_delivery.payload)
        assert sent.client_payload["relay"] == {
            "version": 1,
            "upstream": UPSTREAM,
            "level": "L2",
            "callback_url": f"{RELAY_URL}/github/callback",
            "audience": AUDIENCE,
            "trimmed": [],
            "reason": None,
            "purpose": None,
        }
