"""`crcr reconcile`: runs the periodic comparison with GitHub once, now, and prints its result."""

import asyncio
import io
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from crcr.cli.options import OPERATE_PANEL, ConfigOption, JsonOption, examples, read_settings
from crcr.cli.printing import ProgressLine, print_error, print_json, print_table

if TYPE_CHECKING:
    from crcr.decide.github.missed_webhooks import RecoveryProgress
    from crcr.deliver.periodic.reconcile import OnProgress, Reconciled
    from crcr.settings import Settings


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATE_PANEL, epilog=examples("crcr reconcile", "crcr reconcile --json"))(
        reconcile
    )


def reconcile(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Compare with GitHub now: recover missed webhooks, look up silent runs, repair checks.

    A running relay does the same every few minutes; running both at once is safe. The worker sends what follows.
    """
    with ProgressLine(shown=not as_json) as line:
        result = _run(
            config, lambda progress: line.show(_describe(progress), final=progress.done == progress.total)
        )
    if as_json:
        print_json(result)
    else:
        print_table(["", "count"], _summary(result))
    if result.recovery.stopped is not None:
        hint = "nothing is lost: the next run, manual or periodic, continues here"
        print_error(f"stopped early with {result.recovery.left:,} left: {result.recovery.stopped}", hint)
        raise typer.Exit(1)


def _run(config: Path | None, on_progress: "OnProgress") -> "Reconciled":
    from crcr import log as logs
    from crcr.wiring.database import require_database

    settings = read_settings(config)
    require_database(settings)
    logs.configure("console", "error", io.StringIO())  # the command prints the result itself
    return asyncio.run(_reconcile(settings, on_progress))


async def _reconcile(settings: "Settings", on_progress: "OnProgress") -> "Reconciled":
    from crcr.wiring.services import build

    services = build(settings)
    try:
        return await services.reconciler.run(on_progress, thorough=True)
    finally:
        await services.close()


def _describe(progress: "RecoveryProgress") -> str:
    if progress.total is None:
        return f"{progress.stage}: {progress.done:,} page{'s' if progress.done > 1 else ''}"
    return f"{progress.stage}: {progress.done:,} of {progress.total:,}"


def _summary(result: "Reconciled") -> list[list[str | int]]:
    recovery = result.recovery
    since = f" since {recovery.since:%Y-%m-%d %H:%M} UTC" if recovery.since else ""
    return [
        [f"webhooks in GitHub's log{since}", recovery.logged],
        ["missed", recovery.missed],
        ["  recovered", recovery.taken - recovery.superseded],
        ["  superseded by newer ones", recovery.superseded],
        ["  ignored", recovery.ignored],
        ["  already received", recovery.repeated],
        ["  unusable", recovery.unusable],
        ["run lookups requested", result.lookups],
        ["heads refreshed", result.heads],
    ]
