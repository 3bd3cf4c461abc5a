"""The docs compared with the code: facts that are in both must be equal."""

import ast
import importlib
import json
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest
import typer.main
import yaml
from typer.core import TyperGroup

from crcr.app import STATUS
from crcr.cli.main import app as cli
from crcr.decide.allowlist.check import _OPTIONS
from crcr.decide.dispatch.payload import STEPS
from crcr.decide.model import DispatchState, EffectKind, JobMark, Level
from crcr.decide.oidc.identity import IssuerKind
from crcr.receive.allowlist_yaml import read_allowlist
from crcr.record.clickhouse.tables import TABLES
from crcr.settings import Settings, UpstreamSetting, settings_of
from crcr.show.metrics.registry import RelayMetrics
from support.running_relay import running_relay
from test_architecture import ALLOWED

if TYPE_CHECKING:
    from fastapi import FastAPI

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "crcr"
DOCS = ROOT / "docs"
PAGES = sorted((*ROOT.glob("*.md"), *DOCS.rglob("*.md")))
ADRS = sorted((DOCS / "adr").glob("*.md"))
ABOUT_CODE = [DOCS / "architecture.md", DOCS / "patterns.md", DOCS / "security.md", *ADRS]

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_SPAN = re.compile(r"`([^`\n]+)`")
_LEVELS = {"debug", "info", "warning", "error", "critical", "exception"}

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return [body for name, body in _BLOCK.findall(text_of(page)) if name == language]


def prose(page: Path) -> str:
    return _BLOCK.sub("", text_of(page))


def code(page: Path) -> list[str]:
    """Every code span, and every line of a code block."""
    lines = [line for _, body in _BLOCK.findall(text_of(page)) for line in body.splitlines()]
    return [*_SPAN.findall(prose(page)), *lines]


def section(page: Path, title: str) -> str:
    """The text under a heading, up to the next one of the same rank."""
    match = re.search(
        rf"^(#+) {re.escape(title)}\n(.*?)(?=^#{{1,2}} |\Z)", text_of(page), re.DOTALL | re.MULTILINE
    )
    assert match, f"{page.name} has no section {title}"
    return match[2]


def table(text: str) -> list[list[str]]:
    """The rows of the first table, without its head."""
    lines = iter(text.splitlines())
    next(line for line in lines if line.startswith("| ---"))
    rows_ = takewhile(lambda line: line.startswith("|"), lines)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in rows_]


def names(cell: str) -> list[str]:
    return _SPAN.findall(cell)


def test_the_documented_error_codes_are_those_of_the_app() -> None:
    written = {
        names(code)[0]: int(status) for code, status, _ in table(section(DOCS / "protocol.md", "Errors"))
    }
    assert written == STATUS


def test_the_documented_dependency_table_is_the_tested_one() -> None:
    rule = table(section(DOCS / "architecture.md", "Dependency rule"))
    written = {_room(room): _rooms(allowed) for room, allowed in rule}
    assert written == ALLOWED


def _room(cell: str) -> str:
    return "" if cell == "the package" else names(cell)[0]


def _rooms(cell: str) -> set[str]:
    if cell == "everything":
        return {"*"}
    return {*names(cell), *([""] if "the package" in cell else [])}


def reporter_variables() -> set[str]:
    """The reporter's own variables: one for each of its flags, as its help lists them."""
    help_output = subprocess.run(
        [sys.executable, str(ROOT / "action" / "report.py"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        f"CRCR_{flag.upper().replace('-', '_')}"
        for flag in re.findall(r"--([a-z][a-z-]+)", help_output.stdout)
    }


COMMAND_VARIABLES = {"CRCR_TOKEN", *reporter_variables()}
"""Variables that a command reads itself: not settings of the relay."""


@every_page
def test_every_named_setting_exists(page: Path) -> None:
    known = {row.variable: row for row in settings_of(Settings).values()}
    known |= {row.variable: row for row in settings_of(UpstreamSetting).values() if row.env}
    files = {f"{name}_FILE" for name, row in known.items() if row.secret}
    assert set(re.findall(r"\bCRCR_[A-Z_]*[A-Z]", text_of(page))) <= {*known, *files, *COMMAND_VARIABLES}


@every_page
def test_every_named_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {
        target for part in code(page) for target in re.findall(r"^make (?:[A-Z]+=\S+ )*([a-z][a-z-]*)", part)
    }
    assert named <= targets


@every_page
def test_every_link_has_a_target(page: Path) -> None:
    broken = [
        link for link in re.findall(r"\]\(([^)\s]+)\)", prose(page)) if not _leads_somewhere(page, link)
    ]
    assert broken == []


def test_every_shown_picture_exists() -> None:
    """`make screenshots` creates them."""
    shown = r"!\[[^\]]*\]\(([^)\s]+)\)|(?:src|srcset)=\"([^\"]+)\""
    pictures = {page.parent / "".join(link) for page in PAGES for link in re.findall(shown, page.read_text())}
    assert len(pictures) > 5
    assert [str(picture) for picture in sorted(pictures) if not picture.is_file()] == []


def _leads_somewhere(page: Path, link: str) -> bool:
    if "://" in link or link.startswith("docs/images/"):
        return True
    path, _, anchor = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not anchor or anchor in _anchors(target))


def _anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@every_page
def test_every_named_file_exists(page: Path) -> None:
    form = re.compile(r"(?:src|tests|bench|docs|requirements|tools|\.ci)(?:/[\w.*-]+)+/?")
    named = {part for part in _SPAN.findall(prose(page)) if form.fullmatch(part)}
    assert [path for path in sorted(named) if not list(ROOT.glob(path.rstrip("/")))] == []


@pytest.mark.parametrize("page", ABOUT_CODE, ids=lambda path: path.name)
def test_every_named_module_or_member_of_one_exists(page: Path) -> None:
    rooms = "|".join(sorted(room for room in ALLOWED if room.isidentifier() and room != "__main__"))
    form = re.compile(rf"(?:crcr\.)?((?:{rooms})(?:\.\w+)+)|crcr\.({rooms})")
    named = {match[1] or match[2] for part in _SPAN.findall(prose(page)) if (match := form.fullmatch(part))}
    assert [name for name in sorted(named) if not _is_ours(name)] == []


def test_the_folders_and_modules_in_the_tree_exist() -> None:
    """A name in a folder's row, such as `http.transport` of `src/crcr/github`, is a module or package in that folder."""
    rows = [
        (names(folder), names(content))
        for folder, content in table(section(DOCS / "architecture.md", "The tree"))
    ]
    missing = [
        f"{folder}: {name}"
        for (folder, *_), inside in rows
        for name in inside
        if (ROOT / folder).is_dir() and re.fullmatch(r"[a-z_]+(?:\.[a-z_]+)*", name)
        if not any((ROOT / folder / f"{name.replace('.', '/')}{end}").exists() for end in ("", ".py"))
    ]
    assert missing == []


def test_every_named_python_file_or_private_name_exists() -> None:
    """Names without a folder or module: `registry.py`, `_READERS`."""
    form = re.compile(r"(?:\w+/)*\w+\.py|_[A-Za-z]\w+")
    pages = [*ABOUT_CODE, ROOT / "CONTRIBUTING.md"]
    named = {
        (page.name, part) for page in pages for part in _SPAN.findall(prose(page)) if form.fullmatch(part)
    }
    sources = [
        path
        for folder in ("src", "tests", "bench", "action", "tools")
        for path in (ROOT / folder).rglob("*.py")
    ]
    paths = [path.as_posix() for path in sources]
    words = {word for path in sources for word in re.findall(r"\b_[A-Za-z]\w+", path.read_text("utf-8"))}
    missing = [
        (page, part)
        for page, part in sorted(named)
        if part not in words and not any(path.endswith(f"/{part}") for path in paths)
    ]
    assert missing == []


def _is_ours(name: str) -> bool:
    """Whether a dotted name is a module, or something that a module defines, as `record.jobs.reports.take` is."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = SOURCE.joinpath(*parts[:length])
        module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
        if module.exists():
            tree = ast.parse(module.read_text(encoding="utf-8"))
            return set(parts[length:]) <= set(_defined(tree))
    return False


def _defined(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name


def test_the_documented_log_events_are_those_of_the_code() -> None:
    listed = [names(row[0])[0] for row in table(section(DOCS / "observe.md", "Logs"))]
    assert len(listed) == len(set(listed))
    paths = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] != "sim"]
    assert set(listed) == {event for path in paths for event in _logged(ast.parse(path.read_text("utf-8")))}


def _logged(tree: ast.AST) -> Iterator[str]:
    """Events of `log.info("event")`, also where the event is chosen first: `event = "a" if … else "b"`."""
    chosen = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _LEVELS:
            logger = ast.unparse(node.func.value)
            if logger == "log" or logger.startswith("structlog.get_logger("):
                yield from _events(node.args[0], chosen)


def _events(value: ast.expr, chosen: dict[str, ast.expr]) -> Iterator[str]:
    match value:
        case ast.Constant(value=str(event)):
            yield event
        case ast.IfExp(body=body, orelse=orelse):
            yield from _events(body, chosen)
            yield from _events(orelse, chosen)
        case ast.Name(id=name):
            yield from _events(chosen[name], {})
        case _:
            raise AssertionError(f"not a constant event: {ast.unparse(value)}")


def test_the_documented_metrics_are_the_registered_ones() -> None:
    listed = {names(row[0])[0]: row[1] for row in table(section(DOCS / "observe.md", "Metrics"))}
    registered = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in RelayMetrics().registry.collect()
        if not family.name.startswith("process_")  # Prometheus' own, the same everywhere
    }
    assert set(listed) == registered
    elsewhere = {
        metric
        for page in PAGES
        for metric in re.findall(r"\bcrcr_[a-z_]+", text_of(page))
        if metric not in {"crcr_test", "crcr_bisection", "crcr_pair", "crcr_workflow_job"}
    }
    assert elsewhere <= registered | {each.name for each in TABLES}


def commands() -> dict[str, set[str]]:
    """The options of every command, by the command's words."""
    root = typer.main.get_command(cli)
    assert isinstance(root, TyperGroup)
    options_by_command = {}
    for name, command in root.commands.items():
        inside = (
            {f"{name} {sub}": each for sub, each in command.commands.items()}
            if isinstance(command, TyperGroup)
            else {}
        )
        for words, each in (inside or {name: command}).items():
            options_by_command[words] = {option for param in each.params for option in param.opts}
    return options_by_command


@every_page
def test_every_named_command_exists_with_its_options(page: Path) -> None:
    known = commands()
    groups = {words.split()[0] for words in known if " " in words}
    wrong = []
    for part in code(page):
        for words, rest in re.findall(r"^(?:\.venv/bin/)?crcr((?: [a-z][a-z-]*)+)([^#]*)", part):
            one, *more = words.split()
            if one in groups and not more:
                continue
            options = known.get(f"{one} {more[0]}" if one in groups else one)
            if options is None or not set(re.findall(r"--[a-z-]+", rest)) <= {*options, "--help"}:
                wrong.append(part)
    assert wrong == []


def test_every_command_is_documented_for_operators() -> None:
    page = "\n".join(part for name in ("deploy", "observe", "maintain") for part in code(DOCS / f"{name}.md"))
    assert [words for words in commands() if not re.search(rf"\bcrcr {words}\b", page)] == []


async def test_the_documented_routes_are_those_of_the_app(tmp_path: Path) -> None:
    written = {
        route for row in table(section(DOCS / "protocol.md", "HTTP surface")) for route in names(row[0])
    }
    async with running_relay(tmp_path, "L1:\n  - org/repo\n", downstreams=("org/repo",)) as relay:
        served = {f"POST {path}" for path in relay.app._hot}
        for route in relay.app.inner.routes:
            methods = getattr(route, "methods", None) or {"GET"}
            served |= {f"{method} {getattr(route, 'path', '')}" for method in methods - {"HEAD"}}
        for path, item in cast("FastAPI", relay.app.inner).openapi()["paths"].items():
            served |= {f"{method.upper()} {path}" for method in item}
    assert written == {route for route in served if not route.endswith(" ")}


def test_the_documented_allowlist_options_are_those_of_the_parser() -> None:
    page = DOCS / "protocol.md"
    assert {names(row[0])[0] for row in table(section(page, "Allowlist"))} == set(_OPTIONS)
    [example] = blocks(page, "yaml")
    assert [each for each in read_allowlist(example).problems if each.severity == "error"] == []


def test_the_documented_fields_of_a_report_are_parsed() -> None:
    fields = {name for row in table(section(DOCS / "protocol.md", "Callback in")) for name in names(row[0])}
    assert len(fields) > 10
    source = (SOURCE / "receive" / "callback" / "parse_report.py").read_text(encoding="utf-8")
    read = set(re.findall(r'"([\w.]+)"', source))
    assert [name for name in sorted(fields) if not {name, name.removeprefix("workflow.")} & read] == []


def test_the_documented_trimming_steps_are_those_of_the_code() -> None:
    written = [name for row in table(section(DOCS / "protocol.md", "Trimming")) for name in names(row[1])]
    assert list(dict.fromkeys(written)) == list(dict.fromkeys(name for name, _ in STEPS))


def test_all_kinds_of_issuers_and_effects_are_documented() -> None:
    issuers = {names(row[0])[0] for row in table(section(DOCS / "protocol.md", "Issuers"))}
    assert issuers == {kind.value for kind in IssuerKind}
    assert {kind.value for kind in EffectKind} <= set(
        _SPAN.findall(section(DOCS / "architecture.md", "Outbox"))
    )


def test_the_glossary_is_sorted_without_duplicates() -> None:
    words = [row[0] for row in table(text_of(DOCS / "glossary.md"))]
    assert [one for one, other in pairwise(words) if one.lower() >= other.lower()] == []
    ours = {"upstream", "downstream", "delivery", "dispatch", "run", "attempt", "job", "report", "effect"}
    assert {*ours, *JobMark, DispatchState.HELD, DispatchState.PARKED} <= set(words)


def test_decisions_are_numbered_without_gaps_and_have_their_parts() -> None:
    assert [path.name[:4] for path in ADRS] == [f"{number:04}" for number in range(1, len(ADRS) + 1)]
    parts = ["Context", "Decision", "Consequences", "What would change our mind"]
    for number, path in enumerate(ADRS, start=1):
        assert re.findall(r"^## (.+)$", prose(path), re.MULTILINE) == parts, path.name
        assert text_of(path).startswith(f"# {number}. "), path.name


def test_every_library_has_a_documented_reason() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    dependencies = {re.split(r"[\[>=]", each)[0] for each in project["project"]["dependencies"]}
    reasons = text_of(DOCS / "adr" / "0002-libraries.md").lower()
    assert [name for name in sorted(dependencies) if name not in reasons] == []


def test_the_readme_has_the_two_commands_and_every_level() -> None:
    readme = text_of(ROOT / "README.md")
    assert "make demo" in readme
    assert "make test" in readme
    assert [level.name for level in Level if f"| {level.name} " not in readme] == []


def test_every_page_is_linked_from_the_readme_directly_or_indirectly() -> None:
    seen, waiting = set[Path](), [ROOT / "README.md"]
    while waiting:
        page = waiting.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        links = re.findall(r"\]\(([^)#\s]+)", prose(page))
        places = [(page.parent / link).resolve() for link in links if "://" not in link]
        waiting += [each for path in places for each in ([path] if path.is_file() else path.glob("*.md"))]
    assert [page.name for page in PAGES if page not in seen] == []


@every_page
def test_every_json_toml_and_yaml_block_can_be_parsed(page: Path) -> None:
    for body in blocks(page, "json"):
        json.loads(body)
    for body in blocks(page, "toml"):
        tomllib.loads(body)
    for body in blocks(page, "yaml"):
        yaml.safe_load(body)


@every_page
def test_no_page_refers_to_paths_outside_the_repository(page: Path) -> None:
    assert re.findall(r"\.\./shared|/work/|/home/\w+|/root/", text_of(page)) == []


def test_the_generated_pages_are_up_to_date() -> None:
    docs = importlib.import_module("crcr.docs")
    assert [path.name for path in docs.outdated(DOCS)] == []
