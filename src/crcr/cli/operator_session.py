"""What a command needs open: the settings, and for acts by hand the relay's own stores on the relay's own file.

A serving process may have the same file open; it sees what is committed here at once. Web, GitHub and workers
are not wired for these commands, which makes them start twice as fast; `wiring` does that for the others.
"""

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

import typer

from crcr.clock import SystemClock
from crcr.decide.model import RepoName
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.admin.operations import AdminOperations
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.store.signals import Signals
from crcr.record.views.logs.operator import OperatorViews
from crcr.settings import Settings, load_settings
from crcr.wiring.core import check_refresher
from crcr.wiring.database import open_database, require_database
from crcr.wiring.drivers import require_drivers

T = TypeVar("T")


def read_settings(config: Path | None) -> Settings:
    """Read the settings of this process, or raise `BadSettings` with all that is wrong or not installed."""
    settings = load_settings(config=config, environ=os.environ, cwd=Path.cwd())
    require_drivers(settings)
    return settings


def user_name() -> str:
    """Return who is upstream_to_change, for the audit log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user need not have a name
        return f"uid {os.getuid()}"


def choose_upstream_to_read(upstreams: tuple[RepoName, ...], asked: RepoName | None) -> RepoName:
    """Return the upstream to look at: the one asked for, else the first."""
    if asked is None:
        return upstreams[0]
    if asked not in upstreams:
        raise typer.BadParameter(f"{asked} is not an upstream here; there is {_choices(upstreams)}")
    return asked


def choose_upstream_to_change(upstreams: tuple[RepoName, ...], asked: RepoName | None) -> RepoName:
    """Return the upstream to act on; of several none is guessed."""
    if asked is None and len(upstreams) > 1:
        raise typer.BadParameter(f"there are several upstreams: say --upstream {_choices(upstreams)}")
    return choose_upstream_to_read(upstreams, asked)


def _choices(upstreams: tuple[RepoName, ...]) -> str:
    return " or ".join(map(str, upstreams))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSession:
    """Where an operator works: what can be seen and done without the web."""

    settings: Settings
    views: OperatorViews
    acts: AdminOperations
    targets: Downstreams
    who: str

    def now(self) -> datetime:
        return SystemClock().now()

    def upstream_to_read(self, asked: RepoName | None) -> RepoName:
        return choose_upstream_to_read(self._upstreams, asked)

    def upstream_to_change(self, asked: RepoName | None) -> RepoName:
        return choose_upstream_to_change(self._upstreams, asked)

    @property
    def _upstreams(self) -> tuple[RepoName, ...]:
        return tuple(each.name for each in self.settings.upstreams)


def run_in_session(config: Path | None, act: Callable[[OperatorSession], Awaitable[T]]) -> T:
    """Open the relay's database, do one thing, and close it."""
    settings = read_settings(config)
    require_database(settings)
    return asyncio.run(_act(settings, act))


async def _act(settings: Settings, act: Callable[[OperatorSession], Awaitable[T]]) -> T:
    database = open_database(settings, Signals())
    refresher = check_refresher(settings)
    targets = Downstreams(database, refresher)
    allowlists = Allowlists(database, targets, refresher, read_allowlist)
    session = OperatorSession(
        settings=settings,
        views=OperatorViews(database, allowlists),
        acts=AdminOperations(database, targets, allowlists),
        targets=targets,
        who=user_name(),
    )
    try:
        return await act(session)
    finally:
        await database.close()
