"""Prints the next steps after `crcr init`, in order."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from crcr.cli.init.previous_files import find_unused_files
from crcr.cli.printing import print_line
from crcr.join.files import allowlist_entry, registration
from crcr.join.help_links import doctor_command
from crcr.join.manual_steps import manual_steps

if TYPE_CHECKING:
    from crcr.cli.init.gather import GatheredRequest

Step = tuple[str, str | None]
"""What to do, and a text to paste."""

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_PATH = re.compile(r"[^/~$`*?\[{][^$`*?\[{]*")
"""A literal relative path, without expansions."""


def print_next_steps(
    gathered: "GatheredRequest", folder: Path, written: Iterable[str], *, dry_run: bool
) -> None:
    print_line("")
    print_line("nothing was written; next steps would be:" if dry_run else "next:")
    for number, (heading, text) in enumerate(next_steps(gathered, folder, written), start=1):
        print_line(f"{number}. {heading}")
        for line in (text or "").splitlines():
            print_line(f"     {line}")


def next_steps(gathered: "GatheredRequest", folder: Path, written: Iterable[str]) -> Iterator[Step]:
    request, facts = gathered.request, gathered.relay
    if missing := build_step(request.command, folder):
        yield missing, None
    if unused := find_unused_files(folder, written):
        heading = "remove the files of an earlier `crcr init`, or a dispatch may run twice:"
        yield heading, "\n".join(f"- {line}" for line in unused)
    if gathered.branch_is_assumed:
        assumed = f"assumed to be {request.branch} because the remote `origin` did not answer (otherwise pass --branch)"
        yield f"commit the files to your default branch, {assumed}", None
    else:
        yield f"commit the files to {request.branch}, your default branch", None
    app = facts.app_url if facts and facts.app_url else "ask the relay's operator for the link"
    yield f"install the relay's GitHub App on {request.repository}: {app}", None
    yield f"ask {request.upstream} to add this to its allowlist:", allowlist_entry(request)
    if steps := manual_steps(request):
        yield "create these by hand:", "\n".join(f"- {line}" for line in steps)
    if registration_text := registration(request):
        yield "send this to the operator to register your pipeline:", registration_text
    upstream = None if facts and len(facts.upstreams) == 1 else request.upstream
    doctor = doctor_command(request.relay_url, request.repository, upstream)
    yield f"check the set-up: {doctor}", None


def build_step(command: str, folder: Path) -> str | None:
    """Return what to do about the command's program, if it is a file of this repository that cannot run yet."""
    word = _find_program(command)
    if word is None or not (folder / word).resolve().is_relative_to(folder.resolve()):
        return None
    if not os.access(folder / word, os.F_OK):
        return f"write {word}: the build command does not exist yet"
    if not os.access(folder / word, os.X_OK):
        return f"make {word} executable: chmod +x {shlex.quote(word)}"
    return None


def _find_program(command: str) -> str | None:
    """Return the first word after variable assignments, if it is a plain path."""
    tokens = shlex.shlex(command, posix=True, punctuation_chars=True)
    tokens.whitespace_split = True
    try:
        first = next((word for word in tokens if not _ASSIGNMENT.fullmatch(word)), "")
    except ValueError:  # quotes without an end
        return None
    return first if "/" in first and _PATH.fullmatch(first) else None
