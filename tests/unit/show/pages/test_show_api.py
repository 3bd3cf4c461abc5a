"""The JSON API: the facts of the pages as JSON and CSV, paging, errors, and the OpenAPI description."""

import asyncio
import csv
import io
import re
from collections.abc import AsyncIterator
from typing import Any

import httpx
import jsonschema
import pytest

from crcr.decide.health.relay import HealthFacts
from crcr.decide.model import RepoName
from crcr.errors import BadRequest, StoreUnavailable
from crcr.record.store.database import Tx
from crcr.record.views.relay.health import health_facts
from crcr.show.metrics import health
from crcr.show.metrics.registry import RelayMetrics
from crcr.show.urls import cursors
from support.data.store_rows import OTHER, UPSTREAM, StoreRows
from support.reader_client import reader_client


@pytest.fixture
async def store(store: StoreRows) -> StoreRows:
    store.allowlist()
    return store


@pytest.fixture
async def client(store: StoreRows) -> AsyncIterator[httpx.AsyncClient]:
    async with reader_client(store) as client:
        yield client


async def test_the_backend_endpoint_returns_the_matrix_without_unsafe_links(
    store: StoreRows, client: httpx.AsyncClient
) -> None:
    delivery = store.delivery()
    store.dispatch(delivery)
    store.job(delivery, "failure", url="javascript:alert(1)", artifact_url="https://a.example/x")
    page = (await client.get("/api/v1/backends/GOOD/backend")).json()
    assert page["columns"][0]["job_name"] == "build"
    assert page["rows"][0]["cells"][0]["conclusion"] == "failure"
    assert page["failures"][0]["url"] is None
    assert page["failures"][0]["artifact_url"] == "https://a.example/x"


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("", ["flaky/backend", "Good/Backend", "quiet/backend", "listen/only"]),
        ("?q=BACK&sort=-name", ["quiet/backend", "Good/Backend", "flaky/backend"]),
        ("?q=910b", ["Good/Backend"]),
        ("?level=L1", ["listen/only"]),
        ("?sort=-rate&level=L2", ["Good/Backend", "flaky/backend", "quiet/backend"]),
        ("?q=nobody", []),
    ],
)
async def test_the_summary_is_filtered_and_sorted_like_its_page(
    store: StoreRows, client: httpx.AsyncClient, query: str, names: list[str]
) -> None:
    delivery = store.delivery()
    for name, conclusion in (("good/backend", "success"), ("flaky/backend", "failure")):
        store.dispatch(delivery, name)
        store.job(delivery, conclusion, downstream=name)
    store.sum_up()
    answer = (await client.get(f"/api/v1/summary{query}")).json()
    assert [item["name"] for item in answer["backends"]] == names
    assert answer["tally"]["success"] == answer["tally"]["failure"] == 1, "of everybody, as on the page"
    lines = [*csv.DictReader(io.StringIO((await client.get(f"/api/v1/summary.csv{query}")).text))]
    assert [item["name"] for item in lines] == names


@pytest.mark.parametrize("path", ["summary", "metrics", "summary?sort=-name&level=L2"])
async def test_backends_are_paged_in_json_and_complete_in_csv(client: httpx.AsyncClient, path: str) -> None:
    whole = (await client.get(f"/api/v1/{path}")).json()
    assert whole["next"] is None
    separator = "&" if "?" in path else "?"
    page = (await client.get(f"/api/v1/{path}{separator}limit=2")).json()
    backends = page["backends"]
    while page["next"]:
        page = (await client.get(f"/api/v1/{path}{separator}limit=2&cursor={page['next']}")).json()
        assert len(page["backends"]) <= 2
        backends += page["backends"]
    assert backends == whole["backends"]
    assert whole.get("matching", len(backends)) == len(backends)
    name, _, query = path.partition("?")
    rest = await client.get(f"/api/v1/{name}.csv?{query}")
    lines = [backend["name"] for backend in csv.DictReader(io.StringIO(rest.text)) if backend["name"]]
    assert ([*dict.fromkeys(lines)], "link" in rest.headers) == (
        [backend["name"] for backend in backends],
        False,
    )
    wrong = await client.get(f"/api/v1/{path}{separator}cursor=WyJhIl0")
    assert (wrong.status_code, wrong.json()["error"]["code"]) == (400, "bad_request")


async def test_metrics_can_be_filtered_by_backend(store: StoreRows, client: httpx.AsyncClient) -> None:
    metrics = (await client.get("/api/v1/metrics?backend=Good/backend")).json()
    assert [backend["name"] for backend in metrics["backends"]] == ["Good/Backend"]
    assert [backend["silent"] for backend in metrics["backends"]] == [False]
    lines = [
        *csv.DictReader(io.StringIO((await client.get("/api/v1/metrics.csv?backend=good/backend")).text))
    ]
    assert {backend["name"] for backend in lines} == {"", "Good/Backend"}
    for path in ("metrics", "metrics.csv"):
        assert (await client.get(f"/api/v1/{path}?backend=no/such")).status_code == 404


async def test_lists_page_to_their_end_by_cursor(store: StoreRows, client: httpx.AsyncClient) -> None:
    for number in range(5):
        store.job(store.delivery(), job_name=f"job {number}")
    for path, key in (("jobs", "jobs"), ("deliveries", "deliveries")):
        items: list[Any] = []
        params: dict[str, Any] = {"limit": 2}
        while True:
            page = (await client.get(f"/api/v1/{path}", params=params)).json()
            items += page[key]
            if page["next"] is None:
                break
            params["cursor"] = page["next"]
        assert len(items) == 5


@pytest.mark.parametrize("path", ["/crcr", "/crcr/good/backend", "/crcr/metrics"])
async def test_every_page_with_statistics_offers_the_ranges_of_the_api(
    client: httpx.AsyncClient, path: str
) -> None:
    ranges = (await client.get("/api/openapi.json")).json()["components"]["schemas"]["Span"]["enum"]
    assert ranges == ["24h", "7d", "14d", "30d", "90d"]
    for chosen in ranges:
        page = (await client.get(path, params={"range": chosen})).text
        switch = page.partition('aria-label="Range"')[2].partition("</nav>")[0]
        links = [link.rstrip("<") for link in re.findall(r">(\w+)<", switch)]
        assert (links, f'aria-current="true">{chosen}<' in switch) == (ranges, True)


async def test_the_search_for_an_author_pages_by_cursor(store: StoreRows, client: httpx.AsyncClient) -> None:
    for number in range(1, 46):
        store.pull(number, author="Ada", title="plain")
    first = (await client.get("/api/v1/search?q=@ada")).json()
    second = (await client.get(f"/api/v1/search?q=@ada&cursor={first['next']}")).json()
    assert [hit["number"] for hit in second["hits"]] == list(range(25, 5, -1))
    lines = (await client.get("/api/v1/search.csv?q=@ada")).text.splitlines()
    assert (len(lines), ",at,state,gate," in lines[0]) == (46, True)


async def test_jobs_of_all_backends_are_merged_by_time(store: StoreRows, client: httpx.AsyncClient) -> None:
    names = ["good/backend"] * 40 + ["flaky/backend"] * 3 + ["quiet/backend"] * 17
    for index, name in enumerate(names):
        hours_ago = 2 + (index * 37 % 101) / 10
        store.job(store.delivery(), downstream=name, job_name=f"job {index}", hours_ago=hours_ago)
    jobs: list[Any] = []
    params: dict[str, Any] = {"limit": 7}
    while params.get("cursor", "") is not None:
        page = (await client.get("/api/v1/jobs", params=params)).json()
        jobs += page["jobs"]
        params["cursor"] = page["next"]
    assert {job["job_name"] for job in jobs} == {f"job {index}" for index in range(60)}
    times = [job["started_at"] for job in jobs]
    assert (len(times), times) == (60, sorted(times, reverse=True))


async def test_a_delivery_has_its_dispatches_and_jobs_and_no_body(
    store: StoreRows, client: httpx.AsyncClient
) -> None:
    delivery = store.delivery()
    store.dispatch(delivery)
    store.job(delivery)
    answer = await client.get(f"/api/v1/deliveries/{delivery}")
    assert answer.json()["dispatches"][0]["jobs"][0]["job_name"] == "build"
    assert "body" not in answer.json()
    assert "secret" not in answer.text


async def test_effects_and_the_allowlist_are_listed(store: StoreRows, client: httpx.AsyncClient) -> None:
    store.effect("parked", last_error="404")
    effects = (await client.get("/api/v1/effects")).json()
    assert effects["counts"] == [{"kind": "send_dispatch", "state": "parked", "number": 1}]
    assert effects["parked"][0]["target"] == "good/backend"
    listed = (await client.get("/api/v1/allowlist")).json()
    assert {backend["name"]: backend["level"] for backend in listed["backends"]}["listen/only"] == "L1"
    assert (await client.get("/api/v1/allowlist", params={"upstream": "other/upstream"})).json()[
        "backends"
    ] == []


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("backends/no/such", 404, "not_found"),
        ("backends/-/..%20", 400, "bad_request"),
        ("backends/a/%2e%2e", 404, "not_found"),
        ("backends/good/backend/jobs/WzFd", 404, "not_found"),
        ("pulls/0", 400, "bad_request"),
        ("pulls/7x", 400, "bad_request"),
        ("commits/abc", 404, "not_found"),
        ("summary?kind=all", 400, "bad_request"),
        ("summary?sort=colour", 400, "bad_request"),
        ("summary.csv?level=L5", 400, "bad_request"),
        ("summary.csv?range=1y", 400, "bad_request"),
        ("summary.csv?upstream=a/b", 404, "not_found"),
        ("nothing", 404, "not_found"),
        ("deliveries/none", 404, "not_found"),
        ("summary?upstream=a/b", 404, "not_found"),
        ("jobs?downstream=nonsense", 400, "bad_request"),
        ("jobs?cursor=nonsense", 400, "bad_request"),
        ("jobs?cursor=W10", 400, "bad_request"),
        ("deliveries?cursor=WzEsMl0", 400, "bad_request"),
    ],
)
async def test_errors_have_a_status_and_a_code(
    client: httpx.AsyncClient, path: str, status: int, code: str
) -> None:
    answer = await client.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)


@pytest.mark.parametrize("query", ["limit=0", "limit=201", "state=odd", "number=0", "number=99999999999"])
async def test_parameters_out_of_bounds_are_a_bad_request(client: httpx.AsyncClient, query: str) -> None:
    answer = await client.get(f"/api/v1/jobs?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize(
    "query",
    [
        *("delivery=%00", "delivery=a%0Ab", "delivery=%FF", "delivery=%ED%A0%80", "delivery=%C0%AF"),
        *(f"delivery={'x' * 201}", f"cursor={'A' * 16_385}", f"upstream={'x' * 60_000}", "cursor=", "x=%80"),
    ],
)
@pytest.mark.parametrize("path", ["jobs", "jobs.csv"])
async def test_invalid_or_too_long_text_in_a_query_is_a_bad_request(
    client: httpx.AsyncClient, path: str, query: str
) -> None:
    answer = await client.get(f"/api/v1/{path}?{query}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_request")


@pytest.mark.parametrize("guid", ["%FF", "%00", "x" * 201, "%ED%A0%80"])
async def test_invalid_or_too_long_text_in_a_path_is_a_bad_request(
    client: httpx.AsyncClient, guid: str
) -> None:
    assert (await client.get(f"/api/v1/deliveries/{guid}")).status_code == 400
    assert (await client.get(f"/api/v1/deliveries/{guid}.csv")).status_code == 400


async def test_every_list_and_table_has_a_csv(client: httpx.AsyncClient) -> None:
    paths = set((await client.get("/api/openapi.json")).json()["paths"])
    alone = {
        "/api/v1/badges/{org}/{repo}",
        "/api/v1/compat/latest-green",
        "/api/v1/backends/{org}/{repo}/jobs/{token}",
        "/api/v1/effects/list",
        "/api/v1/health",
        "/api/v1/search/suggest",
        "/api/v1/setup/{org}/{repo}",
    }
    without = {path for path in paths if not path.endswith(".csv") and f"{path}.csv" not in paths}
    assert without == alone


async def test_json_and_csv_take_the_same_parameters(client: httpx.AsyncClient) -> None:
    paths = (await client.get("/api/openapi.json")).json()["paths"]
    parameters = {
        path: {parameter["name"] for parameter in item["get"].get("parameters", [])}
        for path, item in paths.items()
    }
    parameters["/api/v1/effects"] = parameters["/api/v1/effects/list"]
    pairs = [
        (parameters[path.removesuffix(".csv")], parameters[path])
        for path in parameters
        if path[:-4] in parameters
    ]
    assert len(pairs) == 26
    assert [
        json_parameters for json_parameters, csv_parameters in pairs if json_parameters != csv_parameters
    ] == []


async def test_a_csv_has_the_values_of_the_list_with_formulas_quoted(
    store: StoreRows, client: httpx.AsyncClient
) -> None:
    delivery = store.delivery()
    store.dispatch(delivery)
    store.job(delivery, "failure", job_name='=cmd|"x"', url="javascript:alert(1)", execution_s=1 / 3)
    answer = await client.get("/api/v1/jobs.csv", params={"state": "completed"})
    [line] = csv.DictReader(io.StringIO(answer.text, newline=""))
    assert (line["job_name"], line["url"], line["conclusion"]) == ('\'=cmd|"x"', "", "failure")
    assert line["execution_s"] == "0.3333333333333333"
    assert answer.headers["content-type"].startswith("text/csv")
    assert answer.headers["content-disposition"] == 'attachment; filename="crcr-Torch-torch-jobs.csv"'


@pytest.mark.parametrize("path", ["jobs", "deliveries", "waivers"])
async def test_a_csv_is_paged_by_its_next_link(
    store: StoreRows, client: httpx.AsyncClient, path: str
) -> None:
    for number in range(5):
        store.job(store.delivery(), job_name=f"job {number}")
        store.waiver(downstream="good/backend", job=f"job {number}")
    lines: list[dict[str, str]] = []
    address: str | None = f"/api/v1/{path}.csv?limit=2"
    while address:
        answer = await client.get(address)
        lines += csv.DictReader(io.StringIO(answer.text, newline=""))
        link = answer.headers.get("link")
        address = link[1:].partition(">")[0] if link else None
    assert len(lines) == len({tuple(line.values()) for line in lines}) == 5


async def test_the_openapi_description_is_complete_and_its_page_loads_nothing_external(
    client: httpx.AsyncClient,
) -> None:
    described = (await client.get("/api/openapi.json")).json()
    jobs = described["paths"]["/api/v1/jobs"]["get"]
    assert set(jobs["responses"]) == {"200", "304", "4XX", "503"}
    assert all(operation["description"] for operation in jobs["parameters"])
    operations = [item["get"] for item in described["paths"].values()]
    assert all(operation["tags"] and operation["summary"] for operation in operations)
    types = {
        path: list(item["get"]["responses"]["200"]["content"]) for path, item in described["paths"].items()
    }
    assert types.pop("/api/v1/compat/latest-green") == ["application/json", "text/plain"]
    assert all(
        media_types == ["text/csv" if path.endswith(".csv") else "application/json"]
        for path, media_types in types.items()
    )
    assert len({operation["operationId"] for operation in operations}) == len(operations)
    page = await client.get("/api/docs")
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert all(path in page.text for path in described["paths"])
    assert "<script" not in page.text
    assert "http://" not in page.text


async def test_the_openapi_page_is_searched_without_scripts(client: httpx.AsyncClient) -> None:
    page = (await client.get("/api/docs", params={"q": "jobs CSV"})).text
    assert "/api/v1/jobs.csv" in page
    assert "/api/v1/allowlist.csv" not in page
    nothing = (await client.get("/api/docs", params={"q": "<b>zebra</b>"})).text
    assert "No matches for" in nothing
    assert "<b>zebra" not in nothing


async def test_the_examples_of_the_openapi_description_match_their_schemas(client: httpx.AsyncClient) -> None:
    description = (await client.get("/api/openapi.json")).json()
    with_examples = [
        name
        for name, schema_of_name in description["components"]["schemas"].items()
        if schema_of_name.get("examples")
    ]
    assert {"Summary", "BackendPage", "Jobs", "Deliveries", "Badge", "ErrorBody"} <= set(with_examples)
    for name in with_examples:
        [example] = description["components"]["schemas"][name]["examples"]
        schema = {"$ref": f"#/components/schemas/{name}", "components": description["components"]}
        jsonschema.validate(example, schema, format_checker=jsonschema.FormatChecker())


@pytest.mark.parametrize("key", [(1, "a"), ("", 2**62), ("ü😀", -1)])
def test_a_cursor_decodes_to_its_key(key: tuple[str | int, ...]) -> None:
    assert cursors.decode(cursors.encode(key)) == key


@pytest.mark.parametrize("cursor", ["", "%%%", "e30", "W3RydWVd", "WzFlOTld", "WyJcdWQ4MDAiXQ", "W" * 4096])
def test_a_foreign_cursor_is_refused(cursor: str) -> None:
    with pytest.raises(BadRequest):
        cursors.decode(cursor)


async def test_probes_report_liveness_and_readiness(store: StoreRows, client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).json()["ok"] is True
    refused = await client.get("/readyz")
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "no_allowlist")
    assert "other/upstream" in refused.json()["error"]["detail"]
    store.allowlist("L2: [a/b]", OTHER)
    store.effect()
    ready = (await client.get("/readyz")).json()
    late = "Outgoing calls are behind: the oldest has been due since Dec 31, 23:57 UTC. Is a worker running?"
    assert ready["upstreams"][0] == {
        "upstream": "Torch/torch",
        "waiting": 1,
        "parked": 0,
        "lag_s": 180.0,
        "health": "amber",
        "reasons": [late],
    }
    assert ready["health"] == "amber"


class SlowHealth:
    """A store whose health query never returns."""

    def __init__(self, views: Any) -> None:
        self.vitals = views.vitals
        self.queries = 0

    async def health(self, _: Any) -> Any:
        self.queries += 1
        await asyncio.Event().wait()


async def test_probes_do_not_wait_for_a_slow_health_query(
    store: StoreRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "HEALTH_WITHIN_S", 0.01)
    store.allowlist("L2: [a/b]", OTHER)
    store.effect()
    slow = SlowHealth(store.views)
    async with asyncio.timeout(20), reader_client(store, slow) as client:
        answer = await client.get("/readyz")
        scraped = (await client.get("/metrics")).text
    ready = answer.json()
    assert (answer.status_code, ready["ok"], ready["health"]) == (200, True, "unknown")
    assert ready["upstreams"][0] == {
        "upstream": "Torch/torch",
        "waiting": 1,
        "parked": 0,
        "lag_s": 180.0,
        "health": "unknown",
        "reasons": [],
    }
    assert "crcr_store_up 1.0" in scraped
    assert 'crcr_effects_waiting{upstream="Torch/torch"} 1.0' in scraped
    assert "crcr_health{" not in scraped
    assert slow.queries == 1


async def test_probes_share_one_health_query(
    store: StoreRows, client: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    upstreams_read: list[RepoName] = []

    async def facts(tx: Tx, upstream: RepoName) -> HealthFacts:
        upstreams_read.append(upstream)
        return await health_facts(tx, upstream)

    for module in ("relay.health", "sql_views"):
        monkeypatch.setattr(f"crcr.record.views.{module}.health_facts", facts, raising=False)
    store.allowlist("L2: [a/b]", OTHER)
    for path in ("/readyz", "/metrics", "/readyz", "/metrics"):
        assert (await client.get(path)).status_code == 200
    assert upstreams_read == [UPSTREAM, OTHER]


async def test_a_rate_limit_kind_of_a_later_release_is_shown_as_other(
    store: StoreRows, client: httpx.AsyncClient
) -> None:
    store.effect(held_by="of_a_later_release", due_at=store.ago(hours=-1))
    [held] = (await client.get("/api/v1/health")).json()["held"]
    assert (held["held_by"], held["text"]) == (
        "other",
        "1 dispatch is held back by GitHub's rate limit until 01:00 UTC.",
    )
    [listed] = (await client.get("/api/v1/effects/list")).json()["effects"]
    assert listed["held_by"] == "other"


async def test_metrics_include_the_outbox(store: StoreRows) -> None:
    metrics = RelayMetrics()
    metrics.delivery("pull_request", "accepted")
    metrics.delivery("x" * 1000, "ignored")
    metrics.callback("applied")
    metrics.effect("send_dispatch", "done")
    metrics.dispatch_latency(0.2)
    metrics.observe(await store.views.vitals(store.clock.now()))
    text = metrics.text().decode()
    assert 'crcr_deliveries_total{event="pull_request",outcome="accepted"} 1.0' in text
    assert 'crcr_deliveries_total{event="other",outcome="ignored"} 1.0' in text
    assert 'crcr_effects_waiting{upstream="Torch/torch"} 0.0' in text
    assert 'crcr_allowlist_in_force{upstream="other/upstream"} 0.0' in text
    assert 'crcr_dispatch_latency_seconds_bucket{le="0.25"} 1.0' in text
    assert 'crcr_open_gates{state="failed",upstream="Torch/torch"} 0.0' in text


async def test_during_a_store_outage_the_relay_is_not_ready_and_metrics_still_work(store: StoreRows) -> None:
    class Down:
        async def vitals(self, _: Any) -> Any:
            raise StoreUnavailable

    async with reader_client(store, Down()) as client:
        assert (await client.get("/readyz")).status_code == 503
        scraped = await client.get("/metrics")
        assert scraped.headers["content-type"].startswith("text/plain")
        assert "crcr_store_up 0.0" in scraped.text
        assert "crcr_effects_waiting{" not in scraped.text


@pytest.mark.parametrize("path", ["jobs", "jobs.csv"])
async def test_during_a_store_outage_a_list_is_a_503_and_not_empty(store: StoreRows, path: str) -> None:
    class Down:
        async def jobs(self, _: Any) -> Any:
            raise StoreUnavailable

    async with reader_client(store, Down()) as client:
        answer = await client.get(f"/api/v1/{path}")
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store_unavailable")
    assert answer.headers["retry-after"] == "5"
