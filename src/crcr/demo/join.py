"""Joins a repository to a running demo: reads its files from a folder, installs the App, adds an allowlist entry.

The relay receives the same webhooks as from GitHub: an installation, and a push to the upstream. From then on dispatches
execute the folder's workflows on this machine, as the user who started the demo. That is why a key is needed that only
this user can read: a loopback port is open to every user of the machine, and to pages in a browser.

An unlisted repository gets neither App nor entry; one dispatch is sent to it, as its maintainer would send it.
"""

import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from github_sim.rest.exchange import ApiError, ApiRequest, Auth, Reply, Route
from github_sim.runner.joined_repository import JoinedRepository
from github_sim.runner.runner import Runner
from github_sim.runner.yaml_text import WorkflowError
from github_sim.world.records import Json, Repository

if TYPE_CHECKING:
    from github_sim.github import GitHub
    from github_sim.simulation import Simulation

PATH = "/_sim/repositories"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,38}/[A-Za-z0-9._-]{1,100}")
_LEVELS = frozenset({"L1", "L2"})
_BRIDGE = "CRCR_BRIDGE_TO"
ConnectBuilds = Callable[[Runner, JoinedRepository], None]
"""Creates the project at a simulated CI that builds a joined repository."""


class CannotJoin(WorkflowError):
    """A problem with a hint for the user."""

    def __init__(self, problem: str, hint: str) -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class JoinDemoRequest:
    name: str
    folder: Path
    level: str = "L2"
    listed: bool = True

    @property
    def key(self) -> str:
        return self.name.lower()


class DemoJoin:
    def __init__(
        self,
        github: "GitHub",
        runner: Runner,
        *,
        upstream: str,
        allowlist: str,
        relay_url: str = "",
        trial: Json | None = None,
        connect_builds: ConnectBuilds | None = None,
    ) -> None:
        """`trial` is the dispatch for repositories that are not listed; without `connect_builds` only GitHub Actions run."""
        self._github = github
        self._runner = runner
        self._upstream = upstream
        self._allowlist = allowlist
        self._relay_url = relay_url
        self._trial = trial or {"event_type": "crcr_test", "client_payload": {}}
        self._connect_builds = connect_builds
        self._names: set[str] = set()
        self._listed: set[str] = set()
        self.key = secrets.token_urlsafe(32)
        github.extra_routes.append(Route("POST", PATH, self._answer, Auth.OPEN))

    async def join(self, request: JoinDemoRequest) -> Json:
        """Join a repository, or read the files of a joined one again."""
        _check(request)
        existing = self._github.world.find(request.name)
        self._refuse_taken_name(request, existing)
        repository = existing or self._github.create_repository(
            request.name, installed=False, sends_run_webhooks=True
        )
        try:
            workflows = self._read_files(repository, request)
        except (WorkflowError, OSError):
            if existing is None:
                self._github.world.forget_repository(repository)
            raise
        self._names.add(request.key)
        await self._admit(request)
        return {
            "name": request.name,
            "level": request.level if request.listed else None,
            "upstream": self._upstream,
            "workflows": workflows,
            "relay": self._relay_url,
        }

    async def _answer(self, _sim: "Simulation", ask: ApiRequest) -> Reply:
        sent_key = ask.headers.get("authorization", "").partition(" ")[2]
        if not secrets.compare_digest(sent_key.encode(), self.key.encode()):
            raise ApiError(401, "The demo's key is missing or wrong")
        body = ask.json()
        request = JoinDemoRequest(
            name=str(body.get("name")),
            folder=Path(str(body.get("folder"))),
            level=str(body.get("level", "L2")),
            listed=body.get("listed", True) is not False,
        )
        try:
            return Reply(201, await self.join(request))
        except CannotJoin as problem:
            raise ApiError(422, str(problem), errors=[{"message": problem.hint}]) from None
        except WorkflowError as problem:
            raise ApiError(422, str(problem)) from None
        except OSError as fault:
            raise ApiError(422, f"cannot read {request.folder}: {fault.strerror}") from None

    def _refuse_taken_name(self, request: JoinDemoRequest, existing: Repository | None) -> None:
        if existing is not None and request.key not in self._names:
            raise WorkflowError(f"{request.name} is a repository of the demo; choose another name")
        if not request.listed and request.key in self._listed:
            raise WorkflowError(f"{request.name} is on the allowlist already; choose another name")

    def _read_files(self, repository: Repository, request: JoinDemoRequest) -> list[str]:
        joined = self._runner.join(repository, request.folder)
        files = [workflow.path for workflow in repository.workflows]
        event = "pull_request" if request.listed else str(self._trial["event_type"])
        if not any(
            workflow.is_triggered_by("repository_dispatch", event) for workflow in repository.workflows
        ):
            raise CannotJoin(
                f"no workflow in {request.folder}/.github/workflows listens to {event} dispatches",
                f"write one there with `crcr init --relay {self._relay_url} --repo {request.name}`",
            )
        tree = repository.commits[repository.head_sha].tree
        if not any(_BRIDGE.encode() in tree[path] for path in files):
            return files
        if self._connect_builds is None:
            raise CannotJoin(
                "these files build at another CI; the demo runs only GitHub Actions",
                "write others in another folder with `crcr init --ci github`; a checkout of crcr can rehearse other CIs",
            )
        self._connect_builds(self._runner, joined)
        return files

    async def _admit(self, request: JoinDemoRequest) -> None:
        if not request.listed:
            await self._github.send_dispatch(
                request.name, self._trial["event_type"], self._trial["client_payload"]
            )
        elif request.key not in self._listed:
            self._listed.add(request.key)
            await self._add_to_allowlist(request)

    async def _add_to_allowlist(self, request: JoinDemoRequest) -> None:
        await self._github.install(request.name)
        upstream = self._github.repository(self._upstream)
        text = upstream.commits[upstream.head_sha].tree[self._allowlist].decode()
        new_text = with_entry(text, request.name, request.level)
        await self._github.push(
            self._upstream, files={self._allowlist: new_text}, message=f"Add {request.name} to the allowlist"
        )


def _check(request: JoinDemoRequest) -> None:
    if not _NAME.fullmatch(request.name):
        raise WorkflowError(f"{request.name!r} is not owner/name")
    if request.level not in _LEVELS:
        raise WorkflowError("a repository joins the demo at L1 or L2")
    if not request.folder.is_absolute() or not request.folder.is_dir():
        raise WorkflowError(f"{request.folder} is not a folder")


def with_entry(allowlist: str, name: str, level: str) -> str:
    """Return the allowlist with one more line under its level; the rest stays unchanged."""
    lines = allowlist.splitlines(keepends=True)
    for number, line in enumerate(lines):
        if line.startswith(f"{level}:"):
            return "".join([*lines[: number + 1], f"  - {name}\n", *lines[number + 1 :]])
    return f"{allowlist}{level}:\n  - {name}\n"
