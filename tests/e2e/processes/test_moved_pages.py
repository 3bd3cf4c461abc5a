"""An installation that was moved to PostgreSQL shows exactly the same pages as before.

Both relays get requests for the same URLs: all that can be reached by following links, from every range and kind, and all without a
link. Every route of the app is among them.
"""

import json
import re
from collections import deque
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from functools import cache
from html import unescape
from random import Random
from typing import TYPE_CHECKING, cast
from urllib.parse import parse_qs, urljoin, urlsplit

import httpx
import pytest
import pytest_asyncio

from crcr.decide.jobs.short_address import short_token
from crcr.record.schema.bisections import bisection_runs, bisections
from crcr.record.store.statement import Statement, inserting
from crcr.record.store.times import to_us
from support.github.gated_upstream import GATING, INFORMING
from support.running_relay import RELAY_URL, UPSTREAM, RunningRelay
from support.served_relay import ADMIN, HIDDEN_BACKEND, L1_BACKEND
from support.stores.moved_relay import moved_relay, relay_with_long_history

if TYPE_CHECKING:
    from fastapi import FastAPI

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]

RANGES = ("24h", "7d", "14d", "30d", "90d")
KINDS = ("pull_request", "push", "nightly", "ingested")
BACKENDS = (GATING, INFORMING, L1_BACKEND, HIDDEN_BACKEND)
OF_ONE_PROCESS = ("/metrics", "/api/v1/events", "/static/{name}", "/docs", "/docs/{path:path}")
"""Per-process metrics, an endless stream, and static files that do not depend on the database."""
MOST_PER_ROUTE = {"administrator": 8, "anybody": 5}
"""Of each route, in random order: twenty times as many (a quarter of an hour) find nothing else."""
MASKED = re.compile(rb"[0-9a-f]{32}")
"""The request id, which an error page shows."""
_LINK = re.compile(r'(?:href|action|src)="([^"]+)"')


@dataclass(frozen=True)
class MovedRelay:
    old: RunningRelay
    new: httpx.AsyncClient

    def addresses(self) -> Iterator[str]:
        """The URLs at which a reader may start."""
        for span in RANGES:
            for kind in KINDS:
                query_text = f"range={span}&kind={kind}"
                yield from (f"/crcr?{query_text}", f"/crcr/metrics?{query_text}")
                for name in ("summary", "metrics", "jobs"):
                    yield from (f"/api/v1/{name}?{query_text}", f"/api/v1/{name}.csv?{query_text}")
                for each in BACKENDS:
                    yield from (f"/crcr/{each}?{query_text}", f"/badge/{each}.svg?{query_text}")
                    backend = f"/api/v1/backends/{each}"
                    yield from (
                        f"{backend}?{query_text}",
                        f"{backend}.csv?{query_text}",
                        f"{backend}/jobs.csv?{query_text}",
                    )
                    yield f"/api/v1/badges/{each}?{query_text}"
        for name in (
            "waivers",
            "deliveries",
            "audit",
            "sandbox",
            "search?q=fuse",
            "search/suggest?q=fuse",
            "allowlist",
            "culprits",
            "bisections",
            "effects/list",
        ):
            path, _, query = name.partition("?")
            yield from (f"/api/v1/{name}", f"/api/v1/{path.replace('/list', '')}.csv?{query}")
        for each in BACKENDS:
            backend = f"/api/v1/backends/{each}"
            yield from (f"{backend}/levels.csv", f"{backend}/refusals", f"{backend}/refusals.csv")
            yield f"/api/v1/setup/{each}"
        yield from ("/", "/crcr/", "/crcr/pr/1/", "/api/v1/effects", "/api/v1/onboarding", "/crcr/onboarding")
        yield from ("/api/v1/health", "/readyz/callback")
        yield from ("/crcr/bisections/1", "/api/v1/bisections/1", "/api/v1/bisections/1.csv")
        yield from (
            "/crcr/deliveries?show=effects",
            "/crcr/sandbox",
            "/crcr/waivers",
            "/crcr/audit",
            "/crcr/login",
        )
        yield from ("/api/openapi.json", "/api/docs", "/healthz", "/readyz", "/robots.txt")
        yield from (f"/crcr/onboarding/{name}" for name in ("report.py", "bridge.py", "files/1"))
        for query_text in (
            "1",
            "5003",
            "fuse",
            "%25",
            "_",
            "org",
            "build",
            "ada",
            "%00",
            "%F0%9F%94%A5",
            "'",
            "ÄÖ",
        ):
            yield from (
                f"/crcr/search?q={query_text}",
                f"/api/v1/search?q={query_text}",
                f"/api/v1/search.csv?q={query_text}",
            )
        yield from ("/api/v1/compat/latest-green?level=L2", "/api/v1/compat/latest-green?format=text")
        yield from self._of_rows()

    def _of_rows(self) -> Iterator[str]:
        shas = self._first(
            "SELECT DISTINCT head_sha FROM deliveries WHERE head_sha IS NOT NULL", "received_at DESC"
        )
        yield from (
            "/og/summary.png",
            "/og/failures.png",
            "/og/pr/1.png",
            f"/og/failures/{'0' * 16}.png",
            f"/og/commit/{shas[0]}.png",
        )
        yield from (f"/og/backend/{each}.png" for each in BACKENDS)
        for job in self.old.rows("SELECT * FROM jobs ORDER BY in_progress_at DESC, run_id, job_name LIMIT 3"):
            key = (job["delivery"], job["workflow"], job["run_id"], job["attempt"], job["job_name"])
            yield f"/crcr/j/{short_token(job['upstream'], job['downstream'], key)}"
        for sha in shas[:25]:
            yield from (f"/crcr/commit/{sha}", f"/api/v1/commits/{sha}", f"/api/v1/commits/{sha}.csv")
            yield f"/crcr/search?q={sha[:9]}"
        for number in (1, 2, 3, *self._first("SELECT number FROM pulls", "number DESC")[:20]):
            yield from (f"/crcr/pr/{number}", f"/api/v1/pulls/{number}", f"/api/v1/pulls/{number}.csv")
        for guid in self._first("SELECT guid FROM deliveries", "received_at DESC, guid")[:25]:
            yield from (
                f"/crcr/deliveries/{guid}",
                f"/api/v1/deliveries/{guid}",
                f"/api/v1/deliveries/{guid}.csv",
            )

    def _first(self, sql: str, order: str) -> list[str]:
        return [next(iter(row.values())) for row in self.old.rows(f"{sql} ORDER BY {order}")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def moved(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MovedRelay]:
    async with relay_with_long_history(tmp_path_factory.mktemp("moved"), jobs=3000) as relay:
        await add_bisection(relay)
        async with moved_relay(relay) as new:
            yield MovedRelay(relay, new)


async def add_bisection(relay: RunningRelay) -> None:
    """A bisection with one run, which its own page shows."""
    now = to_us(relay.clock.now())
    commits = [[f"{position:040x}", position, f"Change {position}"] for position in (1, 2, 3)]
    bisection = {
        "bisection_id": 1, "upstream": UPSTREAM, "downstream": GATING, "workflow": "ci.yml", "job_name": "build",
        "ref": "main", "commits": json.dumps(commits), "flake_rate": 0.01, "most_runs": 12, "who": "ada",
        "created_at": now, "ends_at": now, "state": "finished", "outcome": "found", "left_good": 1, "left_bad": 2,
        "culprit": commits[2][0], "finished_at": now,
    }  # fmt: skip
    run = {
        "bisection_id": 1, "number": 1, "upstream": UPSTREAM, "delivery": "none", "position": 2, "created_at": now,
        "result": "failed", "finished_at": now,
    }  # fmt: skip
    for table, row in ((bisections, bisection), (bisection_runs, run)):
        statement = Statement(inserting(table, *row))
        await relay.services.database.write(
            lambda tx, statement=statement, row=row: tx.run(statement, **row)  # type: ignore[misc]
        )


@pytest.mark.parametrize("reader", ["anybody", "administrator"])
async def test_every_page_api_response_and_export_is_the_same_before_and_after_the_move(
    moved: MovedRelay, reader: str
) -> None:
    headers = {"authorization": f"Bearer {ADMIN}"} if reader == "administrator" else {}
    routes, first = _routes(moved.old), list(moved.addresses())
    Random(reader).shuffle(first)
    seen, per_route, different = dict.fromkeys(first), dict.fromkeys(routes, 0), []
    waiting = deque(seen)
    while waiting:
        address = waiting.popleft()
        route = _find_route(address, routes)
        if route in OF_ONE_PROCESS or per_route.get(route, 0) >= MOST_PER_ROUTE[reader]:
            continue
        per_route[route] = per_route.get(route, 0) + 1
        before, after = await _get_both(moved, address, headers)
        if before != after:
            different.append(_difference(address, before, after))
        for link in _links(address, before):
            if link not in seen:
                seen[link] = None
                waiting.append(link)
    assert different == []
    assert {route for route, times in per_route.items() if not times} <= set(OF_ONE_PROCESS)
    assert sum(per_route.values()) > 300


ComparableResponse = tuple[int, dict[str, str], bytes]


async def _get_both(
    relays: MovedRelay, address: str, headers: dict[str, str]
) -> tuple[ComparableResponse, ComparableResponse]:
    accepting = {**headers, "accept": "text/html" if address.startswith("/crcr") else "*/*"}
    return tuple(
        [
            _comparable_response(await http.get(address, headers=accepting))
            for http in (relays.old.http, relays.new)
        ]
    )  # type: ignore[return-value]


def _comparable_response(answer: httpx.Response) -> ComparableResponse:
    assert answer.status_code < 500, (str(answer.url), answer.text[:400])
    body = MASKED.sub(b"~", answer.content) if answer.is_error else answer.content
    kept = {
        name: answer.headers[name] for name in ("link", "location", "content-type") if name in answer.headers
    }
    return answer.status_code, kept, body


def _difference(address: str, before: ComparableResponse, after: ComparableResponse) -> str:
    if before[:2] != after[:2]:
        return f"{address}: {before[:2]} became {after[:2]}"
    old, new = (response[2].decode(errors="replace") for response in (before, after))
    at = next(
        (position for position, (a, b) in enumerate(zip(old, new, strict=False)) if a != b),
        min(len(old), len(new)),
    )
    return f"{address}: {old[max(0, at - 120) : at + 80]!r} became {new[max(0, at - 120) : at + 80]!r}"


def _links(address: str, response: ComparableResponse) -> Iterator[str]:
    status, headers, body = response
    links = re.findall(r"<([^>]+)>", headers.get("link", ""))
    if "location" in headers:
        links.append(headers["location"])
    if status == 200 and headers.get("content-type", "").startswith("text/html"):
        links += [unescape(each) for each in _LINK.findall(body.decode())]
    for each in links:
        parts = urlsplit(urljoin(f"{RELAY_URL}{address}", each))
        if f"{parts.scheme}://{parts.netloc}" == RELAY_URL:
            yield f"{parts.path}?{parts.query}" if parts.query else parts.path
            for job in parse_qs(parts.query).get("job", ()):
                yield f"/api/v1/backends{parts.path.removeprefix('/crcr')}/jobs/{job}"


def _routes(relay: RunningRelay) -> list[str]:
    paths = [
        getattr(route, "path", "")
        for route in relay.app.inner.routes
        if "GET" in (getattr(route, "methods", None) or {"GET"})
    ]
    return [path for path in dict.fromkeys([*paths, *_api(relay)]) if path]


def _api(relay: RunningRelay) -> list[str]:
    return [
        path for path, item in cast("FastAPI", relay.app.inner).openapi()["paths"].items() if "get" in item
    ]


def _find_route(address: str, routes: list[str]) -> str:
    path = urlsplit(address).path
    fitting = [each for each in routes if _pattern(each).fullmatch(path)]
    return max(fitting, key=lambda each: (len(re.sub(r"\{[^}]*\}", "", each)), -each.count("{")), default="")


@cache
def _pattern(route: str) -> re.Pattern[str]:
    parts = re.split(r"(\{[^}]*\})", route)
    return re.compile(
        "".join(
            ".*" if part.endswith(":path}") else "[^/]+" if part.startswith("{") else re.escape(part)
            for part in parts
        )
    )
