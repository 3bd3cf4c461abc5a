"""`crcr status`: the relay's health in sentences, as the pages show it to every reader."""

from typing import TYPE_CHECKING

import typer
from rich.text import Text

from crcr.cli.options import LOOK_AND_ACT, ConfigOption, JsonOption, UpstreamOption, examples
from crcr.cli.printing import print_json, say

if TYPE_CHECKING:
    from crcr.cli.operator_session import Desk
    from crcr.decide.health.relay import Health
    from crcr.decide.model import RepoName

_STYLES = {"green": "green", "amber": "yellow", "red": "red"}


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=LOOK_AND_ACT, epilog=examples("crcr status", "crcr status --json"))(status)


def status(config: ConfigOption = None, upstream: UpstreamOption = None, as_json: JsonOption = False) -> None:
    """Say whether the relay is green, amber or red, what is held back and until when.

    Exits with 1 when it is red: gates cannot be published, or nothing is delivered.
    """
    from crcr.cli.operator_session import at_desk

    found = at_desk(config, lambda desk: _read(desk, upstream))
    if as_json:
        print_json([{"upstream": str(name), "health": health} for name, health in found.items()])
    else:
        for name, health in found.items():
            _print(name, health)
    if any(health.state == "red" for health in found.values()):
        raise typer.Exit(1)


async def _read(desk: "Desk", asked: "RepoName | None") -> "dict[RepoName, Health]":
    chosen = (desk.reading(asked),) if asked else tuple(each.name for each in desk.settings.upstreams)
    return {name: await desk.views.health(name, desk.now()) for name in chosen}


def _print(name: "RepoName", health: "Health") -> None:
    say(f"{name}:", Text(health.state.value, _STYLES[health.state.value]))
    reasons = [reason.text for reason in health.reasons]
    short = [each.text for each in health.held if each.text not in reasons and each.effects != "gates"]
    for text in (*reasons, *short):
        say(f"  {text}")
    if not reasons and not short:
        say("  Nothing is held back, nothing undelivered.")
