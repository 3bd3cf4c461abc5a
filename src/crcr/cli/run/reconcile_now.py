"""Reconciling now, with the relay's own parts on the relay's own file."""

import asyncio
import io
from pathlib import Path

from crcr import log as logs
from crcr.cli.operator_session import read_settings
from crcr.deliver.periodic.reconcile import OnProgress, Reconciled
from crcr.settings import Settings
from crcr.wiring.database import require_database
from crcr.wiring.services import build


def reconcile_now(config: Path | None, tell: OnProgress) -> Reconciled:
    settings = read_settings(config)
    require_database(settings)
    logs.configure("console", "error", io.StringIO())  # the command tells all of it itself
    return asyncio.run(_reconcile(settings, tell))


async def _reconcile(settings: Settings, tell: OnProgress) -> Reconciled:
    services = build(settings)
    try:
        return await services.reconciler.run(tell, thorough=True)
    finally:
        await services.close()
