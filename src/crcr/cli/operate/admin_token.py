"""`crcr admin token`: creates tokens for administrators and readers of the pages and the JSON API."""

import re
import secrets
from hashlib import sha256
from typing import Annotated

import typer

from crcr.cli.command_line import CommandLine
from crcr.cli.options import JsonOption, examples
from crcr.cli.printing import print_json, print_line

app = CommandLine(
    name="admin",
    help="Access to the pages and the JSON API.",
    no_args_is_help=True,
)

_NAME = re.compile(r"[A-Za-z0-9._@-]{1,64}")
_RANDOM_BYTES = 32


def _name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise typer.BadParameter("a name is 1 to 64 letters, digits and . _ @ -")
    return text


@app.command(epilog=examples("crcr admin token ann", "crcr admin token ci-dashboard --reader"))
def token(
    name: Annotated[
        str, typer.Argument(metavar="NAME", parser=_name, help="Owner of the token, for the audit log.")
    ],
    reader: Annotated[bool, typer.Option("--reader", help="Read-only token.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Create a token. Prints it once, with the line for the settings, which holds only its hash."""
    token_text = f"crcr_{secrets.token_urlsafe(_RANDOM_BYTES)}"
    variable = "CRCR_HUD_TOKENS" if reader else "CRCR_ADMIN_TOKENS"
    line = f"{name}=sha256:{sha256(token_text.encode()).hexdigest()}"
    if as_json:
        print_json({"name": name, "token": token_text, "variable": variable, "value": line})
        return
    print_line(f"token for {name}, shown only now:")
    print_line("")
    print_line(f"  {token_text}")
    print_line("")
    print_line("line for the settings (after a comma, if there are other tokens):")
    print_line("")
    print_line(f"  {variable}={line}")
