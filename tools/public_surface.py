"""Writes the public surface of a checkout to one JSON file, and compares two such files.

    python tools/public_surface.py surface.json
    python tools/public_surface.py --compare before.json after.json [--texts]

The surface is what users, operators and programs rely on: `openapi.json`, routes, metrics with their labels, commands
with their options, settings with their defaults, and the schema as the migrations make it on SQLite. All of it is read
through entry points that stay when modules move: the `crcr` command in processes of its own, HTTP, SQLite, and
`python -m crcr.docs`. The package is imported from `src/` of the working directory.

The comparison leaves texts out (descriptions, help, examples) unless `--texts` is given. Exit code 1 when the two differ.
"""

import argparse
import gc
import hashlib
import json
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, redirect_stdout
from enum import Enum
from functools import partial
from http.client import HTTPConnection
from importlib import import_module
from io import StringIO
from pathlib import Path
from typing import Any, get_args

POSTED = ("/github/webhook", "/github/webhook/", "/github/callback", "/github/callback/")
"""Paths that are answered before the framework's routes, so they are found by asking."""
TEXTS = {"description", "summary", "title", "help", "epilog", "metavar", "panel", "meaning"}
EXAMPLES = {"example", "examples"}
START_S = 60.0
ALLOWLIST = "L1:\n  - org/downstream\n"

Json = Any


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the public surface of this checkout, or compare two.")
    parser.add_argument("output", nargs="?", type=Path, help="the file to write")
    parser.add_argument("--compare", nargs=2, type=Path, metavar=("BEFORE", "AFTER"))
    parser.add_argument("--texts", action="store_true", help="compare descriptions, help and examples too")
    parser.add_argument("--inside", choices=("commands", "app"), help=argparse.SUPPRESS)
    options, words = parser.parse_known_args()
    if words and not options.inside:
        parser.error(f"unknown: {' '.join(words)}")
    if options.inside == "commands":
        json.dump(describe_commands(), sys.stdout)
    elif options.inside == "app":
        run_described(int(options.output.name), words)
    elif options.compare:
        before, after = (json.loads(path.read_text("utf-8")) for path in options.compare)
        differences = list(compare(before, after, texts=options.texts))
        sys.stdout.writelines(f"{line}\n" for line in differences or ["the same"])
        return int(bool(differences))
    elif options.output:
        text = json.dumps(read_surface(Path.cwd()), indent=1, sort_keys=True, ensure_ascii=False)
        options.output.write_text(f"{text}\n", "utf-8")
    else:
        parser.error("say where to write, or what to compare")
    return 0


def read_surface(root: Path) -> dict[str, Json]:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        environ = environment(root, folder)
        commands = json.loads(_run(["--inside", "commands"], folder, environ))
        with running(["serve", "--no-worker"], folder, environ) as relay:
            served = relay.describe()
            openapi = json.loads(relay.request("GET", "/api/openapi.json")[1])
            posted = {f"POST {path}": relay.refusal(path) for path in POSTED}
        with running(["worker"], folder, environ) as worker:
            watched = worker.describe()
        return {
            "openapi": openapi,
            "routes": {**dict.fromkeys([*served["routes"], *_operations(openapi)], "route"), **posted},
            "worker_routes": dict.fromkeys(watched["routes"], "route"),
            "metrics": served["metrics"],
            "worker_metrics": watched["metrics"],
            "commands": commands,
            "settings": read_settings(root, folder, environ),
            "schema": read_schema(folder, environ),
        }


def environment(root: Path, folder: Path) -> dict[str, str]:
    """Return settings for a relay with everything switched on and GitHub out of reach."""
    (folder / "allowlist.yml").write_text(ALLOWLIST)
    digest = hashlib.sha256(b"a token that nobody uses").hexdigest()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("CRCR_")}
    return {
        **inherited,
        "PYTHONPATH": str(root / "src"),
        "COLUMNS": "120",
        "NO_COLOR": "1",
        "TERM": "dumb",
        "CRCR_UPSTREAM": "org/upstream",
        "CRCR_ALLOWLIST": str(folder / "allowlist.yml"),
        "CRCR_GITHUB_APP_ID": "1",
        "CRCR_GITHUB_APP_PRIVATE_KEY": private_key(),
        "CRCR_GITHUB_WEBHOOK_SECRET": "a secret that nobody uses",
        "CRCR_GITHUB_API_URL": "http://127.0.0.1:9",
        "CRCR_OIDC_AUDIENCE": "crcr-surface",
        "CRCR_DATABASE_URL": f"sqlite:///{folder / 'crcr.db'}",
        "CRCR_ADMIN_TOKENS": f"someone=sha256:{digest}",
        "CRCR_HUD_INGEST_TOKEN": "another token that nobody uses",
        "CRCR_SANDBOX": "on",
    }


def private_key() -> str:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  only the writing needs it
    from cryptography.hazmat.primitives.asymmetric import rsa  # noqa: PLC0415

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    form = serialization.PrivateFormat.TraditionalOpenSSL
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()).decode()


def _run(words: list[str], folder: Path, environ: Mapping[str, str], *, module: str | None = None) -> str:
    """Run this script or a module in a process of its own, and return what it printed."""
    program = ["-m", module] if module else [str(Path(__file__).resolve())]
    command = [sys.executable, *program, *words]
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


# Commands ------------------------------------------------------------------------------------------------------------


def describe_commands() -> dict[str, Json]:
    """Return every command by its words: names and options, and apart from them their texts."""
    from typer.core import TyperGroup  # noqa: PLC0415  what writes the surface runs without the app's packages

    captured: list[Any] = []
    run_main = TyperGroup.main
    TyperGroup.main = lambda group, *_, **__: captured.append(group)  # type: ignore[method-assign]
    import_module("crcr.__main__").main()
    TyperGroup.main = run_main  # type: ignore[method-assign]
    [root] = captured
    return {
        " ".join(words): _command(command, partial(_help, root, words[1:]))
        for words, command in _commands(root, ("crcr",))
    }


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield words, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


def _command(command: Any, read_help: Callable[[], str]) -> dict[str, Json]:
    arguments = [each for each in command.params if each.param_type_name == "argument"]
    return {
        "parameters": {
            **{f"argument {number}": _parameter(each) for number, each in enumerate(arguments, 1)},
            **{_option_name(each): _parameter(each) for each in command.params if each not in arguments},
        },
        "hidden": command.hidden,
        "help": read_help(),
    }


def _help(root: Any, words: tuple[str, ...]) -> str:
    printed = StringIO()
    with redirect_stdout(printed):
        root.main(args=[*words, "--help"], prog_name="crcr", standalone_mode=False)
    return "\n".join(line.rstrip() for line in printed.getvalue().splitlines())


def _option_name(option: Any) -> str:
    return "/".join(sorted([*option.opts, *option.secondary_opts], key=lambda name: (len(name), name)))


def _parameter(parameter: Any) -> dict[str, Json]:
    kind, default = parameter.type_descriptor.annotation, parameter.default
    facts = {
        "type": _type_name(kind),
        "choices": [str(getattr(each, "value", each)) for each in _choices(kind)],
        "min": getattr(parameter, "min", None),
        "max": getattr(parameter, "max", None),
        "required": parameter.required,
        "multiple": getattr(parameter, "multiple", False),
        "values": parameter.nargs,
        "variable": parameter.envvar,
        "default": None if callable(default) else str(getattr(default, "value", default)),
        "hidden": getattr(parameter, "hidden", False),
        "metavar": parameter.metavar,
        "help": getattr(parameter, "help", None),
    }
    return {name: value for name, value in facts.items() if value not in (None, [], False, "None")}


def _choices(kind: Any) -> Iterator[Any]:
    if isinstance(kind, type) and issubclass(kind, Enum):
        yield from kind
    else:
        for inner in get_args(kind):
            yield from [inner] if isinstance(inner, str) else _choices(inner)


def _type_name(kind: Any) -> str:
    """Return the type's name; classes of the project may be renamed, and are a word on the command line anyway."""
    ours = getattr(kind, "__module__", "").partition(".")[0] not in sys.stdlib_module_names
    return "word" if ours else getattr(kind, "__name__", str(kind))


# The running app -----------------------------------------------------------------------------------------------------


class Process:
    """A `crcr` process of ours that answers HTTP, and describes itself through a pipe."""

    def __init__(self, child: "subprocess.Popen[str]", port: int, description: int) -> None:
        self._child = child
        self._port = port
        self._description = description

    def request(self, method: str, path: str) -> tuple[int, bytes]:
        with closing(HTTPConnection("127.0.0.1", self._port, timeout=30)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def refusal(self, path: str) -> str:
        """Return how an empty POST is refused: status and code."""
        status, body = self.request("POST", path)
        return f"{status} {json.loads(body).get('error', {}).get('code')}"

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + START_S
        while self._child.poll() is None and time.monotonic() < deadline:
            try:
                if self.request("GET", "/metrics")[0] == 200:
                    return
            except OSError:
                time.sleep(0.1)
        raise SystemExit(f"crcr did not start; exit code {self._child.poll()}")

    def describe(self) -> dict[str, Json]:
        """Return routes and metrics: labels as they are declared, where `/metrics` has no sample yet."""
        if self._child.stdin is not None:
            self._child.stdin.close()
        with os.fdopen(self._description, encoding="utf-8") as pipe:
            described: dict[str, Json] = json.load(pipe)
        text = self.request("GET", "/metrics")[1].decode()
        families = dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, re.MULTILINE))
        declared = described["metrics"]
        metrics = {
            name: {"type": kind, "labels": declared.get(name.removesuffix("_total"), declared.get(name))}
            for name, kind in families.items()
            if not name.endswith("_created")
        }
        return {"routes": described["routes"], "metrics": metrics}


@contextmanager
def running(words: list[str], folder: Path, environ: Mapping[str, str]) -> Iterator[Process]:
    """Run `crcr WORDS` while the body runs; both its ports are the same free one."""
    port = _free_port()
    reading, writing = os.pipe()
    script = str(Path(__file__).resolve())
    with (folder / f"{words[0]}.log").open("w+") as log:
        child = subprocess.Popen(  # noqa: S603
            [sys.executable, script, "--inside", "app", str(writing), *words],
            cwd=folder,
            env={**environ, "CRCR_PORT": str(port), "CRCR_METRICS_PORT": str(port)},
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            text=True,
        )
        os.close(writing)
        process = Process(child, port, reading)
        try:
            process.wait_until_ready()
            yield process
        except SystemExit as failed:
            log.seek(0)
            raise SystemExit(f"{failed}\n{log.read()}") from None
        finally:
            child.terminate()
            child.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_described(pipe: int, words: list[str]) -> None:
    """Run `crcr WORDS` in this process; when standard input ends, write its routes and metrics to the pipe."""

    def describe() -> None:
        sys.stdin.read()
        with os.fdopen(pipe, "w", encoding="utf-8") as file:
            json.dump({"routes": sorted(set(_live_routes())), "metrics": dict(_live_labels())}, file)

    threading.Thread(target=describe, daemon=True).start()
    sys.argv = ["crcr", *words]
    import_module("crcr.__main__").main()


def _live_objects(kind: type[Any]) -> list[Any]:
    """Return the objects of a class that live in this process, wherever the app keeps them."""
    gc.unfreeze()  # frozen objects are not listed
    return [each for each in gc.get_objects() if isinstance(each, kind)]


def _live_routes() -> Iterator[str]:
    from starlette.applications import Starlette  # noqa: PLC0415

    for app in _live_objects(Starlette):
        yield from _paths(app.routes, "")


def _paths(routes: list[Any], before: str) -> Iterator[str]:
    for route in routes:
        path = before + getattr(route, "path", "")
        if getattr(route, "routes", None):
            yield from _paths(route.routes, path)
        elif path:
            methods = (getattr(route, "methods", None) or {"GET"}) - {"HEAD"}
            yield from (f"{method} {path}" for method in methods)


def _operations(openapi: Mapping[str, Json]) -> Iterator[str]:
    """Return the operations of `openapi.json` as routes: the framework may keep included routers to itself."""
    for path, operations in openapi["paths"].items():
        yield from (f"{method.upper()} {path}" for method in operations if method != "parameters")


def _live_labels() -> Iterator[tuple[str, list[str]]]:
    from prometheus_client import CollectorRegistry  # noqa: PLC0415
    from prometheus_client.metrics import MetricWrapperBase  # noqa: PLC0415

    for registry in _live_objects(CollectorRegistry):
        for family in registry.collect():
            in_samples = {label for sample in family.samples for label in sample.labels}
            yield family.name, sorted({*getattr(family, "_labelnames", ()), *in_samples} - {"le"})
    for metric in _live_objects(MetricWrapperBase):
        if not metric._labelvalues:  # noqa: SLF001  the labels of a metric without samples stand nowhere else
            yield metric._name, sorted(metric._labelnames)  # noqa: SLF001


# Settings and schema -------------------------------------------------------------------------------------------------


def read_settings(root: Path, folder: Path, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the settings from the two tables that `python -m crcr.docs` writes; the key stands beside the variable."""
    pages = folder / "docs"
    shutil.copytree(root / "docs", pages)
    (pages / "configuration.md").unlink(missing_ok=True)
    _run(["--folder", str(pages)], folder, environ, module="crcr.docs")
    settings = {}
    for line in (pages / "configuration.md").read_text("utf-8").splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        match cells:
            case [variable, key, meaning, default, secret] if variable.startswith("`CRCR_"):
                facts = {"key": key, "default": default, "secret": secret, "meaning": meaning}
                settings[variable.strip("`")] = facts
            case [key, variable, meaning, default] if key.startswith("`"):
                name = f"[[upstream]] {key.strip('`')}"
                settings[name] = {"variable": variable, "default": default, "meaning": meaning}
    return settings


def read_schema(folder: Path, environ: Mapping[str, str]) -> dict[str, Json]:
    """Return the tables and indexes that `crcr migrate` makes in a new SQLite file."""
    file = folder / "migrated.db"
    _run(["migrate"], folder, {**environ, "CRCR_DATABASE_URL": f"sqlite:///{file}"}, module="crcr")
    with closing(sqlite3.connect(file)) as database:
        database.row_factory = sqlite3.Row
        tables = [row for row in database.execute("PRAGMA table_list") if row["schema"] == "main"]
        others = database.execute("SELECT name, sql FROM sqlite_master WHERE type IN ('trigger', 'view')")
        return {
            "tables": {
                row["name"]: _table(database, row) for row in tables if row["name"] != "sqlite_schema"
            },
            "others": {row["name"]: row["sql"] for row in others},
            "revision": database.execute("SELECT version_num FROM alembic_version").fetchone()[0],
        }


def _table(database: sqlite3.Connection, table: sqlite3.Row) -> dict[str, Json]:
    columns = database.execute("SELECT * FROM pragma_table_xinfo(?)", [table["name"]]).fetchall()
    indexes = database.execute("SELECT * FROM pragma_index_list(?)", [table["name"]]).fetchall()
    return {
        "columns": {column["name"]: _column(column) for column in columns},
        "indexes": {index["name"]: _index(database, index) for index in indexes},
        "without_rowid": bool(table["wr"]),
    }


def _column(column: sqlite3.Row) -> str:
    facts = [
        column["type"],
        "NOT NULL" if column["notnull"] else "",
        f"DEFAULT {column['dflt_value']}" if column["dflt_value"] is not None else "",
        f"KEY {column['pk']}" if column["pk"] else "",
    ]
    return " ".join(fact for fact in facts if fact)


def _index(database: sqlite3.Connection, index: sqlite3.Row) -> str:
    columns = database.execute("SELECT name FROM pragma_index_info(?)", [index["name"]]).fetchall()
    sql = database.execute("SELECT sql FROM sqlite_master WHERE name = ?", [index["name"]]).fetchone()
    unique = "UNIQUE " if index["unique"] else ""
    text = " ".join(sql["sql"].split()) if sql and sql["sql"] else ""
    return f"{unique}({', '.join(str(column['name']) for column in columns)}) {text}".strip()


# Comparison ----------------------------------------------------------------------------------------------------------


def compare(before: Json, after: Json, *, texts: bool = False, path: str = "") -> Iterator[str]:
    """Return a line for everything that was removed, added or changed; a whole part that went is one line."""
    before, after = _as_names(before), _as_names(after)
    if isinstance(before, dict) and isinstance(after, dict):
        for name in sorted(before.keys() | after.keys(), key=str):
            place = f"{path} > {name}" if path else str(name)
            if not texts and _is_text(name, before.get(name), after.get(name), path):
                continue
            if name not in after:
                yield f"removed  {place}{_short(before[name])}"
            elif name not in before:
                yield f"added    {place}{_short(after[name])}"
            else:
                yield from compare(before[name], after[name], texts=texts, path=place)
    elif before != after:
        yield f"changed  {path}: {json.dumps(before, ensure_ascii=False)} → {json.dumps(after, ensure_ascii=False)}"


def _is_text(name: str, before: Json, after: Json, path: str) -> bool:
    """Whether this is prose; a field of the API may be called `title` or `example`, and is a schema then."""
    if path.endswith("properties"):
        return False
    return name in EXAMPLES or (
        name in TEXTS and all(isinstance(each, str | None) for each in (before, after))
    )


def _as_names(value: Json) -> Json:
    """Return a list as a mapping, by the names of its items where they have one; the order of words does not matter."""
    if not isinstance(value, list):
        return value
    if all(isinstance(each, dict) and "name" in each for each in value):
        return {f"{each['name']} in {each.get('in')}": each for each in value}
    if any(isinstance(each, dict | list) for each in value):
        return {str(number): each for number, each in enumerate(value)}
    return {str(each): True for each in value}


def _short(value: Json) -> str:
    return (
        ""
        if isinstance(value, dict | list) or value is True
        else f": {json.dumps(value, ensure_ascii=False)}"
    )


if __name__ == "__main__":
    sys.exit(main())
