"""The relay's first run during the set-up: start it where none answers, wait for the App's installation, try the webhook."""

import asyncio
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import IO, TypeVar

from crcr.cli.http_client import HttpClient, HttpError
from crcr.cli.printing import escape_unprintable
from crcr.clock import SystemClock
from crcr.decide.github.repository_setup import InstallationFacts
from crcr.decide.github.requests_and_answers import LoggedDelivery
from crcr.decide.model import RepoName
from crcr.errors import NotPossible, OutsideFault
from crcr.github.client import GitHubClient
from crcr.github.http.connections import open_http
from crcr.join.findings.finding import SetupFinding, ok, problem, unknown
from crcr.settings import Settings
from crcr.wiring.core import build_github_client

T = TypeVar("T")

_START_S = 60.0
_READY_S = 15.0
_STOP_S = 40.0
_POLL_S = 0.1
_INSTALL_POLL_S = 1.0
_DELIVERY_POLLS = 20
_WILDCARDS = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104
_OWN_EVENTS = frozenset({"ping", "installation", "installation_repositories"})
"""Webhooks about the App itself: sending them again changes nothing."""
_MOST_RESENT = 5


def local_address(settings: Settings) -> str:
    return f"http://{_WILDCARDS.get(settings.host, settings.host)}:{settings.port}"


def serve_command(config: Path | None) -> list[str]:
    """Return the command that runs the relay; without a file, its settings are variables."""
    return [sys.executable, "-m", "crcr", "serve", *(("--config", str(config)) if config else ())]


@contextmanager
def running_relay(settings: Settings, config: Path | None) -> Iterator[bool]:
    """Run `crcr serve` with these settings unless one answers at their address; yield whether it was started here."""
    http = HttpClient(local_address(settings), timeout_s=2.0)
    if _answers(http, "/healthz"):
        yield False
        return
    with tempfile.TemporaryFile("w+b") as log:
        process = subprocess.Popen(serve_command(config), stdout=log, stderr=log)  # noqa: S603  our own program
        try:
            _wait_until_ready(http, process, log)
            yield True
        finally:
            _stop(process)


def _wait_until_ready(http: HttpClient, process: subprocess.Popen[bytes], log: IO[bytes]) -> None:
    """Wait until it answers, and then a little longer for its allowlist: the doctor reports what is missing."""
    until = time.monotonic() + _START_S
    while not _answers(http, "/healthz"):
        if process.poll() is not None or time.monotonic() > until:
            raise NotPossible(
                f"the relay did not start: {_last_line(log)}", hint="start it with `crcr serve` to see why"
            )
        time.sleep(_POLL_S)
    until = time.monotonic() + _READY_S
    while not _answers(http, "/readyz") and time.monotonic() < until:
        time.sleep(_POLL_S)


def _answers(http: HttpClient, path: str) -> bool:
    try:
        return http.get(path).status_code == HTTPStatus.OK
    except HttpError:
        return False


def _last_line(log: IO[bytes]) -> str:
    size = log.seek(0, os.SEEK_END)
    log.seek(max(0, size - 2000))
    lines = log.read().decode("utf-8", "replace").split("\n")
    errors = [line for line in lines if line.startswith("error: ")] or [
        line for line in lines if line.strip()
    ]
    return escape_unprintable(errors[-1].removeprefix("error: ")[:300]) if errors else "it printed nothing"


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class AppAtGitHub:
    """What the set-up reads at GitHub with the App's key, in one event loop after the other."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def read_page(self) -> str:
        """Return the App's public page."""
        return asyncio.run(self._call(lambda github: github.app.read())).html_url

    def is_installed(self, repo: RepoName) -> bool:
        installation = asyncio.run(self._call(lambda github: github.repositories.read_installation(repo)))
        return installation is not None

    def wait_for_installation(self, repo: RepoName, timeout_s: float) -> bool:
        async def poll(github: GitHubClient) -> bool:
            until = time.monotonic() + timeout_s
            while await _installation(github, repo) is None:
                if time.monotonic() >= until:
                    return False
                await asyncio.sleep(_INSTALL_POLL_S)
            return True

        return asyncio.run(self._call(poll))

    def try_webhook(self) -> SetupFinding:
        """Have GitHub send the failed webhooks about the App again, and say whether they arrive now."""
        try:
            return asyncio.run(self._call(_try_webhook))
        except OutsideFault as fault:
            return unknown(
                "webhook", f"GitHub did not answer about its webhooks: {fault.detail}", "try again"
            )

    async def _call(self, act: Callable[[GitHubClient], Awaitable[T]]) -> T:
        http = open_http(self._settings.github_api_url)
        try:
            return await act(build_github_client(self._settings, http, SystemClock()))
        finally:
            await http.aclose()


async def _installation(github: GitHubClient, repo: RepoName) -> InstallationFacts | None:
    try:
        return await github.repositories.read_installation(repo)
    except OutsideFault:
        return None


async def _try_webhook(github: GitHubClient) -> SetupFinding:
    failed = await _failed(github)
    for delivery in failed[:_MOST_RESENT]:
        await github.delivery_log.redeliver(delivery.log_id)
    for _ in range(_DELIVERY_POLLS if failed else 0):
        if not (failed := await _failed(github)):
            break
        await asyncio.sleep(_INSTALL_POLL_S / 2)
    if failed:
        return problem(
            "webhook",
            "GitHub's webhooks do not arrive.",
            "expose the relay to GitHub as described below, and run this again",
        )
    if not (await github.delivery_log.read_page(None)).entries:
        return unknown(
            "webhook", "GitHub has sent no webhook yet.", "push to the upstream, and run `crcr doctor`"
        )
    return ok("webhook", "GitHub's webhooks arrive.")


async def _failed(github: GitHubClient) -> list[LoggedDelivery]:
    """Return the webhooks about the App of which no attempt arrived, each by its newest attempt."""
    entries = (await github.delivery_log.read_page(None)).entries
    arrived = {entry.guid for entry in entries if entry.ok}
    newest = {entry.guid: entry for entry in reversed(entries) if entry.event in _OWN_EVENTS}
    return [entry for guid, entry in newest.items() if guid not in arrived]
