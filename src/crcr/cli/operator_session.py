"""Stores for operator commands.

A running relay may use the same database; it sees commits at once. Web, GitHub client and worker are not wired, so that
these commands start twice as fast.
"""

import asyncio
import getpass
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import typer

from crcr.cli.options import read_settings
from crcr.clock import SystemClock
from crcr.decide.model import RepoName
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.admin.operations import AdminOperations
from crcr.record.bisection.bisections import Bisections
from crcr.record.levels.evaluations import Levels
from crcr.record.repositories.allowlists import Allowlists
from crcr.record.repositories.downstreams import Downstreams
from crcr.record.store.database import Database
from crcr.record.store.signals import Signals
from crcr.record.views.logs.operator import OperatorViews
from crcr.settings import Settings
from crcr.wiring.core import build_bisections, check_refresher
from crcr.wiring.database import open_database, require_database

if TYPE_CHECKING:
    from crcr.record.views.sql_views import SqlViews

T = TypeVar("T")


def user_name() -> str:
    """Return the user's name, for the audit log."""
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user may have no name
        return f"uid {os.getuid()}"


def choose_upstream_to_read(upstreams: tuple[RepoName, ...], chosen: RepoName | None) -> RepoName:
    """Return the chosen upstream; default: the first."""
    if chosen is None:
        return upstreams[0]
    if chosen not in upstreams:
        raise typer.BadParameter(f"{chosen} is not an upstream here; choose {_choices(upstreams)}")
    return chosen


def choose_upstream_to_change(upstreams: tuple[RepoName, ...], chosen: RepoName | None) -> RepoName:
    """Return the chosen upstream; with several, one must be chosen."""
    if chosen is None and len(upstreams) > 1:
        raise typer.BadParameter(f"there are several upstreams; pass --upstream {_choices(upstreams)}")
    return choose_upstream_to_read(upstreams, chosen)


def _choices(upstreams: tuple[RepoName, ...]) -> str:
    return " or ".join(map(str, upstreams))


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSession:
    """What operator commands read and change."""

    settings: Settings
    views: OperatorViews
    acts: AdminOperations
    targets: Downstreams
    bisections: Bisections
    levels: Levels
    who: str
    open_pages: "Callable[[], SqlViews]"
    """Opens what the pages show, hidden backends included."""

    def now(self) -> datetime:
        return SystemClock().now()

    def upstream_to_read(self, chosen: RepoName | None) -> RepoName:
        return choose_upstream_to_read(self._upstreams, chosen)

    def upstream_to_change(self, chosen: RepoName | None) -> RepoName:
        return choose_upstream_to_change(self._upstreams, chosen)

    @property
    def _upstreams(self) -> tuple[RepoName, ...]:
        return tuple(upstream.name for upstream in self.settings.upstreams)


def run_in_session(config: Path | None, act: Callable[[OperatorSession], Awaitable[T]]) -> T:
    """Open the relay's database, run one action, and close it."""
    settings = read_settings(config)
    require_database(settings)
    return asyncio.run(_run(settings, act))


async def _run(settings: Settings, act: Callable[[OperatorSession], Awaitable[T]]) -> T:
    database = open_database(settings, Signals())
    refresher = check_refresher(settings)
    targets = Downstreams(database, refresher)
    allowlists = Allowlists(database, targets, refresher, read_allowlist)
    session = OperatorSession(
        settings=settings,
        views=OperatorViews(database, allowlists),
        acts=AdminOperations(database, targets, allowlists),
        targets=targets,
        bisections=build_bisections(settings, database, allowlists, targets),
        levels=Levels(
            database, allowlists, refresher, tuple(upstream.name for upstream in settings.upstreams)
        ),
        who=user_name(),
        open_pages=partial(_open_pages, settings, database, allowlists),
    )
    try:
        return await act(session)
    finally:
        await database.close()


def _open_pages(settings: Settings, database: Database, allowlists: Allowlists) -> "SqlViews":
    from crcr.record.views.sql_views import SqlViews  # most commands do without it
    from crcr.wiring.core import gate_policies, level_policies

    names = tuple(upstream.name for upstream in settings.upstreams)
    return SqlViews(
        database, allowlists, names, gate_policies(settings), everything=True, levels=level_policies(settings)
    )
