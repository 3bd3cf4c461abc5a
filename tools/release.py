"""Builds a release into dist/ and checks it: wheel, sdist, bill of materials, checksums. `make release` runs it.

Nothing is uploaded here: `.github/workflows/release.yml` does that with what this made. docs/release.md has the steps.
Everything that is built is built twice and compared, so that anybody can build the same bytes from the same commit.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parent.parent
BIN = Path(sys.executable).parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
OPTIONAL_TARGETS = ("site", "lambda")
"""Targets of the Makefile that add to a release, where they exist."""


class NotReleasable(Exception):
    """The release cannot be made; the message says what to do."""


def read_version() -> str:
    text = (ROOT / "src" / "crcr" / "__init__.py").read_text(encoding="utf-8")
    found = re.search(r'^__version__ = "(.+)"$', text, re.MULTILINE)
    if found is None:
        raise NotReleasable("src/crcr/__init__.py has no version")
    return found[1]


def check_names(version: str, *, tag: str | None, repository: str | None) -> None:
    """Refuse a version without a section of the changelog, another tag, and another repository than the package names."""
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        raise NotReleasable(f"CHANGELOG.md has no section for {version}")
    if tag is not None and tag != f"v{version}":
        raise NotReleasable(f"the tag is {tag}, and src/crcr/__init__.py says {version}")
    named = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    if repository is not None and repository != named:
        raise NotReleasable(f"pyproject.toml names {named}, and this is {repository}")


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
        raise NotReleasable(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def source_date() -> str:
    """The time that all files of a build carry: SOURCE_DATE_EPOCH, or that of the last commit."""
    return os.environ.get("SOURCE_DATE_EPOCH") or run("git", "log", "-1", "--format=%ct").strip()


def build(source: Path, folder: Path, date: str, *targets: str) -> dict[str, Path]:
    """Build these targets of hatchling; return the files by name."""
    folder.mkdir(parents=True, exist_ok=True)
    for target in targets:
        run(
            BIN / "python",
            *("-m", "hatchling", "build", "-t", target, "-d", str(folder)),
            folder=source,
            SOURCE_DATE_EPOCH=date,
        )
    return {path.name: path for path in folder.iterdir() if path.name.endswith((".whl", ".tar.gz"))}


def build_package(dist: Path, scratch: Path, date: str) -> Path:
    """Build wheel and sdist twice, and the wheel from the sdist; return the wheel."""
    built = build(ROOT, dist, date, "sdist", "wheel")
    require_same(built, build(ROOT, scratch / "again", date, "sdist", "wheel"))
    [sdist] = (path for name, path in built.items() if name.endswith(".tar.gz"))
    with tarfile.open(sdist) as packed:
        # It has a link, which stays inside. Python before 3.11.4, as in Debian 12, has no filters: the archive is our own.
        packed.extraction_filter = getattr(tarfile, "tar_filter", None)
        packed.extractall(scratch / "sdist")  # noqa: S202
    [source] = (scratch / "sdist").iterdir()
    require_same(
        {name: path for name, path in built.items() if name.endswith(".whl")},
        build(source, scratch / "from-sdist", date, "wheel"),
    )
    [wheel] = dist.glob("*.whl")
    return wheel


def require_same(first: dict[str, Path], second: dict[str, Path]) -> None:
    differing = [
        name for name in first if name not in second or first[name].read_bytes() != second[name].read_bytes()
    ]
    if differing:
        raise NotReleasable(f"built twice, these differ: {', '.join(differing)}")


def new_environment(folder: Path, python: str, *requirements: str) -> Path:
    """An environment with these pinned requirements; return its interpreter."""
    run(BIN / "uv", "venv", "--quiet", "--no-python-downloads", "--python", python, folder)
    interpreter = folder / "bin" / "python"
    for name in requirements:
        pins = ROOT / "requirements" / f"{name}.txt"
        run(BIN / "uv", "pip", "install", "--quiet", "--python", interpreter, "--require-hashes", "-r", pins)
    return interpreter


def write_bill_of_materials(dist: Path, scratch: Path, version: str, date: str) -> Path:
    """Write the packages of a full installation with versions, licences and relations, as CycloneDX JSON.

    The writer validates it against CycloneDX's schema. It does not know dynamic fields, so it gets the version as text.
    """
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    (scratch / "pyproject.toml").write_text(
        project.replace('dynamic = ["version", "readme"]', f'version = "{version}"')
    )
    tools = new_environment(scratch / "tools", sys.executable, "release")
    installed = new_environment(scratch / "full", sys.executable, "stores", "tracing")
    bill = dist / f"crcr-{version}.cdx.json"
    run(
        tools.parent / "cyclonedx-py",
        *("environment", "--output-reproducible", "--pyproject", str(scratch / "pyproject.toml")),
        *("--mc-type", "application", "--of", "JSON", "-o", str(bill)),
        installed,
        SOURCE_DATE_EPOCH=date,
    )
    return bill


def find_pythons() -> tuple[dict[str, str], list[str]]:
    """The interpreters on this machine by version, and the versions that are missing."""
    found, missing = {}, []
    for version in PYTHONS:
        try:
            found[version] = run(BIN / "uv", "python", "find", "--no-python-downloads", version).strip()
        except NotReleasable:
            missing.append(version)
    return found, missing


def check_installation(wheel: Path, python: str, folder: Path, version: str) -> None:
    """Install the wheel with its pinned packages outside the checkout, and run what a newcomer would run first."""
    interpreter = new_environment(folder / "crcr", python, "app")
    run(BIN / "uv", "pip", "install", "--quiet", "--python", interpreter, "--no-deps", wheel)
    crcr = interpreter.parent / "crcr"
    if run(crcr, "--version", folder=folder).strip() != f"crcr {version}":
        raise NotReleasable(f"{crcr} is of another version")
    run(crcr, "demo", "--for", "2s", "--port", "0", "--github-port", "0", folder=folder)


def make_optional(dist: Path) -> list[str]:
    """Run the targets of the Makefile that add to a release, where they exist; return their names."""
    names = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    made = [target for target in OPTIONAL_TARGETS if target in names]
    for target in made:
        run("make", target, DIST=str(dist))
    return made


def write_checksums(dist: Path) -> None:
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(dist.iterdir())
    ]
    (dist / "SHA256SUMS").write_text("".join(lines))


def require_clean_checkout() -> None:
    if changed := run("git", "status", "--porcelain"):
        raise NotReleasable(f"commit or remove these first, or pass --dirty:\n{changed}")


def make_release(dist: Path, version: str) -> None:
    date = source_date()
    shutil.rmtree(dist, ignore_errors=True)
    with TemporaryDirectory(prefix="crcr-release-") as name:
        scratch = Path(name)
        made = make_optional(dist)  # before the wheel, which holds the site
        wheel = build_package(dist, scratch, date)
        print(f"built twice alike: {', '.join(sorted(path.name for path in dist.iterdir()))}")
        print(f"also made: {', '.join(made) or 'nothing'} (of {', '.join(OPTIONAL_TARGETS)})")
        bill = write_bill_of_materials(dist, scratch, version, date)
        print(f"bill of materials: {bill.name}")
        found, missing = find_pythons()
        for python, interpreter in found.items():
            (scratch / python).mkdir()
            check_installation(wheel, interpreter, scratch / python, version)
            print(f"runs on Python {python}")
        if missing:
            print(f"not checked, because not on this machine: Python {', '.join(missing)}")
    write_checksums(dist)
    print((dist / "SHA256SUMS").read_text(), end="")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--tag", help="refuse to build unless the version is that of this tag, such as v1.0.0"
    )
    parser.add_argument("--repository", metavar="URL", help="refuse to build unless the package names it")
    parser.add_argument("--dirty", action="store_true", help="build with uncommitted changes, to try it")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="the folder for the release")
    options = parser.parse_args()
    try:
        version = read_version()
        check_names(version, tag=options.tag, repository=options.repository)
        if not options.dirty:
            require_clean_checkout()
        make_release(options.dist.resolve(), version)
    except NotReleasable as reason:
        sys.exit(f"no release: {reason}")


if __name__ == "__main__":
    main()
