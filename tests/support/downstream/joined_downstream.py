"""`running_downstream`: a downstream with generated files whose workflow steps run as real processes.

The relay and the simulated GitHub listen on real ports, so that the steps reach both.
"""

import json
import tomllib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from starlette.types import Receive, Scope, Send

from crcr.decide.model import RepoName
from crcr.join.files import allowlist_entry, generate, registration
from crcr.join.request import Ci, JoinRequest
from github_sim.github import GitHub
from github_sim.oidc.other_cis import BuildkiteIssuer, CircleCiIssuer, GitLabIssuer
from github_sim.rest.server import Server
from github_sim.runner.runner import Runner
from support.other_cis.projects import OtherCis
from support.running_relay import AUDIENCE, UPSTREAM, RunningRelay, running_relay

DOWNSTREAM = "acme/backend"
CI_PROJECTS = {
    Ci.BUILDKITE: ("acme-inc", "backend"),
    Ci.GITLAB: ("20617", "acme/backend"),
    Ci.CIRCLECI: ("gh/acme/backend", ""),
}
MORE_FILES = {Ci.GITLAB: {".gitlab-ci.yml": "include: {local: .gitlab/crcr.yml}\n"}}
BUILD = "#!/usr/bin/env bash\nset -eu\n"


class RunningDownstream:
    """A running relay with one downstream whose jobs are executed; `relay_url` is the relay's address."""

    def __init__(
        self, relay: RunningRelay, runner: Runner, other_cis: OtherCis, folder: Path, relay_url: str
    ) -> None:
        self.relay = relay
        self.github = relay.github
        self.runner = runner
        self.builds = other_cis.builds
        self.folder = folder
        self.relay_url = relay_url

    async def run_to_end(self) -> None:
        """Run the relay and the jobs that it starts until nothing is left to do."""
        while await self.relay.drain() or self.runner.busy:
            await self.runner.settle()

    def jobs(self) -> list[dict[str, Any]]:
        return self.relay.jobs(DOWNSTREAM)

    def job_conclusions(self) -> list[tuple[str, str | None]]:
        return [(job["job_name"], job["conclusion"]) for job in self.jobs()]


def ci_project(ci: Ci) -> dict[str, str]:
    """The project of another CI as given to `crcr init`, with the ids of the simulated issuers."""
    if ci is Ci.BUILDKITE:
        ids = {"organization_id": BuildkiteIssuer.organization_id, "pipeline_id": BuildkiteIssuer.pipeline_id}
        return {"organization": CI_PROJECTS[ci][0], "pipeline": CI_PROJECTS[ci][1], **ids}
    if ci is Ci.GITLAB:
        return {"project_id": CI_PROJECTS[ci][0]}
    if ci is Ci.CIRCLECI:
        circle = CircleCiIssuer
        ids = {"organization_id": circle.organization_id, "project_id": circle.project_id}
        return {"project": CI_PROJECTS[ci][0], "context_id": circle.context_id(), **ids}
    return {}


def registration_setting(wish: JoinRequest, address: str) -> str:
    """The generated registration for the operator, with the simulator's issuer instead of the real one."""
    issuers = {Ci.BUILDKITE: BuildkiteIssuer, Ci.GITLAB: GitLabIssuer, Ci.CIRCLECI: CircleCiIssuer}
    (table,) = tomllib.loads(registration(wish) or "")["oidc"]["registration"]
    return json.dumps([{**table, "issuer": f"{address}{issuers[wish.ci].path}", "kind": wish.ci.value}])


def downstream_request(ci: Ci = Ci.GITHUB, relay_url: str = "http://127.0.0.1:1", **more: Any) -> JoinRequest:
    full = {
        "place": ci_project(ci),
        "ci": ci,
        "upstream": RepoName(UPSTREAM),
        "repository": RepoName(DOWNSTREAM),
        "relay_url": relay_url,
        "audience": AUDIENCE,
        **more,
    }
    return JoinRequest(**full)


def write_downstream(
    folder: Path, wish: JoinRequest, build: str = "true", more: Mapping[str, str] | None = None
) -> None:
    """Write the generated files, and a script that stands for the downstream's build."""
    files = {new.path: new.text for new in generate(wish)}
    files |= {"ci/build-and-test": f"{BUILD}{build}\n", **MORE_FILES.get(wish.ci, {}), **(more or {})}
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755 if text.startswith("#!") else 0o644)


class _LateApp:
    """Forwards to an app that is set after the server has started."""

    def __init__(self) -> None:
        self.app: Any = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app(scope, receive, send)


@asynccontextmanager
async def running_downstream(
    folder: Path,
    wish: JoinRequest,
    *,
    build: str = "true",
    files: Mapping[str, str] | None = None,
    listed: str | None = None,
    **more: Any,
) -> AsyncIterator[RunningDownstream]:
    """`listed` is the allowlist, if it is not the one that lists the downstream."""
    relay_app, github_app = _LateApp(), _LateApp()
    relay_server, github_server = Server(relay_app, "127.0.0.1", 0), Server(github_app, "127.0.0.1", 0)

    def prepare(github: GitHub) -> None:
        github_app.app = github.app
        github.base_url = github_server.url
        github.create_repository(DOWNSTREAM)

    checkout = folder / "checkout"
    write_downstream(checkout, replace(wish, relay_url=relay_server.url), build, files)
    given = {"CRCR_PUBLIC_URL": relay_server.url, **more}
    if wish.ci is not Ci.GITHUB:
        given["CRCR_OIDC_REGISTRATIONS"] = registration_setting(wish, github_server.url)
    async with running_relay(folder, listed or allowlist_entry(wish), prepare=prepare, **given) as relay:
        relay_app.app = relay.app
        runner = Runner(relay.github, limit_s=60)
        made = runner.join(relay.github.repository(DOWNSTREAM), checkout)
        other_cis = OtherCis(runner)
        if wish.ci is not Ci.GITHUB:
            other_cis.connect(wish.ci.value, made, CI_PROJECTS[wish.ci])
        for server in (relay_server, github_server):
            await server.start()
        try:
            yield RunningDownstream(relay, runner, other_cis, checkout, relay_server.url)
        finally:
            await relay.github.stop_activity()
            for server in (relay_server, github_server):
                await server.stop()
