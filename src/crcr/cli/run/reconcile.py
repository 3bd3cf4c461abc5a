"""`crcr reconcile`: what the relay does every few minutes, now and before one's eyes."""

from typing import TYPE_CHECKING

import typer

from crcr.cli.options import OPERATE_PANEL, ConfigOption, JsonOption, examples
from crcr.cli.printing import ProgressLine, print_error, print_json, print_table

if TYPE_CHECKING:
    from crcr.decide.github.missed_webhooks import RecoveryProgress
    from crcr.deliver.periodic.reconcile import Reconciled


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATE_PANEL, epilog=examples("crcr reconcile", "crcr reconcile --json"))(
        reconcile
    )


def reconcile(config: ConfigOption = None, as_json: JsonOption = False) -> None:
    """Compare with GitHub now: take up missed webhooks, look into silences, repair checks.

    A running relay does the same every few minutes; both at once do no harm. Its worker sends what follows.
    """
    from crcr.cli.run.reconcile_now import reconcile_now

    with ProgressLine(shown=not as_json) as line:
        done = reconcile_now(config, lambda progress: line.show(_words(progress), final=_is_end(progress)))
    if as_json:
        print_json(done)
    else:
        print_table(["", "count"], _summary(done))
    if done.recovery.stopped is not None:
        hint = "nothing is lost: the next run, by hand or of the relay, goes on where this one stopped"
        print_error(f"stopped early with {done.recovery.left} left: {done.recovery.stopped}", hint)
        raise typer.Exit(1)


def _words(progress: "RecoveryProgress") -> str:
    if progress.total is None:
        return f"{progress.stage}: {progress.done} page{'s' if progress.done > 1 else ''}"
    return f"{progress.stage}: {progress.done} of {progress.total}"


def _is_end(progress: "RecoveryProgress") -> bool:
    return progress.done == progress.total


def _summary(done: "Reconciled") -> list[list[str | int]]:
    found = done.recovery
    since = f" since {found.since:%Y-%m-%d %H:%M} UTC" if found.since else ""
    return [
        [f"webhooks in GitHub's log{since}", found.logged],
        ["missed", found.missed],
        ["  recovered", found.taken - found.superseded],
        ["  superseded by newer ones", found.superseded],
        ["  ignored", found.ignored],
        ["  here already", found.repeated],
        ["  unusable", found.unusable],
        ["lookups asked for", done.lookups],
        ["heads looked at again", done.heads],
    ]
