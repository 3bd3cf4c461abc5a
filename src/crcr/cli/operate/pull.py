"""`crcr pr N`: one pull request for a terminal: the gate, the backends, verdicts of what failed, and the next steps.

With --relay it reads a relay's public API. Both ways lead to the same JSON and the same lines.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from crcr.cli.json_fields import (
    JsonObject,
    read_integer,
    read_object,
    read_objects,
    read_text,
    read_texts,
    read_time,
)
from crcr.cli.options import (
    OPERATE_PANEL,
    ConfigOption,
    JsonOption,
    PublicRelayOption,
    UpstreamOption,
    examples,
)
from crcr.cli.printing import Cell, escape_unprintable, format_age, print_json, print_line, print_table

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession

_BAD = frozenset({"failure", "timed_out"})
_STYLES = {"passed": "green", "pending": "yellow", "failed": "bold red", "cancelled": "dim"}
_WORDS = {"not concerned": "not affected"}
_MOST_FAILED = 50

NumberArgument = Annotated[int, typer.Argument(metavar="NUMBER", min=1, help="The pull request's number.")]


def register(app: typer.Typer) -> None:
    shown = examples("crcr pr 1234", "crcr pr 1234 --relay https://crcr.example.com", "crcr pr 1234 --json")
    app.command("pr", rich_help_panel=OPERATE_PANEL, epilog=shown)(show_pull)


def show_pull(
    number: NumberArgument,
    relay: PublicRelayOption = None,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show a pull request: its gate, each backend with its status and next step, and why jobs failed.

    Without --relay: from this relay's database, hidden backends included. The exit code is 1 when there is no such pull
    request, or the relay cannot be read; a gate that blocks does not change it.
    """
    if relay is not None and config is not None:
        raise typer.BadParameter("--config is about this machine's relay; leave it out with --relay")
    pull = _read_relay(relay, number, upstream) if relay else _read_database(config, number, upstream)
    if as_json:
        print_json(pull)
        return
    _print_head(pull)
    _print_gate(read_object(pull, "gate"))
    _print_backends(pull)
    _print_failed(pull)


def _read_relay(relay: str, number: int, upstream: Any) -> JsonObject:
    from crcr.cli.failing.relay_api import RelayApi, relay_address

    api = RelayApi(relay_address(relay))
    return api.read_object(f"pulls/{number}", {"upstream": str(upstream)} if upstream else {})


def _read_database(config: Any, number: int, upstream: Any) -> JsonObject:
    from crcr.cli.operator_session import run_in_session
    from crcr.show.api.models.commit import describe_pull

    async def read(session: "OperatorSession") -> JsonObject:
        chosen = session.upstream_to_read(upstream)
        view = await session.open_pages().pull(chosen, number, session.now())
        return describe_pull(view).model_dump(mode="json")

    return run_in_session(config, read)


def _print_head(pull: JsonObject) -> None:
    number, title = read_integer(pull, "number") or "?", read_text(pull, "title") or "(no title)"
    print_line(Text(f"#{number} {escape_unprintable(title)}", "bold"))
    state = "draft" if pull.get("draft") is True else read_text(pull, "state")
    base, sha = read_text(pull, "base_ref"), (read_text(pull, "head_sha") or "")[:8]
    parts = [
        read_text(pull, "upstream"),
        state,
        f"by {author}" if (author := read_text(pull, "author")) else None,
        f"{sha} into {base}" if sha and base else None,
        ", ".join(read_texts(pull, "labels")) or None,
    ]
    print_line(", ".join(filter(None, parts)))


def _print_gate(gate: JsonObject) -> None:
    state = read_text(gate, "state")
    if state is None:
        print_line("gate: none")
        return
    judged_at = read_time(gate, "judged_at")
    shown = Text("gate: ") + Text(escape_unprintable(state), _STYLES.get(state, ""))
    shown += Text(f", {escape_unprintable(title)}" if (title := read_text(gate, "title")) else "")
    print_line(shown + Text(f" ({format_age(judged_at)})" if judged_at else ""))


def _print_backends(pull: JsonObject) -> None:
    backends = read_objects(pull, "backends")
    print_line("")
    if not backends:
        print_line("no backend was notified")
        return
    judged = {
        read_text(row, "backend"): row
        for subject in read_objects(read_object(pull, "gate"), "subjects")
        for row in read_objects(subject, "rows")
    }
    columns = ["backend", "level", "status", "jobs", "~likely cause", "~next step", "~on call"]
    print_table(columns, [_cells(each, judged.get(read_text(each, "name"), {})) for each in backends])


def _cells(backend: JsonObject, row: JsonObject) -> list[Cell]:
    jobs = read_objects(backend, "jobs")
    bad = sum(read_text(job, "counted") in _BAD for job in jobs)
    status = read_text(row, "standing") or read_text(backend, "state") or "?"
    causes = [read_object(backend, "verdict"), *(read_object(job, "verdict") for job in jobs)]
    kinds = dict.fromkeys(kind for cause in causes if (kind := read_text(cause, "kind")))
    return [
        read_text(backend, "name"),
        read_text(backend, "level"),
        _WORDS.get(status, status),
        f"{bad:,} of {len(jobs):,} failed" if bad else f"{len(jobs):,}" if jobs else None,
        ", ".join(kinds) or None,
        read_text(row, "advice"),
        ", ".join(read_texts(backend, "oncalls")) or None,
    ]


def _print_failed(pull: JsonObject) -> None:
    failed = list(_failed_jobs(pull))
    for name, job in failed[:_MOST_FAILED]:
        print_line("")
        conclusion = read_text(job, "counted") or "?"
        print_line(Text("✗", "red"), f"{name} / {read_text(job, 'job_name') or '?'}: {conclusion}")
        verdict = read_object(job, "verdict")
        if kind := read_text(verdict, "kind"):
            print_line(f"  {kind}: {read_text(verdict, 'sentence') or ''}")
        for test in read_objects(job, "failed_tests")[:5]:
            print_line(f"  {read_text(test, 'name') or '?'}: {read_text(test, 'message') or ''}".rstrip(": "))
        if url := read_text(job, "url"):
            print_line(f"  {url}")
    if len(failed) > _MOST_FAILED:
        print_line(f"and {len(failed) - _MOST_FAILED:,} more; --json has all")


def _failed_jobs(pull: JsonObject) -> Iterator[tuple[str, JsonObject]]:
    for backend in read_objects(pull, "backends"):
        for job in read_objects(backend, "jobs"):
            if read_text(job, "counted") in _BAD:
                yield read_text(backend, "name") or "?", job
