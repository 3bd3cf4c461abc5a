"""The files of `deploy/`, and the container file read into its instructions."""

import json
import re
from functools import cache

from support.paths import ROOT

DEPLOY = ROOT / "deploy"
CONTAINER = DEPLOY / "container" / "Containerfile"

STOP_S = 45
"""How long a process may take to stop, beside its `CRCR_DRAIN_S`; docs/deploy.md says so."""
DRAIN_ROOM_S = 30
"""The longest `CRCR_DRAIN_S` that what we ship leaves room for."""

Instruction = tuple[str, str]


@cache
def container_stages() -> list[list[Instruction]]:
    """The instructions of each build stage in order; the first is FROM."""
    text = re.sub(r"^#.*\n", "", CONTAINER.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    found: list[list[Instruction]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            found.append([])
        if found:
            found[-1].append((word, rest.strip()))
    return found


def instructions(word: str, stage: int = -1) -> list[str]:
    return [rest for each, rest in container_stages()[stage] if each == word]


def last_instruction(word: str) -> str:
    """The last instruction of this kind, which replaces the earlier ones."""
    return instructions(word)[-1]


def json_instruction(word: str) -> list[str]:
    """The arguments of an instruction in exec form, a JSON list."""
    words = json.loads(last_instruction(word)[last_instruction(word).index("[") :])
    assert isinstance(words, list)
    return words
