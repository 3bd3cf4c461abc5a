"""`crcr suspend`, `crcr pause`, `crcr resume`, `crcr dispatch --test`: manual actions, effective at once and audited."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated
from uuid import uuid4

import typer

from crcr.cli.options import (
    OPERATE_PANEL,
    ConfigOption,
    JsonOption,
    ReasonOption,
    RepoArgument,
    UpstreamOption,
    examples,
    parse_duration,
    parse_repo_name,
)
from crcr.cli.printing import colour_state, print_json, print_line, print_outcome, print_warning
from crcr.decide.model import RepoName

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.views.operator import DispatchLine

_POLL_S = 0.2

LiftOption = Annotated[bool, typer.Option("--lift", help="Undo it, as `crcr resume` does.")]
ResumedArgument = Annotated[
    RepoName | None,
    typer.Argument(
        metavar="OWNER/REPO",
        parser=parse_repo_name,
        help="The suspended downstream. Default: the upstream, whose dispatching is paused.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command(
        rich_help_panel=OPERATE_PANEL,
        epilog=examples(
            'crcr suspend org/backend --reason "floods us with reports"', "crcr resume org/backend"
        ),
    )(suspend)
    app.command(
        rich_help_panel=OPERATE_PANEL,
        epilog=examples('crcr pause --reason "GitHub is down"', "crcr resume"),
    )(pause)
    app.command(
        rich_help_panel=OPERATE_PANEL,
        epilog=examples("crcr resume", 'crcr resume org/backend --reason "fixed"'),
    )(resume)
    app.command(rich_help_panel=OPERATE_PANEL, epilog=examples("crcr dispatch --test org/backend --wait"))(
        dispatch
    )


def suspend(
    repository: RepoArgument,
    lift: LiftOption = False,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Suspend a downstream: no dispatches, reports refused, waiting dispatches cancelled."""
    from crcr.cli.operator_session import run_in_session

    async def act(session: "OperatorSession") -> RepoName:
        target = session.upstream_to_change(upstream)
        await session.targets.suspend(
            target, repository, who=session.who, now=session.now(), lift=lift, reason=reason
        )
        if (await session.views.allowlist(target))[1].find(repository) is None:
            print_warning(f"{repository} is not on the allowlist of {target}")
        return target

    target = run_in_session(config, act)
    text = f"{repository} is {'no longer suspended' if lift else 'suspended'} for {target}"
    outcome = {"upstream": str(target), "repository": str(repository), "suspended": not lift}
    print_outcome(text, outcome, as_json=as_json)


def pause(
    lift: LiftOption = False,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pause dispatching for an upstream; its events are still received and wait."""
    from crcr.cli.operator_session import run_in_session

    async def act(session: "OperatorSession") -> RepoName:
        target = session.upstream_to_change(upstream)
        await session.acts.pause(target, who=session.who, now=session.now(), lift=lift, reason=reason)
        return target

    target = run_in_session(config, act)
    text = f"dispatching for {target} {'resumed' if lift else 'paused; crcr resume resumes it'}"
    print_outcome(text, {"upstream": str(target), "paused": not lift}, as_json=as_json)


def resume(
    repository: ResumedArgument = None,
    reason: ReasonOption = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Resume dispatching for a paused upstream, or end the suspension of a downstream.

    The same as `crcr pause --lift` and `crcr suspend OWNER/REPO --lift`.
    """
    if repository is None:
        pause(lift=True, reason=reason, config=config, upstream=upstream, as_json=as_json)
    else:
        suspend(repository, lift=True, reason=reason, config=config, upstream=upstream, as_json=as_json)


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
    as_json: JsonOption = False,
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
        if not as_json:
            print_line(f"test dispatch to {repository}: {guid}")
            print_line(f"follow it with: crcr deliveries show {guid}")
        return await _wait_for_outcome(session, target, guid, patience) if wait else None

    sent = run_in_session(config, act)
    if as_json:
        state, error = _outcome(sent)
        print_json({"delivery": guid, "repository": str(repository), "state": state, "error": error})
    elif wait:
        _print_outcome(sent)
    if wait and _outcome(sent)[0] != "sent":
        raise typer.Exit(1)


async def _wait_for_outcome(
    session: "OperatorSession", upstream: "RepoName", guid: str, patience: timedelta
) -> "DispatchLine":
    until = session.now() + patience
    while True:
        [line] = (await session.views.delivery(guid, upstream)).dispatches
        if line.state != "waiting" or session.now() >= until:
            return line
        await asyncio.sleep(_POLL_S)


def _outcome(line: "DispatchLine | None") -> tuple[str, str | None]:
    """Return the dispatch's state and its last error."""
    errors = [effect.last_error for effect in line.effects if effect.last_error] if line else []
    return (line.state if line else "waiting"), errors[-1] if errors else None


def _print_outcome(line: "DispatchLine | None") -> None:
    state, error = _outcome(line)
    print_line("state:", colour_state(state), f"({error})" if error else "")
    if state == "waiting":
        print_warning(
            "not sent yet: check that `crcr serve` or `crcr worker` is running and dispatching is not paused"
        )
