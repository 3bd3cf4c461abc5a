"""`crcr effects`: the outgoing queue, and retrying parked effects."""

from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import (
    ConfigOption,
    JsonOption,
    LimitOption,
    UpstreamOption,
    examples,
    parse_repo_name,
    parse_time,
)
from crcr.cli.printing import console, format_age, print_json, print_line, print_outcome, print_table
from crcr.decide.model import EffectKind, RepoName

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.views.operator import EffectLine
    from crcr.record.admin.operations import ParkedFilter

app = CommandLine(
    name="effects",
    help="Outgoing queue: list waiting and parked effects, retry parked ones.",
    no_args_is_help=True,
)

_BATCH = 500
"""Effects retried in one transaction."""

SinceOption = Annotated[
    datetime | None,
    typer.Option(parser=parse_time, metavar="TIME", help="Parked since this time, or age such as 2h."),
]
UntilOption = Annotated[
    datetime | None, typer.Option(parser=parse_time, metavar="TIME", help="Parked until this time.")
]


@app.command(
    "list", epilog=examples("crcr effects list --parked", "crcr effects list --target org/backend --json")
)
def list_(
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    parked: Annotated[bool, typer.Option("--parked", help="Only parked (undelivered) effects.")] = False,
    target: Annotated[
        str | None, typer.Option(help="Only those for this repository.", metavar="OWNER/REPO")
    ] = None,
    kind: Annotated[EffectKind | None, typer.Option(help="Only effects of this kind.")] = None,
    limit: LimitOption = 50,
    as_json: JsonOption = False,
) -> None:
    """List waiting, running and parked effects; not finished ones."""
    from crcr.cli.operator_session import run_in_session

    filters = {"target": target.lower() if target else None, "kind": kind.value if kind else None}
    lines = run_in_session(
        config,
        lambda session: session.views.effects(
            session.upstream_to_read(upstream), parked=parked, limit=limit, **filters
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
    print_table(columns, map(_effect_cells, lines))
    if not lines:
        print_line("no parked effects" if parked else "no open effects")


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
            parser=parse_repo_name, metavar="OWNER/REPO", help="All parked effects for this repository."
        ),
    ] = None,
    since: SinceOption = None,
    until: UntilOption = None,
    everything: Annotated[bool, typer.Option("--all", help="All parked effects of the upstream.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Retry parked effects, for another 24 hours from now; audited."""
    from crcr.cli.operator_session import run_in_session
    from crcr.record.admin.operations import ParkedFilter

    chosen = target or since or until
    if bool(ids) + bool(chosen) + everything != 1:
        raise typer.BadParameter("pass ids, or --target, --since, --until, or --all")
    filters = (
        [ParkedFilter(effect_id=effect_id) for effect_id in ids]
        if ids
        else [ParkedFilter(target=target, since=since, until=until)]
    )
    count = run_in_session(config, lambda session: _retry(session, upstream, filters))
    text = f"{count:,} retried; follow with: crcr effects list"
    if count < len(filters):
        text = f"{count:,} retried; no other parked effect matches" if count else "no parked effect matches"
    print_outcome(text, {"retried": count}, as_json=as_json)
    if count < len(filters):
        raise typer.Exit(1)


async def _retry(
    session: "OperatorSession", requested: RepoName | None, filters: "list[ParkedFilter]"
) -> int:
    from rich.progress import track

    upstream, now = session.upstream_to_change(requested), session.now()
    # Effects that are parked again meanwhile are not retried a second time.
    bounded = [replace(parked, until=min(parked.until or now, now)) for parked in filters]
    batches = [batch for parked in bounded for batch in await _split_into_batches(session, upstream, parked)]
    tracked = track(
        batches, "retrying", console=console(stderr=True), disable=len(batches) < 3, transient=True
    )
    return sum(
        [await session.acts.retry_parked(upstream, parked, who=session.who, now=now) for parked in tracked]
    )


async def _split_into_batches(
    session: "OperatorSession", upstream: RepoName, parked_filter: "ParkedFilter"
) -> "list[ParkedFilter]":
    ids = await session.acts.parked_ids(upstream, parked_filter)
    parts = [ids[start : start + _BATCH] for start in range(0, len(ids), _BATCH)]
    return [replace(parked_filter, between=(part[0], part[-1])) for part in parts]


def _effect_cells(effect: "EffectLine") -> list[str | int | None]:
    from crcr.clock import SystemClock
    from crcr.show.render.status import waiting_reason

    attempts = f"{effect.attempts:,} (unsure)" if effect.unsure else f"{effect.attempts:,}"
    due = format_age(effect.due_at) if effect.state == "waiting" else None
    since = format_age(effect.finished_at or effect.created_at)
    return [
        effect.effect_id,
        effect.kind,
        effect.target,
        effect.state,
        attempts,
        since,
        due,
        waiting_reason(effect, SystemClock().now()),
        effect.delivery,
        effect.last_error,
    ]
