"""Folders of the runner: one set per job, snapshots of joined repositories, checkouts, artifacts.

A joined folder is copied once when it joins (`Snapshot`), so a run sees the files of that moment. Symbolic links, `.git`
and paths out of the folder are left out.
"""

import fnmatch
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

from github_sim.runner.environment import place_tools
from github_sim.runner.yaml_text import WorkflowError
from github_sim.world.git_content import Tree


@dataclass(frozen=True)
class JobFolders:
    """The folders of one job."""

    root: Path

    @property
    def workspace(self) -> Path:
        return self.root / "work"

    @property
    def temp(self) -> Path:
        return self.root / "temp"

    @property
    def home(self) -> Path:
        return self.root / "home"

    def make(self) -> "JobFolders":
        for folder in (self.workspace, self.temp, self.home):
            folder.mkdir(parents=True)
        return self

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


class RunnerFolders:
    def __init__(self) -> None:
        self.root = Path(mkdtemp(prefix="crcr-runner-"))
        self.tools = self.root / "tools"
        place_tools(self.tools)
        self._made = 0

    def new(self, kind: str) -> Path:
        self._made += 1
        return self.root / f"{kind}-{self._made}"

    def new_job_folders(self) -> JobFolders:
        return JobFolders(self.new("job")).make()

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)


MOST_FILES = 5_000
MOST_BYTES = 50_000_000
_LEFT_OUT = frozenset({".git", "__pycache__", "node_modules", ".venv"})


class Snapshot:
    """A snapshot of the files of a folder, with their modes."""

    def __init__(self, folder: Path, kept: Path) -> None:
        self.root = kept
        self.paths: list[str] = []
        total = 0
        for path in _files(folder.resolve(strict=True)):
            total += path.stat().st_size
            self.paths.append(str(path.relative_to(folder.resolve())))
            if total > MOST_BYTES or len(self.paths) > MOST_FILES:
                raise WorkflowError(f"{folder} is too big for the simulator")
            _copy(path, kept / self.paths[-1])

    def tree(self) -> dict[str, bytes]:
        return {path: (self.root / path).read_bytes() for path in self.paths}

    def check_out(self, into: Path, only: Sequence[str] = ()) -> None:
        for path in self.paths:
            if in_sparse_checkout(path, only):
                _copy(self.root / path, into / path)


def _files(folder: Path) -> Iterator[Path]:
    for path in sorted(folder.iterdir()):
        if path.name in _LEFT_OUT or path.is_symlink():
            continue
        if path.is_dir():
            yield from _files(path)
        elif path.is_file():
            yield path


def _copy(path: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)
    shutil.copymode(path, to)


def in_sparse_checkout(path: str, only: Sequence[str]) -> bool:
    """Sparse checkout, roughly: the named folders and, as git's cones have it, files at the top."""
    if not only:
        return True
    return "/" not in path or any(_under(path, folder.strip("/")) for folder in only)


def _under(path: str, place: str) -> bool:
    return path == place or path.startswith(f"{place}/")


def write_tree(tree: Tree, into: Path, only: Sequence[str] = ()) -> None:
    """A commit of a repository that only the simulator has; trees keep no modes, so scripts are known by their first line."""
    for path, content in tree.items():
        if in_sparse_checkout(path, only):
            target = resolve_inside(into, path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            if content.startswith(b"#!"):
                target.chmod(0o755)


def resolve_inside(root: Path, path: str) -> Path:
    """A path below a root, or a `Problem` where it leads out."""
    found = (root / path).resolve()
    if not found.is_relative_to(root.resolve()):
        raise WorkflowError(f"{path} leads out of the workspace")
    return found


class Artifacts:
    """Files that one job of a run keeps for another."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def keep(self, name: str, workspace: Path, patterns: Sequence[str]) -> int:
        """Keep what fits; one folder above all that was found becomes the root, as the real action has it."""
        found = sorted({path for pattern in patterns for path in _list_files(workspace, pattern)})
        if not found:
            return 0
        top = found[0].parent if len(found) == 1 else Path(_pattern_root(found))
        place = self._artifact_folder(name)
        shutil.rmtree(place, ignore_errors=True)
        for path in found:
            _copy(path, place / path.relative_to(top))
        return len(found)

    def fetch(self, name: str, into: Path) -> bool:
        """Copy the artifact into a folder; false when there is none of this name."""
        found = self._artifact_folder(name).is_dir()
        if found:
            shutil.copytree(self._artifact_folder(name), into, dirs_exist_ok=True)
        return found

    def _artifact_folder(self, name: str) -> Path:
        if not name or not all(letter.isalnum() or letter in "-_. " for letter in name):
            raise WorkflowError(f"{name!r} is not a name for an artifact")
        return self._root / name


def _list_files(workspace: Path, pattern: str) -> Iterator[Path]:
    """Files by a glob below the workspace, where a folder means everything in it; or one file by its whole path."""
    text = pattern.removeprefix("./").strip()
    outside = Path(text)
    if outside.is_absolute():
        if outside.is_file() and not outside.is_symlink():
            yield outside
        return
    for path in sorted(workspace.rglob("*")):
        name = str(path.relative_to(workspace))
        if path.is_file() and not path.is_symlink() and (_glob(name, text) or _under(name, text.rstrip("/"))):
            yield path


def _glob(name: str, pattern: str) -> bool:
    """`**/` stands for any folders, or none."""
    if fnmatch.fnmatchcase(name, pattern) and name.count("/") >= pattern.replace("**/", "").count("/"):
        return True
    return "**/" in pattern and fnmatch.fnmatchcase(name, pattern.replace("**/", "", 1))


def _pattern_root(paths: Sequence[Path]) -> str:
    parents = [path.parent.parts for path in paths]
    shared = next((n for n, row in enumerate(zip(*parents, strict=False)) if len(set(row)) > 1), None)
    return str(Path(*parents[0][: len(min(parents, key=len)) if shared is None else shared]))
