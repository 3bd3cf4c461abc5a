"""The state that all parts of the simulator share: world, clock, faults, issuers, HTTP client and the log of calls.

The driver's classes (`driver/`) extend it, and the REST handlers receive it. It owns the HTTP client and the background
tasks; `aclose()` ends them.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Self

import httpx

from github_sim.bodies.repositories import client_id
from github_sim.bodies.webhooks import from_app
from github_sim.ci.downstream import DownstreamCi
from github_sim.clock import SimulatorClock, WallClock
from github_sim.oidc.github_actions import GitHubIssuer
from github_sim.oidc.other_cis import (
    BuildkiteIssuer,
    CircleCiIssuer,
    GenericIssuer,
    GitLabIssuer,
    OtherIssuer,
)
from github_sim.rest.app import RestApi
from github_sim.rest.app_manifest import ManifestCode
from github_sim.rest.auth import Authenticator
from github_sim.rest.exchange import Route
from github_sim.rest.oidc import RequestTokens
from github_sim.webhooks.sender import Webhooks
from github_sim.world.call_counts import CallCounts
from github_sim.world.faults import Faults
from github_sim.world.rate_limits import RateLimiter, RateLimits
from github_sim.world.records import (
    APP_EVENTS,
    Account,
    Call,
    CallbackAnswer,
    Json,
    Repository,
    WebhookDelivery,
)
from github_sim.world.world import World

Sleep = Callable[[float], Awaitable[None]]
APP_PERMISSIONS = {
    "metadata": "read",
    "contents": "write",
    "actions": "write",
    "checks": "write",
    "statuses": "write",
    "issues": "write",
    "pull_requests": "write",
    "merge_queues": "read",
}


class Simulation:
    def __init__(
        self,
        *,
        clock: SimulatorClock | None = None,
        seed: int = 1,
        base_url: str = "http://github.sim",
        webhook_url: str | None = None,
        webhook_secret: str | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self.clock: SimulatorClock = clock or WallClock()
        self.rng = random.Random(seed)
        self.sleep = sleep
        self.world = World(self.clock, self.rng)
        self.app_id = self.rng.randint(900_000, 1_900_000)
        self.app_permissions = dict(APP_PERMISSIONS)
        self.app_events: tuple[str, ...] = APP_EVENTS
        self.manifest_codes: dict[str, ManifestCode] = {}
        self.auth = Authenticator(self.world, self.app_id, client_id(self.app_id))
        self.faults = Faults()
        self.limits = RateLimits()
        self.rate_limiter = RateLimiter(self.limits)
        self.issuer = GitHubIssuer(self.world, base_url)
        self.buildkite = BuildkiteIssuer(self.world, self.issuer)
        self.gitlab = GitLabIssuer(self.world, self.issuer)
        self.circleci = CircleCiIssuer(self.world, self.issuer)
        self.generic = GenericIssuer(self.world, self.issuer)
        others = (self.buildkite, self.gitlab, self.circleci, self.generic)
        self.request_tokens = RequestTokens()
        self.others: dict[str, OtherIssuer] = {other.name: other for other in others}
        self.webhooks = Webhooks(self.world, self.faults.webhooks, self.http)
        self.webhooks.url = webhook_url
        self.webhooks.secret = webhook_secret or f"{self.rng.getrandbits(160):040x}"
        self.webhooks.app_id = self.app_id
        self.calls: list[Call] = []
        self.call_counts = CallCounts()
        # Called with every answered call; `calls` may be cut down.
        self.on_call: list[Callable[[Call], None]] = [self.call_counts.add]
        self.callback_log: list[CallbackAnswer] = []
        self.unexpected: list[str] = []
        self.ci = DownstreamCi(self.world, self.issuer, self.http, self.callback_log)
        self.app = RestApi(self)
        self._transport = transport
        self._client: httpx.AsyncClient | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.extra_routes: list[Route] = []
        """Routes of the caller, matched after GitHub's own."""
        self.on_close: list[Callable[[], None]] = []
        self._silent = False

    @property
    def base_url(self) -> str:
        return self.issuer.base_url

    @base_url.setter
    def base_url(self, url: str) -> None:
        self.issuer.base_url = url.rstrip("/")

    @property
    def webhook_url(self) -> str | None:
        return self.webhooks.url

    @webhook_url.setter
    def webhook_url(self, url: str | None) -> None:
        self.webhooks.url = url

    @property
    def webhook_secret(self) -> str:
        return self.webhooks.secret

    @property
    def private_key_pem(self) -> str:
        return self.auth.private_key_pem

    @property
    def client_id(self) -> str:
        return self.auth.client_id

    def http(self) -> httpx.AsyncClient:
        """The client for webhooks and callbacks, made when first needed."""
        if self._client is None:
            self._client = httpx.AsyncClient(transport=self._transport, timeout=10.0)
        return self._client

    def use_transport(self, transport: httpx.AsyncBaseTransport) -> None:
        """Reach the relay through this transport (for an app that is made after the simulator)."""
        if self._client is not None:
            raise RuntimeError("the simulator has already sent something")
        self._transport = transport

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run in the background; an exception there makes `finish()` fail."""
        if self._silent:
            work.close()
            return
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.unexpected.append(f"background task failed: {error!r}")

    async def emit(
        self,
        event: str,
        body: Json,
        repository: Repository,
        sender: Account,
        rng: random.Random | None = None,
    ) -> WebhookDelivery | None:
        """Send an event of a repository to the App, if it is installed there, subscribed and not suspended."""
        installation = self.world.installation_of(repository)
        if installation is None or installation.suspended_at is not None:
            return None
        if event not in installation.events:
            return None
        full = from_app(self.base_url, body, installation, sender)
        return await self.webhooks.emit(
            event, full, installation_id=installation.id, repository_id=repository.id, rng=rng
        )

    async def send_queued_webhooks(self) -> None:
        """Send the queued `workflow_run` and `workflow_job` webhooks."""
        while self.ci.queued_webhooks:
            told = self.ci.queued_webhooks.pop(0)
            await self.emit(told.event, told.body, told.repository, told.sender)

    def finish(self) -> None:
        """Raise when something unexpected happened: a call of an unknown route, or an error inside the simulator."""
        if self.unexpected:
            raise AssertionError("unexpected in the simulated GitHub:\n  " + "\n  ".join(self.unexpected))

    async def stop_activity(self) -> None:
        """End the background tasks and send no more webhooks; the API still answers."""
        self._silent, self.webhook_url = True, None
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def aclose(self) -> None:
        await self._end_tasks()
        if self._client is not None:
            await self._client.aclose()
            self._client = None
        for last in self.on_close:
            last()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()
