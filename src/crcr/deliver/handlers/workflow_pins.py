"""Which relays the files of a CI pin for the reporter, and which of its steps report without any.

In a workflow of GitHub each step that reports is looked at by itself, with what its job and the workflow give it. Files of
other CIs are looked at as a whole.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from crcr.decide.github.repository_setup import Pinning, read_pins
from crcr.deliver.handlers.yaml_tree import NotYaml, TooMuch, Tree, compose, every_pair

MOST_PINS = 20
MOST_CHARS = 200
_VARIABLE = "CRCR_RELAYS"
_INPUT = "relays"
_FLAG = re.compile(r"""--relays[ =]+(?:"([^"]*)"|'([^']*)')""")
_ANY_FLAG = re.compile(r"--relays\b")
_ASSIGNED = re.compile(r"\bCRCR_RELAYS(?:=|<<)")
"""In a script: for the command behind it, for the script, or for the job's later steps by way of GITHUB_ENV."""
_SCRIPT = re.compile(r"""(?:^|[\s/"'])(?:report|bridge)\.py\b""", re.MULTILINE)
_OURS = re.compile(r"(?i)crcr")
_ACTION = re.compile(r"(?i)crcr|cross-repo")
_OUR_ACTION = re.compile(r"(?:^\.|/action(?:@|$))")
_STATUSES = frozenset({"in_progress", "completed"})
_EXPRESSION = "${{"
_OF_THE_WORKFLOW = re.compile(r"\$\{\{\s*env\.CRCR_RELAYS\s*\}\}")
_OF_THE_EVENT = re.compile(r"github\.event\b|\binputs\.|client_payload")

Table = Mapping[str, Tree]
Found = tuple[Pinning, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class _Script:
    """A `run` with a script of the reporter's or the bridge's name."""

    pins: str
    """Its flag `--relays`."""
    otherwise: Pinning | None
    """How it pins in a way that is not worked out: several flags, one without quotes, or a variable of its own."""
    is_ours: bool
    """The text names CRCR too."""


def find_pins(document: Table, steps: Sequence[tuple[Table, Table]]) -> Found:
    """Return how the steps of a workflow pin, and all that they pin; `steps` has each after its job."""
    runs = {run for _, step in steps if isinstance(run := step.get("run"), str)}
    scripts = _scripts(runs)
    above = _text(document, "env")
    found = [
        _step(step, scripts, (_text(job, "env"), above)) for job, step in steps if _reports(step, scripts)
    ]
    # A step before it may have set the variable for the whole job; which step that is, is not worked out.
    assigned: list[Found] = [
        (_assigned_by(run), ()) for run in runs if found and run not in scripts and _ASSIGNED.search(run)
    ]
    return _all(found + assigned)


def find_pins_elsewhere(text: str) -> Found:
    """Return how a file of another CI pins; `NONE` where it does not run the reporter, or is not YAML."""
    try:
        pairs = list(every_pair(compose(text)))
    except (NotYaml, TooMuch):
        return Pinning.NONE, ()
    if not any(_SCRIPT.search(value) and _OURS.search(value) for _, value in pairs):
        return Pinning.NONE, ()
    given = [value for key, value in pairs if key == _VARIABLE]
    given += [_flag(value) for _, value in pairs if _flag(value)]
    return _all([_judge(value) for value in given] or [(Pinning.MISSING, ())])


def _all(found: Sequence[Found]) -> Found:
    pins = dict.fromkeys(pin[:MOST_CHARS] for _, each in found for pin in each)
    return Pinning.worst(pinning for pinning, _ in found), tuple(pins)[:MOST_PINS]


def _scripts(runs: Iterable[str]) -> Mapping[str, _Script]:
    """Those that run the reporter or the bridge, with what they pin by a flag; read once, however often aliases repeat one."""
    return {
        run: _Script(_flag(run), _otherwise(run), bool(_OURS.search(run)))
        for run in runs
        if _SCRIPT.search(run)
    }


def _otherwise(run: str) -> Pinning | None:
    flags = len(_ANY_FLAG.findall(run))
    unread = flags > 1 or flags != len(_FLAG.findall(run))
    return _assigned_by(run) if unread or _ASSIGNED.search(run) else None


def _assigned_by(run: str) -> Pinning:
    return Pinning.EVENT if _OF_THE_EVENT.search(run) else Pinning.UNKNOWN


def _reports(step: Table, scripts: Mapping[str, _Script]) -> bool:
    run, uses = step.get("run"), step.get("uses")
    if isinstance(run, str):
        script = scripts.get(run)
        return script is not None and (script.is_ours or any(map(_OURS.search, _table(step, "env"))))
    if not isinstance(uses, str):
        return False
    return bool(_ACTION.search(uses)) or _table(step, "with").get("status") in _STATUSES


def _step(step: Table, scripts: Mapping[str, _Script], around: Sequence[str]) -> Found:
    """`around` is what job and workflow pin, the nearer one first."""
    run, uses = step.get("run"), step.get("uses")
    if isinstance(run, str) and (otherwise := scripts[run].otherwise):
        return otherwise, ()
    own = scripts[run].pins if isinstance(run, str) else _input(step)
    near = [own, _text(step, "env"), *around]
    chosen = next((each for each in near if each and not _OF_THE_WORKFLOW.fullmatch(each.strip())), "")
    pinning, pins = _judge(chosen)
    if pinning is Pinning.MISSING and isinstance(uses, str) and not _OUR_ACTION.search(uses):
        pinning = Pinning.FOREIGN
    return pinning, pins


def _judge(given: str) -> Found:
    if _EXPRESSION in given:
        return (Pinning.EVENT if _OF_THE_EVENT.search(given) else Pinning.UNKNOWN), ()
    pins = read_pins(given)
    return (Pinning.PINNED, pins) if pins else (Pinning.MISSING, ())


def _flag(script: str) -> str:
    found = _FLAG.search(script)
    return (found[1] or found[2] or "") if found else ""


def _input(step: Table) -> str:
    """GitHub reads the names of inputs in any case."""
    inputs = _table(step, "with")
    return next((_text_of(value) for name, value in inputs.items() if name.lower() == _INPUT), "")


def _table(place: Table, name: str) -> Table:
    found = place.get(name)
    return found if isinstance(found, dict) else {}


def _text(place: Table, name: str) -> str:
    return _text_of(_table(place, name).get(_VARIABLE))


def _text_of(value: Tree | None) -> str:
    return value[: MOST_PINS * MOST_CHARS] if isinstance(value, str) else ""
