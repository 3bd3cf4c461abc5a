"""`crcr suspend`, `crcr pause`, `crcr dispatch --test`: manual actions, effective at once and audited."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from crcr.cli.options import (
    OPERATE_PANEL,
    ConfigOption,
    ReasonOption,
    RepoArgument,
    UpstreamOption,
    examples,
    parse_duration,
)
from crcr.cli.printing import colour_state, print_line, print_warning

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.model import RepoName
    from crcr.decide.views.operator import DispatchLine

_POLL_S = 0.2

LiftOption = Annotated[bool, typer.Option("--lift", help="Undo it.")]


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=OPERATE_PANEL,
        epilog=examples(
            'crcr suspend org/backend --reason "floods us with reports"', "crcr suspend org/backend --lift"
        ),
    )(suspend)
    app.command(
        rich_help_panel=OPERATE_PANEL,
        epilog=examples('crcr pause --reason "GitHub is down"', "crcr pause --lift"),
    )(pause)
    app.command(rich_help_panel=OPERATE_PANEL, epilog=examples("crcr dispatch --test org/backend --wait"))(
        dispatch
    )


def suspend(
    repository: RepoArgument,
    lift: LiftOption = False,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Suspend a downstream: no dispatches, reports refused, waiting dispatches cancelled."""
    from crcr.cli.operator_session import run_in_session

    async def act(session: "OperatorSession") -> None:
        target = session.upstream_to_change(upstream)
        await session.targets.suspend(
            target, repository, who=session.who, now=session.now(), lift=lift, reason=reason
        )
        if (await session.views.allowlist(target))[1].find(repository) is None:
            print_warning(f"{repository} is not on the allowlist of {target}")
        print_line(f"{repository} is {'no longer suspended' if lift else 'suspended'} for {target}")

    run_in_session(config, act)


def pause(
    lift: LiftOption = False,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Pause dispatching for an upstream; its events are still received and wait."""
    from crcr.cli.operator_session import run_in_session

    async def act(session: "OperatorSession") -> None:
        target = session.upstream_to_change(upstream)
        await session.acts.pause(target, who=session.who, now=session.now(), lift=lift, reason=reason)
        print_line(
            f"dispatching for {target} {'resumed' if lift else 'paused; crcr pause --lift resumes it'}"
        )

    run_in_session(config, act)


def dispatch(
    repository: RepoArgument,
    test: Annotated[bool, typer.Option("--test", help="Send a dispatch marked as a test.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait until it is sent or fails.")] = False,
    patience: Annotated[
        timedelta,
        typer.Option("--timeout", parser=parse_duration, metavar="DURATION", help="Time limit of --wait."),
    ] = "60s",  # type: ignore[assignment]  # read by the parser
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Send a test dispatch to one downstream; it does not count.

    Its event_type is crcr_test; a worker must be running to send it.
    """
    from crcr.cli.operator_session import run_in_session

    if not test:
        raise typer.BadParameter(
            "only test dispatches can be sent by hand: add --test (to resend events: crcr deliveries replay)"
        )
    guid = str(uuid4())

    async def act(session: "OperatorSession") -> "DispatchLine | None":
        target = session.upstream_to_change(upstream)
        await session.acts.dispatch_test(target, repository, guid, who=session.who, now=session.now())
        print_line(f"test dispatch to {repository}: {guid}")
        print_line(f"follow it with: crcr deliveries show {guid}")
        return await _wait_for_outcome(session, target, guid, patience) if wait else None

    sent = run_in_session(config, act)
    if wait:
        _print_outcome(sent)


async def _wait_for_outcome(
    session: "OperatorSession", upstream: "RepoName", guid: str, patience: timedelta
) -> "DispatchLine":
    until = session.now() + patience
    while True:
        [line] = (await session.views.delivery(guid, upstream)).dispatches
        if line.state != "waiting" or session.now() >= until:
            return line
        await asyncio.sleep(_POLL_S)


def _print_outcome(line: "DispatchLine | None") -> None:
    state = line.state if line else "waiting"
    errors = [effect.last_error for effect in line.effects if effect.last_error] if line else []
    print_line("state:", colour_state(state), f"({errors[-1]})" if errors else "")
    if state == "waiting":
        print_warning(
            "not sent yet: check that `crcr serve` or `crcr worker` is running and dispatching is not paused"
        )
    if state != "sent":
        raise typer.Exit(1)
