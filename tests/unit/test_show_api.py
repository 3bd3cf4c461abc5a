"""The JSON API: the pages' facts as data, in pages, in one shape, with a description that needs no network."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from crcr.errors import BadRequest, CrcrError, StoreUnavailable
from crcr.show import api, cursors, health, pages
from crcr.show.metrics import Metrics
from show_reading import as_json
from show_world import OTHER, UPSTREAM, World, open_world


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with open_world(tmp_path) as world:
        world.allowlist()
        yield world


@pytest.fixture
async def client(world: World) -> AsyncIterator[httpx.AsyncClient]:
    async with serve(world, world.views) as client:
        yield client


def serve(world: World, views: Any) -> httpx.AsyncClient:
    app = FastAPI(title="crcr", openapi_url="/api/openapi.json", docs_url=None, redoc_url=None)
    app.add_exception_handler(CrcrError, as_json)
    upstreams = (UPSTREAM, OTHER)
    app.include_router(api.router(views, upstreams=upstreams, clock=world.clock))
    app.router.routes += pages.routes(views, upstreams=upstreams, clock=world.clock)
    app.router.routes += health.routes(views, metrics=Metrics(), clock=world.clock)
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://relay")


async def test_the_summary_has_the_pages_numbers(world: World, client: httpx.AsyncClient) -> None:
    delivery = world.delivery()
    world.dispatch(delivery)
    world.job(delivery, "failure", execution_s=30.0)
    summary = (await client.get("/api/v1/summary", params={"range": "7d"})).json()
    assert (summary["upstream"], summary["span"], summary["allowlist"]["version"]) == ("Torch/torch", "7d", 1)
    backend = next(each for each in summary["backends"] if each["name"] == "Good/Backend")
    assert backend["level"] == "L2"
    assert backend["figures"]["tally"] == {
        "pass_rate": 0.0,
        "success": 0,
        "failure": 1,
        "running": 0,
        "other": 0,
        "total": 1,
    }
    assert backend["figures"]["execution_avg_s"] == 30.0
    assert next(each for each in summary["backends"] if each["level"] == "L1")["figures"] is None


async def test_a_backend_has_its_matrix(world: World, client: httpx.AsyncClient) -> None:
    delivery = world.delivery()
    world.dispatch(delivery)
    world.job(delivery, "failure", url="javascript:alert(1)", artifact_url="https://a.example/x")
    page = (await client.get("/api/v1/backends/GOOD/backend")).json()
    assert page["columns"][0]["job_name"] == "build"
    assert page["rows"][0]["cells"][0]["conclusion"] == "failure"
    assert page["failures"][0]["url"] is None
    assert page["failures"][0]["artifact_url"] == "https://a.example/x"


async def test_lists_are_read_to_their_end_by_cursor(world: World, client: httpx.AsyncClient) -> None:
    for number in range(5):
        world.job(world.delivery(), job_name=f"job {number}")
    for path, key in (("jobs", "jobs"), ("deliveries", "deliveries")):
        found: list[Any] = []
        params: dict[str, Any] = {"limit": 2}
        while True:
            page = (await client.get(f"/api/v1/{path}", params=params)).json()
            found += page[key]
            if page["next"] is None:
                break
            params["cursor"] = page["next"]
        assert len(found) == 5


async def test_one_delivery_has_dispatches_and_jobs_and_no_body(
    world: World, client: httpx.AsyncClient
) -> None:
    delivery = world.delivery()
    world.dispatch(delivery)
    world.job(delivery)
    answer = await client.get(f"/api/v1/deliveries/{delivery}")
    assert answer.json()["dispatches"][0]["jobs"][0]["job_name"] == "build"
    assert "body" not in answer.json()
    assert "secret" not in answer.text


async def test_effects_and_allowlist_are_told(world: World, client: httpx.AsyncClient) -> None:
    world.effect("parked", last_error="404")
    effects = (await client.get("/api/v1/effects")).json()
    assert effects["counts"] == [{"kind": "send_dispatch", "state": "parked", "number": 1}]
    assert effects["parked"][0]["last_error"] == "404"
    listed = (await client.get("/api/v1/allowlist")).json()
    assert {each["name"]: each["level"] for each in listed["backends"]}["listen/only"] == "L1"
    assert (await client.get("/api/v1/allowlist", params={"upstream": "other/upstream"})).json()[
        "backends"
    ] == []


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("backends/no/such", 404, "not_found"),
        ("backends/-/..%20", 404, "not_found"),
        ("deliveries/none", 404, "not_found"),
        ("summary?upstream=a/b", 404, "not_found"),
        ("jobs?downstream=nonsense", 400, "bad_request"),
        ("jobs?cursor=nonsense", 400, "bad_request"),
        ("jobs?cursor=W10", 400, "bad_request"),
        ("deliveries?cursor=WzEsMl0", 400, "bad_request"),
    ],
)
async def test_failures_have_a_code(client: httpx.AsyncClient, path: str, status: int, code: str) -> None:
    answer = await client.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "state=odd", "number=0", "number=99999999999"])
async def test_parameters_have_bounds(client: httpx.AsyncClient, query: str) -> None:
    assert (await client.get(f"/api/v1/jobs?{query}")).status_code == 422


async def test_the_description_is_whole_and_its_page_needs_nothing_else(client: httpx.AsyncClient) -> None:
    described = (await client.get("/api/openapi.json")).json()
    paths = {path.removeprefix("/api/v1/") for path in described["paths"]}
    assert paths == {
        *("summary", "backends/{org}/{repo}", "jobs", "deliveries", "deliveries/{guid}", "effects"),
        *("allowlist", "pulls/{number}", "commits/{sha}", "waivers"),
    }
    assert "422" not in described["paths"]["/api/v1/jobs"]["get"]["responses"]
    page = await client.get("/api/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert all(path in page.text for path in described["paths"])
    assert "http://" not in page.text
    assert "https://" not in page.text


@pytest.mark.parametrize("key", [(1, "a"), ("", 2**62), ("ü😀", -1)])
def test_a_cursor_comes_back_as_it_was(key: tuple[str | int, ...]) -> None:
    assert cursors.decode(cursors.encode(key)) == key


@pytest.mark.parametrize("cursor", ["", "%%%", "e30", "W3RydWVd", "WzFlOTld", "WyJcdWQ4MDAiXQ", "W" * 4096])
def test_a_cursor_of_somebody_else_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest):
        cursors.decode(cursor)


async def test_probes_tell_alive_and_ready(world: World, client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json()["ok"] is True
    refused = await client.get("/readyz")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_allowlist")
    assert "other/upstream" in refused.json()["error"]["detail"]
    world.allowlist("L2: [a/b]", OTHER)
    world.effect()
    ready = (await client.get("/readyz")).json()
    assert ready["upstreams"][0] == {"upstream": "Torch/torch", "waiting": 1, "parked": 0, "lag_s": 180.0}


async def test_metrics_are_scraped_with_the_outbox_figures(world: World) -> None:
    metrics = Metrics()
    metrics.delivery("pull_request", "accepted")
    metrics.delivery("x" * 1000, "ignored")
    metrics.callback("applied")
    metrics.effect("send_dispatch", "done")
    metrics.dispatch_latency(0.2)
    metrics.observe(await world.views.vitals(world.clock.now()))
    text = metrics.text().decode()
    assert 'crcr_deliveries_total{event="pull_request",outcome="accepted"} 1.0' in text
    assert 'crcr_deliveries_total{event="other",outcome="ignored"} 1.0' in text
    assert 'crcr_effects_waiting{upstream="Torch/torch"} 0.0' in text
    assert 'crcr_allowlist_in_force{upstream="other/upstream"} 0.0' in text
    assert 'crcr_dispatch_latency_seconds_bucket{le="0.25"} 1.0' in text
    assert 'crcr_open_gates{state="failed",upstream="Torch/torch"} 0.0' in text


async def test_a_store_that_is_down_is_not_ready_and_still_scraped(world: World) -> None:
    class Down:
        async def vitals(self, _: Any) -> Any:
            raise StoreUnavailable

    async with serve(world, Down()) as client:
        assert (await client.get("/readyz")).status_code == 503
        scraped = await client.get("/metrics")
        assert scraped.headers["content-type"].startswith("text/plain")
        assert "crcr_store_up 0.0" in scraped.text
        assert "crcr_effects_waiting{" not in scraped.text
