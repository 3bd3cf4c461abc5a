"""One backend's page over a `StoreRows`: read the page, and add dispatched deliveries."""

from datetime import UTC, datetime
from typing import Any

from crcr.decide.model import RepoName
from crcr.decide.views.backend import BackendPage, BackendQuery
from support.data.store_rows import UPSTREAM, StoreRows

GOOD = RepoName("good/backend")
NOW = datetime(2026, 1, 20, 12, 30, tzinfo=UTC)
PROBING = "L2:\n  - good/backend: {expect: {'*': failure}}\n"


async def backend_page(store: StoreRows, name: RepoName = GOOD, **query: Any) -> BackendPage:
    store.sum_up()
    return await store.views.backend(
        BackendQuery(upstream=UPSTREAM, downstream=name, **query), store.clock.now()
    )


async def all_deliveries(store: StoreRows, **query: Any) -> list[str]:
    """The deliveries of all pages of the matrix."""
    deliveries: list[str] = []
    after: tuple[str | int, ...] | None = None
    while True:
        matrix = (await backend_page(store, after=after, **query)).matrix
        deliveries += [row.delivery for row in matrix.rows]
        after = matrix.next
        if after is None:
            return deliveries
        assert len(matrix.rows) <= query.get("limit", 50)


def dispatched_delivery(store: StoreRows, **more: Any) -> str:
    """Add a delivery that was dispatched to the backend `GOOD`."""
    hours_ago = more.pop("hours_ago", 2)
    number = more.get("number", 7)
    ref = more.pop("ref", None)
    guid = store.delivery(number=number, hours_ago=hours_ago, ref=ref)
    store.dispatch(guid, hours_ago=hours_ago, **{"number": number, **more})
    return guid


def dispatched_push(store: StoreRows, **more: Any) -> str:
    fields = {"number": None, "event": "push", "action": None, "ref": "refs/heads/main"}
    return dispatched_delivery(store, **{**fields, **more})
