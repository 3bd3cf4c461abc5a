"""crcr installed from its wheel in new environments, with pinned packages: plain, with an extra, or the commands alone.

The plain installation is made once for all test processes, under a lock. An installation with an extra reuses it and
installs only the packages that the extra adds. uv installs them in a second, where pip takes ten;
`tests/deploy/test_container_file.py` runs the same steps with pip, as docs/deploy.md has them.
"""

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.paths import ROOT
from support.process import installed_environment

_BIN = Path(sys.executable).parent
_REQUIREMENTS = ROOT / "requirements"


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

    def pip(self, *words: str) -> str:
        """Run the test environment's pip on it: it has no pip itself."""
        command = [sys.executable, "-m", "pip", "--python", str(self.folder / "bin" / "python"), *words]
        return _run(command, self.folder)

    def install(self, *words: str) -> None:
        python = str(self.folder / "bin" / "python")
        _run([str(_BIN / "uv"), "pip", "install", "--quiet", "--python", python, *words], self.folder)


def _run(command: list[str], folder: Path, **more: str) -> str:
    done = subprocess.run(
        command, cwd=folder, env=installed_environment(more), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


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
                for name in ("crcr", "wheels"):
                    shutil.rmtree(shared / name)
                (shared / "done").unlink()


@contextmanager
def _locked(shared: Path) -> Iterator[None]:
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _install(shared: Path) -> None:
    for left in (shared / "wheels", shared / "crcr"):
        shutil.rmtree(left, ignore_errors=True)  # left by a failed attempt
    wheel = build_wheel(shared / "wheels")
    made = _new_environment(shared / "crcr")
    made.install("--require-hashes", "-r", str(_REQUIREMENTS / "app.txt"))
    made.install("--no-deps", "--no-index", str(wheel))


def build_wheel(folder: Path) -> Path:
    """Build the wheel of the checkout into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    _run([sys.executable, "-m", "hatchling", "build", "--target", "wheel", "-d", str(folder)], ROOT)
    [wheel] = folder.glob("*.whl")
    return wheel


def _new_environment(folder: Path) -> Installation:
    _run([str(_BIN / "uv"), "venv", "--quiet", "--python", sys.executable, str(folder)], folder.parent)
    return Installation(folder)


@contextmanager
def commands_installation(plain: Installation, folder: Path) -> Iterator[Installation]:
    """Crcr with `requirements/commands.txt` alone, from the wheel of the plain installation."""
    made = _new_environment(folder / "commands")
    [wheel] = (plain.folder.parent / "wheels").glob("*.whl")
    try:
        made.install("--require-hashes", "-r", str(_REQUIREMENTS / "commands.txt"))
        made.install("--no-deps", "--no-index", str(wheel))
        yield made
    finally:
        shutil.rmtree(made.folder)


@contextmanager
def with_extra(name: str, plain: Installation, folder: Path) -> Iterator[Installation]:
    """Crcr with `requirements/NAME.txt` on top of the plain installation, whose packages it shares."""
    made = _new_environment(folder / name)
    [packages] = made.folder.glob("lib/python*/site-packages")
    (packages / "plain.pth").write_text(f"{plain.folder / packages.relative_to(made.folder)}\n")
    more = folder / f"{name}-more.txt"
    more.write_text(added_pins(name))
    command = plain.crcr.read_text().replace(str(plain.folder), str(made.folder))
    made.crcr.write_text(command)
    made.crcr.chmod(0o755)
    try:
        made.install("--no-deps", "--require-hashes", "-r", str(more))
        yield made
    finally:
        shutil.rmtree(made.folder)


def added_pins(name: str) -> str:
    """The pins of `requirements/NAME.txt` that are not in `app.txt`."""
    base, more = (_pins((_REQUIREMENTS / f"{one}.txt").read_text()) for one in ("app", name))
    shared = {package for package, _ in base}
    return "".join(pin for package, pin in more if package not in shared)


def _pins(text: str) -> list[tuple[str, str]]:
    """Each pin with the name of its package; a package has several where they differ by platform."""
    pins = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    return [(pin.partition("==")[0], pin) for pin in pins]
