"""The App's own log of webhooks, asked for in the App's name.

What GitHub could not deliver it does not send again by itself, so the log is where it is found; GitHub keeps it
for three days. Its pages are turned by a cursor that stands in the answer's Link header.
https://docs.github.com/en/rest/apps/webhooks
"""

from datetime import UTC
from urllib.parse import parse_qs, urlsplit

import msgspec

from crcr.decide.github.values import DeliveryLogPage, LoggedDelivery
from crcr.errors import OutsideUnsure
from crcr.github.api.core import MAX_LARGE_BYTES, Id, Request, Response, Time, decode, listing, next_link

# Requests


def delivery_log(cursor: str | None) -> Request:
    path = "/app/hook/deliveries"
    return listing(path) if cursor is None else listing(path, cursor=cursor)


def logged_delivery(log_id: int) -> Request:
    return Request("GET", f"/app/hook/deliveries/{log_id:d}", most_bytes=MAX_LARGE_BYTES)


# Answers


class _Entry(msgspec.Struct):
    id: Id
    guid: str
    delivered_at: Time
    event: str
    redelivery: bool = False
    status_code: int | None = None
    """0 or nothing when no answer came."""
    action: str | None = None
    repository_id: int | None = None


class _Sent(msgspec.Struct):
    payload: msgspec.Raw


class _Delivery(msgspec.Struct):
    guid: str
    event: str
    request: _Sent


def log_page(response: Response) -> DeliveryLogPage:
    entries = tuple(_logged(each) for each in decode(response, list[_Entry]))
    return DeliveryLogPage(entries, _next_cursor(response))


def delivered(response: Response) -> tuple[str, str, bytes]:
    """Return the GUID, the event's name and the payload; as JSON it is what was sent, its bytes need not be."""
    found = decode(response, _Delivery)
    # Compacted as text: no number is read and written anew.
    payload = msgspec.json.format(bytes(found.request.payload), indent=-1)
    if not payload.startswith(b"{"):
        raise OutsideUnsure("GitHub's log has no payload for this delivery.")
    return found.guid, found.event, payload


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
    link = next_link(response)
    if link is None:
        return None
    try:
        found = parse_qs(urlsplit(link).query).get("cursor")
    except ValueError:
        found = None
    if not found:
        # Without it the walk would end here and look complete.
        raise OutsideUnsure("GitHub's log goes on, but does not say where.")
    return found[0]
