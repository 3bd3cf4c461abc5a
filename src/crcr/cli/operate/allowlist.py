"""`crcr allowlist`: check a file, compare two, read the source now, show the version in force."""

import asyncio
import io
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import ConfigOption, JsonOption, UpstreamOption, examples, read_settings
from crcr.cli.printing import (
    colour_state,
    console,
    escape_unprintable,
    format_age,
    print_error,
    print_json,
    print_line,
    print_table,
    print_warning,
)

if TYPE_CHECKING:
    from crcr.decide.allowlist.diff import AllowlistChange
    from crcr.decide.allowlist.entries import Allowlist, AllowlistEntry, AllowlistProblem, CheckedAllowlist
    from crcr.decide.model import RepoName
    from crcr.decide.views.overview import AllowlistState
    from crcr.settings import Settings

app = CommandLine(
    name="allowlist",
    help="Check, compare, refresh and show allowlists.",
    no_args_is_help=True,
)

_KINDS = {
    "EntryAdded": "added",
    "EntryRemoved": "removed",
    "LevelChanged": "level_moved",
    "OptionChanged": "option_changed",
}

RelayOption = Annotated[
    str | None,
    typer.Option("--relay", metavar="URL", help="Also check the App's permissions with this relay."),
]
FileArgument = Annotated[str, typer.Argument(metavar="FILE", help="A YAML file, or - for standard input.")]


@app.command(
    epilog=examples(
        "crcr allowlist check allowlist.yml",
        "git show HEAD:a.yml | crcr allowlist check -",
        "crcr allowlist check allowlist.yml --relay https://relay.example.org",
    )
)
def check(file: FileArgument, relay: RelayOption = None, as_json: JsonOption = False) -> None:
    """Print all problems of a file with line numbers; the exit code is 1 if there is an error.

    Needs no settings and no database: made for the upstream's own CI. With --relay, also reports L4 entries that must
    name their jobs because the App cannot read Actions there.
    """
    checked = _read(file)
    if relay is not None and checked.allowlist is not None:
        checked = replace(checked, problems=(*checked.problems, *_ask_relay(relay, checked.allowlist)))
    if as_json:
        print_json(
            {
                "ok": checked.allowlist is not None,
                "levels": _levels(checked.allowlist),
                "problems": checked.problems,
            }
        )
    else:
        _print_problems(file, checked.problems)
        if checked.allowlist is not None:
            print_line(f"{'<stdin>' if file == '-' else file} is valid: {_count_by_level(checked.allowlist)}")
    if checked.allowlist is None:
        raise typer.Exit(1)


@app.command(
    epilog=examples(
        "crcr allowlist diff old.yml new.yml", "git show main:a.yml | crcr allowlist diff - a.yml"
    )
)
def diff(
    old: Annotated[str, typer.Argument(metavar="OLD", help="The old file, or - for standard input.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="The new file.")],
    as_json: JsonOption = False,
) -> None:
    """Print the changes between two allowlists; order and comments are ignored."""
    from crcr.decide.allowlist.diff import diff_allowlists

    before, after = _read_good(old), _read_good(new)
    changes = diff_allowlists(before, after)
    if as_json:
        print_json([_change(change) for change in changes])
        return
    for change in changes:
        print_line(change.text)
    if not changes:
        print_line("no changes")


@app.command(epilog=examples("crcr allowlist refresh", "crcr allowlist refresh --upstream pytorch/pytorch"))
def refresh(
    config: ConfigOption = None, upstream: UpstreamOption = None, as_json: JsonOption = False
) -> None:
    """Read the allowlist's source now and put it in force; audited.

    An invalid source changes nothing; the exit code is then 1.
    """
    refreshed = _refresh_now(config, upstream)
    change = f"version {refreshed.version} is in force" if refreshed.version else "unchanged"
    if as_json:
        print_json(
            {"upstream": str(refreshed.upstream), "version": refreshed.version, "state": refreshed.state}
        )
    else:
        _print_bad(refreshed.state)
    if refreshed.state.newest_is_bad:
        raise typer.Exit(1)
    if not as_json:
        print_line(f"{refreshed.upstream}: {change}; {_count_by_level(refreshed.allowlist)}")


@app.command(epilog=examples("crcr allowlist show", "crcr allowlist show --json"))
def show(config: ConfigOption = None, upstream: UpstreamOption = None, as_json: JsonOption = False) -> None:
    """Show the allowlist in force, and the problems of a newer version that is not."""
    from crcr.cli.operator_session import run_in_session

    state, allowlist = run_in_session(
        config, lambda session: session.views.allowlist(session.upstream_to_read(upstream))
    )
    if as_json:
        print_json({"state": state, "backends": [_entry(entry) for entry in allowlist.entries]})
        return
    if state.version is not None and state.read_at is not None:
        print_line(
            f"version {state.version} from {state.source}, read {format_age(state.read_at)}; {_count_by_level(allowlist)}"
        )
        columns = ["level", "repository", "device", "on-calls", "events", "~hardware", "visibility"]
        entries = [_entry(entry) for entry in allowlist.entries]
        print_table(columns, ([_format_cell_value(value) for value in entry.values()] for entry in entries))
    _print_bad(state)
    if state.version is None:
        print_error("no valid allowlist was read yet", "run `crcr allowlist refresh`")
        raise typer.Exit(1)


def _ask_relay(url: str, allowlist: "Allowlist") -> "tuple[AllowlistProblem, ...]":
    """Return warnings for L4 entries that the gate cannot judge with the App's permissions."""
    from crcr.cli.doctor.downstream.relay_api import (
        DownstreamRequest,
        RelayClient,
        json_object,
        parse_relay_url,
    )
    from crcr.cli.http_client import HttpError
    from crcr.decide.allowlist.check import check_actions

    def reads_actions(repository: "RepoName") -> bool | None:
        relay = RelayClient(DownstreamRequest(parse_relay_url(url), repository))
        try:
            answer = json_object(relay.read(f"setup/{repository}")).get("reads_actions")
        except HttpError as fault:
            raise typer.BadParameter(f"the relay at {url} does not answer: {fault}") from None
        return answer if isinstance(answer, bool) else None

    return tuple(check_actions(allowlist, reads_actions))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Refreshed:
    upstream: "RepoName"
    version: int | None
    """The new version; None when the source has not changed."""
    state: "AllowlistState"
    allowlist: "Allowlist"


def _refresh_now(config: Path | None, chosen: "RepoName | None") -> _Refreshed:
    from crcr import log as logs

    settings = read_settings(config)
    logs.configure("console", "error", io.StringIO())  # the command prints the result itself
    return asyncio.run(_refresh(settings, chosen))


async def _refresh(settings: "Settings", chosen: "RepoName | None") -> _Refreshed:
    from crcr.cli.operator_session import choose_upstream_to_change, user_name
    from crcr.record.views.logs.operator import OperatorViews
    from crcr.wiring.services import build

    services = build(settings)
    try:
        upstream = choose_upstream_to_change(services.upstreams, chosen)
        read = await services.refreshers[upstream.key].refresh()
        version = read.version if read else None
        await services.acts.note_refresh(upstream, who=user_name(), now=services.clock.now(), version=version)
        state, allowlist = await OperatorViews(services.database, services.allowlists).allowlist(upstream)
    finally:
        await services.close()
    return _Refreshed(upstream=upstream, version=version, state=state, allowlist=allowlist)


def _read(file: str) -> "CheckedAllowlist":
    from crcr.decide.allowlist.entries import AllowlistProblem, CheckedAllowlist, decode_text
    from crcr.receive.allowlist_yaml import read_allowlist

    try:
        raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except OSError as fault:
        raise typer.BadParameter(f"{file} cannot be read: {fault.strerror}") from None
    text = decode_text(raw)
    return CheckedAllowlist(None, (text,)) if isinstance(text, AllowlistProblem) else read_allowlist(text)


def _read_good(file: str) -> "Allowlist":
    checked = _read(file)
    if checked.allowlist is None:
        _print_problems(file, checked.problems, stderr=True)
        raise typer.Exit(1)
    return checked.allowlist


def _print_problems(file: str, problems: "Iterable[AllowlistProblem]", *, stderr: bool = False) -> None:
    """Print in the `file:line:` form that editors and CI services link."""
    out, name = console(stderr=stderr), "<stdin>" if file == "-" else escape_unprintable(file)
    for problem in problems:
        out.print(
            f"{name}:{problem.line}:",
            colour_state(problem.severity),
            escape_unprintable(problem.message),
            soft_wrap=True,
        )
        if problem.hint:
            out.print(f"    {escape_unprintable(problem.hint)}", style="dim", soft_wrap=True)


def _print_bad(state: "AllowlistState") -> None:
    if state.newest_is_bad:
        _print_problems("the newest version", state.problems, stderr=True)
        in_force = "none is in force" if state.version is None else f"version {state.version} stays in force"
        print_warning(f"the newest version is invalid; {in_force}")


def _levels(allowlist: "Allowlist | None") -> dict[str, int]:
    return dict(Counter(entry.level.name for entry in allowlist.entries)) if allowlist else {}


def _count_by_level(allowlist: "Allowlist") -> str:
    total = len(allowlist.entries)
    counts = ", ".join(f"{number:,} at {level}" for level, number in sorted(_levels(allowlist).items()))
    return f"{total:,} {'repository' if total == 1 else 'repositories'}" + (f" ({counts})" if counts else "")


def _change(change: "AllowlistChange") -> dict[str, str]:
    from crcr.decide.allowlist.diff import EntryAdded, EntryRemoved

    name = change.entry.name if isinstance(change, EntryAdded | EntryRemoved) else change.name
    return {"change": _KINDS[type(change).__name__], "repository": str(name), "text": change.text}


def _entry(entry: "AllowlistEntry") -> dict[str, str | list[str] | None]:
    return {
        "level": entry.level.name,
        "repository": str(entry.name),
        "device": entry.device,
        "oncalls": list(entry.oncalls),
        "events": sorted(entry.events),
        "hardware": entry.hardware,
        "visibility": entry.visibility.value,
    }


def _format_cell_value(value: str | list[str] | None) -> str | None:
    return (", ".join(value) or None) if isinstance(value, list) else value
