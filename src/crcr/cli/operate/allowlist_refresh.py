"""Reading an upstream's allowlist now, with the relay's own way to its source."""

import asyncio
import io
from dataclasses import dataclass
from pathlib import Path

from crcr import log as logs
from crcr.cli.operator_session import choose_upstream_to_change, read_settings, user_name
from crcr.decide.allowlist.entries import Allowlist
from crcr.decide.model import RepoName
from crcr.decide.views.overview import AllowlistState
from crcr.record.views.logs.operator import OperatorViews
from crcr.settings import Settings
from crcr.wiring.services import build


@dataclass(frozen=True, slots=True, kw_only=True)
class Refreshed:
    upstream: RepoName
    version: int | None
    """The new version, if the source said anything new."""
    state: AllowlistState
    allowlist: Allowlist


def refresh_now(config: Path | None, asked: RepoName | None) -> Refreshed:
    settings = read_settings(config)
    logs.configure("console", "error", io.StringIO())  # the command tells all of it itself
    return asyncio.run(_refresh(settings, asked))


async def _refresh(settings: Settings, asked: RepoName | None) -> Refreshed:
    services = build(settings)
    try:
        upstream = choose_upstream_to_change(services.upstreams, asked)
        read = await services.refreshers[upstream.key].refresh()
        version = read.version if read else None
        await services.acts.note_refresh(upstream, who=user_name(), now=services.clock.now(), version=version)
        state, allowlist = await OperatorViews(services.database, services.allowlists).allowlist(upstream)
    finally:
        await services.close()
    return Refreshed(upstream=upstream, version=version, state=state, allowlist=allowlist)
