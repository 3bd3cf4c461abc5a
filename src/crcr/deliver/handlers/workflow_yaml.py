"""Workflow files of a downstream: the facts that findings need, and the relays that its reporter steps pin.

Never raises because of a file's content. Expressions are not evaluated; a value that cannot be known counts as absent. In
a GitHub workflow each step that reports is examined by itself, with the environment of its job and of the workflow; files
of other CIs are examined as a whole. YAML is read from the parser's events into nested lists and tables of bounded size,
and every scalar stays text, as at GitHub: `on` stays a word.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import yaml

from crcr.decide.github.repository_setup import Pinning, WorkflowFacts, read_pins

MAX_CHARS = 1024 * 1024
"""In the file, and in all its texts with aliases expanded."""
MAX_NODES = 20_000
"""With aliases expanded."""
MAX_DEPTH = 30
_LOADER: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

Tree = str | list["Tree"] | dict[str, "Tree"]

MOST_TYPES = 50
MOST_STEPS = 5_000
_REPORTER = re.compile(r"(?i)crcr|cross-repo|report\.py")
_WRITE_ALL = "write-all"
_BRIDGE_TO = "CRCR_BRIDGE_TO"
_WORD_CHARS = 40

MOST_PINS = 20
MOST_CHARS = 200
_VARIABLE = "CRCR_RELAYS"
_INPUT = "relays"
_FLAG = re.compile(r"""--relays[ =]+(?:"([^"]*)"|'([^']*)')""")
_ANY_FLAG = re.compile(r"--relays\b")
_ASSIGNED = re.compile(r"\bCRCR_RELAYS(?:=|<<)")
"""In a script: set for one command, for the script, or for the job's later steps through GITHUB_ENV."""
_SCRIPT = re.compile(r"""(?:^|[\s/"'])(?:report|bridge)\.py\b""", re.MULTILINE)
_MENTIONS_CRCR = re.compile(r"(?i)crcr")
_ACTION = re.compile(r"(?i)crcr|cross-repo")
_OUR_ACTION = re.compile(r"(?:^\.|/action(?:@|$))")
_STATUSES = frozenset({"in_progress", "completed"})
_STATUS_TEST = "test"
_EXPRESSION = "${{"
_OF_THE_WORKFLOW = re.compile(r"\$\{\{\s*env\.CRCR_RELAYS\s*\}\}")
_OF_THE_EVENT = re.compile(r"github\.event\b|\binputs\.|client_payload")

Table = Mapping[str, Tree]
PinResult = tuple[Pinning, tuple[str, ...]]


def workflow_facts(path: str, sha: str, text: str) -> WorkflowFacts:
    try:
        document = compose(text)
    except YamlTooLarge:
        return WorkflowFacts(path=path, sha=sha, problem="too large to be read")
    except NotYaml:
        return WorkflowFacts(path=path, sha=sha, problem="it is not YAML")
    if not isinstance(document, dict) or "on" not in document:
        return WorkflowFacts(path=path, sha=sha, problem="it is no workflow")
    jobs = [job for job in values(document.get("jobs")) if isinstance(job, dict)]
    steps = _steps(jobs)
    pinning, pins = find_pins(document, steps)
    return WorkflowFacts(
        path=path,
        sha=sha,
        dispatch_types=_dispatch_types(document["on"]),
        id_token=_has_id_token(document, jobs),
        calls_others=any("uses" in job for job in jobs),
        reports=any(_REPORTER.search(text) for text in _uses_and_runs([*jobs, *(step for _, step in steps)])),
        requests_tests=_mentions(document["on"], "workflow_dispatch") and any(map(_requests_test, steps)),
        bridge_to=_bridge_to((document, *jobs, *(step for _, step in steps))),
        pinning=pinning,
        pins=pins,
    )


def _mentions(on: Tree, event: str) -> bool:
    """Whether `on`, which may be a word, a list or a table, has this event."""
    return on == event if isinstance(on, str) else event in on


def _requests_test(pair: tuple[Table, Table]) -> bool:
    """Whether a step calls the reporter, or its action, with the status `test`."""
    step = pair[1]
    return _STATUS_TEST in (_table(step, "env").get("CRCR_STATUS"), _table(step, "with").get("status"))


def _dispatch_types(on: Tree) -> tuple[str, ...] | None:
    """Return the types of `on: repository_dispatch`; None without it."""
    if not _mentions(on, "repository_dispatch"):
        return None
    options = on["repository_dispatch"] if isinstance(on, dict) else None
    types = options.get("types") if isinstance(options, dict) else None
    if isinstance(types, str):
        return (types,) if types else ()
    return tuple(name for name in types or () if isinstance(name, str))[:MOST_TYPES]


def _has_id_token(document: dict[str, Tree], jobs: list[dict[str, Tree]]) -> bool:
    """A job's own permissions replace the workflow's; a job without any inherits them."""
    shared = _grants(document.get("permissions"))
    return any(_grants(job["permissions"]) if "permissions" in job else shared for job in jobs)


def _grants(permissions: Tree | None) -> bool:
    if isinstance(permissions, dict):
        return permissions.get("id-token") == "write"
    return permissions == _WRITE_ALL


def _steps(jobs: list[dict[str, Tree]]) -> list[tuple[dict[str, Tree], dict[str, Tree]]]:
    """Return pairs of job and step. Aliases can make far more steps than the file has nodes, so they are capped."""
    pairs = ((job, step) for job in jobs for step in values(job.get("steps")))
    return [(job, step) for job, step in islice(pairs, MOST_STEPS) if isinstance(step, dict)]


def _uses_and_runs(tables: list[dict[str, Tree]]) -> set[str]:
    """Return the `uses` and `run` of jobs and steps; each text once, because aliases can repeat a long one."""
    texts = (table.get(name) for table in tables for name in ("uses", "run"))
    return {text for text in texts if isinstance(text, str)}


def _bridge_to(tables: Iterable[dict[str, Tree]]) -> str:
    """Return the CI that the bridge's environment names; empty where there is no bridge."""
    environments = [table["env"] for table in tables if isinstance(table.get("env"), dict)]
    names = [env.get(_BRIDGE_TO) for env in environments if isinstance(env, dict)]
    return next((name[:_WORD_CHARS] for name in names if isinstance(name, str) and name), "")


# Pinned relays


@dataclass(frozen=True, slots=True)
class _Script:
    """A `run` that calls the reporter or the bridge."""

    pins: str
    """The value of its flag `--relays`."""
    otherwise: Pinning | None
    """Set where the pins are not evaluated: several flags, an unquoted flag, or a variable of its own."""
    is_ours: bool
    """Whether the text also mentions CRCR."""


def find_pins(document: Table, steps: Sequence[tuple[Table, Table]]) -> PinResult:
    """Return how the steps of a workflow pin, and all pinned relays; `steps` are pairs of job and step."""
    runs = {run for _, step in steps if isinstance(run := step.get("run"), str)}
    scripts = _scripts(runs)
    workflow_env = _text(document, "env")
    results = [
        _step(step, scripts, (_text(job, "env"), workflow_env))
        for job, step in steps
        if _reports(step, scripts)
    ]
    # An earlier step may have set the variable for the whole job; which one is not evaluated.
    assigned: list[PinResult] = [
        (_assigned_by(run), ()) for run in runs if results and run not in scripts and _ASSIGNED.search(run)
    ]
    return _combine(results + assigned)


def find_pins_elsewhere(text: str) -> PinResult:
    """Return how a file of another CI pins; `NONE` where it does not run the reporter or is not YAML."""
    try:
        pairs = list(every_pair(compose(text)))
    except (NotYaml, YamlTooLarge):
        return Pinning.NONE, ()
    if not any(_SCRIPT.search(value) and _MENTIONS_CRCR.search(value) for _, value in pairs):
        return Pinning.NONE, ()
    values = [value for key, value in pairs if key == _VARIABLE]
    values += [_flag(value) for _, value in pairs if _flag(value)]
    return _combine([_judge(value) for value in values] or [(Pinning.MISSING, ())])


def _combine(results: Sequence[PinResult]) -> PinResult:
    pins = dict.fromkeys(pin[:MOST_CHARS] for _, pinned in results for pin in pinned)
    return Pinning.worst(pinning for pinning, _ in results), tuple(pins)[:MOST_PINS]


def _scripts(runs: Iterable[str]) -> Mapping[str, _Script]:
    """Return the scripts that call the reporter or the bridge, each read once however often aliases repeat it."""
    return {
        run: _Script(_flag(run), _otherwise(run), bool(_MENTIONS_CRCR.search(run)))
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
        return script is not None and (script.is_ours or any(map(_MENTIONS_CRCR.search, _table(step, "env"))))
    if not isinstance(uses, str):
        return False
    return bool(_ACTION.search(uses)) or _table(step, "with").get("status") in _STATUSES


def _step(step: Table, scripts: Mapping[str, _Script], around: Sequence[str]) -> PinResult:
    """`around`: the pins in the environments of the job and of the workflow."""
    run, uses = step.get("run"), step.get("uses")
    if isinstance(run, str) and (otherwise := scripts[run].otherwise):
        return otherwise, ()
    own = scripts[run].pins if isinstance(run, str) else _input(step)
    near = [own, _text(step, "env"), *around]
    chosen = next((text for text in near if text and not _OF_THE_WORKFLOW.fullmatch(text.strip())), "")
    pinning, pins = _judge(chosen)
    if pinning is Pinning.MISSING and isinstance(uses, str) and not _OUR_ACTION.search(uses):
        pinning = Pinning.FOREIGN
    return pinning, pins


def _judge(value: str) -> PinResult:
    if _EXPRESSION in value:
        return (Pinning.EVENT if _OF_THE_EVENT.search(value) else Pinning.UNKNOWN), ()
    pins = read_pins(value)
    return (Pinning.PINNED, pins) if pins else (Pinning.MISSING, ())


def _flag(script: str) -> str:
    match = _FLAG.search(script)
    return (match[1] or match[2] or "") if match else ""


def _input(step: Table) -> str:
    """GitHub matches the names of inputs case-insensitively."""
    inputs = _table(step, "with")
    return next((_capped(value) for name, value in inputs.items() if name.lower() == _INPUT), "")


def _table(parent: Table, name: str) -> Table:
    value = parent.get(name)
    return value if isinstance(value, dict) else {}


def _text(parent: Table, name: str) -> str:
    return _capped(_table(parent, name).get(_VARIABLE))


def _capped(value: Tree | None) -> str:
    return value[: MOST_PINS * MOST_CHARS] if isinstance(value, str) else ""


# YAML


class YamlTooLarge(Exception):
    """Larger than any real CI file."""


class NotYaml(Exception):
    """The text is not YAML."""


def compose(text: str) -> Tree | None:
    """Return the first document; raise `NotYaml` or `YamlTooLarge`."""
    if len(text) > MAX_CHARS:
        raise YamlTooLarge
    composer = _Composer()
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            composer.take(event)
    except (yaml.YAMLError, ValueError, OverflowError) as fault:
        raise NotYaml from fault
    return composer.document


def values(tree: Tree | None) -> list[Tree]:
    if isinstance(tree, dict):
        return list(tree.values())
    return tree if isinstance(tree, list) else []


def every_pair(tree: Tree | None) -> Iterator[tuple[str, str]]:
    """Yield all texts, each with its key or ""; a node that aliases share is visited once."""
    waiting: list[tuple[str, Tree]] = [("", tree)] if tree is not None else []
    visited: set[int] = set()
    while waiting:
        key, node = waiting.pop()
        if isinstance(node, str):
            yield key, node
        elif id(node) not in visited:
            visited.add(id(node))
            waiting += node.items() if isinstance(node, dict) else [(key, item) for item in node]


@dataclass(slots=True)
class _Size:
    """The size of a value wherever an alias repeats it."""

    nodes: int = 1
    chars: int = 0

    def grow(self, other: "_Size") -> None:
        self.nodes += other.nodes
        self.chars += other.chars


@dataclass(slots=True)
class _Open:
    node: list[Tree] | dict[str, Tree]
    anchor: str | None
    key: str | None = None
    size: _Size = field(default_factory=_Size)

    def take(self, value: Tree, size: _Size) -> None:
        self.size.grow(size)
        if isinstance(self.node, list):
            self.node.append(value)
        elif self.key is None:
            self.key = value if isinstance(value, str) else ""
        else:
            self.node.setdefault(self.key, value)
            self.key = None


@dataclass(slots=True)
class _Composer:
    document: Tree | None = None
    stack: list[_Open] = field(default_factory=list)
    anchors: dict[str, tuple[Tree, _Size]] = field(default_factory=dict)
    whole: _Size = field(default_factory=_Size)

    def take(self, event: Any) -> None:
        match event:
            case yaml.ScalarEvent():
                self._add(event.value, event.anchor, _Size(chars=len(event.value)))
            case yaml.AliasEvent():
                # Aliases share their node, but the steps of every job are visited.
                self._add(*self._repeated(event.anchor or ""))
            case yaml.SequenceStartEvent():
                self._open(_Open([], event.anchor))
            case yaml.MappingStartEvent():
                self._open(_Open({}, event.anchor))
            case yaml.SequenceEndEvent() | yaml.MappingEndEvent():
                done = self.stack.pop()
                self._add(done.node, done.anchor, done.size, counted=True)

    def _open(self, opened: _Open) -> None:
        self.stack.append(opened)
        if len(self.stack) > MAX_DEPTH:
            raise YamlTooLarge

    def _repeated(self, anchor: str) -> tuple[Tree, None, _Size]:
        """Return an anchor's value; empty while its collection is still open."""
        value, size = self.anchors.get(anchor, ("", _Size()))
        return value, None, size

    def _add(self, value: Tree, anchor: str | None, size: _Size, *, counted: bool = False) -> None:
        self.whole.grow(_Size() if counted else size)
        if self.whole.nodes > MAX_NODES or self.whole.chars > MAX_CHARS:
            raise YamlTooLarge
        if anchor is not None:
            self.anchors[anchor] = value, size
        if self.stack:
            self.stack[-1].take(value, size)
        elif self.document is None:
            self.document = value
