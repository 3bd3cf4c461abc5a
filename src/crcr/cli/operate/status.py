"""`crcr status`: the relay's health in sentences, as the pages show it."""

from typing import TYPE_CHECKING, TypedDict

import typer
from rich.text import Text

from crcr.cli.options import OPERATE_PANEL, ConfigOption, JsonOption, UpstreamOption, examples
from crcr.cli.printing import print_json, print_line

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.health.relay import Health
    from crcr.decide.model import RepoName
    from crcr.decide.views.failures import ContradictedVerdicts

_STYLES = {"green": "green", "amber": "yellow", "red": "red"}


def register(app: typer.Typer) -> None:
    app.command(rich_help_panel=OPERATE_PANEL, epilog=examples("crcr status", "crcr status --json"))(status)


def status(config: ConfigOption = None, upstream: UpstreamOption = None, as_json: JsonOption = False) -> None:
    """Print whether the relay is green, amber or red, what is delayed and until when, and how often verdicts were wrong.

    The exit code is 1 when it is red: gates cannot be published, or nothing is delivered.
    """
    from crcr.cli.operator_session import run_in_session

    states = run_in_session(config, lambda session: _read(session, upstream))
    if as_json:
        print_json(states)
    else:
        for state in states:
            _print(state)
    if any(state["health"].state == "red" for state in states):
        raise typer.Exit(1)


class _State(TypedDict):
    upstream: str
    health: "Health"
    verdicts: "ContradictedVerdicts"
    outdated_fingerprints: int
    """Failures whose fingerprints are still to be computed by new rules."""


async def _read(session: "OperatorSession", requested: "RepoName | None") -> list[_State]:
    chosen = (
        (session.upstream_to_read(requested),)
        if requested
        else tuple(upstream.name for upstream in session.settings.upstreams)
    )
    return [
        {
            "upstream": str(name),
            "health": await session.views.health(name, session.now()),
            "verdicts": await session.views.contradicted(name, session.now()),
            "outdated_fingerprints": await session.views.outdated_fingerprints(name),
        }
        for name in chosen
    ]


def _print(state: _State) -> None:
    health = state["health"]
    print_line(f"{state['upstream']}:", Text(health.state.value, _STYLES[health.state.value]))
    reasons = [reason.text for reason in health.reasons]
    delays = [delay.text for delay in health.held if delay.text not in reasons and delay.effects != "gates"]
    for text in (*reasons, *delays):
        print_line(f"  {text}")
    if not reasons and not delays:
        print_line("  Nothing delayed, nothing undelivered.")
    verdicts = state["verdicts"]
    if verdicts.of:
        print_line(f"  People contradicted {verdicts.contradicted:,} of {verdicts.of:,} verdicts in 30 days.")
    if number := state["outdated_fingerprints"]:
        print_line(f"  The fingerprints of {number:,} failures are still to be computed by the new rules.")
