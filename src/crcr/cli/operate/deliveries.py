"""`crcr deliveries`: webhook deliveries with their dispatches and jobs, and replaying them."""

import json
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import ConfigOption, JsonOption, LimitOption, UpstreamOption, examples, parse_time
from crcr.cli.printing import (
    escape_unprintable,
    format_age,
    format_cell,
    print_error,
    print_json,
    print_line,
    print_outcome,
    print_table,
)
from crcr.decide.model import BISECTION_EVENT, PAIR_EVENT, DeliveryState

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.views.operator import DeliveryDetail, DeliveryLine, DispatchLine, JobLine

app = CommandLine(
    name="deliveries",
    help="Webhook deliveries: list, show, replay.",
    no_args_is_help=True,
)

_CANCELLED_WITHIN = timedelta(hours=24)
GuidArgument = Annotated[str, typer.Argument(metavar="GUID", help="The delivery's id, as GitHub shows it.")]


@app.command(
    "list", epilog=examples("crcr deliveries list", "crcr deliveries list --state superseded --json")
)
def list_(
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    limit: LimitOption = 20,
    state: Annotated[DeliveryState | None, typer.Option(help="Only deliveries in this state.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the newest deliveries with the number of their dispatches."""
    from crcr.cli.operator_session import run_in_session

    state_filter = state.value if state else None
    lines = run_in_session(
        config,
        lambda session: session.views.deliveries(
            session.upstream_to_read(upstream), state=state_filter, limit=limit
        ),
    )
    if as_json:
        print_json(lines)
        return
    columns = ["received", "guid", "event", "about", "state", "dispatches", "~reason"]
    print_table(columns, ([*_delivery_cells(delivery), delivery.reason] for delivery in lines))
    if not lines:
        print_line("no deliveries")


@app.command(epilog=examples("crcr deliveries show 72d3162e-cc78-11e3-81ab-4c9367dc0958 --body"))
def show(
    guid: GuidArgument,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    body: Annotated[
        bool, typer.Option("--body", help="Print the webhook's body too, if it is still stored.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Show one delivery: its dispatches with attempts and errors, and the reported jobs."""
    from crcr.cli.operator_session import run_in_session

    detail, raw = run_in_session(config, lambda session: _read_detail(session, guid, upstream, body=body))
    payload = json.loads(raw) if raw is not None else None
    if as_json:
        print_json({"detail": detail, "body": payload} if body else detail)
        return
    _print_detail(detail)
    if payload is not None:
        typer.echo(json.dumps(payload, indent=2))
    elif body:
        print_error("the body of this delivery is no longer stored")
        raise typer.Exit(1)


ReplayArgument = Annotated[
    str | None, typer.Argument(metavar="[GUID]", help="The delivery's id, as GitHub shows it.")
]
EveryoneOption = Annotated[
    bool, typer.Option("--everyone", help="Also to backends that received it: their CI runs again.")
]
CancelledOption = Annotated[
    bool,
    typer.Option(
        "--cancelled",
        help="All deliveries with dispatches cancelled because a backend left the allowlist or was"
        " suspended; sent to the backends that are listed again.",
    ),
]
SinceOption = Annotated[
    datetime | None,
    typer.Option(
        parser=parse_time,
        metavar="TIME",
        help="With --cancelled: deliveries received since this time, or age such as 2h. Default: 24h.",
    ),
]


@app.command(
    epilog=examples(
        "crcr deliveries replay 72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "crcr deliveries replay --cancelled --since 2h",
    )
)
def replay(
    guid: ReplayArgument = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    everyone: EveryoneOption = False,
    cancelled: CancelledOption = False,
    since: SinceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Send a delivery again to the backends that did not receive it; audited.

    Dispatches that an allowlist change cancelled go to backends that are listed again. A dispatch held for an approval
    or a draft stays held.
    """
    from crcr.cli.operator_session import run_in_session

    if (guid is None) is not cancelled or (cancelled and everyone) or (since and not cancelled):
        raise typer.BadParameter(
            "pass either a GUID (optionally with --everyone) or --cancelled (optionally with --since)"
        )
    if guid is None:
        events, sent = run_in_session(config, lambda session: _replay_cancelled(session, upstream, since))
        print_outcome(_describe_replay(sent, events), {"deliveries": events, "sent": sent}, as_json=as_json)
        return
    count = run_in_session(
        config,
        lambda session: session.acts.replay(
            session.upstream_to_change(upstream), guid, who=session.who, now=session.now(), everyone=everyone
        ),
    )
    text = f"sent again to {count:,}; follow it with: crcr deliveries show {guid}"
    if not count:
        hint = "" if everyone else "; --everyone sends it anyway"
        text = f"nothing to send: every eligible backend received it, or it is queued{hint}"
    print_outcome(text, {"deliveries": int(count > 0), "sent": count}, as_json=as_json)


def _describe_replay(dispatches: int, events: int) -> str:
    if not dispatches:
        return "nothing to send: no dispatch was cancelled for a backend that is listed again"
    dispatch_count = "1 dispatch" if dispatches == 1 else f"{dispatches:,} dispatches"
    source = "1 delivery" if events == 1 else f"{events:,} deliveries"
    return f"{dispatch_count} of {source} sent again"


async def _replay_cancelled(
    session: "OperatorSession", upstream: "UpstreamOption", since: datetime | None
) -> tuple[int, int]:
    """Replay the cancelled dispatches; return the numbers of deliveries and of dispatches sent."""
    chosen = session.upstream_to_change(upstream)
    guids = await session.acts.find_cut_off(chosen, since or session.now() - _CANCELLED_WITHIN)
    sent = [await session.acts.replay(chosen, guid, who=session.who, now=session.now()) for guid in guids]
    return sum(map(bool, sent)), sum(sent)


async def _read_detail(
    session: "OperatorSession", guid: str, upstream: "UpstreamOption", *, body: bool
) -> "tuple[DeliveryDetail, bytes | None]":
    detail = await session.views.delivery(guid, session.upstream_to_read(upstream) if upstream else None)
    return detail, await session.views.body(detail.delivery) if body else None


def _delivery_cells(delivery: "DeliveryLine") -> list[str]:
    sent = ", ".join(f"{number:,} {state}" for state, number in delivery.dispatches.items())
    return [
        format_age(delivery.received_at),
        delivery.guid,
        _event(delivery),
        _subject(delivery),
        delivery.state,
        sent or "none",
    ]


def _event(delivery: "DeliveryLine") -> str:
    return f"{delivery.event} {delivery.action}" if delivery.action else delivery.event


def _subject(delivery: "DeliveryLine") -> str:
    if delivery.number is not None:
        return f"#{delivery.number}"
    return delivery.ref or (delivery.head_sha or "")[:12]


def _print_detail(detail: "DeliveryDetail") -> None:
    delivery = detail.delivery
    print_line(f"{delivery.guid}: {_event(delivery)} {_subject(delivery)} of {delivery.upstream}")
    reason = f" ({escape_unprintable(delivery.reason)})" if delivery.reason else ""
    print_line("  state   ", format_cell(delivery.state), reason)
    print_line(
        f"  received {format_age(delivery.received_at)} at {delivery.received_at:%Y-%m-%d %H:%M:%S} UTC, {delivery.source}"
    )
    stored = "stored" if delivery.body_kept else "no longer stored"
    print_line(f"  head     {delivery.head_sha or '-'}, body of {delivery.body_bytes:,} bytes, {stored}")
    print_line("")
    columns = ["downstream", "level", "dispatch", "sent", "attempts", "~why"]
    uncounted = {BISECTION_EVENT: "bisection", PAIR_EVENT: "pair"}.get(delivery.event, "test")
    print_table(columns, (_dispatch_cells(dispatch, uncounted) for dispatch in detail.dispatches))
    jobs = [
        [dispatch.downstream, *_job_cells(job)] for dispatch in detail.dispatches for job in dispatch.jobs
    ]
    if jobs:
        print_line("")
        print_table(["downstream", "job", "run", "state", "conclusion", "queue s", "run s", "~marks"], jobs)
    for effect in detail.effects:
        print_line(f"also {effect.kind} for {effect.target}: {effect.state} {effect.last_error or ''}")


def _dispatch_cells(dispatch: "DispatchLine", uncounted: str) -> list[str | int | None]:
    """`uncounted` is the word for a dispatch that counts nowhere."""
    last = dispatch.effects[-1] if dispatch.effects else None
    marks = [mark for mark, applies in ((uncounted, dispatch.test), ("unsure", dispatch.unsure)) if applies]
    if dispatch.superseded_at:
        marks.append("superseded")
    if dispatch.answer:
        marks.append(dispatch.answer.replace("_", " "))
    if dispatch.trimmed:
        marks.append(f"trimmed: {', '.join(dispatch.trimmed)}")
    why = "; ".join(filter(None, [*marks, dispatch.reason or (last.last_error if last else None)]))
    sent = format_age(dispatch.sent_at) if dispatch.sent_at else None
    return [
        dispatch.downstream,
        dispatch.level,
        dispatch.state,
        sent,
        sum(e.attempts for e in dispatch.effects),
        why or None,
    ]


def _job_cells(job: "JobLine") -> list[str | float | None]:
    run = f"{job.workflow} {job.run_id}.{job.attempt}"
    times = [job.queue_s, job.execution_s]
    return [job.job_name, run, job.state, job.conclusion, *times, ", ".join(job.marks) or None]
