"""The container file, tested without a registry: linted, its declarations read, and its build steps really run."""

import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.util import find_spec
from pathlib import Path

import pytest
import typer.main
from typer.core import TyperGroup

from crcr import __version__
from crcr.cli.main import app
from crcr.settings import Settings, settings_of
from support.data.operator_database import relay_environment
from support.deploy.deploy_files import (
    CONTAINER,
    container_stages,
    instructions,
    json_instruction,
    last_instruction,
)
from support.paths import ROOT
from support.process import free_port, installed_environment
from support.services.postgres import new_database
from test_docs import DOCS, blocks

BIN = Path(sys.executable).parent


def test_hadolint_finds_nothing() -> None:
    result = subprocess.run([BIN / "hadolint", CONTAINER], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, "")


def test_every_stage_uses_the_python_of_the_tests() -> None:
    [image] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", CONTAINER.read_text(), re.MULTILINE)
    assert re.match(r"python:3\.11\.\d+-slim@", image)
    assert {instructions("FROM", stage)[0].split()[0] for stage in range(len(container_stages()))} == {
        "${PYTHON_IMAGE}"
    }


def test_copied_files_exist_and_are_not_ignored_by_dockerignore() -> None:
    lines = [line for line in (ROOT / ".dockerignore").read_text().splitlines() if not line.startswith("#")]
    sent = {line[1:] for line in lines if line.startswith("!")}
    copied = {
        part.strip("/")
        for rest in instructions("COPY", 0)
        for part in rest.split()[:-1]
        if not part.startswith("--")
    }
    assert lines[0] == "*"
    assert copied == sent
    assert [name for name in sorted(sent) if not (ROOT / name).exists()] == []


def last_argument(name: str) -> str:
    [value] = re.findall(rf"^ARG {name}=(\S+)$", CONTAINER.read_text(), re.MULTILINE)
    return str(value)


def test_the_documented_installation_has_the_same_steps() -> None:
    """So the docs' commands are tested together with these steps, below."""
    [documented] = [body for body in blocks(DOCS / "deploy.md", "sh") if "requirements/stores.txt" in body]
    steps = "\n".join(instructions("RUN", 0)).replace("${REQUIREMENTS}", last_argument("REQUIREMENTS"))
    assert _pip_commands(documented) == _pip_commands(steps)


def _pip_commands(script: str) -> list[str]:
    """Pip's arguments, without the paths that differ between the two."""
    plain = re.sub(r"build/bin/pip|python -m pip", "PIP", re.sub(r'\\\n|"', " ", script))
    plain = re.sub(r"build/wheels|/wheels", "WHEELS", plain).replace("--force-reinstall", "")
    return sorted(" ".join(command.split()) for command in re.findall(r"PIP ([^&\n]+)", plain))


def test_it_runs_as_an_unprivileged_user_and_writes_to_one_volume() -> None:
    assert last_instruction("USER").split(":")[0] not in {"0", "root"}
    assert last_instruction("WORKDIR") == last_instruction("VOLUME") == "/var/lib/crcr"
    assert [line for line in instructions("RUN") if "apt-get" in line or "pip install" in line] == []
    assert last_instruction("STOPSIGNAL") == "SIGTERM"


def test_it_serves_on_the_exposed_port() -> None:
    assert last_instruction("EXPOSE") == settings_of(Settings)["port"].default
    command, *options = json_instruction("CMD")
    root = typer.main.get_command(app)
    assert isinstance(root, TyperGroup)
    known = {option for param in root.commands[command].params for option in param.opts}
    assert {word for word in options if word.startswith("--")} <= known
    assert json_instruction("ENTRYPOINT") == ["crcr"]


@pytest.mark.parametrize(("status", "healthy"), [(200, True), (503, False), (None, False)])
def test_the_health_check_succeeds_only_for_a_relay_that_answers(status: int | None, healthy: bool) -> None:
    words = json_instruction("HEALTHCHECK")
    assert words.pop(0) == "python"
    with serve_status(status) as port:
        result = subprocess.run(
            [sys.executable, *words],
            env={**os.environ, "CRCR_PORT": str(port)},
            capture_output=True,
            check=False,
        )
    assert (result.returncode == 0) is healthy


@contextmanager
def serve_status(status: int | None) -> Iterator[int]:
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status or 0 if self.path == "/healthz" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    if status is None:
        yield free_port()
        return
    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_build_steps_make_a_working_installation_without_an_installer(tmp_path: Path) -> None:
    source, made = tmp_path / "source", tmp_path / "crcr"
    source.mkdir()
    for name in (part for rest in instructions("COPY", 0) for part in rest.split()[:-1]):
        _copy(ROOT / name, source / name)
    _python_with_pip(tmp_path / "python")
    environ = {
        **{
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("VIRTUAL_ENV", "PYTHON"))
        },
        "PATH": f"{tmp_path / 'python' / 'bin'}:{os.environ['PATH']}",
        "REQUIREMENTS": last_argument("REQUIREMENTS"),
        "PIP_NO_COMPILE": "0",  # "0" means yes to pip: modules are compiled at their first import here
    }
    for step in instructions("RUN", 0):
        script = step.replace("/opt/crcr", str(made)).replace("/wheels", str(tmp_path / "wheels"))
        ran = subprocess.run(
            ["sh", "-ec", script], cwd=source, env=environ, capture_output=True, text=True, check=False
        )
        assert ran.returncode == 0, ran.stderr
    version = subprocess.run(
        [made / "bin" / "crcr", "--version"], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert version.stdout == f"crcr {__version__}\n"
    migrated = subprocess.run(
        [made / "bin" / "crcr", "migrate"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=installed_environment(relay_environment(tmp_path, CRCR_DATABASE_URL=new_database(empty=True))),
    )
    assert migrated.returncode == 0, migrated.stderr  # the first command of compose.yaml
    names = [path.name for path in made.glob("lib/python*/site-packages/*")]
    assert [name for name in names if fnmatch(name, "pip*") or fnmatch(name, "hatchling*")] == []


def _python_with_pip(folder: Path) -> None:
    """The image's Python: no package except pip, which is copied from the test environment."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    pip = find_spec("pip")
    assert pip is not None
    assert pip.origin is not None
    ours = Path(pip.origin).parent
    for part in (ours, *ours.parent.glob("pip-*.dist-info")):
        shutil.copytree(part, packages / part.name)


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)
