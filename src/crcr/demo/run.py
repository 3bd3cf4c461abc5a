"""Runs the demo: simulator, relay and traffic in one event loop, with real HTTP over loopback.

Settings are made in memory with the simulator's keys. Shutdown order: traffic, then the relay with its running work, then
the simulated GitHub, then the temporary folder.
"""

import asyncio
import json
import random
import socket
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import httpx
import structlog
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from crcr import log as logs
from crcr.cli.printing import console, print_line
from crcr.cli.run.process import listener_url, serve_app, stop_signal
from crcr.decide.github.repository_setup import relay_pin
from crcr.decide.model import RepoName
from crcr.demo.join import ConnectBuilds, DemoJoin
from crcr.demo.join_key import keep_key
from crcr.demo.traffic import BELONGS, BLOCKED, FLAKED, LABELLED, UPSTREAM, demo_world, run_traffic
from crcr.errors import NotPossible
from crcr.github.http.connections import ConnectionPool
from crcr.settings import Settings, load_settings
from crcr.show.pages.sandbox import trial
from crcr.wiring.core import Seams
from crcr.wiring.services import Services, build
from crcr.wiring.web_app import build_app
from github_sim.github import GitHub
from github_sim.rest.server import serve as serve_github
from github_sim.runner.runner import Runner

log = structlog.get_logger(__name__)

_GRACE_S = 2
_HOST = "127.0.0.1"
_GITHUB_PORT = 8001
_ALLOWLIST = ".github/crcr-allowlist.yml"
AUDIENCE = "crcr-demo"
CHANNELS = [{"name": "issues", "kind": "issue"}, {"name": "comments", "kind": "comment"}]
"""Both are on the simulated GitHub: the demo sends nothing outside."""
HISTORY, JOBS_AN_HOUR = timedelta(days=14), 50


@dataclass(frozen=True, slots=True)
class GeneratedHistory:
    length: timedelta = HISTORY
    jobs_an_hour: int = JOBS_AN_HOUR


@dataclass(frozen=True, slots=True)
class OtherCi:
    """A simulated CI beside the demo's GitHub, for rehearsals from a checkout (`tools/demo_with_other_ci.py`)."""

    connect: ConnectBuilds
    registrations: Callable[[str], str]
    """Returns the relay's setting for it, given the address of the simulated GitHub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    seed: int
    speed: float
    github_port: int | None
    """None: 8001, or any free port when it is taken."""
    length: timedelta | None
    data: Path | None
    history: GeneratedHistory | None
    verbose: bool
    other_ci: OtherCi | None = None


async def run_demo(options: DemoOptions, listener: socket.socket) -> None:
    stop, url = stop_signal(), listener_url(listener)
    with _folder(options.data) as folder:
        async with _github(options, url, listener.getsockname()[0]) as github:
            if options.history is not None:
                start_with_history(folder, github, options.history, seed=options.seed, speed=options.speed)
            first = github.repository(UPSTREAM).next_number
            services = _relay(options, folder, github, url)
            async with serve_app(build_app(services), services, listener, grace_s=_GRACE_S):
                _print_links(options, url, github, folder, first)
                await _run_until_stopped(options, github, stop)
                await github.stop_activity()  # no reports to a relay that is stopping
            for surprise in github.unexpected:
                log.error("simulator_surprised", what=surprise)
    print_line("the demo has ended" + ("" if options.data else "; its data was deleted"))


def start_with_history(
    folder: Path,
    github: GitHub,
    history: GeneratedHistory,
    *,
    seed: int,
    speed: float,
    now: datetime | None = None,
) -> None:
    """Generate history into the relay's database; the simulated GitHub goes on with the next pull request."""
    from crcr.demo.history.fill import fill_demo

    filled = fill_demo(
        folder,
        length=history.length,
        jobs_an_hour=history.jobs_an_hour,
        seed=seed,
        speed=speed,
        links=github.base_url,
        now=now,
    )
    github.repository(UPSTREAM).next_number = filled.next_number


async def _run_until_stopped(options: DemoOptions, github: GitHub, stop: asyncio.Event) -> None:
    """Run the traffic until the time is over or the user stops the demo."""
    over = asyncio.Event()
    traffic = asyncio.create_task(
        run_traffic(github, UPSTREAM, seed=options.seed, speed=options.speed, stop=over)
    )
    stop_requested = asyncio.create_task(stop.wait())
    seconds = options.length.total_seconds() if options.length else None
    await asyncio.wait([traffic, stop_requested], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    over.set()
    stop_requested.cancel()
    await traffic


@contextmanager
def _folder(data: Path | None) -> Iterator[Path]:
    if data is None:
        with TemporaryDirectory(prefix="crcr-demo-") as folder:
            yield Path(folder)
        return
    data.mkdir(parents=True, exist_ok=True)
    if (data / "crcr.db").exists():
        # The simulated GitHub starts empty each time, with new repositories of the same names.
        raise NotPossible(
            f"{data} contains the data of an earlier demo", hint="use another folder, or empty it"
        )
    yield data.resolve()


@asynccontextmanager
async def _github(options: DemoOptions, url: str, relay_host: str) -> AsyncIterator[GitHub]:
    # From outside a container both are reached, or neither.
    host = relay_host if relay_host == "0.0.0.0" else _HOST  # noqa: S104
    # An explicit transport, because the default one would use the environment's proxy.
    direct = httpx.AsyncHTTPTransport()
    async with (
        GitHub(seed=options.seed, webhook_url=f"{url}/github/webhook", transport=direct) as github,
        serve_github(github, host=host, port=_port_for_github(options)),
    ):
        demo_world(github, relay_pin(url, AUDIENCE))
        with _open_to_join(github, url, options.other_ci):
            yield github


@contextmanager
def _open_to_join(github: GitHub, url: str, other_ci: OtherCi | None) -> Iterator[None]:
    """Accept repositories from `crcr demo-join`; their workflows are executed."""
    runner = Runner(github, on_problem=lambda problem: log.warning("simulated_run_failed", problem=problem))
    joining = DemoJoin(
        github,
        runner,
        upstream=UPSTREAM,
        allowlist=_ALLOWLIST,
        relay_url=url,
        trial=trial(f"{url}/github/callback", AUDIENCE, RepoName(UPSTREAM)),
        connect_builds=other_ci.connect if other_ci else None,
    )
    with keep_key(urlsplit(github.base_url).port or 0, joining.key):
        yield


def _port_for_github(options: DemoOptions) -> int:
    port = _GITHUB_PORT if options.github_port is None else options.github_port
    try:
        socket.create_server((_HOST, port)).close()
    except OSError as fault:
        if options.github_port is None:
            return 0
        hint = "choose another with --github-port, or --github-port 0 for any free port"
        raise NotPossible(f"{_HOST} port {port}: {fault.strerror}", hint=hint) from None
    return port


def _relay(options: DemoOptions, folder: Path, github: GitHub, url: str) -> Services:
    other_ci = options.other_ci
    more = {"CRCR_OIDC_REGISTRATIONS": other_ci.registrations(github.base_url)} if other_ci else {}
    settings = demo_settings(folder, github, url, **more)
    # After the simulator's server, which configures uvicorn's loggers.
    logs.configure("auto", "info" if options.verbose else "warning", sys.stderr)
    logs.redact_literals(settings.secrets())
    chance = random.Random(options.seed).random
    return build(settings, Seams(chance=chance, http=lambda _: httpx.AsyncClient(transport=ConnectionPool())))


def demo_settings(folder: Path, github: GitHub, url: str, **more: str) -> Settings:
    # Simulated life may be fifty times as fast as real life.
    return simulated_settings(
        folder,
        github,
        url,
        UPSTREAM,
        CRCR_SANDBOX="on",
        CRCR_RATE_LIMIT_PER_MIN="10000",
        CRCR_CHANNELS=json.dumps(CHANNELS),
        **more,
    )


def simulated_settings(folder: Path, github: GitHub, url: str, upstream: str, **more: str) -> Settings:
    """Settings of a relay for one upstream on a simulated GitHub; everything else has its default."""
    issuer = {"issuer": github.issuer_url, "kind": "github", "jwks_url": github.jwks_url}
    environ = {
        "CRCR_UPSTREAM": upstream,
        "CRCR_ALLOWLIST": f"{github.base_url}/{upstream}/blob/main/{_ALLOWLIST}",
        "CRCR_GITHUB_APP_ID": str(github.app_id),
        "CRCR_GITHUB_APP_PRIVATE_KEY": github.private_key_pem,
        "CRCR_GITHUB_WEBHOOK_SECRET": github.webhook_secret,
        "CRCR_GITHUB_API_URL": github.base_url,
        "CRCR_PUBLIC_URL": url,
        "CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}",
        "CRCR_OIDC_AUDIENCE": AUDIENCE,
        "CRCR_OIDC_ISSUERS": json.dumps([issuer]),
        **more,
    }
    return load_settings(config=None, environ=environ, cwd=folder)


def _print_links(options: DemoOptions, url: str, github: GitHub, folder: Path, first: int) -> None:
    upstream, blocked, labelled = f"{github.base_url}/{UPSTREAM}", first - 1 + BLOCKED, first - 1 + LABELLED
    flaked, belongs = first - 1 + FLAKED, first - 1 + BELONGS
    lines = {
        "dashboard": f"{url}/crcr",
        "simulated GitHub": f"{github.base_url}/ (open pull requests and their merge state)",
        "a gate that blocks": f"{upstream}/pull/{blocked} (fails after 10 s, then it is waived and merged)",
        "checks by label": f"{upstream}/pull/{labelled} (an L3 backend, requested by its label)",
        "verdicts": f"{url}/crcr/pr/{blocked} (new), {url}/crcr/pr/{flaked} (pre-existing, flaky, a sick fleet)",
        "a pair of changes": f"{url}/crcr/pr/{belongs} (fails alone, passes with a pull request of the backend: held)",
        "bisection": f"{url}/crcr/bisections/1 (begins after two minutes, and finds who broke a backend)",
        "notices": f"{url}/crcr/notices (a comment on the blocked pull request, an issue of the broken backend)",
        "merge queue": f"{upstream}/queue",
        "JSON API": f"{url}/api/v1/summary (documentation: {url}/api/docs)",
        "how to join": f"{url}/crcr/onboarding (writes the files for your repository)",
        "to join": f"crcr demo-join me/my-backend --folder DIR --github {github.base_url}",
        "data": str(folder) if options.data else f"{folder} (deleted at the end)",
        "to stop": f"Ctrl-C, or wait {options.length.total_seconds():g} s" if options.length else "Ctrl-C",
    }
    grid = Table.grid(padding=(0, 2))
    for name, text in lines.items():
        grid.add_row(Text(name, "bold"), Text(text, overflow="fold"))
    console().print(Panel(grid, title="crcr demo", title_align="left", border_style="cyan", expand=False))
