"""The dependency rule of docs/architecture.md, kept by reading every import."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "crcr"
SIMULATOR = SOURCE.parent / "github_sim"
ROOMS = (
    "decide",
    "receive",
    "record",
    "github",
    "deliver",
    "show",
    "settings",
    "join",
    "wiring",
    "demo",
    "cli",
)
EVERYWHERE = {"errors"}

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "clock": set(),
    "log": set(),
    "decide": {"decide", "errors"},
    "ports": {"decide", "errors"},
    "receive": {"receive", "record", "decide", "ports", "errors", "aws_client"},
    "aws_client": {"errors"},
    "record": {"record", "decide", "ports", "errors"},
    "github": {"github", "decide", "ports", "errors", ""},
    "deliver": {"deliver", "record", "github", "decide", "ports", "errors", "aws_client"},
    "join": {"join", "decide", "errors"},
    "show": {"show", "record", "join", "decide", "ports", "errors", ""},
    "settings": {"settings", "decide", "errors", "aws_client"},
    "docs": {"*"},
    "app": {"decide", "errors", "receive", "openapi"},
    "openapi": {""},
    "tracing": {"decide", ""},
    "wiring": {"*"},
    "demo": {"*"},
    "cli": {"*"},
    "__main__": {"cli"},
    "": set(),
}
"""For each room (or top-level module) the rooms it may import; "" is the package itself, for its version."""

PURE = {"abc", "collections", "contextlib", "dataclasses", "datetime", "difflib", "enum", "functools", "heapq", "itertools", "json",
        "math", "operator", "re", "string", "types", "typing", "unicodedata", "zlib", "bisect", "hashlib"}  # fmt: skip


# A link to the reporter in `action/`, which runs alone on an older Python and is shipped as text.
SHIPPED_AS_TEXT = {SOURCE / "join" / "shipped" / "report.py"}


def modules() -> list[Path]:
    return sorted(set(SOURCE.rglob("*.py")) - SHIPPED_AS_TEXT)


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a module's syntax tree, its root first."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def room_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return "" if parts == ("__init__",) else parts[0]


@cache
def imports(path: Path) -> frozenset[str]:
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module} | (
                {f"crcr.{alias.name}" for alias in node.names} if node.module == "crcr" else set()
            )
    return frozenset(names)


def rooms_imported(path: Path) -> set[str]:
    ours = {name for name in imports(path) if name == "crcr" or name.startswith("crcr.")}
    rooms = {name.split(".")[1] if "." in name else "" for name in ours}
    return {"" if room == "__version__" else room for room in rooms}


def test_show_imports_only_views_and_admin_actions_of_record() -> None:
    allowed = ("crcr.record.views.", "crcr.record.admin.", "crcr.record.repositories.inspections")
    found = {name for path in (SOURCE / "show").rglob("*.py") for name in imports(path)}
    assert [name for name in found if name.startswith("crcr.record") and not name.startswith(allowed)] == []


def test_a_room_imports_only_what_the_rule_allows() -> None:
    refused = {}
    for path in modules():
        allowed = ALLOWED[room_of(path)]
        if "*" not in allowed and (more := rooms_imported(path) - allowed):
            refused[str(path.relative_to(SOURCE))] = more
    assert refused == {}


def test_only_the_demo_and_tests_know_the_simulator() -> None:
    users = {
        room_of(path) for path in modules() if any(name.startswith("github_sim") for name in imports(path))
    }
    assert users == {"demo"}


def test_only_the_command_line_knows_the_demo() -> None:
    assert {room_of(path) for path in modules() if "demo" in rooms_imported(path)} <= {"demo", "cli"}


def test_the_simulator_imports_nothing_of_the_relay() -> None:
    ours = {
        path
        for path in SIMULATOR.rglob("*.py")
        if any(name.split(".")[0] == "crcr" for name in imports(path))
    }
    assert ours == set()


def test_the_truth_about_verdicts_is_independent_of_the_rules() -> None:
    """`bench/answers` knows the cause of each failure because it made it; it must not ask the rules that it measures."""
    answers = sorted((SOURCE.parent.parent / "bench" / "answers").rglob("*.py"))
    assert answers
    asking = {"relay_bisections.py"}  # begins bisections and reads them with the relay's own types
    used = {
        name
        for path in answers
        for name in imports(path)
        if name.split(".")[0] == "crcr" and path.name not in asking
    }
    outside = ("crcr.settings", "crcr.wiring", "crcr.record.migrations", "crcr.log")
    assert [name for name in used if name != "crcr" and not name.startswith(outside)] == []


def test_only_wiring_the_command_line_and_the_docs_know_the_settings() -> None:
    users = {room_of(path) for path in modules() if "settings" in rooms_imported(path)}
    assert users <= {"settings", "wiring", "demo", "cli", "docs"}


def test_the_rules_are_pure() -> None:
    impure = {}
    for path in modules():
        if room_of(path) == "decide" and (found := _foreign_imports(path) | _impure_calls(path)):
            impure[str(path.relative_to(SOURCE))] = found
    assert impure == {}
    assert set(sys.stdlib_module_names) >= PURE


def _foreign_imports(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)} - PURE - {"crcr"}


def _impure_calls(path: Path) -> set[str]:
    calls = {ast.unparse(node.func) for node in nodes(path) if isinstance(node, ast.Call)}
    return calls & {"datetime.now", "datetime.utcnow", "open", "print", "input"}


def test_a_module_says_what_it_is_for() -> None:
    silent = set()
    for path in [*modules(), *SIMULATOR.rglob("*.py")]:
        root = nodes(path)[0]
        if not isinstance(root, ast.Module) or not ast.get_docstring(root):
            silent.add(str(path.relative_to(SOURCE.parent)))
    assert silent == set()


REFUSED_WORDS = {
    *("utils", "util", "helpers", "misc"),
    *("company", "crew", "desk", "desks", "door", "doors", "furniture", "ground", "journey", "walk"),
    *("glance", "glances", "hindrance", "hindered", "wish", "wishes", "wishing"),
    *("asked", "heard", "said", "told"),
    *("here", "somebody", "whoever"),
}
"""Words that no module, class or public function has in its name: they say nothing to a reader who looks for something."""
REFUSED_NAMES = {
    *(
        "again",
        "at",
        "base",
        "common",
        "everywhere",
        "found",
        "kept",
        "manager",
        "of",
        "past",
        "place",
        "places",
    ),
    *("seen", "shown", "standing", "taken", "wanted"),
}
"""Words that are no name by themselves."""
STILL_NAMED_SO: set[str] = {
    "src/crcr/show/api/models/setup.py Asked",
}
"""Names from before the rule; none is added."""


def public_names(path: Path) -> Iterator[str]:
    """The module's own name, and its public classes and functions."""
    yield path.stem
    module = nodes(path)[0]
    assert isinstance(module, ast.Module)
    for node in module.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_":
            yield node.name


def is_refused(name: str) -> bool:
    return name.lower() in REFUSED_NAMES or bool({word.lower() for word in _words(name)} & REFUSED_WORDS)


def _words(name: str) -> list[str]:
    return re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)


def test_modules_classes_and_functions_have_names_that_a_reader_would_search_for() -> None:
    paths = sorted({*modules(), *SIMULATOR.rglob("*.py")})
    refused = {
        f"{path.relative_to(SOURCE.parent.parent)} {name}"
        for path in paths
        for name in public_names(path)
        if is_refused(name)
    }
    assert refused <= STILL_NAMED_SO


def test_tests_have_ordinary_names_too() -> None:
    """In tests a random walk is a walk, and a refused word is quoted."""
    words = REFUSED_WORDS - {"walk", "here", "furniture"}
    refused = {
        f"{path.name} {name}"
        for path in Path(__file__).parent.rglob("*.py")
        for name in re.findall(r"^ *(?:async def|def|class) (\w+)", path.read_text(), re.MULTILINE)
        if words & {word.lower() for word in _words(name)}
    }
    assert refused == set()


def test_the_word_list_refuses_furniture_pronouns_and_participles() -> None:
    names = ["Desk", "SetupDesk", "read_wish", "Told", "told_of", "utils", "place", "Here"]
    assert [name for name in names if not is_refused(name)] == []


def test_the_word_list_leaves_ordinary_names_alone() -> None:
    names = ["EventOrder", "place_tools", "base_branch", "WantedCheck", "foretold", "grounded"]
    assert [name for name in names if is_refused(name)] == []


def test_a_tally_is_a_number_and_no_interface() -> None:
    interfaces = {
        node.name
        for path in modules()
        for node in nodes(path)
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "Protocol" for base in node.bases)
    }
    assert "Tally" not in interfaces


def test_everything_is_caught_only_in_the_worker_and_at_the_edge() -> None:
    catching = set()
    for path in modules():
        for node in nodes(path):
            if isinstance(node, ast.ExceptHandler) and ast.unparse(node.type or ast.Name("")) in {
                "",
                "Exception",
                "BaseException",
            }:
                catching.add(str(path.relative_to(SOURCE)))
    assert (
        catching
        <= {
            "app.py",
            "deliver/worker.py",
            "deliver/periodic/reconcile.py",  # a webhook that broke us live is in the log, and would break every start
            "record/store/postgres/batched_reads.py",  # the same, below
            "record/store/postgres/database.py",  # the same, below
            "record/store/sqlite/database.py",  # one caller's failure is handed back to that caller; a failed group is rolled back
            "receive/http/body.py",  # gives its bytes back and raises on
            "github/http/connections.py",  # gives its connection back and raises on
            "wiring/aws_lambda/handlers.py",  # masks the text, which Lambda logs and returns as it is, and raises on
        }
    )


def writes_outcomes(path: Path) -> bool:
    """Whether a module has a statement that sets a job's state or conclusion."""
    source = path.read_text()
    in_text = re.findall(r"UPDATE jobs SET (.*?)WHERE", source, re.DOTALL)
    in_code = re.findall(r"update\(jobs\)(.*?)\n\)\n", source, re.DOTALL)
    return any(
        re.search(r"\b(?:state|conclusion)\s*=", each.replace("jobs.c.state", ""))
        for each in in_text + in_code
    )


def test_a_jobs_outcome_is_written_in_one_place_that_forwards_it() -> None:
    writers = {path.name for path in modules() if room_of(path) == "record" and writes_outcomes(path)}
    assert writers == {"outcomes.py"}
    names = {"open_job", "close_job", "dispute_job", "time_out_job", "verify_job", "end_job"}
    callers = {path.name for path in modules() if names & names_in(path)}
    assert callers == {"outcomes.py"}


def names_in(path: Path) -> set[str]:
    """Names that a module defines as functions, or uses."""
    tree = nodes(path)
    used = {node.id for node in tree if isinstance(node, ast.Name)}
    return used | {node.name for node in tree if isinstance(node, ast.AsyncFunctionDef)}


def test_an_intake_process_imports_nothing_that_only_pages_need() -> None:
    asked = "import crcr.cli.run.process, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "crcr.wiring.intake_app" in loaded
    assert not loaded & {"fastapi", "jinja2", "crcr.wiring.web_app", "crcr.show.render", "crcr.show.pages"}
