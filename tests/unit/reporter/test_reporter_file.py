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
# Names that came to the standard library after 3.8, as far as somebody might reach for them here.
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


def test_python_3_8_can_read_it() -> None:
    ast.parse(SOURCE, feature_version=(3, 8))


def test_nothing_is_used_that_python_3_8_lacks() -> None:
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


def _in_annotation(wanted: ast.AST) -> bool:
    return id(wanted) in ANNOTATED


def test_dictionaries_are_not_joined_by_a_bar() -> None:
    bars = [node for node in ast.walk(TREE) if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr)]
    kept = {ast.unparse(node) for node in bars if not _in_annotation(node)}
    assert all("os.O_" in text or "getattr(os" in text for text in kept)
    assert not [
        node for node in ast.walk(TREE) if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.BitOr)
    ]


def test_only_the_standard_library_is_imported() -> None:
    found = {alias.name for node in ast.walk(TREE) if isinstance(node, ast.Import) for alias in node.names}
    found |= {node.module or "" for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom)}
    assert found <= MODULES
    assert {name.partition(".")[0] for name in MODULES} <= sys.stdlib_module_names


def test_it_runs_alone_without_anything_installed(tmp_path: Path) -> None:
    alone = tmp_path / "fetched.py"
    alone.write_text(SOURCE)
    words = [PYTHON, "-I", "-S", str(alone), "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, env={}, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "--status" in done.stdout


def test_the_action_hands_every_input_on_through_the_environment() -> None:
    told = action()
    [step] = told["runs"]["steps"]
    handed_on = {name for text in step["env"].values() for name in re.findall(r"inputs\.([a-z-]+)", text)}
    assert handed_on == set(told["inputs"])
    names = {*map(reporter.variable_name, reporter.OPTIONS), "CRCR_JUNIT", "CRCR_STRICT"}
    assert set(step["env"]) <= names
    assert step["run"].splitlines()[-1] == 'python3 "$GITHUB_ACTION_PATH/report.py"'
    assert "${{" not in step["run"]


def test_the_shortest_steps_are_complete() -> None:
    required = {name for name, each in action()["inputs"].items() if each.get("required")}
    assert required == {"status"}
    assert {"delivery-id", "event-type", "test-results", "failed-tests-detail", "callback-url", "artifact-url", "max-time",
            "job-name", "conclusion"} <= set(action()["inputs"])  # fmt: skip


@pytest.mark.parametrize("python", ["exit 1", "exit 127"], ids=["too old", "missing"])
def test_a_machine_without_python_fails_the_action_only_where_it_is_strict(
    tmp_path: Path, python: str
) -> None:
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


def test_the_action_has_the_reporters_own_time_and_the_workflows_pins() -> None:
    [step] = action()["runs"]["steps"]
    assert action()["inputs"]["max-time"]["default"] == ""
    assert step["env"]["CRCR_RELAYS"] == "${{ inputs.relays || env.CRCR_RELAYS }}"


MEANINGS: dict[str, str] = {**reporter.OPTIONS, **reporter.SWITCHES}


@pytest.mark.parametrize("flag", MEANINGS)
def test_every_flag_is_also_a_variable_and_explained_by_the_help(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        reporter.parse(["--help"], {})
    told = " ".join(capsys.readouterr().out.partition("options:")[2].split())
    assert re.search(rf"--{flag}( TEXT| GLOB|)(, --\S+ TEXT)? {re.escape(MEANINGS[flag])}", told)
    asked = reporter.parse([], {reporter.variable_name(flag): "true"})
    values = {**asked.values, "junit": "".join(asked.junit), "strict": asked.strict, "dry-run": asked.dry_run}
    assert values[flag] in ("true", True)


def test_the_readme_has_a_row_for_every_flag_variable_and_input() -> None:
    rows = re.findall(
        r"^\| `--(.*)` \| `(.*)` \| (?:`(.*)` )?\| (.*) \|$", (ACTION / "README.md").read_text(), re.MULTILINE
    )
    assert {flag: meaning.replace("`", "") for flag, _, _, meaning in rows} == MEANINGS
    assert all(variable == reporter.variable_name(flag) for flag, variable, _, _ in rows)
    [step] = action()["runs"]["steps"]
    handed_on = {variable: re.findall(r"inputs\.([a-z-]+)", text) for variable, text in step["env"].items()}
    assert {variable: [name] for _, variable, name, _ in rows if name} == {
        variable: names for variable, names in handed_on.items() if names
    }
