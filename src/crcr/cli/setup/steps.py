"""The steps of `crcr setup`, in order. Each looks first whether it is done already, so that all can be repeated."""

import os
import sys
import webbrowser
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import typer

from crcr.cli.doctor.output import FindingSection, arrow, format_finding, print_sections
from crcr.cli.printing import console, escape_unprintable, print_line, print_warning
from crcr.cli.setup.files import (
    SettingsContent,
    SetupFiles,
    keep_app,
    keep_code,
    open_secrets,
    read_unfinished,
    set_aside,
    write_allowlist,
    write_settings,
)
from crcr.cli.setup.first_run import AppAtGitHub, local_address, running_relay, serve_command
from crcr.cli.setup.new_app import NewApp, convert_code, find_ids, install_url
from crcr.cli.setup.redirect_server import RedirectServer
from crcr.decide.github.repository_setup import app_manifest
from crcr.decide.model import RepoName
from crcr.errors import CrcrError, NotPossible
from crcr.join.findings.finding import SetupFinding, ok, problem
from crcr.settings import Settings, load_settings

_AGAIN = "run the same command again: it continues where it stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class SetupRequest:
    """What the command line says."""

    files: SetupFiles
    content: SettingsContent | None
    """None where the settings exist already."""
    requested: Mapping[str, str | None]
    """What was given on the command line and must agree with existing settings."""
    organization: str | None
    app_name: str
    public_app: bool
    given_app: NewApp | None
    redirect_port: int
    opens_browser: bool
    timeout_s: float
    replaces: bool
    serves: bool
    as_json: bool


@dataclass(slots=True)
class StepLog:
    """Prints each step when it is done; as JSON all of them at the end."""

    as_json: bool
    findings: list[SetupFinding] = field(default_factory=list)

    def add(self, finding: SetupFinding) -> None:
        self.findings.append(finding)
        if self.as_json:
            return
        out = console()
        out.print(format_finding(finding), soft_wrap=True)
        if finding.hint:
            out.print(f"    {arrow()} {escape_unprintable(finding.hint)}", soft_wrap=True)

    def tell(self, text: str) -> None:
        """Tell the person who must do something; with JSON on stderr."""
        if self.as_json:
            console(stderr=True).print(escape_unprintable(text), soft_wrap=True)
        else:
            print_line(text)


def has_settings(files: SetupFiles, environ: Mapping[str, str]) -> bool:
    """Whether an App is configured already, so that none is to be created."""
    if files.config.exists():
        return True
    left = read_unfinished(files)
    if files.existing() and left.app is None:
        names = ", ".join(map(str, files.existing()))
        raise NotPossible(
            f"{names} exists already, but {files.config} does not", hint="move it away, or pass --replace"
        )
    return bool(environ.get("CRCR_GITHUB_APP_ID", "").strip())


def run_setup(request: SetupRequest, environ: Mapping[str, str]) -> None:
    steps = StepLog(request.as_json)
    files = request.files
    with ExitStack() as resources:
        server = None
        if request.content is not None:
            open_secrets(files)
            if request.replaces and (kept := set_aside(files)):
                steps.add(ok("replaced", f"The earlier files are kept as {', '.join(map(str, kept))}."))
            app, server = _obtain_app(request, request.content, steps, resources)
            _write_files(request, request.content, app, steps)
        else:
            _complete_allowlists(files, steps)
            steps.add(ok("app", f"Already done: {files.config} names the App."))
        config = files.config if files.config.exists() else None
        settings = load_settings(config=config, environ=environ, cwd=Path.cwd())
        _require_agreement(request, settings)
        started = resources.enter_context(running_relay(settings, config))
        relay = "runs for the time of this set-up" if started else "was already running"
        steps.add(ok("relay", f"The relay {relay}, at {local_address(settings)}."))
        _install(request, settings, server, steps)
        steps.add(AppAtGitHub(settings).try_webhook())
        _print_result(request, settings, steps, environ)
    if request.serves and started:
        _continue_as_relay(config)


def _require_agreement(request: SetupRequest, settings: Settings) -> None:
    """Refuse options that existing settings contradict, instead of ignoring them."""
    names = {upstream.name.key: str(upstream.name) for upstream in settings.upstreams}
    upstream, public_url = request.requested["upstream"], request.requested["public_url"]
    hint = f"correct {request.files.config}, or pass --replace to begin anew"
    if upstream is not None and upstream.lower() not in names:
        raise NotPossible(f"the settings are for {', '.join(names.values())}, not for {upstream}", hint=hint)
    if public_url is not None and public_url != settings.public_url.rstrip("/"):
        raise NotPossible(
            f"the settings have the public address {settings.public_url}, not {public_url}", hint=hint
        )


def _obtain_app(
    request: SetupRequest, content: SettingsContent, steps: StepLog, resources: ExitStack
) -> tuple[NewApp, RedirectServer | None]:
    left = read_unfinished(request.files)
    if request.given_app is not None:
        return request.given_app, None
    if left.app is not None:
        steps.add(ok("app", "Already done: an interrupted set-up had created the App."))
        return left.app, None
    server = None
    code = left.code
    if code is None:
        server = resources.enter_context(_open_server(request, content))
        code = _wait_for_code(request, server, steps)
        keep_code(request.files, code)
    try:
        app = convert_code(code, content.github, request.organization)
    except NotPossible:
        request.files.unfinished.unlink(missing_ok=True)
        raise
    keep_app(request.files, app)
    steps.add(ok("app", f"GitHub created the App {app.app_id}: {app.page}"))
    return app, server


def _open_server(request: SetupRequest, content: SettingsContent) -> RedirectServer:
    build = partial(_manifest, request, content)
    return RedirectServer(
        content.github.form(request.organization), request.redirect_port, build_manifest=build
    )


def _manifest(request: SetupRequest, content: SettingsContent, redirect_url: str) -> dict[str, object]:
    return app_manifest(
        name=request.app_name,
        public_url=content.public_url,
        redirect_url=redirect_url,
        public=request.public_app,
    )


def _wait_for_code(request: SetupRequest, server: RedirectServer, steps: StepLog) -> str:
    opened = request.opens_browser and _open_browser(server.address)
    steps.tell(
        f"{'Your browser opens' if opened else 'Open'} this page; press its button, and confirm at GitHub:"
    )
    steps.tell(f"  {server.address}")
    if not opened:
        steps.tell("From another machine, forward the port first and open the page there:")
        steps.tell(f"  ssh -L {server.port}:127.0.0.1:{server.port} USER@THIS-MACHINE")
    code = server.wait_for_code(request.timeout_s)
    for refused in server.refused:
        print_warning(f"the set-up page refused {refused}")
    if code is None:
        raise NotPossible(
            "nobody created the App in time; nothing was changed", hint="run `crcr setup` again"
        )
    return code


def _open_browser(address: str) -> bool:
    """Open the page in a window; a text browser would take the terminal over."""
    has_screen = sys.platform in {"darwin", "win32"} or any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY")
    )
    with suppress(webbrowser.Error, OSError):
        return has_screen and webbrowser.open(address)
    return False


def _write_files(request: SetupRequest, content: SettingsContent, app: NewApp, steps: StepLog) -> None:
    files = request.files
    allowlist = write_allowlist(files, content.allowlist, content.upstream)
    written = write_settings(files, app, content)
    steps.add(ok("files", f"Written, for this user only: {', '.join(map(str, written))}."))
    if allowlist is not None:
        steps.add(ok("allowlist", f"Written: {allowlist}, without downstreams yet."))


def _complete_allowlists(files: SetupFiles, steps: StepLog) -> None:
    """Write an allowlist that the settings name and that does not exist."""
    tables = files.content().get("upstream", ())
    for table in tables if isinstance(tables, list) else ():
        match table:
            case {"name": str(name), "allowlist": str(place)}:
                if written := write_allowlist(files, place, name):
                    steps.add(ok("allowlist", f"Written: {written}, without downstreams yet."))


def _install(
    request: SetupRequest, settings: Settings, server: RedirectServer | None, steps: StepLog
) -> None:
    github = AppAtGitHub(settings)
    try:
        for upstream in settings.upstreams:
            if github.is_installed(upstream.name):
                steps.add(ok("installation", f"Already done: the App is installed on {upstream.name}."))
            else:
                _wait_for_installation(request, github, upstream.name, server, steps)
                server = None
    except CrcrError as fault:
        steps.add(problem("installation", f"The App cannot be read at GitHub: {fault.detail}", _AGAIN))
    finally:
        if server is not None:
            server.refuse("The App was created.")


def _wait_for_installation(
    request: SetupRequest, github: AppAtGitHub, name: RepoName, server: RedirectServer | None, steps: StepLog
) -> None:
    content = request.content
    ids = find_ids(str(name), content.github) if content is not None else None
    where = install_url(github.read_page(), ids)
    if server is not None:
        server.finish(where)
    steps.tell(f"Install the App on {name}, and later on its downstreams:")
    steps.tell(f"  {where}")
    if github.wait_for_installation(name, request.timeout_s):
        steps.add(ok("installation", f"The App is installed on {name}."))
    else:
        steps.add(problem("installation", f"The App is not installed on {name}.", f"install it at {where}"))


def _print_result(
    request: SetupRequest, settings: Settings, steps: StepLog, environ: Mapping[str, str]
) -> None:
    webhook = f"{settings.public_url.rstrip('/')}/github/webhook"
    config = request.files.config
    if not request.as_json:
        print_line("")
        for line in _next_lines(settings, webhook, config):
            print_line(line)
    try:
        print_sections(
            _sections(steps, config, environ, as_json=request.as_json),
            as_json=request.as_json,
            config=str(config),
            webhook_url=webhook,
            forward_to=local_address(settings),
        )
    except typer.Exit:
        if not request.serves:
            raise


def _next_lines(settings: Settings, webhook: str, config: Path) -> Iterator[str]:
    yield f"Webhooks:  {webhook}"
    yield "           GitHub must reach this address. Let a reverse proxy with TLS, or a tunnel, forward"
    yield f"           {settings.public_url} to {local_address(settings)}; docs/deploy.md has examples."
    yield f"Run it:    crcr serve --config {config}"
    yield f"Pages:     {settings.public_url.rstrip('/')}/crcr"


def _sections(
    steps: StepLog, config: Path, environ: Mapping[str, str], *, as_json: bool
) -> Iterator[FindingSection]:
    from crcr.cli.doctor.relay.examine import examine_relay

    if as_json:
        yield FindingSection("Set-up", tuple(steps.findings))
    yield from examine_relay(config if config.exists() else None, None, environ, shown=not as_json)


def _continue_as_relay(config: Path | None) -> None:
    """Become `crcr serve`: the same process, so that a supervisor or Ctrl-C ends it as usual."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = serve_command(config)
    os.execv(command[0], command)  # noqa: S606
