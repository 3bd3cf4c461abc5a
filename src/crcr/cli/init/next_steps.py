"""What is to be done after `crcr init`, in the order in which to do it."""

import os
import re
import shlex
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from crcr.cli.init.previous_files import left_over
from crcr.cli.printing import say
from crcr.join.files import allowlist_entry, registration
from crcr.join.help_links import doctor_command
from crcr.join.manual_steps import needs

if TYPE_CHECKING:
    from crcr.cli.init.gather import Wish

Step = tuple[str, str | None]
"""What to do, and a text to paste."""

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*")
_PATH = re.compile(r"[^/~$`*?\[{][^$`*?\[{]*")
"""A path as it stands, inside the repository as far as its form tells."""


def say_next(wish: "Wish", folder: Path, written: Iterable[str], *, dry_run: bool) -> None:
    say("")
    say("nothing was written; next would be:" if dry_run else "next:")
    for number, (words, text) in enumerate(_steps(wish, folder, written), start=1):
        say(f"{number}. {words}")
        for line in (text or "").splitlines():
            say(f"     {line}")


def _steps(wish: "Wish", folder: Path, written: Iterable[str]) -> Iterator[Step]:
    wanted, told = wish.wanted, wish.relay
    if missing := build_step(wanted.command, folder):
        yield missing, None
    if unused := left_over(folder, written):
        words = "remove what an earlier `crcr init` left, or a dispatch may run twice:"
        yield words, "\n".join(f"- {each}" for each in unused)
    if wish.branch_is_assumed:
        assumed = f"assumed to be {wanted.branch} (else say --branch): git's remote `origin` did not say which it is"
        yield f"commit the files to your default branch, {assumed}", None
    else:
        yield f"commit the files to {wanted.branch}, your default branch", None
    app = told.app_url if told and told.app_url else "ask the operator of the relay for its address"
    yield f"install the relay's GitHub App on {wanted.repository}: {app}", None
    yield f"ask {wanted.upstream} to add this to its allowlist:", allowlist_entry(wanted)
    if made := needs(wanted):
        yield "make these, which no file can bring:", "\n".join(f"- {each}" for each in made)
    if told_operator := registration(wanted):
        yield "send this to the operator, who registers your pipeline:", told_operator
    named = None if told and len(told.upstreams) == 1 else wanted.upstream
    doctor = doctor_command(wanted.relay_url, wanted.repository, named)
    yield f"see what is still missing: {doctor}", None


def build_step(command: str, folder: Path) -> str | None:
    """Return what the command's program still needs, where that is a file of this repository."""
    word = _program(command)
    if word is None or not (folder / word).resolve().is_relative_to(folder.resolve()):
        return None
    if not os.access(folder / word, os.F_OK):
        return f"write {word}: there is none yet, and it is what builds and tests"
    if not os.access(folder / word, os.X_OK):
        return f"make {word} executable: chmod +x {shlex.quote(word)}"
    return None


def _program(command: str) -> str | None:
    """The first word, after variables that are set for it, if it is a path that can be looked up."""
    words = shlex.shlex(command, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        first = next((each for each in words if not _ASSIGNMENT.fullmatch(each)), "")
    except ValueError:  # quotes without an end
        return None
    return first if "/" in first and _PATH.fullmatch(first) else None
