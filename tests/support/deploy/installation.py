"""crcr installed by the commands of docs/deploy.md, in a new environment, from a copy of the sources.

The plain installation is made once for all test processes, under a lock. An installation with an extra reuses it and
installs only the packages that the extra adds.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT
from support.process import installed_environment
from test_docs import DOCS, blocks

_SHIPPED = ("pyproject.toml", "README.md", "LICENSE", "action", "src", "requirements")
_PLACE = "/opt/crcr"


@dataclass(frozen=True)
class Installation:
    folder: Path

    @property
    def crcr(self) -> Path:
        return self.folder / "bin" / "crcr"

    def python(self, *words: str) -> str:
        """Run its interpreter outside the checkout; return its output."""
        command = [str(self.folder / "bin" / "python"), *words]
        return _run(command, self.folder)

    def pip(self, *words: str, **more: str) -> str:
        """Run the test environment's pip on it: it has no pip itself."""
        command = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python"), *words]
        return _run(command, self.folder, **more)


def _run(command: list[str], folder: Path, **more: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=installed_environment(more), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def documented_commands() -> str:
    """The block of docs/deploy.md that installs the package."""
    [block] = [body for body in blocks(DOCS / "deploy.md", "sh") if "requirements/app.txt" in body]
    return block


@contextmanager
def plain_installation(shared: Path) -> Iterator[Installation]:
    """Crcr with `requirements/app.txt` alone, in a folder that test processes share; the last process removes it."""
    shared.mkdir(exist_ok=True)
    user = shared / f"user-{os.getpid()}"
    with _locked(shared):
        user.touch()
        if not (shared / "done").exists():
            _install(shared)
            (shared / "done").touch()
    try:
        yield Installation(shared / "crcr")
    finally:
        with _locked(shared):
            user.unlink()
            if not list(shared.glob("user-*")):
                for name in ("crcr", "source"):
                    shutil.rmtree(shared / name)
                (shared / "done").unlink()


@contextmanager
def _locked(shared: Path) -> Iterator[None]:
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(shared: Path) -> None:
    source, place = shared / "source", shared / "crcr"
    for left in (source, place):
        shutil.rmtree(left, ignore_errors=True)  # left by a failed attempt
    source.mkdir()
    for name in _SHIPPED:
        _copy(ROOT / name, source / name)
    _write_documentation(source / "src" / "crcr" / "show" / "help" / "site")
    commands = documented_commands()
    assert _PLACE in commands
    # `python3` of the commands is the interpreter of the tests.
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    # To pip, "0" means that nothing is compiled: each module compiles itself when it is first imported.
    _run(["sh", "-euc", commands.replace(_PLACE, str(place))], source, PATH=path, PIP_NO_COMPILE="0")


def _write_documentation(site: Path) -> None:
    """A front page in place of the site that `make site` builds: git ignores it, and the wheel must still have it."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir()
    (site / "index.html").write_text("<!doctype html><h1>The documentation</h1>")


def _copy(source: Path, target: Path) -> None:
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


@contextmanager
def with_extra(name: str, plain: Installation, folder: Path) -> Iterator[Installation]:
    """Crcr with `requirements/NAME.txt` on top of the plain installation's packages."""
    made = Installation(folder / name)
    _run([str(plain.folder / "bin" / "python"), "-m", "venv", "--without-pip", str(made.folder)], folder)
    [packages] = made.folder.glob("lib/python*/site-packages")
    (packages / "plain.pth").write_text(f"{plain.folder / packages.relative_to(made.folder)}\n")
    [wheel] = (plain.folder.parent / "source" / "build" / "wheels").glob("*.whl")
    try:
        made.pip(
            "install", "--no-compile", "--require-hashes", "-r", str(ROOT / "requirements" / f"{name}.txt")
        )
        made.pip("install", "--no-compile", "--no-deps", "--no-index", "--ignore-installed", str(wheel))
        yield made
    finally:
        shutil.rmtree(made.folder)
