"""Joining a repository to a running demo: its files from a folder, the App on it, and a line of the allowlist.

The relay hears of it as it would on GitHub, by an installation and by a push to the upstream. From then on dispatches
to it run what the folder holds, on this machine and as whoever started the demo. That is why it needs a key that only
that person can read: a port on loopback is open to everybody on the machine, and to pages in a browser.
"""

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING

from crcr.sim.exchange import ApiError, Ask, Auth, Reply, Route
from crcr.sim.records import Json, Repository
from crcr.sim.runner.problems import Problem
from crcr.sim.runner.runner import Runner

if TYPE_CHECKING:
    from crcr.sim.github import GitHub
    from crcr.sim.simulation import Simulation

PATH = "/_sim/repositories"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_LEVELS = frozenset({"L1", "L2"})
_BRIDGE = "CRCR_BRIDGE_TO"


class Joining:
    def __init__(self, github: "GitHub", runner: Runner, *, upstream: str, allowlist: str) -> None:
        self._github = github
        self._runner = runner
        self._upstream = upstream
        self._allowlist = allowlist
        self._names: set[str] = set()
        self.key = secrets.token_urlsafe(32)
        github.joining = self

    async def join(self, name: str, folder: Path, level: str) -> Json:
        """Join, or take the files of one that joined before anew."""
        _check(name, folder, level)
        known = self._github.world.find(name)
        if known is not None and name.lower() not in self._names:
            raise Problem(f"{name} belongs to the demo; choose another name")
        repository = known or self._github.create_repository(name, installed=False, tells_app=True)
        try:
            workflows = self._take(repository, folder)
        except (Problem, OSError):
            if known is None:
                self._github.world.forget_repository(repository)
            raise
        if known is None:
            await self._enter(name, level)
        return {"name": name, "level": level, "upstream": self._upstream, "workflows": workflows}

    def _take(self, repository: Repository, folder: Path) -> list[str]:
        self._runner.join(repository, folder)
        files = [workflow.path for workflow in repository.workflows]
        if not any(each.wants("repository_dispatch", "pull_request") for each in repository.workflows):
            raise Problem(f"no workflow in {folder}/.github/workflows listens to pull_request dispatches")
        tree = repository.commits[repository.head_sha].tree
        if any(_BRIDGE.encode() in tree[path] for path in files):
            raise Problem("these files build at another CI; the demo runs GitHub Actions")
        return files

    async def _enter(self, name: str, level: str) -> None:
        self._names.add(name.lower())
        await self._github.install(name)
        upstream = self._github.repository(self._upstream)
        text = upstream.commits[upstream.head_sha].tree[self._allowlist].decode()
        listed = with_entry(text, name, level)
        await self._github.push(
            self._upstream, files={self._allowlist: listed}, message=f"Add {name} to the allowlist"
        )


def _check(name: str, folder: Path, level: str) -> None:
    if not _NAME.fullmatch(name):
        raise Problem(f"{name!r} is not owner/name")
    if level not in _LEVELS:
        raise Problem("a repository joins the demo at L1 or L2")
    if not folder.is_absolute() or not folder.is_dir():
        raise Problem(f"{folder} is no folder")


def with_entry(allowlist: str, name: str, level: str) -> str:
    """The allowlist with one more line under its level; everything else stays as it is written."""
    lines = allowlist.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(f"{level}:"):
            return "".join([*lines[: number + 1], f"  - {name}\n", *lines[number + 1 :]])
    return f"{allowlist}{level}:\n  - {name}\n"


async def join(sim: "Simulation", ask: Ask) -> Reply:
    joining = sim.joining
    shown = ask.headers.get("authorization", "").partition(" ")[2]
    if joining is None or not secrets.compare_digest(shown.encode(), joining.key.encode()):
        raise ApiError(401, "The demo's key is missing or wrong")
    body = ask.json()
    try:
        told = await joining.join(
            str(body.get("name")), Path(str(body.get("folder"))), str(body.get("level", "L2"))
        )
    except Problem as problem:
        raise ApiError(422, str(problem)) from None
    except OSError as fault:
        raise ApiError(422, f"cannot read {body.get('folder')}: {fault.strerror}") from None
    return Reply(201, told)


ROUTES = (Route("POST", PATH, join, Auth.OPEN),)
