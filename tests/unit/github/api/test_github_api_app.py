"""Requests for the App's webhook deliveries: paging, and the state of each delivery."""

import json
from datetime import UTC, datetime

import pytest

from crcr.decide.github.requests_and_answers import DeliveryLogPage, LoggedDelivery
from crcr.errors import OutsideUnsure
from crcr.github.api import delivery_log
from crcr.github.api.request_response import MAX_LARGE_BYTES, MAX_LIST_BYTES, Response

ENTRY: dict[str, object] = {
    "id": 12_345_678_901_234,
    "guid": "0b989ba4-242f-11e5-81e1-c7b6966d2516",
    "delivered_at": "2026-01-01T00:00:00.512Z",
    "redelivery": False,
    "duration": 0.27,
    "status": "OK",
    "status_code": 202,
    "event": "pull_request",
    "action": "opened",
    "installation_id": 5,
    "repository_id": 9,
}


def page(*entries: object, link: str = "") -> Response:
    return Response(200, {"link": link}, json.dumps(entries).encode())


def entry(**changed: object) -> LoggedDelivery:
    return delivery_log.parse_log_page(page(ENTRY | changed)).entries[0]


def test_the_delivery_log_is_requested_by_cursor() -> None:
    requests = [
        delivery_log.list_deliveries(None),
        delivery_log.list_deliveries("v1_a&b=c"),
        delivery_log.read_delivery(7),
    ]
    assert [(request.method, request.path, request.most_bytes) for request in requests] == [
        ("GET", "/app/hook/deliveries?per_page=100", MAX_LIST_BYTES),
        ("GET", "/app/hook/deliveries?cursor=v1_a%26b%3Dc&per_page=100", MAX_LIST_BYTES),
        ("GET", "/app/hook/deliveries/7", MAX_LARGE_BYTES),
    ]


def test_a_log_entry_is_parsed_into_a_value() -> None:
    assert entry() == LoggedDelivery(
        log_id=12_345_678_901_234,
        guid="0b989ba4-242f-11e5-81e1-c7b6966d2516",
        delivered_at=datetime(2026, 1, 1, 0, 0, 0, 512_000, tzinfo=UTC),
        redelivery=False,
        ok=True,
        event="pull_request",
        action="opened",
        repository_id=9,
    )


@pytest.mark.parametrize(
    ("status", "ok"), [(200, True), (299, True), (0, False), (None, False), (302, False), (500, False)]
)
def test_only_a_2xx_status_counts_as_delivered(status: int | None, ok: bool) -> None:
    assert entry(status_code=status, action=None, repository_id=None).ok is ok


CURSORS: list[tuple[str, str | None]] = [
    ("", None),
    ('<https://api.github.test/app/hook/deliveries?per_page=100&cursor=v1_7%3D>; rel="next"', "v1_7="),
    ('<https://api.github.test/app/hook/deliveries?cursor=v1_7>; rel="prev"', None),
]


@pytest.mark.parametrize(("link", "cursor"), CURSORS)
def test_the_next_cursor_is_read_from_the_link_header(link: str, cursor: str | None) -> None:
    assert delivery_log.parse_log_page(page(link=link)) == DeliveryLogPage((), cursor)


@pytest.mark.parametrize("address", ["https://a/x", "https://a/x?cursor=", "https://[/x?cursor=1"])
def test_a_next_link_without_a_cursor_is_not_taken_for_the_end_of_the_log(address: str) -> None:
    with pytest.raises(OutsideUnsure):
        delivery_log.parse_log_page(page(link=f'<{address}>; rel="next"'))


def test_a_payload_is_returned_as_compact_json() -> None:
    payload = '{ "é" : [1.50, 123456789012345678901234567890],\n "a b": "\\u003c" }'
    body = '{"id":1,"guid":"g","event":"push","request":{"headers":null,"payload":%s},"response":{"payload":"x"}}'
    guid, event, data = delivery_log.parse_delivery(Response(200, {}, (body % payload).encode()))
    assert (guid, event) == ("g", "push")
    assert data.decode() == '{"é":[1.50,123456789012345678901234567890],"a b":"\\u003c"}'


@pytest.mark.parametrize(
    "payload", ["null", '"{}"', "[]", "", "{", "[" * 100_000, '{"a":' * 5000 + "1" + "}" * 5000]
)
def test_a_delivery_without_a_readable_payload_raises_outside_unsure(payload: str) -> None:
    body = f'{{"guid":"g","event":"push","request":{{"payload":{payload}}}}}'
    with pytest.raises(OutsideUnsure):
        delivery_log.parse_delivery(Response(200, {}, body.encode()))


@pytest.mark.parametrize("change", [{"id": 0}, {"guid": None}, {"delivered_at": "yesterday"}, {"event": 1}])
def test_an_unreadable_log_page_raises_outside_unsure(change: dict[str, object]) -> None:
    with pytest.raises(OutsideUnsure):
        delivery_log.parse_log_page(page(ENTRY | change))
