"""`crcr effects`: what is still to be done outside, and another try for what was given up."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.options import (
    ConfigOption,
    JsonOption,
    LimitOption,
    UpstreamOption,
    examples,
    parse_repo_name,
    parse_time,
)
from crcr.cli.printing import console, format_age, print_json, print_line, print_table
from crcr.decide.model import EffectKind, RepoName

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.views.operator import EffectLine
    from crcr.record.admin.operations import ParkedFilter

app = typer.Typer(
    name="effects",
    help="The outbox: list what waits or was parked, and retry it.",
    no_args_is_help=True,
)

_AT_ONCE = 500
"""How many are retried in one transaction."""

SinceOption = Annotated[
    datetime | None,
    typer.Option(
        parser=parse_time, metavar="TIME", help="Parked at this time or later (or so long ago: 2h)."
    ),
]
UntilOption = Annotated[
    datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Parked at this time or earlier.")
]


@app.command(
    "list", epilog=examples("crcr effects list --parked", "crcr effects list --target org/backend --json")
)
def list_(
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only those that were given up.")] = False,
    target: Annotated[
        str | None, typer.Option(help="Only those for this repository.", metavar="OWNER/REPO")
    ] = None,
    kind: Annotated[EffectKind | None, typer.Option(help="Only those of this kind.")] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List the effects that wait, are under way, or were parked; not those that are done."""
    from crcr.cli.operator_session import run_in_session

    asked = {"target": target.lower() if target else None, "kind": kind.value if kind else None}
    lines = run_in_session(
        config,
        lambda session: session.views.effects(
            session.upstream_to_read(upstream), parked=parked, limit=limit, **asked
        ),
    )
    if as_json:
        print_json(lines)
        return
    columns = [
        "id",
        "kind",
        "target",
        "state",
        "attempts",
        "since",
        "next",
        "~waits for",
        "delivery",
        "~last error",
    ]
    print_table(columns, map(_line, lines))
    if not lines:
        print_line("nothing is parked" if parked else "nothing is waiting")


@app.command(
    epilog=examples(
        "crcr effects retry 17 18",
        "crcr effects retry --target org/backend",
        "crcr effects retry --since 2026-08-03T09:00 --until 2026-08-03T11:00",
        "crcr effects retry --since 2h",
    )
)
def retry(
    ids: Annotated[list[int] | None, typer.Argument(metavar="ID", help="Parked effects by id.")] = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    target: Annotated[
        RepoName | None,
        typer.Option(
            parser=parse_repo_name, metavar="OWNER/REPO", help="All parked ones for this repository."
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All parked ones of the upstream.")] = False,
) -> None:
    """Give parked effects another 24 hours of tries, beginning now; audited."""
    from crcr.cli.operator_session import run_in_session
    from crcr.record.admin.operations import ParkedFilter

    chosen = target or since or until
    if bool(ids) + bool(chosen) + everything != 1:
        raise typer.BadParameter("say which: ids, or --target, --since, --until, or --all")
    which = (
        [ParkedFilter(effect_id=each) for each in ids]
        if ids
        else [ParkedFilter(target=target, since=since, until=until)]
    )
    count = run_in_session(config, lambda session: _retry(session, upstream, which))
    if count < len(which):
        print_line(
            f"{count} retried; nothing else like that is parked" if count else "nothing like that is parked"
        )
        raise typer.Exit(1)
    print_line(f"{count} retried; follow with: crcr effects list")


async def _retry(session: "OperatorSession", asked: RepoName | None, which: "list[ParkedFilter]") -> int:
    from rich.progress import track

    upstream, now = session.upstream_to_change(asked), session.now()
    # What is parked again while we are at it is not taken a second time.
    bounded = [replace(each, until=min(each.until or now, now)) for each in which]
    batches = [part for each in bounded for part in await _batches(session, upstream, each)]
    shown = track(batches, "retrying", console=console(stderr=True), disable=len(batches) < 3, transient=True)
    return sum([await session.acts.retry_parked(upstream, each, who=session.who, now=now) for each in shown])


async def _batches(
    session: "OperatorSession", upstream: RepoName, which: "ParkedFilter"
) -> "list[ParkedFilter]":
    ids = await session.acts.parked_ids(upstream, which)
    parts = [ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE)]
    return [replace(which, between=(part[0], part[-1])) for part in parts]


def _line(each: "EffectLine") -> list[str | int | None]:
    from crcr.clock import SystemClock
    from crcr.show.render.status import waiting_reason

    marked = f"{each.attempts} (unsure)" if each.unsure else each.attempts
    due = format_age(each.due_at) if each.state == "waiting" else None
    since = format_age(each.finished_at or each.created_at)
    return [
        each.effect_id,
        each.kind,
        each.target,
        each.state,
        marked,
        since,
        due,
        waiting_reason(each, SystemClock().now()),
        each.delivery,
        each.last_error,
    ]
