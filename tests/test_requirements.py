"""The declared packages, the pinned packages and the packages imported by the code are the same.

An import that works here only because a test tool installed the package would fail where crcr is installed.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from test_architecture import SIMULATOR, SOURCE, imports, modules, nodes

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "requirements"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = ("aws", "chdb", "clickhouse", "postgres", "previews", "redis", "tracing")
PINNED_IN = {"clickhouse": "stores", "postgres": "stores", "redis": "stores"}
"""Extras without their own file: the file that pins them."""
PINNED = (
    "app",
    "commands",
    "stores",
    "aws",
    "chdb",
    "previews",
    "tracing",
    "build",
    "release",
    "site",
    "dev",
)
ON_DEMAND = {"sqlalchemy.ext.asyncio": "greenlet"}
"""Packages that a module needs without importing them by name; the module's own package does not require them."""
WHERE = {
    "crcr/tracing.py": "tracing",
    "crcr/show/previews/picture.py": "previews",
    "crcr/record/store/postgres/iam_token.py": "aws",
    "crcr/record/store/postgres/": "postgres",
    "crcr/record/store/sqs_wakeups.py": "aws",
    "crcr/wiring/aws_lambda/": "aws",
    "crcr/record/sqlite_to_postgres/": "postgres",
    "crcr/record/migrations/run.py": "postgres",
    "crcr/cli/doctor/relay/postgres.py": "postgres",
    "crcr/record/limits/redis": "redis",
    "crcr/cli/doctor/relay/redis.py": "redis",
    "crcr/record/clickhouse/connection.py": "clickhouse",
    "crcr/aws_client.py": "aws",
    "crcr/deliver/handlers/dynamodb.py": "aws",
    "crcr/settings/secret_files.py": "aws",
    "crcr/receive/ingest/import_sources.py": "aws",
}
"""Modules that only an extra can load, or parts of them, by the beginning of their path."""
COMMANDS = (
    *("crcr/__main__.py", "crcr/cli/main.py", "crcr/cli/doctor/output.py", "crcr/cli/doctor/reachability.py"),
    *("crcr/cli/doctor/downstream/", "crcr/cli/failing/", "crcr/cli/init/"),
)
"""Modules of `crcr init`, `crcr doctor --relay` and `crcr failing --hud`, by the beginning of their path."""
STANDARD_LIBRARY = sys.stdlib_module_names | {"compression"}
"""Of all supported Pythons: `compression` was added in 3.14."""


def listed_requirements(name: str) -> list[Requirement]:
    """The requirements in `NAME.in` itself."""
    lines = (line.partition("#")[0].strip() for line in (FOLDER / f"{name}.in").read_text().splitlines())
    return [Requirement(line) for line in lines if line and not line.startswith("-")]


def pins(name: str) -> dict[str, set[str]]:
    """The versions that are pinned for `NAME` by package; more than one where they differ by platform."""
    versions: dict[str, set[str]] = {}
    text = (FOLDER / f"{PINNED_IN.get(name, name)}.txt").read_text()
    for package, version in re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE):
        versions.setdefault(canonicalize_name(package), set()).add(version)
    return versions


def spelled(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{canonicalize_name(requirement.name)}{extras}"


@cache
def required_by(name: str) -> frozenset[str]:
    """All packages that the requirements in `NAME.in`, and for extras in app.in, install by their own declarations."""
    pending = [*listed_requirements(name), *(listed_requirements("app") if name in EXTRAS else ())]
    seen: set[tuple[str, str]] = set()
    while pending:
        requirement = pending.pop()
        package = canonicalize_name(requirement.name)
        for extra in ("", *requirement.extras):
            if (package, extra) not in seen:
                seen.add((package, extra))
                pending += _needs(package, extra)
    return frozenset(package for package, _ in seen)


def _needs(package: str, extra: str) -> list[Requirement]:
    try:
        declared = [Requirement(line) for line in requires(package) or ()]
    except PackageNotFoundError:  # for another platform
        return []
    return [each for each in declared if each.marker is None or each.marker.evaluate({"extra": extra})]


def test_the_declared_dependencies_are_those_that_are_pinned() -> None:
    declared = {spelled(Requirement(each)) for each in PROJECT["dependencies"]}
    assert declared == {spelled(each) for each in listed_requirements("app")}
    extras = {
        name: {spelled(Requirement(each)) for each in requirements}
        for name, requirements in PROJECT["optional-dependencies"].items()
    }
    assert extras == {name: {spelled(each) for each in listed_requirements(name)} for name in EXTRAS}


@pytest.mark.parametrize("name", ["app", *EXTRAS])
def test_pinned_versions_satisfy_the_declared_ranges(name: str) -> None:
    allowed = PROJECT["dependencies"] if name == "app" else PROJECT["optional-dependencies"][name]
    for requirement in map(Requirement, allowed):
        for version in pins(name)[canonicalize_name(requirement.name)]:
            assert Version(version) in requirement.specifier


@pytest.mark.parametrize("name", ["app", "commands", *EXTRAS])
def test_tests_run_with_the_shipped_versions(name: str) -> None:
    tested = pins("dev")
    assert {each: versions for each, versions in pins(name).items() if tested.get(each) != versions} == {}


@pytest.mark.parametrize("name", ["app", "commands", *EXTRAS])
def test_fault_71_all_transitive_requirements_are_pinned(name: str) -> None:
    assert required_by(name) <= set(pins(name))


def test_fault_71_every_import_is_covered_by_the_requirements() -> None:
    shipped = [*modules(), *SIMULATOR.rglob("*.py")]
    foreign = {str(path.relative_to(SOURCE.parent)): names for path in shipped if (names := _foreign(path))}
    assert foreign == {}


def _foreign(path: Path) -> set[str]:
    """Imports of a module that the requirements do not cover."""
    module_path = str(path.relative_to(SOURCE.parent))
    extra = next((extra for beginning, extra in WHERE.items() if module_path.startswith(beginning)), "app")
    missing = _missing(imports(path), required_by(extra))
    return missing | {ON_DEMAND[name] for name in imports(path) & set(ON_DEMAND)} - required_by(extra)


def _missing(names: Collection[str], provided: Collection[str]) -> set[str]:
    """Imported names that belong to no provided package."""
    missing = set()
    for name in names:
        top = name.partition(".")[0]
        if top in {"crcr", "github_sim"} or top in STANDARD_LIBRARY:
            continue
        if not {canonicalize_name(each) for each in _packages().get(top, ())} & set(provided):
            missing.add(name)
    return missing


def test_the_commands_of_downstreams_and_oncalls_need_fewer_than_20_packages() -> None:
    """Imports inside functions are skipped: they belong to other commands, or to modules that are listed here."""
    assert len(pins("commands")) < 20
    pending = {path for path in modules() if str(path.relative_to(SOURCE.parent)).startswith(COMMANDS)}
    loaded: dict[Path, set[str]] = {}
    while pending:
        path = pending.pop()
        loaded[path] = set(_imports_at_load(nodes(path)[0]))
        pending |= {imported for name in loaded[path] for imported in _files(name)} - set(loaded)
    assert len(loaded) > 60
    missing = {path.stem: names for path in loaded if (names := _missing(loaded[path], pins("commands")))}
    assert missing == {}


def _imports_at_load(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names if _files(child.module))
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not _is_for_types(child):
            yield from _imports_at_load(child)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"


def _files(name: str) -> set[Path]:
    """Our modules that an import of this name loads: its own, and those of the packages around it."""
    parts = name.split(".")
    places = (
        [SOURCE.parent.joinpath(*parts[: end + 1]) for end in range(len(parts))] if parts[0] == "crcr" else []
    )
    both = [path for base in places for path in (base / "__init__.py", base.with_suffix(".py"))]
    return {path for path in both if path.is_file()}


@cache
def _packages() -> Mapping[str, list[str]]:
    return packages_distributions()


def test_a_plain_installation_has_no_driver_and_few_packages() -> None:
    """A relay on SQLite and all commands: the download of `uvx crcr demo`."""
    assert not required_by("app") & {
        "asyncpg",
        "clickhouse-connect",
        "greenlet",
        "redis",
        "watchfiles",
        "lz4",
    }
    assert len(pins("app")) <= 41


@pytest.mark.parametrize("name", PINNED)
def test_pins_have_hashes_and_no_index_or_url(name: str) -> None:
    text = (FOLDER / f"{name}.txt").read_text()
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert blocks
    assert [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block] == []
    assert not re.search(r"https?://|file:|--(extra-)?index-url|--find-links", text)
