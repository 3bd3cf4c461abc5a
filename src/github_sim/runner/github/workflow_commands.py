"""What a step tells the runner: variables and outputs by files, commands and masks by lines of its output."""

import re
from collections.abc import Iterable
from pathlib import Path

from github_sim.runner.problems import Problem

_COMMAND = re.compile(r"^::(?P<name>[\w-]+)(?: [^:\r\n]*)?::(?P<value>.*)$", re.MULTILINE)
_RESERVED = ("GITHUB_", "RUNNER_")


def read_pairs(path: Path) -> dict[str, str]:
    """`name=value` and `name<<END` lines, as steps write them to $GITHUB_OUTPUT and $GITHUB_ENV."""
    found: dict[str, str] = {}
    lines = iter(path.read_text(errors="replace").splitlines() if path.exists() else [])
    for line in lines:
        if not line.strip():
            continue
        name, sign, rest = _split(line)
        if not sign or not name:
            raise Problem(f"Invalid format {line!r}")
        found[name] = rest if sign == "=" else _until(rest, lines)
    return found


def _split(line: str) -> tuple[str, str, str]:
    """At whichever of `=` and `<<` comes first."""
    places = {sign: line.find(sign) for sign in ("=", "<<") if sign in line}
    if not places:
        return "", "", ""
    sign = min(places, key=lambda each: places[each])
    name, _, rest = line.partition(sign)
    return name, sign, rest


def _until(end: str, lines: Iterable[str]) -> str:
    kept: list[str] = []
    for line in lines:
        if line == end:
            return "\n".join(kept)
        kept.append(line)
    raise Problem(f"Matching delimiter not found {end!r}")


def allowed(pairs: dict[str, str]) -> dict[str, str]:
    """Without what a step may not set for the steps after it."""
    return {name: value for name, value in pairs.items() if not name.upper().startswith(_RESERVED)}


def masks(output: str) -> list[str]:
    found = (each["value"].strip() for each in _COMMAND.finditer(output) if each["name"] == "add-mask")
    return [each for each in found if each]


def masked(output: str, secrets: Iterable[str]) -> str:
    """The log as it is kept: secrets starred out, and the lines that named them gone."""
    kept = _COMMAND.sub(lambda each: "" if each["name"] == "add-mask" else each[0], output)
    for secret in sorted((each for each in secrets if each), key=len, reverse=True):
        kept = kept.replace(secret, "***")
    return kept
