"""crcr installed from its wheel in new environments, with pinned packages: plain, with an extra, or the commands alone.

The plain installation is made once for all test processes, under a lock. An installation with an extra reuses it and
installs only the packages that the extra adds. uv installs them in a second, where pip takes ten;
`tests/deploy/test_container_file.py` runs the same steps with pip, as docs/deploy.md has them. Modules whose source is the
same in the tests' environment get its byte code: to compile them takes as long as all their imports.
"""

import fcntl
import os
import re
import shutil
import struct
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, distributions
from importlib.util import MAGIC_NUMBER, cache_from_source
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from support.paths import ROOT
from support.process import installed_environment

_BIN = Path(sys.executable).parent
_REQUIREMENTS = ROOT / "requirements"
_PYC_HEAD = MAGIC_NUMBER + bytes(4)
"""Of byte code that is valid while its source has the time and size that follow."""


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

    def packages(self) -> dict[str, Distribution]:
        """What its interpreter finds installed, by name."""
        path = self.python("-c", "import sys; print(*sys.path[1:], sep='\\n')").splitlines()
        return {canonicalize_name(each.name): each for each in distributions(path=path)}

    def install(self, *words: str) -> None:
        python = str(self.folder / "bin" / "python")
        _run([str(_BIN / "uv"), "pip", "install", "--quiet", "--python", python, *words], self.folder)

    @property
    def site_packages(self) -> Path:
        [folder] = self.folder.glob("lib/python*/site-packages")
        return folder


def broken_requirements(found: dict[str, Distribution]) -> list[str]:
    """What `pip check` tells: requirements of these packages that none of them meets."""
    return [
        f"{name} needs {requirement}"
        for name, package in found.items()
        for requirement in map(Requirement, package.requires or ())
        if (requirement.marker is None or requirement.marker.evaluate({"extra": ""}))
        and not _is_met(requirement, found.get(canonicalize_name(requirement.name)))
    ]


def _is_met(requirement: Requirement, package: Distribution | None) -> bool:
    return package is not None and requirement.specifier.contains(package.version, prereleases=True)


def copy_byte_code(packages: Path) -> None:
    """Give each module the byte code that the tests have of the same source, as if it had been compiled there."""
    ours = (Path(sysconfig.get_path("purelib")), ROOT / "src")
    for module in packages.rglob("*.py"):
        name = module.relative_to(packages)
        compiled = Path(cache_from_source(str(module)))
        for original in (place / name for place in ours):
            if not compiled.exists() and (code := _byte_code(original, module)):
                compiled.parent.mkdir(exist_ok=True)
                compiled.write_bytes(code)


def _byte_code(original: Path, copy: Path) -> bytes | None:
    """The byte code of the original for its copy, unless there is none or the two differ."""
    try:
        code = Path(cache_from_source(str(original))).read_bytes()
        if code[:8] != _PYC_HEAD or code[8:16] != _time_and_size(original):
            return None  # of another Python, or older than its source
        return (
            code[:8] + _time_and_size(copy) + code[16:]
            if original.read_bytes() == copy.read_bytes()
            else None
        )
    except FileNotFoundError:
        return None


def _time_and_size(path: Path) -> bytes:
    status = path.stat()
    return struct.pack("<II", int(status.st_mtime) & 0xFFFFFFFF, status.st_size & 0xFFFFFFFF)


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
    copy_byte_code(made.site_packages)


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
    (made.site_packages / "plain.pth").write_text(f"{plain.site_packages}\n")
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
