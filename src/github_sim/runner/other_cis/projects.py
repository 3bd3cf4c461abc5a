"""Other CIs that a repository builds at: which project of theirs belongs to it, and how its builds are started.

`connect` is what a person does on their pages: it makes the project, gives an API token, and puts that among the
repository's secrets, where the bridge finds it.
"""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from github_sim.oidc.other_cis import known_id
from github_sim.runner.joined_repository import Joined
from github_sim.runner.other_cis import buildkite, circleci, gitlab
from github_sim.runner.other_cis.builds import Build, PlannedJob
from github_sim.runner.problems import Problem

if TYPE_CHECKING:
    from github_sim.runner.runner import Runner

SECRETS = {
    "buildkite": "BUILDKITE_API_TOKEN",
    "gitlab": "GITLAB_TRIGGER_TOKEN",
    "circleci": "CIRCLECI_API_TOKEN",
}
ADDRESSES = {
    "buildkite": "https://api.buildkite.com",
    "gitlab": "https://gitlab.com",
    "circleci": "https://circleci.com",
}
_FIRST_PIPELINE = 574_000


@dataclass(frozen=True)
class Project:
    ci: str
    place: tuple[str, str]
    joined: Joined
    token: str


class OtherCis:
    def __init__(self, runner: "Runner") -> None:
        self._runner = runner
        self._projects: dict[tuple[str, str], Project] = {}
        runner.sim.other_cis = self

    def connect(self, ci: str, joined: Joined, place: tuple[str, str]) -> Project:
        """`place` is organisation and pipeline at Buildkite, number and path at GitLab, slug and nothing at CircleCI."""
        project = Project(ci, place, joined, secrets.token_hex(20))
        self._projects[ci, "/".join(place) if ci == "buildkite" else place[0]] = project
        joined.secrets[SECRETS[ci]] = project.token
        self._runner.routes[ADDRESSES[ci]] = f"{self._runner.sim.base_url}/_{ci}"
        return project

    def find(self, ci: str, place: str, token: str) -> Project | None:
        """The project of that name, for one who has its token."""
        found = self._projects.get((ci, place))
        return found if found is not None and secrets.compare_digest(found.token, token) else None

    def start(
        self,
        project: Project,
        told: Mapping[str, Any],
        *,
        message: str = "",
        meta: Mapping[str, str] | None = None,
    ) -> Build:
        """A new build; `told` are its variables, or its pipeline's parameters at CircleCI."""
        number = 1 + sum(1 for each in self._runner.builds.all if each.ci == project.ci)
        id = str(_FIRST_PIPELINE + number) if project.ci == "gitlab" else known_id(project.ci, str(number))
        build = Build(self._runner, project.joined, project.ci, number, id)
        build.place, build.meta = project.place, {**(meta or {}), "message": message}
        try:
            plan = self._plan(build, told)
        except Problem as problem:
            self._runner.tell(f"{project.joined.repository.full_name} {project.ci}: {problem}")
            raise
        self._runner.builds.all.append(build)
        self._runner.sim.spawn(build.go(plan))
        return build

    def _plan(self, build: Build, told: Mapping[str, Any]) -> list[PlannedJob]:
        sim = self._runner.sim
        if build.ci == "circleci":
            given = circleci.config(build)
            return circleci.plan(sim, build, given, circleci.parameters(given, told))
        build.env = {name: str(value) for name, value in told.items()}
        return buildkite.plan(sim, build) if build.ci == "buildkite" else gitlab.plan(sim, build)

    def builds(self, project: Project) -> list[Build]:
        return [build for build in self._runner.builds.all if build.joined is project.joined]

    def job_of(self, secret: str) -> tuple[Build, PlannedJob] | None:
        """The running job that was given this secret."""
        return self._runner.builds.running.get(secret)
