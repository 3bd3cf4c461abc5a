"""Fields trimmed from a dispatch that was too large: named in the payload, on the delivery's page, and in the API."""

from pathlib import Path

from support.github.dispatch_log import BOTH, TWO
from support.running_relay import UPSTREAM, running_relay

TRIMMED = ["pull_request.body"]


async def test_trimmed_fields_are_shown_on_the_delivery_page_and_in_the_api(tmp_path: Path) -> None:
    async with running_relay(tmp_path, TWO, downstreams=BOTH) as relay:
        large = await relay.github.open_pr(UPSTREAM, body="why " * 20_000)
        small = await relay.github.open_pr(UPSTREAM, body=None)
        await relay.drain()
        assert large.last_delivery is not None
        assert small.last_delivery is not None
        trimmed_fields = [
            dispatch.client_payload["relay"]["trimmed"] for dispatch in relay.github.dispatches()
        ]
        assert sorted(trimmed_fields) == [[], [], TRIMMED, TRIMMED]

        shown = {}
        for delivery in (large.last_delivery, small.last_delivery):
            page = (await relay.http.get(f"/crcr/deliveries/{delivery.guid}")).text
            listed = (await relay.http.get(f"/api/v1/deliveries/{delivery.guid}")).json()
            trimmed = [dispatch["trimmed"] for dispatch in listed["dispatches"]]
            shown[delivery.guid] = (trimmed, "<dt>Trimmed</dt>" in page, page.count(">trimmed</span>"))
            assert ("Cut from its payload: pull_request.body" in page) is bool(trimmed[0])
        assert shown == {
            large.last_delivery.guid: ([TRIMMED, TRIMMED], True, 2),
            small.last_delivery.guid: ([[], []], False, 0),
        }
