"""Builds the package of the Lambda functions into dist/: `make lambda`, or `make lambda ARCH=arm64`.

The package holds the pinned packages of requirements/aws.txt and crcr, without what a function never loads, and with byte code:
the folder of a function is read-only, so that without it each cold start would compile every module. The same checkout gives
the same bytes. All functions use one package; the name of the handler decides (docs/aws.md).
"""

import argparse
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
RUNTIME = "3.13"
"""The Python of `Runtime` in deploy/aws/template.yaml."""
PLATFORMS = {"x86_64": "x86_64-manylinux_2_28", "arm64": "aarch64-manylinux_2_28"}
MOST_BYTES = 50 * 1024 * 1024
"""What Lambda takes as an upload."""
SERVICES = {"dynamodb", "secretsmanager", "sqs", "ssm", "sts"}
"""The services of AWS that we call; botocore has the descriptions of 400."""
_LEFT_OUT = (
    *(
        "bin/*",
        "include/*",
        "share/*",
        "*/tests/*",
        "*.pyi",
        "*.pyx",
        "*.pxd",
        "*.c",
        "*.h",
        "*.cpp",
        "*/py.typed",
    ),
    *("*.dist-info/RECORD", "*.dist-info/INSTALLER", "*.dist-info/REQUESTED", "*.dist-info/direct_url.json"),
    *("*.dist-info/uv_cache.json", "uvloop*", "httptools*", "pygments*", "rich*", "github_sim/*"),
    *("sqlalchemy/testing/*", "sqlalchemy/dialects/m*", "sqlalchemy/dialects/oracle/*", "alembic/testing/*"),
    *(
        "typer*",
        "click-*",
        "click/*",
        "shellingham*",
        "uvicorn*",
        "h11/tests/*",
        "pydantic/mypy.py",
        "markdown_it/cli/*",
    ),
    *("crcr/demo/*", "crcr/cli/*", "crcr/docs.py", "crcr/__main__.py", ".lock", "botocore/.changes/*"),
)
"""Files of no use in a function: of installers, compilers and tests; the command line, the demo and the HTTP server."""
_COMPILE = """
import pathlib, py_compile, sys
folder, part = pathlib.Path(sys.argv[1]), int(sys.argv[2])
for path in sorted(folder.rglob("*.py"))[part::2]:
    py_compile.compile(str(path), dfile=f"/var/task/{path.relative_to(folder)}", doraise=True,
                       invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
"""


class NotBuildable(Exception):
    """The package cannot be built; the message says what to do."""


def run(*command: str | Path, folder: Path = ROOT, **environ: str) -> str:
    done = subprocess.run(  # noqa: S603  commands of ours
        [str(word) for word in command],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotBuildable(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def install(folder: Path, python: str, architecture: str) -> None:
    """Install the pinned packages for Lambda's platform, and the code of this checkout."""
    run(
        BIN / "uv",
        *("pip", "install", "--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes"),
        *("--python-version", python, "--python-platform", PLATFORMS[architecture]),
        *("--target", folder, "-r", ROOT / "requirements" / "aws.txt"),
    )
    for package in tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"][
        "wheel"
    ]["packages"]:
        source = ROOT / package
        shutil.copytree(source, folder / source.name, ignore=shutil.ignore_patterns("__pycache__"))


def remove_unused(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if (path.is_file() or path.is_symlink()) and (_is_left_out(name) or _is_other_service(name)):
            path.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not any(path.iterdir()):
            path.rmdir()


def _is_left_out(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in _LEFT_OUT)


def _is_other_service(name: str) -> bool:
    parts = name.split("/")
    return parts[:2] == ["botocore", "data"] and len(parts) > 3 and parts[2] not in SERVICES


def compile_modules(folder: Path, python: str) -> None:
    """Write byte code that is used without a look at its source; by the Python that will run it, in a fixed order."""
    try:
        interpreter = run(BIN / "uv", "python", "find", "--no-python-downloads", python).strip()
    except NotBuildable:
        raise NotBuildable(
            f"byte code for Lambda needs Python {python} on this machine: `uv python install {python}`"
        ) from None
    with ThreadPoolExecutor(2) as threads:
        parts = [
            threads.submit(run, interpreter, "-S", "-c", _COMPILE, folder, part, PYTHONHASHSEED="0")
            for part in ("0", "1")
        ]
    for part in parts:
        part.result()


def pack(folder: Path, package: Path) -> None:
    """Write the files in the order of their names, without times, owners and the modes of this machine."""
    package.parent.mkdir(parents=True, exist_ok=True)
    with ZipFile(package, "w") as packed:
        for path in _files(folder):
            entry = ZipInfo(path.relative_to(folder).as_posix(), (1980, 1, 1, 0, 0, 0))
            entry.compress_type = ZIP_DEFLATED
            entry.create_system = 3
            entry.external_attr = (
                0o100755 if path.suffix == ".so" or ".so." in path.name else 0o100644
            ) << 16
            packed.writestr(entry, path.read_bytes())


def _files(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def build(dist: Path, python: str, architecture: str) -> Path:
    package = dist / f"crcr-lambda-python{python}-{architecture}.zip"
    with TemporaryDirectory(prefix="crcr-lambda-") as name:
        folder = Path(name) / "task"
        install(folder, python, architecture)
        remove_unused(folder)
        compile_modules(folder, python)
        pack(folder, package)
    size = package.stat().st_size
    if size >= MOST_BYTES:
        raise NotBuildable(f"{package.name} has {size:,} bytes, and Lambda takes {MOST_BYTES:,}")
    return package


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder for the package")
    parser.add_argument("--python", default=RUNTIME, help="the version of Python that the functions run on")
    parser.add_argument("--architecture", choices=PLATFORMS, default="x86_64")
    options = parser.parse_args()
    try:
        package = build(options.dist.resolve(), options.python, options.architecture)
    except NotBuildable as reason:
        sys.exit(f"no package: {reason}")
    print(f"{package} {package.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
