"""The `crcr` command: registers all commands, and turns known errors into messages and exit codes.

Exit codes: 0 success, 1 a problem or something not found, 2 wrong usage or wrong settings.
"""

import os
import sys
from functools import partial
from importlib.util import find_spec
from typing import Annotated, Any

import typer

from crcr import __version__
from crcr.cli.command_line import CommandLine, PlainGroup, describe_usage_error
from crcr.cli.doctor import command as doctor_command
from crcr.cli.failing import command as failing_command
from crcr.cli.init import command as init_command
from crcr.cli.operate import (
    admin_token,
    allowlist,
    bisection,
    deliveries,
    effects,
    levels,
    notices,
    pull,
    repos_and_audit,
    shadow,
    status,
    suspend_pause_dispatch,
)
from crcr.cli.options import OPERATE_PANEL
from crcr.cli.printing import print_error
from crcr.cli.run import backup, check_config, demo, history_backfill, import_history, reconcile, serve
from crcr.cli.setup import command as setup_command
from crcr.errors import BadSettings, CrcrError

_INSTALL = (
    "install the relay with all its packages: `pip install crcr`, or requirements/app.txt (docs/deploy.md)"
)
_REINSTALL = "install crcr again with its packages; see docs/deploy.md"


class ErrorHandlingGroup(PlainGroup):
    """Prints every error in one style: `error:` and a sentence, `hint:` with the next step; no traceback."""

    def main(self, *words: Any, **more: Any) -> Any:
        if not more.pop("standalone_mode", True):
            return super().main(*words, **{**more, "standalone_mode": False})
        try:
            sys.exit(super().main(*words, **{**more, "standalone_mode": False}))
        except typer.Abort:
            print_error("cancelled")
            sys.exit(1)
        except typer.TyperException as error:
            if type(error).__name__ == "NoArgsIsHelpError":
                typer.echo(error.message)
            else:
                print_error(*describe_usage_error(error))
            sys.exit(error.exit_code)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BadSettings as bad:
            print_error("\n".join(bad.problems), bad.hint)
            raise typer.Exit(2) from None
        except CrcrError as error:
            print_error(error.detail, error.hint)
            raise typer.Exit(1) from None
        except ImportError as fault:
            module = (fault.name or "").partition(".")[0]
            if module == "crcr":
                raise  # a bug of ours: show the traceback
            if module and find_spec(module) is None:  # installed with requirements/commands.txt alone
                print_error(
                    f"`crcr {ctx.invoked_subcommand}` needs the module {module}, which is not installed",
                    _INSTALL,
                )
            else:
                print_error(f"a package that crcr needs cannot be imported: {fault}", _REINSTALL)
            raise typer.Exit(1) from None


_WRITES_FOR_OTHERS = frozenset({"init"})
"""Commands whose files other users must be able to read, because they go into a repository."""

app = CommandLine(
    name="crcr",
    cls=ErrorHandlingGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(requested: bool) -> None:
    if requested:
        typer.echo(f"crcr {__version__}")
        raise typer.Exit


@app.callback(
    help="Cross-Repository CI Relay: see what a change breaks downstream before it is merged.",
    epilog="Try it: crcr demo",
)
def root(
    context: typer.Context,
    _: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Make the relay's files (databases, backups, history) readable by their owner only."""
    if context.invoked_subcommand not in _WRITES_FOR_OTHERS:
        context.call_on_close(partial(os.umask, os.umask(0o077)))


for commands in (
    setup_command,
    serve,
    backup,
    demo,
    init_command,
    doctor_command,
    check_config,
    status,
    pull,
    failing_command,
    suspend_pause_dispatch,
    bisection,
    reconcile,
):
    commands.register(app)
for group in (
    allowlist.app,
    deliveries.app,
    effects.app,
    history_backfill.app,
    import_history.app,
    notices.app,
    levels.app,
    shadow.app,
    repos_and_audit.repos,
    repos_and_audit.audit,
    admin_token.app,
):
    app.add_typer(group, rich_help_panel=OPERATE_PANEL)
