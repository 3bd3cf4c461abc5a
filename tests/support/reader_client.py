"""A client of the pages and the API in process: no middleware, no background work."""

from typing import Any

import httpx

from crcr.app import create_app
from crcr.show.api import routes as api_routes
from crcr.show.metrics import health
from crcr.show.metrics.registry import RelayMetrics
from crcr.show.pages import routes as page_routes
from crcr.show.pages.frame import Frame
from support.data.store_rows import OTHER, UPSTREAM, StoreRows


class _NoBackground:
    async def start(self) -> None: ...
    async def stop(self) -> None: ...


def reader_client(store: StoreRows, views: Any = None) -> httpx.AsyncClient:
    """A client that reads the store's rows; `views` stands in for the store's own."""
    views, upstreams = views or store.views, (UPSTREAM, OTHER)
    frame = Frame(views, upstreams=upstreams, clock=store.clock)
    app = create_app(
        hot={},
        routes=[
            *page_routes.routes(frame),
            *api_routes.routes(views, upstreams=upstreams, clock=store.clock),
            *health.routes(views, metrics=RelayMetrics(), clock=store.clock),
        ],
        routers=[],
        background=_NoBackground(),
        problem_page=frame.problem,
    )
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay")
