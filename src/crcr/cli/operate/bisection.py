"""`crcr bisect`: begin a bisection, list them, show one, stop one."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.options import (
    OPERATE_PANEL,
    ConfigOption,
    JsonOption,
    UpstreamOption,
    examples,
    parse_repo_name,
)
from crcr.cli.printing import Cell, print_json, print_line, print_table, print_warning
from crcr.decide.model import RepoName

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.bisection.request import BisectionRequest
    from crcr.decide.views.bisections import BisectionDetail, BisectionRun, BisectionView

_POLL_S = 0.5
_SENT_WITHIN = timedelta(minutes=1)
_ENDED_WITHIN = timedelta(minutes=10)
"""After its time is over, a worker ends a bisection with its next sweep."""
_LISTED = 50
_SHA_DIGITS = 12
_BIGGEST_NUMBER = 2**63 - 1
"""Of a bisection: what a column holds."""
_NO_WORKER = "check that `crcr serve` or `crcr worker` is running and dispatching is not paused"

BackendArgument = Annotated[
    RepoName | None,
    typer.Argument(metavar="OWNER/REPO", parser=parse_repo_name, help="The downstream with the broken job."),
]
JobOption = Annotated[
    str | None, typer.Option("--job", metavar="NAME", help="The broken job.", show_default=False)
]
WorkflowOption = Annotated[
    str | None,
    typer.Option(
        "--workflow",
        metavar="NAME",
        help="Its workflow, if several have a job of this name.",
        show_default=False,
    ),
]
GoodOption = Annotated[
    str | None,
    typer.Option("--good", metavar="SHA", help="A base commit where it passed. Default: as recorded."),
]
BadOption = Annotated[
    str | None,
    typer.Option("--bad", metavar="SHA", help="A base commit where it fails. Default: as recorded."),
]
RunsOption = Annotated[int, typer.Option("--runs", metavar="NUMBER", min=1, help="Maximum number of runs.")]
HoursOption = Annotated[
    int, typer.Option("--hours", metavar="NUMBER", min=1, max=1_000, help="Maximum number of hours.")
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait and print each run; exit with 0 if found.")]
ListOption = Annotated[bool, typer.Option("--list", help="List bisections, newest first.")]
ShowOption = Annotated[
    int | None,
    typer.Option("--show", metavar="ID", min=1, max=_BIGGEST_NUMBER, help="Show one with its runs."),
]
StopOption = Annotated[
    int | None, typer.Option("--stop", metavar="ID", min=1, max=_BIGGEST_NUMBER, help="Stop a running one.")
]


def register(app: typer.Typer) -> None:
    shown = examples(
        "crcr bisect org/backend --job test --wait",
        'crcr bisect org/backend --job "build (linux)" --good 1a2b3c4 --bad 5d6e7f8',
        "crcr bisect --list",
        "crcr bisect --show 12",
        "crcr bisect --stop 12",
    )
    app.command(rich_help_panel=OPERATE_PANEL, epilog=shown)(bisect)


def bisect(
    repository: BackendArgument = None,
    job: JobOption = None,
    workflow: WorkflowOption = None,
    good: GoodOption = None,
    bad: BadOption = None,
    runs: RunsOption = 12,
    hours: HoursOption = 24,
    wait: WaitOption = False,
    list_all: ListOption = False,
    show: ShowOption = None,
    stop: StopOption = None,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Find the upstream commit that broke a downstream's job, by having the downstream test commits.

    The runs count nowhere; a worker must be running to send them.
    """
    from crcr.cli.operator_session import run_in_session

    begins = repository is not None or job is not None
    if [begins, list_all, show is not None, stop is not None].count(True) != 1:
        raise typer.BadParameter("give one of: a downstream and its --job, --list, --show, --stop")
    if begins and (repository is None or not job):
        raise typer.BadParameter("a downstream and its --job are both needed")

    async def act(session: "OperatorSession") -> bool:
        if repository is not None and job:
            request = _build_request(session, repository, job, workflow, (good, bad), (runs, hours))
            return await _begin(
                session, session.upstream_to_change(upstream), request, wait=wait, as_json=as_json
            )
        if stop is not None:
            await _stop(session, session.upstream_to_change(upstream), stop)
        elif show is not None:
            await _show(session, session.upstream_to_read(upstream), show, as_json=as_json)
        else:
            await _list(session, session.upstream_to_read(upstream), as_json=as_json)
        return True

    if not run_in_session(config, act):
        raise typer.Exit(1)


def _build_request(
    session: "OperatorSession",
    repository: RepoName,
    job: str,
    workflow: str | None,
    ends: tuple[str | None, str | None],
    budget: tuple[int, int],
) -> "BisectionRequest":
    from crcr.decide.bisection.request import BisectionRequest

    good, bad = (sha.lower() if sha else None for sha in ends)
    runs, hours = budget
    return BisectionRequest(
        downstream=repository,
        job=job,
        workflow=workflow,
        good=good,
        bad=bad,
        who=session.who,
        most_runs=runs,
        time=timedelta(hours=hours),
    )


async def _begin(
    session: "OperatorSession", upstream: RepoName, request: "BisectionRequest", *, wait: bool, as_json: bool
) -> bool:
    """Begin it; return whether the command has succeeded."""
    bisection_id = await session.bisections.start(upstream, request, session.now())
    detail = await session.views.bisection(upstream, bisection_id)
    if not as_json:
        print_line(
            f"bisection {bisection_id} of {request.job} on {request.downstream} has begun: {_range(detail)}"
        )
        print_line(f"follow it with: crcr bisect --show {bisection_id}")
    if not wait:
        if as_json:
            print_json(_detail_fields(detail))
        return True
    detail = await _wait_for_end(session, upstream, detail, quiet=as_json)
    if as_json:
        print_json(_detail_fields(detail))
    else:
        print_line(detail.bisection.sentence)
    return detail.bisection.culprit is not None


async def _wait_for_end(
    session: "OperatorSession", upstream: RepoName, detail: "BisectionDetail", *, quiet: bool
) -> "BisectionDetail":
    """Print each run when it has a result, until the bisection ends or nothing ends it."""
    printed: set[int] = set()
    warned = False
    while True:
        for run in detail.runs:
            if run.result is not None and run.number not in printed:
                printed.add(run.number)
                if not quiet:
                    print_line(_run_line(run))
        view, now = detail.bisection, session.now()
        if view.finished_at is not None:
            return detail
        is_unsent = not warned and now >= view.created_at + _SENT_WITHIN
        if is_unsent and await _waits_to_be_sent(session, upstream, detail):
            print_warning(f"the first run is not sent yet: {_NO_WORKER}")
            warned = True
        if now >= view.ends_at + _ENDED_WITHIN:
            print_warning(f"its time is over, and nothing ended it: {_NO_WORKER}")
            return detail
        await asyncio.sleep(_POLL_S)
        detail = await session.views.bisection(upstream, view.id)


async def _waits_to_be_sent(
    session: "OperatorSession", upstream: RepoName, detail: "BisectionDetail"
) -> bool:
    if len(detail.runs) != 1:
        return False
    delivery = await session.views.delivery(detail.runs[0].delivery, upstream)
    return any(dispatch.state == "waiting" for dispatch in delivery.dispatches)


async def _stop(session: "OperatorSession", upstream: RepoName, bisection_id: int) -> None:
    await session.bisections.stop(upstream, bisection_id, who=session.who, now=session.now())
    print_line(f"bisection {bisection_id} is stopped")


async def _list(session: "OperatorSession", upstream: RepoName, *, as_json: bool) -> None:
    from crcr.decide.views.bisections import BisectionQuery

    page = await session.views.bisections(BisectionQuery(upstream=upstream, limit=_LISTED))
    if as_json:
        print_json([_view_fields(view) for view in page.items])
    elif not page.items:
        print_line("no bisections")
    else:
        print_table(
            ("id", "backend", "job", "state", "left", "runs", "begun", "by", "~sentence"),
            map(_cells, page.items),
        )


def _cells(view: "BisectionView") -> list[Cell]:
    state = view.outcome.value if view.outcome else view.state.value
    left, runs = f"{view.left:,} of {view.commits:,}", f"{view.runs:,} of {view.most_runs:,}"
    return [view.id, str(view.backend), view.job, state, left, runs, view.created_at, view.who, view.sentence]


async def _show(session: "OperatorSession", upstream: RepoName, bisection_id: int, *, as_json: bool) -> None:
    detail = await session.views.bisection(upstream, bisection_id)
    if as_json:
        print_json(_detail_fields(detail))
        return
    view = detail.bisection
    print_line(f"bisection {view.id} of {view.job} on {view.backend}, by {view.who}: {_range(detail)}")
    for run in detail.runs:
        print_line(_run_line(run))
    print_line(view.sentence)


def _view_fields(view: "BisectionView") -> dict[str, object]:
    import msgspec

    return {**msgspec.to_builtins(view), "backend": str(view.backend), "sentence": view.sentence}


def _detail_fields(detail: "BisectionDetail") -> dict[str, object]:
    return {"bisection": _view_fields(detail.bisection), "commits": detail.commits, "runs": detail.runs}


def _range(detail: "BisectionDetail") -> str:
    view = detail.bisection
    plural = "" if view.commits == 1 else "s"
    return f"{view.commits:,} commit{plural} after {view.good[:_SHA_DIGITS]}, up to {view.bad[:_SHA_DIGITS]}"


def _run_line(run: "BisectionRun") -> str:
    result = run.result.value if run.result else "running"
    return " ".join(filter(None, (f"run {run.number}", run.sha[:_SHA_DIGITS], result, run.sample, run.url)))
