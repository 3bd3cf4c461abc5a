"""The relay as a process: socket, HTTP server, signals.

The socket is bound before anything else is opened, so that a port in use is reported at once. The app's lifespan runs
here and not in uvicorn, which would print a traceback for a known error.
"""

import asyncio
import errno
import gc
import signal
import socket
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass

import structlog
import uvicorn
import uvloop

from crcr import log as logs
from crcr.app import Edge
from crcr.cli.printing import escape_unprintable, print_line
from crcr.cli.run.handover import adopt_connection, shared_http
from crcr.cli.run.http_limits import WaitingConnections, http_limits, limited_http
from crcr.cli.run.page_process import IntakeLink, PageProcess, StartedProcess, linked_socket, yield_to_intake
from crcr.cli.run.serve import ServeRole
from crcr.decide.model import RepoName
from crcr.errors import CrcrError, NotPossible, OutsideFault
from crcr.settings import Settings
from crcr.wiring.background import BackgroundTasks
from crcr.wiring.intake_app import INTAKE_PATHS, build_intake_app, build_probes
from crcr.wiring.services import Services, build

log = structlog.get_logger(__name__)

_OTHER_PORT = "choose another with --port, or --port 0 for any free port"
GRACE_S = 30
"""How long a request may continue after the process is told to stop."""
_ALLOWLIST_POLLS, _POLL_S = 120, 0.25
_GITHUB_S = 15.0
_MARGIN_S = 5.0
"""How much longer the page process may take before it is killed."""
_REASONS = {
    errno.EADDRINUSE: "is in use",
    errno.EACCES: "may not be used by this user",
    errno.EADDRNOTAVAIL: "is not an address of this machine",
}


def configure_log(settings: Settings, *, warn: bool = True) -> None:
    logs.configure(settings.log_format, settings.log_level, sys.stderr)
    logs.redact_literals(settings.secrets())
    for warning in settings.warnings() if warn else ():
        log.warning("setting_unwise", detail=warning)


def run_event_loop(main: Coroutine[object, object, None]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main)


def listen(host: str, port: int, hint: str = _OTHER_PORT) -> socket.socket:
    """Bind the port; from now on connections queue until the app answers."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as fault:
        raise NotPossible(
            f"cannot listen on {host}: {fault.strerror}", hint="choose another --host"
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(2048)
    except OSError as fault:
        listener.close()
        reason = _REASONS.get(fault.errno or 0, str(fault.strerror))
        raise NotPossible(f"{host} port {port} {reason}", hint=hint) from None
    return listener


def listener_url(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    # A wildcard address cannot be opened in a browser.
    display_host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)  # noqa: S104
    return f"http://{display_host}:{port}"


@dataclass(frozen=True, slots=True)
class ServePlan:
    """What `crcr serve` does. `pages` is the page process that is already starting, where it has one."""

    role: ServeRole
    work: bool
    pages: StartedProcess | None
    restart_pages: Callable[[], StartedProcess]


async def run_server(settings: Settings, listener: socket.socket, plan: ServePlan) -> None:
    stop = stop_signal()
    work = plan.work and plan.role is not ServeRole.HUD
    services = build(settings, for_pages=plan.role is ServeRole.HUD)
    pages = None
    if plan.pages is not None:
        pages = PageProcess(plan.restart_pages, plan.pages)
        pages.open(services.signals, services.metrics.pages)
    app = _build_role(services, plan.role, work=work, has_page_process=pages is not None)
    async with serve_app(app, services, listener, grace_s=GRACE_S, pages=pages):
        if pages is not None:
            await pages.wait_until_ready()
        print_line(f"crcr is listening on {_describe(listener_url(listener), plan.role, work=work)}")
        async with _describing(services, asks_github=plan.role is not ServeRole.HUD):
            await _wait_for_stop(stop, services)
        if not services.loop_errors:
            await asyncio.sleep(settings.drain_s)  # `/readyz` answers 503; requests are still served
    _raise_loop_error(services)
    _print_if_possible("stopped")


def _build_role(services: Services, role: ServeRole, *, work: bool, has_page_process: bool) -> Edge:
    if role is ServeRole.INTAKE or has_page_process:
        return build_intake_app(services, work=work, starts_pages=has_page_process)
    from crcr.wiring.web_app import build_app

    return build_app(services, work=work, takes_in=role is ServeRole.ALL)


def _describe(url: str, role: ServeRole, *, work: bool) -> str:
    pages = f" (pages: {url}/crcr)" if role is not ServeRole.INTAKE else ", without pages"
    intake = ", without intake" if role is ServeRole.HUD else ""
    return f"{url}{pages}{intake}{'' if work else ', without a worker'}"


async def run_page_process(settings: Settings, link_descriptor: int) -> None:
    """Serve the pages of the process that started this one, which accepts the connections."""
    from crcr.wiring.web_app import build_app

    link = IntakeLink(linked_socket(link_descriptor))
    await link.opened.wait()
    if link.ended.is_set():
        return
    yield_to_intake()  # after the imports: they do not compete with any request
    services = build(settings, for_pages=True)
    app = build_app(services, work=False, takes_in=False)
    async with serve_app(app, services, None, grace_s=GRACE_S, intake=link):
        link.ready(services.signals, services.metrics.samples)
        await _wait_for_stop(link.ended, services)
    link.close()
    _raise_loop_error(services)


async def run_worker(settings: Settings) -> None:
    stop = stop_signal()
    with _metrics_listener(settings) as listener:
        services = build(settings)
        async with _run_tasks(services, listener):
            metrics = f"; metrics at {listener_url(listener)}/metrics" if listener else ""
            print_line(f"crcr is processing {', '.join(map(str, services.upstreams))}{metrics}")
            await _wait_for_stop(stop, services)
    _raise_loop_error(services)
    _print_if_possible("stopped")


@asynccontextmanager
async def _describing(services: Services, *, asks_github: bool) -> AsyncIterator[None]:
    """Print what is served as soon as it is known, beside the serving: the start waits for none of it."""
    describing = asyncio.create_task(_describe_served(services, asks_github=asks_github))
    try:
        yield
    finally:
        describing.cancel()
        await asyncio.wait((describing,))


async def _describe_served(services: Services, *, asks_github: bool) -> None:
    for upstream in services.settings.upstreams:
        _print_if_possible(f"  {upstream.name}: {await _describe_allowlist(services, upstream.name)}")
    if asks_github:
        _print_if_possible(
            f"  GitHub at {services.settings.github_api_url}: {await _describe_github(services)}"
        )


async def _describe_allowlist(services: Services, upstream: RepoName) -> str:
    """Describe the allowlist in force; a new relay reads its first one just after the start."""
    for _ in range(_ALLOWLIST_POLLS):
        with suppress(CrcrError):
            allowlist = await services.database.read(lambda tx: services.allowlists.in_force(tx, upstream))
            number = len(allowlist.entries)
            counts = ", ".join(
                f"{level.name} {len(listed):,}" for level, listed in allowlist.by_level() if listed
            )
            return f"{number:,} downstream{'' if number == 1 else 's'}{f' ({counts})' if counts else ''}"
        await asyncio.sleep(_POLL_S)
    return "no allowlist could be read yet; `crcr doctor` says why"


async def _describe_github(services: Services) -> str:
    try:
        async with asyncio.timeout(_GITHUB_S):
            app = await services.github.app.read()
    except (OutsideFault, TimeoutError) as fault:
        reason = escape_unprintable(getattr(fault, "detail", "") or "no answer")
        return f"not reachable ({reason}); it is tried again, and `crcr doctor` says more"
    return f"reachable, App {app.app_id} ({escape_unprintable(app.slug)})"


def _print_if_possible(text: str) -> None:
    """Print a line; the terminal or the pipe may be closed already."""
    with suppress(OSError):
        print_line(text)


@contextmanager
def _metrics_listener(settings: Settings) -> Iterator[socket.socket | None]:
    if settings.metrics_port is None:
        yield None
        return
    with listen(settings.host, settings.metrics_port, "choose another CRCR_METRICS_PORT") as listener:
        yield listener


@asynccontextmanager
async def _run_tasks(services: Services, listener: socket.socket | None) -> AsyncIterator[None]:
    if listener is not None:
        async with serve_app(build_probes(services), services, listener, grace_s=GRACE_S):
            yield
        return
    tasks = BackgroundTasks(services, work=True)
    try:
        await tasks.start()
        yield
    finally:
        await tasks.stop()


async def _wait_for_stop(stop: asyncio.Event, services: Services) -> None:
    """Wait for the stop signal, or for a loop that died and set `stopping`; then set `stopping`."""
    waiters = {asyncio.ensure_future(event.wait()) for event in (stop, services.stopping)}
    await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    for waiter in waiters:
        waiter.cancel()
    services.stopping.set()


def _raise_loop_error(services: Services) -> None:
    if services.loop_errors:
        raise NotPossible(
            "a background loop died; see the log", hint="let your supervisor restart the process"
        )


def stop_signal() -> asyncio.Event:
    """Return the event that the first SIGTERM or Ctrl-C sets; a second one ends the process at once."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def request_stop() -> None:
        for signal_number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(signal_number)
            signal.signal(signal_number, signal.SIG_DFL)
        again = " (press again to stop at once)" if sys.stdout.isatty() else ""
        _print_if_possible(f"stopping… finishing running work{again}")
        stop.set()

    for signal_number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(signal_number, request_stop)
    return stop


@asynccontextmanager
async def serve_app(
    app: Edge,
    services: Services,
    listener: socket.socket | None,
    *,
    grace_s: int,
    pages: PageProcess | None = None,
    intake: IntakeLink | None = None,
) -> AsyncIterator[None]:
    """Serve on the socket while the body runs; then finish the requests, then the background tasks.

    With `pages` or `intake`, connections are shared with that other process.
    """
    async with app.inner.router.lifespan_context(app.inner):
        server = _Server(_config(app, grace_s, _protocol(pages, intake)), services, pages)
        for other in (pages, intake):
            if other is not None:
                other.adopt = server.adopt
        serving = asyncio.create_task(server.serve([] if listener is None else [listener]))
        await server.ready.wait()
        # Objects created at start live to the end: exclude them from garbage collection.
        gc.collect()
        gc.freeze()
        # Requests leave almost no cycles: collecting after every 700 objects costs time and finds nothing.
        gc.set_threshold(20_000, 20, 50)
        try:
            yield
        finally:
            server.should_exit = True
            await serving


def _protocol(pages: PageProcess | None, intake: IntakeLink | None) -> type[asyncio.Protocol]:
    if pages is not None:
        return shared_http(WaitingConnections(http_limits()), INTAKE_PATHS.__contains__, pages.pass_on)
    if intake is not None:
        return shared_http(
            WaitingConnections(http_limits()),
            lambda path: path not in INTAKE_PATHS,
            intake.pass_on,
            before_request=intake.receive,
        )
    return limited_http(http_limits())


def _config(app: Edge, grace_s: int, protocol: type[asyncio.Protocol]) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # CRCR_TRUSTED_PROXIES decides whose forwarded address counts
        timeout_graceful_shutdown=grace_s,
    )


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers, with an event for readiness, and with connections of the other process."""

    def __init__(self, config: uvicorn.Config, services: Services, pages: PageProcess | None) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()
        self._services = services
        self._pages = pages
        self._adopting: set[asyncio.Task[None]] = set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        try:
            await super().startup(sockets)
        finally:
            self.ready.set()

    def adopt(self, passed: socket.socket, start: bytes) -> None:
        """Continue a connection of which the other process has read the start of a request."""
        task = asyncio.create_task(self._adopt(passed, start))
        self._adopting.add(task)
        task.add_done_callback(self._adopting.discard)

    async def _adopt(self, passed: socket.socket, start: bytes) -> None:
        protocol = await adopt_connection(self, passed, start)
        if protocol is not None and self._services.closing.is_set():
            protocol.shutdown()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.stopping.set()
        self._services.closing.set()  # ends live streams, which would otherwise delay the shutdown
        if self._pages is None:
            await super().shutdown(sockets)
            return
        grace_s = float(self.config.timeout_graceful_shutdown or 0)
        await asyncio.gather(super().shutdown(sockets), self._pages.stop(grace_s + _MARGIN_S))
        # Until its end the page process may have passed on connections with a request for this one.
        await super().shutdown()
