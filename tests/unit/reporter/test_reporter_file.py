"""The reporter is one file for Python 3.8 without dependencies, and the action's inputs match it."""

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.downstream.reporter import ACTION, FILE, PYTHON, reporter

SOURCE = FILE.read_text()
TREE = ast.parse(SOURCE)
MODULES = {
    "__future__", "argparse", "collections", "dataclasses", "email.utils", "http.client", "ipaddress", "json", "math", "os", "random", "re",
    "ssl", "stat", "subprocess", "sys", "threading", "time", "typing", "unicodedata", "urllib.error", "urllib.parse",
    "urllib.request", "xml.parsers",
}  # fmt: skip
# Names that the standard library gained after 3.8 and that could plausibly be used in the reporter.
NEWER = {
    "removeprefix", "removesuffix", "zip_strict", "pairwise", "batched", "randbytes", "to_thread", "is_relative_to", "slots",
    "kw_only", "match_args", "TypeAlias", "ParamSpec", "Self", "Annotated", "file_digest", "UTC", "StrEnum", "cache",
    "bit_count", "ExceptionGroup", "BooleanOptionalAction", "exit_on_error", "chdir", "aclosing", "EllipsisType", "unparse",
}  # fmt: skip
ANNOTATED = {
    id(inner)
    for node in ast.walk(TREE)
    for name in ("annotation", "returns")
    if isinstance(place := getattr(node, name, None), ast.AST)
    for inner in ast.walk(place)
}


def action() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ACTION / "action.yml").read_text())
    return loaded


def test_the_reporter_parses_with_python_3_8() -> None:
    ast.parse(SOURCE, feature_version=(3, 8))


def test_no_api_newer_than_python_3_8_is_used() -> None:
    names = {node.attr for node in ast.walk(TREE) if isinstance(node, ast.Attribute)}
    names |= {node.id for node in ast.walk(TREE) if isinstance(node, ast.Name)}
    names |= {
        keyword.arg or ""
        for node in ast.walk(TREE)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
    }
    assert not names & NEWER
    parts = [node for node in ast.walk(TREE) if isinstance(node, ast.Subscript)]
    outside = [node for node in parts if not _in_annotation(node)]
    assert not [
        node for node in outside if ast.unparse(node.value) in {"dict", "list", "tuple", "set", "type"}
    ]
    assert not [node for node in ast.walk(TREE) if isinstance(node, ast.Match | ast.TryStar)]


def _in_annotation(node: ast.AST) -> bool:
    return id(node) in ANNOTATED


def test_dictionaries_are_not_merged_with_the_bar_operator() -> None:
    bars = [node for node in ast.walk(TREE) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    kept = {ast.unparse(node) for node in bars if not _in_annotation(node)}
    assert all("os.O_" in text or "getattr(os" in text for text in kept)
    assert not [
        node for node in ast.walk(TREE) if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr)
    ]


def test_only_the_standard_library_is_imported() -> None:
    imported = {alias.name for node in ast.walk(TREE) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom)}
    assert imported <= MODULES
    assert {name.partition(".")[0] for name in MODULES} <= sys.stdlib_module_names


def test_the_reporter_runs_in_isolated_mode_without_packages(tmp_path: Path) -> None:
    copy = tmp_path / "fetched.py"
    copy.write_text(SOURCE)
    words = [PYTHON, "-I", "-S", str(copy), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={}, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--status" in done.stdout


def test_the_action_passes_every_input_through_the_environment() -> None:
    definition = action()
    [step] = definition["runs"]["steps"]
    passed_inputs = {name for text in step["env"].values() for name in re.findall(r"inputs\.([a-z-]+)", text)}
    assert passed_inputs == set(definition["inputs"])
    names = {*map(reporter.variable_name, reporter.OPTIONS), "CRCR_JUNIT", "CRCR_STRICT"}
    assert set(step["env"]) <= names
    assert step["run"].splitlines()[-1] == 'python3 "$GITHUB_ACTION_PATH/report.py"'
    assert "${{" not in step["run"]


def test_status_is_the_only_required_input_of_the_action() -> None:
    required = {name for name, definition in action()["inputs"].items() if definition.get("required")}
    assert required == {"status"}
    assert {"delivery-id", "event-type", "test-results", "failed-tests-detail", "callback-url", "artifact-url", "max-time",
            "job-name", "conclusion"} <= set(action()["inputs"])  # fmt: skip


@pytest.mark.parametrize("python", ["exit 1", "exit 127"], ids=["too old", "missing"])
def test_without_python_the_action_fails_only_when_strict(tmp_path: Path, python: str) -> None:
    [step] = action()["runs"]["steps"]
    assert "continue-on-error" not in step  # it would hide that no relay is pinned
    (tmp_path / "python3").write_text(f"#!/bin/sh\n{python}\n")
    (tmp_path / "python3").chmod(0o755)
    for strict, code in (("false", 0), ("true", 1)):
        env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "CRCR_STRICT": strict, "GITHUB_ACTION_PATH": "/action"}
        words = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=env, cwd=tmp_path)
        assert done.returncode == code
        assert "no Python 3.8 or newer, so nothing was reported" in done.stdout


def test_the_action_uses_the_reporters_default_time_and_the_workflows_pins() -> None:
    [step] = action()["runs"]["steps"]
    assert action()["inputs"]["max-time"]["default"] == ""
    assert step["env"]["CRCR_RELAYS"] == "${{ inputs.relays || env.CRCR_RELAYS }}"


MEANINGS: dict[str, str] = {**reporter.OPTIONS, **reporter.SWITCHES}


@pytest.mark.parametrize("flag", MEANINGS)
def test_every_flag_has_a_variable_and_a_help_text(flag: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        reporter.parse(["--help"], {})
    help_text = " ".join(capsys.readouterr().out.partition("options:")[2].split())
    assert re.search(rf"--{flag}( TEXT| GLOB|)(, --\S+ TEXT)? {re.escape(MEANINGS[flag])}", help_text)
    options = reporter.parse([], {reporter.variable_name(flag): "true"})
    values = {
        **options.values,
        "junit": "".join(options.junit),
        "strict": options.strict,
        "dry-run": options.dry_run,
    }
    assert values[flag] in ("true", True)


def test_the_readme_has_a_row_for_every_flag_variable_and_input() -> None:
    rows = re.findall(
        r"^\| `--(.*)` \| `(.*)` \| (?:`(.*)` )?\| (.*) \|$", (ACTION / "README.md").read_text(), re.MULTILINE
    )
    assert {flag: meaning.replace("`", "") for flag, _, _, meaning in rows} == MEANINGS
    assert all(variable == reporter.variable_name(flag) for flag, variable, _, _ in rows)
    [step] = action()["runs"]["steps"]
    inputs_by_variable = {
        variable: re.findall(r"inputs\.([a-z-]+)", text) for variable, text in step["env"].items()
    }
    assert {variable: [name] for _, variable, name, _ in rows if name} == {
        variable: names for variable, names in inputs_by_variable.items() if names
    }
