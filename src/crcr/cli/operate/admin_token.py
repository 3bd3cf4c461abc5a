"""`crcr admin`: tokens for people and programs that act, or only read, over HTTP."""

import re
import secrets
from hashlib import sha256
from typing import Annotated

import typer

from crcr.cli.options import examples
from crcr.cli.printing import print_line

app = typer.Typer(
    name="admin",
    help="Who may act on the pages and through the JSON API.",
    no_args_is_help=True,
)

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_RANDOM_BYTES = 32


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise typer.BadParameter("a name has 1 to 64 letters, digits and . _ @ -")
    return text


@app.command(epilog=examples("crcr admin token ann", "crcr admin token ci-dashboard --reader"))
def token(
    name: Annotated[
        str, typer.Argument(metavar="NAME", parser=_name, help="Whose it is; stands in the audit log.")
    ],
    reader: Annotated[
        bool, typer.Option("--reader", help="A token to read the pages with, not to act.")
    ] = False,
) -> None:
    """Make a token: print it once, and the line for the settings, which holds only its hash."""
    made = f"crcr_{secrets.token_urlsafe(_RANDOM_BYTES)}"
    variable = "CRCR_HUD_TOKENS" if reader else "CRCR_ADMIN_TOKENS"
    print_line(f"token for {name}, shown only now:")
    print_line("")
    print_line(f"  {made}")
    print_line("")
    print_line("the line for the settings (add it after a comma, if there are others):")
    print_line("")
    print_line(f"  {variable}={name}=sha256:{sha256(made.encode()).hexdigest()}")
