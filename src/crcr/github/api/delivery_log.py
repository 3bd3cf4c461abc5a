"""The App's log of webhook deliveries, read with the App's JWT.

GitHub does not redeliver a failed webhook by itself, so missed ones are found here; GitHub keeps the log for three days.
Its pages are linked by a cursor in the Link header.
https://docs.github.com/en/rest/apps/webhooks
"""

from datetime import UTC
from urllib.parse import parse_qs, urlsplit

import msgspec

from crcr.decide.github.requests_and_answers import DeliveryLogPage, LoggedDelivery
from crcr.errors import OutsideUnsure
from crcr.github.api.request_response import (
    MAX_LARGE_BYTES,
    Id,
    Request,
    Response,
    Time,
    decode,
    find_next_link,
    list_first_page,
)

# Requests


def list_deliveries(cursor: str | None) -> Request:
    path = "/app/hook/deliveries"
    return list_first_page(path) if cursor is None else list_first_page(path, cursor=cursor)


def read_delivery(log_id: int) -> Request:
    return Request("GET", f"/app/hook/deliveries/{log_id:d}", most_bytes=MAX_LARGE_BYTES)


def redeliver(log_id: int) -> Request:
    return Request("POST", f"/app/hook/deliveries/{log_id:d}/attempts", writes=True)


# Responses


class _Entry(msgspec.Struct):
    id: Id
    guid: str
    delivered_at: Time
    event: str
    redelivery: bool = False
    status_code: int | None = None
    """0 or absent when our side did not respond."""
    action: str | None = None
    repository_id: int | None = None


class _Sent(msgspec.Struct):
    payload: msgspec.Raw


class _Delivery(msgspec.Struct):
    guid: str
    event: str
    request: _Sent


def parse_log_page(response: Response) -> DeliveryLogPage:
    entries = tuple(_logged(entry) for entry in decode(response, list[_Entry]))
    return DeliveryLogPage(entries, _next_cursor(response))


def parse_delivery(response: Response) -> tuple[str, str, bytes]:
    """Return the GUID, the event's name and the payload: the same JSON as was sent, not always the same bytes."""
    delivery = decode(response, _Delivery)
    # Compacted as text, so that no number is parsed and formatted again.
    payload = msgspec.json.format(bytes(delivery.request.payload), indent=-1)
    if not payload.startswith(b"{"):
        raise OutsideUnsure("GitHub's log has no payload for this delivery.")
    return delivery.guid, delivery.event, payload


def _logged(entry: _Entry) -> LoggedDelivery:
    return LoggedDelivery(
        log_id=entry.id,
        guid=entry.guid,
        delivered_at=entry.delivered_at.astimezone(UTC),
        redelivery=entry.redelivery,
        ok=200 <= (entry.status_code or 0) < 300,
        event=entry.event,
        action=entry.action,
        repository_id=entry.repository_id,
    )


def _next_cursor(response: Response) -> str | None:
    link = find_next_link(response)
    if link is None:
        return None
    try:
        cursors = parse_qs(urlsplit(link).query).get("cursor")
    except ValueError:
        cursors = None
    if not cursors:
        # Without it the reading would end here and look complete.
        raise OutsideUnsure("GitHub's log has another page, but no cursor for it.")
    return cursors[0]
