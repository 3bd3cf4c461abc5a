"""`crcr deliveries`: what GitHub sent, what became of it, and sending it again."""

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.options import ConfigOption, JsonOption, LimitOption, UpstreamOption, examples, parse_time
from crcr.cli.printing import (
    escape_unprintable,
    format_age,
    format_cell,
    print_error,
    print_json,
    print_line,
    print_table,
)
from crcr.decide.model import DeliveryState

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.views.operator import DeliveryDetail, DeliveryLine, DispatchLine, JobLine

app = typer.Typer(
    name="deliveries",
    help="Webhook events: list them, look into one, send one again.",
    no_args_is_help=True,
)

_CUT_OFF_WITHIN = timedelta(hours=24)
GuidArgument = Annotated[str, typer.Argument(metavar="GUID", help="The delivery's id, as GitHub shows it.")]


@app.command(
    "list", epilog=examples("crcr deliveries list", "crcr deliveries list --state superseded --json")
)
def list_(
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    limit: LimitOption = 20,
    state: Annotated[DeliveryState | None, typer.Option(help="Only those in this state.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest deliveries with the count of their dispatches."""
    from crcr.cli.operator_session import run_in_session

    wanted = state.value if state else None
    lines = run_in_session(
        config,
        lambda session: session.views.deliveries(
            session.upstream_to_read(upstream), state=wanted, limit=limit
        ),
    )
    if as_json:
        print_json(lines)
        return
    columns = ["received", "guid", "event", "about", "state", "dispatches", "~reason"]
    print_table(columns, ([*_line(each), each.reason] for each in lines))
    if not lines:
        print_line("no deliveries")


@app.command(epilog=examples("crcr deliveries show 72d3162e-cc78-11e3-81ab-4c9367dc0958 --body"))
def show(
    guid: GuidArgument,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    body: Annotated[
        bool, typer.Option("--body", help="Print the webhook's body too, while it is kept.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one delivery: its dispatches, the attempts to send them, their errors, and the jobs reported."""
    from crcr.cli.operator_session import run_in_session

    detail, raw = run_in_session(config, lambda session: _look(session, guid, upstream, body=body))
    payload = json.loads(raw) if raw is not None else None
    if as_json:
        print_json({"detail": detail, "body": payload} if body else detail)
        return
    _print_detail(detail)
    if payload is not None:
        typer.echo(json.dumps(payload, indent=2))
    elif body:
        print_error("the body of this delivery is no longer kept")
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "crcr deliveries replay 72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "crcr deliveries replay --cancelled --since 2h",
    )
)
def replay(
    guid: Annotated[
        str | None, typer.Argument(metavar="[GUID]", help="The delivery's id, as GitHub shows it.")
    ] = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    everyone: Annotated[
        bool, typer.Option("--everyone", help="Also to those who got it: their CI runs once more.")
    ] = False,
    cancelled: Annotated[
        bool,
        typer.Option(
            "--cancelled",
            help="All deliveries with dispatches that were cancelled because a backend left the allowlist or was"
            " suspended; they go to the backends that are back.",
        ),
    ] = False,
    since: Annotated[
        datetime | None,
        typer.Option(
            parser=parse_time,
            metavar="TIME",
            help="With --cancelled: deliveries received at this time or later (or so long ago: 2h). Default: 24h.",
        ),
    ] = None,
) -> None:
    """Send a delivery again to those who did not get it; audited.

    What a change of the allowlist cancelled goes to the backends that are listed again. A dispatch that waited for
    an approval, or for the end of a draft, still waits for that.
    """
    from crcr.cli.operator_session import run_in_session

    if (guid is None) is not cancelled or (cancelled and everyone) or (since and not cancelled):
        raise typer.BadParameter("say which: a GUID (with --everyone or not), or --cancelled (with --since)")
    if guid is None:
        events, sent = run_in_session(config, lambda session: _replay_cancelled(session, upstream, since))
        print_line(_sent_again(sent, events))
        return
    count = run_in_session(
        config,
        lambda session: session.acts.replay(
            session.upstream_to_change(upstream), guid, who=session.who, now=session.now(), everyone=everyone
        ),
    )
    if not count:
        hint = "" if everyone else "; --everyone sends it all the same"
        print_line(f"nothing to send: all who may have it got it, or it is on its way{hint}")
        return
    print_line(f"sent again to {count}; follow it with: crcr deliveries show {guid}")


def _sent_again(dispatches: int, events: int) -> str:
    if not dispatches:
        return "nothing to send: no dispatch was cancelled for a backend that is back"
    what = "1 dispatch" if dispatches == 1 else f"{dispatches} dispatches"
    source = "1 delivery" if events == 1 else f"{events} deliveries"
    return f"{what} of {source} {'is' if dispatches == 1 else 'are'} sent again"


async def _replay_cancelled(
    session: "OperatorSession", upstream: "UpstreamOption", since: datetime | None
) -> tuple[int, int]:
    """Replay everything that was cut off; return how many deliveries there were, and how many dispatches were sent."""
    upstream_to_change = session.upstream_to_change(upstream)
    found = await session.acts.find_cut_off(upstream_to_change, since or session.now() - _CUT_OFF_WITHIN)
    sent = [
        await session.acts.replay(upstream_to_change, guid, who=session.who, now=session.now())
        for guid in found
    ]
    return sum(map(bool, sent)), sum(sent)


async def _look(
    session: "OperatorSession", guid: str, upstream: "UpstreamOption", *, body: bool
) -> "tuple[DeliveryDetail, bytes | None]":
    detail = await session.views.delivery(guid, session.upstream_to_read(upstream) if upstream else None)
    return detail, await session.views.body(detail.delivery) if body else None


def _line(each: "DeliveryLine") -> list[str]:
    sent = ", ".join(f"{number} {state}" for state, number in each.dispatches.items())
    return [format_age(each.received_at), each.guid, _event(each), _about(each), each.state, sent or "none"]


def _event(each: "DeliveryLine") -> str:
    return f"{each.event} {each.action}" if each.action else each.event


def _about(each: "DeliveryLine") -> str:
    if each.number is not None:
        return f"#{each.number}"
    return each.ref or (each.head_sha or "")[:12]


def _print_detail(detail: "DeliveryDetail") -> None:
    delivery = detail.delivery
    print_line(f"{delivery.guid}: {_event(delivery)} {_about(delivery)} of {delivery.upstream}")
    reason = f" ({escape_unprintable(delivery.reason)})" if delivery.reason else ""
    print_line("  state   ", format_cell(delivery.state), reason)
    print_line(
        f"  received {format_age(delivery.received_at)} at {delivery.received_at:%Y-%m-%d %H:%M:%S} UTC, {delivery.source}"
    )
    kept = "kept" if delivery.body_kept else "no longer kept"
    print_line(f"  head     {delivery.head_sha or '-'}, body of {delivery.body_bytes:,} bytes, {kept}")
    print_line("")
    columns = ["downstream", "level", "dispatch", "sent", "attempts", "~why"]
    print_table(columns, map(_dispatch, detail.dispatches))
    jobs = [[each.downstream, *_job(job)] for each in detail.dispatches for job in each.jobs]
    if jobs:
        print_line("")
        print_table(["downstream", "job", "run", "state", "conclusion", "queue s", "run s", "~marks"], jobs)
    for effect in detail.effects:
        print_line(f"also {effect.kind} for {effect.target}: {effect.state} {effect.last_error or ''}")


def _dispatch(each: "DispatchLine") -> list[str | int | None]:
    last = each.effects[-1] if each.effects else None
    marks = [mark for mark, is_so in (("test", each.test), ("unsure", each.unsure)) if is_so]
    if each.superseded_at:
        marks.append("superseded")
    if each.answer:
        marks.append(each.answer.replace("_", " "))
    if each.trimmed:
        marks.append(f"trimmed: {', '.join(each.trimmed)}")
    why = "; ".join(filter(None, [*marks, each.reason or (last.last_error if last else None)]))
    sent = format_age(each.sent_at) if each.sent_at else None
    return [each.downstream, each.level, each.state, sent, sum(e.attempts for e in each.effects), why or None]


def _job(job: "JobLine") -> list[str | float | None]:
    run = f"{job.workflow} {job.run_id}.{job.attempt}"
    times = [job.queue_s, job.execution_s]
    return [job.job_name, run, job.state, job.conclusion, *times, ", ".join(job.marks) or None]
