"""`crcr levels`: print the standings, evaluate now, propose an edit of the allowlist, override a demotion."""

import sys
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import (
    ConfigOption,
    JsonOption,
    RepoArgument,
    UpstreamOption,
    examples,
    parse_duration,
    parse_repo_name,
)
from crcr.cli.printing import (
    Cell,
    print_error,
    print_json,
    print_line,
    print_outcome,
    print_table,
    print_warning,
)

if TYPE_CHECKING:
    from crcr.cli.operator_session import OperatorSession
    from crcr.decide.levels.proposal import LevelProposal
    from crcr.decide.levels.standings import BackendLevel, LevelsView
    from crcr.deliver.level_proposals import ProposalOutcome
    from crcr.settings import UpstreamSetting

app = CommandLine(
    name="levels",
    help="Levels by evidence: standings, proposals for the allowlist, overrides of demotions.",
    no_args_is_help=False,
)

EvaluateOption = Annotated[bool, typer.Option("--evaluate", help="Evaluate every backend first.")]
DeviceOption = Annotated[
    list[str] | None,
    typer.Option(
        "--device",
        metavar="OWNER/REPO=NAME",
        help="The device of a backend that moves to L3. Default: the name of its repository.",
    ),
]
OutputOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="Write the edited allowlist to this file."),
]
OpenOption = Annotated[
    bool,
    typer.Option(
        "--open",
        help="Open the pull request through the App, once per proposal. It needs Contents: write and Pull requests: write.",
    ),
]
UntilOption = Annotated[
    timedelta | None,
    typer.Option("--for", metavar="DURATION", parser=parse_duration, help="How long, such as 14d."),
]
BecauseOption = Annotated[
    str | None, typer.Option("--because", metavar="REASON", help="Why, for the page and the audit log.")
]
EndOption = Annotated[bool, typer.Option("--end", help="End the override now.")]


@app.callback(
    invoke_without_command=True,
    epilog=examples("crcr levels", "crcr levels --evaluate", "crcr levels --json", "crcr levels propose"),
)
def levels(
    context: typer.Context,
    evaluate: EvaluateOption = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Print each backend's level, standing and missing criteria, as of its last evaluation."""
    if context.invoked_subcommand is not None:
        return
    from crcr.cli.operator_session import run_in_session

    async def act(session: "OperatorSession") -> "LevelsView":
        chosen = session.upstream_to_read(upstream)
        if evaluate:
            await session.levels.evaluate_now(chosen, session.now())
        return await session.open_pages().levels(chosen, session.now())

    view = run_in_session(config, act)
    if as_json:
        print_json([_fields(backend) for backend in view.backends])
        return
    print_table(
        ("backend", "level", "standing", "since", "proposed", "~lacks for L3"), map(_cells, view.backends)
    )
    if view.evaluated_at is None:
        print_line("nothing was evaluated yet: a relay does it once a day, `crcr levels --evaluate` now")


@app.command(
    epilog=examples(
        "crcr levels propose",
        "crcr levels propose --device org/backend=npu --output allowlist.yml",
        "crcr levels propose --open",
    )
)
def propose(
    device: DeviceOption = None,
    output: OutputOption = None,
    opens: OpenOption = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Propose the allowlist that the standings lead to: its patch, and the text of the pull request.

    With --open, the exit code is 1 when the pull request could not be opened, and 2 when the allowlist is a file. The patch is
    printed then.
    """
    from crcr.cli.operator_session import run_in_session

    devices = dict(map(_parse_device, device or ()))

    async def act(session: "OperatorSession") -> "_Proposed | None":
        chosen = session.upstream_to_change(upstream) if opens else session.upstream_to_read(upstream)
        setting = next(one for one in session.settings.upstreams if one.name == chosen)
        return await _propose(session, setting, devices, opens=opens)

    proposed = run_in_session(config, act)
    if proposed is None:
        print_outcome("no backend should move", {"moves": []}, as_json=as_json)
        return
    if output is not None:
        output.write_text(proposed.proposal.text)
    if as_json:
        print_json(_proposal_fields(proposed))
    else:
        _print_proposed(proposed)
    _exit_unless_opened(proposed, opens=opens)


@app.command(
    epilog=examples(
        'crcr levels override org/backend --for 14d --because "new machines arrive on Monday"',
        "crcr levels override org/backend --end",
    )
)
def override(
    repository: RepoArgument,
    duration: UntilOption = None,
    because: BecauseOption = None,
    end: EndOption = False,
    as_json: JsonOption = False,
    config: ConfigOption = None,
    upstream: UpstreamOption = None,
) -> None:
    """Switch a backend's demotion off for a while, or on again; audited. Its standing is evaluated as before."""
    from crcr.cli.operator_session import run_in_session
    from crcr.decide.levels.standings import MOST_OVERRIDE, LevelOverride

    if end is (duration is not None or because is not None) or (not end and not (duration and because)):
        raise typer.BadParameter("give --for and --because, or --end")
    if duration is not None and duration > MOST_OVERRIDE:
        raise typer.BadParameter(f"at most {MOST_OVERRIDE.days} days")

    async def act(session: "OperatorSession") -> None:
        now = session.now()
        made = (
            LevelOverride(who=session.who, reason=because[:500], until=now + duration)
            if duration and because
            else None
        )
        chosen = session.upstream_to_change(upstream)
        await session.levels.set_override(chosen, repository, made, who=session.who, now=now)

    run_in_session(config, act)
    state = "in force again" if end else "switched off"
    print_outcome(
        f"the demotion of {repository} is {state}",
        {"repository": str(repository), "overridden": not end},
        as_json=as_json,
    )


def _parse_device(text: str) -> tuple[str, str]:
    name, _, device = text.partition("=")
    if not device:
        raise typer.BadParameter(f"{text!r} is not OWNER/REPO=NAME")
    return parse_repo_name(name).key, device


@dataclass(frozen=True, slots=True)
class _Proposed:
    setting: "UpstreamSetting"
    proposal: "LevelProposal"
    outcome: "ProposalOutcome | None" = None
    """Of `--open`; None without it, and for an allowlist in a file."""


async def _propose(
    session: "OperatorSession", setting: "UpstreamSetting", devices: dict[str, str], *, opens: bool
) -> _Proposed | None:
    from crcr.decide.levels.proposal import propose_levels
    from crcr.receive.allowlist_yaml import read_allowlist

    view = await session.open_pages().levels(setting.name, session.now())
    text = await session.views.allowlist_text(setting.name)
    proposal = propose_levels(
        text,
        view.backends,
        lambda content: read_allowlist(content).allowlist,
        devices=devices,
        path=_file_name(setting),
    )
    if proposal is None:
        return None
    outcome = await _open_pull_request(session, setting, proposal, text) if opens else None
    return _Proposed(setting, proposal, outcome)


async def _open_pull_request(
    session: "OperatorSession", setting: "UpstreamSetting", proposal: "LevelProposal", base_text: str
) -> "ProposalOutcome | None":
    from crcr.clock import SystemClock
    from crcr.deliver.level_proposals import ProposalOpener, ProposalRequest
    from crcr.github.http.connections import open_http
    from crcr.settings import AllowlistFile
    from crcr.wiring.core import build_github_client

    source = setting.allowlist
    if isinstance(source, AllowlistFile):
        return None
    request = ProposalRequest(
        upstream=setting.name,
        file=source.location,
        web_url=source.web,
        base_text=base_text,
        proposal=proposal,
        who=session.who,
    )
    async with open_http(session.settings.github_api_url) as http:
        github = build_github_client(session.settings, http, SystemClock())
        return await ProposalOpener(session.levels, github).open(request, session.now())


def _file_name(setting: "UpstreamSetting") -> str:
    from crcr.settings import AllowlistFile

    source = setting.allowlist
    return source.path.name if isinstance(source, AllowlistFile) else source.location.path


def _edit_link(setting: "UpstreamSetting") -> str | None:
    from crcr.settings import AllowlistFile

    if isinstance(setting.allowlist, AllowlistFile):
        return None
    file = setting.allowlist.location
    return f"{setting.allowlist.web}/{file.repository}/edit/{file.ref}/{file.path}"


def _print_proposed(proposed: _Proposed) -> None:
    proposal, outcome = proposed.proposal, proposed.outcome
    for move in proposal.moves:
        if not move.edited:
            print_warning(
                f"{move.backend} must be moved to {move.after.name} by hand: its form is not edited"
            )
    print_line(proposal.title)
    if outcome is not None and outcome.url is not None:
        print_line(f"{_OUTCOMES[outcome.state]} {outcome.url}")
        return
    print_line("")
    for line in proposal.body.splitlines():
        print_line(line)
    sys.stdout.write(proposal.diff)
    link = _edit_link(proposed.setting)
    if link is not None:
        print_line(f"edit it at {link}")


_OUTCOMES = {"opened": "opened", "found": "it was opened before:"}


def _exit_unless_opened(proposed: _Proposed, *, opens: bool) -> None:
    outcome = proposed.outcome
    if opens and outcome is None:
        print_error("--open works for an allowlist on GitHub; this one is a file", "apply the patch to it")
        raise typer.Exit(2)
    if outcome is not None and outcome.url is None:
        print_error(f"no pull request was opened: {outcome.reason}", outcome.hint)
        raise typer.Exit(1)


def _cells(backend: "BackendLevel") -> list[Cell]:
    proposed = backend.proposed_level.name if backend.proposed_level else None
    state = backend.demotion or backend.standing
    return [
        str(backend.name),
        backend.level.name,
        state.value if state else None,
        f"{backend.since:%Y-%m-%d}" if backend.since else None,
        proposed,
        "; ".join(backend.lacking) or None,
    ]


def _fields(backend: "BackendLevel") -> dict[str, object]:
    import msgspec

    proposed = backend.proposed_level
    return {
        **msgspec.to_builtins(backend),
        "name": str(backend.name),
        "level": backend.level.name,
        "eligible": backend.eligible,
        "proposed_level": proposed.name if proposed else None,
        "lacking": backend.lacking,
        "summary": backend.summary,
    }


def _proposal_fields(proposed: _Proposed) -> dict[str, object]:
    proposal, outcome = proposed.proposal, proposed.outcome
    moves = [
        {
            "backend": str(move.backend),
            "before": move.before.name,
            "after": move.after.name,
            "device": move.device,
            "edited": move.edited,
            "evidence": move.evidence,
        }
        for move in proposal.moves
    ]
    return {
        "moves": moves,
        "title": proposal.title,
        "body": proposal.body,
        "diff": proposal.diff,
        "text": proposal.text,
        "edit_url": _edit_link(proposed.setting),
        "pull_request": asdict(outcome) if outcome is not None else None,
    }
