"""A whole installation to break: PostgreSQL, Redis, two relays (one with pages), two workers, and a simulated GitHub.

Everything but GitHub is a real process. A process that dies is restarted a little later, as by a supervisor. Webhooks and
callbacks go to the relays in turn; when that relay is down, the sender gets a 502 and no other relay is tried.
"""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import asyncpg
import httpx

from github_sim.github import GitHub, JobSpec, Workflow
from github_sim.rest.server import serve
from support.forked_process import ForkedProcess, fork_crcr
from support.process import environment as only
from support.process import free_port
from support.running_relay import AUDIENCE, RELAY_URL, UPSTREAM, environment
from support.services.postgres import Cluster, run_on
from support.services.redis import RedisServer

GATE = "crcr/gate"
NOTIFIED, REPORTING, SIGNALLING, GATING = "told/one", "report/one", "signal/one", ("gate/one", "gate/two")
LABEL = "ciflow/crcr/npu"
JOBS = ("build", "test")
DOWNSTREAMS = (NOTIFIED, REPORTING, SIGNALLING, *GATING)
CI_DOWNSTREAMS = (REPORTING, SIGNALLING, *GATING)
ALLOWLIST = (
    f"L1:\n  - {NOTIFIED}\nL2:\n  - {REPORTING}\nL3:\n  npu:\n    {SIGNALLING}: [ann]\nL4:\n"
    + "".join(f"  - {name}: {{oncalls: [bob], jobs: [build, test]}}\n" for name in GATING)
)
WORKFLOW = Workflow(jobs=tuple(JobSpec(name) for name in JOBS), run_name="CI {delivery_id}")
STARTS_WITHIN_S, ENDS_WITHIN_S = 120.0, 60.0
_READY_LINE = b"crcr is processing"
ROLES, WORKERS = ("all", "intake"), 2
"""The first relay has pages, whose process must survive the same faults."""
RELAYS = len(ROLES)


class RoundRobinTransport(httpx.AsyncBaseTransport):
    """Sends each request to the next relay and returns its response."""

    def __init__(self, ports: list[int]) -> None:
        self._ports = cycle(ports)
        self._inner = httpx.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        url = request.url.copy_with(host="127.0.0.1", port=next(self._ports))
        forwarded = httpx.Request(
            request.method, url, headers=request.headers, stream=request.stream, extensions=request.extensions
        )
        try:
            return await self._inner.handle_async_request(forwarded)
        except httpx.ConnectError:
            return httpx.Response(502)

    async def aclose(self) -> None:
        await self._inner.aclose()


@dataclass
class End:
    """How a process ended: the signal that we sent, and the exit code."""

    name: str
    sent_signal: signal.Signals | None
    code: int
    store_was_away: bool

    @property
    def is_fine(self) -> bool:
        if self.sent_signal is None:
            return self.store_was_away and self.code == 1  # it could not start and reported that
        # Before its signal handlers are installed, the signal itself ends the process.
        return self.code == -self.sent_signal or (self.sent_signal is signal.SIGTERM and self.code == 0)


class Member:
    """One process that is restarted whenever it ends."""

    def __init__(
        self, installation: "Installation", name: str, words: tuple[str, ...], port: int | None = None
    ) -> None:
        self.name, self.port = name, port
        self.log = installation.folder / f"{name}.log"
        self.pause_s = 0.5
        self._written = 0
        self._installation, self._words = installation, words
        self._sent_signal: signal.Signals | None = None
        self._stopped_for_good = False
        self._process: ForkedProcess | None = None
        self._supervisor = asyncio.create_task(self._supervise())

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def is_ready(self, http: httpx.AsyncClient) -> bool:
        if not self.is_running or self._sent_signal is not None:
            return False
        if self.port is None:
            return _READY_LINE in self.log.read_bytes()[self._written :]
        with suppress(httpx.TransportError):
            return (await http.get(f"http://127.0.0.1:{self.port}/readyz", timeout=5)).is_success
        return False

    def send(self, which: signal.Signals, *, back_after_s: float) -> bool:
        """Send a signal if the process runs and has not been sent one yet."""
        if self._process is None or not self.is_running or self._sent_signal is not None:
            return False
        self.pause_s, self._sent_signal = back_after_s, which
        self._process.send_signal(which)
        return True

    async def end(self) -> None:
        """Stop the process for good with SIGTERM."""
        self._stopped_for_good = True
        self.send(signal.SIGTERM, back_after_s=0)
        try:
            await asyncio.wait_for(asyncio.shield(self._supervisor), ENDS_WITHIN_S)
        except TimeoutError:
            if self._process is not None:
                self._process.kill()
            await self._supervisor
            raise AssertionError(f"{self.name} did not stop") from None

    async def kill(self) -> None:
        """Kill the process for good, in any state."""
        self._stopped_for_good = True
        if self._process is not None and self.is_running:
            self._process.kill()
        with suppress(asyncio.CancelledError):
            await self._supervisor

    async def _supervise(self) -> None:
        while not self._stopped_for_good:
            with self.log.open("ab") as log:
                self._written = log.tell()
                self._process = await fork_crcr(
                    self._words,
                    self._installation.folder,
                    self._installation.environ,
                    stdout=log.fileno(),
                    stderr=log.fileno(),
                )
            code = await self._process.wait()
            self._installation.ends.append(
                End(self.name, self._sent_signal, code, self._installation.store_was_away)
            )
            self._sent_signal = None
            if not self._stopped_for_good:
                await asyncio.sleep(self.pause_s)


@dataclass
class Installation:
    folder: Path
    github: GitHub
    postgres: Cluster
    redis: RedisServer
    environ: Mapping[str, str]
    ports: list[int]
    ends: list[End] = field(default_factory=list)
    members: list[Member] = field(default_factory=list)
    store_was_away: bool = False

    @property
    def relays(self) -> list[Member]:
        return self.members[:RELAYS]

    @property
    def workers(self) -> list[Member]:
        return self.members[RELAYS:]

    def start(self) -> None:
        """Start all processes at once, on an empty database."""
        for number, port in enumerate(self.ports, 1):
            words = ("serve", "--role", ROLES[number - 1], "--no-worker", "--port", str(port))
            self.members.append(Member(self, f"relay-{number}", words, port))
        for number in range(1, WORKERS + 1):
            self.members.append(Member(self, f"worker-{number}", ("worker",)))

    async def until_ready(self, *members: Member) -> None:
        """Wait until these members (or all) are ready, including one that is being restarted."""
        async with asyncio.timeout(STARTS_WITHIN_S), httpx.AsyncClient() as http:
            for member in members or tuple(self.members):
                while not await member.is_ready(http):
                    await asyncio.sleep(0.1)  # a real process starts in real time

    async def stop(self) -> None:
        await asyncio.gather(*(member.end() for member in self.members))

    async def rows(self, sql: str) -> list[dict[str, Any]]:
        connection = await asyncpg.connect(self.postgres.url("crcr"), timeout=10)
        try:
            return [dict(row) for row in await connection.fetch(sql)]
        finally:
            await connection.close()

    async def command(self, *words: str) -> tuple[int, str, str]:
        """Run a command of the CLI, like an operator."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "crcr", *words),
            cwd=self.folder,
            env=self.environ,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, errors = await process.communicate()
        return process.returncode or 0, out.decode(), errors.decode()

    def logged(self) -> list[dict[str, Any]]:
        """Every line of the logs of all processes; a line that is not JSON becomes an event."""
        lines = [
            (member.name, line)
            for member in self.members
            for line in member.log.read_text(errors="replace").splitlines()
        ]
        return [{"member": name, **_parsed(line)} for name, line in lines if line.strip()]


def _parsed(line: str) -> dict[str, Any]:
    try:
        parsed = json.loads(line)
    except ValueError:
        return {"event": line}
    return parsed if isinstance(parsed, dict) else {"event": line}


def _environ(folder: Path, github: GitHub, postgres: Cluster, redis: RedisServer) -> dict[str, str]:
    allowlist = folder / "allowlist.yml"
    allowlist.write_text(ALLOWLIST)
    return only(
        {
            **environment(folder, github, allowlist),
            "CRCR_DATABASE_URL": postgres.url("crcr"),
            "CRCR_REDIS_URL": redis.url,
            "CRCR_LOG_FORMAT": "json",
            "CRCR_RATE_LIMIT_PER_MIN": "3000",
        }
    )


@asynccontextmanager
async def run_installation(folder: Path, seed: int) -> AsyncIterator[Installation]:
    ports = [free_port() for _ in range(RELAYS)]
    postgres = await asyncio.to_thread(Cluster.make, durable=True)
    redis = await asyncio.to_thread(RedisServer.make)
    try:
        run_on(
            postgres.admin_url, "CREATE DATABASE crcr LOCALE_PROVIDER icu ICU_LOCALE 'en' TEMPLATE template0"
        )
        async with GitHub(seed=seed, transport=RoundRobinTransport(ports)) as github, serve(github):
            _set_up_github(github)
            installation = Installation(
                folder, github, postgres, redis, _environ(folder, github, postgres, redis), ports
            )
            installation.start()
            try:
                yield installation
            finally:
                await asyncio.gather(*(member.kill() for member in installation.members))
    finally:
        await asyncio.to_thread(redis.remove)
        await asyncio.to_thread(postgres.remove)


def _set_up_github(github: GitHub) -> None:
    # Two workers and many restarts in a minute exceed GitHub's limits of one installation.
    github.limits.points_per_minute = 1_000_000
    github.limits.primary_per_hour = 1_000_000
    github.ci.audience = AUDIENCE
    github.webhook_url = f"{RELAY_URL}/github/webhook"
    github.create_repository(UPSTREAM)
    github.require_checks(UPSTREAM, [GATE])
    for name in DOWNSTREAMS:
        github.create_repository(name, workflows=[WORKFLOW] if name in CI_DOWNSTREAMS else [])
