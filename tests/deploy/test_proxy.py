"""The proxies of `deploy/proxy`, real ones with TLS, in front of real relays.

Each proxy and its two relays run once for the whole module: a test restores the state that it changes.
"""

import asyncio
import http.client
import re
import signal
import sqlite3
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import AsyncExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio

from crcr.receive.callback import intake
from crcr.receive.ingest import intake as ingest_intake
from crcr.receive.webhook import intake as webhook_intake
from crcr.settings import Settings, settings_of
from crcr.show.live.event_stream import HEARTBEAT_S
from crcr.wiring.services import _FAILED_PER_MINUTE
from github_sim.github import GitHub, JobSpec, Workflow, WorkflowRun
from github_sim.rest.server import serve
from support.deploy.certificates import Authority
from support.deploy.proxies import FOLDER, PROXIES, PUBLIC_HOST, Proxy, find_program, nginx, run_proxy
from support.process import CrcrProcess, crcr, free_port
from support.running_relay import UPSTREAM, environment

pytestmark = pytest.mark.slow

NGINX = (FOLDER / "nginx.conf").read_text()
MIB = 1024 * 1024
REPORTER = "org/reporter"
OPERATOR_PATHS = (
    "/metrics",
    "/healthz",
    "/readyz",
    "/readyz/callback",
    "//metrics",
    "/%6detrics",
    "/crcr/../metrics",
    "/metrics?x=1",
    "/./metrics",
)

STARTED_WITH: tuple[tuple[str, ...], ...] = ((), ("--no-worker",))
"""The arguments of the two relays: only the first one has a worker."""

both = pytest.mark.parametrize("proxied_relays", sorted(PROXIES), indirect=True)
with_nginx = pytest.mark.parametrize("proxied_relays", ["nginx"], indirect=True)
shares_relays = pytest.mark.asyncio(loop_scope="module")


@dataclass
class ProxiedRelays:
    """GitHub, a proxy, and two relays behind it on one SQLite file."""

    kind: str
    github: GitHub
    proxy: Proxy
    folder: Path
    ports: tuple[int, int]
    environ: dict[str, str]
    stack: AsyncExitStack
    relays: list[CrcrProcess]

    async def start(self, number: int) -> CrcrProcess:
        words = ("serve", "--port", str(self.ports[number]), *STARTED_WITH[number])
        relay = await self.stack.enter_async_context(crcr(*words, folder=self.folder, environ=self.environ))
        await relay.wait_for_line("crcr is listening on")
        return relay

    async def new_run(self) -> WorkflowRun:
        """Open a pull request, and return the run that it starts at the backend."""
        known = {run.id for run in self.github.runs(REPORTER)}
        await self.github.open_pr(UPSTREAM)
        async with asyncio.timeout(30):
            while not (new := [run for run in self.github.runs(REPORTER) if run.id not in known]):
                await asyncio.sleep(0.05)
        return new[0]

    def taken(self) -> int:
        """The number of pull request webhooks that the relays have stored."""
        with closing(sqlite3.connect(self.folder / "crcr.db")) as store:
            [[stored]] = store.execute("SELECT count(*) FROM deliveries WHERE event = 'pull_request'")
        return int(stored)


def settings(folder: Path, github: GitHub, proxy: Proxy) -> dict[str, str]:
    (folder / "allowlist.yml").write_text(f"L2:\n  - {REPORTER}\n")
    return {
        **environment(folder, github, folder / "allowlist.yml"),
        "CRCR_PUBLIC_URL": proxy.url,
        "CRCR_TRUSTED_PROXIES": "127.0.0.1",
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def proxied_relays(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ProxiedRelays]:
    kind: str = request.param
    folder, ports = tmp_path_factory.mktemp(kind), (free_port(), free_port())
    async with AsyncExitStack() as stack:
        proxy = await stack.enter_async_context(run_proxy(folder, ports, PROXIES[kind]))
        github = await stack.enter_async_context(GitHub(seed=7, webhook_url=f"{proxy.url}/github/webhook"))
        await stack.enter_async_context(serve(github))
        github.use_transport(proxy.transport())
        github.create_repository(UPSTREAM)
        github.create_repository(REPORTER, workflows=[Workflow(jobs=(JobSpec("build"),))])
        proxied_relays = ProxiedRelays(
            kind, github, proxy, folder, ports, settings(folder, github, proxy), stack, []
        )
        for number in range(len(ports)):
            proxied_relays.relays.append(await proxied_relays.start(number))
        yield proxied_relays
        github.finish()


def nginx_directive(directive: str, path: str = "") -> str:
    """The value of a directive in a location, or in the server block."""
    names = rf"(?:= {re.escape(path)}|~ \^{re.escape(path)}/\?\$)"
    where = re.search(rf"location {names} \{{(.*?)\}}", NGINX, re.DOTALL) if path else None
    assert where or not path, path
    values = re.findall(rf"^\s*{directive} (.+);$", where[1] if where else NGINX, re.MULTILINE)
    assert values, directive
    return str(values[0])


@pytest.mark.parametrize(
    ("path", "cap"),
    [
        ("/github/webhook", webhook_intake.CAP_BYTES),
        ("/github/callback", intake.CAP_BYTES),
        ("/api/crcr/results", ingest_intake.CAP_BYTES),
    ],
)
def test_the_proxys_body_limits_equal_those_of_the_relay(path: str, cap: int) -> None:
    size = f"{cap // MIB}m"
    assert nginx_directive("client_max_body_size", path) == size
    assert f"max_size {size.upper()[:-1]}MiB" in (FOLDER / "Caddyfile").read_text()


def test_a_stream_survives_missed_heartbeats_and_no_request_is_rate_limited() -> None:
    assert int(nginx_directive("proxy_read_timeout", "/api/v1/events").removesuffix("s")) > 3 * HEARTBEAT_S
    assert "limit_req" not in NGINX
    assert f'proxy_set_header {settings_of(Settings)["hud_proxy_header"].default} "";' in NGINX


def test_intake_and_pages_have_separate_upstream_servers() -> None:
    """So pages can move to relays with the role hud, by a change of one list of addresses."""
    text = (FOLDER / "Caddyfile").read_text()
    taken_in, rest = text.split("reverse_proxy @repeatable {")[1].split("reverse_proxy {")
    assert ("import relays" in taken_in, "import pages" in rest) == (True, True)
    assert nginx_directive("proxy_pass", "/github/webhook") == "http://crcr"
    assert nginx_directive("proxy_pass", "/api/v1/events") == "http://crcr-pages"


def test_nginx_and_caddy_accept_their_configuration(tmp_path: Path) -> None:
    start = nginx(tmp_path, _certified(tmp_path), (8001, 8002))
    tested = subprocess.run([*start, "-t"], capture_output=True, text=True, check=False)
    assert (tested.returncode, "[warn]" in tested.stderr) == (0, False), tested.stderr
    words = [
        find_program("caddy", "caddy"),
        "validate",
        "--config",
        str(FOLDER / "Caddyfile"),
        "--adapter",
        "caddyfile",
    ]
    assert subprocess.run(words, capture_output=True, check=False).returncode == 0


def _certified(folder: Path) -> Proxy:
    authority = Authority.make()
    authority.serve(folder)
    return Proxy(free_port(), free_port(), ssl.create_default_context(cadata=authority.pem.decode()))


@both
@shares_relays
async def test_the_whole_loop_and_its_live_events_pass_through_the_proxy(
    proxied_relays: ProxiedRelays,
) -> None:
    async with proxied_relays.proxy.client() as visitor, visitor.stream("GET", "/api/v1/events") as stream:
        lines = stream.aiter_lines()
        assert await anext(lines) == "retry: 2000"
        opened = asyncio.create_task(proxied_relays.new_run())
        async with asyncio.timeout(10):
            seen = [line async for line in _until(lines, "event: change")]
        assert seen[-1] == "event: change"
        run = await opened
        assert proxied_relays.github.deliveries()[-1].status_code == 202
        assert (await proxied_relays.github.start_job(run, "build")).status_code == 200


@with_nginx
@shares_relays
async def test_public_pages_are_cached_by_the_proxy_and_personal_pages_never(
    proxied_relays: ProxiedRelays,
) -> None:
    """A cached response is recognized by its age: the summary contains the relay's own clock."""
    async with proxied_relays.proxy.client() as visitor:
        path = "/api/v1/summary?range=7d"
        kept = {(await visitor.get(path)).json()["at"] for _ in range(3)}
        own = {
            (await visitor.get(path, headers={name: "x"})).headers["cache-control"]
            for name in ("Cookie", "Authorization")
        }
        newer = (await visitor.get(f"{path}&v=1")).json()["at"]
        again = (await visitor.get(path)).json()["at"]
    assert kept == {again}, "a page was read from the relay again within 10 s"
    assert own == {"private, no-store"}
    assert newer > again


async def _until(lines: AsyncIterator[str], last: str) -> AsyncIterator[str]:
    async for line in lines:
        yield line
        if line == last:
            return


@both
@shares_relays
async def test_a_client_is_identified_by_its_address_and_not_by_its_forwarded_header(
    proxied_relays: ProxiedRelays,
) -> None:
    """Failed authentications are limited by address, in each relay separately without Redis."""
    async with proxied_relays.proxy.client("127.0.0.2") as attacker:
        answers = [await _fail(attacker, f"203.0.113.{number}") for number in range(4 * _FAILED_PER_MINUTE)]
    # Two relays refuse half of them, or fewer if this took so long that both allow some more.
    assert set(answers) == {401, 429}
    assert answers.count(429) > _FAILED_PER_MINUTE
    async with proxied_relays.proxy.client("127.0.0.3") as other:
        assert await _fail(other, "127.0.0.2") == 401


async def _fail(visitor: httpx.AsyncClient, claimed: str) -> int:
    headers = {"Authorization": "Bearer made.up.token", "X-Forwarded-For": claimed}
    return (await visitor.post("/github/callback", headers=headers, json={})).status_code


@both
@shares_relays
async def test_operator_paths_are_not_reachable_from_outside(proxied_relays: ProxiedRelays) -> None:
    responses = {path: await asyncio.to_thread(_get, proxied_relays.proxy, path) for path in OPERATOR_PATHS}
    assert {path: status for path, (status, _) in responses.items() if status != 404} == {}
    assert [path for path, (_, body) in responses.items() if b"crcr_" in body or b'"ok":true' in body] == []
    async with httpx.AsyncClient(transport=httpx.AsyncHTTPTransport()) as inside:
        for port in proxied_relays.ports:
            assert (await inside.get(f"http://127.0.0.1:{port}/metrics")).status_code == 200


def _get(proxy: Proxy, path: str) -> tuple[int, bytes]:
    """Send the path unchanged: an ordinary client would normalize it first."""
    connection = http.client.HTTPSConnection("127.0.0.1", proxy.port, context=proxy.trust, timeout=20)
    try:
        connection.putrequest("GET", path, skip_accept_encoding=True)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


@with_nginx
@shares_relays
async def test_bodies_pass_up_to_the_limit_and_larger_ones_get_the_relays_error(
    proxied_relays: ProxiedRelays,
) -> None:
    async with proxied_relays.proxy.client() as visitor:
        for path, cap, code in (
            ("/github/webhook", webhook_intake.CAP_BYTES, "bad_signature"),
            ("/github/webhook/", webhook_intake.CAP_BYTES, "bad_signature"),
            ("/github/callback", intake.CAP_BYTES, "not_authentic"),
            ("/github/callback/", intake.CAP_BYTES, "not_authentic"),
        ):
            passed = await visitor.post(path, content=b" " * cap)
            assert (passed.status_code, passed.json()["error"]["code"]) == (401, code)
            refused = await visitor.post(path, content=b" " * (cap + 1))
            assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_large")
            assert refused.headers["content-type"] == "application/json"


async def test_unencrypted_requests_are_redirected_to_tls(tmp_path: Path) -> None:
    async with run_proxy(tmp_path, (free_port(), free_port())) as proxy, proxy.client() as visitor:
        plain_url = f"http://127.0.0.1:{proxy.plain_port}/crcr/pull/7?a=b"
        answer = await visitor.get(plain_url, headers={"Host": PUBLIC_HOST})
        assert (answer.status_code, answer.headers["location"]) == (
            308,
            f"https://{PUBLIC_HOST}/crcr/pull/7?a=b",
        )
        away = await visitor.get("/crcr")
        assert (away.status_code, away.headers["strict-transport-security"]) == (502, "max-age=31536000")


@pytest.mark.parametrize("kind", sorted(PROXIES))
async def test_fault_69_a_request_for_a_foreign_host_is_not_redirected(tmp_path: Path, kind: str) -> None:
    """A redirect to the host in the `Host` header would lend the relay's name to any URL."""
    async with (
        run_proxy(tmp_path, (free_port(), free_port()), PROXIES[kind]) as proxy,
        proxy.client() as visitor,
    ):
        plain = f"http://127.0.0.1:{proxy.plain_port}/crcr"
        foreign = await visitor.get(plain, headers={"Host": "evil.example"})
        assert (foreign.status_code, "location" in foreign.headers) == (421, False)
        ours = await visitor.get(plain)
        assert (ours.status_code, ours.headers["location"]) == (308, f"https://{PUBLIC_HOST}/crcr")
        over_tls = await visitor.get("/crcr", headers={"Host": "evil.example"})
        # nginx refuses; Caddy has no site for it and sends an empty response. The relays, which are down, would give 502.
        assert (over_tls.status_code, over_tls.content) in {(421, over_tls.content), (200, b"")}


@both
@shares_relays
async def test_fault_69_callbacks_and_webhooks_with_a_trailing_slash_are_not_redirected(
    proxied_relays: ProxiedRelays,
) -> None:
    async with proxied_relays.proxy.client() as visitor:
        for path in ("/github/webhook", "/github/callback"):
            answers = [
                await visitor.post(spelling, content=b" " * (MIB + 1)) for spelling in (path, f"{path}/")
            ]
            assert [answer.status_code for answer in answers] == [401, 401]
            assert len({answer.json()["error"]["code"] for answer in answers}) == 1


@pytest.mark.parametrize("kind", sorted(PROXIES))
async def test_fault_65_the_proxy_refuses_a_large_head_itself(tmp_path: Path, kind: str) -> None:
    async with (
        run_proxy(tmp_path, (free_port(), free_port()), PROXIES[kind]) as proxy,
        proxy.client() as visitor,
    ):
        fields = {f"x-{number}": "y" * 7000 for number in range(12)}
        assert (await visitor.get("/crcr", headers=fields)).status_code in {400, 431}


@both
@shares_relays
async def test_fault_65_a_head_with_a_long_token_reaches_the_relay(proxied_relays: ProxiedRelays) -> None:
    async with proxied_relays.proxy.client() as visitor:
        answer = await visitor.post("/github/callback", headers={"Authorization": "Bearer " + "y" * 6000})
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "not_authentic")


GITHUB_GIVES_UP_S = 10.0


@pytest.mark.parametrize("path", ["/github/webhook", "/github/callback", "/api/crcr/results"])
def test_a_hanging_relay_has_5_s_to_connect_and_8_s_to_answer(path: str) -> None:
    assert (
        nginx_directive("proxy_connect_timeout", path),
        nginx_directive("proxy_read_timeout", path),
    ) == ("5s", "8s")
    assert "non_idempotent" in nginx_directive("proxy_next_upstream", path)
    caddyfile = (FOLDER / "Caddyfile").read_text()
    assert ("dial_timeout 5s" in caddyfile, "response_header_timeout 8s" in caddyfile) == (True, True)


@pytest.mark.timeout(180)
@both
@shares_relays
async def test_a_frozen_relay_is_skipped_before_github_times_out(proxied_relays: ProxiedRelays) -> None:
    """Some of several concurrent requests go to the frozen relay first, whose kernel accepts the connection.

    nginx retries them; Caddy, which cannot, has removed the relay by then.
    """
    github, frozen = proxied_relays.github, proxied_relays.relays[1].process
    run = await proxied_relays.new_run()
    job = run.job("build")
    before = len(github.deliveries())
    frozen.send_signal(signal.SIGSTOP)
    try:
        if proxied_relays.kind == "caddy":
            await wait_until_removed(proxied_relays.proxy)
        took = await asyncio.gather(
            *(_timed(github.open_pr(UPSTREAM)) for _ in range(4)),
            *(_timed(github.report(run, job, status="in_progress")) for _ in range(4)),
        )
    finally:
        frozen.send_signal(signal.SIGCONT)
    answers = [delivery.status_code for delivery in github.deliveries()[before - 1 :]]
    assert answers == [202] * 5
    assert [answer.status_code for answer, _ in took[4:]] == [200] * 4
    slowest = max(seconds for _, seconds in took)
    assert slowest < GITHUB_GIVES_UP_S
    assert proxied_relays.kind == "caddy" or slowest > 7, "the frozen relay was never asked"


async def wait_until_removed(proxy: Proxy) -> None:
    """Wait until the proxy's own health check has detected the frozen relay: four requests in a row are answered at once."""
    answered = 0
    async with asyncio.timeout(30), proxy.client() as visitor:
        while answered < 4:
            try:
                async with asyncio.timeout(1.5):
                    await visitor.get("/robots.txt")
            except (TimeoutError, httpx.TransportError):
                answered = 0
            else:
                answered += 1


async def _timed(work: Awaitable[Any]) -> tuple[Any, float]:
    began = time.monotonic()
    return await work, time.monotonic() - began


@pytest.mark.timeout(180)
@with_nginx
@shares_relays
async def test_relays_are_replaced_one_by_one_without_losing_a_webhook(
    proxied_relays: ProxiedRelays,
) -> None:
    """The same webhook may reach both relays; both recognize it by its GUID."""
    first, taken = len(proxied_relays.github.deliveries()), proxied_relays.taken()
    stop = asyncio.Event()
    sending = [asyncio.create_task(_keep_sending(proxied_relays.github, stop)) for _ in range(2)]
    for number, relay in enumerate(tuple(proxied_relays.relays)):
        before = len(proxied_relays.github.deliveries())
        assert await relay.stop() == 0
        proxied_relays.relays[number] = await proxied_relays.start(number)
        while len(proxied_relays.github.deliveries()) < before + 10:
            await asyncio.sleep(0.05)
    stop.set()
    await asyncio.gather(*sending)
    answers = [delivery.status_code for delivery in proxied_relays.github.deliveries()[first:]]
    assert len(answers) > 20
    assert set(answers) == {202}
    assert proxied_relays.taken() - taken == len(answers)


async def _keep_sending(github: GitHub, stop: asyncio.Event) -> None:
    while not stop.is_set():
        await github.open_pr(UPSTREAM)
        await asyncio.sleep(0.1)
